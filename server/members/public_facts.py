"""Facts that silos publish about themselves: whose are taken, and how often.

Ordered invariants of one publication:

1. It is of the silo of the client certificate, in this coordinator's federation: a request names
   nobody, and the signature is over both names.
2. It comes at least ``APART_S`` after the last that was taken.
3. Every word is one that this version knows and every number within its bounds; the key that the
   silo enrolled with has signed all of it.
4. It was issued within ``CLOCKS_S`` of this coordinator's clock, and after the last that was taken:
   facts that were recorded count once.

What is taken replaces what was there, in memory alone (``server/context.py``). It is no event of
the audit log: it says what a silo claims, a few times an hour, and decides nothing by itself.

Covered: forgeries, other silos, other federations, replays, clocks, floods. Not covered: silos that
lie about themselves; a publication of the last ``CLOCKS_S`` repeated by its own silo after the
coordinator was restarted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from chorale.v1 import membership_pb2 as pb
from federation.errors import FactsError
from federation.wire import signed_facts_from_proto
from server.context import PublishedFacts
from server.errors import FactsTooOftenError, StaleFactsError
from server.members.terms import require_federation
from server.store import Store

__all__ = ["APART_S", "CLOCKS_S", "PublicFacts"]

APART_S: Final = 10.0
"""Between two publications of one silo."""
CLOCKS_S: Final = 300.0
"""Most between the silo's clock and this one."""


class PublicFacts:
    """The coordinator's side."""

    def __init__(
        self, *, store: Store, facts: PublishedFacts, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._facts = facts
        self._clock = clock

    def publish(self, silo_id: str, request: pb.PublishFactsRequest) -> None:
        """Take the facts of the silo of the client certificate.

        Raises:
            FactsError: They are malformed, or not signed by this silo for this federation.
            FactsTooOftenError: They come too soon after the last.
            StaleFactsError: They are of another time, or not newer than the last.
        """
        now, last = self._clock(), self._facts.last(silo_id)
        if last is not None and 0.0 <= now - last[1] < APART_S:
            raise FactsTooOftenError(
                f"{silo_id} published facts less than {APART_S:g} s ago: these are not taken"
            )
        federation = require_federation(self._store).name
        signed = signed_facts_from_proto(request, federation=federation, silo_id=silo_id)
        silo = self._store.silos.get(silo_id)
        if silo is None:
            raise FactsError(f"{silo_id} is not enrolled")
        signed.verify(silo.verification_key)
        if abs(signed.issued_unix_s - now) > CLOCKS_S:
            raise StaleFactsError(
                f"the facts of {silo_id} were issued {signed.issued_unix_s - now:+.0f} s from this "
                f"coordinator's clock, of which {CLOCKS_S:g} s are taken"
            )
        if last is not None and signed.issued_unix_s <= last[0].issued_unix_s:
            raise StaleFactsError(f"newer facts of {silo_id} were taken before")
        self._facts.put(signed)
