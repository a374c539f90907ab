"""Preprocesses image-text pairs into a multimodal dataset: each document is a text, then the bytes of its image."""

from __future__ import annotations

import functools
import hashlib
import json
import os
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
from tokenloom.preprocess.blocks import Column, DocumentTokens, TokenizedBlock, convert_records, singles
from tokenloom.preprocess.job import CorpusSummary, JobArguments, run_job
from tokenloom.preprocess.job_plan import BlockPipeline, Recipe, plan_job
from tokenloom.preprocess.selection import hash_documents
from tokenloom.preprocess.settings import MultimodalSettings
from tokenloom.setting_types import checked_output_prefix
from tokenloom.storage.atomic import storage_errors
from tokenloom.storage.json_files import parse_json
from tokenloom.storage.publishing import write_report
from tokenloom.storage.secrets import admit
from tokenloom.storage.versions import open_regular
from tokenloom.tokenizers.text_tokenizer import TextTokenizer, in_words, refusals, require_sound

_TEXT_SUFFIX = ".txt"
_BLOCK_BYTES = 1 << 18
_FOLDER_SHARE = 256
"""Factor on `shard_bytes` for a folder, whose shards count texts and images; shards of a file count only records."""

_PAIRS_AT_ONCE = 8
"""Number of pairs in a bundle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairBlock(Block):
    """An image-text pair: all files of a folder with a common stem. Pairs are numbered from 1 in the order of stems."""

    unit: ClassVar[str] = "pair"

    stem: str
    names: tuple[str, ...]

    def records(self) -> Iterator[NumberedRecord]:
        """Yields one record: the paths of the text and the image, or an error unless there is exactly one of each."""
        texts = [name for name in self.names if PurePath(name).suffix == _TEXT_SUFFIX]
        images = [name for name in self.names if PurePath(name).suffix != _TEXT_SUFFIX]
        if len(texts) == len(images) == 1:
            value: Any = tuple(os.path.join(self.path, name) for name in (*texts, *images))
        else:
            expected = f"`{self.stem}{_TEXT_SUFFIX}` and one image `{self.stem}.*`"
            value = UnusableLineError(f"expected {expected}, found {', '.join(self.names)}")
        yield NumberedRecord(self.first_record, value, os.fsencode(self.stem))


def _read(path: str, what: str, check_size: Callable[[int], None]) -> bytes:
    """Calls `check_size(num_bytes)`, then returns the content of a regular file; errors call the file `what`."""
    try:
        with open(path, "rb", opener=lambda name, _flags: open_regular(name)) as stream:
            num_bytes = os.fstat(stream.fileno()).st_size
            check_size(num_bytes)
            return stream.read(num_bytes)
    except (InputError, StorageError) as error:
        raise InputError(f"{what} `{path}`: {error.message}") from error
    except OSError as error:
        raise InputError(f"cannot read the {what} `{path}`: {error.strerror or error}") from error
    except (ValueError, MemoryError) as error:  # an invalid path, or a file larger than memory
        raise InputError(f"cannot read the {what} {path!r}: {in_words(error)}") from error


class PairReader(SliceReader):
    """A reader of the image-text pairs in one slice of a folder; see `_cut_folder`."""

    def __init__(self, slice_: InputSlice, options: ReadOptions) -> None:
        super().__init__(slice_, options)
        self._pairs = _pairs_in(self._path)[slice_.start : slice_.stop]
        if _part_of_folder(self._path, self._pairs).version != slice_.file.version:
            message = f"`{self._path}` changed after the job was planned: files were added, removed or modified"
            raise InputError(message, hint="run the job again, and do not modify the input during the job")

    @property
    def position(self) -> int:
        return self.num_bytes * self.num_rows // len(self._pairs)

    def blocks(self) -> Iterator[Block]:
        for pair in self._pairs:
            self.num_rows += 1
            yield pair

    read_blocks = blocks

    def close(self) -> None:
        """Does nothing: no file stays open."""


def _cut_folder(folder: str, *, shard_bytes: int) -> Iterator[tuple[InputSlice, ...]]:
    """Yields one slice per shard: consecutive image-text pairs of at most `shard_bytes`, but at least one pair."""
    pairs = _pairs_in(folder)
    first = num_bytes = 0
    for number, pair in enumerate(pairs, 1):
        num_bytes += _part_of_folder(folder, [pair]).num_bytes
        following = _part_of_folder(folder, pairs[number : number + 1]).num_bytes
        if number == len(pairs) or num_bytes + following > shard_bytes:
            yield (InputSlice(file=_part_of_folder(folder, pairs[first:number]), start=first, stop=number),)
            first, num_bytes = number, 0


def _part_of_folder(folder: str, pairs: Sequence[PairBlock]) -> InputFile:
    """Returns an `InputFile` for some pairs: their total size, and a hash of names, sizes and mtimes as the version."""
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


@functools.lru_cache(maxsize=1)  # each shard lists the same folder
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
    """The recipe for image-text pairs; see `Recipe`."""

    settings: MultimodalSettings
    file: InputFile
    is_folder: bool  # a folder of pairs, not a file of records

    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.int32)
    is_multimodal = True
    documents = "pairs"
    expected = "provide JSON lines, or a folder of texts and images with equal stems (`cat.txt`, `cat.jpg`)"

    def options(self, _key: str, _split: str | None) -> dict[str, Any]:
        settings = self.settings
        return {
            "text_key": None if self.is_folder else settings.text_key,
            "image_key": None if self.is_folder else settings.image_key,
            "append_eod": settings.append_eod,
            "pad_length": settings.pad_length,
            **settings.recorded(),
        }

    def of_shards(self) -> dict[str, Any]:
        return {"recipe": "images", **self.options("", None)}

    def recorded(self, _files: Sequence[InputFile]) -> tuple[InputRecord, ...]:
        return Recipe.recorded(self, [self.file])

    def cut(self, files: Sequence[InputFile]) -> Iterable[tuple[InputSlice, ...]]:
        if self.is_folder:
            return _cut_folder(self.file.path, shard_bytes=_FOLDER_SHARE * self.settings.shard_bytes)
        return Recipe.cut(self, files)

    def pipeline(self, _first: InputSlice, *, num_workers: int) -> BlockPipeline:
        reader = partial(self.open, block_bytes=_BLOCK_BYTES)
        return BlockPipeline(open=reader, bundles=_bundled, work=self.tokenized)

    def open(self, slice_: InputSlice, *, block_bytes: int) -> SliceReader:
        if self.is_folder:
            return PairReader(slice_, ReadOptions(block_bytes=block_bytes))
        return Recipe.open(self, slice_, block_bytes=block_bytes)

    def tokenized(self, bundle: Sequence[Block]) -> TokenizedBlock:
        """Tokenizes blocks: a text sequence and an image sequence per record. Thread-safe."""
        numbers = Counter[str]()
        pairs, bad_lines, skipped = convert_records(bundle, partial(self._pair, numbers=numbers))
        sequences = [sequence for _, *both in pairs for sequence in both]
        largest_token = max((int(tokens.max(initial=-1)) for _, tokens, _ in pairs), default=-1)
        num_documents, hashes = len(pairs), None
        if self.settings.document_hashes:
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
            skipped=skipped,
            largest_token=None if largest_token < 0 else largest_token,
            numbers=numbers,
        )

    def _text_and_path(self, value: Any) -> tuple[str, str]:
        if isinstance(value, tuple):
            return self._read_text(value[0]), value[1]
        if not isinstance(value, dict):
            refuse_record(f"expected an object, found {kind_of(value)}")
        keys = self.settings.text_key, self.settings.image_key
        for key in keys:
            if not isinstance(value.get(key), str):
                found = kind_of(value[key]) if key in value else "none"
                refuse_record(f"expected a string under {key!r}, found {found}")
        text, path = (value[key] for key in keys)
        return checked_text(text, repr(keys[0])), os.path.join(os.path.dirname(self.file.path), path)

    def _pair(self, value: Any, numbers: Counter[str]) -> tuple[str, NDArray[np.int32], NDArray[np.int32]]:
        """Returns text, tokens of the text, and image bytes of a record; adds counts of the record to `numbers`."""
        text, image_path = self._text_and_path(value)
        pad_length = self.settings.pad_length
        item = image_to_item(image := _read(image_path, "image", check_image_size))
        with refusals(f"tokenizer `{self.tokenizer.path}`"):
            encoded = self.tokenizer.encode_texts([text])
        require_sound(encoded, num_texts=1, vocab_size=self.tokenizer.vocab_size)
        tokens, length, eod = encoded.tokens.tolist(), len(encoded.tokens), self.document_tokens.eod
        if tokens and eod is not None:
            target_length = length + 1 if pad_length is None else pad_length
            tokens = tokens[:target_length] + [eod] * (target_length - length)
        numbers["num_text_tokens"] += len(tokens)
        numbers["num_image_bytes"] += len(image)
        numbers["num_truncated"] += pad_length is not None and length > pad_length
        return text, np.array(tokens, dtype=np.int32), item

    def _read_text(self, path: str) -> str:
        def check_size(num_bytes: int) -> None:
            if num_bytes > self.settings.max_record_bytes:
                raise InputError(str(too_long(self.settings.max_record_bytes)))

        try:
            return _read(path, "text", check_size).decode()
        except UnicodeDecodeError as error:
            raise InputError(f"cannot read the text `{path}`: {error}") from error


def _bundled(blocks: Iterable[Block]) -> Iterator[list[Block]]:
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
    """Tokenizes image-text pairs into a multimodal dataset, `PREFIX.bin` and `PREFIX.idx`.

    A document consists of the tokens of the text (mode 0) and the bytes of the undecoded image file as int32 (mode 1);
    see `image_to_item`. Runs as a resumable job, like `preprocess_corpus`. Do not modify images during the job. If a
    record names an image and the image changes, a repeated call does not notice the change: pass `restart=True`.
    Memory: 8 × (`num_workers` + 2) images per process.

    The input is a file or a folder. Each record of a file (JSON lines or a table) has a text and an image path relative
    to the file's folder. A folder has two files with the same stem per pair, such as `cat.txt` and `cat.jpg`; the pairs
    are sorted by stem. For the other arguments and the errors see `preprocess_corpus`.
    """
    settings = settings or MultimodalSettings()
    path = admit(os.fspath(input_path))
    prefix = admit(checked_output_prefix("output_prefix", output_prefix))
    is_folder = os.path.isdir(path)
    recipe = ImageRecipe(
        settings=settings,
        tokenizer=tokenizer,
        file=_part_of_folder(path, _pairs_in(path)) if is_folder else inspect_input(path, default_format="jsonl"),
        is_folder=is_folder,
        unit=PairBlock.unit if is_folder else None,
        document_tokens=DocumentTokens(eod=tokenizer.eod if settings.append_eod else None),
    )
    return run_job(plan_job(recipe, prefix, [recipe.file]), **how)


def write_image_records(
    texts_path: str, images_folder: str, output_path: str, *, image_key: str = "image", overwrite: bool = False
) -> int:
    """Copies JSON lines and adds an image path under `image_key` to each record; returns the number of records.

    Images are sorted by name; record n gets the nth image. Blank lines and hidden files are skipped. (The tool of
    the reference takes images in the order in which the filesystem lists them, which may differ between machines.)
    """
    folder = os.path.abspath(images_folder)
    with storage_errors("open", images_folder):
        names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    with storage_errors("open", texts_path), open(texts_path, "rb") as stream:
        lines = [(number, line) for number, line in enumerate(stream, 1) if line.strip()]
    if len(lines) != len(names):
        message = f"`{texts_path}` has {len(lines)} records, but `{images_folder}` has {len(names)} images"
        raise InputError(message, hint="provide exactly one image per record: record n gets the nth image by name")
    rows = []
    for (number, line), name in zip(lines, names, strict=True):
        try:
            record = {**parse_json(line), image_key: os.path.join(folder, name)}
        except (TypeError, ValueError) as error:
            raise InputError(f"`{texts_path}` line {number}: not a JSON object: {error}") from error
        rows.append(json.dumps(record, ensure_ascii=False))
    data = "".join(f"{row}\n" for row in rows).encode("utf-8", "surrogatepass")
    write_report(output_path, data, overwrite=overwrite)
    return len(rows)
