"""One engine and one trainer for all silos of a worker, and what the file says about both."""

import dataclasses
from contextlib import ExitStack, closing

import pytest

from evolution.errors import EvolverSetupError
from evolution.methods.evolver import EvolverSetup
from evolution.methods.machines import make_machines
from evolution.model.lora import initial_adapter
from evolution.rollout.engine import EngineSpec
from evolution.rollout.hf import HfEngine
from evolution.train.sft import SftTrainer
from evolution.train.trainer import TrainerSpec
from lab.experiment.config import load_experiment
from lab.experiment.engines import machines as lab_machines
from lab.experiment.engines.machines import engine_spec, machines_of, trainer_spec
from lab.experiment.judge import Judge
from lab.experiment.member import Member
from lab.experiment.single_run import play_run
from lab.experiment.tables import EvolveTable, RolloutTable, TrainingTable
from tests.kit.lab.experiment_samples import HEAD, SILOS, base, runs, setting, silo, write
from tests.kit.paths import ROOT

BASE = ROOT / "lab" / "base_model"
SMALL = HEAD.replace("held_out = 16", "held_out = 4").replace("rounds = 2", "rounds = 1")


@pytest.mark.parametrize(
    "method", ["fedse_personal", pytest.param("fedsa", marks=pytest.mark.long)]
)
def test_silos_that_share_a_pair_do_what_silos_with_pairs_of_their_own_do(tmp_path, method):
    """Bit for bit, round after round, with a judge that plays in between."""
    loaded = load_experiment(write(tmp_path, SMALL + SILOS + setting("x", method)))
    (run,) = loaded.runs(base_dir=BASE, base_sha256="0" * 64)
    found = {}
    for name in ("own", "shared"):
        with ExitStack() as stack:
            lent = None
            if name == "shared":
                lent = stack.enter_context(closing(machines_of(run, tmp_path / "jobs")))
            judge = Judge(run, engine=lent.engine if lent else None)
            stack.callback(judge.close)
            members = [
                stack.enter_context(
                    closing(Member(run, [index], tmp_path / name, chat=judge.chat, machines=lent))
                )
                for index in range(3)
            ]
            found[name] = played(run, members, judge)
            if lent is not None:
                for member in members:
                    member.close()
                # Still the lender's: nobody else closed it.
                assert judge.judge("base", {}, {"craft": 4})
    assert found["own"] == found["shared"]
    assert sum(found["own"][2]) > 0


def played(run, members, judge):
    adapter = initial_adapter(run.base, run.rank, run.alpha, run.seed)
    shared = frozenset(n for n in adapter if run.method != "fedsa" or "lora_A" in n)
    bits, verdicts, successes = [], [], []
    for number in (1, 2):
        for member in members:
            made = member.evolve(adapter, round_number=number, trainable=shared)
            successes.append(sum(made.successes.values()))
            own = member.personal(adapter)
            bits.append({name: t.tobytes() for name, t in (*made.delta.items(), *own.items())})
            verdicts += judge.judge(f"{number}-{member.indices}", own, {"craft": 4})
        adapter = {n: t + made.delta[n] if n in made.delta else t for n, t in adapter.items()}
    return bits, verdicts, successes


def test_a_worker_makes_one_engine_and_one_trainer_and_closes_the_engine(tmp_path, monkeypatch):
    made = []
    for kind in (HfEngine, SftTrainer):
        start = kind.__init__

        def noted(self, *args, start=start, kind=kind, **rest):
            made.append(kind.__name__)
            start(self, *args, **rest)

        monkeypatch.setattr(kind, "__init__", noted)
    monkeypatch.setattr(HfEngine, "close", lambda _self: made.append("closed"))
    (run,) = runs(tmp_path, SMALL + SILOS + silo(3) + setting("x", "fedse_personal"))
    play_run(run, tmp_path / "scratch", progress=lambda *_: None)
    assert made == ["HfEngine", "SftTrainer", "closed"]


def test_an_engine_is_released_where_the_trainer_cannot_be_made(tmp_path, monkeypatch):
    closed = []
    monkeypatch.setattr(HfEngine, "close", lambda _self: closed.append(1))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    setup = EvolverSetup(
        base_dir=base(tmp_path), state_dir=tmp_path, trainer=TrainerSpec(device="cuda")
    )
    with pytest.raises(EvolverSetupError, match="no GPU"):
        make_machines(setup)
    assert closed == [1]
    with pytest.raises(EvolverSetupError, match="need a base model"):
        make_machines(EvolverSetup())


@pytest.mark.parametrize(
    ("spec", "table"), [(EngineSpec, RolloutTable), (TrainerSpec, TrainingTable)]
)
def test_the_tables_have_the_keys_and_defaults_of_the_silos_own(spec, table):
    fields = {field.name: field.default for field in dataclasses.fields(spec)}
    # How many episodes are played at once is part of what a setting of an experiment says.
    if fields.pop("rollout_batch", None):
        assert "rollout_batch" in EvolveTable.model_fields
    assert fields == {name: field.default for name, field in table.model_fields.items()}


def test_what_the_file_says_reaches_engine_trainer_and_weights(tmp_path, monkeypatch):
    tables = 'dtype = "bfloat16"\n[rollout]\ndevice = "cpu"\nworkers = 2\n'
    tables += "[training]\nmicro_batch_tokens = 64\ngradient_checkpointing = true\n"
    head = SMALL.replace("[evolve]", tables + "[evolve]")
    (run,) = runs(tmp_path, head + SILOS + setting("x", "fedse"))
    asked = []
    monkeypatch.setattr(lab_machines, "make_machines", asked.append)
    machines_of(run, tmp_path)
    (setup,) = asked
    assert (setup.dtype, setup.engine.workers, setup.engine.device) == ("bfloat16", 2, "cpu")
    assert setup.trainer == TrainerSpec(micro_batch_tokens=64, gradient_checkpointing=True)
    assert (engine_spec(run), trainer_spec(run)) == (setup.engine, setup.trainer)


def test_a_run_in_another_type_plays_and_trains_and_is_another_run(tmp_path):
    (run,) = runs(
        tmp_path,
        SMALL.replace("[evolve]", 'dtype = "bfloat16"\n[evolve]') + SILOS + setting("x", "fedit"),
    )
    (plain,) = runs(tmp_path, SMALL + SILOS + setting("x", "fedit"))
    one, other = (
        play_run(each, tmp_path / each.dtype, progress=lambda *_: None) for each in (run, plain)
    )
    assert one.rows[-1]["config"]["dtype"] == "bfloat16"
    assert "dtype" not in other.rows[-1]["config"]
    assert one.rows[-1]["adapter_sha256"] != other.rows[-1]["adapter_sha256"]
