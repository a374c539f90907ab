"""One browser for all tests; a test fails if its pages send foreign requests or log errors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, WebSocket

PICTURES = Path(__file__).parents[2] / "build" / "screenshots"  # kept by CI as artefacts

ARGUMENTS = (
    "--no-sandbox",  # as root there is none
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
    "--disable-component-update",
    "--component-updater=url-source=http://127.0.0.1:9/",
    "--gaia-url=http://127.0.0.1:9/",
    "--font-render-hinting=none",
)
"""Host names resolve only to this machine, and Chromium's own background requests go there, too.

Requests caused by a page are not disabled, such as autofill queries to Google for forms that are no search.
"""

TIMEOUT_MILLISECONDS = 60_000

_LOCAL_HOSTS = {"127.0.0.1", "localhost", "::1", "", "~notfound"}
_LOCAL_SCHEMES = {"file", "data", "blob", "about", "chrome"}
_LOGGED = re.compile(r'"(?:url|host)":"(?:(\w+):(?://)?)?([^"/]*)')
_RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa")


class Pages:
    """The pages of one test, each with its own storage, cache and settings."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[BrowserContext] = []
        self._own: set[str] = set()
        self._expected: list[str] = []
        self.requests: list[str] = []  # requested addresses, in order
        self.complaints: list[str] = []  # console errors and warnings, and uncaught exceptions

    def open(
        self,
        address: str | Path,
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        media: Literal["screen", "print"] = "screen",
    ) -> Page:
        """Opens a file or an address of a server on this machine, in a window with a size in CSS pixels."""
        from playwright.sync_api import expect

        expect.set_options(timeout=TIMEOUT_MILLISECONDS)
        context = self._browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            locale="en-GB",
            timezone_id="UTC",
        )
        self._contexts.append(context)
        context.set_default_timeout(TIMEOUT_MILLISECONDS)
        context.on("request", self._note_request)
        context.on("console", self._note_message)
        context.on("weberror", lambda error: self.complaints.append(str(error.error)))
        page = context.new_page()
        page.on("websocket", self._note_socket)
        if media == "print":
            page.emulate_media(media=media)
        target = address.resolve().as_uri() if isinstance(address, Path) else address
        self._own.add(target.partition("#")[0])
        page.goto(target)
        return page

    def picture(self, page: Page, name: str, *, whole: bool = True) -> Path:
        """Writes `build/screenshots/NAME.png`: the whole page, or the visible part; returns the path."""
        path = PICTURES / f"{name}.png"
        page.screenshot(path=path, full_page=whole, animations="disabled", caret="hide")
        return path

    def expect_complaint(self, text: str) -> None:
        """Allows complaints that contain a text, and requires one."""
        self._expected.append(text)

    def check_accessible(self, page: Page, *, inside: str | None = None) -> None:
        """Fails if axe-core finds violations of WCAG 2.2, levels A and AA, in a page or inside of a selector."""
        from axe_playwright_python.sync_playwright import Axe

        options = {"resultTypes": ["violations"], "runOnly": list(_RULES)}
        found = Axe().run(page, context=inside, options=options).response["violations"]
        faults = [
            f"{each['id']}: {each['help']}: {node['target']}: {node['failureSummary']}"
            for each in found
            for node in each["nodes"]
        ]
        assert not faults, "\n".join(faults)

    def close(self) -> None:
        """Closes all pages; fails if one sent a foreign request or complained."""
        for context in self._contexts:
            context.close()
        foreign = [address for address in self.requests if not self._is_own(address)]
        assert not foreign, f"requests that leave the page: {foreign}"
        complaints = [each for each in self.complaints if not any(text in each for text in self._expected)]
        assert not complaints, "\n".join(complaints)
        missing = [text for text in self._expected if not any(text in each for each in self.complaints)]
        assert not missing, f"complaints that did not come: {missing}"

    def _is_own(self, address: str) -> bool:
        parts = urlsplit(address)
        if parts.scheme == "file":
            return address.partition("#")[0] in self._own
        return parts.scheme in _LOCAL_SCHEMES or parts.hostname in _LOCAL_HOSTS

    def _note_request(self, request: Request) -> None:
        self.requests.append(request.url)

    def _note_socket(self, socket: WebSocket) -> None:
        self.requests.append(socket.url)

    def _note_message(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")


def hosts_asked(log: Path) -> set[str]:
    """Returns the foreign hosts in a log of Chromium's network service."""
    hosts: set[str] = set()
    for scheme, host in _LOGGED.findall(log.read_text(errors="replace")):
        hosts.update([urlsplit(f"//{host}").hostname or ""] if scheme not in _LOCAL_SCHEMES else [])
    return hosts - _LOCAL_HOSTS


def missing_browser(reason: str) -> None:
    """Skips a test that needs a browser; fails it if `CI` is set."""
    if os.environ.get("CI"):
        pytest.fail(f"{reason}; CI must drive pages in a real browser", pytrace=False)
    pytest.skip(reason)


class RunningBrowser:
    """Chromium, driven by Playwright's event loop, which is the running loop of this thread only during `driven`.

    Otherwise `asyncio.run` would fail in all other tests, since Playwright leaves its loop set as the running one.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._loop = asyncio.get_running_loop()
        asyncio._set_running_loop(None)

    @contextlib.contextmanager
    def driven(self) -> Iterator[Browser]:
        """Yields the browser, for use in the `with` block only."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self._loop)
        try:
            yield self._browser
        finally:
            asyncio._set_running_loop(before)


@contextlib.contextmanager
def running_browser(log: Path) -> Iterator[RunningBrowser]:
    """Starts Chromium with a log of its network service; stops it at the end."""
    executable = shutil.which("chromium")
    if executable is None:
        missing_browser("no `chromium` here; as root, tests/browser/install installs it")
    from playwright.sync_api import sync_playwright

    arguments = [*ARGUMENTS, f"--log-net-log={log}"]
    playwright = sync_playwright().start()
    browser = playwright.chromium.launch(executable_path=executable, args=arguments)
    running = RunningBrowser(browser)
    try:
        yield running
    finally:
        with running.driven():
            browser.close()
            playwright.stop()


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBrowser]:
    """The browser of this process; fails at the end if it contacted another machine."""
    log = tmp_path_factory.mktemp("chromium") / "network.json"
    with running_browser(log) as running:
        yield running
    foreign = hosts_asked(log)
    assert not foreign, f"the browser asked other machines, says the log of its network service: {sorted(foreign)}"


@pytest.fixture
def pages(chromium: RunningBrowser) -> Iterator[Pages]:
    """The pages of one test, closed and checked at its end."""
    with chromium.driven() as browser:
        opened = Pages(browser)
        yield opened
        opened.close()
