"""A kill before, inside and after every durable write and every send of a session, then a restart.

Failure: a second bundle or a second vector under one identity; bytes of a vector that the ledger
did not charge; another attempt after R3 was signed; shares released twice, or by a process that did
not sign R3; a restart that cannot open what it finds. Not a failure: an attempt that is lost.

The kill is an exception that no handler of the silo takes, after which nothing of the process is
used again; what it would have cleaned up on an orderly way out is not what is tested here.
"""

import os
from pathlib import Path

import pytest

from dp.config import Mode
from dp.ledger.ledger import Ledger
from secagg.descriptor import AggregationId
from secagg.errors import Check, VerificationError
from silo_agent.attempt.unfinished import UnfinishedUploads
from silo_agent.errors import SessionError
from silo_agent.metrics import SiloMetrics
from tests.kit.silo_agent.session_round import ME, Round

IDENTITY = AggregationId(run_id="run-1", round=4, step=0, part=0, attempt=1)
LATER = AggregationId(run_id="run-1", round=4, step=0, part=0, attempt=2)


class Killed(BaseException):
    """The process is gone."""


class Plug:
    """Pulled at the k-th point."""

    def __init__(self, kill_at):
        self.kill_at = kill_at
        self.points = 0

    def point(self):
        self.points += 1
        if self.points == self.kill_at:
            raise Killed

    def around(self, real):
        def call(*arguments, **options):
            self.point()
            result = real(*arguments, **options)
            self.point()
            return result

        return call

    def write(self, real):
        def call(descriptor, data):
            self.point()
            half = real(descriptor, data[: len(data) // 2])
            self.point()
            rest = real(descriptor, data[half:])
            self.point()
            return half + rest

        return call


class Silo:
    """One silo over its processes; what left any of them is kept."""

    def __init__(self, directory, mode):
        directory.mkdir()
        self.directory = directory
        self.mode = mode
        self.sent = []
        self.uploads = []

    def started(self, identity):
        ledger = Ledger.open(self.directory / "ledger", delta=1e-5, caps={"silo": 1e9})
        one = Round(self.directory, mode=self.mode, identity=identity, ledger=ledger)
        real_send, real_upload = one.wire._send, one.wire.upload

        def send(name, message):
            real_send(name, message)
            self.sent.append((identity, name, message))

        def upload(identity, header, spool):
            real_upload(identity, header, spool)
            self.uploads.append((identity, header, one.wire.uploaded.tobytes()))

        one.wire._send, one.wire.upload = send, upload
        return one

    def sent_of(self, identity, name):
        return [message for i, n, message in self.sent if (i, n) == (identity, name)]


def killed_run(silo, kill_at):
    """A whole attempt until the plug is pulled; returns how many points there were."""
    one = silo.started(IDENTITY)
    plug = Plug(kill_at)
    one.wire._send = plug.around(one.wire._send)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", plug.write(os.write))
        patch.setattr(os, "fsync", plug.around(os.fsync))
        patch.setattr(Path, "replace", plug.around(Path.replace))
        try:
            one.finish()
        except Killed:
            assert plug.points == kill_at
        else:
            assert kill_at is None or plug.points < kill_at
    # The kernel releases the lock of a process that is gone.
    one.ledger.close()
    return plug.points


def refused_as_old(one):
    try:
        one.open()
    except (VerificationError, SessionError) as error:
        if error.check is not Check.IDENTITY:
            raise
        return True
    return False


def restart(silo):
    before = list(silo.sent)
    one = silo.started(IDENTITY)
    ledger = one.ledger
    joined = ledger.has_joined(one.identity(), one.descriptor.sha256)
    spent, agreed = ledger.has_spent(one.identity()), ledger.has_agreed("run-1", 4, 0, 0)

    bundles = silo.sent_of(IDENTITY, "advertise_keys")
    assert joined or not bundles
    assert spent or not silo.uploads
    assert spent or not silo.sent_of(IDENTITY, "upload")
    assert agreed or not silo.sent_of(IDENTITY, "check_consistency")

    # The coordinator shows the boxes again, and the spool is finished if there is one.
    unfinished = UnfinishedUploads(
        silo.directory / "spool", silo_id=ME, ledger=ledger, metrics=SiloMetrics()
    )
    resumed = unfinished.finish(IDENTITY, one.wire)
    assert spent or not resumed
    assert len({(header, body) for _, header, body in silo.uploads}) <= 1
    assert len({header.masked_sha256 for header in silo.sent_of(IDENTITY, "upload")}) <= 1

    # The same descriptor again makes keys only if none were ever recorded.
    assert refused_as_old(one) is joined
    assert len(silo.sent_of(IDENTITY, "advertise_keys")) <= 1
    if not joined:
        one.session = None

    # A later attempt is joined unless R3 was signed, and nothing else leaves for the earlier one.
    ledger.close()
    later = silo.started(LATER)
    assert refused_as_old(later) is agreed
    assert bool(silo.sent_of(LATER, "advertise_keys")) is not agreed
    later.ledger.close()
    for name in ("share_keys", "check_consistency", "unmask"):
        assert silo.sent_of(IDENTITY, name) == [
            m for i, n, m in before if (i, n) == (IDENTITY, name)
        ]
        assert len(silo.sent_of(IDENTITY, name)) <= 1
    return {
        "joined": joined,
        "spent": spent,
        "agreed": agreed,
        "resumed": resumed,
        "released": bool(silo.sent_of(IDENTITY, "unmask")),
    }


@pytest.mark.parametrize("mode", [Mode.NONE, Mode.SILO])
def test_a_kill_at_every_point_leaves_at_most_one_of_everything(tmp_path, mode):
    points = killed_run(Silo(tmp_path / "whole", mode), None)
    assert points > 30
    seen = []
    for kill_at in range(1, points + 1):
        silo = Silo(tmp_path / f"killed-{kill_at}", mode)
        killed_run(silo, kill_at)
        seen.append(restart(silo))
    # The kills hit what they aim at: every stage is reached, and every record is once the last one.
    stages = [tuple(found.values()) for found in seen]
    assert set(stages) >= {
        (False, False, False, False, False),
        (True, False, False, False, False),
        (True, True, False, False, False),
        (True, True, False, True, False),
        (True, True, True, True, False),
        (True, True, True, True, True),
    }


def test_a_restart_from_a_restart_changes_nothing(tmp_path):
    """Kills of the second process, while it finishes what the first one spooled."""
    silo = Silo(tmp_path / "silo", Mode.SILO)
    one = silo.started(IDENTITY)
    message = one.delivery()
    one.wire.fails_at = "upload"
    with pytest.raises(Exception, match="upload failed"):
        one.session.handle(message)
    one.ledger.close()
    for number in range(1, 4):
        again = silo.started(IDENTITY)
        unfinished = UnfinishedUploads(
            silo.directory / "spool", silo_id=ME, ledger=again.ledger, metrics=SiloMetrics()
        )
        assert unfinished.finish(IDENTITY, again.wire)
        again.ledger.close()
        assert len(silo.uploads) == number
    assert len(set(silo.uploads)) == 1
