"""A coordinator and its silos in one process and one thread, on a clock that only tests move.

The store, the audit log, the conductor, the run driver, the silos' sessions and their ledgers are
the real ones, and what a silo is told passes through its protobuf form. Only gRPC and time are
replaced: whenever the coordinator waits, each silo acts once, and when none had anything to do the
clock moves on.

A power cut ends the coordinator wherever it happens. A call that it interrupts is made again after
the restart, as the silo's transport does while the coordinator is away.

Silo k contributes 2^-(k+3) times a known pattern, so a sum tells who is in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np

from chorale.v1 import round_pb2
from dp.ledger import Ledger
from federation.adapter import encode_adapter
from federation.layout import Layout
from federation.plan import Plan
from federation.task import RoundTask
from secagg.descriptor import SignedDescriptor
from server.audit import AuditLog
from server.blobs import BlobStore
from server.conductor import Conductor
from server.context import RunContext
from server.errors import StoreError
from server.liveness import Liveness
from server.metrics import CoordinatorMetrics
from server.run import RunDriver
from server.signal import Signal
from server.store import Store
from silo_agent.evolve.constant import constant_pattern
from silo_agent.metrics import SiloMetrics
from silo_agent.session import Session
from silo_agent.transport import Idle, RoundAborted, RoundClosed, _payload
from silo_agent.work import FinishedWork
from tests.unit.secagg_samples import COORDINATOR_KEY, make_roster, signed_roster, signing_key

CLIP, GRID, RANK, WIDTH = 16.0, 2**20, 2, 12
NO_MODEL = bytes(32)
FAMILY = "constant"
EPISODES = 64


def plan_toml(
    *,
    rounds: int = 1,
    mode: str = "none",
    noise: float = 0.0,
    n_min: int = 3,
    quorum: int = 3,
    spare: int = 2,
    method: str = "fedavg",
) -> bytes:
    return f"""\
name = "world"
[model]
base = "none"
base_sha256 = "{NO_MODEL.hex()}"
dtype = "float32"
lora_rank = {RANK}
[evolve]
method = "constant"
episodes_per_round = {EPISODES}
[aggregation]
method = "{method}"
[privacy]
mode = "{mode}"
clip_l2 = {CLIP}
grid = {GRID}
noise_multiplier = {noise}
metrics_noise_multiplier = {noise}
delta = 1e-5
epsilon_cap = 1e9
accept_low_cosine = true
[secure_aggregation]
n_min = {n_min}
[rounds]
count = {rounds}
ready_deadline_s = 60
phase_deadline_s = 6
quorum = {quorum}
spare_attempts = {spare}
[evaluate]
held_out = 0
""".encode()


def initial_tensors() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(5)
    return {
        "layer.lora_A.weight": draw.normal(size=(RANK, WIDTH)).astype(np.float32),
        "layer.lora_B.weight": np.zeros((WIDTH, RANK), np.float32),
    }


INITIAL = encode_adapter(initial_tensors())
DIMENSION = Layout.from_tensors(initial_tensors()).dimension


def value_of(silo_id: str) -> float:
    return 2.0 ** -(int(silo_id[-3:]) + 3)


def fixed_point(silo_id: str) -> np.ndarray:
    """The silo's vector in grid units; the clip does not bite."""
    pattern = constant_pattern(value_of(silo_id), DIMENSION).astype(np.float64)
    assert np.linalg.norm(pattern) < 0.9 * CLIP
    return np.rint(pattern * (GRID / CLIP)).astype(np.int64)


def told(conductor: Conductor, silo_id: str) -> tuple[str, round_pb2.PollResponse]:
    """What a poll of this silo is answered now, as it is after its way over the wire."""
    answer = conductor.instructions.current(conductor.driver, silo_id)
    content = answer.own().SerializeToString()
    if answer.shared is not None:
        content += answer.shared().SerializeToString()
    return answer.instruction_id, round_pb2.PollResponse.FromString(content)


class Clock:
    """Unix time as the test says."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class Killed(Exception):  # noqa: N818 - what happens to the process, not an error it handles
    """The silo's process is gone."""


class PowerCut(BaseException):
    """The coordinator's process is gone: nothing may catch it."""


class SteppedSignal(Signal):
    """Waiting lets every silo act once; the clock moves when none had anything to do."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    async def wait(self, timeout_s: float) -> None:
        await asyncio.sleep(0)
        self._world.before_wait()
        acted = False
        for silo in self._world.silos.values():
            acted |= silo.step()
            if self._world.crashed:
                raise PowerCut
        if not acted:
            self._world.clock.now += min(max(timeout_s, 0.01), 1.0)


class World:
    """One coordinator with its directory, and its silos."""

    def __init__(self, directory: Path, *, silos: int = 4, colluding: int = 1) -> None:
        self.directory = directory
        self.clock = Clock()
        self.roster = signed_roster(make_roster(silos, colluding))
        self.before_wait: Callable[[], None] = lambda: None
        self.started = False
        self._boot()
        self.store.rosters.publish(self.roster, at_unix_s=1)
        self.silos = {name: Silo(self, name) for name in self.roster.roster.silo_ids}

    def _boot(self) -> None:
        """What one coordinator process has in memory."""
        self.crashed = False
        self.metrics = CoordinatorMetrics()
        self.store = Store(f"sqlite:///{self.directory}/coordinator.db")
        self.audit = AuditLog(self.directory / "audit.jsonl", self.clock)
        self.context = RunContext(
            store=self.store,
            blobs=BlobStore(self.directory / "blobs"),
            audit=self.audit,
            metrics=self.metrics,
            signing_key=COORDINATOR_KEY,
            liveness=Liveness(self.clock),
            changed=SteppedSignal(self),
            scratch=self.directory / "scratch",
            clock=self.clock,
        )
        self.conductor = Conductor(self.context)

    async def run_over_power_cuts(self, plan: bytes, cuts: int = 1, down_s: float = 0.0) -> str:
        """Start a run and wait for its end; a coordinator that is cut off starts again."""
        run_id = await self.conductor.start_run(plan, INITIAL, "t")
        self.started = True
        for left in range(cuts, -1, -1):
            try:
                await self.ended()
                break
            except PowerCut:
                assert left, "one power cut too many"
                self.store.close()
                self.clock.now += down_s
                self._boot()
                self.conductor.resume()
                if self.conductor._task is None:
                    # It was cut off after its last word.
                    break
        return run_id

    def close(self) -> None:
        for silo in self.silos.values():
            silo.end_session()
            silo.ledger.close()
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def run(self, plan: bytes, token: str = "t") -> str:
        """Start a run and wait for its end, whatever it is."""
        run_id = await self.conductor.start_run(plan, INITIAL, token)
        await self.ended()
        return run_id

    async def ended(self) -> None:
        task = self.conductor._task
        assert task is not None
        await task

    @property
    def driver(self) -> RunDriver:
        driver = self.conductor.driver
        assert driver is not None
        return driver

    def events(self) -> list[str]:
        import json

        return [json.loads(line)["event"] for line in self.audit.tail(1000)]

    def value(self, name: str, **labels: str) -> float:
        value = self.metrics.registry.get_sample_value(name, labels)
        assert value is not None, name
        return value


class Silo:
    """One silo; also the transport of its own session."""

    def __init__(self, world: World, silo_id: str) -> None:
        self.world = world
        self.silo_id = silo_id
        self.die_at: tuple[str, int] | None = None
        """The call that kills it, and the attempt in which it does."""
        self.refuses = ""
        self.dead = False
        self.told: list[Any] = []
        self.poison: np.ndarray | None = None
        self.ledger = Ledger.open(
            world.directory / f"{silo_id}.ledger", delta=1e-5, epsilon_cap=1e12
        )
        self.agreed: set[tuple[Any, bytes]] = set()
        """Every signature of R3 that left, with its aggregation."""
        self.aborted = 0
        self._last = ""
        self._session: Session | None = None
        self._unanswered: tuple[Callable[..., None], tuple[Any, ...]] | None = None

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
        message = _payload(response)
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
                self._answer(message)
            case SignedDescriptor() if self._session is None:
                self._open(message)
            case RoundAborted():
                self.aborted += 1
                self.end_session()
            case Idle() | RoundClosed():
                self.end_session()
            case _ if self._session is not None:
                self._session.handle(message)

    def _answer(self, task: RoundTask) -> None:
        driver = self.world.driver
        if self.refuses:
            driver.refuse(self.silo_id, round_number=task.round, reason=self.refuses)
            return
        self._call("report_ready")
        driver.report_ready(
            self.silo_id,
            round_number=task.round,
            adapter_sha256=task.adapter_sha256,
            families=(FAMILY,),
        )

    def _open(self, signed: SignedDescriptor) -> None:
        descriptor, plan = signed.descriptor, self.world.driver.plan
        layout = plan.aggregator(Layout.from_tensors(initial_tensors())).shared_layout(
            descriptor.identity.round
        )
        work = FinishedWork(
            run_id=descriptor.identity.run_id,
            round=descriptor.identity.round,
            plan=plan,
            layout=layout,
            delta=constant_pattern(value_of(self.silo_id), layout.dimension),
            episodes={FAMILY: EPISODES},
            successes={FAMILY: 8 * (1 + int(self.silo_id[-3:]))},
        )
        self._session = Session(
            silo_id=self.silo_id,
            signing_key=signing_key(self.silo_id),
            roster=self.world.roster,
            descriptor=signed,
            base_model_sha256=NO_MODEL,
            adapter_sha256=self.world.driver.head.adapter_sha256,
            families=(FAMILY,),
            spec=plan.privacy_spec(),
            contribution=work.contribution(descriptor.metrics),
            ledger=self.ledger,
            spool_directory=self.world.directory / f"{self.silo_id}.spool",
            coordinator=self,
            metrics=SiloMetrics(),
        )
        if self.poison is not None:
            self._session._noise = _Poison(self.poison)

    # The calls of silo_agent.transport.Coordinator that a session makes

    def _call(self, name: str) -> None:
        if self.die_at == (name, self.world.driver.current.attempt):
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
        self._deliver(lambda: self._attempt().receive_bundle(identity, bundle))

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
        upload = attempt.open_upload(identity, header)
        for chunk in spool.chunks(offset, 100):
            upload.append(offset, chunk)
            offset += len(chunk)
        attempt.fold_upload(identity, self.silo_id)

    def check_consistency(self, identity: Any, message: Any) -> None:
        self._call("check_consistency")
        self.agreed.add((identity, message.signature))
        self._deliver(lambda: self._attempt().receive_consistency(identity, message))

    def unmask(self, identity: Any, shares: Any) -> None:
        self._call("unmask")
        self._deliver(lambda: self._attempt().receive_unmasking(identity, shares))

    def _attempt(self) -> Any:
        return self.world.conductor.attempt()


class _Poison:
    """A silo that ignores clip and grid."""

    def __init__(self, vector: np.ndarray) -> None:
        self._vector = vector

    def encode(self, **_: Any) -> np.ndarray:
        return self._vector.copy()


def expected_adapter(survivors: tuple[str, ...], rounds: int = 1) -> dict[str, np.ndarray]:
    """The plain average of fixed-point vectors, applied the way fedavg says."""
    tensors = initial_tensors()
    layout = Layout.from_tensors(tensors)
    total = sum(fixed_point(silo_id) for silo_id in survivors)
    mean = np.asarray(total, np.float64) / (GRID / CLIP * len(survivors))
    for _ in range(rounds):
        for name, part in layout.unflatten(mean).items():
            tensors[name] = (tensors[name].astype(np.float64) + part).astype(np.float32)
    return tensors


def parsed(plan: bytes) -> Plan:
    return Plan.parse(plan)
