"""The doctor's question to the advisor: a server on loopback that answers in its own way."""

from http import HTTPStatus

import pytest

from ops.doctor.checkup import Outcome
from server.config import CoordinatorConfig
from server.site.doctor.advisor import judge_advisor
from tests.kit.processes.advisor_endpoint import Advisor, said

PROSE = {"choices": [{"message": {"role": "assistant", "content": "Four of them."}}]}


@pytest.fixture
def advised(tmp_path, monkeypatch):
    """What the doctor finds where the endpoint answers so, and the endpoint."""
    advisors = []

    def of(way, **settings):
        advisors.append(Advisor({}, otherwise=way))
        names = advisors[-1].environment(tmp_path) | {
            f"CHORALE_COORDINATOR_{name.upper()}": value for name, value in settings.items()
        }
        for name, value in names.items():
            monkeypatch.setenv(name, value)
        return judge_advisor(CoordinatorConfig(host_names=["localhost"])), advisors[-1]

    yield of
    for advisor in advisors:
        advisor.die()


def test_without_an_advisor_nobody_is_asked():
    verdict = judge_advisor(CoordinatorConfig(host_names=["localhost"]))
    assert (verdict.outcome, verdict.found) == (Outcome.OK, "no advisor is configured")


def test_a_proposal_is_well_and_costs_what_is_said(advised):
    verdict, advisor = advised(said(count=5) | {"usage": {"total_tokens": 671}})
    assert verdict.outcome is Outcome.OK
    assert "1 requests, 671 tokens" in verdict.found
    ((_, _, body),) = advisor.asked
    assert body["tools"]


def test_a_server_without_tools_is_told_from_one_that_is_not_there(advised):
    verdict, advisor = advised(HTTPStatus.BAD_REQUEST)
    assert verdict.outcome is Outcome.WARNING
    assert "http status" in verdict.found
    assert "advisor_tools = false" in verdict.fix
    advisor.die()
    verdict = judge_advisor(CoordinatorConfig(host_names=["localhost"]))
    assert (verdict.outcome, "unreachable" in verdict.found) == (Outcome.WARNING, True)
    assert "advisor_url" in verdict.fix


def test_without_tools_none_are_offered(advised):
    verdict, advisor = advised(said(count=5), advisor_tools="false")
    assert verdict.outcome is Outcome.OK
    ((_, _, body),) = advisor.asked
    assert "tools" not in body
    assert body["response_format"]["type"] == "json_schema"


def test_a_model_that_makes_no_proposal_is_a_warning_with_the_reason(advised):
    verdict, advisor = advised(PROSE, advisor_tools="false")
    assert verdict.outcome is Outcome.WARNING
    assert "not JSON" in verdict.found
    assert "Four of them" not in verdict.found
    assert len(advisor.asked) == 3
