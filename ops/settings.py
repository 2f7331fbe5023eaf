"""What the environment says of a daemon's settings: ``<PREFIX><KEY>`` before the file's own key.

Invariants:

1. The environment's word comes before the file's; of a table both say something of, the keys are
   put together, and the environment's come first.
2. A key that holds a list, a table or a model is given as JSON; any other is taken as it stands,
   and the model that reads it says whether it may be so.

Covered: names in either case, as an environment gives them; optional keys. Not covered: variables
of no key, which each daemon refuses by itself; parts of a table as variables of their own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

__all__ = ["OverrideError", "overridden"]


class OverrideError(ValueError):
    """A variable holds no JSON where its key needs it."""


def overridden(
    model: type[BaseModel],
    content: Mapping[str, Any],
    *,
    prefix: str,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """What a file says, with what the environment says of the keys of ``model``.

    The environment is by default the process's own.

    Raises:
        OverrideError: The text names the key, and no value.
    """
    given = os.environ if environment is None else environment
    lowered = {name.lower(): value for name, value in given.items()}
    found: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        text = lowered.get(f"{prefix}{name}".lower())
        if text is None:
            continue
        value = _read(name, field.annotation, text)
        if value is not None:
            found[name] = value
    return _joined(content, found)


def _read(name: str, annotation: Any, text: str) -> Any:
    if not _is_structured(annotation):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        if NoneType in get_args(annotation):
            # The model says what it may be instead.
            return text
        raise OverrideError(f"{name} is given as JSON, and this is none") from None


def _is_structured(annotation: Any) -> bool:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _is_structured(get_args(annotation)[0])
    if origin in {Union, UnionType}:
        return any(map(_is_structured, get_args(annotation)))
    kind = annotation if origin is None else origin
    if not isinstance(kind, type) or issubclass(kind, str | bytes):
        return False
    return is_dataclass(kind) or issubclass(kind, BaseModel | Mapping | Sequence | AbstractSet)


def _joined(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    made = dict(below)
    for name, value in above.items():
        standing = made.get(name)
        if isinstance(standing, dict) and isinstance(value, dict):
            made[name] = _joined(standing, value)
        else:
            made[name] = value
    return made
