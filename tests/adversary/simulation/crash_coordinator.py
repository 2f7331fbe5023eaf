"""A coordinator that keeps everything it was sent and builds whatever messages it likes.

Messages are built by the real ``secagg.server`` states, for any choice of who is lost in each
phase, so different silos can be shown different sets of keys, shares, survivors or signatures.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from secagg import server, transcript
from secagg.descriptor import Descriptor
from secagg.errors import VerificationError
from tests.kit.secagg.secagg_samples import signed_descriptor

if TYPE_CHECKING:
    from tests.adversary.simulation.crash_federation import Federation


@dataclass(kw_only=True)
class Attempt:
    """The coordinator's store of one descriptor, from which it builds whatever it likes."""

    federation: Federation
    descriptor: Descriptor
    bundles: dict[str, Any] = field(default_factory=dict)
    boxes: dict[tuple[bytes, str], Any] = field(default_factory=dict)
    uploads: dict[tuple[bytes, bytes, str], Any] = field(default_factory=dict)
    agreements: dict[tuple[bytes, bytes, bytes, str], Any] = field(default_factory=dict)
    releases: dict[tuple[bytes, bytes, bytes, str], Any] = field(default_factory=dict)
    vectors: dict[bytes, np.ndarray] = field(default_factory=dict)
    # How far the coordinator has gone with this attempt.
    phase: int = 0

    def __post_init__(self) -> None:
        self.signed = signed_descriptor(self.descriptor)

    def build(self, lost: tuple[frozenset[str], ...]) -> Built | None:
        """The messages after lost[k] is left out of phase k; None if too few are left.

        `lost` has one set for each phase up to the one whose messages are wanted.
        """
        state: Any = server.open(self.signed, self.federation.roster)
        built = Built()
        try:
            for phase, absent in enumerate(lost):
                for name in sorted(set(self.federation.names) - absent):
                    self._receive(state, phase, built, name)
                state, message = state.close()
                built = self._after(phase, built, state, message)
        except VerificationError:
            return None
        built.state = state
        return built

    def _receive(self, state: Any, phase: int, built: Built, name: str) -> None:
        keys: tuple[Any, ...] = (
            name,
            (built.ctx, name),
            (built.ctx, built.members, name),
            (built.ctx, built.members, built.survivors, name),
        )
        stores: tuple[Any, ...] = (self.bundles, self.boxes, self.uploads, self.agreements)
        message = stores[phase].get(keys[phase])
        if message is None or name not in state.pending:
            return
        if phase == 2:
            state.expect(message)
            state.completed(name, message.masked_sha256)
        else:
            state.receive(message)

    def _after(self, phase: int, built: Built, state: Any, message: Any) -> Built:
        names = self.federation.names
        shown = message if phase == 1 else dict.fromkeys(names, message)
        built = replace(built, messages=shown)
        if phase == 0:
            built.ctx = transcript.context(self.descriptor, message.bundles)
        elif phase == 1:
            built.members = state.members.sha256
        elif phase == 2:
            built.survivors = transcript.survivors_sha256(built.ctx, message.headers)
            built.alive = tuple(header.silo_id for header in message.headers)
        return built

    def total(self, built: Built) -> np.ndarray | None:
        """The sum of the survivors of a fully agreed attempt, or None while shares are missing."""
        state = built.state
        for name in sorted(state.pending):
            shares = self.releases.get((built.ctx, built.members, built.survivors, name))
            if shares is not None:
                state.receive(shares)
        if not state.ready:
            return None
        found = np.zeros(self.descriptor.words, dtype="<u4")
        for name in built.alive:
            found += self.vectors[self.uploads[built.ctx, built.members, name].masked_sha256]
        state.finish().apply(found)
        return found


@dataclass(kw_only=True)
class Built:
    """Messages of one phase, by silo, and what they commit to."""

    messages: dict[str, Any] = field(default_factory=dict)
    ctx: bytes = b""
    members: bytes = b""
    survivors: bytes = b""
    alive: tuple[str, ...] = ()
    state: Any = None
