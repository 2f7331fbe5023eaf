"""A doctor's steps: order, dependencies, texts, and what requirements mean."""

import datetime as dt

import pytest
import trustme
from cryptography import x509

from ops.doctor.checkup import Check, Outcome, Verdict, examine, failed, judge_validity, ok, warning
from ops.doctor.installed import judge_packages, parse_requirement


def outcomes(*checks):
    told = []
    found = examine(checks, told=told.append)
    assert tuple(told) == found.findings
    return {finding.name: finding.outcome for finding in found.findings}, found


def check(name, verdict, *needs, connects=False):
    def look():
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    return Check(name=name, look=look, needs=needs, connects=connects)


def test_what_needs_a_failed_step_is_skipped_and_so_is_what_needs_that():
    ends, found = outcomes(
        check("a", failed("broken", "mend it")),
        check("b", ok("fine"), "a"),
        check("c", ok("fine"), "b"),
        check("d", ok("fine")),
    )
    assert ends == {"a": "failed", "b": "skipped", "c": "skipped", "d": "ok"}
    assert "needs: a" in found.findings[1].found
    assert found.first_failed.fix == "mend it"


def test_a_warning_stops_later_steps_only_if_it_says_so():
    ends, _ = outcomes(
        check("a", warning("odd", "look")),
        check("b", ok("fine"), "a"),
        check("c", warning("absent", "start it", stops=True)),
        check("d", ok("fine"), "c"),
    )
    assert (ends["b"], ends["d"]) == (Outcome.OK, Outcome.SKIPPED)


def test_a_step_that_breaks_is_a_failure_and_the_others_go_on():
    ends, found = outcomes(check("a", ZeroDivisionError("x")), check("b", ok("fine")))
    assert ends == {"a": "failed", "b": "ok"}
    assert "ZeroDivisionError" in found.findings[0].found


def test_only_connection():
    lost = check("a", failed("x", "y"), connects=True)
    assert outcomes(lost)[1].only_connection
    assert not outcomes(lost, check("b", failed("x", "y")))[1].only_connection
    assert not outcomes(check("a", ok("fine"), connects=True))[1].only_connection


def test_a_step_cannot_need_a_later_one():
    with pytest.raises(ValueError, match="not before it"):
        outcomes(check("a", ok("x"), "b"), check("b", ok("x")))


def test_texts_are_one_bounded_line():
    _, found = outcomes(check("a", ok("one\ntwo\x1b[2J" + "x" * 5000)))
    text = found.findings[0].found
    assert "\n" not in text
    assert "\x1b" not in text
    assert len(text) == 1000


def test_data_has_every_step_and_the_counts():
    _, found = outcomes(check("a", ok("x")), check("b", failed("x", "y")))
    data = found.as_data()
    assert [row["name"] for row in data["steps"]] == ["a", "b"]
    assert set(data["steps"][0]) == {"name", "outcome", "found", "fix"}
    assert data["counts"] == {"ok": 1, "warning": 0, "failed": 1, "skipped": 0}


@pytest.mark.parametrize(
    ("versions", "have", "allowed"),
    [
        ("<51,>=46", "50.0.1", True),
        ("<51,>=46", "51.0.0", False),
        ("<51,>=46", "45.9", False),
        ("==1.41.0", "1.41", True),
        ("!=2.0", "2.0.0", False),
        (">=2.6", "2.13.0+cpu", True),
        ("", "0.1", True),
        ("~=2.0", "2.0", False),
        (">=2.0", "garbage", False),
    ],
)
def test_requirements(versions, have, allowed):
    assert parse_requirement(f"thing{versions}").allows(have) is allowed


def test_extras_and_markers():
    extra = parse_requirement("torch>=2.6; extra == 'silo'")
    assert (extra.name, extra.extra, extra.conditional) == ("torch", "silo", False)
    marked = parse_requirement('ray>=2.46; python_version < "3.14" and extra == "lab"')
    assert (marked.extra, marked.conditional) == ("lab", True)
    assert parse_requirement("???") is None


def test_this_installation_is_as_required():
    versions, problems = judge_packages(extra="silo")
    assert problems == ()
    assert {"grpcio", "torch"} <= set(versions)


def test_validity():
    pem = trustme.CA().issue_cert("x").cert_chain_pems[0].bytes()
    certificate = x509.load_pem_x509_certificate(pem)
    day = dt.timedelta(days=1)

    def at(now):
        return judge_validity("it", certificate, now=now, soon=day, renew="again")

    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    assert at(begins).outcome is Outcome.OK
    assert at(ends - 2 * day).outcome is Outcome.OK
    for moment, outcome in ((ends - day, "warning"), (ends, "failed"), (begins - day, "failed")):
        verdict = at(moment)
        assert isinstance(verdict, Verdict)
        assert (verdict.outcome, "again" in verdict.fix) == (outcome, True)
