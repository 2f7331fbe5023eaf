"""What offers make of a plan, by hand: inside its ranges, in moved keys alone, or nothing."""

import random

import pytest

from federation.errors import PlanError
from federation.plan.charges import epsilon_of_run
from federation.plan.negotiation import (
    KEYS,
    QUARTERS,
    Amended,
    Move,
    NotAmended,
    Offer,
    amend,
    outside,
    run_epsilon,
)
from federation.plan.plan import Plan
from federation.plan.read import read_plan
from federation.plan.rules import problems_of_start
from tests.kit.silo_agent.policy_samples import MODES, NOW_UNIX_S, PLAN, RECORD

RANGES = "\n[negotiation]\nleast_local_epochs = 2\nstart_within_s = 7200\nleast_epsilon = 2.0\n"
EPOCHS = ("tries_per_task = 4", "tries_per_task = 4\nlocal_epochs = 5  # of each round")
HOUR = 3600


def written(*changes, mode="silo", ranges=RANGES):
    text = PLAN
    for old, new in (*MODES[mode], *changes):
        assert old in text
        text = text.replace(old, new)
    return (text + ranges).encode()


def amended(plan, **offers):
    return amend(plan, offers, now_unix_s=NOW_UNIX_S)


def moves(found):
    assert isinstance(found, Amended), found
    return [(move.key, move.before, move.after) for move in found.moves]


def test_one_plan_for_all_takes_the_fewest_epochs_the_latest_start_and_the_least_epsilon():
    plan = written(EPOCHS)
    found = amended(
        plan,
        a=Offer(local_epochs=4, start_after_unix_s=NOW_UNIX_S + HOUR),
        b=Offer(local_epochs=3, epsilon_quarters=14),
        c=Offer(start_after_unix_s=NOW_UNIX_S + 2 * HOUR, epsilon_quarters=12),
        d=Offer(local_epochs=4),
    )
    assert moves(found) == [
        ("evolve.local_epochs", "5", "3"),
        ("privacy.noise_multiplier", "4.0", "5.2"),
        ("privacy.metrics_noise_multiplier", "4.0", "5.2"),
        ("rounds.start_after_unix_s", "", str(NOW_UNIX_S + 2 * HOUR)),
    ]
    after = read_plan(found.plan_toml)
    assert run_epsilon(after) <= 3.0
    # 1.29 times the noise would not have reached it.
    louder = written(EPOCHS, ("noise_multiplier = 4.0", "noise_multiplier = 5.16"))
    assert run_epsilon(read_plan(louder)) > 3.0
    # Every line that says nothing of it is as it was, comments included.
    before_lines, after_lines = plan.decode().splitlines(), found.plan_toml.decode().splitlines()
    assert len(after_lines) == len(before_lines) + 1
    assert "local_epochs = 3  # of each round" in after_lines
    kept = {line.split("=")[0] for line in before_lines if line not in after_lines}
    assert {name.strip() for name in kept} == {
        "local_epochs", "noise_multiplier", "metrics_noise_multiplier",
    }  # fmt: skip
    # Whoever has plan, offers and time gets the same bytes.
    assert amended(plan, d=Offer(local_epochs=3)) == amended(plan, d=Offer(local_epochs=3))


@pytest.mark.parametrize("mode", ["silo", "record_local", "record_distributed"])
def test_epsilon_is_reached_by_noise_alone_in_every_mode_that_has_some(mode):
    plan = written(mode=mode, ranges="\n[negotiation]\nleast_epsilon = 1.0\n")
    found = amended(plan, a=Offer(epsilon_quarters=10))
    assert {key for key, _, _ in moves(found)} == {
        "privacy.noise_multiplier", "privacy.metrics_noise_multiplier",
    }  # fmt: skip
    assert 2.4 < run_epsilon(read_plan(found.plan_toml)) <= 2.5


def test_noise_for_the_silo_beside_a_record_mode_grows_with_it():
    plan = written(
        ("delta_clip_l2 = 3.0", "delta_clip_l2 = 3.0\nsilo_noise_multiplier = 9.0"),
        mode="record_local",
        ranges="\n[negotiation]\nleast_epsilon = 1.0\n",
    )
    assert RECORD.strip().splitlines()[0] == "[privacy.record]"
    before, found = read_plan(plan), amended(plan, a=Offer(epsilon_quarters=6))
    assert moves(found)[-1][0] == "privacy.record.silo_noise_multiplier"
    after = read_plan(found.plan_toml)
    factor = after.privacy.noise_multiplier / before.privacy.noise_multiplier
    louder = after.privacy.record.silo_noise_multiplier
    assert louder == pytest.approx(9.0 * factor)
    for unit, cost in epsilon_of_run(after).items():
        assert cost.epsilon < epsilon_of_run(before)[unit].epsilon


@pytest.mark.parametrize(
    ("offer", "said"),
    [
        (Offer(local_epochs=1), "local_epochs 1 lies outside 2 to below 5"),
        (Offer(local_epochs=5), "local_epochs 5 lies outside"),
        (Offer(local_epochs=100), "local_epochs 100 lies outside"),
        (Offer(start_after_unix_s=NOW_UNIX_S + 2 * HOUR + 180), "is not within 7200 s"),
        (Offer(start_after_unix_s=NOW_UNIX_S - HOUR), "is not within 7200 s"),
        (Offer(start_after_unix_s=60), "1970-01-01 00:01 UTC is not within"),
        (Offer(start_after_unix_s=2**36 // 60 * 60), "is not within"),
        (Offer(epsilon_quarters=7), "epsilon 1.75 lies outside 2 to below 4.012"),
        (Offer(epsilon_quarters=17), "epsilon 4.25 lies outside"),
        (Offer(epsilon_quarters=400), "epsilon 100 lies outside"),
    ],
)
def test_one_offer_outside_a_range_amends_nothing_and_is_named(offer, said):
    plan = written(EPOCHS)
    found = amended(plan, honest=Offer(local_epochs=2), mallory=offer)
    assert isinstance(found, NotAmended)
    (problem,) = found.problems
    assert problem.startswith("mallory: ")
    assert said in problem
    (same,) = outside(read_plan(plan), offer, now_unix_s=NOW_UNIX_S)
    assert problem == f"mallory: {same}"


def test_the_edges_of_the_ranges_lie_inside():
    plan = written(EPOCHS)
    for offer in (
        Offer(local_epochs=2),
        Offer(local_epochs=4),
        Offer(epsilon_quarters=8),
        Offer(epsilon_quarters=16),
        Offer(start_after_unix_s=NOW_UNIX_S + 2 * HOUR),
    ):
        assert isinstance(amended(plan, a=offer), Amended), offer


@pytest.mark.parametrize(
    ("ranges", "left"),
    [
        ("\n[negotiation]\nleast_local_epochs = 2\n", 1),
        ("\n[negotiation]\nstart_within_s = 7200\n", 1),
        ("\n[negotiation]\nleast_epsilon = 2.0\n", 1),
        ("", 0),
    ],
)
def test_what_the_plan_does_not_name_is_not_moved(ranges, left):
    plan = written(EPOCHS, ranges=ranges)
    offers = (
        Offer(local_epochs=2),
        Offer(start_after_unix_s=NOW_UNIX_S + HOUR),
        Offer(epsilon_quarters=8),
    )
    taken = [isinstance(amended(plan, a=offer), Amended) for offer in offers]
    assert sum(taken) == left
    assert isinstance(amended(plan, a=offers[0], b=offers[1]), NotAmended)


def test_a_start_that_was_put_off_is_put_off_from_there():
    late = NOW_UNIX_S + 5 * HOUR
    plan = written(EPOCHS, ("count = 5", f"count = 5\nstart_after_unix_s = {late}"))
    later = amended(plan, a=Offer(start_after_unix_s=late + HOUR))
    assert moves(later) == [("rounds.start_after_unix_s", str(late), str(late + HOUR))]
    for start in (NOW_UNIX_S + HOUR, late, late + 3 * HOUR):
        assert isinstance(amended(plan, a=Offer(start_after_unix_s=start)), NotAmended)


def test_nothing_is_amended_without_offers_or_where_no_plan_comes_of_them():
    assert amended(written(EPOCHS)) == NotAmended(problems=("no silo made an offer",))
    # So much noise leaves the ring: 12·z·Δ of mode silo.
    coarse = written(
        ("delta = 1e-5", f"delta = 1e-5\ngrid = {2**24}"),
        ranges="\n[negotiation]\nleast_epsilon = 0.25\n",
    )
    found = amended(coarse, a=Offer(epsilon_quarters=1))
    assert isinstance(found, NotAmended)
    assert "privacy.grid" in found.problems[0]
    with pytest.raises(PlanError):
        amended(b"no plan", a=Offer(local_epochs=1))


# The document ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (("[evolve]", "  [ evolve ]  # the local work"), "local_epochs = 2  # of each round"),
        (("local_epochs = 5", "  local_epochs=5"), "  local_epochs=2  # of each round"),
        (("local_epochs = 5", "local_epochs = 0x5"), "local_epochs = 2  # of each round"),
        (("local_epochs = 5", "local_epochs = +5"), "local_epochs = 2  # of each round"),
        (('name = "sample"', 'name = "sample"\n# [evolve]\n# local_epochs = 9'), None),
    ],
)
def test_a_value_is_changed_where_it_stands(change, line):
    text = written(EPOCHS).decode()
    assert change[0] in text
    plan = text.replace(*change).encode()
    found = amended(plan, a=Offer(local_epochs=2))
    assert moves(found) == [("evolve.local_epochs", "5", "2")]
    assert (line or "local_epochs = 2  # of each round") in found.plan_toml.decode().splitlines()
    after = read_plan(found.plan_toml).model_dump()
    before = read_plan(plan).model_dump()
    before["evolve"]["local_epochs"] = 2
    assert after == before


@pytest.mark.parametrize(
    "change",
    [
        ("local_epochs = 5", '"local_epochs" = 5'),
        ("local_epochs = 5", "'local_epochs' = 5"),
        ("[evolve]", '["evolve"]'),
        # A header inside a string is none; what was found there is not what was meant.
        ('base = "small"', 'base = """\n[evolve]\nlocal_epochs = 5\n"""'),
    ],
)
def test_a_document_that_cannot_be_changed_line_by_line_is_not_changed_at_all(change):
    text = written(EPOCHS).decode()
    assert change[0] in text
    found = amended(text.replace(*change).encode(), a=Offer(local_epochs=2))
    assert isinstance(found, NotAmended)
    assert "evolve.local_epochs: cannot be changed in this document" in found.problems[0]


def test_whatever_is_offered_the_amended_plan_differs_in_moved_keys_alone():
    draw = random.Random(67)  # noqa: S311
    plan = written(EPOCHS)
    before = read_plan(plan)
    outcomes = {Amended: 0, NotAmended: 0}
    for _ in range(150):
        offers = {
            f"silo-{number}": Offer(
                local_epochs=draw.choice((0, 1, 2, 3, 4, 5, 9)),
                start_after_unix_s=draw.choice((0, NOW_UNIX_S + 60 * draw.randrange(130))),
                epsilon_quarters=draw.choice((0, draw.randrange(6, 18))) or 12,
            )
            for number in range(draw.randrange(1, 4))
        }
        found = amend(plan, offers, now_unix_s=NOW_UNIX_S)
        outcomes[type(found)] += 1
        inside = [not outside(before, one, now_unix_s=NOW_UNIX_S) for one in offers.values()]
        assert isinstance(found, Amended) == all(inside)
        if isinstance(found, NotAmended):
            continue
        after = read_plan(found.plan_toml)
        assert differing(before, after) <= set(KEYS)
        for one in offers.values():
            assert run_epsilon(after) <= (one.epsilon_quarters or 400) / QUARTERS
            assert after.evolve.local_epochs <= (one.local_epochs or 100)
            assert (after.rounds.start_after_unix_s or 0) >= one.start_after_unix_s
    assert min(outcomes.values()) > 20


def differing(before: Plan, after: Plan):
    def flat(value, path=()):
        if not isinstance(value, dict):
            return {path: value}
        found = {}
        for name, item in value.items():
            found |= flat(item, (*path, name))
        return found

    mine, theirs = flat(before.model_dump()), flat(after.model_dump())
    return {path for path in mine.keys() | theirs.keys() if mine.get(path) != theirs.get(path)}


def test_a_move_says_what_it_moved():
    assert str(Move(key="a.b", before="", after="3")) == "a.b: not set -> 3"
    shown = Offer(local_epochs=2, start_after_unix_s=NOW_UNIX_S, epsilon_quarters=9)
    assert str(shown) == "local_epochs = 2, start at 2027-01-15 08:00 UTC, epsilon 2.25"


# The table ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranges", "mode", "said"),
    [
        ("\n[negotiation]\n", "silo", "name what may be moved"),
        ("\n[negotiation]\nleast_local_epochs = 2\n", "silo", "2 is more than evolve.local_epochs"),
        ("\n[negotiation]\nleast_epsilon = 1.0\n", "none", "mode 'none' has no noise to add to"),
        ("\n[negotiation]\nleast_epsilon = 0.2\n", "silo", "greater than or equal to 0.25"),
        ("\n[negotiation]\nstart_within_s = 604801\n", "silo", "less than or equal to 604800"),
        ("\n[negotiation]\nrounds = 3\n", "silo", "unknown key"),
    ],
)
def test_ranges_that_say_nothing_are_refused(ranges, mode, said):
    with pytest.raises(PlanError, match=r"negotiation") as caught:
        read_plan(written(mode=mode, ranges=ranges))
    assert said in str(caught.value)


def test_a_plan_is_not_started_before_its_time():
    plan = read_plan(
        written(EPOCHS, ("count = 5", f"count = 5\nstart_after_unix_s = {NOW_UNIX_S}"))
    )
    (problem,) = problems_of_start(plan, NOW_UNIX_S - 0.5)
    assert problem.startswith("rounds.start_after_unix_s: ")
    assert "2027-01-15 08:00:00 UTC" in problem
    assert problems_of_start(plan, NOW_UNIX_S) == ()
    assert problems_of_start(read_plan(written(EPOCHS)), 0) == ()
