"""Verification: honest updates pass, and each way of cheating is named."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from federation.adapter.encoding import TILE, adapter_sha256, decode_adapter, encode_adapter
from federation.adapter.layout import Layout
from federation.aggregate.server_step import mean_of_sum
from federation.chain.record import AdapterRecord
from federation.chain.sums import encode_sum, sum_sha256
from federation.chain.verify import verify_update
from federation.errors import UpdateError
from federation.plan.plan import Plan
from tests.kit.federation.adapters import CLIP, GRID, SIDES, lora, plan_of
from tests.kit.federation.records import one_sum, resummed
from tests.kit.paths import ROOT

SILOS = ("ant", "bee", "cat")
CASES = [
    (method, gauge, round_number, b_scale)
    for method in ("fedavg", "rolora")
    for gauge in (False, True)
    for round_number in (1, 2)
    for b_scale in (0.0, 1.0)
]
CASES += [
    (method, False, round_number, 1.0) for method in ("ffa", "fedsa") for round_number in (1, 2)
]
CASES += [("fedsvd", gauge, 2, b_scale) for gauge in (False, True) for b_scale in (0.0, 1.0)]


def honest(
    plan: Plan, round_number: int, *, b_scale: float = 1.0, move: int = 2**14
) -> dict[str, object]:
    """Everything a silo is given after an honest round."""
    tensors = lora(11, b_scale=b_scale)
    aggregator = plan.aggregator(Layout.from_tensors(tensors))
    dimension = aggregator.shared_layout(round_number).dimension
    metrics = 3
    total = np.random.default_rng(12).integers(-move, move + 1, dimension + metrics)
    mean = mean_of_sum(total[:dimension], scale=GRID / CLIP, count=len(SILOS))
    published = encode_adapter(aggregator.apply(tensors, mean, round_number))
    return given(plan, round_number, encode_adapter(tensors), total, published)


def given(
    plan: Plan, round_number: int, previous: bytes, total: np.ndarray, published: bytes
) -> dict[str, object]:
    record = AdapterRecord(
        run_id="run",
        round=round_number,
        kind="aggregated",
        adapter_sha256=adapter_sha256(published),
        plan_sha256=b"p" * 32,
        base_model_sha256=b"b" * 32,
        parent_sha256=adapter_sha256(previous),
        record_parent_sha256=b"r" * 32,
        parts=one_sum(sum_sha256=sum_sha256(encode_sum(total)), survivors=SILOS),
    )
    return {
        "plan": plan,
        "record": record,
        "previous": previous,
        "totals": [total],
        "published": published,
        "optimiser": plan.optimiser(),
    }


def republished(case: dict, tensors: dict[str, np.ndarray]) -> dict[str, object]:
    """The same round with another adapter, under a record that names it."""
    published = encode_adapter(tensors)
    return case | {
        "published": published,
        "record": replace(case["record"], adapter_sha256=adapter_sha256(published)),
    }


def tensors_of(case: dict) -> dict[str, np.ndarray]:
    content = case["published"]
    return {
        name: tensor.copy()
        for name, tensor in decode_adapter(content, max_bytes=len(content)).items()
    }


@pytest.mark.parametrize(("method", "gauge", "round_number", "b_scale"), CASES)
def test_an_honest_update_passes(method, gauge, round_number, b_scale):
    plan = plan_of(method, gauge=gauge, server_step=1.5)
    verify_update(**honest(plan, round_number, b_scale=b_scale))


@pytest.mark.parametrize("gauge", [False, True])
@pytest.mark.parametrize("method", ["fedavg", "rolora"])
@pytest.mark.parametrize("round_number", [1, 2])
def test_a_round_of_zeros_passes(method, gauge, round_number):
    plan = plan_of(method, gauge=gauge)
    verify_update(**honest(plan, round_number, b_scale=0.0, move=0))


@pytest.mark.parametrize("method", ["rolora", "fedsvd"])
@pytest.mark.parametrize("round_number", [1, 2])
def test_a_chain_of_gauged_rounds_stays_verifiable(round_number, method):
    plan = plan_of(method, gauge=method == "rolora")
    case = honest(plan, round_number, b_scale=0.0)
    for later in range(round_number + 1, round_number + 6):
        previous = case["published"]
        tensors = decode_adapter(previous, max_bytes=len(previous))
        aggregator = plan.aggregator(Layout.from_tensors(tensors))
        dimension = aggregator.shared_layout(later).dimension
        total = np.random.default_rng(later).integers(-(2**14), 2**14, dimension)
        mean = mean_of_sum(total, scale=GRID / CLIP, count=len(SILOS))
        published = encode_adapter(aggregator.apply(tensors, mean, later))
        case = given(plan, later, previous, total, published)
        verify_update(**case)


@pytest.mark.parametrize("round_number", [1, 2])
def test_one_flipped_bit_without_gauge_is_found(round_number):
    case = honest(plan_of("rolora"), round_number)
    for name in tensors_of(case):
        tensors = tensors_of(case)
        tensors[name].view(np.uint32)[0, 0] ^= 1
        with pytest.raises(UpdateError, match="byte for byte"):
            verify_update(**republished(case, tensors))


def test_a_bit_in_the_last_tile_and_the_other_zero_are_found():
    plan = plan_of("fedavg")
    tensors = {"w": np.ones(2 * TILE + 7, np.float32), "z": np.zeros(3, np.float32)}
    total = np.zeros(2 * TILE + 10, np.int32)
    good = encode_adapter(tensors)
    verify_update(**given(plan, 1, good, total, good))
    for name, value in (("w", np.nextafter(np.float32(1), np.float32(2))), ("z", -0.0)):
        wrong = {key: tensor.copy() for key, tensor in tensors.items()}
        wrong[name][-1] = value
        with pytest.raises(UpdateError, match="byte for byte"):
            verify_update(**given(plan, 1, good, total, encode_adapter(wrong)))


def test_memory_maps_verify_like_bytes():
    case = honest(plan_of("rolora", gauge=True), 2)
    mapped = {name: memoryview(case[name]) for name in ("previous", "published")}
    total = np.frombuffer(encode_sum(case["totals"][0]), "<i4")
    verify_update(**case | mapped | {"totals": [total]})


@pytest.mark.parametrize("method", ["fedavg", "rolora"])
@pytest.mark.parametrize("round_number", [1, 2])
def test_a_changed_product_under_the_gauge_is_found(method, round_number):
    """One layer moved by 1e-4 of its norm, in a direction that keeps the orthonormal factor."""
    case = honest(plan_of(method, gauge=True), round_number)
    free = "A" if method == "rolora" and round_number == 1 else "B"
    for prefix in SIDES:
        tensors = tensors_of(case)
        name = f"{prefix}.lora_{free}.weight"
        tensors[name] = (tensors[name] * np.float32(1 + 1e-4)).astype(np.float32)
        with pytest.raises(UpdateError, match="product"):
            verify_update(**republished(case, tensors))


@pytest.mark.parametrize("method", ["fedavg", "rolora"])
@pytest.mark.parametrize("round_number", [1, 2])
def test_lopsided_factors_of_the_right_product_are_found(method, round_number):
    case = honest(plan_of(method, gauge=True), round_number)
    for prefix in SIDES:
        tensors = tensors_of(case)
        tensors[f"{prefix}.lora_A.weight"] *= np.float32(2.0**10)
        tensors[f"{prefix}.lora_B.weight"] /= np.float32(2.0**10)
        with pytest.raises(UpdateError, match=r"orthonormal|balanced"):
            verify_update(**republished(case, tensors))


@pytest.mark.parametrize("round_number", [1, 2])
def test_fedsvd_is_verified_as_what_it_says(round_number):
    """The rows of A are orthonormal after every round, whatever the plan says of the gauge."""
    plan = plan_of("fedsvd")
    case = honest(plan, round_number)
    ungauged = honest(plan_of("ffa"), round_number)
    with pytest.raises(UpdateError, match="orthonormal"):
        verify_update(**republished(case, tensors_of(ungauged)))
    for prefix in SIDES:
        tensors = tensors_of(case)
        tensors[f"{prefix}.lora_B.weight"] *= np.float32(1 + 1e-4)
        with pytest.raises(UpdateError, match="product"):
            verify_update(**republished(case, tensors))
        tensors = tensors_of(case)
        tensors[f"{prefix}.lora_A.weight"] *= np.float32(2.0)
        tensors[f"{prefix}.lora_B.weight"] /= np.float32(2.0)
        with pytest.raises(UpdateError, match="orthonormal"):
            verify_update(**republished(case, tensors))


def test_fedsvd_keeps_the_rows_of_a_where_nothing_was_learned():
    """B = 0 makes every A right for the product; which one is not the coordinator's to choose."""
    case = honest(plan_of("fedsvd"), 1, b_scale=0.0, move=0)
    verify_update(**case)
    for prefix in SIDES:
        tensors = tensors_of(case)
        name = f"{prefix}.lora_A.weight"
        tensors[name] = np.eye(*tensors[name].shape, dtype=np.float32)
        with pytest.raises(UpdateError, match="left their span"):
            verify_update(**republished(case, tensors))


def test_turned_factors_are_not_balanced():
    case = honest(plan_of("fedavg", gauge=True), 1)
    turn, _ = np.linalg.qr(np.random.default_rng(2).normal(size=(3, 3)))
    tensors = tensors_of(case)
    a, b = "model.layer0.lora_A.weight", "model.layer0.lora_B.weight"
    tensors[a] = (turn.T @ tensors[a]).astype(np.float32)
    tensors[b] = (tensors[b] @ turn).astype(np.float32)
    with pytest.raises(UpdateError, match="balanced"):
        verify_update(**republished(case, tensors))


@pytest.mark.parametrize("gauge", [False, True])
def test_each_digest_must_be_the_records(gauge):
    case = honest(plan_of("rolora", gauge=gauge), 1)
    other = encode_adapter(lora(99))
    total = case["totals"][0].copy()
    total[0] += 1
    for name, value in (("previous", other), ("published", other), ("totals", [total])):
        with pytest.raises(UpdateError, match="not the one that the record names"):
            verify_update(**case | {name: value})


@pytest.mark.parametrize("gauge", [False, True])
def test_a_different_sum_count_or_step_is_found(gauge):
    plan = plan_of("rolora", gauge=gauge)
    case = honest(plan, 1)
    total = case["totals"][0].copy()
    total[:100] += 2**12
    record = resummed(case["record"], sum_sha256=sum_sha256(encode_sum(total)))
    fewer = resummed(case["record"], survivors=SILOS[:2])
    for wrong in (
        {"totals": [total], "record": record},
        {"record": fewer},
        {"plan": plan_of("rolora", gauge=gauge, server_step=1.01)},
        {"plan": plan_of("fedavg", gauge=gauge)},
    ):
        with pytest.raises(UpdateError):
            verify_update(**case | wrong)


def test_the_metrics_part_of_the_sum_moves_nothing():
    case = honest(plan_of("rolora", gauge=True), 1)
    total = case["totals"][0].copy()
    total[-1] += 1000
    record = resummed(case["record"], sum_sha256=sum_sha256(encode_sum(total)))
    verify_update(**case | {"totals": [total], "record": record})


def test_a_second_encoding_of_the_right_tensors_is_refused():
    from safetensors.numpy import save

    case = honest(plan_of("rolora", gauge=True), 1)
    published = save(tensors_of(case))
    assert published != case["published"]
    record = replace(case["record"], adapter_sha256=adapter_sha256(published))
    with pytest.raises(UpdateError):
        verify_update(**case | {"published": published, "record": record})


@pytest.mark.parametrize("gauge", [False, True])
def test_bytes_that_are_no_adapter_raise_the_typed_error(gauge):
    case = honest(plan_of("rolora", gauge=gauge), 1)
    published = b"\x00" * 64
    record = replace(case["record"], adapter_sha256=adapter_sha256(published))
    with pytest.raises(UpdateError):
        verify_update(**case | {"published": published, "record": record})
    short = np.zeros(4, np.int64)
    record = resummed(case["record"], sum_sha256=sum_sha256(encode_sum(short)))
    with pytest.raises(UpdateError, match="elements"):
        verify_update(**case | {"totals": [short], "record": record})


def test_a_skipped_record_has_no_update():
    case = honest(plan_of("rolora"), 1)
    record = replace(
        case["record"],
        kind="skipped",
        adapter_sha256=case["record"].parent_sha256,
        parts=(),
    )
    with pytest.raises(UpdateError, match="skipped"):
        verify_update(**case | {"record": record})


PUBLISH = """
import sys
sys.path[:0] = sys.argv[2:]
from tests.federation.chain.test_verify import repeated
sys.stdout.buffer.write(repeated(sys.argv[1])["published"])
"""


def repeated(method: str) -> dict[str, object]:
    """A round whose products have one singular value eight times over.

    Any turn of the singular vectors is then as good as any other, so rounding picks one, and the
    bits of the kernels show.
    """
    hadamard = np.ones((1, 1), np.float32)
    for _ in range(6):
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    draw = np.random.default_rng(5)
    tensors = {}
    for layer in range(4):
        columns = draw.permutation(64)
        tensors[f"l{layer}.lora_A.weight"] = hadamard[:, columns[:8]].T / np.float32(8)
        tensors[f"l{layer}.lora_B.weight"] = hadamard[:, columns[8:16]] / np.float32(8)
    plan = plan_of(method, gauge=True)
    aggregator = plan.aggregator(Layout.from_tensors(tensors))
    dimension = aggregator.shared_layout(1).dimension
    published = encode_adapter(aggregator.apply(tensors, np.zeros(dimension), 1))
    total = np.zeros(dimension, np.int64)
    return given(plan, 1, encode_adapter(tensors), total, published)


@pytest.mark.parametrize("method", ["fedavg", "rolora", "fedsvd"])
def test_other_cpu_kernels_verify_each_others_updates(method):
    root = ROOT
    paths = [str(root), str(root / "proto")]
    case = repeated(method)
    seen = set()
    for core in ("Prescott", "Haswell"):
        published = subprocess.run(
            [sys.executable, "-c", PUBLISH, method, *paths],
            env=os.environ | {"OPENBLAS_CORETYPE": core},
            check=True,
            capture_output=True,
        ).stdout
        seen.add(published)
        record = replace(case["record"], adapter_sha256=adapter_sha256(published))
        verify_update(**case | {"published": published, "record": record})
    if "openblas" in np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"] and (
        platform.machine() == "x86_64"
    ):
        assert len(seen) == 2, "the kernels agree, so this test shows nothing"
