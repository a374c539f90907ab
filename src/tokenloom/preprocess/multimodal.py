"""Texts and images into a multimodal `.bin`/`.idx` pair: a document is the text, then the bytes of its image."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, ClassVar

import numpy as np

from tokenloom.errors import InputError
from tokenloom.inputs import InputFile, InputSlice
from tokenloom.inputs.blocks import Block
from tokenloom.inputs.detect import inspect_input
from tokenloom.inputs.reading import open_within
from tokenloom.inputs.record_format import ReadOptions, SliceReader
from tokenloom.inputs.records import records_of
from tokenloom.preprocess.bad_records import Isolating, singles
from tokenloom.preprocess.document_tokens import DocumentTokens
from tokenloom.preprocess.image_blocks import (
    FILE_NUMBERS,
    ImageTokenizer,
    PairBlock,
    PairReader,
    cut_folder,
    forget_folder,
)
from tokenloom.preprocess.job import run_job
from tokenloom.preprocess.plan import plan_job
from tokenloom.preprocess.recipe import Making, Recipe, input_record
from tokenloom.preprocess.settings import MultimodalSettings
from tokenloom.preprocess.sharded import JobProgress, Runner
from tokenloom.storage.atomic import storage_errors
from tokenloom.storage.json_files import UnusableJsonError, parse_json
from tokenloom.storage.publishing import write_report
from tokenloom.storage.secrets import admit
from tokenloom.tokenizers.text_tokenizer import TextTokenizer

_BLOCK_BYTES = 1 << 18
_FOLDER_SHARE = 256
"""A shard of a folder holds the bytes of the images, one of records only leads to them."""

_SAMPLE = 64
_BYTES_AT_ONCE = 256 << 10
_MOST_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRecipe(Recipe):
    """The recipe for texts with images; see `Recipe`.

    Attributes:
        path: path of the input.
        is_folder: whether that is a folder of pairs, and not a file of records.
        pairs_at_once: number of pairs that a thread takes at once, after the first.
    """

    settings: MultimodalSettings
    path: str
    is_folder: bool
    pairs_at_once: int = 1

    dtype: ClassVar[np.dtype[Any]] = np.dtype(np.int32)
    is_multimodal = True
    compares_bytes = True

    @property
    def unit(self) -> str | None:
        """What a record is: a pair of files, of a folder."""
        return PairBlock.unit if self.is_folder else None

    def options(self, _key: str, _split: str | None) -> dict[str, Any]:
        """Returns what the manifest says of how the dataset was made."""
        return {
            "text_key": None if self.is_folder else self.settings.text_key,
            "image_key": None if self.is_folder else self.settings.image_key,
            "append_eod": self.document_tokens.eod is not None,
            "pad_length": self.settings.pad_length,
            **self.settings.recorded(),
            **self.settings.of_hashes(),
        }

    def of_shards(self) -> dict[str, Any]:
        """Returns what decides what a shard holds."""
        return {"recipe": "images", **self.options("", None)}

    def cut(self, files: Sequence[InputFile]) -> Iterable[tuple[InputSlice, ...]]:
        """Returns the shards of a file, or of a folder."""
        if self.is_folder:
            return cut_folder(self.path, shard_bytes=_FOLDER_SHARE * self.settings.shard_bytes)
        return Recipe.cut(self, files)

    def making(self, _first: InputSlice, *, num_workers: int) -> Making:
        """Returns what one process works with."""
        work = self.work()
        return Making(
            engine="",
            engine_reason="",
            open=self.open,
            bundles=self._bundled,
            work=Isolating(work),
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
            text_key=self.settings.text_key,
            image_key=self.settings.image_key,
            folder=os.path.dirname(self.path),
            eod=self.document_tokens.eod,
            pad_length=self.settings.pad_length,
            max_text_bytes=self.settings.max_record_bytes,
            hash_texts=self.settings.document_hashes,
        )

    def open(self, slice_: InputSlice) -> SliceReader:
        """Returns the reader of a slice."""
        if self.is_folder:
            return PairReader(slice_, ReadOptions(block_bytes=1))
        return open_within(slice_, self.settings, block_bytes=_BLOCK_BYTES)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class MultimodalSummary:
    """What a run did.

    Attributes:
        prefix: prefix of the dataset.
        num_documents: pairs of text and image.
        num_text_tokens: number of tokens of all texts, what fills them up included.
        num_image_bytes: size of all image files in bytes.
        num_truncated: texts that were cut off at `pad_length`.
        num_rejected: bad lines or pairs, set aside in the file `rejected_path`, which is None if there were none.
        seconds: the run took.
        was_complete: whether there was nothing to do.
    """

    prefix: str
    num_documents: int
    num_text_tokens: int
    num_image_bytes: int
    num_truncated: int
    num_rejected: int
    rejected_path: str | None
    seconds: float
    was_complete: bool = False


def preprocess_multimodal(
    input_path: str | os.PathLike[str],
    output_prefix: str | os.PathLike[str],
    tokenizer: TextTokenizer,
    settings: MultimodalSettings | None = None,
    *,
    num_processes: int | None = None,
    num_workers: int | None = None,
    runner: Runner | None = None,
    work_folder: str | os.PathLike[str] | None = None,
    restart: bool = False,
    overwrite: bool = False,
    progress: Callable[[JobProgress], None] | None = None,
) -> MultimodalSummary:
    """Writes pairs of text and image as `PREFIX.bin` and `PREFIX.idx`, a document each, in the order of the input.

    A document is the tokens of the text (mode 0), then the bytes of the image file as int32 (mode 1): see
    `image_to_item`. Each image is stored as it is, never decoded.
    All files appear at the end, or none; the same call on finished output leaves it alone, after comparing it with the
    texts and images of now.

    This is a job as `preprocess_corpus` is: of shards, in `PREFIX.job`, which the same call goes on with after whatever
    ended an earlier one, and which processes and machines that share the folder share. Shards whose images have changed
    since are done again. In memory are the images of `num_workers` + 1 pairs per process, or of so many
    times some 256 kB of small ones.

    Args:
        input_path: path of JSON lines, or a table, with a text and the path of an image, from the file's folder on; or
            of a folder of pairs with one name, such as `cat.txt` and `cat.jpg`, taken in the order of their names.
        output_prefix: prefix of the outputs; their folder must exist.
        tokenizer: tokenizer from `load_tokenizer`.
        settings: see `MultimodalSettings`.
        num_processes, num_workers, runner, work_folder, restart, progress: see `preprocess_corpus`.
        overwrite: replace a dataset that is there and holds something else; it stays whole until the new one is.

    Raises:
        ConfigError: a setting is wrong, or an unfinished job with other settings or inputs is in the folder.
        OutputExistsError: there is another dataset under the output prefix, and no `overwrite`.
        OutputBusyError: another process writes the same output.
        InputError: a line or pair is bad (no text, an image that is missing, empty or larger than int32 can count), or
            there is none at all.
        TokenizerError: there is no `eod` to append.
        StuckRecordError: a thread does not come to an end with some of the pairs in ten minutes.
        WorkerError: processes keep dying.
        StorageError: reading or writing failed.
    """
    started = time.monotonic()
    settings = settings or MultimodalSettings()
    path = admit(os.fspath(input_path))
    is_folder = os.path.isdir(path)
    record = input_record(path)
    if is_folder:
        file = InputFile(path=path, format="text-files", compression="none", num_bytes=record.num_bytes, version="")
    else:
        file = inspect_input(path, default_format="jsonl")
    recipe = ImageRecipe(
        settings=settings,
        inputs=(record,),
        tokenizer=tokenizer,
        path=path,
        is_folder=is_folder,
        document_tokens=DocumentTokens(eod=tokenizer.eod if settings.append_eod else None),
    )
    recipe = replace(recipe, pairs_at_once=sampled_pairs_at_once(recipe, file))
    try:
        result = run_job(
            plan_job(recipe, admit(os.fspath(output_prefix)), [file]),
            num_processes=num_processes,
            num_workers=num_workers,
            runner=runner,
            work_folder=work_folder,
            restart=restart,
            overwrite=overwrite,
            progress=progress,
            started=started,
        )
    finally:
        forget_folder()
    done = result.summary
    [dataset] = done.datasets
    return MultimodalSummary(
        prefix=dataset.prefix,
        num_documents=dataset.num_documents,
        num_text_tokens=result.number("num_text_tokens"),
        num_image_bytes=result.number("num_image_bytes"),
        num_truncated=result.number("num_truncated"),
        num_rejected=done.num_rejected,
        rejected_path=next(iter(done.rejected_paths), None),
        seconds=done.seconds,
        was_complete=done.was_complete,
    )


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

    Raises:
        InputError: a line is no JSON object, or there are more or fewer images.
        OutputExistsError: the output is there, and holds something else.
        StorageError: something cannot be read or written.
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
        record = _object(line, f"line {number} of `{texts_path}`")
        rows.append(json.dumps({**record, image_key: os.path.join(folder, name)}, ensure_ascii=False))
    data = "".join(f"{row}\n" for row in rows).encode("utf-8", "surrogatepass")
    write_report(output_path, data, overwrite=overwrite)
    return len(rows)


def _object(line: bytes, where: str) -> dict[str, object]:
    try:
        value = parse_json(line)
    except UnusableJsonError as error:
        message = f"{where} is not JSON: {error}"
        raise InputError(message) from error
    if not isinstance(value, dict):
        message = f"{where}: expected an object, found {type(value).__name__}"
        raise InputError(message)
    return value
