"""Pre-flights as a silo answers them: real rules, ledger and files; the coordinator is the test.

A failure: an answer that depends on tasks, or on how often or by whom it is asked, that leaves at
another time than the fixed one, or a question beyond the day's that is judged.
"""

import json
import random
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

import silo_agent.daemon.preflight as desk_module
from dp.ledger.counts import DAY_S
from dp.ledger.ledger import Ledger
from federation.chain.preflight import (
    ANSWER_AFTER_S,
    ASKED_TOO_OFTEN,
    REASONS,
    Preflight,
    Verdict,
)
from federation.errors import PlanError
from federation.plan.negotiation import Offer, amend
from federation.plan.plan import plan_sha256
from federation.plan.read import read_plan
from federation.wire import preflight_answer_to_proto, preflight_to_proto
from secagg import suite
from silo_agent.books.audit import AUDIT_FILE
from silo_agent.books.departure import Departure, Leaving
from silo_agent.books.preflights import PREFLIGHTS_FILE
from silo_agent.config import SiloConfig
from silo_agent.daemon.audited import open_audit
from silo_agent.daemon.gate import Gate
from silo_agent.daemon.preflight import PreflightDesk
from silo_agent.machine.machine import site_of
from silo_agent.metrics import SiloMetrics
from silo_agent.policy.plan import TASK_RULES
from silo_agent.policy.policy import FIRST_WORD
from silo_agent.policy.refusal import AFTER_NONE, ATTEMPTS_PER_DAY, EPSILON_CAP, RUN_ATTEMPTS
from tests.kit.secagg.secagg_samples import COORDINATOR_KEY, make_roster, signed_roster, signing_key
from tests.kit.silo_agent.policy_samples import (
    ACCEPTED_NONE,
    ALLOW_EXACT,
    BASE,
    EXACT,
    MODES,
    NOW_UNIX_S,
    PLAN,
    SITE,
    make_policy,
)
from tests.kit.waiting import until

ME = "silo-000"
ROSTER = signed_roster(make_roster())
MANUAL = ("\n[models]", '\n[policy]\napproval = "manual"\n[models]')
AT_ANY_TIME = ('hours_utc = "07:30-08:30"', "")
TOO_FEW_ROUNDS = ("max_rounds = 5", "max_rounds = 4")


class Hands:
    """A clock that moves only where it is waited for, so that a busy machine makes nobody late."""

    def __init__(self):
        self.now_s, self.stopped = 100.0, False

    def monotonic(self):
        return self.now_s

    def wait(self, timeout_s):
        self.now_s += timeout_s
        return self.stopped

    def is_set(self):
        return self.stopped

    def set(self):
        self.stopped = True


class Silo:
    """One silo's desk, and all that it says and asks."""

    def __init__(self, directory, policy=None, *, site=SITE, silo_id=ME, most=20):
        self.directory, self.silo_id = directory, silo_id
        self.policy = policy or make_policy(AT_ANY_TIME)
        self.site, self.most = site, most
        self.plans, self.fetched = {}, []
        self.answers, self.left_s = [], []
        self.now = float(NOW_UNIX_S)
        self.hands = desk_module.time if isinstance(desk_module.time, Hands) else threading.Event()
        self.metrics = SiloMetrics()
        self.signing_key = signing_key(silo_id)
        self.start()

    def start(self):
        self.ledger = Ledger.open(
            self.directory / "privacy.ledger",
            delta=self.policy.privacy.delta,
            caps=self.policy.privacy.caps(),
        )
        self.gate = Gate(self.directory, self.policy, self.metrics)
        self.stopping = self.hands
        self.desk = PreflightDesk(
            data_dir=self.directory,
            identity=self,
            coordinator=self,
            audit=open_audit(self.directory, lambda: self, self.metrics),
            metrics=self.metrics,
            stopping=self.stopping,
            most_per_day=self.most,
            roster_of=self.roster,
            judge=lambda asked, plan: self.gate.judge_preflight(
                asked, plan, site=self.site, ledger=self.ledger
            ),
            clock=lambda: self.now,
        )

    def restart(self, policy=None):
        self.close()
        self.hands.stopped = False
        self.policy = policy or self.policy
        self.start()

    def close(self):
        self.stopping.set()
        self.desk.close()
        self.ledger.close()

    def roster(self, sha256):
        assert sha256 == ROSTER.roster.sha256, "another roster"
        return ROSTER

    def plan(self, sha256):
        self.fetched.append(sha256)
        return self.plans[sha256]

    def answer_preflight(self, answer):
        self.left_s.append(desk_module.time.monotonic())
        self.answers.append(answer)

    def question(self, plan=PLAN, token="t", key=COORDINATOR_KEY):
        toml = plan.encode()
        self.plans[plan_sha256(toml)] = toml
        return Preflight(
            plan_sha256=plan_sha256(toml), roster_sha256=ROSTER.roster.sha256, submit_token=token
        ).sign(key)

    def ask(self, plan=PLAN, token="t", key=COORDINATOR_KEY):
        """The answer and how long it took; None where nothing left."""
        before, came_s = len(self.answers), desk_module.time.monotonic()
        self.desk.hear(preflight_to_proto(self.question(plan, token, key)))
        self.desk.close()
        if len(self.answers) == before:
            return None, 0.0
        return self.answers[-1], self.left_s[-1] - came_s

    def judge(self, plan, token="t"):
        """The verdict at once; the delay and the day's limit apart."""
        return self.desk._answer(self.question(plan, token))

    def events(self):
        return (self.directory / AUDIT_FILE).read_text()

    def errors(self, kind):
        return self.metrics.registry.get_sample_value("chorale_silo_errors_total", {"kind": kind})


@pytest.fixture(autouse=True)
def hands(monkeypatch):
    monkeypatch.setattr(desk_module, "time", Hands())
    return desk_module.time


@pytest.fixture
def silo(tmp_path):
    made = []

    def make(policy=None, name="a", **options):
        directory = tmp_path / name
        directory.mkdir()
        made.append(Silo(directory, policy, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_the_closed_list_is_what_a_refused_task_says():
    said = {rule.name: rule.public_reason for rule in (*FIRST_WORD, *TASK_RULES)}
    # Nobody looks at the machine before a task, and how long work took is data.
    del said["hardware"], said["time_passed"]
    budget = {AFTER_NONE, EPSILON_CAP, ATTEMPTS_PER_DAY, RUN_ATTEMPTS}
    assert {name: text for name, text in REASONS.items() if name in said} == said
    assert set(REASONS) == {*said, *budget, ASKED_TOO_OFTEN}


def test_a_silo_accepts_waits_or_refuses_by_the_rule_that_a_task_would_meet(silo):
    answer, _ = silo().ask()
    assert (answer.verdict, answer.rule) == (Verdict.ACCEPT, "")
    answer.verify(suite.verification_key(signing_key(ME)))
    waits, _ = silo(make_policy(AT_ANY_TIME, MANUAL), "b").ask()
    assert (waits.verdict, waits.rule) == (Verdict.WAITS_FOR_APPROVAL, "")
    refuses, _ = silo(make_policy(AT_ANY_TIME, TOO_FEW_ROUNDS), "c").ask()
    assert (refuses.verdict, refuses.rule) == (Verdict.REFUSE, "rounds")
    # Nobody is asked to approve what cannot be paid for.
    poor = make_policy(
        AT_ANY_TIME, MANUAL, ("max_attempts_per_day = 60", "max_attempts_per_day = 0")
    )
    broke, _ = silo(poor, "d").ask()
    assert (broke.verdict, broke.rule) == (Verdict.REFUSE, ATTEMPTS_PER_DAY)
    leaving = silo(name="e")
    Departure(leaving.directory).set(Leaving(drain=False, by="ada", at_unix_s=1))
    assert leaving.ask()[0].rule == "leaving"


def test_the_same_question_gets_the_stored_answer_whatever_the_policy_says_by_then(silo):
    one = silo(make_policy(AT_ANY_TIME, TOO_FEW_ROUNDS))
    first, _ = one.ask()
    assert first.rule == "rounds"
    judged = one.events().count('"preflight_answered"')
    one.restart(make_policy(AT_ANY_TIME))
    again, _ = one.ask()
    assert again == first
    assert preflight_bytes(again) == preflight_bytes(first)
    assert one.events().count('"preflight_answered"') == judged == 1
    # Under another name it is another question, and takes one more of the day's.
    assert one.ask(token="u")[0].verdict is Verdict.ACCEPT
    assert len((one.directory / PREFLIGHTS_FILE).read_text().splitlines()) == 2


RANGES = "\n[negotiation]\nleast_epsilon = 2.0\nstart_within_s = 86400\n"
LESS = ("max_epsilon_per_run = 6.0", "max_epsilon_per_run = 3.1")
OFFERS = ("\n[limits]", "\n[offers]\nepsilon = true\nstart = true\n[limits]")


def test_an_offer_is_signed_kept_and_audited_and_leaves_at_the_same_moment(silo):
    one = silo(make_policy(AT_ANY_TIME, LESS, OFFERS))
    first, took_s = one.ask(PLAN + RANGES)
    assert (first.verdict, first.rule) == (Verdict.OFFER, "epsilon_per_run")
    assert first.offer == Offer(epsilon_quarters=12)
    assert took_s == pytest.approx(ANSWER_AFTER_S, abs=1e-9)
    first.verify(suite.verification_key(signing_key(ME)))
    noted = json.loads(one.events().splitlines()[-1])["details"]
    assert (noted["verdict"], noted["epsilon_quarters"]) == ("offer", 12)
    assert "local_epochs" not in noted
    one.restart(make_policy(AT_ANY_TIME))
    again, _ = one.ask(PLAN + RANGES)
    assert preflight_bytes(again) == preflight_bytes(first)
    # The amended plan is another question.
    amended = amend((PLAN + RANGES).encode(), {ME: first.offer}, now_unix_s=NOW_UNIX_S)
    one.restart(make_policy(AT_ANY_TIME, LESS, OFFERS))
    assert one.ask(amended.plan_toml.decode())[0].verdict is Verdict.ACCEPT
    # Who did not opt in, or was asked too often, offers nothing.
    assert silo(make_policy(AT_ANY_TIME, LESS), "b").ask(PLAN + RANGES)[0].offer is None
    tired = silo(make_policy(AT_ANY_TIME, LESS, OFFERS), "c", most=0)
    assert tired.ask(PLAN + RANGES)[0].rule == ASKED_TOO_OFTEN
    assert tired.ask(PLAN + RANGES)[0].offer is None


def preflight_bytes(answer):
    return preflight_answer_to_proto(answer).SerializeToString(deterministic=True)


def test_a_coordinator_learns_no_more_than_a_day_allows_over_all_plans_and_tokens(silo):
    one = silo(most=3)
    for token in ("a", "b"):
        assert one.ask(token=token)[0].verdict is Verdict.ACCEPT
    other = PLAN.replace('name = "sample"', 'name = "other"')
    assert one.ask(other)[0].verdict is Verdict.ACCEPT
    fetched = len(one.fetched)
    # Beyond that it makes no difference what is asked, and no plan is even read.
    refused = [
        one.ask(PLAN.replace("count = 5", f"count = {count}"), token)[0]
        for count, token in ((1, "c"), (500, "d"))
    ]
    assert {(answer.verdict, answer.rule) for answer in refused} == {
        (Verdict.REFUSE, ASKED_TOO_OFTEN)
    }
    one.restart()
    one.now -= 10 * DAY_S
    assert one.ask(token="e")[0].rule == ASKED_TOO_OFTEN
    assert len(one.fetched) == fetched
    # What was answered is answered as it was.
    assert one.ask(token="a")[0].verdict is Verdict.ACCEPT
    one.now += 11 * DAY_S
    assert one.ask(token="f")[0].verdict is Verdict.ACCEPT


def test_asking_too_often_adds_one_record_a_day(silo):
    one = silo(most=0)
    for number in range(4):
        assert one.ask(token=f"t{number}")[0].rule == ASKED_TOO_OFTEN
    assert one.events().count('"preflight_answered"') == 1


def slowed(silo, hands, monkeypatch, takes_s):
    """A silo whose judgement takes so long."""
    real = silo.gate.judge_preflight

    def slow(*arguments, **named):
        hands.now_s += takes_s
        return real(*arguments, **named)

    monkeypatch.setattr(silo.gate, "judge_preflight", slow)
    return silo


def test_every_answer_leaves_at_one_moment(silo, hands, monkeypatch):
    accepts = slowed(silo(most=1), hands, monkeypatch, 0.9)
    policy = make_policy(AT_ANY_TIME, TOO_FEW_ROUNDS)
    refuses = slowed(silo(policy, "b"), hands, monkeypatch, 0.001)
    took = {
        "accept": accepts.ask()[1],
        "stored": accepts.ask()[1],
        "too often": accepts.ask(token="u")[1],
        "refuse": refuses.ask()[1],
    }
    assert took == dict.fromkeys(took, pytest.approx(ANSWER_AFTER_S, abs=1e-9))


def test_what_is_judged_too_late_is_not_sent_until_it_is_asked_again(silo, hands, monkeypatch):
    one = slowed(silo(), hands, monkeypatch, ANSWER_AFTER_S * 1.1)
    assert one.ask()[0] is None
    assert one.errors("PreflightLateError") == 1
    assert one.ask()[0].verdict is Verdict.ACCEPT


def test_another_key_is_answered_by_nothing_and_costs_nothing(silo):
    one = silo()
    assert one.ask(key=signing_key("mallory"))[0] is None
    assert one.errors("ChainError") == 1
    assert (one.fetched, (one.directory / PREFLIGHTS_FILE).exists()) == ([], False)
    # Nor is an answer that is stored given to it.
    assert one.ask()[0].verdict is Verdict.ACCEPT
    assert one.ask(key=signing_key("mallory"))[0] is None
    # Nor does a malformed question, or one about something that is no plan, end anything.
    message = preflight_to_proto(one.question())
    message.plan_sha256 = b"short"
    one.desk.hear(message)
    one.desk.close()
    assert one.ask("no plan", token="n")[0] is None
    assert one.errors(PlanError.__name__) == 1
    assert one.ask(token="u")[0].verdict is Verdict.ACCEPT


def test_one_question_at_a_time_and_the_poll_never_waits(silo, monkeypatch):
    monkeypatch.setattr(desk_module, "time", time)
    one = silo()
    before_s = time.monotonic()
    for token in ("a", "b", "c"):
        one.desk.hear(preflight_to_proto(one.question(token=token)))
    assert time.monotonic() - before_s < ANSWER_AFTER_S
    until(lambda: one.answers, "it answers")
    one.desk.close()
    assert [answer.preflight_sha256 for answer in one.answers] == [one.question(token="a").sha256]


def test_a_machine_without_a_thread_to_spare_costs_that_question_alone(silo, monkeypatch):
    one = silo()

    def none_left(_thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none_left)
        one.desk.hear(preflight_to_proto(one.question()))
    one.desk.close()
    assert one.answers == []
    one.desk.hear(preflight_to_proto(one.question()))
    one.desk.close()
    assert len(one.answers) == 1


def test_a_stopping_daemon_sends_nothing_more(silo, monkeypatch):
    monkeypatch.setattr(desk_module, "time", time)
    one = silo()
    one.desk.hear(preflight_to_proto(one.question()))
    one.stopping.set()
    one.desk.close()
    assert one.answers == []


# Two silos that differ in their tasks only --------------------------------------------------------


def plans(seed, count):
    """Plans of every mode around the edges of the policy, so that many rules fire for some."""
    draw = random.Random(seed)  # noqa: S311
    edges = (
        ("count = 5", lambda: f"count = {draw.choice((1, 5, 6))}"),
        ("\nn_min = 3", lambda: f"\nn_min = {draw.choice((3, 4))}"),
        ("episodes_per_round = 128", lambda: f"episodes_per_round = {draw.choice((4, 128, 256))}"),
        ("clip_l2 = 2.0", lambda: f"clip_l2 = {draw.choice((1.0, 2.0, 3.0))}"),
        (
            "\nnoise_multiplier = 4.0",
            lambda: f"\nnoise_multiplier = {draw.choice((2.0, 4.0, 9.0))}",
        ),
        ('method = "fed-se"', lambda: f'method = "{draw.choice(("fed-se", "constant"))}"'),
        ('["craft", "maze"]', lambda: draw.choice(('["craft"]', '["maze"]', '["craft", "shop"]'))),
        ("ready_deadline_s = 300", lambda: f"ready_deadline_s = {draw.choice((300, 7200))}"),
        (f'"{BASE.hex()}"', lambda: f'"{draw.choice(("ab", "cd")) * 32}"'),
    )
    made = set()
    while len(made) < count:
        text = PLAN
        mode = draw.choice((*MODES, "silo", "silo"))
        for old, new in MODES[mode]:
            text = text.replace(old, new)
        if mode == "none" and draw.random() < 0.5:
            text = text.replace(*EXACT)
        if draw.random() < 0.04:
            text += RANGES if mode != "none" else RANGES.replace("least_epsilon = 2.0\n", "")
        for old, new in edges:
            if draw.random() < 0.15:
                text = text.replace(old, new(), 1)
        text = text.replace('name = "sample"', f'name = "sample{len(made)}"')
        try:
            read_plan(text.encode())
        except PlanError:
            continue
        made.add(text)
    return sorted(made)


def configured(name, share):
    entries = [
        {"environment": environment, "declared_tasks": declared, **share}
        for environment, declared in (("craft", 400), ("maze", 30))
    ]
    return SiloConfig.model_validate({"data_dir": name, "environments": entries})


def test_silos_that_differ_in_their_tasks_only_answer_a_thousand_plans_alike(silo, monkeypatch):
    # A thousand durable writes twice are not what this is about.
    monkeypatch.setattr("os.fsync", lambda _: None)
    monkeypatch.setattr("silo_agent.books.preflights.replace_file", lambda *_: None)
    policy = make_policy(
        AT_ANY_TIME,
        ('modes = ["silo"]', 'modes = ["silo", "none", "record_local"]'),
        *ACCEPTED_NONE,
        ALLOW_EXACT,
        LESS,
        OFFERS,
        ("max_rounds = 5", "max_rounds = 5\nmax_local_hours_per_round = 1.0"),
    )
    # One has a sixty-fourth of the tasks that the other has, and both declare as many.
    few, many = (
        silo(
            policy,
            name,
            most=1000,
            site=replace(site_of(configured(name, share)), base_sha256=BASE),
        )
        for name, share in (("few", {"shard_index": 0, "shard_count": 64}), ("many", {}))
    )
    for one, tasks in ((few, 1), (many, 5000)):
        # What exploring leaves behind.
        (one.directory / "experts.sqlite").write_bytes(bytes(tasks))
        (one.directory / "rounds.jsonl").write_text(f'{{"episodes": {tasks}}}\n' * tasks)
    rules = set()
    for number, plan in enumerate(plans(7, 1000)):
        said = [one.judge(plan, token=str(number)) for one in (few, many)]
        assert preflight_bytes(said[0]) == preflight_bytes(said[1]), plan
        rules.add(said[0].rule or said[0].verdict.value)
        rules.add(said[0].verdict.value)
    assert {
        "accept",
        "offer",
        "rounds",
        "clip",
        "episodes",
        "declared_tasks",
        "base_model_match",
    } <= rules
    assert len(rules) >= 10, rules


def test_judging_opens_no_store(silo):
    """Of all files of the silo, the operator's words alone are looked at."""
    one = silo()
    asked, plan = one.question(), read_plan(PLAN.encode())
    watching, opened = threading.Event(), []

    def watch(event, arguments):
        if watching.is_set() and event in {"open", "sqlite3.connect", "os.listdir", "os.scandir"}:
            opened.append(str(arguments[0]))

    sys.addaudithook(watch)
    watching.set()
    try:
        decision = one.gate.judge_preflight(asked, plan, site=SITE, ledger=one.ledger)
    finally:
        watching.clear()
    assert decision.accepted
    assert {Path(path).name for path in opened} <= {"leaving.json", "approvals.lock"}
