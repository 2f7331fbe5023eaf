"""One round of this project's secure aggregation: n real silos and the real coordinator states.

Every message is made, signed, checked and answered by `secagg.client` and `secagg.server`, in suite
v1 or v2; a silo's vector is clipped and rounded by `dp.noise.grid`; the coordinator folds uploads
with `secagg.server.folding`, here in memory. In suite v1 it hashes an upload on one thread while it
adds it on another; in suite v2 it checks the chunks' leaves on as many threads as it may, and adds
each chunk after its leaf. Nothing is drawn as noise.

Vectors are made when they are needed and folded as they arrive, so memory is a few vectors whatever
n is.

Covered: no drops, silos that drop between R1 and R2, and corrupt shares in R4. Not covered:
transport, protobuf, disk, the privacy ledger.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dp.noise.grid import Grid
from federation.aggregate.server_step import MeanOfSum
from secagg import client, digest_tree, server, suite, transcript
from secagg.decode import split_sum
from secagg.descriptor import (
    HYBRID_VERSION,
    NOISE_NONE,
    SUITES,
    AggregationId,
    Descriptor,
    MetricsLayout,
    SignedDescriptor,
    sign_descriptor,
)
from secagg.messages import (
    DebitHead,
    MaskedInputHeader,
    Survivors,
    UnmaskingShare,
    UnmaskingShares,
)
from secagg.parameters import threshold
from secagg.prg import DEFAULT_THREADS, TILE_WORDS
from secagg.roster import Roster, RosterEntry, SignedRoster, sign_roster
from secagg.server.folding import Fold
from secagg_rounds.cost import RoundCost, Stopwatch

CLIP: Final = 1.0
# Δ: far above 16√d for every d of the benchmarks, and n·Δ stays below 2^31 for n = 200.
GRID_STEPS: Final = 1 << 20
# c by n, as the table of parameters recommends; the least above them tolerates a fifth dropping.
COLLUDING: Final = {3: 1, 4: 1, 5: 1, 10: 3, 20: 6, 50: 16, 100: 33, 200: 66}
VERSIONS: Final = {f"v{suite_id}": version for version, suite_id in SUITES.items()}
"""Version of the descriptor by the suite's name."""
_MODEL: Final = hashlib.sha256(b"model").digest()
_FAMILIES: Final = ("craft",)
_LEDGER: Final = client.LedgerHead(seq=1, sha256=bytes(32))
_DEBIT: Final = DebitHead(seq=2, sha256=_MODEL)

Vector = npt.NDArray[np.uint32]
Source = Callable[[int], npt.NDArray[np.float32]]
Add = Callable[[Vector, MaskedInputHeader, bytes], bytes]
"""Folds an upload, with its header and leaf list, into the sum; returns the digest of its bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Federation:
    """Keys and documents of one cohort, made before the clocks run."""

    roster: SignedRoster
    descriptor: SignedDescriptor
    signing_keys: Mapping[str, Ed25519PrivateKey]

    @property
    def names(self) -> tuple[str, ...]:
        """The cohort, in order."""
        return self.descriptor.descriptor.cohort

    @property
    def suite_name(self) -> str:
        """v1 or v2."""
        return f"v{self.descriptor.descriptor.suite}"

    @property
    def digest_id(self) -> int:
        """Of the uploads' digest trees; 0 in suite v1."""
        return self.descriptor.descriptor.digest_id

    @property
    def debit(self) -> DebitHead | None:
        """The charge that a silo's upload names; none in suite v1."""
        return _DEBIT if self.digest_id else None

    def setup(self, name: str) -> client.ClientSetup:
        """What one silo brings."""
        descriptor = self.descriptor.descriptor
        return client.ClientSetup(
            silo_id=name,
            signing_key=self.signing_keys[name],
            roster=self.roster,
            descriptor=self.descriptor,
            ledger_head=_LEDGER,
            newest_identity=None,
            base_model_sha256=_MODEL,
            adapter_sha256=_MODEL,
            families=_FAMILIES,
            entropy=os.urandom,
            suites=frozenset(SUITES.values()),
            task_sha256=descriptor.task_sha256,
            families_of_plan=descriptor.families,
        )


def colluding(n: int) -> int:
    """C for a cohort: that of the table, else a third of n less one."""
    return COLLUDING.get(n, max(1, n // 3 - 1))


def federate(
    n: int, dimension: int, suite_name: str, *, digest_id: int = digest_tree.SHA256
) -> Federation:
    """Found a federation of n silos and sign a descriptor of a suite."""
    c, version = colluding(n), VERSIONS[suite_name]
    hybrid = version >= HYBRID_VERSION
    root, coordinator = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    names = tuple(f"silo-{number:03d}" for number in range(n))
    keys = {name: Ed25519PrivateKey.generate() for name in names}
    roster = Roster(
        federation="benchmark",
        epoch=1,
        colluding=c,
        coordinator_key=suite.verification_key(coordinator),
        entries=tuple(
            RosterEntry(
                silo_id=name,
                spiffe_uri=f"spiffe://example.org/silo/{name}",
                verification_key=suite.verification_key(keys[name]),
            )
            for name in names
        ),
    )
    descriptor = Descriptor(
        version=version,
        suite=SUITES[version],
        identity=AggregationId(run_id="benchmark", round=1, step=0, part=0, attempt=0),
        roster_sha256=roster.sha256,
        roster_epoch=roster.epoch,
        cohort=names,
        colluding=c,
        threshold=threshold(n, c),
        n_min=min(3, n),
        plan_sha256=_MODEL,
        base_model_sha256=_MODEL,
        adapter_sha256=_MODEL,
        layout_sha256=_MODEL,
        dimension=dimension,
        unit_clip=CLIP,
        vector_clip=CLIP,
        max_units=1,
        scale=GRID_STEPS / CLIP,
        metrics=MetricsLayout(names=(), bounds=(), grid=0, sigma=0.0),
        ring_bits=32,
        noise_mechanism=NOISE_NONE,
        noise_sigma=0.0,
        privacy_spec_sha256=_MODEL,
        deadlines_unix_s=(1, 2, 3, 4, 5),
        families=_FAMILIES if hybrid else (),
        task_sha256=_MODEL if hybrid else b"",
        digest_id=digest_id if hybrid else 0,
    )
    return Federation(
        roster=sign_roster(roster, root),
        descriptor=sign_descriptor(descriptor, coordinator),
        signing_keys=keys,
    )


def encode(x: npt.NDArray[np.float32]) -> Vector:
    """Clip and round a silo's vector onto the grid, as ring elements; no noise."""
    grid = Grid(clip_l2=CLIP, steps=GRID_STEPS, dimension=x.size)
    vector = np.zeros(x.size, dtype=np.uint32)
    grid.fit(x).add_into(vector)
    return vector


def fold_whole(accumulator: Vector, upload: Vector, *, threads: int) -> bytes:
    """Suite v1: add an upload to the sum, hashing what is added; its SHA-256."""
    digest = hashlib.sha256()
    with Fold(digest, threads=threads if upload.size > TILE_WORDS else 1) as fold:
        for start in range(0, accumulator.size, TILE_WORDS):
            tile = slice(start, start + TILE_WORDS)
            fold.add(accumulator[tile], upload[tile])
        fold.digest()
    return digest.digest()


def fold_chunks(
    accumulator: Vector, upload: Vector, leaves: bytes, digest_id: int, *, threads: int
) -> None:
    """Suite v2: check chunks on several threads, and add each one after its leaf."""
    words = digest_tree.CHUNK_BYTES // upload.itemsize
    slices = [slice(start, start + words) for start in range(0, upload.size, words)]
    if threads == 1 or len(slices) == 1:
        with Fold(None) as fold:
            for index, chunk in enumerate(slices):
                digest_tree.check_chunk(leaves, index, upload[chunk].data, digest_id)
                fold.add(accumulator[chunk], upload[chunk])
        return
    checking: deque[Future[None]] = deque()
    with Fold(None) as fold, ThreadPoolExecutor(threads) as pool:
        for index, chunk in enumerate(slices):
            checking.append(
                pool.submit(digest_tree.check_chunk, leaves, index, upload[chunk].data, digest_id)
            )
        for chunk, checked in zip(slices, checking, strict=True):
            checked.result()
            fold.add(accumulator[chunk], upload[chunk])


def adder(federation: Federation, accumulator: Vector, threads: int = DEFAULT_THREADS) -> Add:
    """What a coordinator does with the bytes of an upload, for a suite, into one sum."""

    def add(upload: Vector, header: MaskedInputHeader, leaves: bytes) -> bytes:
        digest_id = federation.digest_id
        if not digest_id:
            return fold_whole(accumulator, upload, threads=threads)
        digest_tree.check_leaves(leaves, upload.nbytes, digest_id, header.masked_sha256)
        fold_chunks(accumulator, upload, leaves, digest_id, threads=threads)
        return header.masked_sha256

    return add


def mean_of(accumulator: Vector, descriptor: Descriptor, count: int) -> npt.NDArray[np.float64]:
    """Decode the unmasked sum into the mean over its silos."""
    delta = split_sum(accumulator, descriptor).delta
    return MeanOfSum(delta, scale=descriptor.scale, count=count)[:]


@dataclass(frozen=True, kw_only=True, slots=True)
class Uploaded:
    """A round after R2: who stayed, and what everybody holds."""

    ctx: bytes
    survivors: Survivors
    agreeing: server.CollectConsistency
    silos: Mapping[str, client.ConsistencyCheck]
    seconds: Stopwatch


def until_uploaded(
    federation: Federation,
    *,
    dropped: Collection[str],
    vector: Source,
    add: Add,
) -> Uploaded:
    """Run R0 to R2; the dropped silos share keys and then vanish.

    ``vector`` makes the vector of a silo, numbered from zero, and is not timed.
    """
    watch = Stopwatch()
    with watch.on("server/keys"):
        opened = server.open(federation.descriptor, federation.roster)
    advertised = {}
    for name in federation.names:
        with watch.on(f"silo/{name}"):
            advertised[name], bundle = client.begin(federation.setup(name))
        with watch.on("server/keys"):
            opened.receive(bundle)
    with watch.on("server/keys"):
        sharing, bundles = opened.close()
    shared = {}
    for name in federation.names:
        with watch.on(f"silo/{name}"):
            shared[name], boxes = advertised[name].handle(bundles)
        with watch.on("server/shares"):
            sharing.receive(boxes)
    with watch.on("server/shares"):
        collecting, deliveries = sharing.close()
    uploaded = {}
    for number, name in enumerate(federation.names):
        if name in dropped:
            continue
        x = vector(number)
        with watch.on(f"silo/{name}"):
            masking, _ = shared[name].handle(deliveries[name])
            masked = encode(x)
            uploaded[name], header = masking.mask(masked, federation.debit)
        with watch.on("server/fold"):
            collecting.expect(header)
            collecting.completed(name, add(masked, header, uploaded[name].leaves))
    with watch.on("server/agree"):
        agreeing, survivors = collecting.close()
    return Uploaded(
        ctx=collecting.members.ctx,
        survivors=survivors,
        agreeing=agreeing,
        silos=uploaded,
        seconds=watch,
    )


def until_unmasked(
    uploaded: Uploaded, corrupt: Mapping[str, Ed25519PrivateKey] | None = None
) -> server.Unmasking:
    """Run R3 and R4 up to the recovered masks.

    ``corrupt`` silos send wrong shares in R4, signed with these keys.
    """
    watch, agreeing = uploaded.seconds, uploaded.agreeing
    agreed = {}
    for name, state in uploaded.silos.items():
        with watch.on(f"silo/{name}"):
            agreed[name], signature = state.handle(uploaded.survivors)
        with watch.on("server/agree"):
            agreeing.receive(signature)
    with watch.on("server/agree"):
        unmasking, signatures = agreeing.close()
    digest = transcript.survivors_sha256(uploaded.ctx, uploaded.survivors.headers)
    for name, unmask in agreed.items():
        with watch.on(f"silo/{name}"):
            _, shares = unmask.handle(signatures)
        if corrupt and name in corrupt:
            shares = corrupted(shares, corrupt[name], uploaded.ctx, digest)
        with watch.on("server/unmask"):
            unmasking.receive(shares)
    with watch.on("server/unmask"):
        return unmasking.finish()


def corrupted(
    shares: UnmaskingShares, key: Ed25519PrivateKey, ctx: bytes, survivors_sha256: bytes
) -> UnmaskingShares:
    """The answer of a silo that lies about every share and signs it."""

    def wrong(listed: tuple[UnmaskingShare, ...]) -> tuple[UnmaskingShare, ...]:
        return tuple(
            replace(share, share=bytes([share.share[0], share.share[1] ^ 1]) + share.share[2:])
            for share in listed
        )

    unsigned = replace(
        shares,
        self_seed_shares=wrong(shares.self_seed_shares),
        mask_key_shares=wrong(shares.mask_key_shares),
    )
    return replace(
        unsigned, signature=suite.sign(key, unsigned.signed_bytes(ctx, survivors_sha256))
    )


def chorale_round(
    *,
    n: int,
    dimension: int,
    vector: Source,
    dropped: Collection[int],
    threads: int,
    suite_name: str,
) -> RoundCost:
    """Run one round and decode the mean.

    ``vector`` makes the vector of a silo, numbered from zero, and is not timed; the numbers of
    those that do not upload are ``dropped``. ``threads`` are the coordinator's, to fold and unmask
    with; a silo uses its default.
    """
    federation = federate(n, dimension, suite_name)
    accumulator = np.zeros(dimension, dtype="<u4")
    names = {federation.names[number] for number in dropped}
    uploaded = until_uploaded(
        federation,
        dropped=names,
        vector=vector,
        add=adder(federation, accumulator, threads),
    )
    unmasking = until_unmasked(uploaded)
    watch = uploaded.seconds
    with watch.on("server/masks"):
        unmasking.apply(accumulator, threads=threads)
    with watch.on("server/decode"):
        mean = mean_of(accumulator, federation.descriptor.descriptor, len(unmasking.survivors))
    client_s, client_cpu_s = watch.mean([f"silo/{name}" for name in unmasking.survivors])
    server_s, server_cpu_s = watch.total("server/")
    return RoundCost(
        client_s=client_s,
        client_cpu_s=client_cpu_s,
        server_s=server_s,
        server_cpu_s=server_cpu_s,
        mean=mean,
        parts={
            name.removeprefix("server/"): spent
            for name, spent in watch.seconds.items()
            if name.startswith("server/")
        },
    )
