"""What a peer says of its version: read within bounds, and judged alike by both sides."""

import itertools
import re
import tomllib

import pytest

from federation import version as module
from federation.errors import VersionError, VersionMismatchError
from federation.version import (
    UNANNOUNCED,
    Version,
    read_version,
    require_compatible,
    this_version,
)
from tests.kit.paths import ROOT

NAME, PROTOCOLS = "chorale-version", "chorale-protocol"


def spoken(oldest, newest, name="1.2.3"):
    return Version(name=name, oldest=oldest, newest=newest)


def test_what_is_said_is_what_is_read():
    for version in (this_version(), UNANNOUNCED, spoken(1, 9999), spoken(3, 3, "2.0.0rc1+cpu")):
        assert read_version((("other", b"x"), *version.words, ("chorale-trust", "00"))) == version


@pytest.mark.parametrize("words", [None, (), (("user-agent", "grpc-python/1.85.1"),)])
def test_silence_is_the_release_that_says_nothing(words):
    assert read_version(words) is UNANNOUNCED


@pytest.mark.parametrize(
    "words",
    [
        ((NAME, "0.2.0"),),
        ((PROTOCOLS, "1-2"),),
        ((NAME, "0.2.0"), (NAME, "0.2.0"), (PROTOCOLS, "1-2")),
        ((NAME, "0.2.0"), (PROTOCOLS, "1-2"), (PROTOCOLS, "1-2")),
        *(
            ((NAME, name), (PROTOCOLS, "1-2"))
            for name in ("", "v1", "1" * 33, "1 2", "1\n2", "1.0é", "١", b"0.2.0", None, 2)
        ),
        *(
            ((NAME, "0.2.0"), (PROTOCOLS, protocols))
            for protocols in (
                "", "2", "1-", "-2", "0-2", "1-0", "2-1", "01-2", "1-2-3", "1-2\n", " 1-2",
                "1-99999", "9" * 5000, "١-٢", b"1-2", None, (1, 2),
            )
        ),
    ],
)  # fmt: skip
def test_any_other_form_is_refused(words):
    with pytest.raises(VersionError) as caught:
        read_version(words)
    assert not isinstance(caught.value, VersionMismatchError)
    assert len(str(caught.value)) < 100


def test_both_sides_come_to_the_same_verdict_and_name_the_same_side():
    ranges = [pair for pair in itertools.product(range(1, 5), repeat=2) if pair[0] <= pair[1]]
    for one, other in itertools.product(ranges, repeat=2):
        a, b = spoken(*one, name="1.0"), spoken(*other, name="2.0")
        shared = set(range(one[0], one[1] + 1)) & set(range(other[0], other[1] + 1))
        said = []
        for ours, theirs, us, them in ((a, b, "A", "B"), (b, a, "B", "A")):
            try:
                require_compatible(ours, theirs, us=us, them=them)
            except VersionMismatchError as error:
                said.append(str(error))
        assert len(said) == (0 if shared else 2)
        for text in said:
            behind = "A" if one[1] < other[1] else "B"
            assert text.startswith(f"upgrade {behind}: ")
            assert str(a) in text
            assert str(b) in text
            # It travels as metadata, and version 0.1.0 cuts it at 200.
            assert text.isascii()
            assert len(text) <= 200


def test_the_longest_text_fits_where_version_0_1_0_shows_it():
    name = "9" * 32
    with pytest.raises(VersionMismatchError) as caught:
        require_compatible(
            spoken(1000, 1001, name), spoken(8888, 9999, name), us="the coordinator", them="s" * 20
        )
    assert len(str(caught.value)) <= 200


def test_the_previous_release_is_another_one():
    """tests/system/upgrade builds it; the commit itself is not in every clone."""
    root = ROOT
    version, commit = (root / "deploy" / "previous-release").read_text().split()
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert version != project["version"]
    assert re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", version)
    assert re.fullmatch(r"[0-9a-f]{40}", commit)


def test_this_version_is_what_is_installed(monkeypatch):
    assert this_version().name == module.installed_version()
    assert (this_version().oldest, this_version().newest) == (1, 3)
    for strange in ("unknown", "v0.2", "1" * 40):
        this_version.cache_clear()
        monkeypatch.setattr(module, "installed_version", lambda strange=strange: strange)
        assert this_version().name == "0"
        assert read_version(this_version().words) == this_version()
    this_version.cache_clear()
