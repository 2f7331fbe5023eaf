"""Attacks 1, 2, 4, 5, 10, 12 and 14 over gRPC: a lying coordinator's process against real daemons.

One federation of four silos (c = 1, t = 3) lives through a run in which the coordinator lies in
chosen rounds and is honest in all others. Then each test looks at what the silos logged and
counted, at what the coordinator was sent, and at what it published.

A failure: another check than the one named, a share or a vector sent after it, a daemon that died,
or a later honest round that is not the exact sum of all four. Not a failure: a lost attempt or a
skipped round.
"""

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from secagg.errors import Check
from tests.kit.processes import constant_federation as cf

pytestmark = [pytest.mark.xdist_group("hostile_coordinator"), pytest.mark.long]

A, B, C, D = cf.SILOS
ALL, MODULE = cf.SILOS, "tests.system.integration.hostile.hostile_coordinator"
BEFORE_UPLOAD = ["AdvertiseKeys", "ShareKeys"]
BEFORE_R3 = [*BEFORE_UPLOAD, "UploadMaskedInput"]
BEFORE_R4 = [*BEFORE_R3, "CheckConsistency"]
WHOLE = [*BEFORE_R4, "Unmask"]


@dataclass(frozen=True)
class Scenario:
    """A lie, the round it is told in, and how it must end."""

    id: str
    lie: str
    round: int
    # Silo to the check at which it leaves, or the typed error where no check has a name.
    checks: dict[str, str]
    # The last thing each of these silos says in that attempt; the others finish theirs.
    says: dict[str, list[str]]
    # Who is in the round's sum; nobody when it is skipped.
    survivors: tuple[str, ...]
    attempts: int = 1
    # The attempt whose name the log line carries; 0 for what is refused before any was open.
    told_in: int = 1


SCENARIOS = (
    Scenario(
        "A02-substituted-key", "keys", 2, {A: Check.BUNDLE_SIGNATURE}, {A: ["AdvertiseKeys"]},
        (B, C, D),
    ),
    Scenario(
        "A05-another-model", "model", 4, dict.fromkeys((A, B), Check.MODEL),
        {A: [], B: [], C: ["AdvertiseKeys"], D: ["AdvertiseKeys"]}, ALL, attempts=2,
    ),
    Scenario(
        "A05-forked-descriptors", "descriptors", 6, dict.fromkeys(ALL, Check.BUNDLE_SIGNATURE),
        {silo: ["AdvertiseKeys"] for silo in ALL}, ALL, attempts=2,
    ),
    Scenario(
        "A14-lowered-threshold", "threshold", 8, dict.fromkeys(ALL, Check.POLICY_THRESHOLD),
        {silo: [] for silo in ALL}, ALL, attempts=2,
    ),
    Scenario(
        "A04-forked-survivors", "survivors", 10, dict.fromkeys(ALL, Check.AGREEMENT_SIGNATURES),
        dict.fromkeys(ALL, BEFORE_R4), (),
    ),
    Scenario(
        "A01-both-secrets", "both", 12, dict.fromkeys((A, B, C), Check.UNEXPECTED_MESSAGE),
        {A: BEFORE_R4, B: WHOLE, C: WHOLE, D: WHOLE}, ALL,
    ),
    Scenario(
        "A12-late-upload", "late", 14, {D: Check.SURVIVORS_SELF}, {D: BEFORE_R3}, (A, B, C),
    ),
    Scenario(
        "A12-altered-uploads", "uploads", 16,
        {A: Check.OWN_UPLOAD, B: Check.UPLOAD_SIGNATURE},
        {A: BEFORE_R3, B: BEFORE_R3, C: BEFORE_R4, D: BEFORE_R4}, (),
    ),
    Scenario(
        "P01-hidden-attempt", "hidden", 18, dict.fromkeys((A, B, C), Check.IDENTITY),
        dict.fromkeys(ALL, WHOLE), (), told_in=2,
    ),
    Scenario(
        "A05-adapter-not-of-its-sum", "update", 20, {A: "UpdateError"}, {A: []}, (B, C, D),
        told_in=0,
    ),
    Scenario(
        "A05-forked-chain", "fork", 22, {A: "ChainMismatchError"}, {A: []}, (B, C, D), told_in=0,
    ),
    Scenario(
        "A02-coordinators-own-roster", "roster", 24, {A: Check.ROSTER_SIGNATURE}, {A: WHOLE}, ALL,
        told_in=0,
    ),
)  # fmt: skip
ROUNDS = SCENARIOS[-1].round + 1
NOISY_ROUNDS = 2


@dataclass
class Story:
    """What is left of the run to look at."""

    rounds: dict[int, dict[str, Any]]
    adapters: list[str]
    # (round, attempt) to silo to the calls it made, each with the digests of what it said.
    calls: dict[tuple[int, int], dict[str, dict[str, set[str]]]]
    released: dict[tuple[int, int], dict[str, dict[str, list[str]]]]
    # (round, attempt) to silo to the checks in its log.
    failed: dict[tuple[int, int], dict[str, list[str]]]
    counted: dict[str, dict[str, float]]
    noisy: list[dict[str, Any]]
    refused: dict[str, list[dict[str, Any]]]
    loopback: Any


def plan_of(rounds: int, **changes: Any) -> str:
    text = cf.plan_toml(rounds=rounds, phase_deadline_s=3, **changes)
    return text.replace("quorum = 3", "quorum = 3\nspare_attempts = 20")


def events(loopback: Any, silo: str) -> list[dict[str, Any]]:
    lines = [line for line in loopback.log(silo).splitlines() if line.startswith("{")]
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    directory = tmp_path_factory.mktemp("hostile")
    heard = directory / "heard.jsonl"
    lies = {scenario.round: scenario.lie for scenario in SCENARIOS}
    environment = {
        "CHORALE_TEST_LIES": json.dumps(lies),
        "CHORALE_TEST_HEARD": str(heard),
    }
    with cf.federation(directory / "federation", environment=environment) as loopback:
        loopback.kill("coordinator")
        loopback.start_coordinator(module=MODULE)
        # Else whoever leaves in one lie's round would be out of every round after it.
        cf.let_cohorts_vary(loopback)
        for silo in ALL:
            loopback.start_silo(silo)
        plan, adapter = cf.write_run(loopback, plan_of(ROUNDS))
        run_id = loopback.start_run(plan, adapter, token="lies")
        last, rounds = cf.watch_to_end(loopback, run_id)
        assert last["run"]["state"] == "finished", last
        listed = loopback.chorale("adapter", "list", run_id, "--data", str(loopback.data_dir))
        # A second run with noise, for the lie about it; the daemons are the same.
        loopback.kill("coordinator")
        loopback.environment = {**environment, "CHORALE_TEST_LIES": json.dumps({1: "sigma"})}
        loopback.start_coordinator(module=MODULE)
        noisy_plan = plan_of(NOISY_ROUNDS, mode="silo", noise=0.05)
        plan, adapter = cf.write_run(loopback, noisy_plan)
        noisy_id = loopback.start_run(plan, adapter, token="sigma")
        noisy_last, noisy_rounds = cf.watch_to_end(loopback, noisy_id)
        assert noisy_last["run"]["state"] == "finished", noisy_last
        yield read(loopback, heard, run_id, rounds=rounds, listed=listed, noisy=noisy_rounds)


def read(loopback: Any, heard: Any, run_id: str, *, rounds: Any, listed: Any, noisy: Any) -> Story:
    calls: Any = defaultdict(lambda: {silo: defaultdict(set) for silo in ALL})
    released: Any = defaultdict(dict)
    for line in heard.read_text().splitlines():
        said = json.loads(line)
        if said["run"] != run_id:
            continue
        place = (said["round"], said["attempt"])
        calls[place][said["silo"]][said["call"]].add(said["sha256"])
        if said["call"] == "Unmask":
            released[place][said["silo"]] = said
    failed: Any = defaultdict(lambda: defaultdict(list))
    refused: Any = {}
    for silo in ALL:
        refused[silo] = []
        for event in events(loopback, silo):
            if event["event"] == "refused":
                refused[silo].append(event)
            identity = event.get("identity", "").split("/")
            if event["event"] != "instruction_failed" or identity[0] != run_id:
                continue
            attempt = int(identity[-1]) if len(identity) == 5 else 0
            failed[int(identity[1]), attempt][silo].append(event.get("check", event["kind"]))
    return Story(
        rounds={done["round"]: done for done in rounds},
        adapters=[record["adapter_sha256"] for record in listed["records"]],
        calls=calls,
        released=released,
        failed=failed,
        counted={silo: loopback.metrics(silo) for silo in ALL},
        noisy=noisy,
        refused=refused,
        loopback=loopback,
    )


def moved(start: np.ndarray, survivors: tuple[str, ...]) -> np.ndarray:
    """The exact next adapter: the plain average of fixed-point vectors."""
    if not survivors:
        return start
    total = sum(cf.fixed_point(cf.VALUES[silo]) for silo in survivors)
    mean = total.astype(np.float64) / ((cf.GRID / cf.CLIP) * len(survivors))
    return (start.astype(np.float64) + mean).astype(np.float32)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.id)
def test_the_lied_to_silos_stop_at_the_named_check(story, scenario):
    """Attacks 1, 2, 4, 5, 10, 12, 14: log line, calls, shares and the round's outcome."""
    failed = story.failed[scenario.round, scenario.told_in]
    assert {silo: set(found) for silo, found in failed.items()} == {
        silo: {str(check)} for silo, check in scenario.checks.items()
    }
    if scenario.told_in:
        assert all(len(found) == 1 for found in failed.values())
    made = {silo: list(calls) for silo, calls in story.calls[scenario.round, 1].items()}
    for silo, said in scenario.says.items():
        assert made[silo] == said, (silo, made)
    for silo, said in story.released[scenario.round, 1].items():
        assert not set(said["self_seed"]) & set(said["mask_key"]), silo
    done = story.rounds[scenario.round]
    assert tuple(done["survivors"]) == scenario.survivors
    assert done["outcome"] == ("aggregated" if scenario.survivors else "skipped")
    assert done["attempt"] == scenario.attempts
    # Nobody else had any trouble with the round.
    others = [place for place in story.failed if place[0] == scenario.round]
    assert others == [(scenario.round, scenario.told_in)]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.id)
def test_everybody_takes_part_again_as_soon_as_the_coordinator_is_honest(story, scenario):
    """The round after the lie has all four silos in it, in its first attempt."""
    after = story.rounds[scenario.round + 1]
    assert tuple(after["survivors"]) == ALL
    assert (after["outcome"], after["attempt"]) == ("aggregated", 1)
    made = {silo: list(calls) for silo, calls in story.calls[scenario.round + 1, 1].items()}
    assert made == dict.fromkeys(ALL, WHOLE)
    assert not [place for place in story.failed if place[0] == scenario.round + 1]


def test_every_published_adapter_is_the_exact_average_of_its_survivors(story):
    """Claims (a) and (d), round by round, whatever was lied in between."""
    expected = cf.flat(cf.initial_tensors())
    assert len(story.adapters) == ROUNDS + 1
    for number, sha256 in enumerate(story.adapters):
        if number:
            expected = moved(expected, tuple(story.rounds[number]["survivors"]))
        result = cf.flat(cf.published(story.loopback, sha256))
        np.testing.assert_array_equal(result, expected, err_msg=f"round {number}")


def test_no_silo_ever_says_two_things_in_one_step(story):
    """Attacks 1, 3, 10: whatever is repeated, each call of an attempt has one content."""
    for place, by_silo in story.calls.items():
        for silo, calls in by_silo.items():
            assert all(len(said) == 1 for said in calls.values()), (place, silo)


def test_each_failed_check_is_counted_by_its_name(story):
    """The metric holds what the log holds, and no check more."""
    for silo in ALL:
        expected: dict[str, float] = defaultdict(float)
        for scenario in SCENARIOS:
            if isinstance(scenario.checks.get(silo), Check):
                expected[str(scenario.checks[silo])] += 1
        counted = {
            check.value: story.counted[silo][f'chorale_silo_failed_checks_total{{check="{check}"}}']
            for check in Check
        }
        assert {name: value for name, value in counted.items() if value} == expected
    for kind in ("UpdateError", "ChainMismatchError"):
        assert story.counted[A][f'chorale_silo_errors_total{{kind="{kind}"}}'] >= 1
        assert story.counted[B][f'chorale_silo_errors_total{{kind="{kind}"}}'] == 0


def test_a14_lowered_noise_is_refused_by_the_guardian_of_every_silo(story):
    """Attack 14: σ is what the plan needs or nobody takes part; then all four do."""
    for silo in ALL:
        assert [event["rule"] for event in story.refused[silo]] == ["noise"]
        name = 'chorale_silo_policy_decisions_total{decision="refuse",rule="noise"}'
        assert story.counted[silo][name] == 1
    assert [tuple(done["survivors"]) for done in story.noisy] == [ALL] * NOISY_ROUNDS
    assert [done["attempt"] for done in story.noisy] == [2, 1]


def test_all_daemons_are_alive_after_every_lie(story):
    """Nothing a coordinator says ends a daemon; the metrics are still served."""
    for name in ("coordinator", *ALL):
        assert story.loopback.alive(name), story.loopback.log(name)[-2000:]
        assert "Traceback" not in story.loopback.log(name)
