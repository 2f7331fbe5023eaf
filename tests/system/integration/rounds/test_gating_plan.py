"""A plan that one silo alone can serve, in real processes: nobody trains, nothing is charged.

The demo's federation of unrelated environments: four silos, one environment each, policies that
``policy init`` wrote for the plan about all four. The next plan is about the maze alone and is
otherwise the same, so every list, floor and ceiling of every policy lets it pass. If it ran, three
silos would upload zeros and count towards t and n_min, and the published sum would be the delta of
the fourth.
"""

import json
from functools import partial

import pytest

from evolution.model.identity import base_sha256
from evolution.model.lora import initial_adapter
from federation.adapter.encoding import encode_adapter
from lab.demo.choices import Privacy, Scenario
from lab.demo.run import BASE_MODEL
from lab.demo.scenario import FAMILIES, SILOS, DemoSettings, plan_toml, silo_toml
from lab.loopback import LoopbackFederation
from silo_agent.books.ledger import LEDGER_FILE
from tests.kit.processes import constant_federation as cf
from tests.kit.waiting import until

pytestmark = pytest.mark.xdist_group("gating_plan")

RULE = "environments_served"
REASON = "this silo has none of the plan's environments"
MAZE = SILOS[FAMILIES.index("maze")]
OTHERS = tuple(silo_id for silo_id in SILOS if silo_id != MAZE)


@pytest.fixture(scope="module")
def loopback(tmp_path_factory):
    """Enrolled and rostered; no silo runs yet."""
    with LoopbackFederation(directory=tmp_path_factory.mktemp("federation")) as made:
        made.found()
        made.start_coordinator()
        for silo_id in SILOS:
            made.enrol(silo_id, base_model=BASE_MODEL)
        made.publish_roster(colluding=1)
        yield made


def prepare(loopback, settings):
    """The demo's files for one mode, policies for its plan, and daemons that read them."""
    toml = plan_toml(settings, base=str(BASE_MODEL), base_sha256=base_sha256(BASE_MODEL))
    # So few tasks learn nothing under that noise; that is not what is looked at.
    toml = toml.replace("accept_low_cosine = false", "accept_low_cosine = true")
    plan = loopback.directory / "plan.toml"
    plan.write_text(toml)
    accepted = ("--accept-no-privacy",) if settings.privacy is Privacy.NONE else ()
    for index, silo_id in enumerate(SILOS):
        directory = loopback.silo_dir(silo_id)
        text = silo_toml(settings, index, base_model=str(BASE_MODEL.absolute()))
        (directory / "silo.toml").write_text(text)
        (directory / "policy.toml").unlink()
        loopback.silo("policy", "init", "--plan", str(plan), "--data", str(directory), *accepted)
        (loopback.directory / "logs" / f"{silo_id}.log").unlink(missing_ok=True)
        loopback.start_silo(silo_id)
    for silo_id in SILOS:
        # The coordinator counts on nobody who is not there at the start.
        until(lambda s=silo_id: said(loopback, s, "coordinator_version"), f"{silo_id} calls")
    return toml


def gating_plan(loopback, settings, toml):
    """The same plan about the maze alone, and the adapter that it starts from."""
    named = ", ".join(f'"{name}"' for name in FAMILIES)
    assert toml.count(f"environments = [{named}]") == 1
    plan = loopback.directory / "gating.toml"
    plan.write_text(toml.replace(f"environments = [{named}]", 'environments = ["maze"]'))
    adapter, recipe = loopback.directory / "initial.safetensors", settings.recipe
    adapter.write_bytes(
        encode_adapter(initial_adapter(BASE_MODEL, recipe.lora_rank, recipe.lora_alpha, 0))
    )
    return plan, adapter


def ledgers(loopback):
    return {silo_id: (loopback.silo_dir(silo_id) / LEDGER_FILE).read_bytes() for silo_id in SILOS}


def said(loopback, silo_id, event, **fields):
    """Lines of a daemon's log about one event."""
    lines = loopback.log(silo_id).splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return [one for one in found if one["event"] == event and fields.items() <= one.items()]


def adopted(loopback, run_id):
    return said(loopback, MAZE, "adapter_adopted", run=run_id)


def heard(loopback, silo_id, run_id):
    """A run as ``chorale-silo runs`` shows it, beside the daemon."""
    runs = loopback.silo("runs", "--data", str(loopback.silo_dir(silo_id)))["runs"]
    (found,) = (run for run in runs if run["run"] == run_id)
    return found


@pytest.mark.long
@pytest.mark.parametrize("privacy", list(Privacy))
def test_a_plan_about_one_silos_environment_trains_nobody_and_moves_no_ledger(loopback, privacy):
    settings = DemoSettings(
        scenario=Scenario.ENVIRONMENTS, privacy=privacy, rounds=1, episodes=64, held_out=0
    )
    try:
        toml = prepare(loopback, settings)
        before = ledgers(loopback)
        run_id = loopback.start_run(*gating_plan(loopback, settings, toml), token=privacy)
        last, rounds = cf.watch_to_end(loopback, run_id)

        assert (last["run"]["state"], rounds) == ("failed", []), last
        # Two of four refusals are final; the third may come to a run that is over.
        refused = [silo_id for silo_id in OTHERS if f"{silo_id}: {REASON}" in last["error"]]
        assert len(refused) >= 2, last
        assert MAZE not in last["error"]
        for silo_id in refused:
            listed = heard(loopback, silo_id, run_id)
            assert (listed["state"], listed["rule"]) == ("refused", RULE)

        # The one that could serve it hears that the run is over before it begins to explore.
        log = partial(loopback.log, MAZE)
        until(lambda: adopted(loopback, run_id), f"{MAZE} adopts the adapter", told=log)
        if heard(loopback, MAZE, run_id)["state"] == "taking part":
            until(
                lambda: said(loopback, MAZE, "work_called_off", run=run_id),
                f"{MAZE} calls its work off",
                told=log,
            )
        for silo_id in SILOS:
            directory = loopback.silo_dir(silo_id)
            assert not (directory / "rounds.jsonl").exists()
            assert not list(directory.glob("spool/*"))
            assert not said(loopback, silo_id, "evolve_failed")
        assert ledgers(loopback) == before
    finally:
        for silo_id in filter(loopback.alive, SILOS):
            loopback.kill(silo_id)
