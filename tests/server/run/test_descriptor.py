"""Descriptors of every mode: what is masked, with what noise, under the protocol's own checks."""

import pytest

from dp.noise.metrics_block import MetricsBlock
from dp.noise.share import metrics_sigma, per_silo_sigma
from federation.adapter.encoding import adapter_sha256
from secagg.descriptor import NOISE_DISCRETE_GAUSSIAN, NOISE_NONE, AggregationId, check_descriptor
from secagg.errors import Check, VerificationError
from server.run.descriptor import build_descriptor
from tests.kit.secagg.secagg_samples import make_roster, signed_roster
from tests.kit.server import world as sw

ROSTER = signed_roster(make_roster(5, 1))
NOW = 1_800_000_000

LOCAL = {"mode": "record_local", "noise": 1.0, "steps": 4}
DISTRIBUTED = {"mode": "record_distributed", "noise": 1.0, "steps": 4, "optimiser": "sgd"}


def described(plan, *, round_number=1, step=0):
    return build_descriptor(
        identity=AggregationId(run_id="r", round=round_number, step=step, part=0, attempt=1),
        plan=plan,
        plan_sha256=bytes(32),
        roster=ROSTER,
        ready=dict.fromkeys(ROSTER.roster.silo_ids, ("constant",)),
        adapter=sw.INITIAL,
        adapter_sha256=adapter_sha256(sw.INITIAL),
        now_unix_s=NOW,
    )


@pytest.mark.parametrize(
    ("settings", "mechanism"),
    [
        ({"mode": "none"}, NOISE_NONE),
        ({"mode": "silo", "noise": 1.0}, NOISE_DISCRETE_GAUSSIAN),
        ({**LOCAL, "delta_clip": 2.0}, NOISE_NONE),
        ({**LOCAL, "delta_clip": 2.0, "silo_noise": 0.5}, NOISE_DISCRETE_GAUSSIAN),
        (DISTRIBUTED, NOISE_DISCRETE_GAUSSIAN),
    ],
)
def test_a_descriptor_says_what_is_masked_and_the_protocol_accepts_it(settings, mechanism):
    plan = sw.parsed(sw.plan_toml(**settings))
    spec, d = plan.spec, described(plan)
    release = spec.release
    parameters = check_descriptor(d, ROSTER.roster)
    t, n_min = parameters.t, plan.secure_aggregation.n_min
    assert (d.unit_clip, d.vector_clip, d.max_units) == (
        release.clip_l2,
        release.clip_l2,
        release.max_units,
    )
    assert d.scale == release.grid / release.clip_l2
    assert d.noise_mechanism == mechanism
    assert d.noise_sigma == per_silo_sigma(release.noise_multiplier, release.grid, t, n_min, 1)
    block = MetricsBlock(names=d.metrics.names, bounds=d.metrics.bounds, grid=d.metrics.grid)
    sigma = metrics_sigma(spec, block, tries=4, t=t, n_min=n_min, c=1)
    assert d.metrics.sigma == sigma
    assert (sigma > 0) == (settings["mode"] != "none")
    assert d.privacy_spec_sha256 == spec.sha256()


def test_noise_of_a_record_level_block_that_one_silo_alone_adds_is_not_shared():
    """record_local: every silo adds all of the block's noise; distributed: they share it."""
    local = described(sw.parsed(sw.plan_toml(**LOCAL, delta_clip=2.0)))
    shared = described(sw.parsed(sw.plan_toml(**DISTRIBUTED)))
    honest = shared.threshold - shared.colluding
    assert local.metrics.sigma == pytest.approx(shared.metrics.sigma * honest**0.5)


def test_a_descriptor_is_of_its_step_and_of_its_rounds_factor():
    plan = sw.parsed(sw.plan_toml(**DISTRIBUTED, method="rolora"))
    first, second = described(plan, step=0), described(plan, step=3)
    assert (first.identity.step, second.identity.step) == (0, 3)
    # One factor a round, the other one in the next.
    assert first.layout_sha256 == second.layout_sha256
    assert described(plan, round_number=2).layout_sha256 != first.layout_sha256


def test_more_units_than_the_ring_holds_are_refused_by_the_protocol():
    plan = sw.parsed(sw.plan_toml(**DISTRIBUTED))
    # The plan would be refused; this is the second net.
    record = plan.privacy.record.model_copy(update={"expected_units": 300})
    privacy = plan.privacy.model_copy(update={"record": record})
    plan = plan.model_copy(update={"privacy": privacy})
    with pytest.raises(VerificationError) as caught:
        check_descriptor(described(plan), ROSTER.roster)
    assert caught.value.check is Check.NO_WRAP
