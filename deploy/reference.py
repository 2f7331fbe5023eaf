"""Writes the key reference: ``python -m deploy.reference [--check]``.

One page in ``docs/reference`` for each of the plan, ``silo.toml``, ``policy.toml`` and
``coordinator.toml``, out of the models that read them: names, types, bounds and defaults as the
model's JSON schema has them, and the line that stands under each field.

Invariants: the same code writes the same bytes; a key without a line fails, and nothing is written.

Covered: every key that a file may have. Not covered: what keys ask of each other, which the command
that reads the file says (``chorale run plan``, ``chorale-silo policy check``, ``doctor``).
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

from pydantic import BaseModel, TypeAdapter

from evolution.envs.foreign.spec import KINDS, ForeignSpec
from evolution.methods.options import RecipeOptions
from federation.plan.methods import METHODS, PARTS, NoOptions, PartCard
from federation.plan.plan import Plan
from server.config import ENV_PREFIX as COORDINATOR_PREFIX
from server.config import CoordinatorConfig
from silo_agent.config import ENVIRONMENT_PREFIX as SILO_PREFIX
from silo_agent.config import SiloConfig
from silo_agent.policy.document import Policy

__all__ = ["REFERENCE", "StaleReferenceError", "UndocumentedKeyError", "check", "main", "rendered"]

REFERENCE: Final = Path(__file__).parent.parent / "docs" / "reference"
_READ_BY: Final[Mapping[str, type]] = {"evolve": RecipeOptions}
"""Tables of ``silo.toml`` that are open where the file is read, and checked by what uses them."""
_FILLED_IN: Final[Mapping[tuple[type, str], str]] = {
    (SiloConfig, "data_dir"): "where the file is",
    (ForeignSpec, "family"): "the alias",
}
"""Keys that a model needs and the file's reader fills in."""
_FOREIGN: Final = '[foreign."kind:alias"]'
_ANY: Final = "KIND"
"""Stands for the keys of a table that all have the same inner table."""
_LEAST_WORDS: Final = 3
_POWERS: Final = {2**power: f"2^{power}" for power in range(20, 64)}


class StaleReferenceError(Exception):
    """What is committed is not what would be written."""


class UndocumentedKeyError(Exception):
    """A key has no line that says what it means."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """One table of a file."""

    heading: str
    """``[name]`` as the file writes it; empty for keys before the first table."""
    about: str
    """What it is for."""
    rows: tuple[tuple[str, str, str, str], ...]
    """Name, type with bounds, default, meaning."""


def lines_of(model: type) -> dict[str, str]:
    """The line under each field of a class and of its bases, by field; the nearest class wins."""
    found: dict[str, str] = {}
    for owner in reversed(model.__mro__):
        if not (hasattr(owner, "__annotations__") and owner.__module__.split(".")[0] in _OURS):
            continue
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        if not isinstance(body, ast.ClassDef):
            continue
        for field, below in zip(body.body, body.body[1:], strict=False):
            if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
                continue
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                found[field.target.id] = _prose(str(below.value.value))
    return found


_OURS: Final = ("federation", "silo_agent", "server", "evolution", "dp", "secagg")


def tables_of(model: type, heading: str = "", *, about: str = "") -> Iterator[Table]:
    """A model's table, then those inside it.

    Raises:
        UndocumentedKeyError: A key has no line, or one that says nothing.
    """
    schema = TypeAdapter(model).json_schema()
    lines, fields = lines_of(model), _fields(model)
    models = [_model_in(annotation) for annotation in fields.values()]
    inner: dict[str, tuple[type, str]] = {}
    rows = []
    for name, annotation in fields.items():
        line = lines.get(name, "")
        if len(line.split()) < _LEAST_WORDS:
            raise UndocumentedKeyError(f"{model.__name__}.{name} needs a line under it: {line!r}")
        nested = _READ_BY.get(name) if model is SiloConfig else None
        nested = nested or _model_in(annotation)
        shared = nested is not None and models.count(nested) > 1
        within = _heading(heading, _ANY if shared else name, annotation)
        if nested is not None:
            inner[within] = nested, line
        said = _type(schema["properties"][name], within if nested else "")
        rows.append((name, said, _default(model, name, schema), line))
    if rows:
        yield Table(heading=heading, about=_about(model) or about, rows=tuple(rows))
    for within, (table, line) in inner.items():
        yield from tables_of(table, within, about=line)


def _fields(model: type) -> dict[str, Any]:
    """The keys of a model with their annotations, in the order of the class."""
    if issubclass(model, BaseModel):
        return {
            name: field.annotation
            for name, field in model.model_fields.items()
            if not field.exclude
        }
    return get_type_hints(model)


def _model_in(annotation: Any) -> type | None:
    """The model of a table that a field is, or has in its place: a list, a mapping, or none."""
    if isinstance(annotation, type) and (
        issubclass(annotation, BaseModel) or dataclasses.is_dataclass(annotation)
    ):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


def _heading(outer: str, name: str, annotation: Any) -> str:
    path = f"{outer.strip('[]')}.{name}" if outer else name
    if getattr(annotation, "__origin__", None) is tuple:
        return f"[[{path}]]"
    mapping = getattr(annotation, "__origin__", None) is dict and _model_in(annotation) is not None
    return f'[{path}."kind:alias"]' if mapping else f"[{path}]"


def _about(model: type) -> str:
    """The first paragraph of a class, without the table's name before it."""
    text = _prose((inspect.getdoc(model) or "").split("\n\n", maxsplit=1)[0])
    text = re.sub(r"^`[^`]*`(?: `?\w+`?)?: ", "", text)
    return "" if text.startswith("See the module") else text[:1].upper() + text[1:]


def _prose(text: str) -> str:
    return " ".join(text.replace("``", "`").split())


def _default(model: type, name: str, schema: Mapping[str, Any]) -> str:
    filled = _FILLED_IN.get((model, name))
    if filled is None and issubclass(model, ForeignSpec):
        filled = _FILLED_IN.get((ForeignSpec, name))
    if filled is not None:
        return filled
    if name in schema.get("required", ()):
        return "**required**"
    value = schema["properties"][name].get("default")
    given = _given(value) if isinstance(value, dict) else value
    # Of a table with defaults throughout its own table tells them.
    whole = isinstance(value, dict) and bool(value) and model not in KINDS.values()
    return "—" if given is None or given == {} or whole else _code(given)


def _given(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: said for key, said in value.items() if said is not None}


def _code(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and value in _POWERS:
        return _POWERS[value]
    if isinstance(value, dict):
        pairs = ", ".join(f"{key} = {json.dumps(said)}" for key, said in value.items())
        return f"`{{ {pairs} }}`"
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def _type(schema: Mapping[str, Any], table: str = "") -> str:
    """A type in words, with its bounds; ``table`` is the heading of the table that it is."""
    if table:
        return f"[`{table}`](#{_anchor(table)})"
    if "anyOf" in schema:
        kinds = [_type(one) for one in schema["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "const" in schema or "enum" in schema:
        return ", ".join(_code(one) for one in schema.get("enum", [schema.get("const")]))
    words = _WORDS.get(schema.get("type", ""))
    return "any value" if words is None else words(schema)


def _text(schema: Mapping[str, Any]) -> str:
    kind = "path" if schema.get("format") == "path" else "text"
    if "pattern" in schema:
        return _with(kind, f"`{schema['pattern'].strip('^$')}`")
    most = schema.get("maxLength")
    return _with(kind, f"at most {most:,} characters" if most else "")


def _list(schema: Mapping[str, Any]) -> str:
    if "prefixItems" in schema:
        return f"[{'; '.join(_type(one) for one in schema['prefixItems'])}]"
    least, most = schema.get("minItems"), schema.get("maxItems")
    many = [f"at least {least}"] if least else []
    many += [f"at most {most:,}"] if most else []
    length = f" ({', '.join(many)})" if many else ""
    return f"list{length} of {_type(schema.get('items', {}))}"


def _range(schema: Mapping[str, Any]) -> str:
    words = (
        ("minimum", "from"),
        ("exclusiveMinimum", "above"),
        ("maximum", "to"),
        ("exclusiveMaximum", "below"),
    )
    return " ".join(f"{word} {_number(schema[key])}" for key, word in words if key in schema)


def _number(value: float) -> str:
    for power, said in _POWERS.items():
        if value in (power, power - 1):
            return said if value == power else f"{said} − 1"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}".replace("e+0", "e").replace("e+", "e")


def _with(kind: str, more: str) -> str:
    return f"{kind}, {more}" if more else kind


def _anchor(heading: str) -> str:
    """As GitHub makes it of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


_WORDS: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "array": _list,
    "boolean": lambda _: "`true` or `false`",
    "integer": lambda schema: _with("whole number", _range(schema)),
    "number": lambda schema: _with("number", _range(schema)),
    "object": lambda _: "table",
    "string": _text,
}
"""What a JSON schema's types are called."""


def _shown(table: Table) -> str:
    heading = f"## `{table.heading}`\n\n" if table.heading else ""
    about = f"{table.about}\n\n" if table.about and table.heading else ""
    cells = (("key", "type", "default", "meaning"), ("---",) * 4)
    rows = [
        *cells,
        *((f"`{name}`", kind, default, line) for name, kind, default, line in table.rows),
    ]
    shown = "\n".join(
        "| " + " | ".join(re.sub(r"\|", r"\\|", cell) for cell in row) + " |" for row in rows
    )
    return f"{heading}{about}{shown}\n"


def _page(title: str, preface: str, tables: Iterator[Table], *more: str) -> str:
    generated = "<!-- Written by `make reference` from the models; edit those. -->"
    shown = [_shown(table) for table in tables]
    return "\n".join((f"# {title}\n", f"{generated}\n", f"{preface}\n", *shown, *more))


def _methods() -> str:
    rows = [
        "| method | what it does | parts |",
        "| --- | --- | --- |",
        *(
            f"| `{card.name}` | {card.says} | "
            + (", ".join(f"`{part}`" for part in card.parts.values()) or "—")
            + " |"
            for card in METHODS.values()
        ),
    ]
    return "## Methods\n\nWhat `evolve.method` may be.\n\n" + "\n".join(rows) + "\n"


def _parts() -> str:
    def options(card: PartCard) -> str:
        return "—" if card.options is NoOptions else f"[below](#{_anchor(_part_heading(card))})"

    rows = [
        "| kind | part | what it does | couples | reads | options |",
        "| --- | --- | --- | --- | --- | --- |",
        *(
            f"| {card.kind} | `{card.name}` | {card.says} | {card.couples} | {card.reads} | "
            f"{options(card)} |"
            for card in PARTS.values()
        ),
    ]
    said = (
        "## Parts\n\nWhat `[evolve.parts]` may name. *couples*: what one unit's contribution "
        "depends on; *reads*: what the part looks at; the privacy modes that it runs under follow "
        "from the two ([parts.md](../parts.md)).\n\n" + "\n".join(rows) + "\n"
    )
    tables = [
        _shown(dataclasses.replace(table, heading="", about="")).join(
            (f"### {_part_heading(card)}\n\n", "")
        )
        for card in PARTS.values()
        if card.options is not NoOptions
        for table in tables_of(card.options)
    ]
    return "\n".join((said, *tables))


def _part_heading(card: PartCard) -> str:
    return f"Options of {card.kind} `{card.name}`"


def _kinds() -> Iterator[Table]:
    """What each kind of foreign environment has beyond, or other than, what all have."""
    common, *_ = tables_of(ForeignSpec, _FOREIGN)
    for kind, model in KINDS.items():
        own, *_ = tables_of(model, _FOREIGN)
        rows = tuple(row for row in own.rows if row not in common.rows)
        about = _about(model).removeprefix(f"`{kind}:`, ")
        heading = f'[foreign."{kind}:alias"]'
        yield Table(heading=heading, about=f"{about[:1].upper()}{about[1:]}", rows=rows)


def _overrides(prefix: str, example: str) -> str:
    return (
        f"An unknown key is an error. `{prefix}<KEY>` in the environment overrides a key, for "
        f"example `{example}`; tables and lists are written as JSON there."
    )


def rendered() -> dict[str, str]:
    """Every page's file name and content.

    Raises:
        UndocumentedKeyError: A key has no line that says what it means.
    """
    strict = "An unknown key is an error, and nothing is coerced: `1.0` is no whole number."
    return {
        "plan.md": _page(
            "The keys of a plan",
            f"One run, which everybody is shown. {strict} What keys ask of each other, and what a "
            "plan costs, `chorale run plan` says. How an agent learns: "
            "[evolution.md](../evolution.md); what the modes protect: [privacy.md](../privacy.md).",
            tables_of(Plan),
            _methods(),
            _parts(),
        ),
        "silo.md": _page(
            "The keys of silo.toml",
            "What one silo runs with: nothing here comes from a plan. "
            f"{_overrides(SILO_PREFIX, f'{SILO_PREFIX}THREADS=4')} Environments: "
            "[environments.md](../environments.md); a harness of your own: "
            "[gateway.md](../gateway.md).",
            tables_of(SiloConfig),
            "# Kinds of foreign environments\n",
            f"Each has the keys of {_type({}, _FOREIGN)} and these.\n",
            *map(_shown, _kinds()),
        ),
        "policy.md": _page(
            "The keys of policy.toml",
            "What a site allows; an empty file refuses everything. An unknown key is an error. "
            "`chorale-silo policy init --plan plan.toml` proposes one, `chorale-silo policy check "
            "plan.toml` says which rule refuses a plan.",
            tables_of(Policy),
        ),
        "coordinator.md": _page(
            "The keys of coordinator.toml",
            "Where the coordinator listens and keeps things. "
            f"{_overrides(COORDINATOR_PREFIX, f'{COORDINATOR_PREFIX}LISTEN=0.0.0.0:443')}",
            tables_of(CoordinatorConfig),
        ),
    }


def write(directory: Path = REFERENCE) -> None:
    """Write every page.

    Raises:
        UndocumentedKeyError: A key has no line; nothing is written.
    """
    pages = rendered()
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in pages.items():
        (directory / name).write_text(content, encoding="utf-8")


def check(directory: Path = REFERENCE) -> None:
    """Compare the committed pages with what would be written.

    Raises:
        StaleReferenceError: They differ, or there is one that nothing writes.
        UndocumentedKeyError: A key has no line.
    """
    expected = rendered()
    found = {path.name: path.read_text(encoding="utf-8") for path in directory.glob("*.md")}
    stale = sorted(name for name in expected | found if expected.get(name) != found.get(name))
    if stale:
        raise StaleReferenceError(
            f"stale in docs/{directory.name}/: {', '.join(stale)}; run make reference"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Write, or compare; 0 if all is well, 1 otherwise."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy.reference", description="Write the key reference."
    )
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    parser.add_argument("--out", type=Path, default=REFERENCE, help="where to write")
    asked = parser.parse_args(arguments)
    try:
        (check if asked.check else write)(asked.out)
    except (StaleReferenceError, UndocumentedKeyError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stderr.write("the reference is fresh\n" if asked.check else f"wrote {asked.out}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
