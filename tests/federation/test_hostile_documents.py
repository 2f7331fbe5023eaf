"""Thousands of plans, policies and poll answers that are wrong, each from a seed.

A failure: an error of another type than the parser's own, an answer that takes longer than
``MOST_S`` of processor time, or a value that is not finite. Not a failure: a document that is
accepted.
"""

import math
import random
import time

import pytest

from chorale.v1 import round_pb2 as pb
from dp.errors import PrivacyError
from federation import wire as federation_wire
from federation.errors import FederationError, PlanError
from federation.forecast.forecast import forecast_plan
from federation.plan.read import read_plan
from secagg import wire as secagg_wire
from secagg.errors import SecAggError
from silo_agent.errors import PolicyFileError
from silo_agent.line.instruction import Instruction, read_instruction
from silo_agent.policy.document import Policy
from silo_agent.policy.policy import check_plan
from silo_agent.policy.rule import Site
from tests.kit.hostile_inputs import Fuzz
from tests.kit.paths import ROOT
from tests.kit.secagg.secagg_samples import (
    make_descriptor,
    make_roster,
    signed_descriptor,
    signed_roster,
)
from tests.kit.silo_agent.policy_samples import MODES, POLICY, make_plan, make_task

EXAMPLES = ROOT / "deploy" / "examples"
PLANS = [path.read_text() for path in sorted(EXAMPLES.glob("plan-*.toml"))]
POLICIES = [(EXAMPLES / "policy.toml").read_text(), POLICY]
MOST_S = 2.0
EDGES = (
    "0", "-1", "1", "2", "3", "201", "4096", "1000000", f"{2**31}", f"{2**63 - 1}", f"{2**64}",
    "9" * 400, "9" * 4300, "0.0", "-0.0", "1e-320", "1e-5", "0.5", "1.0", "1e300", "1e999", "inf",
    "nan", "true", "''", '"craft"', "'" + "x" * 3000 + "'", '"\\u0000"', "[]", "[1]", '["craft"]',
    '["maze", "maze"]', "{}", "{ a = 1 }", "{ silo = 1e308, task = nan }", "2020-01-01",
    "07:30:00", "[[[[[[[[]]]]]]]]", "[" * 9 + "]" * 9,
)  # fmt: skip
LINES = (
    "[", "]]", "[[rounds]]", "[rounds]", "[privacy.record]", "[a.b.c.d.e.f.g.h]", "x = 1", '""=1',
    "a.a.a.a.a.a.a.a = 1", f"{'.'.join('a' * 1200)} = 1", f"[{'.'.join('a' * 1200)}]",
    "a = " + "[" * 1200, "a = " + "{a=" * 300 + "1" + "}" * 300, "# \x00", "\x0b", "privacy = 1",
    "model = []", "rounds.count = 2", "mode = 'none'", 'x = """', "\ufeff", "é = 1", "\\",
)  # fmt: skip


class Documents:
    """Documents that are nearly right."""

    def __init__(self, seed, bases):
        self.rng, self._bases = random.Random(seed), bases  # noqa: S311 - the same every time

    def one(self):
        """One of the bases, changed in up to six places."""
        lines = self.rng.choice(self._bases).splitlines()
        for _ in range(self.rng.choice((1, 1, 1, 2, 6))):
            where = self.rng.randrange(len(lines))
            how = self.rng.random()
            if how < 0.6:
                key = lines[where].partition("=")[0]
                lines[where] = f"{key}= {self.rng.choice(EDGES)}"
            elif how < 0.75:
                lines.insert(where, self.rng.choice(LINES))
            elif how < 0.85:
                lines.insert(where, self.rng.choice(lines))
            elif len(lines) > 1:
                del lines[where]
        content = bytearray("\n".join(lines).encode())
        if self.rng.random() < 0.1:
            for _ in range(3):
                content[self.rng.randrange(len(content))] ^= 1 << self.rng.randrange(8)
        return bytes(content)


class Clock:
    """No single answer may take long."""

    def __enter__(self):
        self._started = time.process_time()

    def __exit__(self, *_):
        assert time.process_time() - self._started < MOST_S


@pytest.mark.parametrize("seed", range(4))
def test_a_plan_is_one_or_a_typed_error_and_so_is_what_is_made_of_it(seed):
    documents = Documents(seed, PLANS)
    policy = Policy.parse(POLICY.encode())
    accepted = refused = 0
    for _ in range(1000):
        toml = documents.one()
        with Clock():
            try:
                plan = read_plan(toml)
                check_plan(policy, plan=plan, site=Site(base_sha256=bytes(32), environments={}))
                accepted += 1
                forecast = forecast_plan(plan, silos=4, colluding=1, dimension=3072)
                assert not math.isnan(forecast.predicted_cosine), toml
            except PlanError:
                refused += 1
            except PrivacyError:
                # What a forecast says of a plan that no noise can make private.
                pass
    assert accepted > 20, "nothing nearly right was tried"
    assert refused > 100


@pytest.mark.parametrize("seed", range(4))
def test_a_policy_is_one_or_a_typed_error(seed):
    documents = Documents(seed, POLICIES)
    plans = [make_plan(*changes) for changes in MODES.values()]
    accepted = refused = 0
    for _ in range(1000):
        toml = documents.one()
        with Clock():
            try:
                policy = Policy.parse(toml)
            except PolicyFileError:
                refused += 1
                continue
            accepted += 1
            for plan in plans:
                check_plan(policy, plan=plan, site=Site(base_sha256=bytes(32), environments={}))
    assert accepted > 20, "nothing nearly right was tried"
    assert refused > 100


def answers():
    """Sound answers to a poll, of the kinds that a silo acts on first."""
    task = pb.PollResponse(instruction_id="1")
    task.round_task.CopyFrom(federation_wire.round_task_to_proto(make_task()))
    opened = pb.PollResponse(instruction_id="2")
    signed = signed_descriptor(make_descriptor(signed_roster(make_roster()).roster))
    opened.descriptor.CopyFrom(secagg_wire.descriptor_to_proto(signed))
    opened.identity.CopyFrom(secagg_wire.identity_to_proto(signed.descriptor.identity))
    return task, opened


@pytest.mark.parametrize("seed", range(4))
def test_an_answer_to_a_poll_is_one_or_a_typed_error(seed):
    fuzz, bases = Fuzz(seed), answers()
    read = refused = 0
    for number in range(800):
        how = fuzz.rng.random()
        base = fuzz.rng.choice(bases)
        with Clock():
            try:
                said = (
                    pb.PollResponse.FromString(fuzz.flipped(base.SerializeToString()))
                    if how < 0.3
                    else fuzz.changed(base)
                    if how < 0.6
                    else fuzz.fill(pb.PollResponse())
                )
            except Exception:  # noqa: BLE001, S112 - gRPC's part: it is a failed call to the silo
                continue
            try:
                assert isinstance(read_instruction(said), Instruction), number
                read += 1
            except (SecAggError, FederationError):
                refused += 1
    assert read > 20
    assert refused > 200
