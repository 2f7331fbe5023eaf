"""Tables of silo.toml whose keys another module owns: foreign environments, engine, trainer.

Invariants: a table is checked as strictly as the file it comes from (JSON types, no coercion, no
NaN); an unknown key is an error that names the nearest known one; every problem is told.

Covered: from a table to a spec. Not covered: which tables there are (``silo_agent/config.py``).
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from evolution.envs.foreign.spec import KINDS, ForeignSpec, kind_of

__all__ = ["foreign_specs", "nearest_key", "problems", "spec_of"]

SpecT = TypeVar("SpecT")
MAX_FOREIGN = 64


def foreign_specs(tables: Any) -> dict[str, ForeignSpec]:
    """The tables ``[foreign."kind:alias"]``.

    Args:
        tables: By name, as TOML gave them; specs are taken as they are.

    Returns:
        One spec for each, by name.

    Raises:
        ValueError: With every problem found.
    """
    if not isinstance(tables, Mapping) or len(tables) > MAX_FOREIGN:
        raise ValueError(f"expected at most {MAX_FOREIGN} tables, one for each environment")
    specs: dict[str, ForeignSpec] = {}
    wrong: list[str] = []
    for name, table in tables.items():
        try:
            specs[name] = table if isinstance(table, ForeignSpec) else _foreign_spec(name, table)
        except ValueError as error:
            wrong.append(f'"{name}": {error}')
    if wrong:
        raise ValueError("; ".join(wrong))
    return specs


def spec_of(kind: type[SpecT], table: Any, *, directory: Path | None = None) -> SpecT:
    """A frozen dataclass of a table with its fields as keys.

    Args:
        kind: The dataclass; its annotations and defaults are what is checked.
        table: As TOML gave it; a ready ``kind`` is taken as it is.
        directory: What relative paths are relative to.

    Returns:
        The dataclass.

    Raises:
        ValueError: With every problem found.
    """
    if isinstance(table, kind):
        return table
    if not dataclasses.is_dataclass(kind):
        raise TypeError(f"{kind.__name__} is not a dataclass")
    hints = get_type_hints(kind)
    fields: dict[str, Any] = {
        item.name: (hints[item.name], _default(item)) for item in dataclasses.fields(kind)
    }
    strict = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    model = create_model(kind.__name__, __config__=strict, **fields)
    checked = _validated(model, table)
    values = {name: getattr(checked, name) for name in hints}
    if directory is not None:
        values = {
            name: _below(directory, value) if isinstance(value, Path) else value
            for name, value in values.items()
        }
    return kind(**values)


def nearest_key(key: str, known: Collection[str]) -> str:
    """What an unknown key was probably meant to be, as a part of a message."""
    close = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.0)
    nearest = f"nearest: {close[0]}; " if close else ""
    return f"unknown key ({nearest}known: {', '.join(sorted(known))})"


def problems(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """One line for each problem, with the known keys of the table it is in."""
    lines = []
    for item in error.errors(include_url=False, include_context=False):
        path = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            text = nearest_key(str(item["loc"][-1]), _keys(model, item["loc"][:-1]))
        else:
            text = item["msg"].removeprefix("Value error, ")
        lines.append(f"{path}: {text}" if path else text)
    return lines


def _foreign_spec(name: str, table: Any) -> ForeignSpec:
    kind, alias = kind_of(name)
    if not isinstance(table, Mapping):
        raise ValueError("not a table")  # noqa: TRY004  # a problem of the file, told with the others
    if "name" in table:
        raise ValueError("name: the name is the table's own, between the quotes")
    return _validated(KINDS[kind], {"family": alias, **table, "name": name})


ModelT = TypeVar("ModelT", bound=BaseModel)


def _validated(model: type[ModelT], table: Any) -> ModelT:
    try:
        # As JSON, because a strict model takes arrays and paths from it, and nothing is coerced.
        text = json.dumps(table)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"a value has no place in this table: {error}") from error
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        raise ValueError("; ".join(problems(error, model))) from error


def _below(directory: Path, path: Path) -> Path:
    return (directory.expanduser() / path.expanduser()).absolute()


def _default(item: dataclasses.Field[Any]) -> Any:
    if item.default is not dataclasses.MISSING:
        return item.default
    if item.default_factory is not dataclasses.MISSING:
        return item.default_factory()
    return ...


def _keys(model: type[BaseModel], path: tuple[int | str, ...]) -> set[str]:
    """The keys of the table at a path; those of the outermost model where it has no model."""
    for part in path:
        field = model.model_fields.get(str(part))
        inner = _models(field.annotation) if field else []
        if inner:
            model = inner[0]
    return {key for key, field in model.model_fields.items() if not field.exclude}


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models(part)]
