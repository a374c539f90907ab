"""Blocks of the documentation that need a framework run where all of them are."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest
from tests.adapters.libraries import MUST_BE_THERE, library
from tests.docs.pages import ROOT, all_pages, blocks_of, run_page

NOT_HERE = {"streaming"}
"""Libraries that do not fit beside the others: mosaicml-streaming 0.13 wants transformers 4."""


def needs_of(page: Path) -> set[str]:
    return {library for block in blocks_of(page) for library in block.needs}


PAGES = {str(page.relative_to(ROOT)): page for page in all_pages() if needs_of(page) and not needs_of(page) & NOT_HERE}


@pytest.mark.slow
@pytest.mark.skipif(not MUST_BE_THERE, reason="tests/docs runs the blocks that need nothing else")
@pytest.mark.parametrize("name", PAGES)
def test_no_block_is_left_out(name, tmp_path):
    for needed in needs_of(PAGES[name]):
        library(needed)
    run_page(PAGES[name], tmp_path)


PINNED = dict(
    line.split("==")
    for line in Path(__file__).with_name("requirements.txt").read_text().splitlines()
    if line and not line.startswith("#")
)


@pytest.mark.skipif(not MUST_BE_THERE, reason="this is not the environment of `make adapters`")
@pytest.mark.parametrize("name", PINNED)
def test_the_pinned_version_is_installed(name):
    assert version(name) == PINNED[name]
