"""PPO between real processes, masked: with one value head of all silos, and with one of each.

Both runs are in mode ``silo``. Failures: a head that the sum does not move, one that a silo keeps
although the plan shares it, one that leaves a silo although the plan does not, a policy that lets
less than the head through, an export that peft would not read.
"""

import json
from functools import partial

import pytest
from safetensors.numpy import load_file

from evolution.methods.personal.store import PersonalStore
from evolution.model.identity import base_sha256
from evolution.model.lora import initial_adapter
from federation.adapter.encoding import encode_adapter
from federation.plan.read import read_plan
from lab.demo.choices import Privacy
from lab.demo.run import BASE_MODEL
from lab.demo.scenario import SILOS, DemoSettings, plan_toml, silo_toml
from lab.loopback import LoopbackFederation
from tests.kit.processes import constant_federation as cf
from tests.kit.waiting import until

pytestmark = [pytest.mark.xdist_group("value_head"), pytest.mark.long]

HEAD = "value_head.weight"


@pytest.fixture(scope="module")
def loopback(tmp_path_factory):
    with LoopbackFederation(directory=tmp_path_factory.mktemp("federation")) as made:
        made.found()
        made.start_coordinator()
        for silo_id in SILOS:
            made.enrol(silo_id, base_model=BASE_MODEL)
        made.publish_roster(colluding=1)
        yield made


def write(loopback, value_head):
    """Plan and each silo's files, as ``policy init`` proposes them."""
    settings = DemoSettings(privacy=Privacy.SILO, rounds=1, episodes=32)
    toml = plan_toml(settings, base=str(BASE_MODEL), base_sha256=base_sha256(BASE_MODEL))
    assert toml.count('method = "fed-se"\n') == 1
    toml = toml.replace('method = "fed-se"\n', 'method = "ppo"\nnominal_tokens = 8\n')
    toml = toml.replace("accept_low_cosine = false", "accept_low_cosine = true")
    # How well it plays is not what is looked at.
    toml = toml.replace(f"held_out = {settings.held_out}\n", "held_out = 0\n")
    plan = loopback.directory / f"{value_head}.toml"
    plan.write_text(
        f'{toml}\n[evolve.parts]\nobjective = {{ name = "ppo", value_head = "{value_head}" }}\n'
    )
    for index, silo_id in enumerate(SILOS):
        directory = loopback.silo_dir(silo_id)
        text = silo_toml(settings, index, base_model=str(BASE_MODEL.absolute()))
        (directory / "silo.toml").write_text(text)
        (directory / "policy.toml").unlink(missing_ok=True)
        loopback.silo("policy", "init", "--plan", str(plan), "--data", str(directory))
    return plan


def stores(loopback, silo_id):
    """What methods of all runs have stored at a silo."""
    return set((loopback.silo_dir(silo_id) / "evolve").glob("*"))


@pytest.mark.parametrize("value_head", ["federated", "local"])
def test_a_run_of_ppo_has_its_critic_where_the_plan_says(loopback, tmp_path, value_head):
    plan = write(loopback, value_head)
    adapter = loopback.directory / f"{value_head}.safetensors"
    recipe = read_plan(plan.read_bytes()).model
    made = initial_adapter(
        BASE_MODEL,
        recipe.lora_rank,
        recipe.lora_alpha,
        0,
        recipe.target,
        value_head=value_head == "federated",
    )
    adapter.write_bytes(encode_adapter(made))
    before = {silo_id: stores(loopback, silo_id) for silo_id in SILOS}
    for silo_id in SILOS:
        (loopback.directory / "logs" / f"{silo_id}.log").unlink(missing_ok=True)
        loopback.start_silo(silo_id)
    for silo_id in SILOS:
        log = partial(loopback.log, silo_id)
        until(lambda said=log: "coordinator_version" in said(), f"{silo_id} calls")
    try:
        run_id = loopback.start_run(plan, adapter, token=value_head)
        last, rounds = cf.watch_to_end(loopback, run_id)
        assert last["run"]["state"] == "finished", last
        assert [done["outcome"] for done in rounds] == ["aggregated"]
    finally:
        for silo_id in filter(loopback.alive, SILOS):
            loopback.kill(silo_id)
    out = tmp_path / "out"
    loopback.chorale(
        *("adapter", "export", run_id, "--out", str(out), "--data", str(loopback.data_dir))
    )
    assert HEAD not in load_file(out / "adapter_model.safetensors")
    found = []
    for silo_id in SILOS:
        (store,) = stores(loopback, silo_id) - before[silo_id]
        found.append(PersonalStore(store / "personal" / "value_head").newest())
    if value_head == "federated":
        assert load_file(out / "value_head.safetensors")[HEAD].any()
        assert found == [None] * len(SILOS)
    else:
        assert not (out / "value_head.safetensors").exists()
        assert all(one.keys() == {HEAD} and one[HEAD].any() for one in found)
        assert len({one[HEAD].tobytes() for one in found}) == len(SILOS)
    figures = [
        json.loads((loopback.silo_dir(silo_id) / "rounds.jsonl").read_text().splitlines()[-1])
        for silo_id in SILOS
    ]
    assert all(one["metrics"]["value_loss"] > 0 for one in figures)
