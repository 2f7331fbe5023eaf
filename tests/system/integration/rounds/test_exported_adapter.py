"""A short real federation of learning silos, and its exported adapter under peft."""

import json
import shutil
import warnings
from collections import Counter
from pathlib import Path

import pytest

from evolution.envs.catalogue import make
from evolution.envs.tasks import Split
from evolution.rollout.episodes import run_episodes
from evolution.rollout.hf import HfEngine
from evolution.trajectory import Task
from lab.demo.choices import Privacy
from lab.demo.outcome import judged_rows
from lab.demo.progress import Progress
from lab.demo.run import BASE_MODEL, Demo
from lab.demo.scenario import SILOS, DemoSettings


@pytest.mark.long
def test_peft_loads_the_export_and_reproduces_the_reported_greedy_success(tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    # So few episodes hide no task; the export is the same in every mode.
    settings = DemoSettings(privacy=Privacy.NONE, rounds=2, episodes=48, held_out=48)
    demo = Demo(
        directory=tmp_path / "demo",
        settings=settings,
        progress=Progress(),
        kill=False,
        alone=False,
    )
    outcome = demo.run()
    assert [done["outcome"] for done in outcome.rounds] == ["aggregated"] * 2
    exported = Path(outcome.exported)
    card = (exported / "README.md").read_text()
    provenance = json.loads((exported / "provenance.json").read_text())
    for key in ("run", "adapter_sha256", "record_sha256", "plan_sha256", "base_model_sha256"):
        assert provenance[key] in card
    assert "there is no differential privacy" in card
    # Nor is there a figure of a silo's success where no noise would be on it.
    assert "Not reported: no masked sum of this run says how often it succeeded" in card
    assert not any(silo_id in card for silo_id in SILOS)
    # peft merges the exported adapter into the base; the result is an ordinary model directory.
    base = AutoModelForCausalLM.from_pretrained(BASE_MODEL)
    with warnings.catch_warnings():
        # peft 0.21 reads a property that transformers has deprecated.
        warnings.filterwarnings("ignore", category=FutureWarning)
        merged = PeftModel.from_pretrained(base, outcome.exported).merge_and_unload()
    directory = tmp_path / "merged"
    merged.save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(BASE_MODEL / name, directory / name)
    engine = HfEngine(directory)
    engine.load_adapter("none", {})
    environment = make("craft")
    for index, silo_id in enumerate(SILOS):
        first = index * settings.held_out
        ids = environment.task_ids(Split.HELD_OUT)[first:][: settings.held_out]
        played = run_episodes(
            engine, [Task(environment="craft", task_id=i) for i in ids], temperature=0.0, seed=0
        )
        solved = Counter(
            environment.task_label(t.task.task_id) for t in played.trajectories if t.success
        )
        rows = judged_rows(
            demo.directory / "silos" / silo_id / "evaluation.jsonl",
            run_id=outcome.run_id,
            round_number=settings.rounds,
        )
        reported = {row["label"]: row["successes"] for row in rows if row["temperature"] == 0.0}
        assert sum(reported.values()) > 0
        assert {label: solved[label] for label in reported} == reported
    engine.close()
