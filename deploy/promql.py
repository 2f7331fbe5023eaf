"""Which metrics and labels a PromQL expression names.

Invariants:

1. A name is a metric only where PromQL reads it as one: not as a function, an aggregation, an
   operator, a label, a duration or part of a string. ``{__name__="x"}`` names ``x``.
2. What is no PromQL raises :class:`PromqlError`; a name is never passed over because of a
   character that was not understood.

Covered: expressions of Prometheus 2, Grafana's ``$name``, ``${name}`` and ``[[name]]`` variables
where a duration, a number or part of a string may stand, and label names in matchers and
groupings. Not covered: whether the expression is well typed (``promtool check rules`` says that),
metrics chosen by a regular expression over ``__name__``, labels made by ``label_replace`` or
``label_join``, Grafana's own ``label_values(...)``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

__all__ = ["Matcher", "PromqlError", "Selector", "label_names", "metric_names", "selectors"]

AGGREGATIONS: Final = frozenset(
    {
        "avg", "bottomk", "count", "count_values", "group", "max", "min", "quantile", "stddev",
        "stdvar", "sum", "topk",
    }
)  # fmt: skip
GROUPINGS: Final = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
OPERATORS: Final = frozenset({"and", "or", "unless", "atan2", "bool", "offset"})
NUMBERS: Final = frozenset({"inf", "nan"})

_TOKEN: Final = re.compile(
    r"""
    (?P<space>\s+|\#[^\n]*)
    |(?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|`[^`]*`)
    |(?P<variable>\$\w+|\$\{[^}]*\}|\[\[\w+\]\])
    |(?P<number>0[xX][0-9a-fA-F]+|(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?:ms|[smhdwy])?
        (?:\d+(?:ms|[smhdwy]))*)
    |(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
    |(?P<operator>=~|!~|!=|==|>=|<=|[-+*/%^<>=@(){}\[\],:])
    """,
    re.VERBOSE,
)
_CLOSING: Final = {"(": ")", "{": "}", "[": "]"}
_MATCHER_KINDS: Final = (["name", "operator", "string"], ["name", "operator", "variable"])


class PromqlError(ValueError):
    """The text is no PromQL expression."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Token:
    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Matcher:
    """What a selector asks of one label."""

    label: str
    operator: str
    """One of ``=``, ``!=``, ``=~``, ``!~``."""
    value: str
    """Without its quotes; as written, escapes and variables included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """One mention of a metric."""

    metric: str
    matchers: tuple[Matcher, ...] = ()


def selectors(expr: str) -> tuple[Selector, ...]:
    """Every mention of a metric, in order, with what is asked of its labels.

    Args:
        expr: PromQL.

    Raises:
        PromqlError: The text cannot be read as PromQL.
    """
    return tuple(_Reader(expr).selectors)


def metric_names(expr: str) -> set[str]:
    """The metrics and recorded series that an expression reads.

    Args:
        expr: PromQL.

    Returns:
        Names as they stand in the exposition, such as ``chorale_rounds_total``.

    Raises:
        PromqlError: The text cannot be read as PromQL.
    """
    return {found.metric for found in _Reader(expr).selectors}


def label_names(expr: str) -> set[str]:
    """The labels that an expression selects or groups by.

    Args:
        expr: PromQL.

    Returns:
        Label names, without ``__name__``.

    Raises:
        PromqlError: The text cannot be read as PromQL.
    """
    return _Reader(expr).labels


def _tokens(expr: str) -> Iterator[_Token]:
    at = 0
    while at < len(expr):
        match = _TOKEN.match(expr, at)
        if match is None:
            raise PromqlError(f"cannot read {expr[at : at + 20]!r} in {expr!r}")
        at = match.end()
        kind = match.lastgroup
        if kind is not None and kind != "space":
            yield _Token(kind=kind, text=match.group())


class _Reader:
    """Goes through an expression once."""

    def __init__(self, expr: str) -> None:
        self.expr = expr
        self.tokens = list(_tokens(expr))
        self.selectors: list[Selector] = []
        self.labels: set[str] = set()
        if not self.tokens:
            raise PromqlError("an empty expression")
        open_parentheses = at = 0
        while at < len(self.tokens):
            token = self.tokens[at]
            if token.kind == "name":
                at = self._name(at)
            elif token.text == "{":
                at = self._selector("", at)
            elif token.text == "[":
                at = self._end(at)
            elif token.text in {"(", ")"}:
                open_parentheses += 1 if token.text == "(" else -1
            if open_parentheses < 0 or token.text in {"}", "]"}:
                raise PromqlError(f"an unopened {token.text!r} in {expr!r}")
            at += 1
        if open_parentheses:
            raise PromqlError(f"an unclosed '(' in {expr!r}")

    def _name(self, at: int) -> int:
        """Take a name and what belongs to it; returns where its last token is."""
        text = self.tokens[at].text
        following = self.tokens[at + 1].text if at + 1 < len(self.tokens) else ""
        if text.lower() in GROUPINGS:
            if following == "(":
                end = self._end(at + 1)
                inside = self.tokens[at + 2 : end]
                self.labels.update(one.text for one in inside if one.kind == "name")
                return end
            if not text.lower().startswith("group_"):
                raise PromqlError(f"no labels after {text!r} in {self.expr!r}")
        elif not _is_word(text.lower(), following):
            if following == "{":
                return self._selector(text, at + 1)
            self.selectors.append(Selector(metric=text))
        return at

    def _selector(self, metric: str, start: int) -> int:
        """Take the matchers in braces; returns where they are closed."""
        end = self._end(start)
        inside, matchers = self.tokens[start + 1 : end], []
        while inside:
            if [one.kind for one in inside[:3]] not in _MATCHER_KINDS:
                raise PromqlError(f"cannot read the matchers in {self.expr!r}")
            label, operator, value = (one.text for one in inside[:3])
            if operator not in {"=", "!=", "=~", "!~"}:
                raise PromqlError(f"{operator!r} matches no label in {self.expr!r}")
            if len(inside) > 3 and inside[3].text != ",":
                raise PromqlError(f"no comma between matchers in {self.expr!r}")
            value = value[1:-1] if inside[2].kind == "string" else value
            matchers.append(Matcher(label=label, operator=operator, value=value))
            inside = inside[4:]
        for named in [one for one in matchers if one.label == "__name__"]:
            if named.operator != "=" or metric:
                raise PromqlError(f"metrics by pattern in {self.expr!r}")
            metric = named.value
            matchers.remove(named)
        if not metric:
            raise PromqlError(f"matchers of no metric in {self.expr!r}")
        self.labels.update(one.label for one in matchers)
        self.selectors.append(Selector(metric=metric, matchers=tuple(matchers)))
        return end

    def _end(self, start: int) -> int:
        closing = _CLOSING[self.tokens[start].text]
        for at in range(start + 1, len(self.tokens)):
            if self.tokens[at].text == closing:
                return at
        raise PromqlError(f"an unclosed {self.tokens[start].text!r} in {self.expr!r}")


def _is_word(word: str, following: str) -> bool:
    """Whether a name belongs to the language: what is called is a function."""
    if following == "(":
        return True
    if word in AGGREGATIONS:
        return following.lower() in {"by", "without"}
    return word in OPERATORS or word in NUMBERS
