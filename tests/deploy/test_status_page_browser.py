"""The status page of a real coordinator in a real browser, while a federation runs.

Four silos as processes over mTLS contribute known vectors with noise; one is killed on the way.
Each picture is taken in light and dark, on a desk and on a phone, and stays in pytest's directory.
"""

import http.client
import itertools
import re
import time

import matplotlib.image
import pytest

from deploy.browser import Browser, executable
from tests.kit.processes import constant_federation as cf
from tests.kit.waiting import until

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(executable() is None, reason="no chromium is installed"),
    pytest.mark.xdist_group("status_page"),
    pytest.mark.timeout(600),
]

ROUNDS = 40
WIDTHS = {"desk": 1280, "phone": 360}


@pytest.fixture(scope="module")
def loopback(tmp_path_factory):
    with cf.federation(tmp_path_factory.mktemp("status")) as made:
        yield made


@pytest.fixture(scope="module")
def chromium():
    # As an attacker's DNS would answer.
    with Browser("--host-resolver-rules=MAP rebound.example.org 127.0.0.1") as opened:
        yield opened


def url(loopback, path="/", host="127.0.0.1"):
    return f"http://{host}:{loopback.probes_port}{path}"


def text(loopback, path="/"):
    connection = http.client.HTTPConnection("127.0.0.1", loopback.probes_port, timeout=30)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status == 200
        html = answer.read().decode()
    finally:
        connection.close()
    return " ".join(re.sub(r"(?s)<style>.*?</style>|<[^>]+>", " ", html).split())


def require_good(chromium, loopback, directory, name, path="/"):
    """Look at a page on a desk and on a phone, by day and by night."""
    for (device, width), dark in itertools.product(WIDTHS.items(), (False, True)):
        address = url(loopback, path)
        loaded = chromium.open(address, width=width, height=800, dark=dark)
        assert loaded.status == 200
        assert loaded.complaints == []
        assert loaded.requests == [address]
        assert (loaded.wider_by_px, loaded.overflowing) == (0, [])
        roles = [node["role"] for node in loaded.tree]
        assert {"main", "banner", "contentinfo", "heading", "table"} <= set(roles)
        images = [node for node in loaded.tree if node["role"] == "image"]
        assert all(node["name"] for node in images)
        tables = [node for node in loaded.tree if node["role"] == "table"]
        assert all(node["name"] for node in tables)
        scheme = "dark" if dark else "light"
        out = chromium.capture(directory / f"{name}-{device}-{scheme}.png")
        brightness = matplotlib.image.imread(out)[:, :, :3].mean()
        assert (brightness < 0.3) if dark else (brightness > 0.8)


def test_a_federation_from_its_roster_to_its_last_round(loopback, chromium, tmp_path):
    first = text(loopback)
    assert "Nothing runs yet" in first
    assert "chorale run start plan.toml -f demo" in first
    chromium.open(url(loopback), width=1280)
    chromium.capture(tmp_path / "before-desk-light.png")

    for silo in cf.SILOS:
        loopback.start_silo(silo)
    plan, adapter = cf.write_run(
        loopback,
        cf.plan_toml(rounds=ROUNDS, mode="silo", noise=1.0, epsilon_cap=2000, ready_after_s=1),
    )
    run_id = loopback.start_run(plan, adapter, token="seen")
    until(lambda: re.search(r"Round ([5-9]|\d\d) of 40:", text(loopback)), "the fifth round")
    going = text(loopback)
    assert f"{run_id} is running" in going
    assert "ε" in going
    require_good(chromium, loopback, tmp_path, "running")
    for width in (320, 480, 768, 1024, 1920):
        loaded = chromium.open(url(loopback), width=width)
        assert (loaded.wider_by_px, loaded.overflowing) == (0, []), width

    loopback.kill("silo-d")
    until(lambda: "waiting for silo-d." in text(loopback), "silo-d is waited for")
    until(lambda: "Not heard of: silo-d." in text(loopback), "silo-d is missed")
    require_good(chromium, loopback, tmp_path, "silent")
    assert "rostered silent" in text(loopback)
    require_good(chromium, loopback, tmp_path, "run", f"/runs/{run_id}")

    last, _ = cf.watch_to_end(loopback, run_id)
    assert last["run"]["state"] == "finished"
    done = text(loopback)
    assert f"Run {run_id} finished its 40 rounds" in done
    assert last["run"]["adapter_sha256"][:12] in done
    assert f"{last['epsilon_spent']:.4g}"[:3] in done
    require_good(chromium, loopback, tmp_path, "finished")


def test_a_page_of_somebody_else_cannot_read_it_through_this_browser(loopback, chromium):
    loaded = chromium.open(url(loopback, host="rebound.example.org"))
    assert loaded.status == 403
    assert "This page is closed" in chromium.evaluate("document.body.innerText")
    assert chromium.open(url(loopback, host="localhost")).status == 200


def test_it_begins_again_by_itself_and_stays_when_it_is_held(loopback, chromium):
    def reloads(path, *, looks):
        chromium.open(url(loopback, path))
        made = chromium.evaluate("performance.timeOrigin")
        for _ in range(looks):
            time.sleep(12)
            if chromium.evaluate("performance.timeOrigin") != made:
                return True
        return False

    # A busy machine may be late with the first.
    assert reloads("/", looks=5)
    assert not reloads("/?hold", looks=1)
