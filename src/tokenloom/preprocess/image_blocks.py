"""Texts and images, a pair at a time, into arrays that only wait to be written; and folders of such pairs."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import stat
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, BinaryIO, ClassVar

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import InputError
from tokenloom.indexed.images import IMAGE_MODE, TEXT_MODE, check_image_size, image_to_item
from tokenloom.inputs import InputFile, InputSlice
from tokenloom.inputs.blocks import Block
from tokenloom.inputs.left_out import left_out_of
from tokenloom.inputs.parsing import Texts
from tokenloom.inputs.record_format import ReadOptions, SliceReader
from tokenloom.inputs.records import (
    BadLine,
    NumberedRecord,
    UnusableLineError,
    bad_line,
    checked_text,
    kind_of,
    records_of,
    too_long,
)
from tokenloom.preprocess.blocks import Column, TokenizedBlock
from tokenloom.preprocess.selection import hash_documents
from tokenloom.storage.atomic import storage_errors
from tokenloom.tokenizers.failures import in_words, refusals, require_sound
from tokenloom.tokenizers.text_tokenizer import Encoded, TextTokenizer

_TEXT_SUFFIX = ".txt"

FILE_NUMBERS = "file_numbers"
"""The sum of `ImageTokenizer.file_number` over all records, among the numbers of a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePair:
    """A text and an image, by the paths of their files."""

    text_path: str
    image_path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PairBlock(Block):
    """A pair of a folder, numbered in the order of the names.

    Attributes:
        stem: stem of the names.
        names: names of all files with this stem.
    """

    unit: ClassVar[str] = "pair"

    stem: str
    names: tuple[str, ...]

    @property
    def num_text_bytes(self) -> int:
        """Nothing is known of its text."""
        return 0

    def beginning(self) -> bytes:
        """Returns the stem."""
        return os.fsencode(self.stem)

    def records(self, loads: Callable[[bytes], Any] | None) -> Iterator[NumberedRecord]:
        """Yields the pair, as a `FilePair`."""
        texts = [name for name in self.names if PurePath(name).suffix == _TEXT_SUFFIX]
        images = [name for name in self.names if PurePath(name).suffix != _TEXT_SUFFIX]
        if len(texts) == len(images) == 1:
            text_path, image_path = (os.path.join(self.path, name) for name in (*texts, *images))
            value: Any = FilePair(text_path=text_path, image_path=image_path)
        else:
            expected = f"expected `{self.stem}{_TEXT_SUFFIX}` and one image of that name"
            value = UnusableLineError(f"{expected}, found {', '.join(self.names)}")
        yield NumberedRecord(self.first_record, value, self.beginning())


class ImageTokenizer:
    """Tokenizes a text and reads its image; safe from several threads.

    Args:
        tokenizer: names the ids.
        text_key, image_key: keys of text and path in a record.
        folder: folder that paths in records start from.
        eod: ends each text that has tokens; None for nothing.
        pad_length: texts are cut off, or filled up with `eod`, to have so many tokens; None to leave them.
        max_text_bytes: longer texts in files of their own are bad ones.
        hash_texts: whether to hash each text.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        *,
        text_key: str,
        image_key: str,
        folder: str,
        eod: int | None,
        pad_length: int | None,
        max_text_bytes: int,
        hash_texts: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = tokenizer.vocab_size
        self._text_key = text_key
        self._image_key = image_key
        self._folder = folder
        self._eod = eod
        self._pad_length = pad_length
        self._max_text_bytes = max_text_bytes
        self._hash_texts = hash_texts

    def __call__(self, bundle: Sequence[Block]) -> TokenizedBlock:
        """Returns both sequences of each record of some blocks, or why there are none."""
        sequences: list[NDArray[np.int32]] = []
        texts: list[str] = []
        bad_lines: list[BadLine] = []
        left_out: list[int] = []
        numbers = Counter[str]()
        largest_token = -1
        records = ((block, record) for block in bundle for record in records_of(block, loads=json.loads))
        for number, (block, record) in enumerate(records):
            left_out.append(number)
            if record.is_blank:
                continue
            numbers[FILE_NUMBERS] += self.file_number(record.value)
            try:
                text, tokens, item = self._pair(record.value, numbers)
            except UnusableLineError as error:
                bad_lines.append(bad_line(block, record, str(error)))
            except InputError as error:
                bad_lines.append(replace(bad_line(block, record, error.message), error=type(error)))
            else:
                left_out.pop()
                sequences += [tokens, item]
                texts += [text] if self._hash_texts else []
                largest_token = max(largest_token, int(tokens.max(initial=-1)))
        num_documents = len(sequences) // 2
        hashes = hash_documents([Texts(texts=texts)], num_documents) if self._hash_texts else None
        column = Column(
            tokens=np.concatenate(sequences) if sequences else np.empty(0, dtype=np.int32),
            lengths=np.array([len(sequence) for sequence in sequences], dtype=np.int32),
            document_ends=np.arange(2, 2 * num_documents + 1, 2, dtype=np.int64),
            modes=np.array([TEXT_MODE, IMAGE_MODE] * num_documents, dtype=np.int8),
            hashes=hashes,
        )
        return TokenizedBlock(
            columns=(column,),
            num_documents=num_documents,
            bad_lines=bad_lines,
            left_out=left_out_of(left_out),
            largest_token=None if largest_token < 0 else largest_token,
            numbers=numbers,
        )

    def file_number(self, value: Any) -> int:
        """Returns a number that most likely changes with the image of a record; 0 for a record without one."""
        if isinstance(value, FilePair):  # which the slice tells
            return 0
        try:
            path = self._image_path(value)
        except UnusableLineError:
            return 0
        state = "none"
        with suppress(OSError, ValueError):  # a path that there cannot be
            status = os.stat(path)
            state = f"{status.st_size} {status.st_mtime_ns}"
        return zlib.crc32(f"{path}\0{state}".encode("utf-8", "surrogatepass"))

    def image_bytes(self, value: Any) -> int:
        """Returns the size of the image of a record; 0 for a record without one."""
        with suppress(UnusableLineError, OSError, ValueError):
            return os.stat(self._image_path(value)).st_size
        return 0

    def _image_path(self, value: Any) -> str:
        if isinstance(value, FilePair):
            return value.image_path
        if isinstance(value, UnusableLineError):
            raise value
        if not isinstance(value, dict):
            reason = f"expected an object, found {kind_of(value)}"
            raise UnusableLineError(reason)
        for key in (self._text_key, self._image_key):
            if not isinstance(value.get(key), str):
                found = f"found {kind_of(value[key])}" if key in value else "found none"
                reason = f"expected a string under {key!r}, {found}"
                raise UnusableLineError(reason)
        return os.path.join(self._folder, value[self._image_key])

    def _pair(self, value: Any, numbers: Counter[str]) -> tuple[str, NDArray[np.int32], NDArray[np.int32]]:
        """Returns the text of a record, its tokens and its image, and counts them."""
        image_path = self._image_path(value)
        is_file = isinstance(value, FilePair)
        text = (
            _read_text(value.text_path, self._max_text_bytes)
            if is_file
            else checked_text(value[self._text_key], repr(self._text_key))
        )
        item = image_to_item(image := _read_image(image_path))
        tokens = self._tokenize(text)
        length = len(tokens)
        if tokens and self._eod is not None:
            wanted = length + 1 if self._pad_length is None else self._pad_length
            tokens = tokens[:wanted] + [self._eod] * (wanted - length)
        numbers["num_text_tokens"] += len(tokens)
        numbers["num_image_bytes"] += len(image)
        numbers["num_truncated"] += self._pad_length is not None and length > self._pad_length
        return text, np.array(tokens, dtype=np.int32), item

    def _tokenize(self, text: str) -> list[int]:
        with refusals(f"tokenizer `{self._tokenizer.path}`"):
            tokens = list(self._tokenizer.tokenize(text))
        lengths = np.array([len(tokens)], dtype=np.int64)
        require_sound(Encoded(np.array(tokens, dtype=np.int64), lengths), num_texts=1, vocab_size=self._vocab_size)
        return tokens


def _read_text(path: str, max_bytes: int) -> str:
    try:
        with _opened(path) as stream:
            data = stream.read(max_bytes + 1)
        text = data.decode("utf-8") if len(data) <= max_bytes else None
    except InputError as error:
        message = f"text `{path}`: {error.message}"
        raise InputError(message) from error
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        message = f"cannot read the text `{path}`: {reason}"
        raise InputError(message) from error
    if text is None:
        message = f"text `{path}`: {too_long(max_bytes)}"
        raise InputError(message)
    return text


def _opened(path: str) -> BinaryIO:
    """Opens a file; anything else is an InputError, without waiting for somebody to write to a pipe."""
    stream = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115 - the caller closes it
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        message = "expected a file, found something else"
        raise InputError(message)
    return stream


def _read_image(path: str) -> bytes:
    try:
        with _opened(path) as stream:
            status = os.fstat(stream.fileno())
            check_image_size(status.st_size)  # before it is read
            return stream.read(status.st_size)
    except OSError as error:
        message = f"cannot read the image `{path}`: {error.strerror or error}"
        raise InputError(message) from error
    except (ValueError, MemoryError) as error:  # a path that there cannot be, or an image larger than memory
        if isinstance(error, InputError):
            raise _of_image(path, error) from error
        message = f"cannot read the image {path!r}: {in_words(error)}"
        raise InputError(message) from error


def _of_image(path: str, error: InputError) -> InputError:
    return InputError(f"image `{path}`: {error.message}")


class PairReader(SliceReader):
    """Reads the pairs of a slice of a folder.

    Args:
        slice_: a slice from `cut_folder`.
        options: options of reading.

    Raises:
        InputError: one of the files is not the one that was planned with any more.
        StorageError: the folder cannot be read.
    """

    def __init__(self, slice_: InputSlice, options: ReadOptions) -> None:
        super().__init__(slice_, options)
        self._pairs = _pairs_in(self._path)[slice_.start : slice_.stop]
        if _described(self._path, self._pairs)[1] != slice_.file.version:
            message = f"`{self._path}` changed after the job was planned: other files, or some were written to"
            raise InputError(message, hint="let nothing write to the input while it is read, and plan the job anew")

    @property
    def position(self) -> int:
        """Bytes of the files read so far, in proportion to the pairs."""
        return self.num_bytes * self.num_rows // len(self._pairs)

    def blocks(self) -> Iterator[Block]:
        """Yields the pairs, one by one."""
        for pair in self._pairs:
            self.num_rows += 1
            yield pair

    read_blocks = blocks

    def close(self) -> None:
        """There is nothing to close."""


def cut_folder(folder: str, *, shard_bytes: int) -> Iterator[tuple[InputSlice, ...]]:
    """Yields the shards of a folder: pairs in the order of their names, as many as have so many bytes together.

    Raises:
        StorageError: the folder cannot be read.
    """
    forget_folder()
    pairs = _pairs_in(folder)
    first = num_bytes = 0
    for number, pair in enumerate(pairs):
        size = _described(folder, [pair])[0]
        if number > first and num_bytes + size > shard_bytes:
            yield (_slice(folder, pairs, first, number),)
            first, num_bytes = number, 0
        num_bytes += size
    yield (_slice(folder, pairs, first, len(pairs)),)


def _slice(folder: str, pairs: Sequence[PairBlock], start: int, stop: int) -> InputSlice:
    num_bytes, version = _described(folder, pairs[start:stop])
    file = InputFile(path=folder, format="text-files", compression="none", num_bytes=num_bytes, version=version)
    return InputSlice(file=file, start=start, stop=stop)


def _described(folder: str, pairs: Sequence[PairBlock]) -> tuple[int, str]:
    """Returns the bytes of the files of some pairs, and what changes when one of them does."""
    num_bytes = 0
    digest = hashlib.sha256()
    for name in (name for pair in pairs for name in pair.names):
        with suppress(OSError):
            status = os.stat(os.path.join(folder, name))
            num_bytes += status.st_size
            digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode("utf-8", "surrogateescape"))
    return num_bytes, digest.hexdigest()


def _pairs_in(folder: str) -> tuple[PairBlock, ...]:
    with storage_errors("list", folder):
        return _listed(folder, os.stat(folder).st_mtime_ns)


def forget_folder() -> None:
    """Forgets the names in the folder that was looked at last, which may be many."""
    _listed.cache_clear()


@functools.lru_cache(maxsize=1)  # for each of its shards
def _listed(folder: str, _changed: int) -> tuple[PairBlock, ...]:
    files: dict[str, list[str]] = defaultdict(list)
    for name in sorted(name for name in os.listdir(folder) if not name.startswith(".")):
        files[PurePath(name).stem].append(name)
    return tuple(
        PairBlock(path=folder, first_record=number, stem=stem, names=tuple(files[stem]))
        for number, stem in enumerate(sorted(files), 1)
    )
