"""The note that work took longer than a plan gave it: it only grows, and is never guessed."""

import json

import pytest

from silo_agent.errors import LocalStoreError
from silo_agent.policy.passed_time import NEVER_LATE, PASSED_FILE, Passed, PassedTime


def test_the_longest_time_of_each_kind_stays(tmp_path):
    passed = PassedTime(tmp_path)
    assert passed.read() == NEVER_LATE
    for noted in (
        Passed(ready_after_s=30),
        Passed(step_answer_after_s=0),
        Passed(ready_after_s=9, step_answer_after_s=4),
    ):
        passed.note(noted)
    assert PassedTime(tmp_path).read() == Passed(ready_after_s=30, step_answer_after_s=4)
    assert "min_ready_after_s of the policy above 30" in passed.read().told("ready_after_s")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"{}", b"[" * 4000, b'["ready_after_s", "step_answer_after_s"]']
    + [
        json.dumps({"ready_after_s": value, "step_answer_after_s": 1}).encode()
        for value in (-2, True, 1.5, "1", None)
    ],
)
def test_a_damaged_note_is_an_error_and_not_a_silo_that_never_was_late(tmp_path, content):
    (tmp_path / PASSED_FILE).write_bytes(content)
    with pytest.raises(LocalStoreError, match="dry round"):
        PassedTime(tmp_path).read()
    with pytest.raises(LocalStoreError):
        PassedTime(tmp_path).note(Passed(ready_after_s=1))
    assert (tmp_path / PASSED_FILE).read_bytes() == content
