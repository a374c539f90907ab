from collections.abc import Iterator

import pytest
from tests.preprocess.corpus import tokenizer, words  # noqa: F401 - fixtures of all tests here
from tests.support import small_shards


@pytest.fixture(scope="module", autouse=True)
def _small_shards() -> Iterator[None]:
    with small_shards():
        yield
