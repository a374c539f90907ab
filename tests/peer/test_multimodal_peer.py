"""Multimodal data: the bytes of pairs and the samples of made-up data are the peer's."""

import numpy as np
import pytest
import torch
from megatron.core.datasets import gpt_dataset as peer_gpt
from megatron.core.datasets import indexed_dataset as peer_indexed
from megatron.core.datasets import multimodal_dataset as peer
from megatron.core.datasets.utils import Split as PeerSplit
from tests.indexed.pairs import pair_bytes
from tests.peer.conftest import assert_same
from tests.preprocess.corpus import byte_level_json, make_tokenizer, write_lines
from tests.support import StandInTokenizer

from tokenloom import IndexedDataset, merge_datasets
from tokenloom.datasets.mock import MockGPTLowLevelDataset, MockMultimodalDataset, MultimodalDatasetConfig
from tokenloom.datasets.splits import Split
from tokenloom.indexed.layout import item_to_image
from tokenloom.preprocess.multimodal import preprocess_multimodal

SETTINGS = {
    "random_seed": 1234,
    "sequence_length": 32,
    "image_h": 5,
    "image_w": 7,
    "reset_position_ids": False,
    "reset_attention_mask": False,
    "eod_mask_loss": True,
    "create_attention_mask": True,
}


def write_as_peer(prefix, pairs):
    """Writes (tokens, image bytes) as the reference's tool does, with the peer's builder."""
    builder = peer_indexed.IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.int32, multimodal=True)
    for tokens, image in pairs:
        padding = (4 - len(image) % 4) % 4
        words = np.frombuffer(image + bytes(padding), dtype=np.int32)
        builder.add_item(torch.IntTensor(tokens))
        builder.add_item(torch.from_numpy(np.insert(words, 0, padding)), 1)
        builder.end_document()
    builder.finalize(f"{prefix}.idx")


def test_pairs_give_the_bytes_of_the_peer_and_can_be_merged(tmp_path, rng):
    tokenizer = make_tokenizer(byte_level_json())
    texts = [f"def function_{number}(): pass" for number in range(20)]
    images = [rng.bytes(int(rng.integers(1, 3000))) for _ in texts]
    for number, image in enumerate(images):
        (tmp_path / f"{number}.jpg").write_bytes(image)
    lines = [{"text": text, "image": f"{number}.jpg"} for number, text in enumerate(texts)]
    parts = []
    for name, rows in (("a", slice(0, 12)), ("b", slice(12, 20))):
        preprocess_multimodal(write_lines(tmp_path / f"{name}.jsonl", lines[rows]), tmp_path / name, tokenizer)
        tokens = [tokenizer.tokenize(text) for text in texts[rows]]
        write_as_peer(tmp_path / f"peer-{name}", zip(tokens, images[rows], strict=True))
        assert pair_bytes(tmp_path / name) == pair_bytes(tmp_path / f"peer-{name}")
        parts.append(str(tmp_path / name))
    merged = merge_datasets(parts, str(tmp_path / "all"), multimodal=True)
    write_as_peer(tmp_path / "peer-all", zip(map(tokenizer.tokenize, texts), images, strict=True))
    assert pair_bytes(tmp_path / "all") == pair_bytes(tmp_path / "peer-all")
    theirs = peer_indexed.IndexedDataset(str(tmp_path / "all"), multimodal=True)
    for row, text in enumerate(texts):
        for dataset in (merged, theirs):
            tokens, mode = dataset[2 * row]
            assert (tokenizer.detokenize(tokens), mode) == (text, 0)
            item, mode = dataset[2 * row + 1]
            assert (item_to_image(item), mode) == (images[row], 1)
    assert IndexedDataset(str(tmp_path / "all"), multimodal=True).statistics().modes == (
        (0, 20, sum(len(tokenizer.tokenize(text)) for text in texts)),
        (1, 20, sum(1 + -(-len(image) // 4) for image in images)),
    )


@pytest.mark.usefixtures("quiet")
def test_made_up_samples_are_those_of_the_peer():
    tokenizer = StandInTokenizer(pad=50, vocab_size=90)
    given = None, np.arange(40, dtype=np.int32), 300
    config = peer.MultimodalDatasetConfig(tokenizer=tokenizer, **SETTINGS)
    data = peer_gpt.MockGPTLowLevelDataset(tokenizer)
    theirs = peer.MockMultimodalDataset(data, *given, PeerSplit.train, config)
    config = MultimodalDatasetConfig(tokenizer=tokenizer, **SETTINGS)
    ours = MockMultimodalDataset(MockGPTLowLevelDataset(tokenizer), *given, Split.train, config)
    assert len(ours) == len(theirs)
    for k in (0, 7, 299):
        assert_same(ours[k], theirs[k])
