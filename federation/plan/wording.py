"""Wording of what is wrong with a plan: key path, problem, what to do.

Covered: every error that pydantic reports about ``federation.plan.plan.Plan``.
Not covered: documents that are not TOML, which never reach a model.
"""

from __future__ import annotations

import difflib
from typing import Final, get_args

from pydantic import BaseModel, ValidationError

_COMPUTED: Final = {
    "c": "the number of colluding silos is fixed in the signed roster: a plan may not lower it",
    "colluding": "the number of colluding silos is fixed in the signed roster, not in a plan",
    "t": "the threshold is computed from the cohort and the roster's c, never configured",
    "threshold": "the threshold is computed from the cohort and the roster's c, never configured",
}
_MAX_SHOWN: Final = 60
_MAX_PROBLEMS: Final = 50
"""A plan with more of them is none, and each unknown key is looked up among all known ones."""


def explain(error: ValidationError, model: type[BaseModel]) -> tuple[str, ...]:
    """One line for each problem, in the order of the document's model; the first fifty of them."""
    problems = []
    found = error.errors(include_url=False, include_context=False)
    for item in found[:_MAX_PROBLEMS]:
        path = tuple(str(part) for part in item["loc"])
        problems.append(f"{'.'.join(path) or 'plan'}: {_advice(item, path, model)}")
    if len(found) > _MAX_PROBLEMS:
        problems.append(f"and {len(found) - _MAX_PROBLEMS} more problems")
    return tuple(problems)


def _advice(item: object, path: tuple[str, ...], model: type[BaseModel]) -> str:
    kind, message, value = _parts(item)
    if kind == "extra_forbidden":
        return _unknown_key(path, model)
    if kind == "missing":
        return "this key is required: add it"
    shown = repr(value)
    if len(shown) > _MAX_SHOWN:
        shown = shown[:_MAX_SHOWN] + "…"
    text = message.removeprefix("Value error, ")
    return text if kind == "value_error" else f"{text}, got {shown}"


def _parts(item: object) -> tuple[str, str, object]:
    if not isinstance(item, dict):
        raise TypeError("pydantic reports each error as a dictionary")
    return str(item["type"]), str(item["msg"]), item.get("input")


def _unknown_key(path: tuple[str, ...], model: type[BaseModel]) -> str:
    *tables, key = path
    if tables == ["secure_aggregation"] and key.lower() in _COMPUTED:
        return f"remove this key: {_COMPUTED[key.lower()]}"
    valid = sorted(_table(tuple(tables), model).model_fields)
    nearest = difflib.get_close_matches(key, valid, n=1, cutoff=0.0)
    return f"unknown key; the nearest valid key is {nearest[0]!r} (of {', '.join(valid)})"


def _table(tables: tuple[str, ...], model: type[BaseModel]) -> type[BaseModel]:
    for name in tables:
        annotation = model.model_fields[name].annotation
        for candidate in (annotation, *get_args(annotation)):
            if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                model = candidate
                break
    return model
