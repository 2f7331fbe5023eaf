"""What a plan may say of its value head, and what follows for modes, aggregation and adapters."""

import pytest

from federation.adapter.shapes import shape_of
from federation.errors import LayoutError, PlanError
from federation.forecast.forecast import shared_dimension
from federation.plan.read import read_plan
from tests.kit.paths import ROOT

EXAMPLES = ROOT / "deploy" / "examples"
SILO = (EXAMPLES / "plan-demo-shards.toml").read_text()
LOCAL = (EXAMPLES / "plan-record-local.toml").read_text()
DISTRIBUTED = (EXAMPLES / "plan-record-distributed.toml").read_text()
FEDERATED = 'objective = { name = "ppo", value_head = "federated" }\n'
OWN = 'objective = { name = "ppo" }\n'
SHAPE = shape_of("Qwen/Qwen2.5-0.5B")


def plan(text, parts, *edits):
    for old, new in (
        ('method = "fed-se"\n', 'method = "ppo"\nnominal_tokens = 32\n'),
        *edits,
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return (text + "\n[evolve.parts]\n" + parts).encode()


def problems(*arguments):
    with pytest.raises(PlanError) as refused:
        read_plan(plan(*arguments))
    return refused.value.problems


def method_of(text):
    return next(
        line for line in text.splitlines() if line.startswith("method") and "fed-se" not in line
    )


def test_a_head_of_all_silos_is_uploaded_and_one_of_each_silo_is_not():
    federated, own = read_plan(plan(SILO, FEDERATED)), read_plan(plan(SILO, OWN))
    assert own.recipe.value_head == "local"
    plain, more = SHAPE.lora_layout(8), SHAPE.lora_layout(8, value_head=True)
    assert shared_dimension(own, plain) == plain.dimension
    assert shared_dimension(federated, more) == plain.dimension + SHAPE.hidden
    with pytest.raises(LayoutError, match="has no 'value_head"):
        federated.aggregator(plain)
    with pytest.raises(LayoutError, match="federates no value head"):
        own.aggregator(more)


@pytest.mark.parametrize("text", [LOCAL, DISTRIBUTED])
def test_where_units_are_protected_the_head_is_everybodys(text):
    fedavg = (method_of(text), 'method = "fedavg"')
    text = text.replace("gauge = true\n", "")
    (problem,) = problems(text, OWN, fedavg)
    assert problem.startswith("evolve.parts.objective: a value head of each silo's own")
    assert 'value_head = "federated"' in problem
    assert read_plan(plan(text, FEDERATED, fedavg)).recipe.shares_value_head


@pytest.mark.parametrize("method", ["ffa", "rolora", "fedsvd", "fedsa"])
def test_a_method_that_takes_factors_apart_takes_no_head(method):
    chosen = ('method = "fedavg"', f'method = "{method}"')
    (problem,) = problems(SILO, FEDERATED, chosen)
    assert problem.startswith("evolve.parts.objective: a federated value head is no LoRA factor")
    assert repr(method) in problem
    assert read_plan(plan(SILO, OWN, chosen)).recipe.value_head == "local"


def test_the_gauge_takes_no_head():
    gauge = ('method = "fedavg"', 'method = "fedavg"\ngauge = true')
    (problem,) = problems(SILO, FEDERATED, gauge)
    assert problem.startswith("aggregation.gauge: the gauge rewrites products")
    read_plan(plan(SILO, OWN, gauge))


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        ('{ name = "ppo", value_head = "shared" }', "value_head"),
        ('{ name = "ppo", gae_lambda = 1.5 }', "gae_lambda"),
        ('{ name = "ppo", gamma = 0.0 }', "gamma"),
        ('{ name = "ppo", value_learning_rate = 0.0 }', "value_learning_rate"),
        ('{ name = "clipped", value_head = "federated" }', "value_head"),
    ],
)
def test_what_is_no_option_is_refused(objective, words):
    (problem,) = problems(SILO, f"objective = {objective}\n")
    assert words in problem


def test_the_constants_of_the_recipe_are_those_of_fedagent():
    said = read_plan(plan(SILO, OWN)).recipe.parts["objective"].options
    assert (said.gae_lambda, said.gamma, said.value_clip) == (1.0, 1.0, 0.5)
    assert (said.clip_low, said.clip_high, said.dual_clip) == (0.2, 0.2, 3.0)
    assert (said.kl, said.kl_beta, said.kl_to, said.entropy) == ("k3", 0.01, "base", 0.001)
    assert not said.value_trains_adapter
    credit = read_plan(plan(SILO, OWN)).recipe.parts["credit"]
    assert (credit.card.name, credit.options.invalid_penalty) == ("token-rewards", 0.1)
