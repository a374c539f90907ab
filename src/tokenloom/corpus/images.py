"""The recipe for texts with images: a document is the tokens of a text, then the bytes of its image."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from tokenloom.corpus.one_pair import OnePairRecipe
from tokenloom.corpus.recipe import Making
from tokenloom.errors import InputError
from tokenloom.inputs import InputFile, InputSlice
from tokenloom.inputs.blocks import Block
from tokenloom.inputs.cut import cut_inputs
from tokenloom.inputs.formats import FORMATS
from tokenloom.inputs.reading import open_within
from tokenloom.inputs.record_format import SliceReader
from tokenloom.inputs.records import records_of
from tokenloom.preprocess.document_tokens import DocumentTokens
from tokenloom.preprocess.image_blocks import FILE_NUMBERS, ImageTokenizer, PairBlock, PairReader, cut_folder
from tokenloom.preprocess.refusals import Isolating, singles
from tokenloom.tokenizers.text_tokenizer import TextTokenizer

_BLOCK_BYTES = 1 << 18
_SAMPLE = 64
_BYTES_AT_ONCE = 256 << 10
_MOST_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRecipe(OnePairRecipe):
    """The recipe for texts with images; see `Recipe`.

    Attributes:
        tokenizer: tokenizer that names the ids.
        path: path of the input.
        is_folder: whether that is a folder of pairs, and not a file of records.
        text_key, image_key: keys of text and path in a record.
        append_eod: whether `eod` ends each text that has tokens.
        pad_length: length of texts; None to leave them.
        pairs_at_once: number of pairs that a thread takes at once, after the first.
    """

    tokenizer: TextTokenizer
    path: str
    is_folder: bool
    text_key: str
    image_key: str
    append_eod: bool
    pad_length: int | None
    pairs_at_once: int = 1

    dtype = np.dtype(np.int32)
    is_multimodal = True
    has_roles = False
    compares_bytes = True
    threads_per_process = 8

    @property
    def document_tokens(self) -> DocumentTokens:
        """What is added to each text."""
        return DocumentTokens(eod=self.tokenizer.eod if self.append_eod else None)

    def options(self, _key: str, _split: str | None) -> dict[str, Any]:
        """Returns what the manifest says of how the dataset was made."""
        return {
            "text_key": None if self.is_folder else self.text_key,
            "image_key": None if self.is_folder else self.image_key,
            "append_eod": self.append_eod,
            "pad_length": self.pad_length,
            **self.limits.recorded(),
            **self.hash_options(),
        }

    def of_shards(self) -> dict[str, Any]:
        """Returns what decides what a shard holds."""
        return {"recipe": "images", **self.options("", None)}

    def cut(self, files: Sequence[InputFile]) -> Iterable[tuple[InputSlice, ...]]:
        """Returns the shards of a file, or of a folder."""
        if self.is_folder:
            return cut_folder(self.path, shard_bytes=self.settings.shard_bytes)
        return cut_inputs(files, shard_bytes=self.settings.shard_bytes)

    def unit(self, file: InputFile) -> str:
        """Returns what a record is: a pair of files of a folder, or what it is elsewhere."""
        return PairBlock.unit if self.is_folder else FORMATS[file.format].unit

    def making(self, _first: InputSlice, *, num_workers: int) -> Making:
        """Returns what one process works with."""
        work = self.work()
        return Making(
            engine="",
            engine_reason="",
            open=self.open,
            bundles=self._bundled,
            work=Isolating(work, work.rejected),
        )

    def is_current(self, slices: Sequence[InputSlice], numbers: Mapping[str, int]) -> bool:
        """Whether the images of a shard are as they were; those of a folder are in its key."""
        if self.is_folder:
            return True
        work = self.work()
        found = 0
        for slice_ in slices:
            with closing(self.open(slice_)) as reader:
                for block in reader.blocks():
                    for record in records_of(block, loads=json.loads):  # `orjson` crashes if it is interrupted early
                        found += work.file_number(record.value)
        return found == numbers.get(FILE_NUMBERS)

    def work(self) -> ImageTokenizer:
        """Returns what the threads work with."""
        return ImageTokenizer(
            self.tokenizer,
            text_key=self.text_key,
            image_key=self.image_key,
            folder=os.path.dirname(self.path),
            eod=self.document_tokens.eod,
            pad_length=self.pad_length,
            max_text_bytes=self.limits.max_record_bytes,
            hash_texts=self.settings.document_hashes,
        )

    def open(self, slice_: InputSlice) -> SliceReader:
        """Returns the reader of a slice."""
        if self.is_folder:
            return PairReader(slice_)
        return open_within(slice_, self.limits, block_bytes=_BLOCK_BYTES)

    def _bundled(self, blocks: Iterable[Block]) -> Iterator[list[Block]]:
        """Yields records as blocks of their own, one by one at first, and then a few at once if images are small."""
        bundle: list[Block] = []
        for number, single in enumerate(single for block in blocks for single in singles([block])):
            bundle += single
            if number < _SAMPLE or len(bundle) >= self.pairs_at_once:
                yield bundle
                bundle = []
        if bundle:
            yield bundle

    def nothing_found(self, inputs: str, *, num_blank: int, num_bad: int, first: str) -> InputError:
        """Returns the error for an input without pairs."""
        message = f"{inputs} holds no pairs: {num_bad} bad {'pair' if self.is_folder else 'line'}s{first}"
        return InputError(message, hint="expected JSON lines, or a folder of texts and images with equal names")


def sampled_pairs_at_once(recipe: ImageRecipe, file: InputFile) -> int:
    """Returns how many pairs a thread should take at once, by the first of them: the same in every process.

    What a thread takes begins at the same records after a death, so that the one to blame is found.
    """
    if file.is_stream:
        return 1
    work = recipe.work()
    [first, *_] = recipe.cut([file])
    with closing(recipe.open(first[0])) as reader:
        block = next(iter(reader.blocks()), None)
    values = [] if block is None else [record.value for record in islice(records_of(block, loads=json.loads), _SAMPLE)]
    sizes = [size for size in map(work.image_bytes, values) if size]
    return min(_MOST_AT_ONCE, max(1, _BYTES_AT_ONCE * len(sizes) // max(1, sum(sizes))))  # more of small ones
