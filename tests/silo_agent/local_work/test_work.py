"""Local work on its own thread: what is reported, and what a failure looks like outside."""

import math
import time

import numpy as np
import pytest

from evolution.errors import EvolverSetupError
from evolution.methods.constant import ConstantEvolver, constant_pattern
from federation.adapter.encoding import adapter_sha256, encode_adapter
from federation.adapter.layout import Layout
from federation.plan.read import read_plan
from silo_agent.books.local_store import LocalStore
from silo_agent.errors import LocalStoreError, TransportError
from silo_agent.local_work.alone import evolve_alone
from silo_agent.local_work.pace import Pace
from silo_agent.local_work.result import Result
from tests.kit.server import world_plan as sw
from tests.kit.silo_agent.working_silo import (
    ADAPTER,
    VALUE,
    WorkingSilo,
    config_of,
    head_of,
    metrics,
    plan_of,
    task_of,
)
from tests.kit.waiting import until


@pytest.fixture
def silo(tmp_path):
    made = []

    def make(**options):
        one = WorkingSilo(tmp_path / "silo", **options)
        made.append(one)
        return one

    yield make
    for one in made:
        one.work.close()
        one.ledger.close()


def test_a_round_of_work_is_reported_from_its_own_thread(silo):
    one = silo()
    call = one.start()
    assert call.pop("thread") == "local-work"
    assert call == {
        "run_id": "run-1",
        "round_number": 1,
        "step": 0,
        "adapter_sha256": adapter_sha256(ADAPTER),
        "families": ("constant",),
    }
    done = one.work.finished("run-1", 1)
    np.testing.assert_array_equal(done.delta, constant_pattern(VALUE, sw.DIMENSION))
    assert one.work.finished("run-1", 2) is None
    assert one.work.finished("run-2", 1) is None
    one.settle()
    (row,) = one.store.rounds()
    assert row["episodes"] == {"constant": 64}
    assert row["delta_norm"] == pytest.approx(np.linalg.norm(done.delta.astype(float)))


def test_a_report_that_nobody_takes_is_no_failed_work(silo, monkeypatch):
    """A run was paused or aborted meanwhile, or the coordinator is away: the work is kept."""
    one = silo()
    refusal = TransportError("FAILED_PRECONDITION", reason="wrong_round", refused=True)

    def refused(**call):
        one.reports.arrived.release()
        raise refusal

    monkeypatch.setattr(one.reports, "report_ready", refused)
    one.work.start(task=task_of(1), plan=plan_of(), head=head_of())
    one.settle()
    assert one.errors() == 0
    labels = {"kind": "TransportError"}
    counted = one.metrics.registry.get_sample_value("chorale_silo_errors_total", labels)
    assert counted == 1
    assert one.work.finished("run-1", 1) is not None


def test_a_repeated_task_is_reported_again_without_working_again(silo):
    one = silo()
    one.start()
    again = one.start()
    assert again["thread"] == "MainThread"
    one.settle()
    assert len(one.store.rounds()) == 1
    one.start(round_number=2)
    one.settle()
    assert len(one.store.rounds()) == 2


def test_a_short_job_is_not_reported_before_the_scheduled_time(silo):
    one = silo(pace=Pace())
    text = sw.plan_toml(rounds=4).decode()
    plan = read_plan(
        text.replace("[rounds]", "[rounds]\nready_after_s = 1").encode(),
    )
    started = time.monotonic()
    for _ in range(2):
        # The repeat of a task must not be a way to learn that the work is done.
        one.work.start(task=task_of(), plan=plan, head=head_of())
    assert one.work.finished("run-1", 1) is None
    one.reports.wait()
    assert time.monotonic() - started >= 1
    one.settle()
    assert len(one.reports.calls) == 1
    assert one.work.finished("run-1", 1) is not None


def test_a_silo_that_is_stopped_does_not_say_ready_too_soon(silo):
    one = silo(pace=Pace())
    text = sw.plan_toml(rounds=4).decode()
    plan = read_plan(text.replace("[rounds]", "[rounds]\nready_after_s = 30").encode())
    one.work.start(task=task_of(), plan=plan, head=head_of())
    until(one.store.rounds, "a round is kept")
    one.work.close()
    assert not one.work._thread.is_alive()
    assert one.reports.calls == []
    assert one.work.finished("run-1", 1) is None


def test_rolora_delta_covers_the_trained_factor_alone(silo):
    one = silo()
    one.start(plan=plan_of(method="rolora"))
    done = one.work.finished("run-1", 1)
    assert 0 < done.layout.dimension < sw.DIMENSION
    assert done.delta.shape == (done.layout.dimension,)


def test_a_failing_method_looks_like_any_other_round(silo, monkeypatch, capsys):
    def fails(_self, _work):
        # Also where the method says that it is configuration: by now it has seen data.
        raise EvolverSetupError("no layer can be recomputed")

    monkeypatch.setattr(ConstantEvolver, "evolve", fails)
    one = silo()
    call = one.start()
    assert call["families"] == ("constant",)
    done = one.work.finished("run-1", 1)
    assert not done.delta.any()
    assert done.delta.shape == (sw.DIMENSION,)
    contribution = done.for_attempt(metrics("update_norm_sq", "episodes/constant"))
    assert set(contribution.figures.values()) == {0.0}
    assert one.errors() == 1
    assert "evolve_failed" in capsys.readouterr().out


def test_books_that_cannot_be_kept_do_not_show_outside(silo, monkeypatch, capsys):
    one = silo()

    def full(_):
        raise LocalStoreError("disk full")

    monkeypatch.setattr(one.store, "append_round", full)
    one.start()
    one.settle()
    assert one.work.finished("run-1", 1) is not None
    assert one.errors() == 1
    assert "disk full" in capsys.readouterr().out
    # And the thread is still there for the next round.
    monkeypatch.undo()
    one.start(round_number=2)


# Figures for the sum -----------------------------------------------------------------------------


def finished(delta, *, episodes=None, successes=None):
    return Result(
        run_id="run-1",
        round=1,
        plan=plan_of(),
        layout=Layout.from_tensors(sw.initial_tensors()),
        delta=np.asarray(delta, np.float32),
        episodes=episodes or {},
        successes=successes or {},
    )


def test_families_without_coordinates_are_counted_as_other_or_nowhere():
    work = finished(
        np.zeros(4),
        episodes={"craft": 8, "maze": 4, "babyai": 2},
        successes={"craft": 3, "maze": 1},
    )
    named = ("update_norm_sq", "episodes/craft", "successes/craft")
    assert work.for_attempt(metrics(*named)).figures == {
        "update_norm_sq": 0.0,
        "episodes/craft": 8.0,
        "successes/craft": 3.0,
    }
    other = work.for_attempt(metrics(*named, "episodes/other", "successes/other")).figures
    assert (other["episodes/other"], other["successes/other"]) == (6.0, 1.0)
    assert work.for_attempt(metrics("update_norm_sq")).figures == {"update_norm_sq": 0.0}


@pytest.mark.parametrize(("norm", "expected"), [(2.0, 4.0), (1e6, sw.CLIP**2)])
def test_the_norm_is_that_of_the_clipped_vector(norm, expected):
    found = finished([norm, 0, 0]).for_attempt(metrics("update_norm_sq")).figures
    assert found["update_norm_sq"] == pytest.approx(expected)


def test_a_norm_that_is_not_a_number_stays_one_for_the_encoder_to_refuse():
    found = finished([math.nan, 1]).for_attempt(metrics("update_norm_sq")).figures
    assert math.isnan(found["update_norm_sq"])


def test_private_numbers_are_not_printed():
    work = finished([0.123456, 7], episodes={"craft": 9876})
    assert "9876" not in repr(work)
    assert "0.123" not in repr(work)


# Evaluation --------------------------------------------------------------------------------------


def judged(store):
    return sorted({row["round"] for row in store.evaluations()})


def test_adapters_are_judged_when_the_plan_says_so_and_once(silo):
    one = silo()
    plan = plan_of(held_out=8, rounds=5, every=2)
    for _ in range(2):
        for number in range(6):
            one.work.adopted(head_of(number), plan)
    one.settle()
    # Every second one, and the last.
    assert judged(one.store) == [0, 2, 4, 5]
    rows = one.store.evaluations()
    assert len(rows) == 4 * len(plan.evaluate.temperatures)
    assert rows[0]["adapter_sha256"] == adapter_sha256(ADAPTER).hex()
    one.work.close()
    one.ledger.close()
    # After a restart the same adapter is not judged again.
    later = silo()
    later.work.adopted(head_of(2), plan)
    later.work.adopted(head_of(5), plan)
    later.settle()
    assert len(later.store.evaluations()) == len(rows)


@pytest.mark.parametrize("switch", ["plan", "silo"])
def test_nothing_is_judged_when_either_side_says_no(silo, switch):
    one = silo(evaluate="false" if switch == "silo" else "true")
    one.work.adopted(head_of(0), plan_of(held_out=0 if switch == "plan" else 8))
    one.settle()
    assert one.store.evaluations() == []


# Alone -------------------------------------------------------------------------------------------


def test_alone_applies_its_own_delta_each_round_and_sends_nothing(tmp_path):
    config = config_of(tmp_path / "silo")
    plan, seen = plan_of(held_out=8, rounds=3), []
    content = evolve_alone(
        config=config,
        plan=plan,
        adapter=ADAPTER,
        out_dir=tmp_path / "out",
        progress=lambda number, success: seen.append((number, success)),
    )
    assert seen == [(1, 0.25), (2, 0.25), (3, 0.25)]
    layout = Layout.from_tensors(sw.initial_tensors())
    moved = layout.unflatten(constant_pattern(VALUE, sw.DIMENSION))
    expected = sw.initial_tensors()
    for _ in range(3):
        expected = {name: expected[name] + moved[name] for name in expected}
    assert content == encode_adapter(expected)
    assert (tmp_path / "out" / "adapter.safetensors").read_bytes() == content
    rows = LocalStore(tmp_path / "out").evaluations()
    assert {(row["run"], row["round"], row["successes"]) for row in rows} == {("alone", 3, 16)}
