"""GRPO between real processes: masked, with a silo that drops out and a coordinator that is killed.

Not failures: how much is learned in four small rounds. Failures: a round that ends without its sum,
a silo that does not come back, a figure of the training outside the silo that it is of.
"""

import json

import pytest

from evolution.model.identity import base_sha256
from evolution.model.lora import initial_adapter
from federation.adapter.encoding import encode_adapter
from lab.demo.choices import Privacy, Scenario
from lab.demo.kills import COORDINATOR, Kills
from lab.demo.run import BASE_MODEL
from lab.demo.scenario import SILOS, DemoSettings, plan_toml, silo_toml
from lab.loopback import LoopbackFederation
from tests.kit.waiting import until

pytestmark = [pytest.mark.xdist_group("grpo_rounds"), pytest.mark.long]

ROUNDS = 4
VICTIM = SILOS[1]
GRPO = """method = "grpo"
nominal_tokens = 32
normaliser = "constant"
"""
FIGURES = ("groups_used", "clip_low", "ratio_max", "entropy", "mismatch")


@pytest.fixture
def loopback(tmp_path):
    with LoopbackFederation(directory=tmp_path) as made:
        made.found()
        made.start_coordinator()
        for silo_id in SILOS:
            made.enrol(silo_id, base_model=BASE_MODEL)
        made.publish_roster(colluding=1)
        yield made


def written(loopback):
    settings = DemoSettings(
        scenario=Scenario.SHARDS, privacy=Privacy.NONE, rounds=ROUNDS, episodes=64, held_out=8
    )
    toml = plan_toml(settings, base=str(BASE_MODEL), base_sha256=base_sha256(BASE_MODEL))
    assert 'method = "fed-se"\n' in toml
    toml = toml.replace('method = "fed-se"\n', GRPO).replace(
        "tries_per_task = 4", "tries_per_task = 8"
    )
    plan, adapter = (loopback.directory / name for name in ("plan.toml", "first.safetensors"))
    plan.write_text(toml.replace("accept_low_cosine = false", "accept_low_cosine = true"))
    recipe = settings.recipe
    adapter.write_bytes(
        encode_adapter(initial_adapter(BASE_MODEL, recipe.lora_rank, recipe.lora_alpha, 0))
    )
    for index, silo_id in enumerate(SILOS):
        directory = loopback.silo_dir(silo_id)
        (directory / "silo.toml").write_text(
            silo_toml(settings, index, base_model=str(BASE_MODEL.absolute()))
        )
        (directory / "policy.toml").unlink(missing_ok=True)
        loopback.silo(
            *("policy", "init", "--plan", str(plan), "--data", str(directory)),
            "--accept-no-privacy",
        )
        # Without noise a silo that was lost stays out, unless every site lets it in again.
        policy, stays = directory / "policy.toml", "\ncohort_may_vary = false\n"
        assert stays in policy.read_text()
        policy.write_text(policy.read_text().replace(stays, "\ncohort_may_vary = true\n"))
    return plan, adapter


@pytest.mark.timeout(900)
def test_grpo_goes_on_over_a_dropout_and_a_killed_coordinator(loopback):
    plan, adapter = written(loopback)
    for silo_id in SILOS:
        loopback.start_silo(silo_id)
    for silo_id in SILOS:
        until(lambda one=silo_id: "coordinator_version" in loopback.log(one), f"{silo_id} calls")
    run_id = loopback.start_run(plan, adapter, token="grpo")
    kills = Kills(loopback=loopback, victim=VICTIM, rounds=ROUNDS, say=lambda _line: None)
    last, rounds = {}, {}
    for status in loopback.watch(run_id):
        kills.see(status)
        last = status
        rounds |= {done["round"]: done for done in status.get("finished", ())}
    kills.finish()
    assert kills.killed == (VICTIM, COORDINATOR)
    assert last["run"]["state"] == "finished", last
    assert [rounds[number]["outcome"] for number in range(1, ROUNDS + 1)] == ["aggregated"] * ROUNDS
    without = [number for number, done in rounds.items() if VICTIM not in done["survivors"]]
    assert len(without) <= 2
    assert VICTIM in rounds[ROUNDS]["survivors"]

    for silo_id in SILOS:
        books = (loopback.silo_dir(silo_id) / "rounds.jsonl").read_text().splitlines()
        told = [json.loads(line)["metrics"] for line in books]
        assert len(told) >= ROUNDS - len(without)
        assert any(one["groups_used"] for one in told)
        for one in told:
            assert one["groups"] == 8
            if one["groups_used"]:
                # Engine and trainer are one model in float32: what was recorded is what is trained.
                assert one["mismatch"] < 1e-6
                assert 0 < one["entropy"] < 6
                assert one["ratio_min"] <= 1.0 <= one["ratio_max"]
    held = (
        b"".join(path.read_bytes() for path in loopback.data_dir.rglob("*") if path.is_file())
        + loopback.log(COORDINATOR).encode()
    )
    assert not [name for name in FIGURES if name.encode() in held]
