"""Fetching published bytes: into a file, resumed after a cut, checked as a whole."""

import hashlib
import io
import time
from types import SimpleNamespace

import grpc
import pytest

from silo_agent.errors import TransportError
from silo_agent.line.transport import Coordinator

CONTENT = bytes(range(256)) * 40
CHUNK = 1000


class Cut(grpc.RpcError):
    """The connection breaks."""

    def code(self):
        return grpc.StatusCode.UNAVAILABLE

    def details(self):
        return "cut"

    def trailing_metadata(self):
        return ()


class Stream:
    """An answer of FetchBlob that breaks after some chunks."""

    def __init__(self, content, offset, chunks):
        self._content, self._offset, self._chunks = content, offset, chunks
        self.cancelled = False

    def cancel(self):
        self.cancelled = True

    def __iter__(self):
        for number, start in enumerate(range(self._offset, len(self._content), CHUNK)):
            if number == self._chunks:
                raise Cut
            yield SimpleNamespace(content=self._content[start : start + CHUNK])


def coordinator(content, *, chunks_per_call=(None,)):
    """One that serves ``content`` and breaks each call after so many chunks."""
    made = Coordinator(
        address="localhost:1", credentials=grpc.ssl_channel_credentials(), patience_s=5.0
    )
    calls, streams = [], []
    limits = list(chunks_per_call)

    def fetch(request, timeout):
        calls.append(request.offset_bytes)
        streams.append(Stream(content, request.offset_bytes, limits.pop(0)))
        return streams[-1]

    made._stub = SimpleNamespace(FetchBlob=fetch)
    made._stopping = SimpleNamespace(wait=lambda _seconds: False)
    return made, calls, streams


def fetched(made, *, sha256=None, max_bytes=1 << 20):
    sink = io.BytesIO()
    made.blob(sha256 or hashlib.sha256(CONTENT).digest(), sink, max_bytes=max_bytes)
    return sink.getvalue()


def test_a_fetch_resumes_where_each_cut_left_it():
    made, calls, _ = coordinator(CONTENT, chunks_per_call=(3, 0, 5, None))
    assert fetched(made) == CONTENT
    assert calls == [0, 3 * CHUNK, 3 * CHUNK, 8 * CHUNK]
    made.close()


class Clock:
    """A connection that lasts four seconds at a time."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        real = Stream.__iter__

        def slow(stream):
            try:
                yield from real(stream)
            except Cut:
                self.now += 4.0
                raise

        monkeypatch.setattr(Stream, "__iter__", slow)


def test_bytes_that_arrived_renew_the_patience(monkeypatch):
    Clock(monkeypatch)
    made, calls, _ = coordinator(CONTENT, chunks_per_call=(1,) * 8 + (None,))
    assert fetched(made) == CONTENT
    assert len(calls) == 9
    made.close()


def test_without_progress_the_patience_ends(monkeypatch):
    Clock(monkeypatch)
    made, calls, _ = coordinator(CONTENT, chunks_per_call=(3,) + (0,) * 8)
    with pytest.raises(TransportError, match="UNAVAILABLE"):
        fetched(made)
    # Five seconds of patience after the bytes of the first leg; the second one ends past them.
    assert calls == [0, 3 * CHUNK]
    made.close()


def test_other_bytes_than_asked_for_are_refused():
    altered = CONTENT[:-1] + b"\x00"
    made, _, _ = coordinator(altered)
    with pytest.raises(TransportError, match="digest"):
        fetched(made)
    # Bytes that change between two calls are not a blob either.
    made, _, _ = coordinator(CONTENT[:-1], chunks_per_call=(2, None))
    with pytest.raises(TransportError, match="digest"):
        fetched(made)
    made.close()


def test_more_bytes_than_allowed_end_the_call():
    made, _, streams = coordinator(CONTENT)
    with pytest.raises(TransportError, match="exceed"):
        fetched(made, max_bytes=2 * CHUNK)
    assert streams[0].cancelled
    made.close()
