"""The task of a round is remembered, and a round is asked of no more silos than before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from secagg.errors import Check, VerificationError
from silo_agent.books.round_tasks import MAX_RUNS, MAX_STEPS, ROUND_TASKS_FILE, RoundTasks
from silo_agent.errors import LocalStoreError
from tests.kit.silo_agent.policy_samples import COHORT, make_task


@pytest.fixture
def tasks(tmp_path: Path) -> RoundTasks:
    return RoundTasks(tmp_path)


def test_a_restarted_silo_finds_the_very_task_that_a_descriptor_names(
    tasks: RoundTasks, tmp_path: Path
) -> None:
    first, again = make_task(), make_task(ready_deadline_unix_s=7)
    tasks.hear(first)
    later = make_task(step=2)
    tasks.hear(later)
    restarted = RoundTasks(tmp_path)
    assert restarted.named("run-1", 2, first.sha256) == first
    assert restarted.named("run-1", 2, later.sha256) == later
    assert restarted.named("run-1", 2, bytes(32)) == later
    restarted.hear(again)
    assert RoundTasks(tmp_path).named("run-1", 2, again.sha256) == again
    assert restarted.named("run-1", 2, first.sha256) != first
    for run, number in (("run-1", 3), ("run-1", 1), ("run-2", 2)):
        assert restarted.named(run, number, first.sha256) is None


@pytest.mark.parametrize("invited", [(*COHORT, "silo-e"), (*COHORT[:3], "silo-e"), ()])
def test_a_round_is_not_asked_of_others_than_at_first(
    tasks: RoundTasks, tmp_path: Path, invited: tuple[str, ...]
) -> None:
    tasks.hear(make_task())
    tasks.hear(make_task(invited=COHORT[:3]))
    for known in (tasks, RoundTasks(tmp_path)):
        with pytest.raises(VerificationError) as refused:
            known.hear(make_task(invited=invited))
        assert refused.value.check is Check.TASK
    with pytest.raises(VerificationError):
        tasks.hear(make_task())
    tasks.hear(make_task(round=3, invited=invited))
    tasks.hear(make_task(run_id="run-2", invited=invited))


@pytest.mark.parametrize("step", [0, 4])
def test_no_step_of_a_round_is_asked_of_others_than_the_steps_before(
    tasks: RoundTasks, step: int
) -> None:
    tasks.hear(make_task(step=1, invited=COHORT[:3]))
    tasks.hear(make_task(step=2, invited=COHORT[:2]))
    for invited in (COHORT, COHORT[:3], ()):
        with pytest.raises(VerificationError) as refused:
            tasks.hear(make_task(step=step, invited=invited))
        assert refused.value.check is Check.TASK
    tasks.hear(make_task(step=step, invited=COHORT[:1]))


def test_an_earlier_round_displaces_nothing(tasks: RoundTasks) -> None:
    newest = make_task()
    tasks.hear(newest)
    tasks.hear(make_task(round=1))
    assert tasks.named("run-1", 2, newest.sha256) == newest


def test_the_file_is_bounded_and_keeps_the_newest(tasks: RoundTasks, tmp_path: Path) -> None:
    for step in range(MAX_STEPS + 1):
        tasks.hear(make_task(step=step))
    assert tasks.named("run-1", 2, make_task(step=0).sha256) == make_task(step=MAX_STEPS)
    for number in range(MAX_RUNS):
        tasks.hear(make_task(run_id=f"other-{number}"))
    restarted = RoundTasks(tmp_path)
    assert restarted.named("run-1", 2, bytes(32)) is None
    assert restarted.named("other-0", 2, bytes(32)) is not None
    assert len(json.loads((tmp_path / ROUND_TASKS_FILE).read_text())["runs"]) == MAX_RUNS


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"format": 2}', b'{"format": 1, "runs": {"r": ["00"]}}']
)
def test_a_damaged_file_is_an_error_that_says_what_to_do(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ROUND_TASKS_FILE).write_bytes(content)
    with pytest.raises(LocalStoreError, match="next round"):
        RoundTasks(tmp_path)


def test_what_cannot_be_written_is_not_known_either(
    tasks: RoundTasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("silo_agent.books.round_tasks.replace_file", full)
    with pytest.raises(LocalStoreError):
        tasks.hear(make_task())
    assert tasks.named("run-1", 2, bytes(32)) is None
