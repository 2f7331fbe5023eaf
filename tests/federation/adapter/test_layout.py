"""Layouts and published bytes: exact round trips, and hostile input that is refused by type."""

from __future__ import annotations

import hashlib
import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load, save

from federation.adapter.encoding import adapter_sha256, decode_adapter, encode_adapter
from federation.adapter.layout import Layout, TensorSpec, factor
from federation.errors import AdapterError, LayoutError

SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)
NAMES = st.text(alphabet="abcXYZ019_.-", min_size=1, max_size=12)
LAYOUTS = st.dictionaries(NAMES, SHAPES, min_size=1, max_size=6)


@given(shapes=LAYOUTS, data=st.data())
def test_flatten_and_unflatten_are_inverse_whatever_the_order(shapes, data):
    names = data.draw(st.permutations(sorted(shapes)))
    tensors = {
        name: np.arange(np.prod(shapes[name]), dtype=np.float32).reshape(shapes[name]) + index
        for index, name in enumerate(names)
    }
    layout = Layout.from_tensors(tensors)
    vector = layout.flatten(tensors)
    assert vector.dtype == np.float32
    assert vector.shape == (layout.dimension,)
    back = layout.unflatten(vector)
    assert list(back) == sorted(shapes)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(back[name], tensor)
    specs = [TensorSpec(name=name, shape=shape) for name, shape in shapes.items()]
    assert Layout(tuple(reversed(specs))) == layout
    assert Layout(tuple(specs)).sha256 == layout.sha256
    decoded = decode_adapter(encode_adapter(tensors), max_bytes=1 << 20)
    assert encode_adapter(decoded) == encode_adapter(tensors)
    assert Layout.from_tensors(decoded) == layout


@given(first=LAYOUTS, second=LAYOUTS)
def test_digests_differ_when_layouts_do(first, second):
    one, two = (
        Layout(tuple(TensorSpec(name=name, shape=shape) for name, shape in shapes.items()))
        for shapes in (first, second)
    )
    assert (one.sha256 == two.sha256) == (first == second)


def test_unflatten_copies_and_keeps_float64():
    layout = Layout((TensorSpec(name="w", shape=(3,)),))
    vector = np.array([1.0, 2.0, 2.0**-40], dtype=np.float64)
    tensors = layout.unflatten(vector)
    assert tensors["w"].dtype == np.float64
    tensors["w"][0] = 9.0
    assert vector[0] == 1.0


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"a": np.zeros(2, np.float32)},
        {"a": np.zeros(2, np.float32), "b": np.zeros(3, np.float32), "c": np.zeros(1, np.float32)},
        {"a": np.zeros(2, np.float32), "b": np.zeros((3, 1), np.float32)},
        {"a": np.zeros(2, np.float64), "b": np.zeros(3, np.float32)},
    ],
    ids=["none", "missing", "unknown", "shape", "dtype"],
)
def test_tensors_that_do_not_fit_are_refused(tensors):
    layout = Layout((TensorSpec(name="a", shape=(2,)), TensorSpec(name="b", shape=(3,))))
    with pytest.raises(LayoutError):
        layout.flatten(tensors)


@pytest.mark.parametrize(
    "vector",
    [np.zeros(4, np.float32), np.zeros(5, np.int64), np.zeros((5, 1), np.float32)],
    ids=["length", "dtype", "rank"],
)
def test_vectors_that_do_not_fit_are_refused(vector):
    layout = Layout((TensorSpec(name="a", shape=(2,)), TensorSpec(name="b", shape=(3,))))
    with pytest.raises(LayoutError):
        layout.unflatten(vector)


@pytest.mark.parametrize(
    ("name", "shape"), [("", (1,)), ("a b", (1,)), ("a" * 513, (1,)), ("a", ()), ("a", (0, 2))]
)
def test_specs_out_of_bounds_are_refused(name, shape):
    with pytest.raises(LayoutError):
        TensorSpec(name=name, shape=shape)


def test_layouts_out_of_bounds_are_refused():
    spec = TensorSpec(name="a", shape=(1,))
    with pytest.raises(LayoutError, match="twice"):
        Layout((spec, spec))
    with pytest.raises(LayoutError):
        Layout(())
    with pytest.raises(LayoutError, match="coordinates"):
        Layout((TensorSpec(name="a", shape=(1 << 16, 1 << 16)),))
    with pytest.raises(LayoutError):
        Layout((spec,)).subset(lambda _: False)


def test_factors_and_pairs_follow_the_exported_names():
    assert factor("base_model.model.l0.q_proj.lora_A.weight") == "A"
    assert factor("base_model.model.l0.q_proj.lora_B.weight") == "B"
    for name in ("lora_A.weight", "l.lora_A.bias", "l.lora_C.weight", "l.lora_A.weight.x"):
        with pytest.raises(LayoutError):
            factor(name)
    a = TensorSpec(name="l.lora_A.weight", shape=(2, 5))
    b = TensorSpec(name="l.lora_B.weight", shape=(7, 2))
    (pair,) = Layout((b, a)).pairs()
    assert (pair.prefix, pair.a, pair.b) == ("l", a, b)
    with pytest.raises(LayoutError, match="only its factor"):
        Layout((a,)).pairs()
    with pytest.raises(LayoutError, match="multiply"):
        Layout((a, TensorSpec(name="l.lora_B.weight", shape=(7, 3)))).pairs()
    with pytest.raises(LayoutError, match="smaller side"):
        Layout((a, TensorSpec(name="l.lora_B.weight", shape=(1, 2)))).pairs()


TENSORS = {
    "l.lora_B.weight": np.array([[1.0], [-2.0]], dtype=np.float32),
    "l.lora_A.weight": np.array([[0.5, 2.0**-126]], dtype=np.float32),
}


def test_the_published_bytes_are_pinned():
    content = encode_adapter(TENSORS)
    assert encode_adapter(dict(reversed(TENSORS.items()))) == content
    assert adapter_sha256(content) == hashlib.sha256(content).digest()
    # The chain of every federation depends on these bits.
    assert adapter_sha256(content).hex() == (
        "08d7ea535343eb69ecee50b6dbf7588fbb8473ccc182c63c3168613b70020254"
    )
    assert struct.unpack_from("<Q", content)[0] % 8 == 0
    for name, tensor in load(content).items():
        np.testing.assert_array_equal(tensor, TENSORS[name])


def test_non_contiguous_tensors_encode_by_value():
    wide = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert encode_adapter({"w": wide.T}) == encode_adapter({"w": np.ascontiguousarray(wide.T)})


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"w": np.array([np.nan], np.float32)},
        {"w": np.array([np.inf], np.float32)},
        {"w": np.zeros(2, np.float64)},
        {"w": np.zeros((0,), np.float32)},
        {"w\n": np.zeros(1, np.float32)},
    ],
    ids=["none", "nan", "inf", "float64", "empty", "name"],
)
def test_what_is_no_adapter_does_not_encode(tensors):
    with pytest.raises(AdapterError):
        encode_adapter(tensors)


def safetensors(header: object, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(start: int = 0, end: int = 4, shape: object = (1,), dtype: str = "F32") -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


ONE = np.ones(1, np.float32).tobytes()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 7,
        b"\xff" * 8,
        struct.pack("<Q", 1 << 62) + b"{}",
        safetensors(b"\xff\xff", b""),
        safetensors(b"[" * 100_000, b""),
        safetensors(b"[1]", b""),
        safetensors({}, b""),
        safetensors({"__metadata__": {"format": "pt"}}, b""),
        safetensors(b'{"a":1,"a":2}', b""),
        safetensors({"a": 1}, ONE),
        safetensors({"a": entry() | {"more": 1}}, ONE),
        safetensors({"a": entry(dtype="F64", end=8)}, ONE * 2),
        safetensors({"a": entry(dtype="I32")}, ONE),
        safetensors({"a": entry(shape="1")}, ONE),
        safetensors({"a": entry(shape=[True])}, ONE),
        safetensors({"a": entry(shape=[-1])}, ONE),
        safetensors({"a": entry(shape=[1 << 40, 1 << 40])}, ONE),
        safetensors({"a": entry(shape=[1] * 9)}, ONE),
        safetensors({"a b": entry()}, ONE),
        safetensors({"a": entry()}, ONE + b"x"),
        safetensors({"a": entry()}, b""),
        safetensors({"a": entry(), "b": entry()}, ONE * 2),
        safetensors({"a": entry(4, 8), "b": entry(8, 12)}, ONE * 2),
        safetensors({"a": entry(0, 8), "b": entry(4, 8)}, ONE * 2),
        safetensors({"a": entry(0, -4)}, ONE),
        safetensors({"a": entry()}, np.array([np.nan], "<f4").tobytes()),
        safetensors({"a": entry()}, np.array([-np.inf], "<f4").tobytes()),
        save({"a": np.zeros(2, np.float16)}),
    ],
    ids=range(29),
)
def test_hostile_bytes_raise_the_typed_error(content):
    with pytest.raises(AdapterError):
        decode_adapter(content, max_bytes=1 << 20)


@given(content=st.binary(max_size=200))
def test_random_bytes_raise_the_typed_error(content):
    with pytest.raises(AdapterError):
        decode_adapter(content, max_bytes=1 << 20)


@given(position=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_a_changed_byte_is_an_error_or_a_different_adapter(position, flip):
    content = bytearray(encode_adapter(TENSORS))
    content[position % len(content)] ^= flip
    try:
        decoded = decode_adapter(bytes(content), max_bytes=1 << 20)
    except AdapterError:
        return
    # What still decodes is another file, and the chain's digest tells them apart.
    assert set(decoded)
    assert adapter_sha256(bytes(content)) != adapter_sha256(encode_adapter(TENSORS))


def test_the_size_limit_is_exact():
    content = encode_adapter(TENSORS)
    decode_adapter(content, max_bytes=len(content))
    with pytest.raises(AdapterError, match="more than"):
        decode_adapter(content, max_bytes=len(content) - 1)


def test_files_of_other_writers_decode():
    decoded = decode_adapter(save(TENSORS), max_bytes=1 << 20)
    assert encode_adapter(decoded) == encode_adapter(TENSORS)
