"""The page of a running explorer in headless Chromium: first paint, rows, and a jump to a distant document.

    .venv/bin/tokenloom explore /tmp/explored/sparse-20000000 --no-browser --tokenizer /tmp/explored/tokenizer.json
    .venv/bin/python benchmarks/explorer_page.py 'http://127.0.0.1:…/?token=…'

`benchmarks/explorer.py` creates the corpus. Each window has its own caches, so it fetches everything again.
"""

from __future__ import annotations

import argparse
import shutil
import statistics

from common import print_rows
from playwright.sync_api import Page, sync_playwright

_TIMED = """async ([script, shown]) => {
  const begun = performance.now();
  (0, eval)(script);
  while (!document.querySelector(shown)) await new Promise((resolve) => setTimeout(resolve, 4));
  return performance.now() - begun;
}"""
_FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
_SCROLL = "const list = document.querySelector('.list-rows'); list.scrollTop = list.scrollHeight / 2;"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="the address that `tokenloom explore` printed")
    parser.add_argument("--windows", type=int, default=7)
    options = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        found = [measured(browser.new_context().new_page(), options.address) for _ in range(options.windows)]
        browser.close()
    rows = []
    for name in found[0]:
        times = [each[name] for each in found]
        rows.append((name, f"{statistics.median(times):,.0f}", f"{max(times):,.0f}"))
    print_rows("the page", ("what", "median ms", "worst ms"), rows)
    return 0


def measured(page: Page, address: str) -> dict[str, float]:
    """Returns milliseconds by step, for one window."""
    page.goto(address, wait_until="commit")
    page.wait_for_selector("h1")
    times = {"what is looked at, in facts": page.evaluate("performance.now()")}
    times["first paint"] = page.evaluate(_FIRST_PAINT)
    row = ".list .row[aria-busy='false']"
    times["first documents"] = page.evaluate(_TIMED, ["location.hash = '#/documents'", row])
    number = int(page.locator(".list").get_attribute("aria-rowcount") or 0)
    middle = f"{row}[aria-rowindex^='{str(number // 2)[:3]}'], {row}[aria-rowindex^='{str(number // 2 - 30)[:3]}']"
    times["documents in the middle"] = page.evaluate(_TIMED, [_SCROLL, middle])
    far = f"location.hash = '#/documents?source=0&document={number * 3 // 4}'"
    times["a document far away, by tokens"] = page.evaluate(_TIMED, [far, ".detail .tokens .token"])
    page.context.close()
    return times


if __name__ == "__main__":
    raise SystemExit(main())
