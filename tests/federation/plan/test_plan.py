"""Plans: shipped examples parse, every problem is named with its path, nothing is coerced."""

from __future__ import annotations

import hashlib
import tomllib

import pytest

from dp.config import Mode
from federation.adapter.layout import Layout, TensorSpec
from federation.adapter.shapes import shape_of
from federation.aggregate.registry import AGGREGATORS, OPTIMISERS, REFUSED_METHODS, make_aggregator
from federation.errors import LayoutError, PlanError
from federation.plan.plan import plan_sha256
from federation.plan.read import MAX_PLAN_BYTES, read_plan
from tests.kit.paths import ROOT

EXAMPLES = sorted((ROOT / "deploy" / "examples").glob("plan-*.toml"))
CONSTANT = next(path for path in EXAMPLES if path.name == "plan-constant.toml").read_bytes()
DEMO = next(path for path in EXAMPLES if path.name == "plan-demo-shards.toml").read_bytes()


def edited(old: str, new: str, base: bytes = DEMO) -> bytes:
    assert base.count(old.encode()) == 1, old
    return base.replace(old.encode(), new.encode())


def problems(document: bytes) -> tuple[str, ...]:
    with pytest.raises(PlanError) as caught:
        read_plan(document)
    return caught.value.problems


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_shipped_example_parses_and_is_commented(path):
    document = path.read_bytes()
    plan = read_plan(document)
    assert document.startswith(b"# ")
    assert plan.spec.mode is Mode(plan.privacy.mode)
    assert tomllib.loads(document.decode())["name"] == plan.name


def test_the_examples_are_the_expected_ones():
    assert [path.name for path in EXAMPLES] == [
        "plan-constant.toml",
        "plan-demo-environments.toml",
        "plan-demo-shards.toml",
        "plan-fed-se.toml",
        "plan-grpo.toml",
        "plan-record-distributed.toml",
        "plan-record-local.toml",
        "plan-silo-dp.toml",
    ]


def test_values_and_defaults_are_read():
    plan = read_plan(CONSTANT)
    assert plan.evolve.method == "constant"
    assert plan.model.lora_rank == 8
    assert plan.model.lora_alpha == 16.0
    assert plan.secure_aggregation.ring_bits == 32
    assert plan.selection.policy == "all"
    assert plan.evaluate.temperatures == (0.0, 1.0)
    assert plan.rounds.spare_attempts is None
    assert (plan.releases, plan.charged_releases, plan.first_steps) == (3, 4, 4)
    assert (plan.sums_per_round, plan.is_last_step(0)) == (1, True)
    assert plan.rounds.ready_quorum(3) == 3
    demo = read_plan(edited("quorum = 3\n", ""))
    assert demo.rounds.ready_quorum(3) == 4
    assert demo.charged_releases == 10
    assert (demo.tasks_per_round, demo.kept_rounds, demo.population_cap) == (32, 1, 32)
    assert demo.evolve.environments == ("craft",)


def test_a_target_is_all_linear_layers_or_those_that_a_list_names():
    assert read_plan(DEMO).model.target == "all-linear"
    one = read_plan(edited("lora_rank = 8", 'lora_rank = 8\ntarget = ["q_proj", "v_proj"]'))
    assert one.model.target == ("q_proj", "v_proj")
    same = read_plan(edited("lora_rank = 8", 'lora_rank = 8\ntarget = "all-linear"'))
    assert same == read_plan(DEMO)


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ('"v_proj"', "not 'all-linear' or a list of layers' names"),
        ("[]", "names 0 layers: name 1 to 32"),
        ('["v_proj", "v_proj"]', "names a layer twice"),
        ('["v proj"]', "'v proj' is no layer's name"),
        ("3", "not 'all-linear' or a list"),
    ],
)
def test_what_is_no_target_is_one_problem_that_says_what_is(target, says):
    (problem,) = problems(edited("lora_rank = 8", f"lora_rank = 8\ntarget = {target}"))
    assert problem.startswith("model.target: ")
    assert says in problem


def test_an_adapter_of_other_layers_than_the_targets_has_no_aggregator():
    """Every party asks for it: the coordinator at a start, a silo before its work."""
    plan = read_plan(edited("lora_rank = 8", 'lora_rank = 8\ntarget = ["v_proj"]'))
    shape = shape_of("Qwen/Qwen2.5-0.5B")
    assert plan.aggregator(shape.lora_layout(8, ("v_proj",))).layout.dimension == 24 * 8 * 1024
    for layout in (shape.lora_layout(8), shape.lora_layout(8, ("q_proj",))):
        with pytest.raises(LayoutError, match=r"changes layer 'model.layers.0.*chorale run start"):
            plan.aggregator(layout)
    assert read_plan(DEMO).aggregator(shape.lora_layout(8)).layout == shape.lora_layout(8)


def test_the_digest_is_of_the_exact_bytes():
    assert plan_sha256(DEMO) == hashlib.sha256(DEMO).digest()
    assert plan_sha256(DEMO + b"\n") != plan_sha256(DEMO)


def test_a_plan_is_frozen():
    plan = read_plan(CONSTANT)
    with pytest.raises(ValueError, match="frozen"):
        plan.name = "other"


def test_an_unknown_key_names_the_nearest_valid_one():
    (problem,) = problems(edited("learning_rate", "lerning_rate"))
    assert problem.startswith("evolve.lerning_rate: unknown key")
    assert "'learning_rate'" in problem
    (problem,) = problems(edited("name = ", 'nmae = "x"\nname = '))
    assert problem.startswith("nmae: unknown key")
    assert "'name'" in problem
    (problem,) = problems(DEMO + b"\n[privcy]\n")
    assert problem.startswith("privcy: unknown key")
    assert "'privacy'" in problem


def test_all_problems_are_reported_together():
    document = edited("n_min = 3", 'n_min = 2\nring = "a"').replace(b"epochs = 2", b"epochs = 0")
    found = problems(document)
    assert {problem.split(":")[0] for problem in found} == {
        "evolve.epochs",
        "secure_aggregation.n_min",
        "secure_aggregation.ring",
    }


@pytest.mark.parametrize("key", ["c", "t", "colluding", "threshold"])
def test_c_and_t_are_refused_with_the_reason(key):
    (problem,) = problems(edited("n_min = 3", f"n_min = 3\n{key} = 1"))
    assert problem.startswith(f"secure_aggregation.{key}: remove this key")
    assert ("signed roster" in problem) or ("computed" in problem)


@pytest.mark.parametrize("method", sorted(REFUSED_METHODS))
def test_every_refused_method_says_why(method):
    (problem,) = problems(edited('method = "fedavg"', f'method = "{method}"'))
    assert problem.startswith("aggregation.method:")
    assert REFUSED_METHODS[method] in problem
    layout = Layout((TensorSpec(name="w", shape=(2,)),))
    with pytest.raises(ValueError, match="is refused"):
        make_aggregator(method, layout, server_step=1.0, gauge=False)


def test_the_table_of_methods_is_complete():
    assert set(AGGREGATORS) == {"fedavg", "ffa", "rolora", "fedsvd", "fedsa"}
    need_factors = {"flora", "fedex", "fedpower", "lora-fair"}
    in_the_lab = {"fedask", "flex_masked", "weighted", "scaffold"}
    assert set(REFUSED_METHODS) == need_factors | in_the_lab
    for name in need_factors:
        assert "only ever sees sums" in REFUSED_METHODS[name]
    for name in in_the_lab:
        assert "the lab runs it" in REFUSED_METHODS[name]
    for name in in_the_lab - {"flex_masked"}:
        assert "two masked sums a round" in REFUSED_METHODS[name]


CROSSING = sorted(name for name, cls in OPTIMISERS.items() if cls.crosses_rounds)


@pytest.mark.parametrize("name", CROSSING)
@pytest.mark.parametrize("method", sorted(AGGREGATORS))
@pytest.mark.parametrize("gauge", [False, True])
def test_moments_that_cross_rounds_need_coordinates_that_stay(name, method, gauge):
    keys = f'gauge = {str(gauge).lower()}\nserver_optimiser = "{name}"'
    document = edited('method = "fedavg"', f'method = "{method}"\n{keys}', CONSTANT)
    if method in {"fedavg", "ffa", "fedsa"} and not gauge:
        assert read_plan(document).optimiser().name == name
        return
    found = problems(document)
    about = [one for one in found if one.startswith("aggregation.server_optimiser:")]
    if not (gauge or method == "fedsvd"):
        assert "other coordinates in the next round" in about[0]
    else:
        assert "rewrites the coordinates" in about[0]
    assert len(found) == 1 + (method in {"ffa", "fedsa"})


def test_local_training_is_as_the_plan_says():
    local = read_plan(DEMO).evolve
    assert (local.use_expert, local.best_per_task, local.proximal_mu) == (True, True, 0.0)
    keys = "epochs = 2\nuse_expert = false\nbest_per_task = false\nproximal_mu = 0.01"
    local = read_plan(edited("epochs = 2", keys)).evolve
    assert (local.use_expert, local.best_per_task, local.proximal_mu) == (False, False, 0.01)


def test_unknown_names_are_told_from_refused_ones():
    (problem,) = problems(edited('method = "fedavg"', 'method = "krum"'))
    assert "unknown method" in problem
    (problem,) = problems(edited("server_step = 1.0", 'server_optimiser = "lion"'))
    assert "unknown server optimiser" in problem


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("epochs = 2", "epochs = 2.0", "evolve.epochs"),
        ("epochs = 2", "epochs = true", "evolve.epochs"),
        ("epochs = 2", 'epochs = "2"', "evolve.epochs"),
        ("learning_rate = 3e-3", "learning_rate = nan", "evolve.learning_rate"),
        ("learning_rate = 3e-3", "learning_rate = inf", "evolve.learning_rate"),
        ("window = 1", "window = -1", "evolve.window"),
        ('environments = ["craft"]', "environments = []", "evolve"),
        ('environments = ["craft"]', 'environments = ["craft", "craft"]', "evolve.environments"),
        ("tries_per_task = 4", "tries_per_task = 5", "evolve"),
        ("episodes_per_round = 128", "episodes_per_round = 0", "evolve"),
        ('dtype = "float32"', 'dtype = "float8"', "model.dtype"),
        ("base_sha256 = ", 'base_sha256 = "00"\n#', "model.base_sha256"),
        ("clip_l2 = 2.5", "clip_l2 = 0.0", "privacy.clip_l2"),
        ('mode = "silo"\n', "", "privacy.mode"),
        ("delta = 1e-5", "delta = 1.0", "privacy.delta"),
        ("\nnoise_multiplier = 0.004", "\nnoise_multiplier = 0.0", "privacy"),
        ("quorum = 3", "quorum = 201", "rounds.quorum"),
        ("[evaluate]", '[selection]\npolicy = "some"\n[evaluate]', "selection.policy"),
        ('name = "demo-shards"', 'name = "../demo"', "name"),
        ("temperatures = [1.0, 0.0]", "temperatures = []", "evaluate.temperatures"),
    ],
)
def test_bad_values_are_refused_at_their_path(old, new, path):
    found = problems(edited(old, new))
    assert [problem.split(":")[0] for problem in found] == [path]
    assert all(len(problem) > len(path) + 10 for problem in found)


def test_a_plan_in_float16_is_told_what_to_choose():
    (problem,) = problems(edited('dtype = "float32"', 'dtype = "float16"'))
    assert problem.startswith("model.dtype: float16 overflows")
    assert "choose bfloat16" in problem


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"\xff\xfe",
        b"name = ",
        b"name = 'a'\nname = 'b'",
        b"# " + b"x" * MAX_PLAN_BYTES,
        b"a = " + b"[" * 20_000,
        b".".join([b"a"] * 1200) + b" = 1",
        b"a = " + b"9" * 5_000,
        b"a = 2020-99-99",
        b"\xef\xbb\xbfname = 'a'",
    ],
    ids=["empty", "utf-16", "cut", "twice", "long", "deep", "dotted", "huge", "date", "bom"],
)
def test_documents_that_are_no_plan_raise_the_typed_error(document):
    assert problems(document)


def test_a_long_value_is_not_echoed_whole():
    (problem,) = problems(edited('dtype = "float32"', f'dtype = "{"x" * 5000}"'))
    assert len(problem) < 300


def test_an_adapter_to_begin_with_has_the_plans_rank():
    plan = read_plan(DEMO)
    shape = shape_of("Qwen/Qwen2.5-0.5B")
    for head in (False, True):
        plan.require_rank(shape.lora_layout(plan.model.lora_rank, value_head=head))
    with pytest.raises(PlanError, match=r"model\.lora_rank: the plan says 8, .* has rank 4 in"):
        plan.require_rank(shape.lora_layout(4))


def test_cohorts_too_small_are_refused():
    plan = read_plan(DEMO)
    plan.require_cohort(4, 1)
    plan.require_cohort(3, 1)
    with pytest.raises(PlanError, match="roster"):
        plan.require_cohort(2, 1)
    with pytest.raises(PlanError, match="roster"):
        plan.require_cohort(4, 0)
    with pytest.raises(PlanError, match="n_min"):
        read_plan(edited("n_min = 3", "n_min = 5")).require_cohort(4, 1)
    with pytest.raises(PlanError, match=r"rounds\.quorum"):
        read_plan(edited("quorum = 3", "quorum = 5")).require_cohort(4, 1)


def test_the_time_of_the_ready_reports_must_leave_room_before_their_deadline():
    text = "ready_deadline_s = 300"
    plan = read_plan(edited(text, f"{text}\nready_after_s = 299"))
    assert plan.rounds.ready_after_s == 299
    assert read_plan(DEMO).rounds.ready_after_s == 0
    (problem,) = problems(edited(text, f"{text}\nready_after_s = 300"))
    assert problem.startswith("rounds: ready_after_s = 300 leaves no time")


def test_the_privacy_specification_is_computed_once_and_anew_for_a_copy_with_another_table():
    plan = read_plan(CONSTANT)
    spec = plan.spec
    assert plan.spec is spec
    wider = plan.privacy.model_copy(update={"clip_l2": 2 * spec.clip_l2})
    assert plan.model_copy(update={"privacy": wider}).spec.clip_l2 == 2 * spec.clip_l2
    assert plan == read_plan(CONSTANT)
    assert hash(plan) == hash(read_plan(CONSTANT))
