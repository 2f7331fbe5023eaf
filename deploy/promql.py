"""Which metrics and labels a PromQL expression names.

Invariant: what the parser of Prometheus' language refuses, or a selector that names no one metric,
raises :class:`PromqlError`; no name is passed over.

Covered: Grafana's ``$name``, ``${name}`` and ``[[name]]`` variables where a duration or part of a
string may stand; label names in matchers and groupings. Not covered: metrics chosen by a regular
expression over ``__name__``, labels made by ``label_replace`` or ``label_join``, Grafana's own
``label_values(...)``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from promql_parser import AggregateExpr, BinaryExpr, Expr, MatchOp, VectorSelector, parse, walk

__all__ = ["Matcher", "PromqlError", "Selector", "label_names", "metric_names", "selectors"]

_VARIABLE_DURATION: Final = re.compile(r"\[(?:\$\w+|\$\{\w+\}|\[\[\w+\]\])\]")
_OPERATORS: Final = {
    str(MatchOp.Equal): "=",
    str(MatchOp.NotEqual): "!=",
    str(MatchOp.Re): "=~",
    str(MatchOp.NotRe): "!~",
}


class PromqlError(ValueError):
    """The text is no PromQL expression."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matcher:
    """What a selector asks of one label."""

    label: str
    operator: str
    """One of ``=``, ``!=``, ``=~``, ``!~``."""
    value: str
    """Without its quotes; variables as written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """One mention of a metric."""

    metric: str
    matchers: tuple[Matcher, ...] = ()


def selectors(expr: str) -> tuple[Selector, ...]:
    """Every mention of a metric, in order, with what is asked of its labels.

    Raises:
        PromqlError: The text cannot be read as PromQL.
    """
    return tuple(_selector(node, expr) for node in _nodes(expr) if isinstance(node, VectorSelector))


def metric_names(expr: str) -> set[str]:
    """The metrics and recorded series that an expression reads, as the exposition names them.

    Raises:
        PromqlError: The text cannot be read as PromQL.
    """
    return {found.metric for found in selectors(expr)}


def label_names(expr: str) -> set[str]:
    """The labels that an expression selects or groups by, without ``__name__``.

    Raises:
        PromqlError: The text cannot be read as PromQL.
    """
    found = {matcher.label for one in selectors(expr) for matcher in one.matchers}
    for node in _nodes(expr):
        if isinstance(node, AggregateExpr) and node.modifier is not None:
            found.update(node.modifier.labels)
        if isinstance(node, BinaryExpr) and node.modifier is not None:
            if node.modifier.matching is not None:
                found.update(node.modifier.matching.labels)
            found.update(node.modifier.group_labels or ())
    return found


def _nodes(expr: str) -> list[Expr]:
    """Every part of an expression, each before what it is made of."""
    try:
        tree = parse(_VARIABLE_DURATION.sub("[1m]", expr))
    except ValueError as error:
        raise PromqlError(f"cannot read {expr!r}: {error}") from error
    found: list[Expr] = []
    walk(tree, found.append)
    return found


def _selector(node: VectorSelector, expr: str) -> Selector:
    if node.matchers.or_matchers:
        raise PromqlError(f"matchers with 'or' in {expr!r}")
    matchers = [
        Matcher(label=one.name, operator=_OPERATORS[str(one.op)], value=one.value)
        for one in node.matchers.matchers
    ]
    names = [node.name] if node.name else []
    for named in [one for one in matchers if one.label == "__name__"]:
        if named.operator != "=":
            raise PromqlError(f"metrics by pattern in {expr!r}")
        names.append(named.value)
        matchers.remove(named)
    if len(names) != 1:
        raise PromqlError(f"matchers of no metric, or of two, in {expr!r}")
    return Selector(metric=names[0], matchers=tuple(matchers))
