"""What this silo will send in a run, or has sent: ``chorale-silo preview RUN``.

It is put together from the code that sends (``silo_agent/views/rehearsal.py``), the plan, this
silo's configuration and ledger, the newest descriptor that the guardian accepted, and the masked
upload that lies in the spool, if one does.

Invariants:

1. Nothing is sent and no connection is made; a daemon that runs is not disturbed.
2. What is not known yet is said to be so: before the first descriptor nobody knows the cohort, and
   the sizes that depend on it are those of the smallest one that the policy accepts.
3. No private figure is shown: neither what the silo explored, nor an update, nor a norm.

Covered: every message of an attempt, what surrounds it, the metrics block, noise and charge. Not
covered: what the published sum says of a group of silos (docs/privacy.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from dp.accounting.charge import Charge, UnitKind, attempt_charges, run_charges
from dp.accounting.compose import Epsilon, shown_epsilon_of
from dp.config import Mode, PrivacySpec
from dp.noise.metrics_block import MetricsBlock
from federation.adapter.encoding import decode_adapter
from federation.adapter.layout import Layout
from federation.chain.sums import metrics_layout
from federation.errors import FederationError
from federation.membership.facts import SiloFacts
from federation.plan.charges import charges_of_run
from federation.plan.plan import Plan
from secagg.descriptor import AggregationId, Descriptor, MetricsLayout, SignedDescriptor
from silo_agent.attempt.spool import Spool
from silo_agent.books.budget import read_budget
from silo_agent.books.heard_runs import HeardRun, HeardRuns
from silo_agent.books.local_store import LocalStore
from silo_agent.config import SiloConfig
from silo_agent.errors import LocalStoreError, SiloError, SpoolError
from silo_agent.identity.identity import Identity
from silo_agent.machine.machine import shape_in
from silo_agent.policy.approvals import Approvals
from silo_agent.policy.document import Policy
from silo_agent.views.facts import read_facts
from silo_agent.views.fields import FIELDS, NEVER, UNKNOWN
from silo_agent.views.rehearsal import Attempt, Rehearsal, Request
from silo_agent.views.runs import suite_name

__all__ = ["Figure", "Preview", "Said", "SaidField", "TrainingNoise", "preview"]

_MAX_ADAPTER_BYTES: Final = 1 << 30
_WORD_BYTES: Final = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class SaidField:
    """One field of a request."""

    field: str
    """Its path."""
    seen: str
    """Who can read it."""
    about: str
    """What it says."""
    count: int
    """How many there are."""
    size_bytes: int
    """Of all of them."""
    value: str
    """Where it is a text or a number that is known already."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """One request."""

    request: str
    """The method's name."""
    messages: int
    """1, or those of a stream."""
    size_bytes: int
    """Serialised."""
    fields: tuple[SaidField, ...]
    """Everything in it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One coordinate of the metrics block."""

    name: str
    """What is counted."""
    bound: float
    """Values are clipped to [0, this]."""
    noise: float | None
    """Standard deviation of this silo's noise in the same unit; None before a descriptor."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingNoise:
    """Noise that is in the update before anything is masked: ``record_local`` trains with it."""

    unit: str
    """Whose gradients are clipped."""
    clip_l2: float
    """C of one of them."""
    noise_multiplier: float
    """z: the noise of a step in multiples of C, on the sum of the step's gradients."""
    sampling_rate: float
    """q: the part of the units that a step is about."""
    steps: int
    """Of a round."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preview:
    """Everything about one attempt."""

    run_id: str
    plan_sha256: str
    mode: str
    suite: str
    """``v1``, which is not post-quantum, or ``v2``."""
    round: int
    step: int
    attempt: int | None
    """None before the first descriptor of this step."""
    cohort: tuple[str, ...]
    """Of the newest descriptor; empty before the first."""
    dimension: int | None
    """Coordinates of the update that goes up; None where nobody can know yet."""
    dimension_from: str
    """Where that was found."""
    upload_bytes: int | None
    """Of the masked vector: update and metrics, four bytes each."""
    upload_sha256: str | None
    """Of the masked upload that lies in the spool; None where there is none."""
    clip_l2: float
    """What an update, or a unit's gradient, is clipped to."""
    noise_per_silo: float | None
    """Standard deviation that this silo adds to each coordinate of the update, in its own unit."""
    noise_in_sum: float
    """The least that masked uploads add to any opened sum; 0 where they add none."""
    trained_with: TrainingNoise | None
    """What is in the update already; None in the modes that train without noise."""
    metrics: tuple[Figure, ...]
    """The block."""
    charged: Mapping[UnitKind, Epsilon]
    """ε of this attempt alone when it reaches the upload, its local training included."""
    charged_by_run: Mapping[UnitKind, Epsilon]
    """ε of the run at most, spare attempts included."""
    delta: float
    """At which ε is computed."""
    ledger_seq: int
    """Of the newest record; the next key bundle carries the one after it."""
    ledger_sha256: str
    attempt_says: tuple[Said, ...]
    """The requests of one attempt, in order; the last is sent only if the silo refuses."""
    daemon_says: tuple[Said, ...]
    """What the daemon sends beside any attempt."""
    never: tuple[str, ...]
    """What does not leave."""
    notes: tuple[str, ...]
    """What is not known, or could not be read."""

    def as_data(self) -> dict[str, Any]:
        """For the envelope."""
        return asdict(self)


def preview(data_dir: Path, run_id: str) -> Preview:
    """Look ahead, or back.

    Raises:
        SiloError: The run is not known here, or a file cannot be read.
        PrivacyError: The ledger cannot be read.
    """
    config = SiloConfig.load(data_dir)
    identity = Identity.load(config.data_dir)
    heard = HeardRuns(config.data_dir)
    run = heard.get(run_id)
    if run is None:
        raise LocalStoreError(
            f"this silo has not heard of run {run_id!r}: `chorale-silo runs` lists those it has"
        )
    privacy = Policy.load(config.policy_file).privacy
    may_vary = privacy.cohort_may_vary or Approvals(config.data_dir).cohort_may_vary(
        run.run_id, bytes.fromhex(run.plan_sha256)
    )
    budget = read_budget(config.data_dir, delta=privacy.delta, caps=privacy.caps())
    return _Look(
        config=config,
        federation=identity.federation,
        silo_id=identity.silo_id,
        run=run,
        plan=heard.plan(run),
        signed=heard.descriptor(run),
        ledger=(budget.ledger_seq or 0, budget.ledger_sha256 or "00" * 32),
        debit_seq=budget.debit_seq,
        delta=privacy.delta,
        cohort_may_vary=may_vary,
        facts=read_facts(config).published,
    ).result()


class _Look:
    """One look at one run."""

    def __init__(
        self,
        *,
        config: SiloConfig,
        federation: str,
        silo_id: str,
        run: HeardRun,
        plan: Plan,
        signed: SignedDescriptor | None,
        ledger: tuple[int, str],
        debit_seq: int,
        delta: float,
        cohort_may_vary: bool,
        facts: SiloFacts | None,
    ) -> None:
        self._config = config
        self._facts = facts
        self._cohort_may_vary = cohort_may_vary
        self._federation = federation
        self._me = silo_id
        self._run = run
        self._plan = plan
        self._spec: PrivacySpec = plan.spec
        self._descriptor: Descriptor | None = None if signed is None else signed.descriptor
        self._ledger = ledger
        self._debit_seq = debit_seq
        self._delta = delta
        self._notes: list[str] = []

    def result(self) -> Preview:
        run, spec, descriptor = self._run, self._spec, self._descriptor
        release = spec.release
        spool = self._spool()
        identity = self._identity(spool)
        dimension, found = self._dimension(identity.round)
        figures = self._figures()
        length = None if dimension is None else _WORD_BYTES * (dimension + len(figures))
        if spool is not None:
            length = spool.length_bytes
        rehearsal, around = Rehearsal(), Rehearsal()
        rehearsal.attempt(
            self._attempt(identity, length or 0),
            header=None if spool is None else spool.header,
            spool=spool,
        )
        around.surroundings(
            federation=self._federation, silo_id=self._me, run_id=run.run_id, facts=self._facts
        )
        same = descriptor is not None and descriptor.identity == identity
        return Preview(
            run_id=run.run_id,
            plan_sha256=run.plan_sha256,
            mode=spec.mode.value,
            suite=suite_name(self._suite()),
            round=identity.round,
            step=identity.step,
            attempt=identity.attempt if same or spool is not None else None,
            cohort=() if descriptor is None else descriptor.cohort,
            dimension=dimension,
            dimension_from=found,
            upload_bytes=length,
            upload_sha256=_payload(rehearsal.requests) if spool is not None else None,
            clip_l2=release.clip_l2,
            noise_per_silo=None
            if descriptor is None
            else descriptor.noise_sigma * release.clip_l2 / release.grid,
            noise_in_sum=release.noise_multiplier * release.clip_l2,
            trained_with=_training_noise(spec),
            metrics=figures,
            charged=shown_epsilon_of(_charges(spec, identity.step), self._delta),
            charged_by_run=shown_epsilon_of(charges_of_run(self._plan), self._delta),
            delta=self._delta,
            ledger_seq=self._ledger[0],
            ledger_sha256=self._ledger[1],
            attempt_says=_said(rehearsal.requests),
            daemon_says=_said(around.requests),
            never=NEVER,
            notes=tuple(self._notes),
        )

    def _identity(self, spool: Spool | None) -> AggregationId:
        """The attempt that is spooled, else the newest one, else the first of the newest task."""
        if spool is not None:
            return spool.identity
        run, descriptor = self._run, self._descriptor
        if descriptor is not None:
            newest = descriptor.identity
            if (newest.round, newest.step) >= (run.round, run.step):
                return newest
            self._notes.append(
                "the cohort, the noise and the block are those of the newest descriptor, round "
                f"{newest.round} step {newest.step}; the next one may have others"
            )
        else:
            self._notes.append(
                "no descriptor was accepted yet: the cohort is not known, sizes are those of the "
                "smallest one that the policy accepts, and families of the block need enough silos"
            )
        return AggregationId(run_id=run.run_id, round=run.round, step=run.step, part=0, attempt=1)

    def _attempt(self, identity: AggregationId, length: int) -> Attempt:
        descriptor = self._descriptor
        cohort = self._stand_ins() if descriptor is None else descriptor.cohort
        head = LocalStore(self._config.data_dir).chain_head(self._run.run_id)
        return Attempt(
            identity=identity,
            silo_id=self._me,
            cohort=cohort,
            families=self._config.families(self._plan),
            adapter_sha256=bytes(32) if head is None else head.adapter_sha256,
            # The bundle's head holds one record more: that this attempt was joined.
            ledger_seq=self._ledger[0] + 1,
            ledger_sha256=bytes.fromhex(self._ledger[1]),
            length_bytes=length,
            debit_seq=self._debit_seq,
            suite=self._suite(),
            cohort_may_vary=self._cohort_may_vary,
        )

    def _suite(self) -> int:
        return self._run.suite if self._descriptor is None else self._descriptor.suite

    def _stand_ins(self) -> tuple[str, ...]:
        least = Policy.load(self._config.policy_file).cohort.min_silos
        count = max(least, self._plan.secure_aggregation.n_min) - 1
        return tuple(sorted((self._me, *(f"silo-{index}" for index in range(count)))))

    def _figures(self) -> tuple[Figure, ...]:
        """The block of the newest descriptor, else the one that this silo's families would give."""
        descriptor = self._descriptor
        if descriptor is not None:
            block = descriptor.metrics
            return tuple(
                Figure(name=name, bound=bound, noise=_unit(block, bound))
                for name, bound in zip(block.names, block.bounds, strict=True)
            )
        n_min = self._plan.secure_aggregation.n_min
        declared = dict.fromkeys((f"silo-{k}" for k in range(n_min)), self._config.families())
        names, bounds = metrics_layout(self._plan, declared, t=n_min, n_min=n_min)
        return tuple(
            Figure(name=name, bound=bound, noise=None)
            for name, bound in zip(names, bounds, strict=True)
        )

    def _dimension(self, round_number: int) -> tuple[int | None, str]:
        descriptor = self._descriptor
        try:
            layout, found = self._layout()
            if layout is not None:
                shared = self._plan.aggregator(layout).shared_layout(round_number)
                if descriptor is not None and shared.dimension != descriptor.dimension:
                    self._notes.append(
                        f"the newest descriptor had {descriptor.dimension} coordinates; rounds of "
                        "this method differ"
                    )
                return shared.dimension, found
        except (FederationError, SiloError) as error:
            self._notes.append(f"the adapter's layout cannot be read: {error}")
        if descriptor is not None:
            return descriptor.dimension, "the newest descriptor"
        self._notes.append("the adapter's layout is known when the first task was accepted")
        return None, "not known yet"

    def _layout(self) -> tuple[Layout | None, str]:
        store = LocalStore(self._config.data_dir)
        head = store.chain_head(self._run.run_id)
        content = None if head is None else store.adapter(head.adapter_sha256)
        if content is not None:
            tensors = decode_adapter(content, max_bytes=_MAX_ADAPTER_BYTES)
            return Layout.from_tensors(tensors), "the adopted adapter"
        shape = shape_in(self._config.base_model, self._plan.model.base)
        if shape is not None:
            model = self._plan.model
            shares = self._plan.recipe.shares_value_head
            layout = shape.lora_layout(model.lora_rank, model.target, value_head=shares)
            return layout, "the base model's shape"
        return None, ""

    def _spool(self) -> Spool | None:
        """The newest masked upload of the run, every byte of it checked."""
        directory = self._config.data_dir / "spool"
        newest: Spool | None = None
        try:
            for path in sorted(directory.glob("*.spool")):
                spool = Spool.open(path)
                if spool.identity.run_id == self._run.run_id and (
                    newest is None or newest.identity.fields() < spool.identity.fields()
                ):
                    newest = spool
            if newest is not None:
                newest.verify()
        except (SpoolError, OSError) as error:
            # A daemon beside this deletes a spool whose attempt is over.
            self._notes.append(f"a masked upload is no longer there: {error}")
            return None
        return newest


def _unit(block: MetricsLayout, bound: float) -> float:
    """σ of the block in the unit of one coordinate: its bound becomes the integer scale."""
    made = MetricsBlock(names=block.names, bounds=block.bounds, grid=block.grid)
    return float(block.sigma / made.scale * bound)


def _training_noise(spec: PrivacySpec) -> TrainingNoise | None:
    if spec.mode is not Mode.RECORD_LOCAL or spec.record is None:
        return None
    return TrainingNoise(
        unit=spec.unit,
        clip_l2=spec.clip_l2,
        noise_multiplier=spec.noise_multiplier,
        sampling_rate=spec.record.sampling_rate,
        steps=spec.record.steps_per_round,
    )


def _charges(spec: PrivacySpec, step: int) -> tuple[Charge, ...]:
    if step == 0:
        return run_charges(spec, releases=1, first_steps=1)
    return attempt_charges(spec, step=step)


def _payload(requests: Sequence[Request]) -> str | None:
    return next((sent.payload_sha256 for sent in requests if sent.payload_sha256), None)


def _said(requests: Sequence[Request]) -> tuple[Said, ...]:
    return tuple(
        Said(
            request=sent.method,
            messages=sent.messages,
            size_bytes=sent.size_bytes,
            fields=tuple(
                SaidField(
                    field=part.path,
                    seen=FIELDS.get(part.name, UNKNOWN).seen,
                    about=FIELDS.get(part.name, UNKNOWN).about,
                    count=part.count,
                    size_bytes=part.size_bytes,
                    value=part.value if part.count == 1 else "",
                )
                for part in sent.parts
            ),
        )
        for sent in requests
    )
