"""BERT and T5 datasets of a few short sentences."""

import numpy as np
from tests.support import MASKING, StandInWordPieces

from tokenloom import (
    BERTMaskedWordPieceDataset,
    BERTMaskedWordPieceDatasetConfig,
    IndexedDataset,
    Split,
    T5MaskedWordPieceDataset,
    T5MaskedWordPieceDatasetConfig,
)

PAD, CLS, SEP, MASK, BOS, EOS = range(6)

KINDS = {
    "bert": (BERTMaskedWordPieceDataset, BERTMaskedWordPieceDatasetConfig, {"classification_head": False}),
    "t5": (T5MaskedWordPieceDataset, T5MaskedWordPieceDatasetConfig, {"sequence_length_decoder": 20}),
}
NOTHING_IS_MASKED = {"masking_probability": 0.01, "short_sequence_probability": 0.0}
"""A masking probability so low that no token is masked."""

SENTENCES = [[[10, 11], [12, 13, 14], [15]], [[20]], [], [[30, 31], [32], [33], [34, 35, 36]]]


def make_config(kind, prefix, **changes):
    given = {"blend": ([prefix], None), "split": "1,0,0", "sequence_length": 12, "tokenizer": StandInWordPieces()}
    return KINDS[kind][1](**(MASKING | KINDS[kind][2] | given | changes))


def make_dataset(kind, prefix, *, num_samples=None, indices=None, **changes):
    config = make_config(kind, prefix, **changes)
    data = IndexedDataset(prefix, mmap=config.mmap_bin_files)
    chosen = np.arange(data.num_documents, dtype=np.int32) if indices is None else np.array(indices, dtype=np.int32)
    return KINDS[kind][0](data, prefix, chosen, num_samples, Split.train, config)


def sample_of(dataset, first_sentence):
    """Returns the sample whose first sentence is the given one, as lists."""
    (k,) = np.flatnonzero(dataset.sample_index[:, 0] == first_sentence)
    return {name: np.asarray(value).tolist() for name, value in dataset[int(k)].items()}


ALL_WORDS = {"masking_probability": 0.99, "masking_max_ngram": 1, "short_sequence_probability": 0.0}
