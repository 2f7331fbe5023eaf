"""What a hostile coordinator, a full disk or a bad figure does to the silo daemon."""

import errno
import hashlib
import os
import threading
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import dp.ledger.journal
from dp.accounting.charge import Charge
from dp.config import Mode
from dp.errors import PrivacyError
from dp.ledger.ledger import Ledger, LedgerEntry
from evolution.envs.catalogue import BUILT_IN
from evolution.rollout.engine import EngineSpec
from evolution.train.trainer import TrainerSpec
from federation.adapter.encoding import encode_adapter
from federation.chain.record import AdapterRecord, Place
from secagg import suite
from secagg.bounds import require_name
from secagg.client import begin
from secagg.descriptor import sign_descriptor
from secagg.errors import Check, VerificationError
from secagg.messages import KeyBundles
from silo_agent.books.audit import AuditLog
from silo_agent.books.local_store import LocalStore
from silo_agent.daemon.audited import open_audit
from silo_agent.daemon.daemon import Daemon
from silo_agent.daemon.gate import Gate
from silo_agent.errors import ChainMismatchError, LocalStoreError, SessionError, SiloError
from silo_agent.follow.chain import ChainFollower, Head
from silo_agent.follow.published import Published
from silo_agent.line.instruction import Instruction, RoundClosed
from silo_agent.local_work.work import LocalWork
from silo_agent.metrics import SiloMetrics
from silo_agent.policy.document import Policy
from tests.kit.silo_agent.policy_samples import (
    BASE,
    LAYOUT,
    NOW_UNIX_S,
    PLAN,
    SITE,
    edited,
    make_descriptor,
    make_plan,
    make_policy,
    make_task,
)
from tests.kit.silo_agent.session_round import FAMILIES, NAMES, Round

KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)


def entry(attempt: int = 1) -> LedgerEntry:
    return LedgerEntry(
        run="r", round=1, attempt=attempt, step=0, part=0, mode=Mode.SILO,
        charges=(Charge(unit="silo", q=1.0, z=4.0, steps=1),), dimension=4,
        descriptor_sha256=bytes(32),
    )  # fmt: skip


def test_full_disk_in_the_ledger_is_a_typed_error(tmp_path, monkeypatch):
    with Ledger.open(tmp_path / "ledger", delta=1e-5, caps={"silo": 1e9}) as ledger:

        def full(_fd: int, _data: bytes) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(dp.ledger.journal.os, "write", full)
        # Anything else escapes Daemon.serve and ends the daemon with a traceback.
        with pytest.raises(PrivacyError):
            ledger.reserve(entry())


def local_work(tmp_path: Any, store: Any, coordinator: Any, **config: Any) -> LocalWork:
    settings = {
        "base_sha256": lambda: bytes(32), "environments": (), "seed": 0, "families": lambda *_: (),
        "evaluate": True, "data_dir": tmp_path / "data", "assignments": lambda: (),
        "base_model": None, "threads": 1, "evolve": {}, "guard": None,
        "options": lambda _m: {}, "held_out_offset": 0, "catalogue": lambda: BUILT_IN,
        "rollout": EngineSpec(), "training": TrainerSpec(), **config,
    }  # fmt: skip
    return LocalWork(
        config=SimpleNamespace(**settings),
        coordinator=coordinator,
        store=store,
        metrics=SiloMetrics(),
        audit=AuditLog(tmp_path),
        ledger_of=lambda: None,  # type: ignore[arg-type, return-value]
        seed_of=lambda _run: 0,
        allow=lambda _task, _plan: None,
        refuse=lambda _task, _refusal: None,
    )


def test_a_figure_that_cannot_be_reported_does_not_stop_the_ready(tmp_path):
    """Invariant 2 of work.py: a job that fails still reports ready."""
    reported = threading.Event()

    class Store:
        def evaluations(self) -> list[Any]:
            return []

        def append_round(self, _entry: Any) -> None:
            raise LocalStoreError("the disk is full")

    coordinator = SimpleNamespace(report_ready=lambda **_: reported.set())
    work = local_work(tmp_path, Store(), coordinator)
    tensors = {
        "layer.lora_A.weight": np.ones((8, 16), np.float32),
        "layer.lora_B.weight": np.ones((16, 8), np.float32),
    }
    work._method.of = lambda *_: SimpleNamespace(  # type: ignore[method-assign,assignment]
        evolve=lambda _w: SimpleNamespace(
            delta={}, episodes={}, successes={}, metrics={}, duration_s={}
        ),
        close=lambda: None,
    )
    head = Head(record=SimpleNamespace(), tensors=tensors)  # type: ignore[arg-type]
    work.start(task=make_task(), plan=make_plan(), head=head)
    assert reported.wait(60)
    work._jobs.put(None)
    work._thread.join(timeout=30)


def test_a_run_id_cannot_leave_the_data_directory(tmp_path, monkeypatch):
    run_id = "x/../../../outside"
    require_name(run_id, "run id")  # the wire accepts it
    store = SimpleNamespace(evaluations=list)
    work = local_work(tmp_path, store, None)
    seen = {}
    monkeypatch.setattr(
        "silo_agent.local_work.held_method.make_evolver", lambda setup: seen.update(s=setup)
    )
    work._method.of(make_plan(), run_id)
    inside = (tmp_path / "data").resolve()
    assert seen["s"].state_dir.resolve().is_relative_to(inside)
    work._jobs.put(None)
    work._thread.join(timeout=30)


def initial(run_id: str, adapter: bytes, plan_sha256: bytes) -> AdapterRecord:
    return AdapterRecord(
        run_id=run_id, round=0, kind="initial", adapter_sha256=hashlib.sha256(adapter).digest(),
        plan_sha256=plan_sha256, base_model_sha256=BASE,
    ).sign(KEY)  # fmt: skip


def test_the_chain_of_another_run_is_refused(tmp_path):
    adapter = encode_adapter({"layer.lora_A.weight": np.ones((8, 16), np.float32)})
    record = initial("run-a", adapter, bytes(32))
    coordinator = SimpleNamespace(records=lambda *_: (record,), blob=lambda *_, **__: adapter)
    follower = ChainFollower(coordinator=coordinator, store=LocalStore(tmp_path))  # type: ignore[arg-type]
    with pytest.raises(ChainMismatchError):
        follower.sync("run-b", lambda _sha256: make_plan(), suite.verification_key(KEY))


def bare_daemon(tmp_path: Any, **parts: Any) -> Daemon:
    daemon = Daemon.__new__(Daemon)
    daemon.metrics = SiloMetrics()
    daemon.audit = open_audit(tmp_path, lambda: daemon.identity, daemon.metrics)
    daemon.stopping = threading.Event()
    daemon.coordinator = SimpleNamespace()
    daemon._session = daemon._task = daemon._asked = None
    daemon.unfinished = SimpleNamespace(keep_only=lambda _identity: None)
    for name, value in parts.items():
        setattr(daemon, name, value)
    daemon.gate = Gate(tmp_path, parts.get("policy") or Policy.parse(b""), daemon.metrics)
    return daemon


def test_a_refused_plan_is_not_evaluated_when_its_round_closes(tmp_path):
    """The guardian refuses the plan; RoundClosed must not start work for it."""
    adapter = encode_adapter({"layer.lora_A.weight": np.ones((8, 16), np.float32)})
    text = edited(PLAN, ('"craft", "maze"', '"wordle"')) + "[evaluate]\nheld_out = 5\n"
    sha256 = hashlib.sha256(text.encode()).digest()
    record = initial("run-a", adapter, sha256)
    coordinator = SimpleNamespace(
        records=lambda *_: (record,), blob=lambda *_, **__: adapter, plan=lambda _s: text.encode()
    )
    adopted: list[Any] = []
    work = SimpleNamespace(adopted=lambda *a: adopted.append(a), site=SITE, call_off=lambda: None)
    published = Published(
        coordinator=coordinator,  # type: ignore[arg-type]
        identity=SimpleNamespace(),  # type: ignore[arg-type]
        store=LocalStore(tmp_path),
        max_dimension=1000,
        adopted=work.adopted,
        admit=lambda _record: None,
        adopting=lambda _record: None,
    )
    published._roster = SimpleNamespace(  # type: ignore[assignment]
        roster=SimpleNamespace(coordinator_key=suite.verification_key(KEY))
    )
    daemon = bare_daemon(tmp_path, policy=make_policy(), work=work, published=published)
    with suppress(SiloError):
        daemon._obey(
            Instruction(instruction_id="1", identity=None, payload=RoundClosed(record=record))
        )
    assert not adopted


def test_a_descriptor_cannot_bring_in_another_plan(tmp_path, monkeypatch):
    """policy.py: a descriptor cannot bring in another plan than the one trained under."""
    trained, other = make_plan(), make_plan(("count = 5", "count = 4"))
    descriptor = replace(make_descriptor(other), plan_sha256=b"o" * 32)
    opened: list[Any] = []
    monkeypatch.setattr("silo_agent.daemon.daemon.verify_descriptor", lambda *_: None)
    monkeypatch.setattr("silo_agent.daemon.daemon.Session", lambda **k: opened.append(k))
    monkeypatch.setattr("silo_agent.daemon.daemon.time.time", lambda: NOW_UNIX_S)
    finished = SimpleNamespace(plan=trained, layout=LAYOUT, for_attempt=lambda _m: None)
    daemon = bare_daemon(
        tmp_path,
        policy=make_policy(),
        identity=SimpleNamespace(silo_id="silo-a", signing_key=KEY),
        ledger=None,
        coordinator=None,
        config=SimpleNamespace(data_dir=tmp_path),
        work=SimpleNamespace(finished=lambda *_: finished, site=SITE),
        published=SimpleNamespace(
            roster=lambda _sha256: SimpleNamespace(roster=None),
            plan=lambda _sha256: other,
            head_before=lambda *_: SimpleNamespace(
                record=SimpleNamespace(
                    run_id="run-1",
                    place=Place(1, 0),
                    adapter_sha256=descriptor.adapter_sha256,
                    plan_sha256=b"t" * 32,
                )
            ),
        ),
    )
    with pytest.raises(SessionError, match="another plan"):
        daemon._open_session(sign_descriptor(descriptor, KEY))
    assert not opened


def test_a_family_that_one_silo_declares_gets_no_coordinate(tmp_path):
    """secagg.md, Metrics block: coordinates only if >= max(t, n_min) silos declare the family.

    The descriptor has coordinates of a family that this silo alone declares; its rules cannot see
    that, the declarations signed in R0 show it.
    """
    one = Round(tmp_path)
    one.session = one.open()
    assert one.descriptor.metrics.families() == FAMILIES
    bundles = [one.wire.sent[-1][1]]
    for name in NAMES[1:]:
        peer, bundle = begin(replace(one.setup(name), families=("only-theirs",)))
        peer.wipe()
        bundles.append(bundle)
    with pytest.raises(VerificationError) as refused:
        one.session.handle(KeyBundles(bundles=tuple(bundles)))
    assert refused.value.check is Check.METRICS_FAMILIES
    # Nothing but public keys has left, no charge was made, and the keys are gone.
    assert [name for name, _ in one.wire.sent] == ["advertise_keys"]
    assert not one.ledger.has_spent(one.identity())
    assert one.session._state.aborted is not None
    assert repr(one.session._state._vault) == "Vault(0 secrets)"
    one.session.close()
    one.ledger.close()


def test_a_roster_epoch_that_was_not_written_is_not_believed(tmp_path, monkeypatch):
    """local_store.py, invariant 2: after a failed write, memory must not be ahead of the disk."""
    store = LocalStore(tmp_path)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("silo_agent.books.local_store.replace_file", full)
        with pytest.raises(LocalStoreError):
            store.set_newest_roster_epoch(7, bytes(32))
    store.set_newest_roster_epoch(7, bytes(32))
    assert LocalStore(tmp_path).newest_roster_epoch() == 7
