"""What is served: whole or not there, switched at once, and nothing that is not the guard's."""

import json
import os

import pytest

from federation.plan.read import read_plan
from silo_agent.errors import GuardError
from silo_agent.guard.shelf import Shelf, name_of
from tests.kit.server import world_plan as sw
from tests.kit.silo_agent.lora import lora

PLAN = read_plan(sw.plan_toml(rounds=4))
DIGESTS = [f"{number:064x}" for number in range(6)]
NAMES = [name_of(number, digest) for number, digest in enumerate(DIGESTS)]


@pytest.fixture
def shelf(tmp_path):
    return Shelf(tmp_path / "deep" / "served")


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "deep" / "served"


def put(shelf, number):
    shelf.put(
        NAMES[number],
        lora(PLAN),
        plan=PLAN,
        provenance={"adapter_sha256": DIGESTS[number]},
        card=f"# {number}",
    )


def test_an_adapter_is_put_in_pefts_form_with_its_card(shelf, directory):
    put(shelf, 1)
    assert shelf.holds(NAMES[1])
    assert shelf.current is None
    assert {path.name for path in (directory / NAMES[1]).iterdir()} == {
        "adapter_model.safetensors",
        "adapter_config.json",
        "provenance.json",
        "README.md",
    }
    assert json.loads((directory / NAMES[1] / "adapter_config.json").read_text())["r"] > 0


def test_the_link_is_replaced_and_never_missing(shelf, directory, monkeypatch):
    put(shelf, 1)
    put(shelf, 2)
    shelf.point(NAMES[1])
    seen = []
    replace = os.replace
    with monkeypatch.context() as patched:
        patched.setattr(
            type(directory),
            "replace",
            lambda path, target: (seen.append(shelf.current), replace(path, target))[1],
        )
        patched.setattr(type(directory), "unlink", None)
        shelf.point(NAMES[2])
    # Until the very switch the earlier one is served.
    assert seen == [NAMES[1]]
    assert (directory / "current").resolve() == directory.resolve() / NAMES[2]
    assert (directory / "current").readlink() == (directory / NAMES[2]).relative_to(directory)


def test_what_a_crash_left_has_no_adapters_name_and_is_deleted(shelf, directory, monkeypatch):
    def fails(*_arguments, **_options):
        raise OSError("no space left")

    put(shelf, 1)
    with monkeypatch.context() as patched:
        patched.setattr(type(directory), "rename", fails)
        with pytest.raises(GuardError, match="no space left"):
            put(shelf, 2)
    assert not shelf.holds(NAMES[2])
    assert len(list(directory.iterdir())) == 2
    put(shelf, 2)
    assert {path.name for path in directory.iterdir()} == {NAMES[1], NAMES[2]}


def test_only_the_newest_are_kept_and_the_served_one(shelf, directory):
    directory.mkdir(parents=True)
    (directory / "mine").mkdir()
    (directory / "note.txt").write_text("mine as well")
    for number in range(5):
        put(shelf, number)
        os.utime(directory / NAMES[number], (number, number))
    shelf.point(NAMES[1])
    shelf.prune(keep=2)
    assert {path.name for path in directory.iterdir()} == {
        NAMES[1], NAMES[4], "current", "mine", "note.txt"
    }  # fmt: skip
    assert shelf.current == NAMES[1]


def test_a_current_of_somebody_elses_is_left_alone(shelf, directory):
    put(shelf, 1)
    (directory / "current").mkdir()
    for name in (NAMES[1], None):
        with pytest.raises(GuardError, match="is no link"):
            shelf.point(name)
    assert shelf.current is None


def test_no_link_stands_for_the_base(shelf, directory):
    shelf.point(None)
    shelf.prune(keep=1)
    assert not directory.exists()
    put(shelf, 1)
    shelf.point(NAMES[1])
    shelf.point(None)
    assert shelf.current is None
    assert not os.path.lexists(directory / "current")


def test_tensors_that_are_no_adapter_of_the_plans_are_refused(shelf):
    with pytest.raises(GuardError, match="cannot write"):
        shelf.put(NAMES[1], {}, plan=PLAN, provenance={}, card="")
    assert not shelf.holds(NAMES[1])
