"""The key reference: fresh, and a line for every key that a file may have."""

import tomllib
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import BaseModel, Field

from deploy import reference
from tests.kit.paths import ROOT

EXAMPLES = ROOT / "deploy" / "examples"


@pytest.fixture(scope="module")
def pages():
    return reference.rendered()


def test_what_is_committed_is_fresh():
    assert reference.main(["--check"]) == 0


def test_an_edit_by_hand_a_lost_and_a_foreign_page_are_stale(pages, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(reference, "rendered", lambda: pages)
    reference.write(tmp_path)
    reference.check(tmp_path)
    for name, change in (
        ("plan.md", lambda path: path.write_text(path.read_text().replace("`8`", "`9`"))),
        ("silo.md", Path.unlink),
        ("other.md", lambda path: path.write_text("by hand")),
    ):
        change(tmp_path / name)
        with pytest.raises(reference.StaleReferenceError, match=name):
            reference.check(tmp_path)
        assert reference.main(["--check", "--out", str(tmp_path)]) == 1
        assert "make reference" in capsys.readouterr().err
        reference.write(tmp_path)
        (tmp_path / "other.md").unlink(missing_ok=True)


class Lacking(BaseModel):
    said: int = 1
    """What it is."""
    unsaid: Annotated[int, Field(ge=1)] = 1


def test_a_key_without_a_line_is_refused(monkeypatch):
    monkeypatch.setattr(reference, "_OURS", (Lacking.__module__.split(".")[0],))
    with pytest.raises(reference.UndocumentedKeyError, match=r"Lacking\.unsaid"):
        list(reference.tables_of(Lacking))


@pytest.mark.parametrize(
    ("page", "row"),
    [
        ("plan.md", "| `lora_rank` | whole number, from 1 to 256 | `8` | Rank r of"),
        ("plan.md", "| `noise_multiplier` | number, from 0 to 1e9 | **required** | z: the noise's"),
        ("plan.md", "| `gae_lambda` | number, from 0 to 1 | `1.0` | λ of the generalised"),
        ("silo.md", "| `personal_lambda` | number, from 0 | `0.1` | Of `ditto`: λ"),
        ("silo.md", "| `quest_length` | whole number, from 1 to 10 | `2` | Commands that"),
        ("policy.md", '| `suites` | list of `"v1"`, `"v2"` | `["v2"]` | Suites that'),
        ("coordinator.md", '| `listen` | text | `"0.0.0.0:7443"` | Mutual TLS'),
    ],
)
def test_a_key_has_type_bounds_default_and_meaning(pages, page, row):
    assert f"\n{row}" in pages[page]


@pytest.mark.parametrize(
    ("page", "pattern"),
    [
        ("plan.md", "plan-*.toml"),
        ("silo.md", "silo.toml"),
        ("policy.md", "policy.toml"),
        ("coordinator.md", "coordinator.toml"),
    ],
)
def test_every_key_of_the_examples_is_there(pages, page, pattern):
    text = pages[page]
    files = sorted(EXAMPLES.glob(pattern))
    assert files
    for path in files:
        for name, value in tomllib.loads(path.read_text()).items():
            assert f"| `{name}` |" in text
            for key in value if isinstance(value, dict) else ():
                assert f"| `{key}` |" in text or name == "foreign", (path.name, name, key)
