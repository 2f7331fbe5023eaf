"""Classes for TRL's environment_factory: TRL's trainer takes those that the adapter plays."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from evolution.envs.catalogue import Catalogue
from evolution.errors import EnvironmentSetupError
from silo_agent.config import foreign_specs
from tests.kit.evolution import trl_classes
from tests.kit.paths import ROOT

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("trl") is None, reason="run.sh without --model"
)
NAME = "trl:thing"
MODEL = ROOT / "lab" / "base_model"
TRAIN = 1_008_000


def make(of: str):
    table = {
        "entry_point": f"tests.kit.evolution.trl_classes:{of}",
        "instruction": "Find the word.",
        "max_steps": 6,
        "success": {"reward_at_least": 1.0},
    }
    return Catalogue(foreign=foreign_specs({NAME: table})).make(NAME)


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    import trl
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    templates = Path(trl.__file__).parent / "chat_templates"
    tokenizer.chat_template = (templates / "qwen3.jinja").read_text()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
        return trl.GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(MODEL),
            args=trl.GRPOConfig(
                output_dir=str(tmp_path_factory.mktemp("trl")),
                use_cpu=True,
                bf16=False,
                max_steps=1,
                per_device_train_batch_size=2,
                num_generations=2,
                report_to=[],
            ),
            processing_class=tokenizer,
            environment_factory=trl_classes.Wordle,
        )


def test_the_trainer_takes_the_class_with_the_same_tools_and_its_reward(trainer):
    ours = make("Wordle")
    lines = ours.instruction.splitlines()
    named = [line.partition("(")[0] for line in lines if "(" in line and line[0].isalpha()]
    assert named == [tool.__name__ for tool in trainer._env_tools[None]] == ["guess", "letters"]
    assert trainer.reward_func_names == ["Wordle"]


def test_an_episode_has_the_same_texts_and_the_same_reward_in_both(trainer):
    theirs = trainer.environment_factories[None]()
    tools = {tool.__name__: getattr(theirs, tool.__name__) for tool in trainer._env_tools[None]}
    ours = make("Wordle")
    assert ours.reset(TRAIN)[0] == theirs.reset(prompt=[], seed=TRAIN)
    calls = [
        ("letters", {"place": 2, "form": "capital", "also": [3]}),
        ("guess", {"word": "slate"}),
        ("letters", {"place": 9}),
        ("guess", {"word": "crane"}),
        ("guess", {"word": "crane"}),
    ]
    for name, arguments in calls:
        try:
            result = tools[name](**arguments)
        except Exception as error:  # noqa: BLE001  # as GRPOTrainer._tool_call_loop does
            result = {"error": str(error)}
        call = json.dumps({"name": name, "arguments": arguments})
        assert ours.step(call)[0] == str(result)
    (reward,) = trainer.reward_funcs
    assert reward(environments=[theirs]) == [ours.step("Found it.")[1]] == [1.0]


@pytest.mark.parametrize("of", ["Undescribed", "Untyped"])
def test_what_the_adapter_refuses_has_no_schema_in_trl_either(of):
    from transformers.utils import get_json_schema

    with pytest.raises(EnvironmentSetupError):
        make(of).reset(TRAIN)
    with pytest.raises(Exception, match="guess"):
        get_json_schema(getattr(trl_classes, of)().guess)


def test_what_the_adapter_takes_has_a_schema_in_trl(trainer):
    from transformers.utils import get_json_schema

    tools = [get_json_schema(tool)["function"] for tool in trainer._env_tools[None]]
    assert [list(tool["parameters"]["properties"]) for tool in tools] == [
        ["word"],
        ["place", "form", "also"],
    ]
