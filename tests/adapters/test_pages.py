"""Runs the documentation's examples that need a framework, in the environment of `make adapters`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.adapters.frameworks import MUST_BE_THERE, library
from tests.docs.pages import ROOT, all_pages, blocks_of, run_page

NOT_HERE = {"streaming"}  # mosaicml-streaming 0.13 needs transformers 4


def needs_of(page: Path) -> set[str]:
    return {library for block in blocks_of(page) for library in block.needs}


PAGES = {str(page.relative_to(ROOT)): page for page in all_pages() if needs_of(page) and not needs_of(page) & NOT_HERE}


@pytest.mark.slow
@pytest.mark.skipif(not MUST_BE_THERE, reason="tests/docs runs the blocks that need no framework")
@pytest.mark.parametrize("name", PAGES)
def test_pages(name, tmp_path):
    for needed in needs_of(PAGES[name]):
        library(needed)
    run_page(PAGES[name], tmp_path)
