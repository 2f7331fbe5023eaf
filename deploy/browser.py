"""A headless Chromium, driven over its own protocol: how a page looks, what it asks for.

``screenshot(url, out, width, height, dark)`` is all that most callers need.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from websockets.sync.client import connect

START_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 60.0
QUIET_S = 0.3
"""A page that asks for nothing for so long after it was loaded has everything."""
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--force-device-scale-factor=1",
    "--remote-debugging-port=0",
)  # fmt: skip
MAX_HEIGHT = 16_000
_OVERFLOW = """(() => {
  const wide = document.documentElement.clientWidth;
  return [...document.querySelectorAll('body *')]
    .filter(one => !one.closest('svg') && !one.closest('.hidden, .skip'))
    .filter(one => one.getBoundingClientRect().right > wide + 0.5
            || one.clientWidth > 0 && getComputedStyle(one).display !== 'inline'
            && one.scrollWidth > one.clientWidth + 1)
    .map(one => `${one.tagName.toLowerCase()}.${one.className}: ${one.textContent.slice(0, 40)}`);
})()"""


class BrowserError(Exception):
    """Chromium does not start, or refuses a command."""


def executable() -> str | None:
    """Where Chromium is; None if it is not installed."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


@dataclass
class Loaded:
    """One page, as it was loaded."""

    status: int
    headers: dict[str, str]
    requests: list[str]
    """Every URL that was asked for, the page's own first."""
    complaints: list[str]
    """Errors and warnings of console, network, security policy and scripts."""
    wider_by_px: int
    """How much wider than the window the page is."""
    overflowing: list[str]
    """Elements that reach beyond the window, or whose content reaches beyond them."""
    height_px: int
    tree: list[dict[str, str]]
    """What a screen reader is told: role and name of each node."""


class Browser:
    """One process with a profile of its own; a context manager."""

    def __init__(self, *flags: str) -> None:
        self._flags = flags

    def __enter__(self) -> Self:
        program = executable()
        if program is None:
            raise BrowserError("no chromium is installed")
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        self._log = (Path(self._profile.name) / "log").open("wb")
        self._opened = ExitStack()
        self._process = subprocess.Popen(
            [program, *FLAGS, *self._flags, f"--user-data-dir={self._profile.name}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            env={**os.environ, "HOME": self._profile.name},
        )
        try:
            port = self._port()
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=10) as answer:
                targets = json.loads(answer.read())
            page = next(target for target in targets if target["type"] == "page")
            self._socket = self._opened.enter_context(
                connect(
                    page["webSocketDebuggerUrl"],
                    max_size=None,
                    compression=None,
                    proxy=None,
                    ping_interval=None,
                )
            )
            self._number = 0
            self._events: list[dict[str, Any]] = []
            for domain in ("Page", "Runtime", "Network", "Log", "Accessibility"):
                self.call(f"{domain}.enable")
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        self._opened.close()
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
        self._profile.cleanup()

    def _port(self) -> int:
        file = Path(self._profile.name) / "DevToolsActivePort"
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < give_up_at and self._process.poll() is None:
            lines = file.read_text().splitlines() if file.exists() else []
            if len(lines) == 2:
                return int(lines[0])
            time.sleep(0.05)
        raise BrowserError((Path(self._profile.name) / "log").read_text()[-2000:])

    def call(self, method: str, **parameters: Any) -> Any:
        """Give one command and wait for its answer."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        give_up_at = time.monotonic() + ANSWER_TIMEOUT_S
        while True:
            message = json.loads(self._socket.recv(timeout=give_up_at - time.monotonic()))
            if message.get("id") != self._number:
                self._events.append(message)
            elif "error" in message:
                raise BrowserError(f"{method}: {message['error']}")
            else:
                return message["result"]

    def _wait_for(self, *methods: str) -> None:
        give_up_at = time.monotonic() + ANSWER_TIMEOUT_S
        while not any(event.get("method") in methods for event in self._events):
            self._events.append(
                json.loads(self._socket.recv(timeout=give_up_at - time.monotonic()))
            )

    def _listen(self, seconds: float) -> None:
        give_up_at = time.monotonic() + seconds
        while (left := give_up_at - time.monotonic()) > 0:
            try:
                self._events.append(json.loads(self._socket.recv(timeout=left)))
            except TimeoutError:
                return

    def open(self, url: str, *, width: int = 1280, height: int = 800, dark: bool = False) -> Loaded:
        """Load a page in a window of this size and measure it."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        self._events.clear()
        self.call("Page.navigate", url=url)
        self._wait_for("Page.loadEventFired")
        self._listen(QUIET_S)
        events, self._events = self._events, []
        answers = [
            event["params"]["response"]
            for event in events
            if event["method"] == "Network.responseReceived"
            and event["params"]["response"]["url"].split("#")[0] == url.split("#", maxsplit=1)[0]
        ]
        sizes = self.evaluate(
            "[document.documentElement.scrollWidth, innerWidth, "
            "document.documentElement.scrollHeight]"
        )
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return Loaded(
            status=answers[0]["status"],
            headers={name.lower(): value for name, value in answers[0]["headers"].items()},
            requests=[
                event["params"]["request"]["url"]
                for event in events
                if event["method"] == "Network.requestWillBeSent"
                and urlsplit(event["params"]["request"]["url"]).scheme != "data"
            ],
            complaints=_complaints(events),
            wider_by_px=sizes[0] - min(sizes[1], width),
            overflowing=self.evaluate(_OVERFLOW),
            height_px=sizes[2],
            tree=[
                {
                    "role": node["role"]["value"],
                    "name": node.get("name", {}).get("value", ""),
                }
                for node in nodes
                if not node.get("ignored") and "role" in node
            ],
        )

    def evaluate(self, expression: str) -> Any:
        """The value of an expression, asked from outside: the page's own policy does not apply."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise BrowserError(str(answer["exceptionDetails"]))
        return answer["result"]["value"]

    def capture(self, out: Path, *, width: int, height: int | None = None) -> Path:
        """Write a PNG of what is loaded: the first ``height`` pixels, or all of it."""
        whole = self.evaluate("document.documentElement.scrollHeight")
        clip = {"x": 0, "y": 0, "width": width, "scale": 1,
                "height": min(height or whole, MAX_HEIGHT)}  # fmt: skip
        shot = self.call(
            "Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True
        )
        Path(out).write_bytes(base64.b64decode(shot["data"]))
        return Path(out)


def _complaints(events: list[dict[str, Any]]) -> list[str]:
    said = []
    for event in events:
        parameters = event.get("params", {})
        match event["method"]:
            case "Runtime.consoleAPICalled":
                said.append(f"console.{parameters['type']}")
            case "Runtime.exceptionThrown":
                said.append(parameters["exceptionDetails"]["text"])
            case "Log.entryAdded":
                said.append(parameters["entry"]["text"])
            case "Network.loadingFailed":
                said.append(parameters["errorText"])
    return said


def screenshot(
    url: str, out: Path, width: int = 1280, height: int | None = None, *, dark: bool = False
) -> Loaded:
    """Write a PNG of a page.

    Args:
        url: What is loaded.
        out: Where the PNG goes.
        width: Of the window, pixels.
        height: Of the picture, pixels; the whole page if unset.
        dark: Whether the user prefers dark.

    Returns:
        What was loaded.
    """
    with Browser() as opened:
        loaded = opened.open(url, width=width, height=height or 800, dark=dark)
        opened.capture(out, width=width, height=height)
        return loaded
