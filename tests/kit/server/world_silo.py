"""A silo of ``server_world``: real session, ledger and memory of peers; it is its own transport.

With several steps in a round it contributes the sum of one unit. What it put into each sum, noise
included, is noted.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np

from chorale.v1 import round_pb2
from dp.accounting.charge import UNIT_KINDS
from dp.ledger.ledger import Ledger
from dp.noise.grid import Grid
from dp.noise.unit_sum import UnitSum
from evolution.methods.constant import constant_pattern
from federation.adapter.layout import Layout
from federation.chain.record import Place
from federation.chain.task import RoundTask
from federation.plan.families import families_of
from federation.plan.plan import Plan
from secagg.descriptor import SUITES, SignedDescriptor
from secagg.digest_tree import CHUNK_BYTES
from server.conductor.conductor import Conductor
from server.errors import StoreError
from silo_agent.attempt.session import Session
from silo_agent.books.audit import AuditLog
from silo_agent.books.local_store import LocalStore
from silo_agent.books.peer_heads import PeerHeads
from silo_agent.line.instruction import Idle, RoundAborted, RoundClosed, read_instruction
from silo_agent.local_work.result import Result
from silo_agent.metrics import SiloMetrics
from tests.kit.secagg.secagg_samples import signing_key
from tests.kit.server.world_plan import EPISODES, FAMILY, NO_MODEL, initial_tensors, value_of

if TYPE_CHECKING:
    from tests.kit.server.world import World


def told(conductor: Conductor, silo_id: str) -> tuple[str, round_pb2.PollResponse]:
    """What a poll of this silo is answered now, as it is after its way over the wire."""
    answer = conductor.instructions.current(conductor.driver, silo_id)
    content = answer.own().SerializeToString()
    if answer.shared is not None:
        content += answer.shared().SerializeToString()
    return answer.instruction_id, round_pb2.PollResponse.FromString(content)


class Killed(Exception):  # noqa: N818 - what happens to the process, not an error it handles
    """The silo's process is gone."""


class PowerCut(BaseException):
    """The coordinator's process is gone: nothing may catch it."""


class Silo:
    """One silo; also the transport of its own session."""

    def __init__(self, world: World, silo_id: str) -> None:
        self.world = world
        self.silo_id = silo_id
        self.die_at: tuple[str, int] | tuple[str, int, int] | None = None
        """The call that kills it, the attempt in which it does, and if given the step."""
        self.refuses = ""
        self.task: RoundTask | None = None
        """The newest of suite v2 that it verified; as a file, it outlives the process."""
        self.cohort_may_vary = False
        self.dead = False
        self.told: list[Any] = []
        self.poison: np.ndarray | None = None
        self.vetoes: frozenset[bytes] = frozenset()
        """Digests of the adapters that its guard refuses."""
        self.succeeds = True
        """Whether any of its episodes does."""
        self.encoded: dict[Any, np.ndarray] = {}
        """What it put into each sum, noise included, by aggregation."""
        self.ledger_path = world.directory / f"{silo_id}.ledger"
        self.open_ledger()
        memory = world.directory / f"{silo_id}.state"
        memory.mkdir(exist_ok=True)
        self.peers = PeerHeads(LocalStore(memory))
        self.audit = AuditLog(memory)
        self.agreed: set[tuple[Any, bytes]] = set()
        """Every signature of R3 that left, with its aggregation."""
        self.aborted = 0
        self._last = ""
        self._session: Session | None = None
        self._unanswered: tuple[Callable[..., None], tuple[Any, ...]] | None = None

    def open_ledger(self) -> None:
        caps = dict.fromkeys(UNIT_KINDS, 1e12)
        self.ledger = Ledger.open(self.ledger_path, delta=1e-5, caps=caps)

    def step(self) -> bool:
        """Poll once; say whether there was anything new."""
        if self.dead:
            return False
        self.world.context.liveness.touch(self.silo_id)
        if self._unanswered is not None:
            call, arguments = self._unanswered
            self._unanswered = None
            call(*arguments)
            return True
        instruction_id, response = told(self.world.conductor, self.silo_id)
        if instruction_id == self._last:
            return False
        self._last = instruction_id
        message = read_instruction(response).payload
        self.told.append(message)
        try:
            self._obey(message)
        except Killed:
            self.dead = True
            self._session = None
        return True

    def come_back(self) -> None:
        """A new process: nothing of the old session is left."""
        self.dead, self.die_at, self._last = False, None, ""

    def end_session(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _obey(self, message: Any) -> None:
        match message:
            case RoundTask():
                self.end_session()
                message.verify(self.world.roster.roster.coordinator_key)
                self.task = message if message.invited else None
                if self.task is None or self.silo_id in message.invited:
                    self._answer(message)
            case SignedDescriptor() if not self._is_in(message.descriptor.identity):
                # After a release the next step's descriptor is all that a silo is told.
                self.end_session()
                self._open(message)
            case RoundAborted():
                self.aborted += 1
                self.end_session()
            case Idle() | RoundClosed():
                self.end_session()
            case _ if self._session is not None:
                self._session.handle(message)

    def _is_in(self, identity: Any) -> bool:
        return self._session is not None and self._session.identity == identity

    def _answer(self, task: RoundTask) -> None:
        driver = self.world.driver
        if self.refuses:
            place = Place(task.round, task.step)
            driver.cohorts.refuse(self.silo_id, place=place, reason=self.refuses)
            return
        self._call("report_ready")
        driver.cohorts.report_ready(
            self.silo_id,
            place=Place(task.round, task.step),
            adapter_sha256=task.adapter_sha256,
            families=(FAMILY,),
        )

    def _open(self, signed: SignedDescriptor) -> None:
        descriptor, plan = signed.descriptor, self.world.driver.plan
        layout = plan.aggregator(Layout.from_tensors(initial_tensors())).shared_layout(
            descriptor.identity.round
        )
        work = Result(
            run_id=descriptor.identity.run_id,
            round=descriptor.identity.round,
            plan=plan,
            layout=layout,
            delta=constant_pattern(value_of(self.silo_id), layout.dimension),
            episodes={FAMILY: EPISODES},
            successes={FAMILY: 8 * (1 + int(self.silo_id[-3:])) * self.succeeds},
            vetoes=self.world.driver.head.adapter_sha256 in self.vetoes,
        )
        self._session = Session(
            silo_id=self.silo_id,
            signing_key=signing_key(self.silo_id),
            roster=self.world.roster,
            descriptor=signed,
            base_model_sha256=NO_MODEL,
            adapter_sha256=self.world.driver.head.adapter_sha256,
            families=(FAMILY,),
            spec=plan.spec,
            contribution=work.for_attempt(
                descriptor.metrics,
                step=descriptor.identity.step,
                unit_sum=self._unit_sum(plan, layout.dimension),
            ),
            ledger=self.ledger,
            peers=self.peers,
            spool_directory=self.world.directory / f"{self.silo_id}.spool",
            coordinator=self,
            metrics=SiloMetrics(),
            audit=self.audit,
            suites=frozenset(SUITES.values()),
            plan_families=families_of(plan),
            task_sha256=b"" if self.task is None else self.task.sha256,
            cohort_may_vary=self.cohort_may_vary,
        )
        if self.poison is not None:
            self._session._noise = _Poison(self.poison)
        self._note(self._session, descriptor.identity)

    def _unit_sum(self, plan: Plan, dimension: int) -> Future[UnitSum] | None:
        """One unit's worth of gradient where a plan sums units."""
        release = plan.spec.release
        if plan.sums_per_round == 1:
            return None
        grid = Grid(clip_l2=release.clip_l2, steps=release.grid, dimension=dimension)
        units = UnitSum(grid, max_units=release.max_units)
        units.add(constant_pattern(value_of(self.silo_id), dimension))
        done: Future[UnitSum] = Future()
        done.set_result(units)
        return done

    def _note(self, session: Any, identity: Any) -> None:
        real = session._encoded

        def encoded() -> Any:
            vector, paid = real()
            self.encoded[identity] = vector.copy()
            return vector, paid

        session._encoded = encoded

    # The calls of silo_agent.line.transport.Coordinator that a session makes

    def _call(self, name: str) -> None:
        current = self.world.driver.current
        if self.die_at and (name, current.attempt, current.step)[: len(self.die_at)] == self.die_at:
            raise Killed

    def _deliver(self, call: Callable[..., None], *arguments: Any) -> None:
        """Make a call; if the coordinator dies in it, make it again when it is back."""
        try:
            call(*arguments)
        except PowerCut:
            self.world.crashed = True
            self._unanswered = (self._deliver, (call, *arguments))
        except StoreError:
            # It was not acknowledged.
            self._unanswered = (self._deliver, (call, *arguments))

    def advertise_keys(self, identity: Any, bundle: Any) -> None:
        self._call("advertise_keys")
        self._deliver(lambda: self.world.conductor.receive_bundle(identity, bundle))

    def share_keys(self, identity: Any, boxes: Any) -> None:
        self._call("share_keys")
        self._deliver(lambda: self._attempt().receive_boxes(identity, boxes))

    def upload(self, identity: Any, header: Any, spool: Any) -> None:
        self._call("upload")
        self._deliver(self._send, identity, header, spool)

    def _send(self, identity: Any, header: Any, spool: Any) -> None:
        attempt = self._attempt()
        offset = attempt.upload_offset(identity, self.silo_id)
        if offset == header.length_bytes:
            return
        upload = attempt.open_upload(identity, header, spool.leaves)
        # In suite v2 chunks are whole.
        for chunk in spool.chunks(offset, CHUNK_BYTES if spool.leaves else 100):
            upload.append(offset, chunk)
            offset += len(chunk)
        attempt.fold_upload(identity, self.silo_id)

    def check_consistency(self, identity: Any, message: Any) -> None:
        self._call("check_consistency")
        self.agreed.add((identity, message.signature))
        self._deliver(lambda: self._attempt().receive_consistency(identity, message))

    def unmask(self, identity: Any, shares: Any) -> None:
        self._call("unmask")
        self._deliver(self._unmask, identity, shares)

    def _unmask(self, identity: Any, shares: Any) -> None:
        # As the service: the answer may have been lost with the process that had taken it.
        if not self.world.conductor.released(identity):
            self._attempt().receive_unmasking(identity, shares)

    def _attempt(self) -> Any:
        return self.world.conductor.attempt()


class _Poison:
    """A silo that ignores clip and grid."""

    def __init__(self, vector: np.ndarray) -> None:
        self._vector = vector

    def encode(self, **_: Any) -> np.ndarray:
        return self._vector.copy()
