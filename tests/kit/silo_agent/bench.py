"""A daemon on a bench: its session is real, its coordinator is the test."""

import threading
from types import SimpleNamespace

from silo_agent.attempt.unfinished import UnfinishedUploads
from silo_agent.books.round_tasks import RoundTasks
from silo_agent.daemon.audited import open_audit
from silo_agent.daemon.daemon import Daemon
from silo_agent.daemon.facts import FactsDesk
from silo_agent.daemon.gate import Gate
from silo_agent.line.instruction import Idle, Instruction
from silo_agent.policy.document import Policy
from tests.kit.silo_agent.session_round import ME, Round


class Polls:
    """A coordinator that says one thing after the other, then stops the daemon."""

    def __init__(self, wire, stopping, said):
        self._wire, self._stopping, self._said = wire, stopping, list(said)
        self.asked = []
        self.refused = []

    def poll(self, last_id, *, wait_s):
        self.asked.append(last_id)
        if not self._said:
            self._stopping.set()
            return None
        said = self._said.pop(0)
        if isinstance(said, Exception):
            raise said
        return said

    def refuse(self, **said):
        self.refused.append(said)

    def plan(self, _sha256):
        return b""

    def __getattr__(self, name):
        return getattr(self._wire, name)


class Bench:
    """A daemon whose session is real, and whose work and chain are not."""

    def __init__(self, tmp_path, **options):
        self.one = Round(tmp_path, **options)
        self.directory = tmp_path
        self.remembered = []
        daemon = self.daemon = Daemon.__new__(Daemon)
        daemon.metrics = self.one.metrics
        daemon.audit = open_audit(tmp_path, lambda: daemon.identity, daemon.metrics)
        (tmp_path / "policy.toml").write_text("")
        daemon.config = SimpleNamespace(policy_file=tmp_path / "policy.toml")
        daemon.stopping = threading.Event()
        # No pause after a failure: the tests count lines, not seconds.
        daemon.stopping.wait = lambda _timeout=None: daemon.stopping.is_set()
        daemon.ledger = self.one.ledger
        daemon.gate = Gate(tmp_path, Policy.parse(b""), daemon.metrics)
        daemon.tasks = RoundTasks(tmp_path)
        daemon.identity = SimpleNamespace(silo_id=ME)
        daemon.store = SimpleNamespace(set_ledger_head=lambda *head: self.remembered.append(head))
        daemon.coordinator = None
        # The policy lists none.
        daemon.facts = FactsDesk(
            data_dir=tmp_path,
            identity=daemon.identity,
            policy=Policy.parse(b""),
            ledger_of=lambda: daemon.ledger,
            coordinator=self,
            metrics=daemon.metrics,
        )
        daemon.work = SimpleNamespace(call_off=lambda: None, runs_over=lambda _: None)
        # No chain was followed, so there are no audit heads to exchange.
        daemon.published = SimpleNamespace(head=None, coordinator_key=None)
        daemon._session = daemon._task = daemon._asked = daemon._contributed = None
        daemon._open_session = self.open_session
        daemon.unfinished = self.found()

    def found(self):
        return UnfinishedUploads(
            self.directory / "spool", silo_id=ME, ledger=self.one.ledger, metrics=self.one.metrics
        )

    def open_session(self, signed):
        self.one.signed = signed
        return self.one.open(advertise=False)

    def serve(self, *said):
        instructions = []
        for number, message in enumerate(said):
            if isinstance(message, Exception):
                instructions.append(message)
                continue
            identity = None if isinstance(message, Idle) else self.one.descriptor.identity
            instructions.append(
                Instruction(instruction_id=str(number), identity=identity, payload=message)
            )
        self.daemon.stopping.clear()
        self.daemon.coordinator = Polls(self.one.wire, self.daemon.stopping, instructions)
        self.daemon.serve()
        return self.daemon.coordinator.asked

    def sent(self):
        return [name for name, _ in self.one.wire.sent]


def lines(capsys, event):
    return [line for line in capsys.readouterr().out.splitlines() if event in line]


def counted(bench, name, **labels):
    return bench.one.value(f"chorale_silo_{name}_total", **labels)
