"""Pairs that are looked at: the data, and what lies beside them, opened when it is first asked for."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tokenloom.errors import TokenizerError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.manifest.check import manifest_of
from tokenloom.indexed.manifest.contents import Manifest
from tokenloom.indexed.origins import Origins, read_origins
from tokenloom.indexed.roles import SequenceRoles, has_roles, read_roles
from tokenloom.inspect.token_texts import Detokenizer
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.tokenizers.load import load_tokenizer
from tokenloom.tokenizers.recorded import recorded_tokenizer

_MOST_OPEN = 64
"""Pairs that stay open."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which document a row of the index belongs to: its number, that of the sequence in it, and how many it has."""

    document: int
    sequence: int
    num_sequences: int


class OpenPair:
    """A pair and what lies beside it. Safe from several threads.

    Args:
        prefix: path of the pair without suffix.
        object_storage: how to read what lies in object storage.

    Attributes:
        prefix: as it was named.
        data: the tokens.

    Raises:
        DatasetNotFoundError, DatasetFormatError: there is no such pair, or it is none.
    """

    def __init__(self, prefix: str, *, object_storage: ObjectStorageSettings | None = None) -> None:
        self.prefix = prefix
        self._object_storage = object_storage
        data = IndexedDataset(prefix, mmap=False, object_storage=object_storage)
        if data.index.arrays.has_modes:
            data = IndexedDataset(prefix, multimodal=True, mmap=False, object_storage=object_storage)
        self.data = data

    @cached_property
    def manifest(self) -> Manifest | None:
        """What the pair was made of; None if nobody wrote that down.

        Raises:
            DatasetFormatError: the manifest is damaged, or another pair's.
        """
        return manifest_of(self.data)

    @cached_property
    def origins(self) -> Origins | None:
        """Which records its documents were made of; None if that is not known.

        Raises:
            DatasetFormatError: they are damaged, or another pair's.
        """
        return read_origins(self.prefix, object_storage=self._object_storage)

    @cached_property
    def roles(self) -> SequenceRoles | None:
        """Which of its tokens are prompts and answers; None for plain text.

        Raises:
            DatasetFormatError: they are damaged, or another pair's.
        """
        return read_roles(self.data) if has_roles(self.data) else None

    def place(self, row: int) -> Place:
        """Returns which document a row of the index belongs to; the last of them, where some have no sequences."""
        boundaries = self.data.document_indices
        document = bisect_right(boundaries, row) - 1  # NumPy copies arrays of files first, which lie at odd addresses
        first, stop = (int(boundary) for boundary in boundaries[document : document + 2])
        return Place(document, row - first, stop - first)

    def origin(self, document: int) -> str | None:
        """Returns the record that a document was made of, as `FILE:N` with N from 1; None if that is not known."""
        if self.origins is None:
            return None
        files, records = self.origins.locate(np.array([document], dtype=np.int64))
        return None if files[0] < 0 else f"{self.origins.files[int(files[0])].path}:{int(records[0])}"


class OpenPairs:
    """Pairs by prefix; those that were asked for last stay open. Safe from several threads.

    Args:
        object_storage: how to read what lies in object storage.
        most: pairs that stay open.
    """

    def __init__(self, *, object_storage: ObjectStorageSettings | None = None, most: int = _MOST_OPEN) -> None:
        self._object_storage = object_storage
        self._most = most
        self._pairs: OrderedDict[str, OpenPair] = OrderedDict()
        self._changing = threading.Lock()

    def get(self, prefix: str) -> OpenPair:
        """Returns a pair, opened.

        Raises:
            DatasetNotFoundError, DatasetFormatError: there is no such pair, or it is none.
        """
        with self._changing:
            if prefix in self._pairs:
                self._pairs.move_to_end(prefix)
                return self._pairs[prefix]
        pair = OpenPair(prefix, object_storage=self._object_storage)
        with self._changing:
            pair = self._pairs.setdefault(prefix, pair)
            self._pairs.move_to_end(prefix)
            while len(self._pairs) > self._most:
                self._pairs.popitem(last=False)
        return pair


def tokenizer_for(
    pairs: OpenPairs, prefixes: Sequence[str], tokenizer: str | None
) -> tuple[Detokenizer | None, tuple[str, ...]]:
    """Returns the tokenizer that is named, else that of the first manifest if its file is the same; and what is amiss.

    Args:
        pairs: where pairs are opened.
        prefixes: prefixes of the data.
        tokenizer: as `load_tokenizer` takes it; None for that of the manifest.

    Raises:
        TokenizerError: the tokenizer that is named cannot be loaded.
    """
    if tokenizer is not None:
        return load_tokenizer(tokenizer), ()
    found = ((prefix, pairs.get(prefix).manifest) for prefix in prefixes)
    prefix, manifest = next(((prefix, each) for prefix, each in found if each is not None), ("", None))
    if manifest is None:
        return None, ("the data have no manifest, and no tokenizer was named: ids are shown",)
    made_by = manifest.tokenizer
    if made_by.path is None:
        return None, (f"the manifest of `{prefix}` names no file of its tokenizer: ids are shown",)
    try:
        return recorded_tokenizer(made_by, prefix=prefix), ()
    except TokenizerError as error:
        return None, (f"the tokenizer of the manifest cannot be used: {error.message}: ids are shown",)
