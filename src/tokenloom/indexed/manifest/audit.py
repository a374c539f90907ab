"""Comparing a pair with its manifest, byte for byte, while it is read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from tokenloom.errors import DatasetFormatError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import bin_path, idx_path
from tokenloom.indexed.manifest.contents import PairFacts
from tokenloom.indexed.manifest.file import manifest_path, read_manifest
from tokenloom.indexed.soundness import checksum_problem
from tokenloom.indexed.tally import PairTally


class ManifestAudit:
    """Takes note of the tokens of a pair as they are read, and says how they differ from what its manifest says.

    A pair without a manifest has no such problem, and a manifest that cannot be read is one.
    """

    def __init__(self, pair: IndexedDataset) -> None:
        self._pair = pair
        self._tally = PairTally(pair.dtype)
        self._damage: str | None = None
        try:
            self._manifest = read_manifest(pair.path_prefix, settings=pair.object_storage)
        except DatasetFormatError as error:
            self._manifest = None
            self._damage = error.message

    @property
    def has_manifest(self) -> bool:
        """Whether there is one that can be read."""
        return self._manifest is not None

    @property
    def vocab_size(self) -> int | None:
        """Vocabulary size of the tokenizer that made the tokens; None if unknown, or if not all tokens are its."""
        return None if self._manifest is None or self._holds_modes() else self._manifest.tokenizer.vocab_size

    @property
    def facts(self) -> PairFacts | None:
        """What it says of the pair, and of the files beside it."""
        return None if self._manifest is None else self._manifest.pair

    def add_tokens(self, tokens: NDArray[Any]) -> None:
        """Takes note of the tokens that come next."""
        if self._manifest is not None:
            self._tally.add_tokens(tokens.data)

    def problems(self) -> Iterator[str]:
        """Yields one sentence for each difference, when all tokens were read; reads the index for that."""
        if self._damage is not None:
            yield self._damage
        if self._manifest is None:
            return
        self._tally.read_index(self._pair.index_source())
        expected = self._manifest.pair
        found = self._tally.facts(self._pair.index.header, self._pair.sequence_lengths)
        if self._holds_modes():
            found = dataclasses.replace(found, largest_token=expected.largest_token)  # of the texts alone
        yield from _differences(self._pair.path_prefix, expected, found)

    def _holds_modes(self) -> bool:
        """Whether the pair is multimodal, so that images are among its tokens; the header does not tell."""
        header = self._pair.index.header
        return header.num_sequences > 0 and self._pair.index_source().num_bytes == header.idx_bytes(multimodal=True)


def _differences(prefix: str, expected: PairFacts, found: PairFacts) -> Iterator[str]:
    path = manifest_path(prefix)
    for name in ("dtype", "num_documents", "num_sequences", "num_tokens", "largest_token"):
        if (recorded := getattr(expected, name)) != (value := getattr(found, name)):
            yield f"`{path}`: expected {name} of {value!r}, as the pair has, found {recorded!r}"
    for file, recorded, value in (
        (bin_path(prefix), expected.tokens, found.tokens),
        (idx_path(prefix), expected.index, found.index),
    ):
        if problem := checksum_problem(file, recorded, value):
            yield problem
