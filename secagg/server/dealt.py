"""What the silos dealt in R1: checked, handed out, and kept as far as R4 needs it.

Covered: what both suites have in common. Not covered: what each deals (``boxes.py``,
``leaves.py``).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from secagg.messages import (
    BoxDelivery,
    KeyBundle,
    LeafDelivery,
    ShareBoxes,
    ShareBoxHeader,
    ShareLeaves,
    ShareRoot,
)
from secagg.server.state import Aggregation
from secagg.transcript import ShareKind


@dataclass(frozen=True, kw_only=True, slots=True)
class PairKeys:
    """The keys of the masks that one lost silo has in common with survivors."""

    # By survivor.
    keys: Mapping[str, bytes] = field(repr=False)
    # Who dealt a pair secret that is not the one it signed, or does not follow from its seed.
    bad_dealers: frozenset[str] = frozenset()


class Dealt(ABC):
    """R1 of one aggregation, in its suite."""

    def __init__(
        self, aggregation: Aggregation, ctx: bytes, bundles: Mapping[str, KeyBundle]
    ) -> None:
        self._aggregation = aggregation
        self._ctx = ctx
        # Of U1, by silo, in ascending order.
        self.bundles = bundles
        # What each silo of U2 signed, in ascending order.
        self.headers: Mapping[str, ShareBoxHeader | ShareRoot] = {}

    @abstractmethod
    def check(self, message: ShareBoxes | ShareLeaves) -> None:
        """Check one silo's R1.

        Raises:
            VerificationError: suite, share_signature, share_recipients, leaf_count or leaf.
        """

    @abstractmethod
    def deliver(
        self, received: Mapping[str, ShareBoxes | ShareLeaves]
    ) -> Mapping[str, BoxDelivery | LeafDelivery]:
        """Fix U2, whose messages were checked, and return what each silo of it is told."""

    @abstractmethod
    def share_sha256(self, owner: str, holder: str, kind: ShareKind) -> bytes:
        """Return the hash that the owner signed of a share that another silo of U2 holds."""

    @abstractmethod
    def self_mask_key(self, owner: str, self_seed: bytes) -> bytes:
        """Return the key of a survivor's self mask."""

    @abstractmethod
    def is_pair_secret(self, one: str, other: str, secret: bytes) -> bool:
        """Tell whether this is a pair's secret as its dealer signed it; False in suite v1."""

    @abstractmethod
    def pair_keys(self, lost: str, secret: bytes, released: Mapping[str, bytes | None]) -> PairKeys:
        """Return the keys of a lost silo's masks, from its recovered secret.

        `released` has every survivor that masked with the pair, with the pair's secret where
        it released one for which `is_pair_secret` holds.

        Raises:
            VerificationError: mask_key: the secret is not that of the advertised keys; or
                pair_secret: what the dealer signed of a pair is to be had from neither side.
        """
