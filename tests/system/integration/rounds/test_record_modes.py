"""The record-level modes over real processes and mTLS: three runs of one federation of five silos.

    local      record_local, two rounds
    stepped    record_distributed, three rounds of four releases each; one silo is killed in the
               middle of round 2, the coordinator in the middle of round 3
    refused    one more round, before which one silo's ledger and memory are put back to an older
               copy, and another silo's policy allows less than it has spent

The silos contribute known vectors, so the runs are short; everything else is what operators run.

Not failures: pauses, attempts that are made again. Failures: an adapter that does not follow from
the published sums, a silo that does not come back, a charge that is not the plan's, a refused silo
that worked.
"""

import shutil
import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from dp.accounting.charge import attempt_charges, training_charges
from dp.accounting.compose import epsilon_of
from dp.ledger.journal import Journal
from dp.ledger.ledger import Ledger
from federation.adapter.encoding import encode_adapter
from federation.adapter.layout import Layout
from federation.plan.read import read_plan
from silo_agent.books.ledger import LEDGER_FILE
from silo_agent.identity.identity import Identity
from silo_agent.line.transport import Coordinator
from tests.kit.processes import constant_federation as cf
from tests.kit.waiting import until

pytestmark = [pytest.mark.xdist_group("record_modes"), pytest.mark.long]

STEPS, B_BAR = 4, 8
KILLED, ROLLED_BACK, SPENT_UP = cf.FIVE[4], cf.FIVE[3], cf.FIVE[4]
STEADY = cf.FIVE[:3]
RECORD = f"""
[privacy.record]
sampling_rate = 0.5
expected_units = {B_BAR}
steps_per_round = {STEPS}
"""
LOCAL = cf.plan_toml(
    rounds=2, mode="record_local", noise=2.0, extra=RECORD + f"delta_clip_l2 = {cf.CLIP}\n"
)
STEPPED = cf.plan_toml(
    rounds=3, mode="record_distributed", noise=0.02, optimiser="sgd", extra=RECORD
)
REFUSED = LOCAL.replace("count = 2", "count = 1")
LOCAL = LOCAL.replace("quorum = 3", "quorum = 5")


def client_of(loopback, silo_id):
    identity = Identity.load(loopback.silo_dir(silo_id))
    return Coordinator(
        address=identity.coordinator_address, credentials=identity.channel_credentials()
    )


def await_log(loopback, silo_id, *words):
    """Until one line of a silo's log holds all of these."""
    until(
        lambda: any(all(w in line for w in words) for line in loopback.log(silo_id).splitlines()),
        f"{silo_id} says {words}",
        told=partial(loopback.log, silo_id),
    )


def adopted(number, step):
    return '"event": "adapter_adopted"', f'"round": {number},', f'"step": {step},'


def start(loopback, text, token):
    plan, adapter = cf.write_run(loopback, text)
    return loopback.start_run(plan, adapter, token=token)


def published(loopback, run_id):
    """The chain, and every sum and adapter that it names."""
    client = client_of(loopback, STEADY[0])
    records = client.records(run_id, 0)
    blobs = {}
    for record in records:
        for digest in (record.adapter_sha256, record.sum_sha256):
            if digest and digest not in blobs:
                path = loopback.directory / digest.hex()
                with path.open("w+b") as sink:
                    client.blob(digest, sink, max_bytes=1 << 24)
                blobs[digest] = path.read_bytes()
    client.close()
    return SimpleNamespace(records=records, blobs=blobs)


def ledger_files(loopback, silo_id):
    directory = loopback.silo_dir(silo_id)
    return [directory / LEDGER_FILE, directory / "state.json"]


def ledger_of(loopback, silo_id):
    """The records of a stopped silo's ledger, and its epsilon."""
    copy = loopback.directory / f"{silo_id}.ledger"
    shutil.copy(loopback.silo_dir(silo_id) / LEDGER_FILE, copy)
    journal = Journal(copy)
    records = journal.load()
    journal.close()
    with Ledger.open(copy, delta=1e-5, caps={"silo": 1e9, "task": 1e9}) as ledger:
        return SimpleNamespace(records=records, epsilons=ledger.spent_epsilons())


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    told = SimpleNamespace(chains={}, ends={}, durations_s={})
    with cf.federation(tmp_path_factory.mktemp("record"), silos=cf.FIVE) as loopback:
        told.loopback = loopback
        for silo_id in cf.FIVE:
            loopback.start_silo(silo_id)
        told.local = start(loopback, LOCAL, "local")
        told.ends["local"], _ = cf.watch_to_end(loopback, told.local)
        loopback.kill(ROLLED_BACK)
        for file in ledger_files(loopback, ROLLED_BACK):
            shutil.copy(file, file.with_name(file.name + ".old"))
        loopback.start_silo(ROLLED_BACK)

        began = time.monotonic()
        told.stepped = start(loopback, STEPPED, "stepped")
        await_log(loopback, STEADY[0], *adopted(1, STEPS - 1), told.stepped)
        told.durations_s["first_round"] = time.monotonic() - began
        await_log(loopback, STEADY[0], *adopted(2, 1), told.stepped)
        loopback.kill(KILLED)
        loopback.start_silo(KILLED)
        await_log(loopback, STEADY[0], *adopted(3, 1), told.stepped)
        loopback.kill("coordinator")
        loopback.start_coordinator()
        told.ends["stepped"], _ = cf.watch_to_end(loopback, told.stepped)
        told.chains = {run: published(loopback, run) for run in (told.local, told.stepped)}

        for silo_id in (ROLLED_BACK, SPENT_UP):
            loopback.kill(silo_id)
        told.before = {silo_id: ledger_of(loopback, silo_id) for silo_id in cf.FIVE}
        for file in ledger_files(loopback, ROLLED_BACK):
            shutil.copy(file.with_name(file.name + ".old"), file)
        told.old = ledger_of(loopback, ROLLED_BACK)
        cf.configure(loopback, SPENT_UP, policy=cf.policy_toml(task_cap=1000.0))
        for silo_id in (ROLLED_BACK, SPENT_UP):
            loopback.start_silo(silo_id)
        told.refused = start(loopback, REFUSED, "refused")
        told.ends["refused"], _ = cf.watch_to_end(loopback, told.refused)
        told.refused_rounds = published(loopback, told.refused)
        told.alive = {silo_id: loopback.alive(silo_id) for silo_id in cf.FIVE}
        told.metrics = {silo_id: loopback.metrics(silo_id) for silo_id in cf.FIVE}
        loopback.stop()
        told.after = {silo_id: ledger_of(loopback, silo_id) for silo_id in cf.FIVE}
        yield told


def flat(tensors):
    return np.concatenate([tensors[name].ravel() for name in sorted(tensors)])


@pytest.mark.parametrize("name", ["local", "stepped", "refused"])
def test_every_run_ends(story, name):
    assert story.ends[name]["run"]["state"] == "finished", story.ends[name]


@pytest.mark.parametrize("name", ["local", "stepped"])
def test_the_adapters_follow_exactly_from_the_published_sums(story, name):
    """The specification's arithmetic, written down a second time."""
    chain = story.chains[getattr(story, name)]
    spec = read_plan((LOCAL if name == "local" else STEPPED).encode()).spec
    units = 1 if name == "local" else B_BAR
    names = sorted(cf.initial_tensors())
    layout = Layout.from_tensors(cf.initial_tensors())
    now = flat(cf.initial_tensors())
    places = [record.place for record in chain.records]
    assert places == [(0, 0)] + (
        [(1, 0), (2, 0)] if name == "local" else [(r, s) for r in (1, 2, 3) for s in range(STEPS)]
    )
    aggregated = 0
    for record in chain.records[1:]:
        if record.kind == "aggregated":
            total = np.frombuffer(chain.blobs[record.sum_sha256], "<i4")[: cf.DIMENSION]
            scale = spec.release.grid / spec.release.clip_l2
            mean = total.astype(np.float64) / (scale * (len(record.survivors) * units))
            now = (now.astype(np.float64) + 1.0 * mean).astype(np.float32)
            aggregated += 1
        assert encode_adapter(layout.unflatten(now)) == chain.blobs[record.adapter_sha256]
    assert aggregated >= len(chain.records) - 2
    assert names == sorted(spec_.name for spec_ in layout.specs)


def test_the_sums_of_steps_are_sums_of_sampled_units(story):
    """Far above the noise: half of each silo's units, all of them the silo's pattern."""
    chain = story.chains[story.stepped]
    ratios = []
    for record in chain.records:
        if record.kind == "aggregated":
            total = np.frombuffer(chain.blobs[record.sum_sha256], "<i4")[: cf.DIMENSION]
            pattern = sum(cf.fixed_point(cf.VALUES[silo_id]) for silo_id in record.survivors)
            ratios.append(np.dot(total, pattern) / np.dot(pattern, pattern))
    assert np.mean(ratios) == pytest.approx(0.5 * cf.UNITS, rel=0.25)
    # A new sample for each of them.
    assert len(set(np.round(ratios, 2))) > len(ratios) / 2


def test_a_silo_killed_inside_a_round_is_back_in_the_next(story):
    chain = story.chains[story.stepped]
    by_place = {record.place: record for record in chain.records}
    assert any(KILLED not in by_place[(2, step)].survivors for step in range(STEPS))
    assert any(KILLED in by_place[(3, step)].survivors for step in range(STEPS))
    assert all(set(STEADY) <= set(r.survivors) for r in chain.records if r.kind == "aggregated")


def test_ledgers_charge_exactly_what_the_plan_says(story):
    """Each record is a function of the plan; together they give the epsilon; none is missing."""
    plans = {
        story.local: read_plan(LOCAL.encode()).spec,
        story.stepped: read_plan(STEPPED.encode()).spec,
    }
    for silo_id, ledger in story.before.items():
        charges, spent, trained = [], set(), 0
        for record in ledger.records:
            if record["kind"] == "spent":
                spent.add((record["run"], record["round"], record["step"]))
                charges += attempt_charges(plans[record["run"]], step=record["step"])
            elif record["kind"] not in ("genesis", "joined", "signed_r3"):
                assert record["run"] == story.local
                charges += training_charges(plans[story.local])
                trained += 1
        expected = epsilon_of(charges, 1e-5)
        for unit, epsilon in ledger.epsilons.items():
            assert epsilon == pytest.approx(expected.get(unit, 0.0)), (silo_id, unit)
        # Released ≤ debited: whoever is in a sum has paid for it.
        for run_id, chain in story.chains.items():
            for record in chain.records:
                if silo_id in record.survivors:
                    assert (run_id, *record.place) in spent
        assert trained == 2
    steady = [r for r in story.before[STEADY[0]].records if r["kind"] == "spent"]
    assert len(steady) >= 2 + 3 * STEPS


def refusals(metrics):
    return {
        name.split('rule="')[1].split('"')[0]
        for name, value in metrics.items()
        if name.startswith("chorale_silo_policy_decisions_total")
        and 'decision="refuse"' in name
        and value
    }


def test_a_silo_over_its_budget_refuses_before_any_work(story):
    assert story.alive[SPENT_UP]
    assert refusals(story.metrics[SPENT_UP]) == {"epsilon_cap"}
    assert story.after[SPENT_UP].records == story.before[SPENT_UP].records
    reports = (story.loopback.silo_dir(SPENT_UP) / "rounds.jsonl").read_text()
    assert story.refused not in reports
    assert story.stepped in reports


def test_a_rolled_back_ledger_is_refused_by_the_echo(story):
    assert story.alive[ROLLED_BACK]
    assert len(story.old.records) < len(story.before[ROLLED_BACK].records)
    assert refusals(story.metrics[ROLLED_BACK]) == {"ledger_rolled_back"}
    assert story.after[ROLLED_BACK].records == story.old.records
    assert "put the newest copy of privacy.ledger" in story.loopback.log(ROLLED_BACK)
    reports = (story.loopback.silo_dir(ROLLED_BACK) / "rounds.jsonl").read_text()
    assert story.refused not in reports


def test_the_others_go_on_without_them(story):
    (_, record) = story.refused_rounds.records
    assert record.survivors == STEADY
