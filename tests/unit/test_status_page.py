"""The status page: every state, every figure, and nothing that a hostile name could make of it."""

import asyncio
import base64
import dataclasses
import hashlib
import html
import math
import re
import sqlite3
import time
from html.parser import HTMLParser

import pytest

from server.errors import UnknownRunError
from server.figures import RoundFigures
from server.status_page import page as page_module
from server.status_page.picture import SiloView
from server.status_page.words import (
    ago,
    byte_count,
    clock,
    named,
    number,
    percent,
    short,
    span,
    took,
)
from server.store.runs import RunState
from tests.unit import server_world as sw
from tests.unit import status_page_samples as samples
from tests.unit.server_runs import in_phase, one_at_a_time

NOW = samples.NOW
VOID = {"meta", "link", "br"}


@pytest.fixture
def coordinator(tmp_path):
    made = samples.Coordinator(tmp_path)
    yield made
    made.close()


@pytest.fixture
def running(tmp_path):
    made = samples.in_a_run(tmp_path)
    yield made
    made.close()


class Parsed(HTMLParser):
    """The elements and the text of a page; an element that is not closed is an error."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.texts, self.ids = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == [], self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


def seen(coordinator, path="/"):
    return Parsed(coordinator.html(path))


def a_run_with(coordinator, *releases, of=20, **plan):
    """A run that is driven, after these releases of five silos."""
    coordinator.found()
    for silo_id in samples.SILOS:
        coordinator.enrol(silo_id)
    coordinator.publish(*samples.SILOS)
    row = coordinator.start(rounds=of, **plan)
    for index, values in enumerate(releases):
        coordinator.release(
            row.run_id,
            index + 1,
            **{"cohort": samples.SILOS, "begin_s": 300.0 * (len(releases) - index), **values},
        )
    coordinator.driver = samples.Driven(
        row=row,
        current=RoundFigures(round=len(releases) + 1, attempt=1, phase_since_unix_s=NOW - 5),
    )
    return row


# What it says -------------------------------------------------------------------------------------


def test_a_run_in_progress_answers_the_four_questions(running):
    text = seen(running).text
    assert "All is well" in text
    assert "Round 13 of 20: masked_input for 20 s, waiting for hospital-d." in text
    assert "Waiting for hospital-d heard 3 s ago for 20 s since 07:59:40 UTC" in text
    assert "deadline in 4 min 08:04:00 UTC" in text
    assert "Round 13 of 20 maze-and-wordle-4f2a is running" in text
    assert "75 % of the run's cap; 12 of 22 charged releases" in text
    assert "Silos heard of 5 of 5 a sum needs 3" in text


def test_rounds_say_only_what_did_not_go_as_it_should(running):
    text = seen(running, f"/runs/{running.driver.row.run_id}").text
    assert "4 of 5 in the sum; lost hospital-d" in text
    assert text.count("lost attempt") == 1
    assert "rolled back to round 7" in text
    assert text.count("in the sum; lost") == 1
    # A skipped round had no sum, so it names nobody.
    assert "1 dropout in 11 rounds, 1 without a sum" in text


def test_provenance_is_short_with_the_whole_digest_at_hand(running):
    whole = samples.digest(f"{running.driver.row.run_id} 12 0").hex()
    tags = seen(running).tags
    assert ("code", {"title": whole}) in tags
    text = seen(running).text
    assert f"12 {whole[:12]} sum of 5" in text
    assert "back to round 7" in text


def test_figures_stand_with_their_standard_error(running):
    text = seen(running).text
    assert re.search(r"maze 6\d\.\d % ± 2\.2", text)
    assert "Agreement κ 0.588 ± 0.04" in text
    descriptions = " ".join(seen(running).texts)
    assert re.search(r"From round 1 to 12: lowest 3\d\.\d % ± 2\.2, highest", descriptions)


def test_below_noise_is_a_dash_with_its_reason_and_a_gap(coordinator):
    known = {"success": {"maze": (0.4, 0.1)}, "agreement": 0.5, "agreement_error": 0.1}
    lost = {"success": {"maze": (math.nan, math.inf)}}
    a_run_with(coordinator, known, known, lost)
    text = seen(coordinator).text
    assert "maze —" in text
    assert "below noise now; 40.0 % ± 10.0 in round 2" in text
    assert "Agreement κ —" in text
    assert "Spread ζ̂² —" in text
    assert "below noise: the noise is larger than the figure" in text
    assert "nan" not in text.lower()
    assert not re.search(r"[ML ]-?(nan|inf)", coordinator.html())
    # Two points make one line; nothing is drawn to the third.
    lines = [tag["d"] for name, tag in seen(coordinator).tags if tag.get("class") == "line"]
    assert [line.count("L") for line in lines] == [1, 1]


def test_a_scale_ends_at_a_round_number_above_every_band(coordinator):
    spread = {"heterogeneity": 0.000031, "heterogeneity_error": 0.000002}
    a_run_with(coordinator, {**spread, "agreement": 1.2, "agreement_error": 0.1})
    tops = re.findall(r'class="top"[^>]*>([^<]*)<', coordinator.html())
    assert tops == ["2", "5e−5", "5"]


def test_where_nothing_was_above_the_noise_there_is_no_scale(coordinator):
    a_run_with(coordinator, {})
    assert re.findall(r'class="top"[^>]*>([^<]*)<', coordinator.html()) == ["1", "", "5"]


def test_figures_are_for_rounds_with_a_sum(coordinator):
    a_run_with(coordinator, {"outcome": "skipped", "survivors": ()})
    text = seen(coordinator).text
    assert "Round 1 ended without a sum" in text
    assert "Agreement κ — " in text
    assert "nothing was summed yet" in text
    assert "below noise" not in text


def test_a_run_without_noise_claims_no_budget(coordinator):
    a_run_with(coordinator, {}, mode="none", noise=0.0)
    text = seen(coordinator).text
    assert "Privacy spent no noise mode none" in text
    assert "ε ∞" not in text


def test_a_run_of_several_steps_names_them(coordinator):
    coordinator.found()
    row = coordinator.start(mode="record_distributed", noise=0.5, steps=3, optimiser="adam")
    for step in range(3):
        phases = dict(samples.PHASES_S)
        if step:
            del phases["training"]
        coordinator.release(
            row.run_id, 1, step=step, cohort=samples.SILOS, begin_s=1000 - 250 * step, phases=phases
        )
    text = seen(coordinator).text
    assert "not defined for sums of gradients (mode record_distributed)" in text
    assert "1, step 3" in text
    rounds = [tag for name, tag in seen(coordinator).tags if tag.get("class") == "bar"]
    assert len(rounds) == 1


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (RunState.QUEUED, "waits for its turn"),
        (RunState.PAUSED, "is paused for 2 h 30 min and waits for an admin. "),
        (RunState.FINISHED, "finished its 20 rounds 2 h 30 min ago"),
        (RunState.ABORTED, "was aborted 2 h 30 min ago"),
        (RunState.FAILED, "failed 2 h 30 min ago"),
    ],
)
def test_a_run_that_is_not_driven_says_what_it_waits_for(coordinator, state, said):
    coordinator.found()
    row = coordinator.start(state=state)
    text = seen(coordinator).text + " "
    assert said in text
    assert ("Waiting for nobody" in text) == (state not in {RunState.QUEUED, RunState.PAUSED})
    assert (f"chorale run resume {row.run_id}" in text) == (state is RunState.PAUSED)


def test_what_was_open_when_a_run_stopped_does_not_grow(coordinator):
    coordinator.found()
    row = coordinator.start(state=RunState.ABORTED, since_s=4000)
    coordinator.opened(row.run_id, 1, begin_s=4200, phases=("training",))
    (release,) = coordinator.observer.look(releases=5).run.releases
    assert release.length_s == pytest.approx(200)


def test_the_queue_is_in_its_order_and_the_driven_run_is_shown(coordinator):
    coordinator.found()
    coordinator.start("old-1", state=RunState.FINISHED, since_s=10)
    driven = coordinator.start("driven-1")
    for name in ("second-1", "third-1"):
        coordinator.start(name, state=RunState.QUEUED)
    coordinator.store.runs.set_state("third-1", RunState.PAUSED)
    coordinator.store.runs.set_state("third-1", RunState.QUEUED, first=True)
    picture = coordinator.observer.look(releases=5)
    assert picture.run.line.run_id == driven.run_id
    lines = [(line.run_id, line.behind) for line in picture.runs]
    assert lines == [
        ("driven-1", ""), ("third-1", "driven-1"), ("second-1", "third-1"), ("old-1", ""),
    ]  # fmt: skip


def test_a_plan_of_another_version_hides_no_other_run(coordinator):
    coordinator.found()
    coordinator.start("driven-1")
    coordinator.store.runs.create(
        run_id="ancient-1", name="x", plan=b"no plan", plan_sha256=b"", submit_token="x",
        state=RunState.FAILED,
    )  # fmt: skip
    text = seen(coordinator).text
    assert "ancient-1 failed" in text
    assert "0 of —" in text


# A real run ---------------------------------------------------------------------------------------


def test_a_run_of_real_sessions_is_seen_as_it_goes(tmp_path, monkeypatch):
    (tmp_path / "page").mkdir()
    shell = samples.Coordinator(tmp_path / "page")
    with one_at_a_time(tmp_path, monkeypatch) as world:
        from server.status_page.observer import Observer

        observer = Observer(
            context=world.context,
            trust=shell.trust,
            data_dir=tmp_path,
            shown=lambda: world.conductor.driver,
        )
        pictures = []

        async def look():
            pictures.append(observer.look(releases=10))

        done = in_phase(world, "masked_input", look, round_number=2)
        plan = sw.plan_toml(rounds=2, mode="silo", noise=0.01)
        asyncio.run(world.run(plan))
        assert done[0].done()
        pictures.append(observer.look(releases=10))
        driver = world.conductor.driver
    shell.close()
    during, after = (picture.run for picture in pictures)
    assert (during.current.round, during.current.phase) == (2, "masked_input")
    assert [one.silo_id for one in during.current.waited] == list(world.silos)
    assert during.current.deadline_unix_s > during.current.since_unix_s
    assert [release.outcome for release in during.releases] == ["aggregated", ""]
    assert during.releases[1].spans[-1].phase == "masked_input"
    assert (after.line.state, after.line.round, after.current) == (RunState.FINISHED, 2, None)
    assert [release.survivors for release in after.releases] == [3, 3]
    assert after.adapters[-1].sha256 == driver.head.adapter_sha256.hex()
    assert 0 < during.epsilon_spent <= after.epsilon_spent
    assert set(after.releases[0].success) == {"constant"}


# Nothing of one silo's learning -------------------------------------------------------------------


def test_of_a_silo_there_is_what_a_relay_knows(running):
    assert {field.name for field in dataclasses.fields(SiloView)} == {
        "silo_id", "state", "alive", "last_seen_unix_s", "certificate_end_unix_s", "waited",
    }  # fmt: skip
    # What a silo declares is not shown as its own either.
    running.store.silos.set_families("hospital-a", ("a-family-of-one-silo",))
    assert "a-family-of-one-silo" not in running.html()


# From nothing to the first run --------------------------------------------------------------------


def test_every_stage_of_founding_names_the_next_command(coordinator):
    def commands():
        return [" ".join(seen(coordinator).text.split())]

    (text,) = commands()
    assert "chorale federation create oncology --min-silos 3" in text
    assert "chorale invite FEDERATION hospital-a --ttl 24h" in text
    coordinator.found("cardiology")
    (text,) = commands()
    assert "federation create" not in text
    assert text.count("chorale invite cardiology hospital-a --ttl 24h") == 2
    for silo_id in samples.SILOS[:2]:
        coordinator.enrol(silo_id)
    coordinator.invite("hospital-c")
    (text,) = commands()
    assert "2 of at least 3 joined, 1 invited." in text
    assert "invited the invite ends in 20 h" in text
    coordinator.enrol("hospital-c")
    assert "chorale roster propose" in commands()[0]
    coordinator.publish(*samples.SILOS[:3])
    (text,) = commands()
    assert "chorale run plan plan.toml chorale run start plan.toml -f cardiology" in text
    assert "Nothing runs yet" in text
    coordinator.start()
    assert "To the first run" not in commands()[0]


# What cannot be forged ----------------------------------------------------------------------------

HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>&lt;\u202e\x1b[2J\n</style>"
TAGS = {
    "html", "head", "meta", "title", "link", "style", "body", "a", "header", "main", "footer",
    "section", "div", "span", "p", "h1", "h2", "h3", "ul", "ol", "li", "dl", "dt", "dd", "pre",
    "code", "strong", "br", "time", "table", "caption", "thead", "tbody", "tr", "th", "td",
    "figure", "figcaption", "svg", "desc", "path", "rect", "g",
}  # fmt: skip


def require_inert(text):
    parsed = Parsed(text)
    assert {name for name, _ in parsed.tags} <= TAGS
    for name, attributes in parsed.tags:
        assert not [key for key in attributes if key.startswith("on") or key == "style"], name
        target = attributes.get("href")
        if target is not None:
            assert re.match(r"/$|/\?hold$|#|/runs/[^/?#]+(\?hold)?$|data:image/svg", target), target
    assert not re.search(r"[\u202a-\u202e\u2066-\u2069\x00-\x08\x0b-\x1f]", text.replace("\n", ""))
    return parsed


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
    text = Parsed(answer.body.decode()).text
    assert "The newest 60 rounds; curves show the newest 240" in text
    assert "Not drawn: family-" in text
    assert "150 silos" in text
    assert "and 146 more" in text


def test_many_who_look_are_one_who_asks(running, monkeypatch):
    pages = running.pages
    first = pages(samples.request())
    assert pages(samples.request()) is first
    assert pages(samples.request("/?hold")) is not first
    monkeypatch.setattr("server.status_page.FRESH_S", 0.0)
    assert pages(samples.request()) is not first


def test_nobody_waits_for_ever_for_somebody_elses_page(running, monkeypatch):
    monkeypatch.setattr("server.status_page.PATIENCE_S", 0.05)
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


# Words --------------------------------------------------------------------------------------------


def test_times_are_short_and_in_utc():
    assert [span(s) for s in (-5, 0, 59.9, 60, 3599, 3600, 5400, 90000, 20 * 86400, math.inf)] == [
        "0 s", "0 s", "59 s", "1 min", "59 min 59 s", "1 h", "1 h 30 min", "1 d 1 h", "20 d", "0 s",
    ]  # fmt: skip
    assert [ago(t, NOW) for t in (0, NOW - 1, NOW - 65, NOW + 7200)] == [
        "never", "now", "1 min 5 s ago", "in 2 h",
    ]  # fmt: skip
    assert clock(NOW - 5, NOW) == "07:59:55 UTC"
    assert clock(NOW - 86400, NOW) == "2027-01-14 08:00 UTC"
    assert clock(1e300, NOW).startswith("9999-12-31")
    assert clock(0, NOW) == "—"


def test_figures_never_round_to_something_else():
    assert [percent(r) for r in (0, 0.001, 0.5, 0.9999, 1, 1.2, math.nan, math.inf)] == [
        "0 %", "1 %", "50 %", "99 %", "100 %", "120 %", "—", "∞",
    ]  # fmt: skip
    assert percent(0.99999, digits=1) == "99.9 %"
    assert [took(s) for s in (0.04, 0.26, 9.94, 9.96, 61.7)] == [
        "0.0 s", "0.3 s", "9.9 s", "9 s", "1 min 1 s",
    ]  # fmt: skip
    assert number(-1965.4) == "−1,965"
    assert [number(v) for v in (0.0, -0.5, 3.14159, 12345.6, 2.5e9, math.nan, math.inf)] == [
        "0", "−0.5", "3.14", "12,346", "2.50e+09", "—", "∞",
    ]  # fmt: skip
    assert [short(v) for v in (0, 1, 0.02, 0.001, 5e-5, 2e7)] == [
        "0", "1", "0.02", "0.001", "5e−5", "2e7",
    ]  # fmt: skip
    assert [byte_count(c) for c in (0, 1023, 1536, 5 << 30, 7 << 50)] == [
        "0 B", "1023 B", "1.5 KiB", "5.0 GiB", "7168.0 TiB",
    ]  # fmt: skip
    assert named(list("abc")) == "a, b, c"
    assert named(list("abcdef")) == "a, b, c, d and 2 more"
    assert html.escape(named([])) == ""
