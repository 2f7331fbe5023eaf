"""What a silo's later steps need to know of the others in suite v2."""

from collections.abc import Mapping
from dataclasses import dataclass

from secagg.messages import KeyBundle


@dataclass(frozen=True, kw_only=True, slots=True)
class Peers:
    """What R0 and R1 left to be looked at before survivors are signed."""

    # Of U1.
    bundles: Mapping[str, KeyBundle]
    # Senders whose pair secret is missing from this silo's mask, in ascending order.
    rejected: tuple[str, ...]
