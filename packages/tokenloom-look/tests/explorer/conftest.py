"""Servers of a text corpus, a run over two sources, and a pair without tokenizer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from explored_data import Explored, make_explored
from explorer_requests import HOSTILE, Asker, serving

from tokenloom_look.explorer.application import views_of


@pytest.fixture(scope="package")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Explored:
    web = [f"def page_{number}(text): return text.strip() + {number}\n" * 3 for number in range(40)]
    web[3] = HOSTILE
    web[5] = ""
    code = [f"class Code{number}:\n    value = {number}\n" * 4 for number in range(20)]
    return make_explored(tmp_path_factory.mktemp("explored"), web=web, code=code, length=32, samples=60)


@pytest.fixture(scope="package")
def ask_pair(corpora: Explored) -> Iterator[Asker]:
    with serving(views_of(corpora.session("web_text_document"))) as asker:
        yield asker


@pytest.fixture(scope="package")
def ask_run(corpora: Explored) -> Iterator[Asker]:
    with serving(views_of(corpora.run(consumed=24))) as asker:
        yield asker


@pytest.fixture(scope="package")
def ask_ids(corpora: Explored) -> Iterator[Asker]:
    with serving(views_of(corpora.session("ids"))) as asker:
        yield asker
