"""Where documents stand in the reference's order: what is found is what a look at every position finds."""

from __future__ import annotations

import numpy as np
import pytest
from tests.run.audit.searches import rows_of
from tests.run.chats import chat_run
from tests.run.folders import HEAD
from tests.run.megatrons import make, opened

from tokenloom.errors import ConfigError
from tokenloom.run.audit.stored_occurrences import find_stored

THREE = 'web = ["web", "news"]\ncode = "code"\n'


@pytest.mark.parametrize(
    ("sources", "stage"),
    [
        ('web = "web"\n', "sequence_length = 16\nsamples = 300\nweights = { web = 1 }\n"),
        (THREE, "sequence_length = 16\nsamples = 300\nweights = { web = 0.7, code = 0.3 }\n"),
        (THREE, "sequence_length = 64\nsamples = 80\nweights = { web = 1, code = 2 }\n"),
    ],
)
def test_documents_are_found_where_they_stand(tmp_path, rng, sources, stage):
    run = opened(make(tmp_path, sources=sources, stage=stage))
    dataset = run.dataset()
    everything = run.trace(np.arange(len(dataset)))
    for source, locked in enumerate(run.lock.sources):
        count = sum(pair.num_documents for pair in locked.pairs)
        own = everything.take(everything.sources == source)
        assert rows_of(find_stored(dataset, run.lock, source, range(count))) == rows_of(own)
        for documents in ([0], [count - 1], rng.choice(count, size=5).tolist()):
            expected = own.take(np.isin(own.documents, documents))
            assert rows_of(find_stored(dataset, run.lock, source, documents)) == rows_of(expected)
            late = expected.take((expected.positions >= 20) & (expected.positions < 70))
            assert rows_of(find_stored(dataset, run.lock, source, documents, start=20, stop=70)) == rows_of(late)


def test_conversations_that_are_stored(tmp_path):
    chat_run(tmp_path, "sft")  # which writes the data
    (tmp_path / "run.lock").unlink()
    path = tmp_path / "run.toml"
    path.write_text(path.read_text().replace(HEAD, 'order = "megatron"\nseed = 1\n'))
    run = opened(path)
    dataset = run.dataset()
    everything = run.trace(np.arange(len(dataset)))
    own = everything.take((everything.sources == 0) & np.isin(everything.documents, [3, 90, 100]))
    assert len(own)
    assert rows_of(find_stored(dataset, run.lock, 0, [3, 90, 100])) == rows_of(own)


def test_documents_that_there_are_not(tmp_path):
    run = opened(make(tmp_path))
    with pytest.raises(ConfigError, match=r"in \[0, 40\), found 40"):
        find_stored(run.dataset(), run.lock, 0, [40])
