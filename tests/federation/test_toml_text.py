"""What is refused before TOML is parsed, and that the pass before sees what the parser sees."""

import time
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federation.errors import TomlError
from federation.plan.toml import (
    MAX_ENTRIES,
    MAX_KEY_PARTS,
    MAX_NESTING,
    MAX_TOML_BYTES,
    parse_toml,
    tuples_of,
)

KEY = ".".join("a" * MAX_KEY_PARTS)
"""As many parts as are read."""
NEST = "[" * MAX_NESTING + "]" * MAX_NESTING
ENTRIES = "".join(f"k{number} = 1\n" for number in range(MAX_ENTRIES))
SPACE = 64 << 10


def dotted(parts):
    return ".".join("a" * parts)


HOSTILE = {
    "a long dotted key": f"{dotted(1200)} = 1",
    "64 KB of one": f"{dotted(32_000)} = 1",
    "quoted and spaced": " . ".join(["'a'"] * 1200) + " = 1",
    "a long header": f"[{dotted(32_000)}]",
    "a long header of an array": f"[[{dotted(30_000)}]]\nb = 1",
    "dotted keys under a long header": f"[{dotted(10_000)}]\n" + f"{dotted(10)} = 1\n" * 1000,
    "in an inline table": f"x = {{ {dotted(1200)} = 1 }}",
    "after a string": f'x = {{ y = """a""""", {dotted(1200)} = 1 }}',
    "arrays": "x = " + "[" * 20_000,
    "closed arrays": "x = " + "[" * 400 + "]" * 400,
    "inline tables": "x = " + "{a=" * 300 + "1" + "}" * 300,
    "both": "x = " + "[{a=" * 300 + "1" + "}]" * 300,
    "over lines": "x = [\n" * 400 + "]" * 400,
    "many keys": "".join(f"k{number}=1\n" for number in range(8000)),
    "many headers": "[[a]]\n[a.b]\n" * 5000,
    "many inline tables": "x = [" + "{a=1}," * 9000 + "]",
    "long": "#" * (MAX_TOML_BYTES + 1),
}


@pytest.mark.parametrize(
    "number",
    [f"0x{'f' * 3600}", f"-{'9' * 20}", f"[[1, 0o{'7' * 5000}]]", str(2**63)],
    ids=["hexadecimal", "negative", "octal in arrays", "one more than fits"],
)
def test_an_integer_that_could_not_even_be_printed_is_refused(number):
    with pytest.raises(TomlError, match="64 bits"):
        parse_toml(f"[rounds]\ncount = {number}".encode())
    assert parse_toml(f"n = {2**63 - 1}\nm = -{2**63}\nb = true".encode())["b"] is True


@pytest.mark.parametrize("shape", HOSTILE)
def test_what_would_be_slow_or_deep_is_refused_at_once(shape):
    started = time.process_time()
    with pytest.raises(TomlError, match=r"keep it within|no document of ours needs that"):
        parse_toml(HOSTILE[shape].encode())
    assert time.process_time() - started < 1.0


@pytest.mark.parametrize(
    "text",
    [
        f"{KEY} = 1",
        f"[{KEY}]\n{KEY} = {{ {KEY} = 1 }}",
        f"x = {NEST}",
        ENTRIES,
        # What stands in strings, in comments and between values is no key and no bracket.
        f"x = 'a.b.{dotted(30)} [[[[[[[[[[' # {dotted(30)} [[[[[[[[[[{{",
        f'x = "\\"[[[[[[[[[[" # " {dotted(30)}',
        f'x = """\\"""[[[[[[[[[[\n# {dotted(30)} = """\ny = {NEST}',
        "x = '''''[[[[[[[[[[\n= ''''' # '''\ny = [1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5, 9.5]",
        "[a]\nx = 1.5\n[b]\nx = 1979-05-27T07:32:00.5\n[c]\nx.y = 'z'",
    ],
    ids=[
        "key",
        "keys in keys",
        "nest",
        "entries",
        "literal string and comment",
        "string and comment",
        "long string",
        "long literal string",
        "fractions",
    ],
)
def test_what_is_within_the_bounds_is_what_tomllib_reads(text):
    assert parse_toml(text.encode()) == tomllib.loads(text)


@pytest.mark.parametrize(
    "text",
    [f"{KEY}.a = 1", f"[{KEY}.a]", f"x = [{NEST}]", f"x = {{ y = {NEST} }}", f"{ENTRIES}z=1"],
    ids=["key", "header", "nest", "nest in a table", "entries"],
)
def test_one_more_is_refused(text):
    tomllib.loads(text)
    with pytest.raises(TomlError):
        parse_toml(text.encode())


def depth(value):
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return 1 + max(map(depth, inner), default=0)
    return 0


@given(
    quote=st.sampled_from(('"', "'", '"""', "'''", "")),
    text=st.text("\"'\\\n#[]{}.=a,", max_size=12),
    then=st.sampled_from((NEST, f"{{ {KEY}.a = 1 }}")),
)
@settings(max_examples=3000, deadline=None)
def test_no_string_and_no_comment_hides_what_follows_it(quote, text, then):
    """Whatever the parser takes for a string ends where the pass believes that it ends."""
    for before in (f"{quote}{text}{quote}, ", f"#{text}\n"):
        document = f"x = [{before}{then}]"
        try:
            read = tomllib.loads(document)
        except tomllib.TOMLDecodeError:
            read = None
        # The list of x and what follows are one level more than is read.
        if read is None or depth(read["x"]) > MAX_NESTING:
            with pytest.raises(TomlError):
                parse_toml(document.encode())
        else:
            assert parse_toml(document.encode()) == read


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe", "not UTF-8 at byte 0"),
        (b"x = ", "not TOML"),
        (b"x = 1\nx = 2", "not TOML"),
        (b"x = 2021-02-30", "not TOML"),
        (b"x = " + b"9" * 5000, "cannot be read"),
        (b"x = 1\n\n" + KEY.encode() + b".a = 1", "line 3"),
    ],
    ids=["encoding", "no value", "key twice", "no such day", "long number", "long key"],
)
def test_what_is_wrong_is_said(content, said):
    with pytest.raises(TomlError, match=said):
        parse_toml(content)


@pytest.mark.parametrize(
    "unit", ['"""', "'''", '"', "'", '"""\\', "\\", "#", "]", ".", "a.", "\r\n"]
)
def test_the_pass_takes_time_with_the_length_alone(unit):
    started = time.process_time()
    with pytest.raises(TomlError):
        parse_toml((unit * (SPACE // len(unit)) + "\n]").encode())
    assert time.process_time() - started < 1.0


def test_arrays_become_tuples_at_every_depth():
    assert tuples_of(parse_toml(b"x = [[1], {y = [2]}]")) == {"x": ((1,), {"y": (2,)})}
