"""A headless Chromium of the system, driven by Playwright: how a page looks, what it asks for.

Playwright's own browser is never downloaded: what Debian installs is what is looked at.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from playwright.sync_api import BrowserContext, ConsoleMessage, Error, Page, sync_playwright

__all__ = ["Browser", "BrowserError", "Loaded", "executable"]

FLAGS: Final = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage")
BrowserError = Error
"""Chromium does not start, or refuses a command."""
_PHONE_PX: Final = 600
_OVERFLOW: Final = """(() => {
  const wide = document.documentElement.clientWidth;
  return [...document.querySelectorAll('body *')]
    .filter(one => !one.closest('svg') && !one.closest('.hidden, .skip'))
    .filter(one => one.getBoundingClientRect().right > wide + 0.5
            || one.clientWidth > 0 && getComputedStyle(one).display !== 'inline'
            && one.scrollWidth > one.clientWidth + 1)
    .map(one => `${one.tagName.toLowerCase()}.${one.className}: ${one.textContent.slice(0, 40)}`);
})()"""


def executable() -> str | None:
    """Where Chromium is; None if it is not installed."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


@dataclass(frozen=True, kw_only=True, slots=True)
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
    """One process with a profile of its own; a context manager.

    The flags are Chromium's, beside the usual ones.
    """

    def __init__(self, *flags: str) -> None:
        self._flags = flags
        self._context: BrowserContext | None = None

    def __enter__(self) -> Self:
        program = executable()
        if program is None:
            raise BrowserError("no chromium is installed")
        with ExitStack() as opened:
            driver = opened.enter_context(sync_playwright())
            self._browser = driver.chromium.launch(
                executable_path=program, args=[*FLAGS, *self._flags]
            )
            opened.callback(self._browser.close)
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def open(self, url: str, *, width: int = 1280, height: int = 800, dark: bool = False) -> Loaded:
        """Load a page in a window of this size, until it asks for nothing more, and measure it."""
        if self._context is not None:
            self._context.close()
        self._context = self._browser.new_context(
            viewport={"width": width, "height": height},
            is_mobile=width < _PHONE_PX,
            color_scheme="dark" if dark else "light",
        )
        self._page = page = self._context.new_page()
        requests, complaints = _watched(page)
        answer = page.goto(url, wait_until="networkidle")
        if answer is None:
            raise BrowserError(f"{url} has no answer")

        sizes = self.evaluate(
            "[document.documentElement.scrollWidth, innerWidth, "
            "document.documentElement.scrollHeight]"
        )
        # Playwright has no list of it with role and name.
        nodes = self._context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
        return Loaded(
            status=answer.status,
            headers=answer.all_headers(),
            requests=[*requests],
            complaints=[*complaints],
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
        return self._page.evaluate(expression)

    def capture(self, out: Path) -> Path:
        """Write a PNG of all of what is loaded."""
        self._page.screenshot(path=out, full_page=True)
        return out


def _watched(page: Page) -> tuple[list[str], list[str]]:
    """What a page will have asked for, and what will have been complained of."""
    requests: list[str] = []
    complaints: list[str] = []

    def said(message: ConsoleMessage) -> None:
        complaints.append(f"console.{message.type}: {message.text}")

    page.on("request", lambda asked: requests.append(asked.url))
    page.on("console", said)
    page.on("pageerror", lambda error: complaints.append(error.message))
    page.on("requestfailed", lambda asked: complaints.append(f"{asked.url}: {asked.failure}"))
    return requests, complaints
