"""Data for tests of the explorer's page, and a server."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from explored_data import Explored, make_explored
from explorer_requests import Asker, serving
from tests.preprocess.corpus import sources

from tokenloom_look.explorer.application import views_of

OWNED = "<script>globalThis.owned = 1</script><img src=x onerror='globalThis.owned = 2'>"
HOSTILE = f"{OWNED}</div></main><style>*{{display:none}}</style>\x00\x1b[2J\u202eevil\u2066 &amp; \u200b"

_SUBJECTS = ("The keeper", "A letter from the harbour", "The old survey", "My neighbour", "Nobody", "The last edition")
_VERBS = ("counted", "described", "forgot", "repaired", "measured", "would not believe")
_OBJECTS = ("every wave of the winter", "the road to the north", "a clock without hands", "what the map left out")


def _prose(seed: int) -> str:
    chosen = random.Random(seed)
    words = [
        f"{chosen.choice(_SUBJECTS)} {chosen.choice(_VERBS)} {chosen.choice(_OBJECTS)}." for _ in range(3 + seed % 9)
    ]
    return " ".join(words) + "\n"


@pytest.fixture(scope="session")
def explored(tmp_path_factory: pytest.TempPathFactory) -> Explored:
    web = [_prose(seed) for seed in range(400)]
    web[3] = HOSTILE
    web[5] = ""
    web[11] = "A document of many pages. " * 2000
    code = [block for text in sources() for block in text.split("\n\n\n") if block.strip()]
    return make_explored(tmp_path_factory.mktemp("explored"), web=web, code=code, length=96, samples=1200)


@pytest.fixture(scope="session")
def explorer(explored: Explored) -> Iterator[Asker]:
    """Serves the run, of which 30 steps are done."""
    with serving(views_of(explored.run(consumed=240))) as asker:
        yield asker
