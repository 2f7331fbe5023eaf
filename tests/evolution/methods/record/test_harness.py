"""Where units are protected, one whose harness misbehaves costs no other unit anything."""

import itertools
import threading
import time

import pytest

from evolution.envs.catalogue import Catalogue
from evolution.methods.evolver import Assignment
from tests.kit.evolution import harnesses as hs
from tests.kit.evolution.record_round import SETTINGS, SHARED, population, work

TASKS = SETTINGS.episodes // SETTINGS.tries_per_task
BODY = """
here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(here, "spans"), "a") as file:
    file.write("%d %r\\n" % (TASK["index"], time.monotonic()))
messages = [user("craft the goal item .")]
for turn in range(2):
    messages += [chat(messages), user("goal plank . have 2 log .")]
if open(os.path.join(here, "chosen.txt")).read() == str(TASK["index"]):
    BAD
with open(os.path.join(here, "spans"), "a") as file:
    file.write("%d %r\\n" % (TASK["index"], time.monotonic()))
report()
"""


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param("time.sleep(600)", marks=pytest.mark.long),
        "sys.exit(3)",
        "MODEL = 'x'; chat(messages)",
    ],
)
def test_a_unit_whose_harness_fails_costs_no_other_unit_anything(make_silo, adapter, tmp_path, bad):
    table = hs.program(tmp_path, BODY.replace("BAD", bad))
    setup = {
        "assignments": (Assignment(environment=hs.NAME),),
        "catalogue": Catalogue(foreign={hs.NAME: table}),
    }

    def rows(name, chosen):
        (tmp_path / "chosen.txt").write_text(chosen)
        (tmp_path / "spans").write_text("")
        silo = make_silo(SHARED, name=name, **setup)
        metrics = silo.evolve(work(adapter, spec=SHARED, try_s=15.0)[0]).metrics
        return population(silo).rows_of, metrics

    whole, _ = rows("good", "")
    assert len(whole) == TASKS
    spans = [line.split() for line in (tmp_path / "spans").read_text().splitlines()]
    # One unit after the other: whose process begins comes after the end of all before it.
    order = [index for index, _ in sorted(spans, key=lambda span: float(span[1]))]
    assert len(order) == 4 * TASKS
    changes = sum(one != other for one, other in itertools.pairwise(order))
    assert changes == TASKS - 1

    lost = next(iter(whole))
    others, metrics = rows("bad", lost.key)
    assert metrics["dropped"] == SETTINGS.tries_per_task
    assert set(others) == set(whole) - {lost}
    for unit, kept in others.items():
        for one, other in zip(kept, whole[unit], strict=True):
            assert one.token_ids.tobytes() == other.token_ids.tobytes()
            assert one.mask.tobytes() == other.mask.tobytes()


def test_a_plays_threads_end_with_it(make_silo, adapter, tmp_path):
    table = hs.program(tmp_path, BODY.replace("BAD", "pass"))
    (tmp_path / "chosen.txt").write_text("")
    silo = make_silo(
        SHARED,
        assignments=(Assignment(environment=hs.NAME),),
        catalogue=Catalogue(foreign={hs.NAME: table}),
    )
    before = set(threading.enumerate())
    silo.evolve(work(adapter, spec=SHARED, try_s=30.0)[0])
    deadline = time.monotonic() + 20
    while left := {one.name for one in threading.enumerate() if one not in before}:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
