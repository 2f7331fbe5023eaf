"""Four silos that explore and train on the small base model, as ``chorale demo`` does.

Every task is protected by its own silo (``record_local``): a training that is cut short is charged
again, so the run has spare attempts.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from evolution.model.identity import base_sha256
from evolution.model.lora import initial_adapter
from federation.adapter.encoding import encode_adapter
from lab.demo.choices import Privacy
from lab.demo.recipe import RECIPES
from lab.demo.run import BASE_MODEL
from lab.demo.scenario import SILOS, DemoSettings, silo_toml
from lab.loopback import LoopbackFederation

EPISODES = 64
HELD_OUT = 8
DEADLINE = "phase_deadline_s = 8\n"
STRICT = "accept_low_cosine = false\n"


def prepare(
    loopback: LoopbackFederation, rounds: int, *, phase_deadline_s: int
) -> tuple[Path, Path]:
    """Join everybody and write plan and adapter; the coordinator runs."""
    recipe = replace(
        RECIPES[Privacy.RECORD_LOCAL], rounds=rounds, episodes=EPISODES, spare_attempts=rounds
    )
    toml = recipe.toml(
        name="chaos",
        base=str(BASE_MODEL.resolve()),
        base_sha256=base_sha256(BASE_MODEL),
        environments=("craft",),
        seed=0,
        held_out=HELD_OUT,
    )
    assert DEADLINE in toml
    assert STRICT in toml
    plan, adapter = loopback.directory / "plan.toml", loopback.directory / "initial.safetensors"
    # So few units cannot learn under that noise; they train all the same.
    toml = toml.replace(STRICT, "accept_low_cosine = true\n")
    plan.write_text(toml.replace(DEADLINE, f"phase_deadline_s = {phase_deadline_s}\n"))
    adapter.write_bytes(
        encode_adapter(initial_adapter(BASE_MODEL, recipe.lora_rank, recipe.lora_alpha, 0))
    )
    for silo_id in SILOS:
        loopback.enrol(silo_id, base_model=BASE_MODEL)
    loopback.publish_roster(colluding=1)
    settings = DemoSettings(privacy=Privacy.RECORD_LOCAL, held_out=HELD_OUT)
    for index, silo_id in enumerate(SILOS):
        directory = loopback.silo_dir(silo_id)
        (directory / "silo.toml").write_text(
            silo_toml(settings, index, base_model=str(BASE_MODEL.absolute()))
        )
        loopback.silo("policy", "init", "--plan", str(plan), "--data", str(directory))
    return plan, adapter
