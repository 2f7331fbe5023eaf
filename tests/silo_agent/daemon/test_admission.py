"""What must hold before this silo works or shows a key: the budget and the place in the chain."""

from collections.abc import Mapping
from types import SimpleNamespace

import pytest

from dp.accounting.charge import attempt_charges, run_charges
from dp.accounting.compose import epsilon_of
from dp.ledger.counts import RunDebits
from dp.ledger.ledger import Ledger, LedgerEntry
from federation.chain.record import Place
from federation.chain.task import ATTEMPTS_USED_UP, PASSING_REASONS
from federation.plan.charges import charges_of_run
from secagg.descriptor import AggregationId
from secagg.errors import Check
from silo_agent.books.ledger import (
    require_after_none,
    require_attempt_budget,
    require_budget,
    require_unsigned,
)
from silo_agent.errors import PolicyRefusalError, SessionError
from silo_agent.follow.published import require_head, require_next
from silo_agent.policy.document import LimitsSection, Policy, PrivacySection
from silo_agent.policy.refusal import DAEMON_RULES
from tests.kit.dp.ledgers import none_entry
from tests.kit.federation.adapters import record_plan
from tests.kit.server import world_plan as swp

STEPPED = record_plan("record_distributed")
LOCAL = record_plan("record_local")
SILO = swp.parsed(swp.plan_toml(mode="silo", noise=2.0))
NONE = swp.parsed(swp.plan_toml())
DIGEST = bytes([1]) * 32
LIMITS = LimitsSection(max_attempts_per_day=5)


def at(*, run="run-1", step=0):
    return AggregationId(run_id=run, round=1, step=step, part=0, attempt=1)


@pytest.fixture
def ledger_of(tmp_path):
    opened = []

    def open_(**caps):
        opened.append(Ledger.open(tmp_path / str(len(opened)), delta=1e-5, caps=caps))
        return opened[-1]

    yield open_
    for ledger in opened:
        ledger.close()


def needed(plan, *, releases, first_steps):
    charges = run_charges(plan.spec, releases=releases, first_steps=first_steps)
    return epsilon_of(charges, 1e-5)


@pytest.mark.parametrize(
    ("plan", "releases"), [(SILO, 1), (LOCAL, 1), (STEPPED, 3)], ids=["silo", "local", "stepped"]
)
def test_a_round_begins_only_if_all_of_it_can_be_charged(ledger_of, plan, releases):
    """Steps of record_distributed, and training with one attempt of record_local, all at once."""
    costs = needed(plan, releases=releases, first_steps=1)
    require_budget(ledger_of(**costs), plan, LIMITS, task_at(1, 0))
    for unit in costs:
        short = {**costs, unit: costs[unit] * 0.999}
        with pytest.raises(PolicyRefusalError) as refused:
            require_budget(ledger_of(**short), plan, LIMITS, task_at(1, 0))
        assert refused.value.public_reason == "budget"
        assert refused.value.rule == "epsilon_cap"
        assert unit in refused.value.detail


def test_a_unit_without_a_cap_cannot_be_charged(ledger_of):
    with pytest.raises(PolicyRefusalError, match="task"):
        require_budget(ledger_of(silo=1e9, user=1e9), STEPPED, LIMITS, task_at(1, 0))


def test_without_protection_nothing_is_charged(ledger_of):
    ledger = ledger_of()
    require_budget(ledger, NONE, LIMITS, task_at(1, 0))
    require_attempt_budget(ledger, NONE, LIMITS, at(step=0))


def test_a_later_step_needs_room_for_itself_alone(ledger_of):
    """What is left after spare attempts is used to its end, and not a step further."""
    spec = STEPPED.spec
    cost = epsilon_of(attempt_charges(spec, step=1), 1e-5)["task"]
    ledger = ledger_of(task=cost)
    require_budget(ledger, STEPPED, LIMITS, task_at(1, 1))
    require_attempt_budget(ledger, STEPPED, LIMITS, at(step=1))
    with pytest.raises(PolicyRefusalError):
        require_budget(ledger, STEPPED, LIMITS, task_at(1, 0))
    with pytest.raises(PolicyRefusalError):
        # Step 0's block carries figures, so its attempt costs more.
        require_attempt_budget(ledger, STEPPED, LIMITS, at(step=0))


# The day -----------------------------------------------------------------------------------------


class BusyLedger:
    """So many debits today, and this training charged."""

    caps: Mapping[str, float] = {}

    def __init__(self, debits, trained=()):
        self.debits_today = lambda: debits
        self.has_trained = lambda run, number: (run, number) in trained
        self.debits_of_run = lambda _run: RunDebits()
        self.projected_epsilons = lambda _charges: pytest.fail("the day comes first")


def test_the_days_attempts_are_refused_in_words_that_pass_by_themselves(ledger_of):
    ledger = ledger_of()
    require_attempt_budget(ledger, NONE, LimitsSection(max_attempts_per_day=1), at(step=0))
    for number in range(1, 6):
        require_budget(ledger, NONE, LIMITS, task_at(number, 0))
        require_attempt_budget(ledger, NONE, LIMITS, at(step=0))
        ledger.reserve(none_entry(number))
    for refuse in (
        lambda: require_budget(ledger, NONE, LIMITS, task_at(6, 0)),
        lambda: require_attempt_budget(ledger, NONE, LIMITS, at(step=0)),
    ):
        with pytest.raises(PolicyRefusalError, match="max_attempts_per_day 5") as refused:
            refuse()
        assert refused.value.rule == "attempts_per_day"
        assert refused.value.rule in DAEMON_RULES
        # The same text whoever asks: it says nothing of how many there were.
        assert refused.value.public_reason == ATTEMPTS_USED_UP
        assert refused.value.public_reason in PASSING_REASONS


@pytest.mark.parametrize("plan", [SILO, LOCAL, STEPPED], ids=["silo", "local", "stepped"])
@pytest.mark.parametrize("ask", ["task", "descriptor"])
def test_the_day_is_asked_before_the_budget(plan, ask):
    refuse = {
        "task": lambda: require_budget(BusyLedger(5), plan, LIMITS, task_at(1, 0)),
        "descriptor": lambda: require_attempt_budget(BusyLedger(5), plan, LIMITS, at(step=0)),
    }
    with pytest.raises(PolicyRefusalError) as refused:
        refuse[ask]()
    assert refused.value.rule == "attempts_per_day"


def test_a_first_step_with_local_training_needs_room_for_training_and_upload(ledger_of):
    task, limits = task_at(2, 0), LimitsSection(max_attempts_per_day=1)
    with pytest.raises(PolicyRefusalError) as refused:
        require_budget(BusyLedger(0), LOCAL, limits, task)
    assert refused.value.rule == "attempts_per_day"
    ledger = ledger_of(task=1e9, silo=1e9)
    require_budget(ledger, LOCAL, LimitsSection(max_attempts_per_day=2), task)
    ledger.reserve_training(run="run-1", round=2, spec=LOCAL.spec, adapter_sha256=bytes(32))
    # The training of this round is charged, so what is left is its upload.
    require_budget(ledger, LOCAL, LimitsSection(max_attempts_per_day=2), task)
    with pytest.raises(PolicyRefusalError):
        require_budget(ledger, LOCAL, limits, task)
    with pytest.raises(PolicyRefusalError):
        require_budget(ledger, LOCAL, LimitsSection(max_attempts_per_day=2), task_at(3, 0))


def test_a_policy_that_names_no_number_allows_none(ledger_of):
    assert Policy.parse(b"").limits.max_attempts_per_day == 0
    with pytest.raises(PolicyRefusalError):
        require_attempt_budget(ledger_of(), NONE, Policy.parse(b"").limits, at(step=0))


# The run -----------------------------------------------------------------------------------------


def charged_silo(ledger, plan, number, *, step=0, attempt=1):
    """One attempt that reached the upload."""
    spec = plan.spec
    ledger.reserve(
        LedgerEntry(
            run="run-1",
            round=number,
            attempt=attempt,
            step=step,
            part=0,
            mode=spec.mode,
            charges=attempt_charges(spec, step=step),
            dimension=4,
            descriptor_sha256=DIGEST,
        )
    )


@pytest.mark.parametrize("plan", [SILO, STEPPED], ids=["silo", "stepped"])
def test_a_run_is_charged_for_as_many_attempts_as_its_plan_states_and_no_more(ledger_of, plan):
    """The site's ceilings for one run are on what the plan states; attempts are what it costs."""
    unlimited = LimitsSection(max_attempts_per_day=10_000)
    ledger = ledger_of(task=1e9, silo=1e9)
    stated = epsilon_of(charges_of_run(plan), 1e-5)

    def ask(step):
        require_budget(ledger, plan, unlimited, task_at(2 - min(step, 1), step))
        require_attempt_budget(ledger, plan, unlimited, at(step=step))

    for attempt in range(plan.charged_releases):
        # A coordinator that tries one sum again and again, of a later step as long as it can.
        later = attempt < plan.charged_releases - plan.first_steps
        step = min(int(later), plan.sums_per_round - 1)
        ask(step)
        charged_silo(ledger, plan, 2 - min(step, 1), step=step, attempt=attempt)
    with pytest.raises(PolicyRefusalError) as refused:
        ask(0)
    assert refused.value.rule == "run_attempts"
    assert refused.value.rule in DAEMON_RULES
    assert refused.value.public_reason not in PASSING_REASONS
    assert not any(character.isdigit() for character in refused.value.public_reason)
    spent = ledger.spent_epsilons()
    assert all(spent[unit] <= epsilon * (1 + 1e-9) for unit, epsilon in stated.items())
    with pytest.raises(PolicyRefusalError, match="states epsilon for"):
        require_attempt_budget(ledger, plan, unlimited, at(step=0))
    # Another run has its own.
    require_attempt_budget(ledger, plan, unlimited, at(run="run-2"))


def test_first_steps_have_a_share_of_their_own(ledger_of):
    """Figures go up with them, and the plan states epsilon for so many metrics blocks."""
    unlimited, ledger = LimitsSection(max_attempts_per_day=1000), ledger_of(task=1e9)
    for attempt in range(STEPPED.first_steps):
        require_attempt_budget(ledger, STEPPED, unlimited, at())
        charged_silo(ledger, STEPPED, 1, attempt=attempt)
    assert STEPPED.first_steps < STEPPED.charged_releases
    for refuse in (
        lambda: require_budget(ledger, STEPPED, unlimited, task_at(2, 0)),
        lambda: require_attempt_budget(ledger, STEPPED, unlimited, at()),
    ):
        with pytest.raises(PolicyRefusalError, match="first step") as refused:
            refuse()
        assert refused.value.rule == "run_attempts"
    require_attempt_budget(ledger, STEPPED, unlimited, at(step=1))


def test_no_more_trainings_begin_than_the_plan_states(ledger_of):
    unlimited, ledger = LimitsSection(max_attempts_per_day=1000), ledger_of(task=1e9, silo=1e9)
    for _ in range(LOCAL.charged_releases):
        require_budget(ledger, LOCAL, unlimited, task_at(1, 0))
        ledger.reserve_training(run="run-1", round=1, spec=LOCAL.spec, adapter_sha256=bytes(32))
    with pytest.raises(PolicyRefusalError, match="trainings") as refused:
        require_budget(ledger, LOCAL, unlimited, task_at(2, 0))
    assert refused.value.rule == "run_attempts"
    # What was trained may still go up.
    require_budget(ledger, LOCAL, unlimited, task_at(1, 0))


def test_a_cap_of_zero_allows_nothing_that_epsilon_rounds_to_zero(ledger_of):
    for cap, accepted in ((0.0, False), (1e-300, True)):
        ledger = ledger_of(silo=cap)
        ledger.projected_epsilons = lambda _charges: {"silo": 0.0}
        if accepted:
            require_attempt_budget(ledger, SILO, LIMITS, at())
            continue
        with pytest.raises(PolicyRefusalError) as refused:
            require_attempt_budget(ledger, SILO, LIMITS, at())
        assert refused.value.rule == "epsilon_cap"


def test_noise_after_an_upload_without_any_needs_the_policys_word(ledger_of):
    ledger = ledger_of(silo=1e9, task=1e9)
    open_, closed = (PrivacySection(after_none=allowed) for allowed in (True, False))
    for plan in (NONE, SILO, LOCAL, STEPPED):
        require_after_none(ledger, plan, closed)
    ledger.reserve(none_entry(1))
    for plan in (SILO, LOCAL, STEPPED):
        require_after_none(ledger, plan, open_)
        with pytest.raises(PolicyRefusalError, match="after_none = true") as refused:
            require_after_none(ledger, plan, closed)
        assert (refused.value.rule, refused.value.rule in DAEMON_RULES) == ("after_none", True)
        assert refused.value.public_reason == (
            "the site's policy does not allow noise after an upload without any"
        )
    # Mode none itself is a decision that was taken already.
    require_after_none(ledger, NONE, closed)
    assert Policy.parse(b"").privacy.after_none is False


def test_a_named_kind_inside_the_protected_one_is_refused_before_any_work(ledger_of):
    costs = needed(SILO, releases=1, first_steps=1)
    assert costs["task"] > costs["silo"]
    require_budget(ledger_of(silo=costs["silo"]), SILO, LIMITS, task_at(1, 0))
    short = ledger_of(silo=costs["silo"], task=costs["task"] * 0.999)
    for refused_by in (
        lambda: require_budget(short, SILO, LIMITS, task_at(1, 0)),
        lambda: require_attempt_budget(short, SILO, LIMITS, at()),
    ):
        with pytest.raises(PolicyRefusalError, match="projected task-level epsilon") as refused:
            refused_by()
        assert refused.value.rule == "epsilon_cap"


# The place in the chain --------------------------------------------------------------------------


def head_at(number, step, suite=1):
    place = Place(number, step)
    return SimpleNamespace(
        run_id="run-1", place=place, adapter_sha256=DIGEST, plan_sha256=DIGEST, suite=suite
    )


def task_at(number, step, **change):
    fields = {"run_id": "run-1", "adapter_sha256": DIGEST, "plan_sha256": DIGEST, "invited": ()}
    fields |= change
    return SimpleNamespace(round=number, step=step, **fields)


def descriptor_at(number, step, suite=1, **change):
    said = task_at(number, step, **change)
    return SimpleNamespace(
        identity=SimpleNamespace(run_id=said.run_id, round=number, step=step),
        adapter_sha256=said.adapter_sha256,
        plan_sha256=said.plan_sha256,
        suite=suite,
    )


@pytest.mark.parametrize(
    ("head", "follows"),
    [((0, 0), (1, 0)), ((1, 0), (1, 1)), ((1, 2), (2, 0)), ((4, 1), (4, 2))],
)
def test_only_the_step_after_the_adopted_head_follows(head, follows):
    for number in range(6):
        for step in range(4):
            if (number, step) == follows:
                require_next(task_at(number, step), STEPPED, head_at(*head))
                require_head(descriptor_at(number, step), STEPPED, head_at(*head))
                continue
            with pytest.raises(SessionError, match="follow"):
                require_next(task_at(number, step), STEPPED, head_at(*head))
            with pytest.raises(SessionError, match="follow"):
                require_head(descriptor_at(number, step), STEPPED, head_at(*head))


@pytest.mark.parametrize("field", ["adapter_sha256", "plan_sha256"])
def test_another_adapter_or_plan_does_not_follow(field):
    change = {field: bytes(32)}
    with pytest.raises(SessionError, match="another"):
        require_next(task_at(1, 1, **change), STEPPED, head_at(1, 0))
    with pytest.raises(SessionError, match="another"):
        require_head(descriptor_at(1, 1, **change), STEPPED, head_at(1, 0))


@pytest.mark.parametrize("suite", [1, 2])
def test_a_run_keeps_its_suite_whatever_the_site_accepts(suite):
    head = head_at(1, 0, suite)
    of_suite = {1: (), 2: ("silo-a", "silo-b")}
    require_next(task_at(1, 1, invited=of_suite[suite]), STEPPED, head)
    require_head(descriptor_at(1, 1, suite), STEPPED, head)
    for refused_by in (
        lambda: require_next(task_at(1, 1, invited=of_suite[3 - suite]), STEPPED, head),
        lambda: require_head(descriptor_at(1, 1, 3 - suite), STEPPED, head),
    ):
        with pytest.raises(SessionError, match="another suite than its run") as refused:
            refused_by()
        assert refused.value.check is Check.SUITE


def test_survivors_signed_for_one_step_do_not_close_the_next():
    agreed = {("run-1", 1, 1)}
    ledger = SimpleNamespace(has_agreed=lambda *key: key in agreed)
    with pytest.raises(PolicyRefusalError) as refused:
        require_unsigned(ledger, task_at(1, 1))
    assert refused.value.public_reason == "survivors_already_signed"
    require_unsigned(ledger, task_at(1, 2))
