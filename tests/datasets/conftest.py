"""A fixture with a pair of sentences for masked datasets."""

import pytest
from tests.datasets.masked import SENTENCES
from tests.support import write_sentences


@pytest.fixture
def prefix(tmp_path):
    return write_sentences(tmp_path / "corpus", SENTENCES)
