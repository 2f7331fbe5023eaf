"""``chorale-silo adapter export``: what was compared is what is written, and is private."""

import hashlib
import json

import numpy as np
import pytest

from evolution.methods.personal.compared import CANDIDATES, Choice, Choices, Compared
from evolution.methods.personal.interpolation import interpolated
from evolution.methods.personal.store import PersonalStore
from federation.adapter.encoding import decode_adapter, encode_adapter
from ops.cli.envelope import Exit
from silo_agent.books.heard_runs import HeardRuns
from silo_agent.books.kept_runs import run_directory
from silo_agent.books.local_store import ChainHead, LocalStore
from tests.kit.silo_agent.command_line import call
from tests.kit.silo_agent.policy_samples import PLAN, make_task

RUN, ROUND = "run-1", 3
TOML = PLAN.encode()
RESIDUAL = 'environments = ["craft"]\n[evolve]\npersonal = "residual"\npersonal_choice = 8\n'


def adapter(seed):
    rng = np.random.default_rng(seed)
    prefix = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    shapes = {f"{prefix}A.weight": (2, 6), f"{prefix}B.weight": (6, 2)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


SHARED, PART = adapter(0), adapter(1)
OWN = {name: SHARED[name] + PART[name] for name in SHARED}
CONTENT = encode_adapter(SHARED)
DIGEST = hashlib.sha256(CONTENT).digest()


def choice(kind):
    compared = tuple(
        Compared(candidate=one, tasks=40, gained=9 * (one.kind == kind), lost=0)
        for one in CANDIDATES
    )
    return Choice(compared=compared)


@pytest.fixture
def silo(tmp_path):
    """A silo that follows a run, and what its families chose."""
    directory = tmp_path / "silo"
    directory.mkdir()
    (directory / "silo.toml").write_text(RESIDUAL)
    HeardRuns(directory).hear(
        make_task(run_id=RUN, plan_sha256=hashlib.sha256(TOML).digest()), lambda: TOML
    )
    store = LocalStore(directory)
    head = ChainHead(
        round=ROUND, step=0, position=ROUND, adapter_sha256=DIGEST, record_sha256=bytes(32)
    )
    store.set_chain_head(RUN, head)
    (directory / "adapters").mkdir(exist_ok=True)
    (directory / "adapters" / DIGEST.hex()).write_bytes(CONTENT)
    kept = PersonalStore(run_directory(directory, RUN) / "personal" / "residual")
    kept.write(ROUND, PART)
    # The next round is worked on already: its own part was not compared.
    kept.write(ROUND + 1, adapter(2))

    def chose(**kinds):
        families = {family: choice(kind) for family, kind in kinds.items()}
        found = Choices(
            families=families,
            members={family: family for family in families},
            own_sha256=hashlib.sha256(encode_adapter(OWN)).hexdigest(),
        )
        place = {"run": RUN, "round": ROUND, "adapter_sha256": DIGEST.hex()}
        store.append_choice({**place, **found.row()})
        return directory

    return chose


@pytest.fixture
def export(monkeypatch, capsys, tmp_path):
    def exported(directory, *arguments, run=RUN, out="out"):
        code, answer, _ = call(
            monkeypatch, capsys, "adapter", "export", run, "--out", str(tmp_path / out),
            "--data", str(directory), "--format", "json", *arguments,
        )  # fmt: skip
        return code, json.loads(answer), tmp_path / out

    return exported


def written(out):
    content = (out / "adapter_model.safetensors").read_bytes()
    return dict(decode_adapter(content, max_bytes=1 << 20))


@pytest.mark.parametrize(
    ("kind", "expected", "rank"),
    [
        ("shared", SHARED, 2),
        ("own", OWN, 2),
        ("interpolated", interpolated(SHARED, OWN, 0.25), 4),
    ],
)
def test_what_was_compared_is_written_and_says_whose_it_is(silo, export, kind, expected, rank):
    private = kind != "shared"
    code, answer, out = export(silo(craft=kind))
    assert code == Exit.OK
    found = written(out)
    assert found.keys() == expected.keys()
    assert all(found[name].tobytes() == expected[name].tobytes() for name in expected)
    assert json.loads((out / "adapter_config.json").read_text())["r"] == rank
    assert (answer["data"]["adapter"], answer["data"]["rank"]) == (kind, rank)
    assert answer["data"]["private"] is private
    assert (out / "README.md").exists() is private
    assert not private or "No epsilon covers" in (out / "README.md").read_text()
    assert out.stat().st_mode & 0o777 == 0o700


def test_each_family_has_its_own_and_all_together_one(silo, export):
    directory = silo(craft="own", maze="shared")
    for number, (arguments, kind) in enumerate(
        [(("--family", "craft"), "own"), (("--family", "maze"), "shared"), ((), "own")]
    ):
        _, answer, _ = export(directory, *arguments, out=f"out-{number}")
        assert answer["data"]["adapter"] == kind
    code, answer, _ = export(directory, "--family", "shop")
    assert code == Exit.ARGUMENTS
    assert "known: craft, maze" in answer["message"]


def test_an_adapter_that_is_not_the_one_that_was_compared_is_not_written(silo, export):
    directory = silo(craft="own")
    later = ChainHead(
        round=ROUND + 1, step=0, position=9, adapter_sha256=DIGEST, record_sha256=bytes(32)
    )
    LocalStore(directory).set_chain_head(RUN, later)
    code, answer, out = export(directory)
    assert (code, answer["error_code"]) == (Exit.ARGUMENTS, "nothing_chosen")
    assert "the newest choice is of round 3" in answer["message"]
    assert not out.exists()


def test_an_own_adapter_that_was_trained_on_since_is_not_written(silo, export):
    """Two rounds were worked on that nobody adopted: the store has let go of what was compared."""
    directory = silo(craft="own")
    kept = PersonalStore(run_directory(directory, RUN) / "personal" / "residual")
    kept.write(ROUND + 2, adapter(3))
    code, answer, out = export(directory)
    assert (code, answer["error_code"]) == (Exit.ARGUMENTS, "nothing_chosen")
    assert "own adapter of round 3, which was compared, is not here" in answer["message"]
    assert not out.exists()


@pytest.mark.parametrize(
    ("kind", "asked", "said"),
    [
        ("base", (RESIDUAL, RUN), "the base model without an adapter was chosen"),
        ("own", ('environments = ["craft"]\n', RUN), "does not keep the adapter"),
        ("own", (RESIDUAL, "run-2"), "not followed a run 'run-2'"),
    ],
)
def test_what_cannot_be_exported_is_said_and_nothing_is_written(silo, export, kind, asked, said):
    settings, run = asked
    directory = silo(craft=kind)
    (directory / "silo.toml").write_text(settings)
    code, answer, out = export(directory, run=run)
    assert code == Exit.ARGUMENTS
    assert said in answer["message"]
    assert not out.exists()


def test_without_a_choice_and_with_a_damaged_one(silo, export):
    directory = silo(craft="own")
    (directory / "choice.jsonl").unlink()
    _, answer, _ = export(directory)
    assert "set personal and personal_choice" in answer["message"]
    LocalStore(directory).append_choice({"run": RUN, "round": ROUND})
    _, answer, _ = export(directory)
    assert (answer["error_code"], "is damaged" in answer["message"]) == ("local_store", True)


def test_an_export_replaces_nobody_elses_files(silo, export, tmp_path):
    directory = silo(craft="own")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    code, answer, out = export(directory)
    assert (code, answer["error_code"]) == (Exit.ARGUMENTS, "export")
    assert [path.name for path in out.iterdir()] == ["thesis.txt"]
