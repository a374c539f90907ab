"""Pairs in object storage against megatron-core, which reads them through boto3: the same objects, the same samples."""

import numpy as np
import pytest
from tests.support import make_config, make_dataset, random_documents, write_corpus

from tokenloom import IndexedDataset, IndexedDatasetBuilder

pytest.importorskip("torch")
pytest.importorskip("boto3")
peer_indexed = pytest.importorskip("megatron.core.datasets.indexed_dataset")
peer_gpt = pytest.importorskip("megatron.core.datasets.gpt_dataset")
peer_storage = pytest.importorskip("megatron.core.datasets.object_storage_utils")
peer_utils = pytest.importorskip("megatron.core.datasets.utils")

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore::DeprecationWarning:botocore.*")]


@pytest.fixture
def prefix(tmp_path, rng):
    return write_corpus(tmp_path / "corpus", random_documents(rng, count=60, longest=300, vocab_size=90))


def open_peer(url: str, tmp_path):
    config = peer_storage.ObjectStorageConfig(path_to_idx_cache=str(tmp_path / "peer"), bin_chunk_nbytes=4096)
    return peer_indexed.IndexedDataset(url, mmap=False, object_storage_config=config)


@pytest.mark.slow
def test_both_read_what_ours_wrote_to_a_bucket(bucket, prefix, tmp_path):
    local = IndexedDataset(prefix)
    with IndexedDatasetBuilder(bucket.url("ours.bin"), dtype=local.dtype) as builder:
        builder.add_index(prefix)
        builder.finalize(bucket.url("ours.idx"))
    ours, theirs = IndexedDataset(bucket.url("ours")), open_peer(bucket.url("ours"), tmp_path)
    assert len(ours) == len(theirs) == len(local)
    for row in range(len(local)):
        assert np.array_equal(ours[row], theirs[row])
        assert np.array_equal(ours[row], local[row])


@pytest.mark.usefixtures("quiet")
def test_samples_are_those_of_the_peer(bucket, prefix, tmp_path, seed):
    url = bucket.put_pair(prefix, "corpus")
    settings = {"sequence_length": 64, "random_seed": seed, "path_to_cache": str(tmp_path / "indices")}
    ours = make_dataset(url, num_samples=40, **settings)
    config = make_config(url, **settings)
    names = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "create_attention_mask")
    settings |= {"blend": ([url], None), "split": "1,0,0", "tokenizer": config.tokenizer, **dict.fromkeys(names, False)}
    peer_config = peer_gpt.GPTDatasetConfig(**settings | {"path_to_cache": str(tmp_path / "peer-indices")})
    given = url, np.arange(len(ours.dataset), dtype=np.int32), 40, peer_utils.Split.train
    theirs = peer_gpt.GPTDataset(open_peer(url, tmp_path), *given, peer_config)
    assert len(ours) == len(theirs)
    for position in range(40):
        mine, other = ours[position], theirs[position]
        assert all((mine[name] == other[name]).all() for name in mine)
