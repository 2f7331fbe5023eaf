"""A silo that works on its own thread, and the tasks that it is given."""

import threading

from dp.ledger.ledger import Ledger
from federation.adapter.encoding import adapter_sha256, decode_adapter
from federation.chain.record import AdapterRecord, Place
from federation.chain.task import RoundTask
from federation.plan.read import read_plan
from secagg.descriptor import MetricsLayout
from silo_agent.books.local_store import LocalStore
from silo_agent.config import SiloConfig
from silo_agent.daemon.audited import open_audit
from silo_agent.daemon.gate import Gate
from silo_agent.follow.chain import Head
from silo_agent.local_work.pace import Pace
from silo_agent.local_work.work import LocalWork
from silo_agent.metrics import SiloMetrics
from silo_agent.policy.document import Policy
from tests.kit.server import world_plan as sw

VALUE = 0.125
ADAPTER = sw.INITIAL
CAPS = {"silo": 1e9, "task": 1e9, "user": 1e9}


def plan_of(*, held_out=0, rounds=4, every=2, method="fedavg"):
    text = sw.plan_toml(rounds=rounds, method=method).decode()
    return read_plan(
        text.replace("held_out = 0", f"held_out = {held_out}\nevery_rounds = {every}").encode()
    )


def config_of(directory, *, value=str(VALUE), evaluate="true"):
    directory.mkdir(exist_ok=True)
    (directory / "silo.toml").write_text(
        f'environments = []\nevaluate = {evaluate}\n[constant]\nvalue = "{value}"\n'
        'family = "constant"\nepisodes = 64\nsuccesses = 16\n'
    )
    return SiloConfig.load(directory)


def task_of(round_number=1, step=0):
    return RoundTask(
        run_id="run-1",
        round=round_number,
        step=step,
        plan_sha256=bytes(32),
        roster_sha256=bytes(32),
        roster_epoch=1,
        base_model_sha256=bytes(32),
        adapter_sha256=adapter_sha256(ADAPTER),
        ready_deadline_unix_s=1,
    )


def head_of(round_number=0, step=0):
    linked = b"" if round_number == 0 else bytes(32)
    digest = adapter_sha256(ADAPTER)
    return Head(
        record=AdapterRecord(
            run_id="run-1",
            round=round_number,
            step=step,
            kind="initial" if round_number == 0 else "skipped",
            adapter_sha256=digest,
            plan_sha256=bytes(32),
            base_model_sha256=bytes(32),
            parent_sha256=linked and digest,
            record_parent_sha256=linked,
        ),
        tensors=decode_adapter(ADAPTER, max_bytes=1 << 20),
    )


class Reports:
    """The one call that local work makes."""

    def __init__(self):
        self.calls = []
        self.arrived = threading.Semaphore(0)

    def report_ready(self, **call):
        self.calls.append({**call, "thread": threading.current_thread().name})
        self.arrived.release()

    def wait(self):
        assert self.arrived.acquire(timeout=120)
        return self.calls[-1]


class FakePace(Pace):
    """A clock that goes on when somebody waits for it, at once, or when a test says so."""

    def __init__(self):
        self.at = 0.0

    def now(self):
        return self.at

    def wait_until(self, at, stopping):
        self.at = max(self.at, at)
        return not stopping.is_set()


class WorkingSilo:
    def __init__(self, directory, caps=None, pace=None, **options):
        self.reports = Reports()
        self.store = None
        self.config = config_of(directory, **options)
        self.store = LocalStore(directory)
        self.ledger = Ledger.open(directory / "ledger", delta=1e-5, caps=caps or CAPS)
        self.metrics = SiloMetrics()
        gate = Gate(directory, Policy.parse(b""), self.metrics)
        books = open_audit(directory, lambda: None, self.metrics)
        self.audit = books.log
        self.work = LocalWork(
            config=self.config,
            coordinator=self.reports,
            store=self.store,
            metrics=self.metrics,
            audit=self.audit,
            ledger_of=lambda: self.ledger,
            seed_of=lambda _run: 0,
            allow=gate.require_standing,
            pace=pace or FakePace(),
            refuse=lambda task, refusal: gate.refuse(
                refusal,
                (task.run_id, Place(task.round, task.step)),
                audit=books,
                coordinator=self.reports,
            ),
        )

    def start(self, round_number=1, plan=None):
        self.work.start(task=task_of(round_number), plan=plan or plan_of(), head=head_of())
        return self.reports.wait()

    def settle(self):
        """Wait until every job asked for before is done."""
        done = threading.Event()
        self.work._jobs.put(done.set)
        assert done.wait(10)

    def errors(self):
        name = "chorale_silo_errors_total"
        return self.metrics.registry.get_sample_value(name, {"kind": "local_work"})


def metrics(*names):
    return MetricsLayout(names=names, bounds=(1.0,) * len(names), grid=4096, sigma=0.0)
