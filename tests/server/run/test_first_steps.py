"""Figures go up with a round's first step only, and a run invites no more of those than ε allows.

A failure is a charge of a first step beyond the plan's ``first_steps``: the forecast and each
silo's policy state ε for so many metrics blocks and no more.
"""

import asyncio

from tests.kit.secagg.secagg_samples import silo_names
from tests.kit.server import world as sw

NAMES = silo_names(4)


def test_failing_first_steps_use_up_their_share_and_leave_the_rest_to_later_steps(world):
    """Two silos are lost at every upload of step 0 and come back when the step is tried again."""

    def before_wait():
        current = world.driver.current
        for name in NAMES[2:]:
            silo = world.silos[name]
            if silo.dead and world.driver.training is not None:
                silo.come_back()
            if current.attempt:
                failing = world.driver.next_place.step == 0
                silo.die_at = ("upload", current.attempt) if failing else None

    world.before_wait = before_wait
    # Six releases and two spare attempts by default, of which one is for the first step.
    text = sw.stepped_toml(rounds=1, steps=6).replace(b"spare_attempts = 2\n", b"")
    plan = sw.parsed(text)
    assert (plan.releases, plan.charged_releases, plan.first_steps) == (6, 8, 2)
    run_id = asyncio.run(world.run(text))
    records = world.store.records.list(run_id)[1:]
    assert [record.step for record in records] == list(range(6))
    assert [record.kind for record in records] == ["skipped"] + ["aggregated"] * 5
    charged = world.store.rounds.charged(run_id)
    assert charged.first_steps == 2
    assert charged.releases == 2 + 5
