"""A silo daemon with one fault, chosen by environment variables; otherwise the real one.

CHORALE_TEST_DIE_AT=<call>:<round>   SIGKILL itself instead of making this call of the transport
CHORALE_TEST_STALL_AT=<call>         never make this call of the transport, and go on polling
CHORALE_TEST_PLAINTEXT=1             add no masks (the coordinator must run with the same switch)
CHORALE_TEST_TRUNCATE=<round>        send only half of the upload in this round
CHORALE_TEST_WRONG_ROUND=<round>     name another round in the upload of this round
CHORALE_TEST_HOLD=<file>             explore for as long as this file is there
CHORALE_TEST_POISON=1                mask random ring elements instead of the encoded vector
"""

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from dp.noise.share import NoiseShare
from evolution.local_time import require_wanted
from evolution.methods.constant import ConstantEvolver
from secagg import prg
from silo_agent.cli.main import main
from silo_agent.line import transport


def die_at(call: str, round_number: int) -> None:
    real = getattr(transport.Coordinator, call)

    def dying(self: Any, identity: Any, *arguments: Any) -> Any:
        if identity.round == round_number:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, identity, *arguments)

    setattr(transport.Coordinator, call, dying)


def stall_at(call: str) -> None:
    def nothing(self: Any, *arguments: Any, **named: Any) -> None:
        del self, arguments, named

    setattr(transport.Coordinator, call, nothing)


def truncate(round_number: int) -> None:
    real = transport.Coordinator.upload

    class Half:
        def __init__(self, spool: Any) -> None:
            self._spool = spool
            self.leaves = spool.leaves

        def chunks(self, offset: int, size: int) -> Any:
            whole = b"".join(self._spool.chunks(offset, size))
            yield whole[: len(whole) // 2]

    def upload(self: Any, identity: Any, header: Any, spool: Any) -> None:
        real(self, identity, header, Half(spool) if identity.round == round_number else spool)

    transport.Coordinator.upload = upload  # type: ignore[method-assign]


def wrong_round(round_number: int) -> None:
    import dataclasses

    real = transport.Coordinator.upload

    def upload(self: Any, identity: Any, header: Any, spool: Any) -> None:
        if identity.round == round_number:
            identity = dataclasses.replace(identity, round=identity.round + 7)
        real(self, identity, header, spool)

    transport.Coordinator.upload = upload  # type: ignore[method-assign]


def hold(file: Path) -> None:
    real = ConstantEvolver.evolve

    def evolve(self: Any, work: Any) -> Any:
        while file.exists():
            require_wanted()
            time.sleep(0.05)
        return real(self, work)

    ConstantEvolver.evolve = evolve  # type: ignore[method-assign]


def poison() -> None:
    real = NoiseShare.encode

    def encode(self: Any, **what: Any) -> Any:
        vector = real(self, **what)
        return np.frombuffer(os.urandom(vector.nbytes), dtype=vector.dtype).copy()

    NoiseShare.encode = encode  # type: ignore[method-assign]


def no_masks() -> None:
    def apply(self: Any, piece: Any) -> None:
        del self, piece

    prg.MaskStreams.apply = apply  # type: ignore[method-assign]


if __name__ == "__main__":
    if "CHORALE_TEST_DIE_AT" in os.environ:
        name, _, number = os.environ["CHORALE_TEST_DIE_AT"].partition(":")
        die_at(name, int(number))
    if "CHORALE_TEST_STALL_AT" in os.environ:
        stall_at(os.environ["CHORALE_TEST_STALL_AT"])
    if "CHORALE_TEST_TRUNCATE" in os.environ:
        truncate(int(os.environ["CHORALE_TEST_TRUNCATE"]))
    if "CHORALE_TEST_WRONG_ROUND" in os.environ:
        wrong_round(int(os.environ["CHORALE_TEST_WRONG_ROUND"]))
    if "CHORALE_TEST_HOLD" in os.environ:
        hold(Path(os.environ["CHORALE_TEST_HOLD"]))
    if "CHORALE_TEST_POISON" in os.environ:
        poison()
    if "CHORALE_TEST_PLAINTEXT" in os.environ:
        no_masks()
    main()
