"""The endpoint against senders that are no client of OpenAI's: raw bytes, strangers, floods.

Not failures: a connection that is closed without a word where there are too many. Failures: a
request of one session's token at another, a body that is read without the token, an answer that is
no JSON, a thread or port that outlives the session.
"""

import http.client
import json
import socket
import threading
import time
from urllib.parse import urlsplit

import pytest

from evolution.gateway.endpoint import Endpoint
from tests.kit.evolution import harnesses as hs
from tests.kit.evolution.scripted_engine import ScriptedEngine

MESSAGES = [{"role": "user", "content": "x"}]


@pytest.fixture
def served():
    session, seen = hs.session(ScriptedEngine("x"), hs.spec(max_body_bytes=2_000))
    with Endpoint(session) as endpoint:
        yield session, seen, endpoint


def sent(endpoint, body, *, method="POST", path="/v1/chat/completions", **headers):
    place = urlsplit(endpoint.url)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=20)
    given = {"Authorization": f"Bearer {endpoint.token}", **headers}
    connection.request(method, path, body, given)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    assert answer.getheader("Content-Type") == "application/json"
    assert (answer.status == 200) or answer.getheader("x-should-retry") == "false"
    return answer.status, json.loads(content)


def raw(endpoint, content, *, wait_s=20.0):
    """What comes back for bytes, until the server hangs up or is silent."""
    place = urlsplit(endpoint.url)
    found = b""
    with socket.create_connection((place.hostname, place.port), timeout=wait_s) as connection:
        connection.sendall(content)
        try:
            while chunk := connection.recv(65_536):
                found += chunk
        except TimeoutError:
            return found + b"(open)"
    return found


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"model": NaN}',
        b'{"temperature": 1e999}',
        b'{"temperature": -Infinity}',
        b'{"model": "\\ud800"}',
        b"\xff\xfe",
        b'{"a":' * 200 + b"1" + b"}" * 200,
        b"[" * 1_990,
        b'{"temperature": ' + b"9" * 1_900 + b"}",
    ],
)
def test_a_body_that_is_no_request_is_refused_as_one(served, body):
    session, seen, endpoint = served
    status, told = sent(endpoint, body)
    assert status == 400
    assert set(told["error"]) == {"message", "type", "param", "code"}
    assert told["error"]["type"] == "invalid_request_error"
    assert not seen.calls
    assert not session.over


def test_a_body_may_have_so_many_bytes_and_no_more(served):
    session, seen, endpoint = served

    def body(length):
        request = {"model": session.model, "messages": MESSAGES, "user": ""}
        request["user"] = "u" * (length - len(json.dumps(request)))
        return json.dumps(request).encode()

    assert sent(endpoint, body(2_001))[0] == 413
    assert not seen.calls
    assert sent(endpoint, body(2_000))[0] == 200


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Content-Length: -1", b"411"),
        ("Content-Length: 1e3", b"411"),
        ("Content-Length: \u0663", b"411"),
        ("Content-Length: 99999999999999999999999999", b"413"),
        ("Transfer-Encoding: chunked", b"411"),
        ("X: y", b"411"),
    ],
)
def test_a_body_says_its_length(served, header, status):
    _, _, endpoint = served
    head = f"POST /v1/reward HTTP/1.1\r\nAuthorization: Bearer {endpoint.token}\r\n{header}\r\n\r\n"
    found = raw(endpoint, head.encode("utf-8") + b"0\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 " + status)
    assert not found.endswith(b"(open)")


def test_nothing_of_a_stranger_s_body_is_read(served):
    """The body never comes: an endpoint that waited for it would be silent."""
    _, seen, endpoint = served
    for token in ("", "Bearer", "Bearer x", f"bearer {endpoint.token}", endpoint.token):
        head = f"POST /v1/reward HTTP/1.1\r\nAuthorization: {token}\r\nContent-Length: 9\r\n\r\n"
        found = raw(endpoint, head.encode())
        assert found.startswith(b"HTTP/1.1 401")
        assert not found.endswith(b"(open)")
    assert not seen.calls


def test_a_refused_body_does_not_pass_for_the_next_request(served):
    _, _, endpoint = served
    inner = "GET /v1/models HTTP/1.1\r\n\r\n"
    head = (
        f"POST /nowhere HTTP/1.1\r\nAuthorization: Bearer {endpoint.token}\r\n"
        f"Content-Length: {len(inner)}\r\n\r\n{inner}"
    )
    found = raw(endpoint, head.encode())
    assert found.count(b"HTTP/1.1") == 1
    assert found.startswith(b"HTTP/1.1 404")


@pytest.mark.parametrize(
    "content",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"PUT /v1/reward HTTP/1.1\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"A%d: b\r\n" % n for n in range(200)) + b"\r\n",
    ],
)
def test_what_is_no_http_is_refused_without_a_page(served, content):
    _, _, endpoint = served
    found = raw(endpoint, content)
    assert b"<" not in found
    assert not found.endswith(b"(open)")
    assert sent(endpoint, None, method="GET", path="/v1/models")[0] == 200


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/chat/completions/", "/v1/../v1/reward", "/v2/x"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_there_are_three_paths(served, method, path):
    _, _, endpoint = served
    status, told = sent(endpoint, b"{}" if method == "POST" else None, method=method, path=path)
    assert (status, told["error"]["type"]) == (404, "not_found_error")


def test_connections_are_bounded_and_come_back(served):
    _, _, endpoint = served
    place = urlsplit(endpoint.url)
    held = [socket.create_connection((place.hostname, place.port)) for _ in range(16)]
    deadline = time.monotonic() + 20
    while sum("process_request" in t.name for t in threading.enumerate()) < 16:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert raw(endpoint, b"") == b""
    for connection in held:
        connection.close()
    while True:
        try:
            status, _ = sent(endpoint, None, method="GET", path="/v1/models")
            break
        except (ConnectionError, http.client.HTTPException):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert status == 200


def test_the_end_of_a_session_hangs_up_on_everybody():
    session, _ = hs.session(ScriptedEngine("x"))
    before = threading.active_count()
    with Endpoint(session) as endpoint:
        place = urlsplit(endpoint.url)
        silent = socket.create_connection((place.hostname, place.port), timeout=20)
        sent(endpoint, None, method="GET", path="/v1/models")
    assert silent.recv(1) == b""
    silent.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((place.hostname, place.port), timeout=20)
    deadline = time.monotonic() + 20
    while threading.active_count() > before:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_two_requests_at_once_are_answered_one_after_the_other():
    engine = ScriptedEngine("x")
    real, inside, most = engine.generate, [], []

    def slow(prompts, sampling):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.3)
        inside.pop()
        return real(prompts, sampling)

    engine.generate = slow
    session, _ = hs.session(engine, hs.spec(max_forks=3))
    with Endpoint(session) as endpoint:
        bodies = [
            json.dumps(
                {"model": session.model, "messages": [{"role": "user", "content": str(n)}]}
            ).encode()
            for n in range(3)
        ]
        threads = [threading.Thread(target=sent, args=(endpoint, body)) for body in bodies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert most == [1, 1, 1]
    assert session.answers == 3


def test_nobody_prints_the_token(served):
    _, _, endpoint = served
    assert endpoint.token not in f"{endpoint!r}{endpoint}"
