"""Verification step by step: rounds of several releases, the optimiser, the gauge at the end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from federation.adapter.encoding import adapter_sha256, encode_adapter
from federation.adapter.layout import Layout
from federation.aggregate.registry import NO_GAUGE, make_aggregator
from federation.chain.record import AdapterRecord
from federation.chain.replay import replay
from federation.chain.sums import encode_sum, mean_of_release, sum_sha256
from federation.chain.verify import verify_update
from federation.errors import LayoutError, OptimiserStateError, UpdateError
from tests.kit.federation.adapters import lora, plan_of, product, record_plan
from tests.kit.federation.records import one_sum

SILOS = ("ant", "bee", "cat")
STEPS = 3


def history(plan, rounds: int = 2) -> list[dict[str, object]]:
    """What an honest coordinator publishes, release by release, without the optimiser."""
    tensors = lora(4)
    aggregator = plan.aggregator(Layout.from_tensors(tensors))
    optimiser, draw, made = plan.optimiser(), np.random.default_rng(8), []
    for number in range(1, rounds + 1):
        dimension = aggregator.shared_layout(number).dimension
        for step in range(STEPS):
            previous = encode_adapter(tensors)
            total = draw.integers(-(2**18), 2**18, dimension + 1).astype(np.int32)
            mean = mean_of_release(plan, total[:dimension], len(SILOS))
            move = optimiser.move(mean, round_number=number, step=step)
            tensors = aggregator.apply(tensors, move, number, last_step=step == STEPS - 1)
            published = encode_adapter(tensors)
            record = AdapterRecord(
                run_id="run",
                round=number,
                step=step,
                kind="aggregated",
                adapter_sha256=adapter_sha256(published),
                plan_sha256=b"p" * 32,
                base_model_sha256=b"b" * 32,
                parent_sha256=adapter_sha256(previous),
                record_parent_sha256=b"r" * 32,
                parts=one_sum(sum_sha256=sum_sha256(encode_sum(total)), survivors=SILOS),
            )
            made.append(
                {
                    "plan": plan,
                    "record": record,
                    "previous": previous,
                    "totals": [total],
                    "published": published,
                }
            )
    return made


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize(
    ("method", "gauge"),
    [("fedavg", False), ("fedavg", True), ("rolora", False), ("rolora", True), ("ffa", False)],
)
def test_every_step_of_two_rounds_verifies(method, gauge, optimiser):
    plan = record_plan("record_distributed", method=method, gauge=gauge, optimiser=optimiser)
    followed = plan.optimiser()
    for release in history(plan):
        verify_update(**release, optimiser=followed)
        # A check that was interrupted after it moved the optimiser on is made again.
        verify_update(**release, optimiser=followed)


def test_a_silo_that_joins_within_a_round_replays_it():
    plan = record_plan("record_distributed", gauge=True)
    releases = history(plan)
    late = plan.optimiser()
    with pytest.raises(OptimiserStateError, match="replay"):
        verify_update(**releases[5], optimiser=late)
    dimension = (
        plan.aggregator(Layout.from_tensors(lora(4)))
        .shared_layout(releases[5]["record"].round)
        .dimension
    )
    earlier = [(release["record"], release["totals"]) for release in releases[3:5]]
    replay(late, plan=plan, round_number=2, dimension=dimension, releases=earlier)
    verify_update(**releases[5], optimiser=late)


def test_the_gauge_waits_for_the_end_of_the_round():
    """Within a round the step is byte-exact; a gauge there would leave the optimiser's basis."""
    plan = record_plan("record_distributed", gauge=True)
    releases = history(plan)
    tensors = lora(4)
    aggregator = plan.aggregator(Layout.from_tensors(tensors))
    mean = mean_of_release(plan, releases[0]["totals"][0][:-1], len(SILOS))
    move = plan.optimiser().move(mean, round_number=1, step=0)
    gauged = encode_adapter(aggregator.apply(tensors, move, 1, last_step=True))
    assert gauged != releases[0]["published"]
    record = replace(releases[0]["record"], adapter_sha256=adapter_sha256(gauged))
    forged = releases[0] | {"published": gauged, "record": record}
    with pytest.raises(UpdateError, match="byte for byte"):
        verify_update(**forged, optimiser=plan.optimiser())
    # At the end of the round an adapter without the gauge is as wrong.
    followed = plan.optimiser()
    for release in releases[:2]:
        verify_update(**release, optimiser=followed)
    plain = record_plan("record_distributed", gauge=False)
    ungauged = history(plain)[2]["published"]
    record = replace(releases[2]["record"], adapter_sha256=adapter_sha256(ungauged))
    with pytest.raises(UpdateError, match=r"orthonormal|balanced"):
        verify_update(
            **(releases[2] | {"published": ungauged, "record": record}), optimiser=followed
        )


def test_another_history_optimiser_or_batch_is_found():
    plan = record_plan("record_distributed")
    releases = history(plan)
    tampered = plan.optimiser()
    other = dict(releases[0])
    total = other["totals"][0].copy()
    total[:50] += 2**12
    dimension = total.size - 1
    tampered.move(mean_of_release(plan, total[:dimension], len(SILOS)), round_number=1, step=0)
    with pytest.raises(UpdateError, match="byte for byte"):
        verify_update(**releases[1], optimiser=tampered)
    descent = record_plan("record_distributed", optimiser="sgd")
    with pytest.raises(UpdateError, match="byte for byte"):
        verify_update(**(releases[0] | {"plan": descent}), optimiser=descent.optimiser())
    delta = plan_of("rolora")
    with pytest.raises(UpdateError, match="byte for byte"):
        verify_update(**(history(descent)[0] | {"plan": delta}), optimiser=delta.optimiser())


# ffa ---------------------------------------------------------------------------------------------


def test_ffa_trains_b_alone_and_keeps_every_bit_of_a():
    before = lora(3)
    layout = Layout.from_tensors(before)
    method = make_aggregator("ffa", layout, server_step=2.0, gauge=False)
    for number in (1, 2, 7):
        shared = method.shared_layout(number)
        assert [spec.name for spec in shared.specs] == [
            name for name in sorted(before) if "lora_B" in name
        ]
    mean = np.random.default_rng(1).normal(size=shared.dimension)
    after = method.apply(before, mean, 2)
    moved = {tile.spec.name for tile in method.moved_tiles(before, mean, 2)}
    for name, tensor in before.items():
        if "lora_A" in name:
            assert after[name] is tensor
            assert name not in moved
        else:
            assert name in moved
    start = shared.flatten({spec.name: before[spec.name] for spec in shared.specs})
    found = shared.flatten({spec.name: after[spec.name] for spec in shared.specs})
    np.testing.assert_array_equal(found, (start.astype(np.float64) + 2.0 * mean).astype(np.float32))


def test_ffa_averages_products_exactly():
    """mean(B_k)·A = mean(B_k·A): the reason for freezing A; with both factors moving it fails."""
    before, draw = lora(3), np.random.default_rng(2)
    layout = Layout.from_tensors(before)
    errors = {}
    for name in ("ffa", "fedavg"):
        method = make_aggregator(name, layout, server_step=1.0, gauge=False)
        shared = method.shared_layout(1)
        moves = draw.normal(size=(4, shared.dimension)) * 0.3
        averaged = method.apply(before, moves.mean(axis=0), 1)
        silos = [method.apply(before, move, 1) for move in moves]
        prefix = "model.layer0"
        exact = np.mean([product(silo, prefix) for silo in silos], axis=0)
        errors[name] = np.linalg.norm(product(averaged, prefix) - exact) / np.linalg.norm(exact)
    assert errors["ffa"] < 1e-6
    assert errors["fedavg"] > 1e-3


def test_ffa_excludes_the_gauge_and_needs_pairs():
    layout = Layout.from_tensors(lora(3))
    with pytest.raises(ValueError, match="keeps A"):
        make_aggregator("ffa", layout, server_step=1.0, gauge=True)
    assert set(NO_GAUGE) == {"ffa", "fedsa"}
    method = make_aggregator("ffa", layout, server_step=1.0, gauge=False)
    with pytest.raises(LayoutError, match="rewrite"):
        method.regauge(lora(3), 2)
    plain = Layout.from_tensors({"w": np.zeros(4, np.float32)})
    with pytest.raises(LayoutError, match="LoRA"):
        make_aggregator("ffa", plain, server_step=1.0, gauge=False)


def test_an_ffa_update_that_touches_a_is_found():
    plan = record_plan("record_distributed", method="ffa", optimiser="sgd")
    release = history(plan)[0]
    tensors = {name: tensor.copy() for name, tensor in lora(4).items()}
    aggregator = plan.aggregator(Layout.from_tensors(tensors))
    mean = mean_of_release(plan, release["totals"][0][:-1], len(SILOS))
    moved = dict(aggregator.apply(tensors, mean, 1))
    assert encode_adapter(moved) == release["published"]
    a = moved["model.layer1.lora_A.weight"].copy()
    a.view(np.uint32)[0, 0] ^= 1
    forged = encode_adapter(moved | {"model.layer1.lora_A.weight": a})
    record = replace(release["record"], adapter_sha256=adapter_sha256(forged))
    with pytest.raises(UpdateError, match="byte for byte"):
        verify_update(
            **(release | {"published": forged, "record": record}), optimiser=plan.optimiser()
        )
