"""The fixtures detect what a page must not do."""

import re
from pathlib import Path

import pytest

from tests.browser.fixtures import Pages, hosts_asked, missing_browser, running_browser

PAGE = "<!doctype html><html lang=en><meta charset=utf-8><title>Title</title><main><h1>Words</h1>{}</main>"


def written(folder: Path, body: str) -> Path:
    path = folder / "page.html"
    path.write_text(PAGE.format(body), encoding="utf-8")
    return path


@pytest.mark.slow
def test_requests_to_other_hosts_fail_the_test(tmp_path):
    with running_browser(tmp_path / "log") as running, running.driven() as browser:
        pages = Pages(browser)
        body = (
            "<img alt='' src='data:image/gif;base64,R0lGODlhAQABAAAAACw='><img alt='' src='http://far.example/a.png'>"
            "<img alt='' src='other.png'><link rel=stylesheet href='https://style.example/a.css'>"
            "<script>fetch('https://192.0.2.1/').catch(() => 0); new WebSocket('ws://socket.example/')</script>"
        )
        page = pages.open(written(tmp_path, body))
        page.evaluate("1")  # what was asked for is known once an answer has come
        with pytest.raises(AssertionError, match="requests that leave the page") as caught:
            pages.close()
    found = set(re.findall(r"'(\w+://[^/]*)[^']*'", str(caught.value)))
    hosts = {"http://far.example", "https://style.example", "https://192.0.2.1", "ws://socket.example"}
    assert found == hosts | {"file://"}
    assert hosts_asked(tmp_path / "log") == {"far.example", "style.example", "socket.example", "192.0.2.1"}


@pytest.mark.slow
def test_console_errors_fail_the_test(chromium, tmp_path):
    scripts = ("console.error('one')", "console.warn('two')", "throw Error('three')", "Promise.reject(Error('four'))")
    with chromium.driven() as browser:
        pages = Pages(browser)
        pages.open(written(tmp_path, "".join(f"<script>{script}</script>" for script in scripts))).evaluate("1")
        with pytest.raises(AssertionError, match="one"):
            pages.close()
    found = sorted(re.search(r"one|two|three|four", each).group() for each in pages.complaints)
    assert found == ["four", "one", "three", "two"]


@pytest.mark.slow
def test_expected_errors_must_occur(chromium, pages, tmp_path):
    pages.expect_complaint("broken")
    pages.open(written(tmp_path, "<script>console.error('broken')</script>")).evaluate("1")
    with chromium.driven() as browser:
        silent = Pages(browser)
        silent.expect_complaint("broken")
        with pytest.raises(AssertionError, match="did not come"):
            silent.close()


@pytest.mark.slow
def test_accessibility_problems_are_named(pages, tmp_path):
    page = pages.open(written(tmp_path, "<p style='color: #bbb; background: #fff'>pale</p>"))
    with pytest.raises(AssertionError, match="color-contrast"):
        pages.check_accessible(page)


def test_the_browser_log_names_hosts(tmp_path):
    log = tmp_path / "log"
    log.write_text(
        '{"url":"http://127.0.0.1:9/a"}{"url":"https://far.example/b"}{"host":"name.example:443"}{"url":"data:,"}{"url":"file:///x"}'
    )
    assert hosts_asked(log) == {"far.example", "name.example"}


def test_without_a_browser_tests_are_skipped_and_fail_in_ci(monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="tests/browser/install"):
        missing_browser("no `chromium` here; as root, tests/browser/install installs it")
    monkeypatch.setenv("CI", "1")
    with pytest.raises(pytest.fail.Exception, match="CI must drive pages in a real browser"):
        missing_browser("no `chromium` here")
