"""The coordinator's status page: what operators look at at three in the morning.

``/`` shows the coordinator, ``/runs/RUN`` one run. Both are made here, whole, for each request: no
script, nothing to build, nothing fetched.

::

    access.py           who may see it
    observer.py         takes the picture of now
    picture.py          what is in it, as plain values
    verdict.py          is it well
    timeline.py         rounds as bars; figures.py with curve.py: what the sums say, as curves
    words.py            times and figures in words
    page.py             the document, made by templates/*.html and dressed by templates/style.css

Invariants:

1. Reading only. Nothing that is asked for changes anything, and nothing waits for a round.
2. Nothing of one silo's learning is on it: a silo's standing, last call and certificate, and the
   figures of masked sums.
3. However many people look, the store is read once in ``FRESH_S``, and however long a run is or
   large a federation, the page is bounded (``MAX_RELEASES``, ``page.SHOWN_SILOS``).
4. A database that fails is a page that says so and tries again, never a blank one; while it is slow
   nobody waits for longer than ``PATIENCE_S`` for somebody else's page, so the probes have room.

Covered: every state of a coordinator. Not covered: history beyond the newest rounds; Prometheus has
it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from federation.errors import FederationError
from ops.logs.logger import get_logger
from ops.probes.server import PageAnswer, PageRequest
from server.context import RunContext
from server.errors import CoordinatorError, UnknownRunError
from server.pki.trust import Trust
from server.rpc.access import AccessPolicy
from server.run.driver import RunDriver
from server.status_page.access import PageAccess
from server.status_page.observer import Observer
from server.status_page.page import HEADERS, HOLD, RUNS, failure_page, main_page, run_page

__all__ = ["status_page"]

log = get_logger(__name__)

FRESH_S: Final = 1.0
PATIENCE_S: Final = 5.0
OVERVIEW_RELEASES: Final = 120
MAX_RELEASES: Final = 240
MAX_RUN_ID_CHARS: Final = 128
_HTML: Final = "text/html; charset=utf-8"
_PLAIN: Final = "text/plain; charset=utf-8"


def status_page(
    *,
    context: RunContext,
    trust: Trust,
    data_dir: Path,
    shown: Callable[[], RunDriver | None],
    runbooks_url: str = "",
    clock: Callable[[], float] = time.time,
) -> Callable[[PageRequest], PageAnswer | None]:
    """Make the pages of one coordinator, for what is no probe in ``ops.probes.server.Probes``.

    They answer None for what they do not know. ``shown`` gives the run that silos are told of now;
    below ``runbooks_url`` is a page for each alert; the clock decides whether a certificate is
    valid.
    """
    store = context.store
    policy = AccessPolicy(
        trust=trust, federation=store.federation.current, silos=store.silos, clock=clock
    )
    observer = Observer(context=context, trust=trust, data_dir=data_dir, shown=shown)
    return _Pages(PageAccess(policy), observer, runbooks_url).answer


class _Pages:
    """Answers requests, one at a time."""

    def __init__(self, access: PageAccess, observer: Observer, runbooks_url: str) -> None:
        self._access = access
        self._runbooks_url = runbooks_url
        self._observer = observer
        self._lock = threading.Lock()
        self._newest: dict[tuple[str, bool], tuple[float, PageAnswer]] = {}

    def answer(self, request: PageRequest) -> PageAnswer | None:
        path, _, query = request.path.partition("?")
        if path != "/" and not path.startswith(RUNS):
            return None
        refusal = self._access.refusal(request)
        if refusal:
            return PageAnswer(
                status=HTTPStatus.FORBIDDEN,
                content_type=_PLAIN,
                body=refusal.encode(),
                headers=HEADERS,
            )
        run_id = unquote(path.removeprefix(RUNS)) if path != "/" else ""
        if path != "/" and not _may_be_run(run_id):
            return _unknown_run()
        return self._fresh(run_id, held=query == HOLD)

    def _fresh(self, run_id: str, *, held: bool) -> PageAnswer:
        """The page of at most ``FRESH_S`` ago."""
        if not self._lock.acquire(timeout=PATIENCE_S):
            # Whoever waits here takes a place from the probes.
            return _failed("Another request is still being answered")
        try:
            now = time.monotonic()
            self._newest = {
                key: (made, page)
                for key, (made, page) in self._newest.items()
                if now - made < FRESH_S
            }
            known = self._newest.get((run_id, held))
            if known is not None:
                return known[1]
            made = self._make(run_id, held=held)
            self._newest[run_id, held] = time.monotonic(), made
            return made
        finally:
            self._lock.release()

    def _make(self, run_id: str, *, held: bool) -> PageAnswer:
        try:
            releases = MAX_RELEASES if run_id else OVERVIEW_RELEASES
            picture = self._observer.look(run_id, releases=releases)
            if run_id and picture.run is not None:
                return _page(HTTPStatus.OK, run_page(picture, picture.run, held=held))
            page = main_page(picture, held=held, runbooks_url=self._runbooks_url)
            return _page(HTTPStatus.OK, page)
        except UnknownRunError:
            return _unknown_run()
        except (CoordinatorError, FederationError) as error:
            log.warning("status_page_failed", reason=error)
            return _failed(str(error))


def _may_be_run(run_id: str) -> bool:
    return 0 < len(run_id) <= MAX_RUN_ID_CHARS and run_id.isprintable()


def _unknown_run() -> PageAnswer:
    text = "chorale run list shows every run of this coordinator."
    return _page(HTTPStatus.NOT_FOUND, failure_page("No such run", text, again=False))


def _failed(reason: str) -> PageAnswer:
    return _page(
        HTTPStatus.SERVICE_UNAVAILABLE,
        failure_page(
            "The coordinator cannot be looked at",
            f"{reason}. Look at its log and run: chorale doctor. This page tries again.",
            again=True,
        ),
    )


def _page(status: HTTPStatus, body: bytes) -> PageAnswer:
    return PageAnswer(status=status, content_type=_HTML, body=body, headers=HEADERS)
