"""The shipped alert rules, and the series that they may name."""

import functools
import re

from deploy.promql import label_names, metric_names, selectors
from tests.kit.deploy import prometheus_files as files
from tests.kit.deploy import real_expositions

TARGET_LABELS = {"job", "instance"}
OPEN_LABELS = {*TARGET_LABELS, "silo", "environment", "grpc_code", "device"}
"""Labels whose values are not all known before something happens."""
RULES = {part: files.rules(part) for part in files.PARTS}
ALERTS = [rule for part in files.PARTS for rule in RULES[part] if not rule.records]


@functools.cache
def exposition(part):
    return {"coordinator": real_expositions.coordinator, "silo": real_expositions.silo}[part]()


@functools.cache
def known_series(part):
    """What a rule of this part may read: the daemon's own series, ``up``, and recorded ones."""
    known = real_expositions.series(exposition(part))
    known["up"] = [{}]
    for rule in RULES[part]:
        if rule.records:
            labels = {label: "" for name in base_metrics(rule) for label in known[name][0]}
            known.setdefault(rule.name, []).append(labels | rule.labels)
    return known


def base_metrics(rule):
    """The metrics that a rule reads, itself or through what other rules record."""
    recorded = {one.name: one for one in RULES[rule.part] if one.records}
    found = set()
    for name in metric_names(rule.expr):
        found |= base_metrics(recorded[name]) if name in recorded else {name}
    return found


def wrong_names(expr, known):
    """What an expression names and nobody exports."""
    wrong = [name for name in metric_names(expr) if name not in known]
    for one in selectors(expr):
        for matcher in one.matchers:
            values = {labels.get(matcher.label) for labels in known.get(one.metric, ())}
            if matcher.label in TARGET_LABELS:
                continue
            if values <= {None}:
                wrong.append(f"{one.metric}{{{matcher.label}}}")
            elif matcher.label not in OPEN_LABELS:
                parts = (
                    [matcher.value] if matcher.operator in {"=", "!="} else alternatives(matcher)
                )
                wrong += [
                    f'{one.metric}{{{matcher.label}="{part}"}}'
                    for part in parts
                    if not any(re.fullmatch(part, value or "") for value in values)
                ]
    labels = {
        label for name in metric_names(expr) for one in known.get(name, ()) for label in one
    } | TARGET_LABELS
    return wrong + sorted(label_names(expr) - labels)


def alternatives(matcher):
    return matcher.value.split("|")
