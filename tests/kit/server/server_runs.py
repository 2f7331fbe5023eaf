"""Several runs in one federation, with the real driver and sessions, and what tests ask of them."""

import asyncio
import json
from contextlib import contextmanager

from tests.kit.server import world as sw


@contextmanager
def one_at_a_time(tmp_path, monkeypatch, *, silos=3):
    """So many silos and a coordinator in which nothing happens beside what is awaited."""

    async def at_once(work, *arguments, **named):
        return work(*arguments, **named)

    # Time here moves only when the coordinator waits; a thread would let it run while one is asked.
    monkeypatch.setattr(asyncio, "to_thread", at_once)
    with sw.World(tmp_path, silos=silos) as made:
        yield made


async def until(condition):
    for _ in range(100_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to that")


async def settled(world):
    """Until nothing is driven; a task that an admin ended is no failure."""
    while not world.conductor._idle:
        (result,) = await asyncio.gather(world.conductor._task, return_exceptions=True)
        if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
            raise result
        await asyncio.sleep(0)


def in_phase(world, phase, act, *, round_number=1):
    """Call ``act`` once, while the coordinator waits in this phase and no silo has answered."""
    done = []

    async def held():
        try:
            return await act()
        finally:
            for silo in world.silos.values():
                silo.dead = False

    def before_wait():
        driver = world.conductor.driver
        here = (driver.current.round, driver.current.phase) == (round_number, phase)
        if here and not done:
            for silo in world.silos.values():
                silo.dead = True
            done.append(asyncio.ensure_future(held()))

    world.before_wait = before_wait
    return done


def states(world):
    return [row.state for row in world.store.runs.list()]


def start(world, token, **plan):
    return world.conductor.start_run(sw.plan_toml(**plan), sw.INITIAL, token, admin="ada")


def details(world, event):
    lines = [json.loads(line) for line in world.audit.tail(1000)]
    return [line["details"] for line in lines if line["event"] == event]
