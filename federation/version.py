"""Which version a process is, what it says of that beside each call, and who can work with whom.

Beside every call of a silo and every answer of the coordinator stand two words of metadata:
``chorale-version``, for people, and ``chorale-protocol``, the oldest and the newest protocol that
the version speaks, as ``1-2``. Two versions speak the newest protocol that both know. If there is
none, the call is refused, and the side whose newest protocol is lower is the one to upgrade: both
sides come to the same verdict, whoever speaks first.

What each protocol has beyond the one before it:

1. Version 0.1.0, which says nothing of itself: silence is this protocol.
2. MembershipService, that is renewed certificates, audit heads and leaving; rosters that members
   approved; records of rollbacks; pre-flights; the plan's keys ``evolve.learning_rate_schedule``,
   ``rounds.max_quarantined``, ``sit_out_after``, ``sit_out_rounds``, ``step_answer_after_s``, and
   ``privacy.exact_figures``, without which a plan without noise has no figures.

3. Runs of suite v2: descriptors, bundles, shares, uploads and records of version 2, round tasks
   that name who is invited. A run of suite v1 is served as protocol 2 serves it. Counter-offers in
   the answers to pre-flights, and what a plan says of them: ``[negotiation]`` and
   ``rounds.start_after_unix_s``.

Covered: words that are absent, repeated, too long or malformed. Not covered: whether they are true:
a peer gains nothing by a lie but a later refusal; what it may do is checked where it does it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import Any, Final

from federation.errors import VersionError, VersionMismatchError

__all__ = [
    "APPROVED_ROSTERS",
    "EXACT_FIGURES",
    "HYBRID",
    "LEARNING_RATE_SCHEDULE",
    "MEMBERSHIP",
    "NEWEST_PROTOCOL",
    "OFFERS",
    "OLDEST_PROTOCOL",
    "PREFLIGHTS",
    "ROLLBACKS",
    "ROUNDS_GO_WRONG",
    "STEP_ANSWERS",
    "UNANNOUNCED",
    "Version",
    "installed_version",
    "read_version",
    "require_compatible",
    "this_version",
]

OLDEST_PROTOCOL: Final = 1
NEWEST_PROTOCOL: Final = 3
MEMBERSHIP: Final = 2
"""The protocol from which on a coordinator serves MembershipService."""
APPROVED_ROSTERS: Final = 2
"""The protocol from which on a silo can verify a roster that members approved."""
LEARNING_RATE_SCHEDULE: Final = 2
"""The protocol from which on a silo knows that key of a plan."""
EXACT_FIGURES: Final = 2
"""The protocol from which on a silo takes part without noise: what figures there are then is a key
of the plan, and an older silo knows one answer only."""
ROLLBACKS: Final = 2
"""The protocol from which on a silo can follow a run that goes back to an earlier round."""
PREFLIGHTS: Final = 2
"""The protocol from which on a silo answers a pre-flight."""
ROUNDS_GO_WRONG: Final = 2
"""The protocol from which on a silo knows a plan's keys about quarantines and stalling silos."""
HYBRID: Final = 3
"""The protocol from which on a silo can take part in a run of suite v2."""
OFFERS: Final = 3
"""The protocol from which on a silo may answer a pre-flight with an offer."""
STEP_ANSWERS: Final = 2
"""The protocol from which on a silo knows when a plan has it answer a step."""
_VERSION_KEY: Final = "chorale-version"
_PROTOCOL_KEY: Final = "chorale-protocol"
_NAME: Final = re.compile(r"[0-9][0-9a-z.+-]{0,31}")
_PROTOCOLS: Final = re.compile(r"([1-9][0-9]{0,3})-([1-9][0-9]{0,3})")
_NOT_INSTALLED: Final = "0"


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """What one process runs, as it says."""

    name: str
    """For people; nothing is decided by it."""
    oldest: int
    """The oldest protocol that it speaks."""
    newest: int
    """The newest one."""

    def __str__(self) -> str:
        """For people."""
        if self.oldest == self.newest:
            return f"{self.name} (protocol {self.newest})"
        return f"{self.name} (protocols {self.oldest}-{self.newest})"

    @property
    def words(self) -> tuple[tuple[str, str], ...]:
        """The metadata that says so."""
        return ((_VERSION_KEY, self.name), (_PROTOCOL_KEY, f"{self.oldest}-{self.newest}"))

    def agrees_with(self, other: Version) -> bool:
        """Whether there is a protocol that both speak."""
        return max(self.oldest, other.oldest) <= min(self.newest, other.newest)


UNANNOUNCED: Final = Version(name="0.1.0", oldest=1, newest=1)
"""The version that says nothing of itself."""


def installed_version() -> str:
    """Return the version of the installed package; ``0`` where it is not installed."""
    try:
        return metadata.version("chorale")
    except metadata.PackageNotFoundError:
        return _NOT_INSTALLED


@cache
def this_version() -> Version:
    """Return what this process runs."""
    name = installed_version()
    return Version(
        name=name if _NAME.fullmatch(name) else _NOT_INSTALLED,
        oldest=OLDEST_PROTOCOL,
        newest=NEWEST_PROTOCOL,
    )


def read_version(words: Iterable[tuple[Any, Any]] | None) -> Version:
    """Read what a peer says of itself in the metadata of its call or its answer.

    A peer that says nothing is :data:`UNANNOUNCED`.

    Raises:
        VersionError: It says it twice, by half, or in another form.
    """
    said: dict[str, object] = {}
    for key, value in words or ():
        if key in {_VERSION_KEY, _PROTOCOL_KEY}:
            if key in said:
                raise VersionError(f"the metadata has {key} twice")
            said[key] = value
    if not said:
        return UNANNOUNCED
    name, protocols = said.get(_VERSION_KEY), said.get(_PROTOCOL_KEY)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise VersionError(f"{_VERSION_KEY} is absent or no version")
    spoken = _PROTOCOLS.fullmatch(protocols) if isinstance(protocols, str) else None
    if spoken is None or int(spoken[1]) > int(spoken[2]):
        raise VersionError(f"{_PROTOCOL_KEY} is absent or not two numbers in order")
    return Version(name=name, oldest=int(spoken[1]), newest=int(spoken[2]))


def require_compatible(ours: Version, theirs: Version, *, us: str, them: str) -> None:
    """Go on only if there is a protocol that both speak; ``us`` and ``them`` are for people.

    Raises:
        VersionMismatchError: There is none; the text names both and which to upgrade.
    """
    if not ours.agrees_with(theirs):
        behind = us if ours.newest < theirs.newest else them
        raise VersionMismatchError(
            f"upgrade {behind}: {us} runs chorale {ours}, {them} runs {theirs}"
        )
