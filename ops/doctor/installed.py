"""Whether the installed packages are those that this version of chorale asks for.

A requirement is what the wheel's metadata says: a name, comparisons of release numbers, and the
extra it belongs to. Only what chorale's own metadata can hold is understood; a comparison of
another kind is never taken for satisfied.

Covered: ``==``, ``!=``, ``>=``, ``>``, ``<=``, ``<`` over release numbers, extras. Not covered:
environment markers other than the extra, requirements of requirements.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata
from typing import Final

__all__ = ["Requirement", "judge_packages", "parse_requirement"]

DISTRIBUTION: Final = "chorale"
_REQUIREMENT: Final = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?\s*(?P<versions>[^;]*)(?:;(?P<marker>.*))?"
)
_COMPARISON: Final = re.compile(r"(==|!=|>=|<=|>|<)\s*([0-9]+(?:\.[0-9]+)*)")
_RELEASE: Final = re.compile(r"v?(?:[0-9]+!)?([0-9]+(?:\.[0-9]+)*)")
_EXTRA: Final = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")


@dataclass(frozen=True, kw_only=True, slots=True)
class Requirement:
    """One line of the metadata."""

    name: str
    versions: str
    extra: str
    """Empty for the base install."""
    conditional: bool
    """Whether it has a marker beside the extra's."""

    def allows(self, version: str) -> bool:
        """Whether an installed version is one of those; only its release number counts."""
        release = _RELEASE.match(version)
        if release is None:
            return False
        have = _numbers(release[1])
        for part in filter(None, (piece.strip() for piece in self.versions.split(","))):
            comparison = _COMPARISON.fullmatch(part)
            if comparison is None or not _holds(comparison[1], have, _numbers(comparison[2])):
                return False
        return True


def parse_requirement(line: str) -> Requirement | None:
    """Read one line of the metadata; None if it is of no form known here."""
    found = _REQUIREMENT.fullmatch(line.strip())
    if found is None:
        return None
    marker = found["marker"] or ""
    extra = _EXTRA.search(marker)
    return Requirement(
        name=found["name"],
        versions=found["versions"].strip(),
        extra=extra[1] if extra else "",
        conditional=bool(marker.strip()) and _EXTRA.fullmatch(marker.strip()) is None,
    )


def judge_packages(*, extra: str = "") -> tuple[dict[str, str], tuple[str, ...]]:
    """Look at what is installed, an extra's packages too where one is named.

    Name to version, and one line for each package that is absent or of another version.
    """
    versions: dict[str, str] = {}
    problems: list[str] = []
    for line in metadata.requires(DISTRIBUTION) or ():
        required = parse_requirement(line)
        if required is None:
            problems.append(f"requirement not understood: {line}")
            continue
        if required.conditional or required.extra not in {"", extra}:
            continue
        try:
            have = metadata.version(required.name)
        except metadata.PackageNotFoundError:
            problems.append(f"{required.name} is not installed")
            continue
        versions[required.name] = have
        if not required.allows(have):
            problems.append(f"{required.name} {have} is not {required.versions}")
    return versions, tuple(problems)


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(number) for number in release.split("."))


def _holds(operator: str, have: tuple[int, ...], asked: tuple[int, ...]) -> bool:
    width = max(len(have), len(asked))
    left, right = (numbers + (0,) * (width - len(numbers)) for numbers in (have, asked))
    return {
        "==": left == right,
        "!=": left != right,
        ">=": left >= right,
        "<=": left <= right,
        ">": left > right,
        "<": left < right,
    }[operator]
