import json
import warnings

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.numpy import load_file

from evolution.envs.tasks import Shard, Split
from evolution.methods.evolver import Evolution
from evolution.methods.personal.store import PersonalStore
from evolution.model.causal_lm import load_base
from evolution.model.identity import base_sha256
from evolution.model.lora import initial_adapter
from evolution.rollout.engine import Prompt, Sampling
from evolution.rollout.hf import HfEngine
from federation.adapter.export import write_peft_adapter
from federation.adapter.value_head import VALUE_HEAD
from lab.experiment.config import load_experiment
from lab.experiment.errors import DemonstrationError
from lab.experiment.federation_round import RoundFigures, SharingCircle
from lab.experiment.methods import METHODS
from lab.experiment.single_run import play_run
from lab.experiment.sums import PlainSum
from lab.experiment.tables import NoiseTable
from lab.experiment.tasks.own_tasks import FewTasks, task_ids_of
from lab.report.lines import EvalLine, RoundLine, RunLine, parse_line
from tests.kit.lab.experiment_samples import HEAD, SILOS, runs, setting, silo
from tests.kit.paths import ROOT

BASE = ROOT / "lab" / "base_model"


def quiet(number, figures, wall_s):
    pass


def play(run, scratch):
    return play_run(run, scratch, progress=quiet)


def without_times(rows):
    timed = ("wall_s", "config", "config_sha256", "setting")
    return [{key: value for key, value in row.items() if key not in timed} for row in rows]


@pytest.mark.parametrize(
    ("method", "z"), [("fedavg", 0.0), pytest.param("rolora", 0.01, marks=pytest.mark.long)]
)
def test_masked_and_plain_sums_give_the_same_adapters_and_curves(tmp_path, method, z):
    same = f'aggregation = {{ method = "{method}" }}\nnoise = {{ z = {z} }}\n'
    text = HEAD + SILOS + setting("plain", "fedse", same)
    text += setting("masked", "fedse", same + 'sums = "masked"')
    path = tmp_path / "experiment.toml"
    path.write_text(text)
    found = load_experiment(path).runs(base_dir=BASE, base_sha256=base_sha256(BASE))
    plain, masked = (play(run, tmp_path / run.setting) for run in found)
    assert [run.sums for run in found] == ["plain", "masked"]
    ((one,), (other,)) = plain.adapters, masked.adapters
    assert one.keys() == other.keys()
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)
    assert without_times(plain.rows) == without_times(masked.rows)
    # Something was learned and something was solved, so that equality says something.
    rounds = [row for row in plain.rows if row["kind"] == "round"]
    assert all(row["delta_l2_mean"] > 0 for row in rounds)
    assert sum(row["successes"]["craft"] for row in rounds) > 0


@pytest.mark.long
def test_a_value_head_goes_through_the_masked_sum_and_one_of_each_silo_does_not(tmp_path):
    """PPO with its critic federated, under masks, is what it is in plain sums, bit for bit."""

    def learns(head):
        parts = f'{{ objective = {{ name = "ppo", value_head = "{head}" }} }}'
        return f'evolve = {{ recipe = "ppo", nominal_tokens = 8, parts = {parts} }}\n'

    text = HEAD.replace("max_new_tokens = 4", "max_new_tokens = 8") + SILOS
    text += setting("plain", "fedse", learns("federated"))
    text += setting("masked", "fedse", learns("federated") + 'sums = "masked"')
    text += setting("own", "fedse", learns("local") + 'sums = "masked"')
    path = tmp_path / "experiment.toml"
    path.write_text(text)
    found = load_experiment(path).runs(base_dir=BASE, base_sha256=base_sha256(BASE))
    plain, masked, own = (play(run, tmp_path / run.setting) for run in found)
    ((one,), (other,), (factors,)) = plain.adapters, masked.adapters, own.adapters
    assert one.keys() == other.keys() == factors.keys() | {VALUE_HEAD}
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)
    assert other[VALUE_HEAD].any()
    assert VALUE_HEAD not in factors
    # A member each has kept its own, another one than the others'.
    kept = [
        PersonalStore(silo / "personal" / "value_head").newest()[VALUE_HEAD]
        for silo in sorted(path.parent for path in (tmp_path / "own").glob("**/personal"))
    ]
    assert len(kept) == 3
    assert len({head.tobytes() for head in kept}) == 3


def test_an_adapter_on_one_layer_type_is_learned_together_and_served_elsewhere(tmp_path):
    """Played, trained, summed under masks; peft and the engine agree on what came out."""
    text = HEAD.replace("[evolve]", 'target = ["v_proj"]\n[evolve]') + SILOS
    text += setting("some", "fedse", 'aggregation = { method = "ffa" }\nsums = "masked"')
    path = tmp_path / "experiment.toml"
    path.write_text(text)
    (run,) = load_experiment(path).runs(base_dir=BASE, base_sha256=base_sha256(BASE))
    (adapter,) = play(run, tmp_path / "run").adapters
    assert {name.split(".")[-3] for name in adapter} == {"v_proj"}
    first = initial_adapter(BASE, run.rank, run.alpha, run.seed, run.target)
    moved = {name for name in adapter if (adapter[name] != first[name]).any()}
    assert moved == {name for name in adapter if ".lora_B." in name}
    out = write_peft_adapter(
        adapter, tmp_path / "out", base=str(BASE), rank=run.rank, alpha=run.alpha,
        target=run.target, provenance={},
    )  # fmt: skip
    assert json.loads((out / "adapter_config.json").read_text())["target_modules"] == ["v_proj"]
    engine = HfEngine(BASE, alpha=run.alpha)
    engine.load_adapter("one", adapter)
    prompt = engine.chat.opening("craft", "goal plank .")
    sampling = Sampling(temperature=1.0, max_new_tokens=1, seed=0)
    ours = engine.generate([Prompt(key=0, token_ids=prompt)], sampling)[0]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")
        model = PeftModel.from_pretrained(load_base(BASE), out).eval()
        theirs = torch.log_softmax(model(input_ids=torch.tensor([prompt])).logits[0, -1], -1)
        bare = torch.log_softmax(load_base(BASE)(torch.tensor([prompt])).logits[0, -1], -1)
    assert abs(ours.logprobs[0] - float(theirs[ours.token_ids[0]])) < 1e-5
    assert (bare - theirs).abs().max() > 1e-3


@pytest.mark.parametrize("method", METHODS)
def test_every_method_leaves_rows_that_the_report_reads(tmp_path, method):
    (run,) = runs(tmp_path, HEAD.replace("rounds = 2", "rounds = 1") + SILOS + setting("x", method))
    result = play(run, tmp_path / "scratch")
    lines = [parse_line(json.dumps(row).encode()) for row in result.rows]
    *others, last = lines
    assert isinstance(last, RunLine)
    assert len([line for line in others if isinstance(line, RoundLine)]) == run.rounds
    evals = [line for line in others if isinstance(line, EvalLine)]
    topology, personal = METHODS[method].topology, METHODS[method].personal
    scopes = {line.scope for line in evals}
    expected = {"alone"} if topology == "alone" else {"global"}
    if personal or METHODS[method].clustered:
        expected = {"personal"} | ({"global"} if personal == "ditto" else set())
    assert scopes == expected
    for silo_index in range(3):
        own = [line for line in evals if line.silo == silo_index and line.own]
        # 16 held-out tasks of Craft: one for each of the 16 goals, and a silo has four of them.
        assert len({line.label for line in own}) == 4
        assert all(line.same_family and len(line.outcomes) == 1 for line in own)
    assert (-1 in {line.silo for line in evals}) == ("global" in scopes)
    result.write_adapters(tmp_path / "kept")
    kept = {path.stem: load_file(path) for path in (tmp_path / "kept").iterdir()}
    circles = {"none": 0, "alone": 3}.get(topology, 1)
    own = {f"personal-{index}" for index in range(3) if personal}
    assert kept.keys() == {f"adapter-{index}" for index in range(circles)} | own
    for name in own:
        shared = kept["adapter-0"]
        assert kept[name].keys() == shared.keys()
        assert not all(np.array_equal(kept[name][key], shared[key]) for key in shared)


def test_groups_and_an_attack_change_what_a_run_learns(tmp_path):
    """The whole way, from the file to the adapter."""
    nine = "".join(
        silo(k).replace(f"shard_index = {k}", f"shard_index = {k % 4}") for k in range(9)
    )
    groups = "groups = { count = 3 }\n"
    attack = 'attack = { silo = "silo-1", clips = 9, direction = "random" }\n'
    text = HEAD.replace("rounds = 2", "rounds = 1").replace("episodes = 8", "episodes = 2") + nine
    for name, extra in (("all", ""), ("bad", attack), ("both", groups + attack)):
        text += setting(name, "fedse", extra)
    found = {run.setting: play(run, tmp_path / run.setting) for run in runs(tmp_path, text)}
    norms = {name: moved(result.adapters[0]) for name, result in found.items()}
    assert len(set(norms.values())) == 3
    # Of nine clips in one sum a ninth is left; the median of groups leaves nothing of that size.
    assert norms["bad"] > 3 * norms["all"]
    assert norms["both"] < norms["bad"] / 2


def moved(adapter):
    """‖B‖, which is zero in the first adapter."""
    return float(np.sqrt(sum(np.square(t).sum() for name, t in adapter.items() if "_B" in name)))


def test_equal_runs_are_equal_and_seeds_differ(tmp_path):
    head = HEAD.replace("seeds = [0]", "seeds = [0, 1]").replace("rounds = 2", "rounds = 1")
    first, other = runs(tmp_path, head + SILOS + setting("x", "fedse"))
    digests = [
        play(run, tmp_path / str(place)).rows[-1]["adapter_sha256"]
        for place, run in enumerate((first, first, other))
    ]
    assert digests[0] == digests[1] != digests[2]


def test_alone_keeps_its_delta_and_together_takes_the_mean(tmp_path):
    head = HEAD.replace("rounds = 2", "rounds = 1")
    rows = setting("alone", "local_static") + setting("together", "fedit")
    alone, together = (
        play(run, tmp_path / run.setting) for run in runs(tmp_path, head + SILOS + rows)
    )
    (shared,) = together.adapters
    for name, tensor in shared.items():
        mean = np.mean([own[name] for own in alone.adapters], axis=0)
        assert tensor == pytest.approx(mean, abs=1e-4)
        assert not np.array_equal(alone.adapters[0][name], alone.adapters[1][name])


def test_agreement_is_one_for_equal_deltas_and_one_nth_for_orthogonal_ones():
    def evolution(*values):
        delta = {"a": np.array(values, dtype=np.float32)}
        return Evolution(
            delta=delta, episodes={"f": 2}, successes={"f": 1}, metrics={}, duration_s={}
        )

    equal, apart, alone, both = (RoundFigures() for _ in range(4))
    equal.take([evolution(1.0, 2.0)] * 3)
    assert (equal.kappa, equal.zeta2) == (pytest.approx(1.0), pytest.approx(0.0))
    apart.take([evolution(2.0, 0.0), evolution(0.0, 2.0)])
    # mean‖Δ‖² = 4 and ‖mean Δ‖² = 2.
    assert (apart.kappa, apart.zeta2) == (pytest.approx(0.5), pytest.approx(2.0))
    alone.take([evolution(1.0)])
    assert (alone.kappa, alone.zeta2) == (None, None)
    assert (apart.successes["f"], apart.episodes["f"]) == (2, 4)
    for _ in range(2):
        both.take([evolution(2.0, 0.0), evolution(0.0, 2.0)])
    assert (both.kappa, both.zeta2) == (apart.kappa, apart.zeta2)


def test_few_tasks_are_the_silos_own_and_a_pooled_silo_has_them_all(tmp_path):
    text = HEAD + silo(0, tasks=6) + silo(1, tasks=6) + silo(2) + setting("x", "fedse")
    (run,) = runs(tmp_path, text)
    craft = FewTasks(run, [0, 1, 2]).make("craft")
    for index in range(2):
        shard = Shard(index=index, count=4)
        ids = craft.task_ids(Split.TRAIN, shard=shard)
        assert tuple(ids) == tuple(task_ids_of(run, index, "craft"))
        assert len(set(ids)) == 6
        assert {i % 16 % 4 for i in ids} == {index}
        held_out = FewTasks(run, [2]).make("craft").task_ids(Split.HELD_OUT, shard=shard)
        assert craft.task_ids(Split.HELD_OUT, shard=shard) == held_out
    assert len(craft.task_ids(Split.TRAIN, shard=Shard(index=2, count=4))) > 6
    same = HEAD + silo(0, tasks=6) + silo(1, tasks=6, shard_index=0) + SILOS
    same = same.replace('name = "silo-', 'name = "again-', 2) + setting("x", "fedse")
    (run,) = runs(tmp_path, same)
    few = FewTasks(run, [0, 1]).make("craft").task_ids(Split.TRAIN, shard=Shard(index=0, count=4))
    assert len(few) == 12


def test_too_few_tasks_for_the_demonstrations_is_an_error_that_names_the_silo(tmp_path):
    text = HEAD + SILOS + silo(3, tasks=2, demonstrations=3) + setting("x", "fedit")
    (run,) = runs(tmp_path, text)
    with pytest.raises(DemonstrationError, match=r"'silo-3': the expert solved 2 of 2 tasks"):
        play(run, tmp_path / "scratch")


class Heard:
    """An aggregation that keeps what it was given."""

    def __init__(self):
        self.successes = []

    def trainable(self, _round):
        return frozenset()

    def correction(self, _silo):
        return None

    def combine(self, tensors, updates, **_):
        self.successes += [update.successes for update in updates]
        return dict(tensors)


def did(episodes, successes):
    return Evolution(
        delta={},
        episodes={"a": episodes},
        successes={"a": successes},
        metrics={"selected": 9.0},
        duration_s={},
    )


def test_a_silo_that_explored_and_solved_nothing_weighs_nothing():
    """Without exploration what was imitated stands for the successes; with it, it does not."""
    heard = Heard()
    mean = PlainSum(NoiseTable(), silos=3, key=(0,))
    circle = SharingCircle([(0,), (1,), (2,)], {}, aggregation=heard, mean=mean)
    circle.take(1, [did(4, 3), did(4, 0), did(0, 0)])
    assert heard.successes == [3, 0, 9]
