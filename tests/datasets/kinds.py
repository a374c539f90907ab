"""Every kind of dataset over small data: `KINDS[kind]` is a class and a function that makes an object of a subclass."""

from functools import partial

import numpy as np
from tests.datasets import masked
from tests.datasets.conversations import ANSWER, PROMPT, conversation, make_sft, make_varlen, write_conversations
from tests.datasets.fim import CharacterTokenizer
from tests.support import StandInTokenizer, make_config, write_corpus, write_sentences

from tokenloom.datasets.conversations import SFTDataset, VarlenDataset
from tokenloom.datasets.fim import GPTFIMDataset, GPTFIMDatasetConfig
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.mock import (
    MockGPTDataset,
    MockGPTLowLevelDataset,
    MockMultimodalDataset,
    MultimodalDatasetConfig,
)
from tokenloom.datasets.splits import Split
from tokenloom.indexed.dataset import IndexedDataset

DOCUMENTS = [list(range(1, 30)), [31, 32, 9], list(range(40, 60)), [9]]
SENTENCES = [[[10, 11], [12, 13, 14], [15]], [[20, 21]], [[30, 31], [32], [33], [34, 35, 36]]] * 2
CHATS = [conversation((PROMPT, [first, 12]), (ANSWER, [13] * (first % 3 + 1) + [9])) for first in range(20, 30)]


def pair(cls, data, indices, config):
    return cls(data, data.path_prefix, np.arange(indices, dtype=np.int32), 8, Split.train, config)


def make_gpt(cls, folder, **changes):
    prefix = write_corpus(folder / "gpt", DOCUMENTS)
    config = make_config(prefix, path_to_cache=f"{folder}/cache", **changes)
    return pair(cls, IndexedDataset(prefix, mmap=config.mmap_bin_files), len(DOCUMENTS), config)


def make_fim(cls, folder):
    prefix = write_corpus(folder / "fim", DOCUMENTS)
    fim = {"fim_rate": 1.0, "fim_spm_rate": 0.5, "fim_extra_tokens": {"prefix": 91, "middle": 92, "suffix": 93}}
    config = make_config(
        None, kind=GPTFIMDatasetConfig, tokenizer=CharacterTokenizer(), path_to_cache=f"{folder}/cache", **fim
    )
    return pair(cls, IndexedDataset(prefix), len(DOCUMENTS), config)


def make_mock(cls, folder, config=None):
    low_level = MockGPTLowLevelDataset(StandInTokenizer())
    return cls(low_level, None, np.arange(9, dtype=np.int32), 8, Split.train, config or make_config(None))


def make_multimodal(cls, folder, **changes):
    return make_mock(cls, folder, make_config(None, kind=MultimodalDatasetConfig, image_h=1, image_w=2, **changes))


def make_masked(cls, folder, kind):
    prefix = write_sentences(folder / "masked", SENTENCES)
    return pair(cls, IndexedDataset(prefix), len(SENTENCES), masked.make_config(kind, prefix))


def make_chat(cls, folder, make):
    made = make(write_conversations(folder / "chat", CHATS), num_samples=8)
    return cls(made.dataset, made.dataset_path, made.indices, 8, Split.train, made.config)


KINDS = {
    "gpt": (GPTDataset, make_gpt),
    "gpt read by position": (GPTDataset, partial(make_gpt, mmap_bin_files=False)),
    "gpt with masks": (GPTDataset, partial(make_gpt, create_attention_mask=True)),
    "fim": (GPTFIMDataset, make_fim),
    "mock": (MockGPTDataset, make_mock),
    "multimodal": (MockMultimodalDataset, make_multimodal),
    **{kind: (settings[0], partial(make_masked, kind=kind)) for kind, settings in masked.KINDS.items()},
    "sft": (SFTDataset, partial(make_chat, make=make_sft)),
    "varlen": (VarlenDataset, partial(make_chat, make=make_varlen)),
}
