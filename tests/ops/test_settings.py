"""What the environment says of settings: before the file, of tables together with it, JSON or text.

Not failures: variables that name no key, which each daemon refuses by itself. Failures: a key whose
variable is passed over, a text that is taken for JSON or the other way round, a value in an error.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import BaseModel, Field

from ops.settings import OverrideError, overridden


class Guard(BaseModel):
    strict: bool = False


@dataclass(frozen=True)
class Engine:
    kind: str = "torch"


class Settings(BaseModel):
    name: Annotated[str, Field(max_length=9)] | None = None
    count: int = 1
    directory: Path | None = None
    names: Annotated[tuple[str, ...], Field(max_length=4)] = ()
    table: dict[str, dict[str, int]] = {}
    engine: Engine = Engine()
    guard: Guard | None = None


def settings(content: dict[str, object], **environment: str) -> dict[str, object]:
    given = {f"CHORALE_{name}": value for name, value in environment.items()}
    return overridden(Settings, content, prefix="CHORALE_", environment=given)


@pytest.mark.parametrize(
    ("name", "text", "read"),
    [
        ("NAME", "[1]", "[1]"),
        ("NAME", "null", "null"),
        ("NAME", "", ""),
        ("COUNT", "4", "4"),
        ("DIRECTORY", "{}", "{}"),
        ("NAMES", '["a", "b"]', ["a", "b"]),
        ("ENGINE", '{"kind": "vllm"}', {"kind": "vllm"}),
        ("GUARD", '{"strict": true}', {"strict": True}),
        ("guard", "no JSON", "no JSON"),
    ],
)
def test_a_variable_is_json_where_its_key_is_a_table_or_list(name, text, read):
    assert settings({name.lower(): "the file's"}, **{name: text}) == {name.lower(): read}


def test_a_table_is_put_together_and_the_environment_comes_first():
    content = {"table": {"a": {"x": 1, "y": 2}, "b": {"x": 3}}, "count": 7}
    found = settings(content, TABLE='{"a": {"y": 9}, "c": {"z": 4}}')
    assert found == {"table": {"a": {"x": 1, "y": 9}, "b": {"x": 3}, "c": {"z": 4}}, "count": 7}
    assert content["table"] == {"a": {"x": 1, "y": 2}, "b": {"x": 3}}


def test_null_leaves_a_table_to_the_file_and_strays_are_not_taken():
    assert settings({"names": ["a"]}, NAMES="null", OTHER="1") == {"names": ["a"]}


@pytest.mark.parametrize("text", ["[", "hunter2", "[" * 100_000, ""])
def test_what_is_no_json_is_refused_without_its_text(text):
    with pytest.raises(OverrideError, match=r"^names is given as JSON, and this is none$"):
        settings({}, NAMES=text)


def test_what_is_put_together_is_what_the_model_reads():
    found = settings({"count": 2, "names": ["a"]}, COUNT="5", GUARD='{"strict": true}')
    assert Settings(**found) == Settings(count=5, names=("a",), guard=Guard(strict=True))
