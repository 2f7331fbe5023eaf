"""One request of an endpoint: a whole body, or one word why not; the key in its header alone."""

import asyncio
import importlib
import logging
import ssl
import sys
import traceback

import pytest
import trustme
from pydantic import SecretStr

from federation.advice.conversation import Failure
from federation.advice.reply import MAX_BODY_BYTES
from server.advisor.endpoint import AdvisorError, Endpoint
from server.errors import ConfigurationError
from tests.kit.server import hostile_endpoint as hostile
from tests.kit.server.hostile_endpoint import HostileEndpoint, body, good, redirect

KEY = "sk-zq9x-do-not-print-me"


def asked(answer, *, timeout_s=5.0, max_bytes=MAX_BODY_BYTES, **given):
    """What one request comes to, and what the endpoint saw."""

    async def ask():
        served = HostileEndpoint(scripts={"0": [answer]})
        async with served.serving():
            endpoint = Endpoint(served.url(), "m", **given)
            try:
                said = await endpoint.ask(b'{"a":1}', timeout_s=timeout_s, max_bytes=max_bytes)
            except AdvisorError as error:
                said = error.kind
        return said, served.seen

    return asyncio.run(ask())


def test_a_body_comes_as_it_was_sent():
    said, seen = asked(body(b"\x00anything\xff"), api_key=SecretStr(KEY))
    assert said == b"\x00anything\xff"
    assert seen[0].head.startswith("POST /case/0/v1/chat/completions HTTP/1.1\r\n")
    assert f"authorization: bearer {KEY}" in seen[0].head.lower()
    assert "content-type: application/json" in seen[0].head.lower()
    assert seen[0].body == b'{"a":1}'


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (hostile.hang, Failure.TIMEOUT),
        (hostile.hang_within, Failure.TIMEOUT),
        (hostile.drip, Failure.TIMEOUT),
        (hostile.drip_head, Failure.TIMEOUT),
        (hostile.endless, Failure.TOO_LARGE),
        (body(b"x" * (MAX_BODY_BYTES + 1)), Failure.TOO_LARGE),
        (hostile.TRUNCATED, Failure.TRUNCATED),
        (hostile.CUT_CHUNK, Failure.TRUNCATED),
        (hostile.HUNG_UP, Failure.BAD_HTTP),
        (hostile.NO_HTTP, Failure.BAD_HTTP),
        (hostile.BAD_LENGTH, Failure.BAD_HTTP),
        (hostile.TWO_LENGTHS, Failure.BAD_HTTP),
        (hostile.LONG_HEAD, Failure.BAD_HTTP),
        (hostile.SWITCHED, Failure.BAD_HTTP),
        (hostile.INFORMED, Failure.HTTP_STATUS),
        (body(b"{}", status="201 Created"), Failure.HTTP_STATUS),
        (body(b"", status="401 Unauthorized"), Failure.HTTP_STATUS),
        (body(b"", status="429 Too Many Requests"), Failure.HTTP_STATUS),
        (body(b"", status="500 Internal Server Error"), Failure.HTTP_STATUS),
        (body(b"", status="304 Not Modified"), Failure.REDIRECT),
        (redirect("https://[not a host/"), Failure.REDIRECT),
    ],
)  # fmt: skip
def test_whatever_else_it_does_is_one_word(answer, kind):
    said, _ = asked(answer, timeout_s=0.5 if kind is Failure.TIMEOUT else 20.0)
    assert said is kind


def test_a_body_of_the_most_bytes_is_taken_and_less_may_be_asked_for():
    assert asked(body(b"x" * MAX_BODY_BYTES))[0] == b"x" * MAX_BODY_BYTES
    assert asked(body(b"x" * 11), max_bytes=10)[0] is Failure.TOO_LARGE


def test_a_redirect_is_not_followed():
    async def ask():
        served = HostileEndpoint()
        async with served.serving():
            for status in ("301 Moved", "302 Found", "303 See Other", "307 T", "308 P"):
                served.scripts["0"] = [redirect(served.url("1") + "/chat/completions", status)]
                served.scripts["1"] = [good()]
                endpoint = Endpoint(served.url(), "m", api_key=SecretStr(KEY))
                with pytest.raises(AdvisorError, match="redirect"):
                    await endpoint.ask(b"{}", timeout_s=5, max_bytes=100)
        return served

    served = asyncio.run(ask())
    assert len(served.bodies("0")) == 5
    assert served.bodies("1") == []


def test_nobody_there():
    async def ask():
        served = HostileEndpoint()
        async with served.serving():
            pass
        await Endpoint(served.url(), "m").ask(b"{}", timeout_s=5, max_bytes=100)

    with pytest.raises(AdvisorError) as caught:
        asyncio.run(ask())
    assert caught.value.kind is Failure.UNREACHABLE


def test_the_environments_proxies_are_not_used(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert asked(body(b"{}"))[0] == b"{}"


def test_what_follows_a_body_on_its_connection_is_not_the_next_one():
    async def ask():
        served = HostileEndpoint(scripts={"0": [hostile.SMUGGLED, body(b"second")]})
        async with served.serving():
            endpoint = Endpoint(served.url(), "m")
            return [await endpoint.ask(b"{}", timeout_s=5, max_bytes=100) for _ in range(2)]

    assert asyncio.run(ask()) == [b"{}", b"second"]


def test_tls_is_verified(tmp_path):
    ca, other = trustme.CA(), trustme.CA()
    ca_file, other_file = tmp_path / "ca.pem", tmp_path / "other.pem"
    ca.cert_pem.write_to_path(ca_file)
    other.cert_pem.write_to_path(other_file)

    async def ask(name, **given):
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ca.issue_cert(name).configure_cert(server)
        served = HostileEndpoint(scripts={"0": [body(b"{}")]})
        async with served.serving(tls=server):
            endpoint = Endpoint(served.url(), "m", api_key=SecretStr(KEY), **given)
            try:
                said = await endpoint.ask(b"{}", timeout_s=10, max_bytes=100)
            except AdvisorError as error:
                said = error.kind
            return said, len(served.seen)

    assert asyncio.run(ask("127.0.0.1", ca_file=str(ca_file))) == (b"{}", 1)
    # Another authority, the system's, another name: the key has not left.
    assert asyncio.run(ask("127.0.0.1", ca_file=str(other_file))) == (Failure.TLS, 0)
    assert asyncio.run(ask("127.0.0.1")) == (Failure.TLS, 0)
    assert asyncio.run(ask("models.example", ca_file=str(ca_file))) == (Failure.TLS, 0)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "models.example/v1",
        "ftp://models.example/v1",
        "http://models.example/v1",
        "http://10.0.0.1:8000/v1",
        "http://127.0.0.1.example/v1",
        "https://user:secret@models.example/v1",
        "https://models.example/v1?key=secret",
        "https://models.example/v1#x",
        "https://models.example:0/v1",
        "https://models.example:99999/v1",
        "https://[::1/v1",
        "https://models.exämple/v1",
        "https://models.example/v1\r\nx: y",
    ],
)
def test_an_address_that_cannot_be_used_is_refused(url):
    with pytest.raises(ConfigurationError) as caught:
        Endpoint(url, "m")
    assert "secret" not in str(caught.value)


def test_plain_http_goes_to_loopback_or_where_it_is_allowed():
    for url in ("http://127.0.0.1:1/v1", "http://localhost/v1/", "http://[::1]:1/v1"):
        assert Endpoint(url, "m").url == url.rstrip("/")
    assert Endpoint("http://models.example/v1", "m", allow_plain_http=True).url


def test_model_key_and_certificates_are_checked(tmp_path):
    url = "https://models.example/v1"
    for model in ("", "a b", "a\n", "x" * 129, "-m"):
        with pytest.raises(ConfigurationError, match="model"):
            Endpoint(url, model)
    for key in ("", "two words", "new\nline", "é", "x" * 4097):
        with pytest.raises(ConfigurationError, match="API key"):
            Endpoint(url, "m", api_key=SecretStr(key))
    for content in (None, "no certificate"):
        file = tmp_path / "ca.pem"
        if content:
            file.write_text(content)
        with pytest.raises(ConfigurationError, match="certificates cannot be read"):
            Endpoint(url, "m", ca_file=str(file))


def test_the_key_is_nowhere_but_in_the_header(caplog):
    caplog.set_level(logging.DEBUG)
    endpoint = Endpoint("https://models.example/v1", "m", api_key=SecretStr(KEY))
    assert KEY not in repr(endpoint) + str(endpoint) + str(vars(endpoint))

    async def ask(answer):
        served = HostileEndpoint(scripts={"0": [answer]})
        async with served.serving():
            mine = Endpoint(served.url(), "m", api_key=SecretStr(KEY))
            await mine.ask(b"{}", timeout_s=0.3, max_bytes=100)

    for answer in (hostile.hang, hostile.TRUNCATED, hostile.NO_HTTP, body(b"", status="500 X")):
        with pytest.raises(AdvisorError) as caught:
            asyncio.run(ask(answer))
        shown = "".join(traceback.format_exception(caught.value))
        assert KEY not in shown
    asyncio.run(ask(body(b"{}")))
    assert KEY not in caplog.text


def test_without_its_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx2", None)
    monkeypatch.delitem(sys.modules, "server.advisor.endpoint")
    with pytest.raises(ConfigurationError, match=r"pip install 'chorale\[advisor\]'"):
        importlib.import_module("server.advisor.endpoint")
