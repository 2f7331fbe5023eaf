"""Silos with real sessions, ledgers and spools, around a coordinator that a test plays.

Everything a silo does passes through ``silo_agent.attempt.session.Session`` and its ledger on disk,
so what survives a crash survives here; every message goes through its protobuf bytes, and
everything that leaves a silo is kept in `Member.sent`. The coordinator's honest side is
``secagg.server``; a test may put any other message in front of any silo instead.

Silo k uploads 2^k in every coordinate, with the sign alternating, so a sum tells who is in it.
Federations are of suite v1 unless a test says ``suite=2``, or sets `Federation.default_suite`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest

from chorale.v1 import secagg_pb2 as pb
from dp.config import Mode, PrivacySpec
from dp.ledger.ledger import Ledger
from secagg import client, hybrid, server
from secagg.decode import centred_lift
from secagg.descriptor import AggregationId, Descriptor, MetricsLayout, SignedDescriptor
from secagg.errors import Check, UnexpectedMessageError, VerificationError
from silo_agent.attempt.session import Session
from silo_agent.attempt.unfinished import UnfinishedUploads
from silo_agent.books.audit import AuditLog
from silo_agent.books.local_store import LocalStore
from silo_agent.books.peer_heads import PeerHeads
from silo_agent.errors import SessionError
from silo_agent.local_work.result import Result
from silo_agent.metrics import SiloMetrics
from tests.kit.secagg.secagg_samples import (
    HYBRID_FIELDS,
    make_descriptor,
    make_roster,
    signed_descriptor,
    signed_roster,
    signing_key,
)
from tests.kit.silo_agent.silo_contribution import contribution
from tests.kit.simulation.secagg_cohort import carried, carried_delivery, carried_r1

RUN = "run-1"
ROUND = 4
DIMENSION, CLIP, GRID = 15, 4.0, 2**20
FAMILIES = ("craft",)
FIGURE = "episodes/craft"
BOUND, METRICS_GRID = 64.0, 2**12
Z = 1.0
NO_DROPS: Mapping[str, Collection[str]] = {}


class Sent(NamedTuple):
    """What one call took out of a silo."""

    call: str
    identity: AggregationId
    message: Any


def identity_of(
    round_number: int = ROUND, attempt: int = 1, *, run: str = RUN, part: int = 0
) -> AggregationId:
    return AggregationId(run_id=run, round=round_number, step=0, part=part, attempt=attempt)


def spec_of(mode: Mode) -> PrivacySpec:
    z = 0.0 if mode is Mode.NONE else Z
    return PrivacySpec(
        mode=mode, unit="task", clip_l2=CLIP, noise_multiplier=z, metrics_noise_multiplier=z,
        delta=1e-5, epsilon_cap=1e12, grid=GRID,
    )  # fmt: skip


class Member:
    """One silo; also the transport of its own sessions."""

    def __init__(self, federation: Federation, name: str) -> None:
        self.federation = federation
        self.name = name
        self.power = federation.names.index(name)
        self.sent: list[Sent] = []
        self.uploads: dict[AggregationId, np.ndarray] = {}
        self.delta: np.ndarray | None = None
        self.families = FAMILIES
        # Whether this site lets the cohorts of runs without noise vary.
        self.may_vary = False
        self.session: Session | None = None
        self.directory = federation.directory / name
        self.directory.mkdir()
        self.metrics = SiloMetrics()
        self._start()

    def _start(self) -> None:
        """What the daemon does before it says its first word."""
        self.ledger = self._open_ledger()
        self.store = LocalStore(self.directory)
        self.unfinished = UnfinishedUploads(
            self.directory / "spool", silo_id=self.name, ledger=self.ledger, metrics=self.metrics
        )

    def _open_ledger(self) -> Ledger:
        return Ledger.open(self.directory / "ledger", delta=1e-5, caps={"silo": 1e12})

    def plain(self) -> np.ndarray:
        """This silo's vector in grid units."""
        vector = np.full(DIMENSION + 1, 2**self.power, dtype=np.int64)
        vector[1:-1:2] *= -1
        return vector

    def contribution(self) -> Result:
        delta = self.delta
        if delta is None:
            delta = (self.plain()[:-1] * (CLIP / GRID)).astype(np.float32)
        return contribution(delta, {FIGURE: 2**self.power * BOUND / METRICS_GRID})

    def open(self, signed: SignedDescriptor, **changes: Any) -> None:
        """Open a session for a descriptor, as the daemon does."""
        self.end()
        descriptor = signed.descriptor
        self.unfinished.keep_only(descriptor.identity)
        mode = Mode.NONE if descriptor.noise_sigma == 0 else Mode.SILO
        arguments: dict[str, Any] = {
            "silo_id": self.name,
            "signing_key": signing_key(self.name),
            "roster": self.federation.roster,
            "descriptor": signed,
            "base_model_sha256": self.federation.base_model_sha256,
            "adapter_sha256": self.federation.adapter_sha256,
            "families": self.families,
            "suites": frozenset({1, 2}),
            "plan_families": descriptor.families,
            "task_sha256": descriptor.task_sha256,
            "cohort_may_vary": self.may_vary,
            "spec": spec_of(mode),
            "contribution": self.contribution(),
            "ledger": self.ledger,
            "peers": PeerHeads(self.store),
            "spool_directory": self.directory / "spool",
            "coordinator": self,
            "metrics": self.metrics,
            "audit": AuditLog(self.directory),
        }
        self.session = Session(**{**arguments, **changes})

    def tell(self, message: Any) -> None:
        assert self.session is not None
        self.session.handle(message)

    def end(self) -> None:
        if self.session is not None:
            self.session.close()
            self.session = None

    def crash(self) -> None:
        """The process is gone: nothing is wiped or closed in order; then a new one starts."""
        self.session = None
        self.ledger.close()
        self._start()

    def spools(self) -> list[Path]:
        return sorted((self.directory / "spool").glob("*.spool"))

    def secrets_left(self) -> int:
        """How many secrets the session's state holds; a finished one has no place for any."""
        assert self.session is not None
        vault = getattr(self.session._state, "_vault", None)
        return 0 if vault is None else len(vault._items)

    def calls(self, identity: AggregationId | None = None) -> list[str]:
        return [sent.call for sent in self.sent if identity in (None, sent.identity)]

    def last(self, call: str) -> Any:
        return next(sent.message for sent in reversed(self.sent) if sent.call == call)

    # The calls of silo_agent.line.transport.Coordinator that a session makes

    def advertise_keys(self, identity: AggregationId, bundle: Any) -> None:
        message = carried(bundle, "key_bundle", pb.KeyBundle)
        self.sent.append(Sent("advertise_keys", identity, message))

    def share_keys(self, identity: AggregationId, boxes: Any) -> None:
        self.sent.append(Sent("share_keys", identity, carried_r1(boxes)))

    def upload(self, identity: AggregationId, header: Any, spool: Any) -> None:
        message = carried(header, "masked_input_header", pb.MaskedInputHeader)
        self.sent.append(Sent("upload", identity, message))
        content = b"".join(spool.chunks(0, 1 << 20))
        self.uploads[identity] = np.frombuffer(content, dtype="<u4").copy()

    def check_consistency(self, identity: AggregationId, signature: Any) -> None:
        message = carried(signature, "consistency_signature", pb.ConsistencySignature)
        self.sent.append(Sent("check_consistency", identity, message))

    def unmask(self, identity: AggregationId, shares: Any) -> None:
        message = carried(shares, "unmasking_shares", pb.UnmaskingShares)
        self.sent.append(Sent("unmask", identity, message))


class Federation:
    """The silos, their roster and the heads they have adopted."""

    default_suite: ClassVar[int] = 1

    def __init__(
        self, directory: Path, *, silos: int = 5, colluding: int = 1, suite: int | None = None
    ) -> None:
        self.directory = directory
        self.suite = self.default_suite if suite is None else suite
        self.roster = signed_roster(make_roster(silos, colluding))
        self.names = self.roster.roster.silo_ids
        sample = make_descriptor(self.roster.roster)
        self.base_model_sha256 = sample.base_model_sha256
        self.adapter_sha256 = sample.adapter_sha256
        self.members = {name: Member(self, name) for name in self.names}

    def __getitem__(self, name: str) -> Member:
        return self.members[name]

    def close(self) -> None:
        for member in self.members.values():
            member.end()
            member.ledger.close()

    def describe(
        self,
        identity: AggregationId,
        *,
        cohort: Collection[str] = (),
        mode: Mode = Mode.NONE,
        **changes: Any,
    ) -> Descriptor:
        """What an honest coordinator would sign, with some fields replaced."""
        cohort = tuple(sorted(cohort or self.names))
        c = self.roster.roster.colluding
        t = client_threshold(len(cohort), c)
        honest = max(t, 3) - c
        noisy = mode is Mode.SILO
        fields: dict[str, Any] = {
            "identity": identity,
            "cohort": cohort,
            "threshold": t,
            "dimension": DIMENSION,
            "unit_clip": CLIP,
            "vector_clip": CLIP,
            "scale": GRID / CLIP,
            "metrics": MetricsLayout(
                names=(FIGURE,), bounds=(BOUND,), grid=METRICS_GRID,
                sigma=Z * METRICS_GRID / math.sqrt(honest) if noisy else 0.0,
            ),
            "noise_mechanism": "discrete_gaussian" if noisy else "none",
            "noise_sigma": Z * GRID / math.sqrt(honest) if noisy else 0.0,
        }  # fmt: skip
        if self.suite == hybrid.SUITE:
            fields |= {**HYBRID_FIELDS, "families": FAMILIES}
        return make_descriptor(self.roster.roster, **{**fields, **changes})

    def attempt(self, identity: AggregationId | None = None, **changes: Any) -> Attempt:
        return Attempt(self, self.describe(identity or identity_of(), **changes))

    def expected(self, names: Collection[str]) -> np.ndarray:
        return np.sum([self[name].plain() for name in names], axis=0)


def client_threshold(n: int, c: int) -> int:
    """t as the specification has it, written down a second time."""
    return max((n + c) // 2 + 1, c + 2)


class Attempt:
    """One aggregation: the honest coordinator's states, until a test stops following them."""

    def __init__(self, federation: Federation, descriptor: Descriptor) -> None:
        self.federation = federation
        self.roster = federation.roster
        self.descriptor: SignedDescriptor = carried(
            signed_descriptor(descriptor), "descriptor", pb.Descriptor
        )
        self.identity = descriptor.identity
        self.names = descriptor.cohort
        self.server: Any = server.open(self.descriptor, federation.roster)
        self.accumulator = np.zeros(descriptor.words, dtype="<u4")
        self.ctx = b""
        self.members: Any = None
        self.survivors: tuple[str, ...] = ()

    def setup(self, name: str) -> client.ClientSetup:
        """What a silo under the adversary's hand brings; used by ``secagg_tampering``."""
        return client.ClientSetup(
            silo_id=name,
            signing_key=signing_key(name),
            roster=self.roster,
            descriptor=self.descriptor,
            ledger_head=client.LedgerHead(seq=0, sha256=bytes(32)),
            newest_identity=None,
            base_model_sha256=self.federation.base_model_sha256,
            adapter_sha256=self.federation.adapter_sha256,
            families=self.federation[name].families,
            entropy=os.urandom,
            suites=frozenset({1, 2}),
            task_sha256=self.descriptor.descriptor.task_sha256,
            families_of_plan=self.descriptor.descriptor.families,
        )

    def _each(self, dropped: Collection[str]) -> Iterator[Member]:
        for name in sorted(self.server.pending):
            if name not in dropped:
                yield self.federation[name]

    def advertise(self, dropped: Collection[str] = ()) -> dict[str, Any]:
        for name in self.names:
            self.federation[name].open(self.descriptor)
        for member in self._each(dropped):
            self.server.receive(member.last("advertise_keys"))
        self.server, bundles = self.server.close()
        self.ctx = self.server.ctx
        return dict.fromkeys(self.names, carried(bundles, "key_bundles", pb.KeyBundles))

    def share(self, told: Mapping[str, Any], dropped: Collection[str] = ()) -> dict[str, Any]:
        for member in self._each(()):
            member.tell(told[member.name])
            if member.name not in dropped:
                self.server.receive(member.last("share_keys"))
        self.server, deliveries = self.server.close()
        self.members = self.server.members
        return {name: carried_delivery(delivery) for name, delivery in deliveries.items()}

    def upload(self, told: Mapping[str, Any], dropped: Collection[str] = ()) -> dict[str, Any]:
        for member in self._each(()):
            member.tell(told[member.name])
            if member.name in dropped:
                continue
            header = member.last("upload")
            self.server.expect(header)
            self.server.completed(member.name, header.masked_sha256)
            self.accumulator += member.uploads[self.identity]
        self.server, survivors = self.server.close()
        self.survivors = tuple(header.silo_id for header in survivors.headers)
        return dict.fromkeys(self.names, carried(survivors, "survivors", pb.Survivors))

    def agree(self, told: Mapping[str, Any], dropped: Collection[str] = ()) -> dict[str, Any]:
        for member in self._each(dropped):
            member.tell(told[member.name])
            self.server.receive(member.last("check_consistency"))
        return self.closed_agreement()

    def closed_agreement(self) -> dict[str, Any]:
        """Have the coordinator pass on the signatures that it has."""
        self.server, signatures = self.server.close()
        message = carried(signatures, "consistency_signatures", pb.ConsistencySignatures)
        return dict.fromkeys(self.names, message)

    def unmask(self, told: Mapping[str, Any], dropped: Collection[str] = ()) -> np.ndarray:
        for member in self._each(dropped):
            if "check_consistency" not in member.calls(self.identity):
                # It signed no survivors, so it has nothing to release.
                continue
            member.tell(told[member.name])
            self.server.receive(member.last("unmask"))
        self.server.finish().apply(self.accumulator)
        return centred_lift(self.accumulator).astype(np.int64)

    def until(self, step: str, drops: Mapping[str, Collection[str]] = NO_DROPS) -> dict[str, Any]:
        """Run up to what each silo is told for a step, and return that."""
        told = self.advertise(drops.get("advertise_keys", ()))
        for name, act in (
            ("share_keys", self.share),
            ("masked_input", self.upload),
            ("consistency_check", self.agree),
        ):
            if step == name:
                return told
            told = act(told, drops.get(name, ()))
        return told

    def sum(self, drops: Mapping[str, Collection[str]] = NO_DROPS) -> np.ndarray:
        return self.unmask(self.until("unmask", drops), drops.get("unmask", ()))


# What every test of a refusal asserts ------------------------------------------------------------


@contextmanager
def nothing_leaves(*members: Member) -> Iterator[None]:
    """Not one call is made by these silos inside the block."""
    before = [list(member.sent) for member in members]
    yield
    assert [member.sent for member in members] == before


def assert_refused(member: Member, message: Any, check: Check, silo: str | None = None) -> None:
    """The silo refuses at the named check, sends nothing, forgets its secrets, and stays so."""
    with nothing_leaves(member):
        with pytest.raises(VerificationError) as caught:
            member.tell(message)
        assert caught.value.check is check, caught.value
        if silo is not None:
            assert caught.value.silo == silo
        assert member.secrets_left() == 0
        assert member.session is not None
        assert member.session._state.aborted.check is check
        for _ in range(2):
            with pytest.raises((SessionError, UnexpectedMessageError)):
                member.tell(message)
        member.end()
    assert member.spools() == []


def assert_left(member: Member, message: Any, check: Check = Check.UNEXPECTED_MESSAGE) -> None:
    """The message does not fit what the silo answered: it leaves the attempt without a word."""
    with nothing_leaves(member), pytest.raises(SessionError) as caught:
        member.tell(message)
    assert caught.value.check is check, caught.value
    assert member.secrets_left() == 0
    with nothing_leaves(member), pytest.raises(SessionError):
        member.tell(message)


def assert_not_joined(
    member: Member, signed: SignedDescriptor, check: Check = Check.IDENTITY
) -> None:
    """The silo makes no key for this descriptor."""
    with nothing_leaves(member):
        with pytest.raises((SessionError, VerificationError)) as caught:
            member.open(signed)
        assert caught.value.check is check, caught.value


def assert_usable(federation: Federation, identity: AggregationId) -> None:
    """An honest aggregation with new keys has every silo in it, exactly.

    Without noise, that is every silo that was in the newest sum that each of them signed.
    """
    cohorts = [member.ledger.cohort for member in federation.members.values()]
    names = tuple(
        name
        for name in federation.names
        if all(cohort is None or name in cohort for cohort in cohorts)
    )
    attempt = federation.attempt(identity, cohort=names)
    total = attempt.sum()
    assert attempt.survivors == names
    np.testing.assert_array_equal(total, federation.expected(names))
    for name in names:
        member = federation[name]
        assert member.calls(identity) == [
            "advertise_keys", "share_keys", "upload", "check_consistency", "unmask",
        ]  # fmt: skip
        member.end()
        assert member.spools() == []
