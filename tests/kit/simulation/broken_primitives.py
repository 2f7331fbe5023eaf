"""An adversary that recorded a whole aggregation and later breaks X25519, ML-KEM-768, or both.

It holds what a coordinator saw: bundles, everything dealt in R1, masked vectors, R4. Breaking a
primitive gives it that primitive's private keys of every silo. Where it lacks a half of a key it
tries what an implementation that forgot that half would have used: nothing, and zeros.

Derivations are written down here a second time, so that an error of ``secagg.hybrid`` does not hide
itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from secagg import shamir, transcript
from secagg.messages import ShareLeaf
from secagg.prg import Mask
from secagg.transcript import ShareKind
from tests.kit.simulation.adversary_holdings import apply, released
from tests.kit.simulation.secagg_cohort import Cohort, deterministic_entropy

X25519, MLKEM = "x25519", "ml-kem"
_GUESSES = (b"", bytes(32))


def derived(
    secret: bytes, purpose: str, bound: bytes, *names: str | bytes, length: int = 32
) -> bytes:
    """HKDF-SHA256 as the specification has it."""
    info = b"chorale/v2/" + purpose.encode() + bound
    for name in names:
        encoded = name.encode() if isinstance(name, str) else name
        info += len(encoded).to_bytes(2, "big") + encoded
    return HKDF(algorithm=hashes.SHA256(), length=length, salt=None, info=info).derive(secret)


def opened(key: bytes, associated: bytes, ciphertext: bytes) -> bytes | None:
    """What an AEAD holds, if this is its key."""
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), ciphertext, associated)
    except InvalidTag:
        return None


class Adversary:
    """What one recording and some broken primitives give."""

    def __init__(self, cohort: Cohort, broken: Iterable[str]) -> None:
        self.cohort = cohort
        self.ctx = cohort.ctx
        self._digest = cohort.descriptor.descriptor.sha256
        self._broken = frozenset(broken)
        # Mask seeds that the protocol itself gave away in R4.
        self._seeds = {
            owner: self._recovered(ShareKind.MASK_KEY, owner)
            for owner in cohort.members.silo_ids
            if owner not in cohort.alive
        }

    def seed_of(self, name: str, use: str) -> bytes:
        """What a silo drew in R0; used for private keys of a broken primitive alone."""
        draw = deterministic_entropy(f"{self.cohort.seed}/{name}")
        mask_seed, box_seed = draw(32), draw(32)
        return {"mask": mask_seed, "box": box_seed}[use]

    def boxes_opened(self) -> int:
        """How many boxes of how many it can open."""
        return sum(
            any(
                self._box(sender, leaf, x, k) is not None
                for x in self._agreements(sender, leaf.recipient, "box")
                for k in self._decapsulations(leaf.recipient, leaf.box_kem, "box")
            )
            for sender, leaf in self._leaves()
        )

    def secrets_opened(self) -> set[tuple[str, str]]:
        """The pairs whose dealt secret it can open."""
        return {
            (sender, leaf.recipient)
            for sender, leaf in self._leaves()
            if leaf.deals
            for k in self._decapsulations(leaf.recipient, leaf.mask_kem, "mask")
            if self._unsealed(sender, leaf, k) is not None
        }

    def vector_of(self, victim: str) -> np.ndarray:
        """Its best attempt at a survivor's vector: every mask that it can make is taken off.

        Of several guesses the one whose result looks least like noise is kept.
        """
        seed = self._recovered(ShareKind.SELF_SEED, victim)
        residue = self.cohort.vectors[victim].copy()
        apply(residue, [Mask(key=derived(seed, "self", self.ctx, victim), sign=-1)])
        best = None
        for x in range(len(_GUESSES)):
            for s in range(len(_GUESSES)):
                attempt = residue.copy()
                apply(attempt, self._pair_masks(victim, x, s))
                spread = int(np.abs(attempt.view("<i4").astype(np.int64)).max())
                if best is None or spread < best[0]:
                    best = spread, attempt
        assert best is not None
        return best[1].view("<i4").astype(np.int64)

    def _pair_masks(self, victim: str, x: int, s: int) -> list[Mask]:
        masks = []
        for peer in self.cohort.members.silo_ids:
            if peer == victim:
                continue
            low, high = sorted((victim, peer))
            agreements = self._agreements(low, high, "mask")
            secrets = self._secrets(low, high)
            joined = agreements[x % len(agreements)] + secrets[s % len(secrets)]
            key = derived(joined, "mask", self.ctx, low, high)
            masks.append(Mask(key=key, sign=-1 if peer > victim else 1))
        return masks

    def _leaves(self) -> list[tuple[str, ShareLeaf]]:
        return [
            (sender, leaf) for sender, sent in self.cohort.dealt.items() for leaf in sent.leaves
        ]

    def _recovered(self, kind: ShareKind, owner: str) -> bytes:
        shares = released(self.cohort, self.cohort.sent.values(), kind, owner)
        return shamir.combine(shares, self.cohort.descriptor.descriptor.threshold)

    def _agreements(self, one: str, other: str, use: str) -> tuple[bytes, ...]:
        """X25519 of a pair, if it is broken or one side's seed is known; guesses if not."""
        for holder, peer in ((one, other), (other, one)):
            seed = self._known(holder, use, X25519)
            if seed is not None:
                scalar = derived(seed, f"dh-{use}", self._digest, holder)
                private = X25519PrivateKey.from_private_bytes(scalar)
                public = getattr(self._bundle(peer), "mask_key" if use == "mask" else "cipher_key")
                return (private.exchange(X25519PublicKey.from_public_bytes(public)),)
        return _GUESSES

    def _decapsulations(self, recipient: str, ciphertext: bytes, use: str) -> tuple[bytes, ...]:
        seed = self._known(recipient, use, MLKEM)
        if seed is None:
            return _GUESSES
        kem_seed = derived(seed, f"kem-{use}", self._digest, recipient, length=64)
        return (MLKEM768PrivateKey.from_seed_bytes(kem_seed).decapsulate(ciphertext),)

    def _secrets(self, low: str, high: str) -> tuple[bytes, ...]:
        if low in self._seeds:
            return (derived(self._seeds[low], "pair", self.ctx, low, high),)
        (leaf,) = (leaf for s, leaf in self._leaves() if (s, leaf.recipient) == (low, high))
        for k in self._decapsulations(high, leaf.mask_kem, "mask"):
            secret = self._unsealed(low, leaf, k)
            if secret is not None:
                return (secret,)
        return _GUESSES

    def _known(self, name: str, use: str, primitive: str) -> bytes | None:
        if primitive in self._broken:
            return self.seed_of(name, use)
        return self._seeds.get(name) if use == "mask" else None

    def _box(self, sender: str, leaf: ShareLeaf, x: bytes, k: bytes) -> bytes | None:
        digest = hashlib.sha256(leaf.box_kem).digest()
        key = derived(x + k, "box", self.ctx, sender, leaf.recipient, digest)
        associated = transcript.box_associated_data(self.ctx, sender, leaf.recipient)
        return opened(key, associated, leaf.ciphertext)

    def _unsealed(self, low: str, leaf: ShareLeaf, k: bytes) -> bytes | None:
        digest = hashlib.sha256(leaf.mask_kem).digest()
        key = derived(k, "seal", self.ctx, low, leaf.recipient, digest)
        associated = transcript.seal_associated_data(self.ctx, low, leaf.recipient)
        return opened(key, associated, leaf.sealed)

    def _bundle(self, name: str) -> Any:
        return next(b for b in self.cohort.announced.bundles if b.silo_id == name)
