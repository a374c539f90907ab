import pytest
from tests.indexed.pairs import write_pair
from tests.indexed.writing.pairs import CORPUS, Pair


@pytest.fixture
def pair(tmp_path):
    return Pair(tmp_path)


@pytest.fixture
def source(tmp_path):
    return write_pair(tmp_path / "source", [[[1, 2], [3]], [[4, 5]]])


@pytest.fixture
def prefix(tmp_path):
    return write_pair(tmp_path / "a", CORPUS)
