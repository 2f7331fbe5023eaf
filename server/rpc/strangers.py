"""What strangers do at the two ports, in one line a minute.

A caller without a certificate costs one line of the log at most once a minute, however often it
calls: the first refused join of a minute is told with its silo, the rest of them and the
connections as numbers. ``chorale_enrolments_total`` counts each. In the same minute the memory that
handshakes took goes back to the system: the C library alone would keep it, some 70 KiB for each of
the connections that were open at once.

A connection that never makes a call is one whose handshake failed, or which only knocked: gRPC
tells of a connection before its handshake and of none afterwards. So what is counted is connections
less those that called, at the least of a minute, since those that shake hands now are neither.

Covered: refused joins; connections, also those that never shake hands. Not covered: who they are;
a firewall's log knows addresses. A port that a client uses twice counts as one that called.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from ops import heap
from ops.logs.logger import get_logger

__all__ = ["Strangers"]

log = get_logger(__name__)

EVERY_S: Final = 60
MANY_CONNECTIONS: Final = 600
"""In a minute: three for each of 200 silos, as when all of them come back after a restart."""
MOST_CALLERS: Final = 8192
"""Connections that are known to have called; gRPC closes them in far fewer hours than that."""


class Strangers:
    """Counts for one coordinator."""

    def __init__(self, silent: Callable[[int], object] = lambda _count: None) -> None:
        """``silent`` is told once a minute how many connections turned out never to call."""
        self._silent = silent
        self._lock = threading.Lock()
        self._connections = 0
        self._joins_refused = 0
        self._callers: OrderedDict[str, None] = OrderedDict()
        self._unheard = self._least = self._told = 0

    def connected(self) -> None:
        """Note a connection; called from gRPC's own threads."""
        with self._lock:
            self._connections += 1
            self._unheard += 1

    def called(self, peer: str) -> None:
        """Note a call of the connection that gRPC calls ``peer``."""
        with self._lock:
            if peer in self._callers:
                self._callers.move_to_end(peer)
                return
            self._callers[peer] = None
            if len(self._callers) > MOST_CALLERS:
                self._callers.popitem(last=False)
            self._unheard = max(0, self._unheard - 1)
            self._least = min(self._least, self._unheard)

    def join_refused(self, silo: str, outcome: str) -> None:
        """Note a refused join, and tell of it if it is the first of its minute."""
        with self._lock:
            self._joins_refused += 1
            first = self._joins_refused == 1
        if first:
            log.warning("join_refused", silo=silo, outcome=outcome)

    def sum_up(self) -> None:
        """Tell of what came since the last time, if it was more than is told already."""
        with self._lock:
            connections, refused = self._connections, self._joins_refused
            self._connections = self._joins_refused = 0
            silent = max(0, self._least - self._told)
            self._told += silent
            self._least = self._unheard
        if silent:
            self._silent(silent)
        if refused > 1 or connections >= MANY_CONNECTIONS:
            log.warning("strangers", connections=connections, joins_refused=refused)

    async def keep_summing(self) -> None:
        """Sum up once a minute, until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            self.sum_up()
            heap.trim()
