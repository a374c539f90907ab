"""Texts and images into a multimodal `.bin`/`.idx` pair: a document is the text, then the bytes of its image."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import PurePath
from typing import Any, ClassVar, Unpack

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import InputError, StorageError
from tokenloom.indexed.layout import IMAGE_MODE, TEXT_MODE, check_image_size, image_to_item
from tokenloom.indexed.manifests import InputRecord
from tokenloom.inputs import InputFile, InputSlice
from tokenloom.inputs.find import inspect_input
from tokenloom.inputs.record_format import ReadOptions, SliceReader
from tokenloom.inputs.records import (
    Block,
    NumberedRecord,
    Texts,
    UnusableLineError,
    checked_text,
    kind_of,
    refuse_record,
    too_long,
)
from tokenloom.preprocess.blocks import Column, DocumentTokens, TokenizedBlock, made_of_records, singles
from tokenloom.preprocess.job import CorpusSummary, JobArguments, check_arguments, run_job
from tokenloom.preprocess.plan import Making, Recipe, plan_job
from tokenloom.preprocess.selection import hash_documents
from tokenloom.preprocess.settings import MultimodalSettings
from tokenloom.storage.atomic import storage_errors
from tokenloom.storage.json_files import parse_json
from tokenloom.storage.publishing import write_report
from tokenloom.storage.secrets import admit
from tokenloom.storage.versions import open_regular
from tokenloom.tokenizers.text_tokenizer import Encoded, TextTokenizer, in_words, refusals, require_sound

_TEXT_SUFFIX = ".txt"
_BLOCK_BYTES = 1 << 18
_FOLDER_SHARE = 256
"""A shard of a folder holds the bytes of the images, one of records only leads to them."""

_PAIRS_AT_ONCE = 8
"""Pairs that a thread takes at once."""


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

    def records(self) -> Iterator[NumberedRecord]:
        """Yields the pair, as the paths of text and image."""
        texts = [name for name in self.names if PurePath(name).suffix == _TEXT_SUFFIX]
        images = [name for name in self.names if PurePath(name).suffix != _TEXT_SUFFIX]
        if len(texts) == len(images) == 1:
            value: Any = tuple(os.path.join(self.path, name) for name in (*texts, *images))
        else:
            expected = f"expected `{self.stem}{_TEXT_SUFFIX}` and one image of that name"
            value = UnusableLineError(f"{expected}, found {', '.join(self.names)}")
        yield NumberedRecord(self.first_record, value, os.fsencode(self.stem))


class ImageTokenizer:
    """Tokenizes a text and reads its image, whose path starts from the input's folder; safe from several threads."""

    def __init__(self, recipe: ImageRecipe) -> None:
        self._settings = recipe.settings
        self._tokenizer = recipe.tokenizer
        self._vocab_size = recipe.tokenizer.vocab_size
        self._folder = os.path.dirname(recipe.file.path)
        self._eod = recipe.document_tokens.eod

    def __call__(self, bundle: Sequence[Block]) -> TokenizedBlock:
        """Returns both sequences of each record of some blocks, or why there are none."""
        numbers = Counter[str]()
        make = partial(self._pair, numbers=numbers)
        pairs, bad_lines, left_out = made_of_records(bundle, make)
        sequences = [sequence for _, *both in pairs for sequence in both]
        largest_token = max((int(tokens.max(initial=-1)) for _, tokens, _ in pairs), default=-1)
        num_documents, hashes = len(pairs), None
        if self._settings.document_hashes:
            hashes = hash_documents([Texts(texts=[text for text, _, _ in pairs])], num_documents)
        column = Column(
            tokens=np.concatenate([np.empty(0, dtype=np.int32), *sequences]),
            lengths=np.array([len(sequence) for sequence in sequences], dtype=np.int32),
            document_ends=np.arange(2, 2 * num_documents + 1, 2, dtype=np.int64),
            modes=np.array([TEXT_MODE, IMAGE_MODE] * num_documents, dtype=np.int8),
            hashes=hashes,
        )
        return TokenizedBlock(
            columns=(column,),
            num_documents=num_documents,
            bad_lines=bad_lines,
            left_out=left_out,
            largest_token=None if largest_token < 0 else largest_token,
            numbers=numbers,
        )

    def _text_and_path(self, value: Any) -> tuple[str, str]:
        """Returns the text of a record and the path of its image."""
        if isinstance(value, tuple):
            text_path, image_path = value
            return _read_text(text_path, self._settings.max_record_bytes), image_path
        if not isinstance(value, dict):
            refuse_record(f"expected an object, found {kind_of(value)}")
        keys = self._settings.text_key, self._settings.image_key
        for key in keys:
            if not isinstance(value.get(key), str):
                found = kind_of(value[key]) if key in value else "none"
                refuse_record(f"expected a string under {key!r}, found {found}")
        text, path = (value[key] for key in keys)
        return checked_text(text, repr(keys[0])), os.path.join(self._folder, path)

    def _pair(self, value: Any, numbers: Counter[str]) -> tuple[str, NDArray[np.int32], NDArray[np.int32]]:
        """Returns the text of a record, its tokens and its image, and counts them."""
        text, image_path = self._text_and_path(value)
        pad_length = self._settings.pad_length
        item = image_to_item(image := _read(image_path, "image", check_image_size))
        with refusals(f"tokenizer `{self._tokenizer.path}`"):
            tokens = list(self._tokenizer.tokenize(text))
        length = len(tokens)
        encoded = Encoded(np.array(tokens, dtype=np.int64), np.array([length], dtype=np.int64))
        require_sound(encoded, num_texts=1, vocab_size=self._vocab_size)
        if tokens and self._eod is not None:
            wanted = length + 1 if pad_length is None else pad_length
            tokens = tokens[:wanted] + [self._eod] * (wanted - length)
        numbers["num_text_tokens"] += len(tokens)
        numbers["num_image_bytes"] += len(image)
        numbers["num_truncated"] += pad_length is not None and length > pad_length
        return text, np.array(tokens, dtype=np.int32), item


def _read_text(path: str, max_bytes: int) -> str:
    def check_size(num_bytes: int) -> None:
        if num_bytes > max_bytes:
            raise InputError(str(too_long(max_bytes)))

    try:
        return _read(path, "text", check_size).decode()
    except UnicodeDecodeError as error:
        message = f"cannot read the text `{path}`: {error}"
        raise InputError(message) from error


def _read(path: str, what: str, check_size: Callable[[int], None]) -> bytes:
    """Returns the bytes of a file; does not wait for somebody to write to a pipe."""
    try:
        with open(path, "rb", opener=lambda name, _flags: open_regular(name)) as stream:
            num_bytes = os.fstat(stream.fileno()).st_size
            check_size(num_bytes)
            return stream.read(num_bytes)
    except (InputError, StorageError) as error:
        message = f"{what} `{path}`: {error.message}"
        raise InputError(message) from error
    except OSError as error:
        message = f"cannot read the {what} `{path}`: {error.strerror or error}"
        raise InputError(message) from error
    except (ValueError, MemoryError) as error:  # a path that there cannot be, or an image larger than memory
        message = f"cannot read the {what} {path!r}: {in_words(error)}"
        raise InputError(message) from error


class PairReader(SliceReader):
    """Reads the pairs of a slice of a folder.

    Args:
        slice_: a slice from `cut_folder`.
        options: options of reading.
    """

    def __init__(self, slice_: InputSlice, options: ReadOptions) -> None:
        super().__init__(slice_, options)
        self._pairs = _pairs_in(self._path)[slice_.start : slice_.stop]
        if _part_of_folder(self._path, self._pairs).version != slice_.file.version:
            message = f"`{self._path}` changed after the job was planned: other files, or some were written to"
            raise InputError(message, hint="let nothing write to the input while it is read, and plan the job anew")

    @property
    def position(self) -> int:
        return self.num_bytes * self.num_rows // len(self._pairs)

    def blocks(self) -> Iterator[Block]:
        for pair in self._pairs:
            self.num_rows += 1
            yield pair

    read_blocks = blocks

    def close(self) -> None:
        """There is nothing to close."""


def cut_folder(folder: str, *, shard_bytes: int) -> Iterator[tuple[InputSlice, ...]]:
    """Yields the shards of a folder: pairs in the order of their names, as many as have so many bytes together."""
    pairs = _pairs_in(folder)
    first = num_bytes = 0
    for number, pair in enumerate(pairs, 1):
        num_bytes += _part_of_folder(folder, [pair]).num_bytes
        following = _part_of_folder(folder, pairs[number : number + 1]).num_bytes
        if number == len(pairs) or num_bytes + following > shard_bytes:
            yield (InputSlice(file=_part_of_folder(folder, pairs[first:number]), start=first, stop=number),)
            first, num_bytes = number, 0


def _part_of_folder(folder: str, pairs: Sequence[PairBlock]) -> InputFile:
    """Returns some pairs as a file, with the bytes of theirs, and a version that changes when one of them does."""
    num_bytes = 0
    digest = hashlib.sha256()
    for name in (name for pair in pairs for name in pair.names):
        with suppress(OSError):
            status = os.stat(os.path.join(folder, name))
            num_bytes += status.st_size
            digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode("utf-8", "surrogateescape"))
    version = digest.hexdigest()
    return InputFile(path=folder, format="text-files", compression="none", num_bytes=num_bytes, version=version)


def _pairs_in(folder: str) -> tuple[PairBlock, ...]:
    with storage_errors("list", folder):
        return _listed(folder, os.stat(folder).st_mtime_ns)


@functools.lru_cache(maxsize=1)  # for each of its shards
def _listed(folder: str, _changed: int) -> tuple[PairBlock, ...]:
    files: dict[str, list[str]] = defaultdict(list)
    for name in sorted(name for name in os.listdir(folder) if not name.startswith(".")):
        files[PurePath(name).stem].append(name)
    return tuple(
        PairBlock(path=folder, first_record=number, stem=stem, names=tuple(files[stem]))
        for number, stem in enumerate(sorted(files), 1)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRecipe(Recipe):
    """The recipe for texts with images; see `Recipe`.

    Attributes:
        file: the input, as it was when the job was planned.
        is_folder: whether that is a folder of pairs, and not a file of records.
    """

    settings: MultimodalSettings
    file: InputFile
    is_folder: bool

    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.int32)
    is_multimodal = True
    documents = "pairs"
    expected = "expected JSON lines, or a folder of texts and images with equal names"

    def options(self, _key: str, _split: str | None) -> dict[str, Any]:
        return {
            "text_key": None if self.is_folder else self.settings.text_key,
            "image_key": None if self.is_folder else self.settings.image_key,
            "append_eod": self.document_tokens.eod is not None,
            "pad_length": self.settings.pad_length,
            **self.settings.recorded(),
            **self.settings.of_hashes(),
        }

    def of_shards(self) -> dict[str, Any]:
        return {"recipe": "images", **self.options("", None)}

    def recorded(self, _files: Sequence[InputFile]) -> tuple[InputRecord, ...]:
        return Recipe.recorded(self, [self.file])

    def cut(self, files: Sequence[InputFile]) -> Iterable[tuple[InputSlice, ...]]:
        if self.is_folder:
            return cut_folder(self.file.path, shard_bytes=_FOLDER_SHARE * self.settings.shard_bytes)
        return Recipe.cut(self, files)

    def making(self, _first: InputSlice, *, num_workers: int) -> Making:
        reader = partial(self.open, block_bytes=_BLOCK_BYTES)
        return Making(open=reader, bundles=_bundled, work=ImageTokenizer(self))

    def open(self, slice_: InputSlice, *, block_bytes: int) -> SliceReader:
        if self.is_folder:
            return PairReader(slice_, ReadOptions(block_bytes=block_bytes))
        return Recipe.open(self, slice_, block_bytes=block_bytes)


def _bundled(blocks: Iterable[Block]) -> Iterator[list[Block]]:
    """Yields records as blocks of their own, a few at once."""
    records = chain.from_iterable(singles([block]) for block in blocks)
    while bundle := list(chain.from_iterable(islice(records, _PAIRS_AT_ONCE))):
        yield bundle


def preprocess_multimodal(
    input_path: str | os.PathLike[str],
    output_prefix: str | os.PathLike[str],
    tokenizer: TextTokenizer,
    settings: MultimodalSettings | None = None,
    **how: Unpack[JobArguments],
) -> CorpusSummary:
    """Writes pairs of text and image as `PREFIX.bin` and `PREFIX.idx`, a document each, in the order of the input.

    A document is the tokens of the text (mode 0), then the bytes of the image file as int32 (mode 1): see
    `image_to_item`. Each image is stored as it is, never decoded.
    All files appear at the end, or none; the same call on finished output leaves it alone. Images that records lead to
    are not compared with those of now: `restart=True` reads them again.

    This is a job as `preprocess_corpus` is: of shards, in `PREFIX.job`, which the same call goes on with after whatever
    ended an earlier one, and which processes and machines that share the folder share. Images must
    stay as they are until it is done. In memory are the images of 8 × (`num_workers` + 2) pairs per process.

    Args:
        input_path: path of JSON lines, or a table, with a text and the path of an image, from the file's folder on; or
            of a folder of pairs with one name, such as `cat.txt` and `cat.jpg`, taken in the order of their names.
        output_prefix: prefix of the outputs; their folder must exist.
        tokenizer: tokenizer from `load_tokenizer`.
        settings: see `MultimodalSettings`.
        num_processes, num_workers, runner, work_folder, restart, progress: see `preprocess_corpus`.
        overwrite: replace a dataset that is there and holds something else; it stays whole until the new one is.

    Raises:
        InputError: a line or pair is bad (no text, an image that is missing, empty or larger than int32 can count), or
            there is none at all.
        StuckRecordError: a thread does not come to an end with some of the pairs in ten minutes.
        TokenloomError: see `preprocess_corpus`.
    """
    check_arguments(how)
    started = time.monotonic()
    settings = settings or MultimodalSettings()
    path = admit(os.fspath(input_path))
    is_folder = os.path.isdir(path)
    recipe = ImageRecipe(
        settings=settings,
        tokenizer=tokenizer,
        file=_part_of_folder(path, _pairs_in(path)) if is_folder else inspect_input(path, default_format="jsonl"),
        is_folder=is_folder,
        unit=PairBlock.unit if is_folder else None,
        document_tokens=DocumentTokens(eod=tokenizer.eod if settings.append_eod else None),
    )
    return run_job(plan_job(recipe, admit(os.fspath(output_prefix)), [recipe.file]), started=started, **how)


def write_image_records(
    texts_path: str, images_folder: str, output_path: str, *, image_key: str = "image", overwrite: bool = False
) -> int:
    """Writes each record again, with the path of its image: the n-th of the folder, by name. Returns their number.

    The reference's tool pairs them in the order in which the filesystem lists the folder, which may differ between two
    machines; here it is that of the names. Blank lines are left out.

    Args:
        texts_path: path of JSON lines.
        images_folder: folder with as many files; names that begin with a dot do not count.
        output_path: path of the records.
        image_key: key of the path of the image.
        overwrite: whether to replace a file that holds something else.
    """
    folder = os.path.abspath(images_folder)
    with storage_errors("open", images_folder):
        names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    with storage_errors("open", texts_path), open(texts_path, "rb") as stream:
        lines = [(number, line) for number, line in enumerate(stream, 1) if line.strip()]
    if len(lines) != len(names):
        message = f"`{texts_path}` has {len(lines)} records, and `{images_folder}` {len(names)} images"
        raise InputError(message, hint="they are paired by their order, records by line and images by name")
    rows = []
    for (number, line), name in zip(lines, names, strict=True):
        try:
            record = {**parse_json(line), image_key: os.path.join(folder, name)}
        except (TypeError, ValueError) as error:
            message = f"line {number} of `{texts_path}` is no object in JSON: {error}"
            raise InputError(message) from error
        rows.append(json.dumps(record, ensure_ascii=False))
    data = "".join(f"{row}\n" for row in rows).encode("utf-8", "surrogatepass")
    write_report(output_path, data, overwrite=overwrite)
    return len(rows)
