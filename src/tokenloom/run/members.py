"""The sources of a run as datasets: made when the first sample of one is asked for, its pairs opened likewise."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tokenloom.datasets.config import GPTDatasetConfig
from tokenloom.datasets.data_match import Kind, check_kind
from tokenloom.errors import ConfigError
from tokenloom.forks import cached_property
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.joined import JoinedPairs, PairToJoin
from tokenloom.kernels import NOT_KNOWN, SourceDocuments, make_source_documents
from tokenloom.order.computed_keys import source_key
from tokenloom.order.walk_order import WalkOrder, with_pairs
from tokenloom.run.lock import LockedPair, LockedSource, LockedTokenizer, RunLock
from tokenloom.run.progress import Walk
from tokenloom.run.settings import CONVERSATIONS, KINDS, class_of, most_in_pack
from tokenloom.run.sources import check_opened
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.tokenizers.load import load_tokenizer

if TYPE_CHECKING:  # they import how conversations are tokenized, which a start of other runs does not wait for
    from tokenloom.datasets.exposure import TakenOfPairs

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How the data of a run are read; without effect on what is read.

    Attributes:
        mmap: whether to map tokens.
        object_storage: how to read data in object storage; None for the defaults.
        allow_tokenizer_mismatch, allow_data_mismatch: see `BlendedMegatronDatasetConfig`.
    """

    mmap: bool = True
    object_storage: ObjectStorageSettings | None = None
    allow_tokenizer_mismatch: bool = False
    allow_data_mismatch: bool = False


def run_config(lock: RunLock, sequence_length: int, tokenizer: Any, reading: Reading, **further: Any) -> Any:
    """Returns the settings of the dataset class for samples of a length; `further` ones replace those of the lock."""
    settings = dict(lock.samples)
    for name in ("allow_tokenizer_mismatch", "allow_data_mismatch"):
        settings[name] = bool(settings.get(name)) or getattr(reading, name)
    settings |= {"random_seed": lock.seed % 2**31, "window_policy": lock.windows} | further
    return KINDS[lock.dataset](
        sequence_length=sequence_length,
        tokenizer=tokenizer,
        mmap_bin_files=reading.mmap,
        object_storage=reading.object_storage,
        **settings,
    )


class SourceData:
    """The data of one source, whatever is made of them: its pairs, and which of their documents are read."""

    def __init__(self, lock: RunLock, number: int, reading: Reading, config: GPTDatasetConfig, *, held: bool) -> None:
        self.source: LockedSource = lock.sources[number]
        self.held: bool = held
        """Whether what is held out is read, as it lies there."""
        self._key = source_key(lock.seed, self.source.name)
        self._config = config
        self._reads: Kind = "conversations" if lock.dataset in CONVERSATIONS else "documents"
        self.pairs: JoinedPairs = JoinedPairs(
            [
                PairToJoin(prefix=pair.prefix, num_sequences=pair.num_documents, check=partial(self._check, pair))
                for pair in self.source.pairs
            ],
            dtype=np.dtype(self.source.pairs[0].dtype),
            mmap=reading.mmap,
            object_storage=reading.object_storage,
            beside=[pair.prefix for source in lock.sources for pair in source.pairs],
        )

    def _check(self, locked: LockedPair, pair: IndexedDataset) -> None:
        check_opened(pair, locked)
        check_kind(pair, self._config, name=f"`{locked.prefix}`", reads=self._reads)

    @cached_property
    def documents(self) -> SourceDocuments:
        """The documents that are read."""
        pairs = self.source.pairs
        tokens = [pair.held_tokens if self.held else pair.num_tokens - pair.held_tokens for pair in pairs]
        documents = self.documents_of(tokens)
        self.pairs.tell(documents)
        return documents

    def documents_of(self, sizes: Sequence[int]) -> SourceDocuments:
        """Returns the documents that are read, of which each pair has so many tokens or packs."""
        rows = [
            (pair.num_documents, size, pair.held_blocks, pair.held_documents)
            for pair, size in zip(self.source.pairs, sizes, strict=True)
        ]
        return make_source_documents(rows, key=self._key, reads_held=self.held)

    def num_packs(self, sequence_length: int) -> list[int]:
        """Returns how many packs each pair makes in a walk."""
        return [dict(pair.packs)[sequence_length] for pair in self.source.pairs]


class Member:
    """Samples of one source and length, by `walk << WINDOW_BITS | window`."""

    def __init__(
        self,
        data: SourceData,
        lock: RunLock,
        config: GPTDatasetConfig,
        *,
        denied: Sequence[int],
        identity: str,
    ) -> None:
        if lock.dataset == "fim":  # samples of two sources have the same numbers
            config = dataclasses.replace(config, random_seed=source_key(lock.seed, data.source.name)[0] % 2**31)
        self.data = data
        self.taken: TakenOfPairs | None = None
        kind = class_of(lock.dataset)
        length, extra, num_packs = config.sequence_length, config.num_extra_tokens, None
        if lock.dataset in CONVERSATIONS:
            packs = data.num_packs(length)
            documents = data.documents_of([NOT_KNOWN] * len(packs) if kind.shares_samples else packs)
            self.taken = kind.taken_of(data.pairs, config, name=data.source.name)
            self.taken.tell(documents, shares_samples=kind.shares_samples)
            length, extra, num_packs = (length, 0, packs) if kind.shares_samples else (1, 0, None)
        else:
            documents = data.documents
            num_packs = data.num_packs(length) if lock.windows == "best_fit" else None
        self.order: WalkOrder = WalkOrder(
            data.pairs,
            documents,
            [],
            identity=identity,
            is_shuffled=lock.documents == "shuffled" and not data.held,
            sequence_length=length,
            extra=extra,
            denied=denied,
            num_packs=num_packs,
            most_documents=most_in_pack(lock.dataset, lock.samples),
        )
        self.dataset: Any
        if self.taken is not None:
            self.dataset = kind.in_order(self.taken, self.order)
        else:
            self.dataset = kind.in_order(data.pairs, self.order, config, name=data.source.name)
        self.walks: set[int] = set()
        """Those that were added."""

    def add_walk(self, walk: Walk) -> None:
        """Adds a walk; samples of others cannot be asked for."""
        self.order.add_walks(walk.number, walk.first_pair, walk.last_pair, walk.num_windows, walk.part)
        self.walks.add(walk.number)

    def ask(self, question: Callable[[Any], Result]) -> Result:
        """Returns what the dataset answers, after opening the pairs that it needs for that."""
        return with_pairs(self.data.pairs, lambda: question(self.dataset))


_KNOWN = ("loaded", "eos", "special_tokens_dict")
"""What a tokenizer is not loaded for: whether a pad id is another token, too, the lock has decided."""


class RunTokenizer:
    """What samples ask of a tokenizer, from the lock alone: a start loads none."""

    def __init__(self, locked: LockedTokenizer | None, located: str | None) -> None:
        self._locked = locked
        self._located = located

    @property
    def vocab_size(self) -> int | None:
        """One more than the largest id; None if it is not known."""
        return None if self._locked is None else self._locked.vocab_size

    @property
    def unique_identifiers(self) -> Mapping[str, Any]:
        """What tells this tokenizer from another."""
        return {"run": None if self._locked is None else self._locked.fingerprint}

    @property
    def eod(self) -> int:
        """The id that ends a document."""
        if self._locked is None or self._locked.eod is None:
            found = "none" if self._locked is None else f"{self._locked.name!r}, which has none"
            message = f"expected a `tokenizer` in run.toml with an end-of-document id, found {found}"
            raise ConfigError(message, hint="`reset_position_ids`, `reset_attention_mask` and `eod_mask_loss` need it")
        return self._locked.eod

    @property
    def pad(self) -> int:
        """The id that fills up samples; `NotImplementedError` where padding is told by position."""
        if self._locked is None or self._locked.pad is None:
            raise NotImplementedError
        return self._locked.pad

    @cached_property
    def loaded(self) -> Any:
        """The tokenizer itself."""
        if self._located is None:
            message = "expected a `tokenizer` in run.toml, where texts are needed, found none"
            raise ConfigError(message, hint="name the tokenizer that made the data")
        return load_tokenizer(self._located)

    def __getattr__(self, name: str) -> Any:
        """Returns whatever else is asked for from the tokenizer itself, such as `tokenize`."""
        if name.startswith("_") or name in _KNOWN:
            raise AttributeError(name)
        return getattr(self.loaded, name)

    def __getstate__(self) -> dict[str, Any]:
        return {"_locked": self._locked, "_located": self._located}
