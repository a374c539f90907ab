"""Cards as notebooks show them, in a real browser: by day and by night, and of names that attack the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.run.small_runs import lock, segment, source
from tokenloom.packing.report import pack_report
from tokenloom.run.run import Run

pytestmark = pytest.mark.slow

ATTACKS = (
    "<script>document.title = 'taken'</script>",
    "<img src=x onerror=\"document.title = 'taken'\">",
    "</style></div><h1>taken</h1>",
    "'\" onmouseover=document.title='taken' \u202egnp.exe\x1b[31m",
)

GROUNDS = {"light": ({}, ""), "dark": ({"dark": True}, ""), "jupyter": ({}, ' data-jp-theme-light="false"')}
"""Settings of the browser, and what a notebook writes into its page."""


def page_of(path: Path, cards: list[str], *, mark: str) -> Path:
    ground = "#111" if mark else "Canvas"
    path.write_text(
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Notebook</title>'
        '<link rel="icon" href="data:,">'
        f"<style>:root{{color-scheme:light dark}}body{{background:{ground}}}</style></head>"
        f"<body{mark}><main><h1 hidden>Cards</h1>{'<p></p>'.join(cards)}</main></body></html>"
    )
    return path


@pytest.mark.parametrize("ground", GROUNDS)
def test_cards_can_be_read_on_every_ground_and_names_do_nothing(pages, tmp_path, ground):
    settings, mark = GROUNDS[ground]
    run = Run(ATTACKS[0], lock([source(name, 8) for name in ATTACKS], [segment(0, 12, [1, 2, 3, 4], stage=ATTACKS[1])]))
    report = pack_report([3, 8, 3, 2, 8, 1, 4, 3], max_seqlen_per_dp_cp_rank=8, dp_size=2)
    cards = [run._repr_html_(), run.plan()._repr_html_(), report._repr_html_()]
    page = pages.open(page_of(tmp_path / "page.html", cards, mark=mark), width=1000, **settings)
    assert page.locator(".tokenloom-card").count() == 3
    assert page.locator("img, script, h1:not([hidden])").count() == 0
    assert page.title() == "Notebook"
    assert page.get_by_role("rowheader", name=ATTACKS[2], exact=True).count() == 2
    colour = page.locator(".tokenloom-card").first.evaluate("card => getComputedStyle(card).backgroundColor")
    assert colour == ("rgb(255, 255, 255)" if ground == "light" else "rgb(27, 27, 31)")
    pages.picture(page, f"cards-{ground}")
    pages.check_accessible(page)
