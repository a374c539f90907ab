"""Datasets of several small pairs in a computed order, built like in a run."""

from typing import Any

from tests.support import write_corpus

from tokenloom.datasets.gpt import GPTDataset
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.joined import JoinedPairs, PairToJoin
from tokenloom.kernels.permutation import Key
from tokenloom.kernels.walks import count_packs_of, make_source_documents, make_walk_reader
from tokenloom.order.walk_order import WalkOrder, with_pairs

KEY = Key(1, 2)


class InOrder:
    """Returns a dataset of packs or windows in a computed order; writes missing pairs of `corpora` into `folder`."""

    def __init__(
        self, kind: type[GPTDataset], folder, corpora, config, *, denied=(), is_packed=True, check=lambda pair: None
    ) -> None:
        prefixes = [str(folder / f"p{number}") for number in range(len(corpora))]
        for prefix, corpus in zip(prefixes, corpora, strict=True):
            if not IndexedDataset.exists(prefix):
                write_corpus(prefix, corpus)
        joined = [
            PairToJoin(prefix=prefix, num_sequences=len(corpus), check=check)
            for prefix, corpus in zip(prefixes, corpora, strict=True)
        ]
        self.pairs = JoinedPairs(joined, dtype=IndexedDataset(prefixes[0]).dtype, mmap=config.mmap_bin_files)
        tokens = [sum(map(len, corpus)) for corpus in corpora]
        facts = [(len(corpus), count, 0, 0) for corpus, count in zip(corpora, tokens, strict=True)]
        documents = make_source_documents(facts, key=KEY, reads_held=False)
        self.pairs.connect(documents)
        length, extra = config.sequence_length, config.num_extra_tokens
        rule = {"sequence_length": length, "extra": extra}
        packs = [
            count_packs_of(IndexedDataset(prefix).sequence_lengths, key=KEY, pair=number, **rule)
            for number, prefix in enumerate(prefixes)
        ]
        self.num_windows = sum(packs) if is_packed else (sum(tokens) - extra) // length
        num_packs = packs if is_packed else None
        reader = make_walk_reader(documents, is_shuffled=True, denied=denied, num_packs=num_packs, **rule)
        self.order = WalkOrder(self.pairs, reader, identity="test")
        self.order.add_walks(0, 0, len(corpora), self.num_windows)
        self.dataset = kind.in_order(self.pairs, self.order, config, name="test")

    def batch(self, numbers: Any) -> Any:
        return with_pairs(self.pairs, lambda: self.dataset.batch(numbers))
