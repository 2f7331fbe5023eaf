"""A table checked against its class, and what is wrong with it in words.

Invariants: every problem is told, one line each, with the path of its key; an unknown key names the
nearest valid one.

Covered: pydantic's own findings. Not covered: what tables ask of each other (``config.py``).
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from lab.experiment.errors import ExperimentFileError

__all__ = ["validated"]

_MAX_SHOWN: Final = 60
ModelT = TypeVar("ModelT", bound=BaseModel)


def validated(model: type[ModelT], document: Mapping[str, Any], *, prefix: str) -> ModelT:
    """A document as its class; ``prefix`` is the path of the table in the file.

    Raises:
        ExperimentFileError: With every problem found.
    """
    try:
        # As JSON, because TOML's arrays and integers are what strict mode takes there for tuples
        # and floats. Dates and infinities have no place in a file and fail as strings.
        return model.model_validate_json(json.dumps(document, default=str))
    except ValidationError as error:
        raise ExperimentFileError(
            [_worded(item, model, prefix) for item in error.errors(include_url=False)]
        ) from error


def _worded(item: Any, model: type[BaseModel], prefix: str) -> str:
    path = tuple(str(part) for part in item["loc"])
    where = ".".join(part for part in (prefix, *path) if part) or "file"
    if item["type"] == "extra_forbidden":
        valid = sorted(_table(path[:-1], model).model_fields)
        nearest = difflib.get_close_matches(path[-1], valid, n=1, cutoff=0.0)[0]
        return f"{where}: unknown key; the nearest valid key is {nearest!r} (of {', '.join(valid)})"
    if item["type"] == "missing":
        return f"{where}: this key is required: add it"
    shown = repr(item["input"])
    shown = shown if len(shown) <= _MAX_SHOWN else shown[:_MAX_SHOWN] + "…"
    return f"{where}: {item['msg'].removeprefix('Value error, ')}, got {shown}"


def _table(path: tuple[str, ...], model: type[BaseModel]) -> type[BaseModel]:
    """The model that a path leads to, through tables and arrays of tables."""
    for name in path:
        field = model.model_fields.get(name)
        if field is None:
            continue  # The index of an array.
        model = next(iter(_models(field.annotation)), model)
    return model


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _models(argument)
