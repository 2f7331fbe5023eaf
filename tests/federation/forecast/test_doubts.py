"""What a plan may say and was hardly meant to."""

from __future__ import annotations

from federation.forecast.doubts import doubts
from federation.plan.plan import Plan
from federation.plan.read import read_plan
from tests.kit.paths import ROOT

EXAMPLES = ROOT / "deploy" / "examples"
DIGEST = "ab" * 32
LOCAL = (EXAMPLES / "plan-record-local.toml").read_text().replace("0" * 64, DIGEST)
FOUR = (EXAMPLES / "plan-demo-environments.toml").read_text().replace("0" * 64, DIGEST)


def plan(text: str = LOCAL, *changes: tuple[str, str]) -> Plan:
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    return read_plan(text.encode())


def test_a_plan_that_means_what_it_says_raises_none():
    assert doubts(plan(), base_sha256=DIGEST, declared={"silo-a": ("craft",)}) == ()
    # No model, no tasks: zeros are right there.
    constant = (EXAMPLES / "plan-constant.toml").read_text()
    assert doubts(plan(constant), base_sha256=DIGEST, declared={"silo-a": ("craft",)}) == ()


def test_a_divisor_above_what_is_sampled_is_told_with_the_one_that_fits():
    (doubt,) = doubts(plan(LOCAL, ("expected_units = 64", "expected_units = 128")))
    assert doubt.startswith("privacy.record.expected_units: sampling_rate 0.0625 of the 1024 tasks")
    assert "is 64 a step" in doubt
    assert "0.5 times as long" in doubt
    assert "set it to 64" in doubt
    # A rate that takes part of a task takes the next whole one.
    assert doubts(plan(LOCAL, ("sampling_rate = 0.0625", "sampling_rate = 0.0620"))) == ()


def test_another_base_model_than_the_one_that_lies_here_is_told():
    (doubt,) = doubts(plan(), base_sha256="cd" * 32, base_place="models/base")
    assert "it is abababababab…, and that of models/base is " + "cd" * 32 in doubt
    zeros = plan(LOCAL, (DIGEST, "0" * 64))
    (doubt,) = doubts(zeros)
    assert "zeros are no model's digest" in doubt
    (doubt,) = doubts(zeros, base_sha256=DIGEST, base_place="models/base")
    assert f"it is all zeros, and that of models/base is {DIGEST}" in doubt


def test_an_environment_that_nobody_had_is_told_once_everybody_has_said_something():
    silos = {"silo-a": ("craft", "maze"), "silo-b": ("wordle",)}
    (doubt,) = doubts(plan(FOUR), declared=silos)
    assert "no silo of the roster had 'babyai' when it was last ready" in doubt
    assert "they had craft, maze, wordle" in doubt
    assert doubts(plan(FOUR), declared={**silos, "silo-c": ()}) == ()
    assert doubts(plan(FOUR), declared={}) == ()
    # The family of an environment that a silo describes itself is its alias.
    alias = plan(FOUR, ('"babyai"', '"openenv:babyai"'))
    assert doubts(alias, declared={**silos, "silo-c": ("babyai",)}) == ()
