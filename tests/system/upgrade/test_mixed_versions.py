"""This version and the previous release in one federation, real processes over mutual TLS.

Success is either a run that ends with the exact sum of every silo, whoever runs what, and the same
charge everywhere; or a refusal that names both versions and which to upgrade, in the logs of both
sides, with nothing charged for it and every daemon still there.
"""

import json
import subprocess
from pathlib import Path

import pytest

from tests.kit.processes import constant_federation as cf
from tests.kit.waiting import until
from tests.system.upgrade.mixed_federation import (
    EXACT,
    POLICY,
    POLICY_V1,
    copied,
    founded,
    require_exact,
    start_silos,
)

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("upgrade")]

SILOS = cf.SILOS
PREVIOUS_VERSION = "0.1.0"
NOISY = {"mode": "silo", "noise": 0.01}
SCHEDULE = "[evolve]\nlearning_rate_schedule = 'cosine'\n"


def run(loopback, token, **plan):
    plan_file, adapter = cf.write_run(loopback, cf.plan_toml(**plan))
    run_id = loopback.start_run(plan_file, adapter, token=token, suite=suite_of(loopback))
    return cf.watch_to_end(loopback, run_id)


def suite_of(loopback):
    """Of a run of all parties; the previous release knows one suite and no word for it."""
    of_silos = {one.version for one in loopback.installations.values()}
    older = loopback.installations["coordinator"].version == PREVIOUS_VERSION
    return "v1" if PREVIOUS_VERSION in of_silos and not older else ""


def with_schedule(loopback):
    plan_file, adapter = cf.write_run(loopback, cf.plan_toml(**NOISY))
    text = plan_file.read_text().replace("[evolve]\n", SCHEDULE)
    plan_file.write_text(text)
    return loopback.start_run(plan_file, adapter, token="schedule", suite="v1")


OWN = 'chorale_silo_dp_epsilon_spent{unit="silo"}'
"""Charged alike by both. What it costs the tasks inside, the previous release does not count."""


def spent(loopback, silo_id):
    """ε of every unit, by the silo's own command; the daemon holds the ledger, so by its metric."""
    samples = loopback.metrics(silo_id)
    return {k: v for k, v in samples.items() if k.startswith("chorale_silo_dp_epsilon_spent")}


def refusals(loopback):
    samples = loopback.metrics("coordinator")
    return samples['chorale_rejected_messages_total{reason="version_mismatch"}']


def typed(loopback, party, module, *arguments):
    """The envelope of a command that may fail."""
    data = loopback.data_dir if party == "coordinator" else loopback.silo_dir(party)
    done = subprocess.run(
        [*loopback.python(party), "-m", module, *arguments, "--data", data, "--format", "json"],
        capture_output=True, text=True, timeout=120, check=False, env=loopback._environment(),
    )  # fmt: skip
    return json.loads(done.stdout)


def steps_of(envelope):
    return {step["name"]: step for step in envelope["data"]["steps"]}


def silo_doctor(loopback, silo_id):
    return steps_of(typed(loopback, silo_id, "silo_agent.cli.main", "doctor"))


def require_sound(loopback, silos=SILOS):
    for name in ("coordinator", *silos):
        assert loopback.alive(name), loopback.log(name)[-3000:]
        assert "Traceback" not in loopback.log(name), loopback.log(name)[-3000:]
        assert "run_crashed" not in loopback.log(name)


def require_run(loopback, what):
    """The sum of everybody, bit for bit, and then a charge that is the same everywhere."""
    start_silos(loopback, SILOS, what)
    status, rounds = run(loopback, "exact", rounds=2, **EXACT)
    assert status["run"]["state"] == "finished", status
    assert [one["outcome"] for one in rounds] == ["aggregated"] * 2
    require_exact(loopback, rounds, cf.flat(cf.initial_tensors()), SILOS)

    status, rounds = run(loopback, "charged", rounds=1, **NOISY)
    assert status["run"]["state"] == "finished", status
    charges = [spent(loopback, silo)[OWN] for silo in SILOS]
    assert charges[0] > 0
    assert charges == pytest.approx([charges[0]] * 4, rel=1e-12)
    loopback.chorale("audit", "verify", "--data", str(loopback.data_dir))
    require_sound(loopback)


def require_said_older(loopback, older):
    lines = loopback.said("coordinator", "silo_is_older")
    assert sorted(line["silo"] for line in lines) == list(older)
    for line in lines:
        assert line["version"] == "0.1.0 (protocol 1)"
        assert line["advice"] == f"upgrade {line['silo']}"
    assert refusals(loopback) == 0


def test_this_coordinator_and_silos_of_the_previous_release(tmp_path, installations):
    previous, current = installations
    silos = dict.fromkeys(SILOS, previous)
    with founded(tmp_path, coordinator=current, silos=silos) as loopback:
        require_run(loopback, "this coordinator, previous silos")
        require_said_older(loopback, SILOS)


def test_this_coordinator_and_two_silos_of_each(tmp_path, installations, template):
    previous, current = installations
    members = dict(zip(SILOS, (previous, previous, current, current), strict=True))
    with copied(tmp_path, template, coordinator=current, **members) as loopback:
        require_run(loopback, "this coordinator, two silos of each")
        # Beforehand the older two cannot say, and the others are too few for a round.
        plan, _ = cf.write_run(loopback, cf.plan_toml(**NOISY))
        dimension = ("--dimension", str(cf.DIMENSION))
        asked = typed(
            loopback, "coordinator", "server.cli.main", "run", "plan", plan, "--live", *dimension
        )
        assert asked["error_code"] == "preflight_refused", asked
        said = {one["silo_id"]: one["verdict"] for one in asked["data"]["silos"]}
        assert said == dict(
            zip(SILOS, ("cannot_say", "cannot_say", "accept", "accept"), strict=True)
        )
        assert f"{SILOS[0]}: cannot say (older release)" in asked["message"]
        require_said_older(loopback, SILOS[:2])
        for silo in SILOS[2:]:
            (line,) = loopback.said(silo, "coordinator_version")
            assert line["version"] == f"{current.version} (protocols 1-3)"


def test_a_run_of_suite_v2_waits_for_no_silo_that_cannot_take_part(
    tmp_path, installations, template
):
    previous, current = installations
    members = dict(zip(SILOS, (previous, current, current, current), strict=True))
    with copied(tmp_path, template, coordinator=current, **members) as loopback:
        # It joined with the previous release, whose policies cannot say so.
        cf.configure(loopback, SILOS[1], policy=POLICY_V1)
        start_silos(loopback, SILOS, "one silo of the previous release")
        plan, adapter = cf.write_run(loopback, cf.plan_toml(**NOISY))
        start = ("run", "start", plan, "--adapter", adapter, "--submit-token", "v2")
        refused = typed(loopback, "coordinator", "server.cli.main", *start)
        assert "error_code" in refused, refused
        assert f"upgrade {SILOS[0]}" in refused["message"], refused
        assert "--suite v1" in refused["message"] + refused["hint"], refused

        # Sites that take suite v2 alone refuse the other one, and say what their operator can do.
        for silo in SILOS[2:]:
            loopback.kill(silo)
            cf.configure(loopback, silo, policy=POLICY)
        start_silos(loopback, SILOS[2:], "two of them without suite v1")
        run_id = loopback.start_run(plan, adapter, token="v1", suite="v1")
        status, rounds = cf.watch_to_end(loopback, run_id)
        assert (status["run"]["state"], rounds) == ("failed", []), status
        for silo in SILOS[2:]:
            assert silo in status["error"], status["error"]
            assert "accept_v1" in loopback.log(silo), loopback.log(silo)[-3000:]
        assert all(set(spent(loopback, silo).values()) == {0.0} for silo in SILOS)
        require_sound(loopback)


def test_a_coordinator_of_the_previous_release_and_these_silos(tmp_path, installations):
    previous, current = installations
    silos = dict.fromkeys(SILOS, current)
    with founded(tmp_path, coordinator=previous, silos=silos) as loopback:
        require_run(loopback, "previous coordinator, these silos")
        for silo in SILOS:
            (line,) = loopback.said(silo, "coordinator_is_older")
            assert line["version"] == "0.1.0 (protocol 1)"
            assert "certificate is not renewed and ends on 20" in line["missing"]
            # Three rounds, and one word about heads.
            (line,) = loopback.said(silo, "audit_heads_not_exchanged")
            assert "earlier version" in line["detail"]
            assert not loopback.said(silo, "instruction_failed")
        done = typed(loopback, SILOS[0], "silo_agent.cli.main", "roster", "show")
        assert (done["error_code"], "earlier version" in done["message"]) == (
            "version_mismatch",
            True,
        ), done
        steps = silo_doctor(loopback, SILOS[-1])
        assert steps["versions"]["outcome"] == "warning", steps["versions"]
        assert "0.1.0 (protocol 1)" in steps["versions"]["found"]
        assert steps["call"]["outcome"] == steps["roster"]["outcome"] == "ok"


def test_a_plan_that_the_previous_release_cannot_read(tmp_path, installations, template):
    previous, current = installations
    members = dict(zip(SILOS, (previous, previous, current, current), strict=True))
    with copied(tmp_path, template, coordinator=current, **members) as loopback:
        start_silos(loopback, SILOS, "a newer plan")
        run_id = with_schedule(loopback)
        status, rounds = cf.watch_to_end(loopback, run_id)
        # Two of four is no quorum of three: the run ends at once, and says why.
        assert (status["run"]["state"], rounds) == ("failed", [])
        assert "too old for the run" in status["error"], status["error"]
        for silo in SILOS[:2]:
            assert silo in status["error"]
            until(lambda silo=silo: loopback.said(silo, "instruction_failed"), "no word of it")
            for line in loopback.said(silo, "instruction_failed"):
                assert line["kind"] == "TransportError"
                said = f"upgrade {silo}: it runs chorale 0.1.0 (protocol 1), the coordinator runs "
                assert f"{said}{current.version} (protocols 1-3)" in line["detail"], line
        assert refusals(loopback) >= 2
        assert all(set(spent(loopback, silo).values()) == {0.0} for silo in SILOS)
        require_sound(loopback)

        # One of them is upgraded on the spot: three of four are enough.
        loopback.kill(SILOS[1])
        loopback.installations[SILOS[1]] = current
        cf.configure(loopback, SILOS[1], policy=POLICY_V1)
        start_silos(loopback, SILOS[1:2], "a newer plan")
        files = loopback.directory / "plan.toml", loopback.directory / "initial.safetensors"
        run_id = loopback.start_run(*files, token="again", suite="v1")
        status, rounds = cf.watch_to_end(loopback, run_id)
        assert status["run"]["state"] == "finished", status
        assert sorted(rounds[0]["survivors"]) == list(SILOS[1:])
        require_sound(loopback)


def test_a_roster_that_members_approved(tmp_path, installations, template):
    previous, current = installations
    members = dict(zip(SILOS, (previous, current, current, current), strict=True))
    with copied(tmp_path, template, coordinator=current, **members) as loopback:
        cf.configure(loopback, SILOS[1], policy=POLICY_V1)
        start_silos(loopback, SILOS, "an approved roster")
        data = str(loopback.data_dir)
        fifth = cf.FIVE[4]
        loopback.installations[fifth] = current
        loopback.enrol(fifth)
        cf.configure(loopback, fifth, policy=POLICY_V1)
        loopback.chorale("roster", "propose", "--out", str(tmp_path / "next.json"), "--data", data)
        for silo in SILOS[1:]:
            loopback.silo("roster", "approve", "--yes", "--data", str(loopback.silo_dir(silo)))
        loopback.chorale("roster", "publish", "--data", data)
        start_silos(loopback, (fifth,), "an approved roster")
        status, rounds = run(loopback, "approved", rounds=1, **NOISY)
        assert status["run"]["state"] == "finished", status
        assert sorted(rounds[0]["survivors"]) == list(cf.FIVE[1:])
        lines = loopback.said(SILOS[0], "instruction_failed")
        assert lines
        for line in lines:
            assert "which its members approved, needs protocol 2" in line["detail"], line
            assert f"upgrade {SILOS[0]}: it runs chorale 0.1.0" in line["detail"], line
        assert set(spent(loopback, SILOS[0]).values()) == {0.0}
        require_sound(loopback, cf.FIVE)


def test_a_silo_without_a_common_protocol_is_refused_and_comes_back(
    tmp_path, installations, template
):
    _, current = installations
    away = SILOS[3]
    members = dict.fromkeys(SILOS, current)
    with copied(tmp_path, template, coordinator=current, **members) as loopback:
        start_silos(loopback, SILOS[:3], f"{away} of a later version")
        loopback.environment = {"PYTHONPATH": str(Path(__file__).parent)}
        loopback.start_silo(away, module="later_version")
        until(lambda: loopback.said(away, "instruction_failed"), "the silo does not say so")
        (line,) = loopback.said("coordinator", "silo_version_refused")
        assert line["silo"] == away
        said = (
            f"upgrade the coordinator: the coordinator runs chorale {current.version} "
            f"(protocols 1-3), {away} runs 9.0.0 (protocol 9)"
        )
        assert line["detail"] == said
        line = loopback.said(away, "instruction_failed")[0]
        assert line["kind"] == "CoordinatorVersionError"
        assert line["detail"] == (
            "upgrade the coordinator: this silo runs chorale 9.0.0 (protocol 9), the coordinator "
            f"runs {current.version} (protocols 1-3)"
        )
        status, rounds = run(loopback, "without", rounds=1, **NOISY)
        assert status["run"]["state"] == "finished", status
        assert sorted(rounds[0]["survivors"]) == list(SILOS[:3])
        assert set(spent(loopback, away).values()) == {0.0}
        # It asks again ever more slowly, and lives.
        assert len(loopback.said(away, "instruction_failed")) < 30
        require_sound(loopback)
        loopback.kill(away)
        start_silos(loopback, (away,), "this version everywhere")
        status, rounds = run(loopback, "with", rounds=1, **EXACT)
        assert sorted(rounds[0]["survivors"]) == list(SILOS)


def test_a_coordinator_without_a_common_protocol_is_refused(tmp_path, installations, template):
    previous, current = installations
    members = dict(zip(SILOS, (previous, current, current, current), strict=True))
    with copied(tmp_path, template, coordinator=current, **members) as loopback:
        start_silos(loopback, SILOS, "then a coordinator of a later version")
        loopback.kill("coordinator")
        loopback.environment = {"PYTHONPATH": str(Path(__file__).parent)}
        loopback.start_coordinator(module="later_version")
        # None of the silos is heard of, and the run is started all the same.
        loopback.environment = {"CHORALE_AWAIT_SILOS": "1"}
        # The previous release shows the coordinator's word; this one finds out by itself, too.
        said = dict.fromkeys(
            SILOS,
            f"upgrade this silo: this silo runs chorale {current.version} (protocols 1-3), the "
            "coordinator runs 9.0.0 (protocol 9)",
        )
        said[SILOS[0]] = (
            f"upgrade {SILOS[0]}: the coordinator runs chorale 9.0.0 (protocol 9), {SILOS[0]} runs "
            "0.1.0 (protocol 1)"
        )
        for silo, text in said.items():
            until(
                lambda silo=silo, text=text: any(
                    text in line["detail"] for line in loopback.said(silo, "instruction_failed")
                ),
                f"{silo} does not say so",
            )
        assert {one["silo"] for one in loopback.said("coordinator", "silo_version_refused")} == set(
            SILOS
        )
        plan, adapter = cf.write_run(loopback, cf.plan_toml(**NOISY))
        run_id = loopback.start_run(plan, adapter, token="never", suite="v1")
        steps = silo_doctor(loopback, SILOS[1])
        assert steps["call"]["outcome"] == "failed"
        assert steps["versions"]["outcome"] == "failed"
        for part in (current.version, "9.0.0 (protocol 9)", "no protocol in common"):
            assert part in steps["versions"]["found"]
        assert steps["versions"]["fix"] == "upgrade this silo"
        assert all(set(spent(loopback, silo).values()) == {0.0} for silo in SILOS)
        # A matching one takes the same directory over, and the run goes on where it waits.
        loopback.kill("coordinator")
        loopback.start_coordinator()
        status, _ = cf.watch_to_end(loopback, run_id)
        assert status["run"]["state"] == "finished", status
        require_sound(loopback)


def test_this_admin_and_a_coordinator_of_the_previous_release(tmp_path, installations):
    previous, current = installations
    with founded(tmp_path, coordinator=previous, silos={}) as loopback:
        loopback.installations["coordinator"] = current
        envelope = typed(loopback, "coordinator", "server.cli.main", "federation", "create", "demo")
        assert envelope["error_code"] == "version_mismatch", envelope
        assert "earlier version" in envelope["message"]
        assert "chorale doctor" in envelope["next_step"]
        # As the doctor says first: an operator's certificate is another one since 0.1.0.
        loopback.chorale("admin", "renew", "--data", str(loopback.data_dir))
        steps = steps_of(typed(loopback, "coordinator", "server.cli.main", "doctor"))
        assert steps["versions"]["outcome"] == "failed", steps
        assert "0.1.0 (protocol 1)" in steps["versions"]["found"]
        assert current.version in steps["versions"]["found"]
        assert "restart" in steps["versions"]["fix"]
