"""What the driver of Chromium says of a page: what it asked for, what was refused, its width."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from deploy.browser import Browser, executable
from tests.kit.deploy.tools import require

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
QUIET = b"""<!doctype html><html lang=en><title>t</title><link rel=icon href='data:,'>
<meta name=viewport content='width=device-width'>
<style>body{margin:0;background:#fff} table{width:900px}
@media (prefers-color-scheme: dark) {body{background:#000}}</style>
<main><h1>Rounds</h1><table><caption>Silos</caption><tr><th>silo</th></tr></table></main>"""
LOUD = QUIET + b"<script>alert(1)</script><img src=/other.png>"


class Pages(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path in {"/", "/loud"} else 404)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        self.wfile.write(LOUD if self.path == "/loud" else QUIET)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def site():
    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def chromium():
    if executable() is None:
        require("chromium", "chromium")
    with Browser() as opened:
        yield opened


def test_a_quiet_page_asks_for_itself_alone(site, chromium, tmp_path):
    loaded = chromium.open(site)
    assert (loaded.status, loaded.requests, loaded.complaints) == (200, [site], [])
    assert (loaded.wider_by_px, loaded.overflowing) == (0, [])
    assert loaded.headers["content-security-policy"] == POLICY
    assert {"role": "table", "name": "Silos"} in loaded.tree
    picture = chromium.capture(tmp_path / "page.png").read_bytes()
    assert picture.startswith(b"\x89PNG")


def test_a_wide_page_is_told_on_a_phone(site, chromium):
    assert chromium.open(site, width=360).wider_by_px == 540


def test_what_the_policy_refuses_is_a_complaint(site, chromium):
    said = " ".join(chromium.open(site + "loud").complaints)
    assert "script" in said
    assert "other.png" in said
    assert chromium.evaluate("document.querySelector('h1').innerText") == "Rounds"


def test_the_user_may_prefer_dark(site, chromium):
    for dark, colour in ((False, "rgb(255, 255, 255)"), (True, "rgb(0, 0, 0)")):
        chromium.open(site, dark=dark)
        assert chromium.evaluate("getComputedStyle(document.body).backgroundColor") == colour


def test_a_name_that_is_nowhere_has_the_status_of_its_page(site, chromium):
    assert chromium.open(site + "absent").status == 404
