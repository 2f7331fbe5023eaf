"""An auditor who reads everything that left any silo and writes down what must not have.

It knows the protocol's promises and nothing of how the silos keep them: one key bundle, one masked
vector, one survivor signature; one kind of share per peer, and pair secrets of lost silos alone;
cohorts that only shrink, as nothing here has noise; records on the disk before bytes leave.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from secagg.descriptor import AggregationId
from tests.kit.simulation.secagg_cohort import uploaded_digest

if TYPE_CHECKING:
    from tests.adversary.simulation.crash_federation import Federation, Silo


class Auditor:
    """Knows everything that left any silo and writes down what must not have."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.violations: list[str] = []
        self._bundles: dict[tuple[str, AggregationId], set[Any]] = defaultdict(set)
        self._newest: dict[str, AggregationId] = {}
        self._keys: dict[bytes, Any] = {}
        self._boxes: dict[tuple[str, bytes], set[Any]] = defaultdict(set)
        self._uploads: dict[tuple[str, Any], set[bytes]] = defaultdict(set)
        self._agreements: dict[tuple[Any, ...], set[tuple[AggregationId, bytes]]] = defaultdict(set)
        # Whose the newest sum without noise is that a silo signed.
        self._cohorts: dict[str, set[str]] = {}
        self._releases: dict[tuple[str, bytes], set[bytes]] = defaultdict(set)
        # Who released which kind of share of whom, by (ctx, owner, kind).
        self.released: dict[tuple[bytes, str, str], set[str]] = defaultdict(set)
        self.agreed = 0

    def bundle(self, silo: Silo, identity: AggregationId, bundle: Any) -> None:
        known = self._bundles[silo.name, identity]
        newest = self._newest.get(silo.name)
        if bundle in known:
            # The very same bytes again tell nobody anything.
            return
        if newest is not None and not newest < identity:
            self._wrong(silo, f"keys for {identity} after {newest}")
        if (silo.name, *_step(identity)) in self._agreements:
            self._wrong(silo, f"keys for {identity} although survivors of that step were signed")
        known.add(bundle)
        if len(known) > 1:
            self._wrong(silo, f"two key bundles for {identity}")
        self._newest[silo.name] = max(identity, newest or identity)
        kem_keys = () if bundle.kem_keys is None else bundle.kem_keys.fields()
        for key in (bundle.cipher_key, bundle.mask_key, *kem_keys):
            if self._keys.setdefault(key, bundle) != bundle:
                self._wrong(silo, f"a key of {identity} is used again")
        self._require_durable(silo, identity, "joined")

    def boxes(self, silo: Silo, identity: AggregationId, boxes: Any) -> None:
        known = self._boxes[silo.name, silo.ctx]
        known.add(boxes)
        if len(known) > 1:
            self._wrong(silo, f"two sets of boxes in one ctx of {identity}")

    def first_byte(self, silo: Silo, identity: AggregationId) -> None:
        self._require_durable(silo, identity, "spent")

    def upload(self, silo: Silo, identity: AggregationId, header: Any, content: bytes) -> None:
        sha256 = uploaded_digest(self.federation.descriptor_of(identity), content)
        if header.masked_sha256 != sha256:
            self._wrong(silo, f"bytes other than the signed ones for {identity}")
        if header.debit is not None:
            self._require_charge(silo, identity, header.debit.seq)
        for key in (identity, silo.ctx):
            self._uploads[silo.name, key].add(sha256)
            if len(self._uploads[silo.name, key]) > 1:
                self._wrong(silo, f"two masked vectors for {identity}")

    def agreement(self, silo: Silo, identity: AggregationId, signature: Any) -> None:
        self.agreed += 1
        known = self._agreements[silo.name, *_step(identity)]
        known.add((identity, signature.signature))
        if len({attempt for attempt, _ in known}) > 1:
            self._wrong(silo, f"survivors of two attempts signed: {identity}")
        if len(known) > 1:
            self._wrong(silo, f"two survivor sets signed for {identity}")
        alive = set(silo.shown.alive)
        if not alive <= self._cohorts.setdefault(silo.name, alive):
            self._wrong(silo, f"a silo came back in {identity}")
        self._cohorts[silo.name] = alive
        self._require_durable(silo, identity, "signed_r3")

    def release(self, silo: Silo, identity: AggregationId, shares: Any) -> None:
        # A signature covers every share, so one signature is one release.
        self._releases[silo.name, silo.ctx].add(shares.signature)
        if len(self._releases[silo.name, silo.ctx]) > 1:
            self._wrong(silo, f"two different releases in {identity}")
        if (silo.name, *_step(identity)) not in self._agreements:
            self._wrong(silo, f"shares of {identity} without a signature on survivors")
        kinds = {"b": shares.self_seed_shares, "msk": shares.mask_key_shares}
        for kind, listed in kinds.items():
            for share in listed:
                self.released[silo.ctx, share.owner, kind].add(silo.name)
        for pair in shares.pair_secrets or ():
            self.released[silo.ctx, pair.silo_id, "s"].add(silo.name)
        for owner in self.federation.names:
            b, *others = (
                self.released.get((silo.ctx, owner, kind), set()) for kind in ("b", "msk", "s")
            )
            for kind, given in zip(("both kinds of share", "a pair secret"), others, strict=True):
                if silo.name in b & given:
                    self._wrong(silo, f"{kind} of {owner}, which survived, in {identity}")
        self._require_one_secret(silo, identity)

    def _require_one_secret(self, silo: Silo, identity: AggregationId) -> None:
        """Whoever the c colluders are, nobody's two secrets can both be recovered."""
        parameters = self.federation.sizes
        for owner, colluders in itertools.product(
            self.federation.names,
            itertools.combinations(self.federation.names, parameters.colluding),
        ):
            held = [
                len(self.released.get((silo.ctx, owner, kind), set()) | set(colluders))
                for kind in ("b", "msk")
            ]
            opened = [
                held[k] >= parameters.threshold
                and self.released.get((silo.ctx, owner, ("b", "msk")[k]))
                for k in (0, 1)
            ]
            if all(opened) and owner not in colluders:
                self._wrong(silo, f"both secrets of {owner} can be recovered in {identity}")

    def _require_charge(self, silo: Silo, identity: AggregationId, seq: int) -> None:
        """The debit that an upload names is this attempt's own, and on the disk."""
        charges = self._found(silo, identity, "spent")
        if seq not in [record["seq"] for record in charges]:
            self._wrong(silo, f"the debit of {identity} is not the record that charged it")

    def _require_durable(self, silo: Silo, identity: AggregationId, kind: str) -> None:
        if not self._found(silo, identity, kind):
            self._wrong(silo, f"no durable record {kind!r} of {identity} when its bytes left")

    def _found(self, silo: Silo, identity: AggregationId, kind: str) -> list[dict[str, Any]]:
        """The durable records of one kind and aggregation."""
        wanted = dict(zip(("run", "round", "step", "part", "attempt"), identity.fields(),
                          strict=True))  # fmt: skip
        flushed = self.federation.disk.flushed(silo.directory / "ledger")
        return [
            record
            for record in _records(flushed)
            if record.get("kind") == kind and wanted.items() <= record.items()
        ]

    def _wrong(self, silo: Silo, text: str) -> None:
        self.violations.append(f"{silo.name}: {text}")


def _step(identity: AggregationId) -> tuple[str, int, int, int]:
    return identity.run_id, identity.round, identity.step, identity.part


def _records(content: bytes) -> Iterable[dict[str, Any]]:
    # The frames of ``dp.ledger.journal``: the payload's length, two checksums, the payload.
    offset = 0
    while offset + 12 <= len(content):
        length = int.from_bytes(content[offset : offset + 4], "big")
        payload = content[offset + 12 : offset + 12 + length]
        if len(payload) < length:
            return
        yield json.loads(payload)
        offset += 12 + length
