"""A run over object storage: the samples of local files, announced ahead, and one range per sample in file order."""

from __future__ import annotations

import numpy as np
import pytest
from tests.run.folders import HEAD, STAGE, make_run, texts, write_data, write_toml

from tokenloom.datasets.protocols import is_remote_dataset
from tokenloom.errors import TokenloomError
from tokenloom.loading import build_dataloader, loader_statistics
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.run.run import Run
from tokenloom.samplers import MegatronPretrainingSampler
from tokenloom.storage.settings import ObjectStorageSettings

SETTINGS = ObjectStorageSettings(block_bytes=1 << 13, concurrency=4, timeout_seconds=10, deadline_seconds=60)


def stored(bucket, folder, stages=STAGE, *, order="shuffled"):
    """Returns a run over local pairs, and one of the same order over the same pairs in a bucket."""
    head = HEAD + f'documents = "{order}"\n'
    here = make_run(folder, stages, head=head)
    for name in ("web-0", "web-1", "code"):
        bucket.put_pair(str(folder / name), f"data/{name}")
    (folder / "away").mkdir()
    sources = f'[sources]\nweb = "{bucket.url("data/web-*")}"\ncode = "{bucket.url("data/code")}"\n'
    path = write_toml(folder / "away", stages, head=head, sources=sources)
    return here, Run.open(path, object_storage=SETTINGS)


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_samples_are_those_of_local_files(bucket, tmp_path, num_workers):
    here, there = stored(bucket, tmp_path)
    dataset = there.dataset()
    assert is_remote_dataset(dataset)
    assert dataset.remote_paths == [bucket.url(f"data/{name}.bin") for name in ("web-0", "web-1", "code")]
    expected = texts(here.dataset(), range(32))
    assert texts(dataset, range(32)) == expected
    sampler = MegatronPretrainingSampler(32, 0, 8, 0, 1)
    if num_workers:
        loader = build_dataloader(there.dataset(), sampler, num_workers=num_workers)
    else:
        loader = ThreadLoader(there.dataset(), sampler, num_threads=2)
    assert np.concatenate([batch["tokens"].numpy() for batch in loader]).tolist() == [text[:-1] for text in expected]
    assert sum(each.hits for each in loader_statistics(loader).values()) > 0


def test_in_file_order_a_sample_is_one_range(bucket, tmp_path):
    here, there = stored(bucket, tmp_path, order="file")
    dataset = there.dataset()
    for position in range(12):
        place = dataset.place(position)
        spans = dataset.spans(position)
        if len({document < 120 for document in spans.documents.tolist()}) > 1 and place.source == "web":
            continue  # the one window of two pairs
        before = sum(each.requests for each in loader_statistics(ThreadLoader(dataset, [[0]])).values())
        dataset.will_need([position])
        assert texts(dataset, [position]) == texts(here.dataset(), [position])
        after = sum(each.requests for each in loader_statistics(ThreadLoader(dataset, [[0]])).values())
        assert after - before <= 1


def test_an_object_that_was_replaced_after_it_was_locked(bucket, tmp_path):
    _, there = stored(bucket, tmp_path)
    write_data(tmp_path / "away")
    (tmp_path / "away" / "code.idx").write_bytes((tmp_path / "web-0.idx").read_bytes())
    (tmp_path / "away" / "code.bin").write_bytes((tmp_path / "web-0.bin").read_bytes())
    bucket.put_pair(str(tmp_path / "away" / "code"), "data/code")
    with pytest.raises(TokenloomError, match=r"code\.idx` changed after it was locked"):
        there.dataset().batch(range(100))


def test_stages_of_two_lengths_are_announced(bucket, tmp_path):
    longer = STAGE + '[[stages]]\nname = "long"\nsequence_length = 32\nsamples = 50\nweights = { web = 1 }\n'
    here, there = stored(bucket, tmp_path, longer)
    dataset = there.dataset()
    dataset.will_need(list(range(590, 610)))
    assert texts(dataset, range(590, 610)) == texts(here.dataset(), range(590, 610))
