"""The status page's HTML: nothing that a hostile name could make of it, small, well formed."""

import base64
import hashlib
import re
import sqlite3
import time

import pytest
from jinja2 import UndefinedError

from server.errors import UnknownRunError
from server.figures import RoundFigures
from server.states import RunState
from server.status_page import page as page_module
from server.status_page.verdict import judge
from tests.kit.server import status_page_samples as samples
from tests.kit.server.status_page_reader import HOSTILE, Parsed, require_inert, seen

NOW = samples.NOW


def test_hostile_names_are_text_and_nothing_else(coordinator):
    coordinator.found(HOSTILE)
    coordinator.enrol(HOSTILE)
    coordinator.invite(f"{HOSTILE}2")
    row = coordinator.start("driven-1", plan_name=HOSTILE)
    coordinator.add_rows(
        row.run_id,
        [
            samples.row_of(row.run_id, 1, 0, 1, phase=HOSTILE, times={HOSTILE: NOW - 99})
            | {
                "outcome": "aggregated",
                "figures_json": RoundFigures(
                    round=1,
                    cohort=(HOSTILE, "a", "b", "c"),
                    survivors=("a", "b", "c"),
                    success={HOSTILE: (0.5, 0.1)},
                ).to_json(),
            },
            samples.row_of(row.run_id, 2, 0, 1, phase=HOSTILE, times={HOSTILE: NOW - 9}),
        ],
        [],
    )
    coordinator.driver = samples.Driven(
        row=row,
        current=RoundFigures(round=2, attempt=1, phase_since_unix_s=NOW, deadline_unix_s=NOW + 9),
        waiting_for=(HOSTILE,),
    )
    for state in (RunState.QUEUED, RunState.FAILED):
        run_id = f"{HOSTILE}{state}"
        coordinator.store.runs.create(
            run_id=run_id, name=HOSTILE, plan=samples.plan_toml(), plan_sha256=b"",
            submit_token=run_id, state=state,
        )  # fmt: skip
        coordinator.store.runs.set_state(run_id, state, error=HOSTILE)
    coordinator.start("after-1", state=RunState.QUEUED)
    for path in ("/", "/runs/driven-1"):
        parsed = require_inert(coordinator.html(path))
        assert "<script>alert(1)</script><img src=x onerror=alert(1)>" in parsed.text
    for place in ("in the sum; lost", "waiting for", "behind", "invited"):
        assert place in require_inert(coordinator.html()).text
    # The page of the run whose id it is, at the address that the list gives.
    (address,) = {
        tag["href"]
        for name, tag in require_inert(coordinator.html()).tags
        if name == "a" and tag["href"].endswith("failed")
    }
    assert coordinator.get(address).status == 404
    for name in ("%1b", "%ff%00", "x" * 200, "%3Cscript%3E", "..", "%2e%2e%2f"):
        answer = coordinator.get(f"/runs/{name}")
        assert answer.status == 404
        require_inert(answer.body.decode())


def test_an_unknown_run_is_named_nowhere(coordinator):
    answer = coordinator.get("/runs/<script>")
    assert (answer.status, answer.headers) == (404, page_module.HEADERS)
    assert "script" not in answer.body.decode()
    with pytest.raises(UnknownRunError):
        coordinator.observer.look("no-such-run", releases=1)


def test_the_policy_allows_this_style_and_nothing_else(running):
    answer = running.get()
    assert (answer.status, answer.content_type) == (200, "text/html; charset=utf-8")
    (style,) = re.findall(r"<style>(.*?)</style>", answer.body.decode(), re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}';")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["X-Frame-Options"] == "DENY"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["Cache-Control"] == "no-store"


def test_an_alert_links_to_its_runbook_where_the_pages_have_an_address(running):
    running.context.metrics.audit_failures.inc()
    (concern,) = judge(running.observer.look(releases=1)).concerns
    named = f"<code>{concern.alert}</code>"
    assert f"runbook {named}" in running.html()
    running.runbooks_url = "https://docs.example.org/operations"
    (link,) = [tag for name, tag in seen(running).tags if tag.get("href", "").startswith("https:")]
    assert link == {
        "href": f"https://docs.example.org/operations/{concern.alert}.md",
        "rel": "noopener noreferrer",
    }
    assert f">{named}</a>" in running.html()


def test_a_name_that_a_template_does_not_know_is_an_error():
    for template in ("{{ forgotten }}", "{{ known.forgotten }}", "{% if forgotten %}{% endif %}"):
        with pytest.raises(UndefinedError):
            page_module._ENVIRONMENT.from_string(template).render(known=NOW)


def test_it_begins_again_by_itself_unless_it_is_held(running):
    def refreshes(path):
        return [tag for _, tag in seen(running, path).tags if tag.get("http-equiv") == "refresh"]

    assert refreshes("/") == [{"http-equiv": "refresh", "content": "10"}]
    assert refreshes("/?hold") == []
    assert len(refreshes("/?hold=1&x")) == 1
    run = f"/runs/{running.driver.row.run_id}"
    assert (len(refreshes(run)), refreshes(f"{run}?hold")) == (1, [])
    assert f'href="{run}"' in running.html(f"{run}?hold")


@pytest.mark.parametrize("path", ["/runs", "//", "/index.html", "http://x/", "/../", "", "*"])
def test_other_paths_are_none_of_it(running, path):
    assert running.get(path) is None


# How it is made -----------------------------------------------------------------------------------


def test_every_page_is_well_formed_and_can_be_walked_without_eyes(running):
    for path in ("/", f"/runs/{running.driver.row.run_id}"):
        parsed = require_inert(running.html(path))
        names = [name for name, _ in parsed.tags]
        assert [names.count(one) for one in ("main", "header", "footer", "h1")] == [1, 1, 1, 1]
        assert dict(parsed.tags)["html"] == {"lang": "en"}
        assert len(parsed.ids) == len(set(parsed.ids))
        for name, attributes in parsed.tags:
            assert set(attributes.get("aria-labelledby", "").split()) <= set(parsed.ids), name
            if name == "th":
                assert attributes["scope"] in {"row", "col"}
            if name == "table":
                assert attributes["role"] == "table"
        assert names.count("table") == names.count("caption")
        drawings = [tag for name, tag in parsed.tags if name == "svg"]
        assert all(tag.get("role") == "img" or tag["aria-hidden"] == "true" for tag in drawings)
        assert "<h1>" not in running.html(path).split("<main")[0]


def test_two_hundred_silos_and_a_thousand_rounds_are_one_small_page(tmp_path):
    coordinator = samples.Coordinator(tmp_path)
    names = [f"hospital-{number:03d}-of-the-northern-region" for number in range(200)]
    coordinator.found()
    with coordinator.store.transaction():
        for name in names:
            coordinator.enrol(name)
        coordinator.publish(*names)
        row = coordinator.start(rounds=1000, noise=60.0)
        begin_s = 300 * 1000
        coordinator.release(
            row.run_id, 1, cohort=names, survivors=names[:-2], begin_s=begin_s, agreement=0.5,
            agreement_error=0.1, success={f"family-{k}": (0.5 + k / 100, 0.02) for k in range(20)},
        )  # fmt: skip
        (first,) = coordinator.store.rounds.list(row.run_id)
        coordinator.add_rows(
            row.run_id,
            [
                samples.row_of(
                    row.run_id, later, 0, 1, phase="finished",
                    times={one.phase: one.at_unix_s + 300 * later for one in first.phases},
                )
                | {"outcome": first.outcome, "figures_json": first.figures_json}
                for later in range(2, 1000)
            ],
            [
                samples.record(row.run_id, later, "aggregated", survivors=names)
                for later in range(900, 1000)
            ],
        )  # fmt: skip
        coordinator.opened(row.run_id, 1000, begin_s=100)
    coordinator.driver = samples.Driven(
        row=row,
        current=RoundFigures(round=1000, attempt=1, phase_since_unix_s=NOW - 100),
        waiting_for=tuple(names[:150]),
    )
    for path in ("/", f"/runs/{row.run_id}"):
        spent = []
        for _ in range(3):
            began = time.process_time()
            answer = coordinator.get(path)
            spent.append(time.process_time() - began)
        assert min(spent) < 1.0
        assert len(answer.body) < 1 << 20
    coordinator.close()
    parsed = Parsed(answer.body.decode())
    # A long text is cut; a path is none.
    assert max(len(tag.get("d", "")) for _, tag in parsed.tags) > page_module.MAX_TEXT_CHARS
    assert not [tag for _, tag in parsed.tags if "…" in tag.get("d", "")]
    text = parsed.text
    assert "The newest 60 rounds; curves show the newest 240" in text
    assert "Not drawn: family-" in text
    assert "150 silos" in text
    assert "and 146 more" in text


def test_many_who_look_are_one_who_asks(running, monkeypatch):
    monkeypatch.setattr("server.status_page.serve.FRESH_S", 3600.0)
    pages = running.pages
    first = pages(samples.request())
    assert pages(samples.request()) is first
    assert pages(samples.request("/?hold")) is not first
    monkeypatch.setattr("server.status_page.serve.FRESH_S", 0.0)
    assert pages(samples.request()) is not first


def test_nobody_waits_for_ever_for_somebody_elses_page(running, monkeypatch):
    monkeypatch.setattr("server.status_page.serve.PATIENCE_S", 0.05)
    pages = running.pages
    with pages.__self__._lock:
        answer = pages(samples.request())
    assert answer.status == 503
    assert "Another request is still being answered" in require_inert(answer.body.decode()).text
    assert pages(samples.request()).status == 200


def test_a_database_that_fails_is_said_and_tried_again(running):
    with sqlite3.connect(running.directory / "coordinator.db") as connection:
        connection.execute("ALTER TABLE runs RENAME TO gone")
    answer = running.get()
    assert (answer.status, answer.headers) == (503, page_module.HEADERS)
    parsed = require_inert(answer.body.decode())
    assert "The coordinator cannot be looked at" in parsed.text
    assert "chorale doctor" in parsed.text
    assert ("meta", {"http-equiv": "refresh", "content": "10"}) in parsed.tags
