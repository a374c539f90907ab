"""Texts and images into a multimodal `.bin`/`.idx` pair: a document is the text, then the bytes of its image."""

from __future__ import annotations

import json
import os
import stat
import time
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePath
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError, DatasetFormatError, DatasetNotFoundError, InputError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.images import IMAGE_MODE, TEXT_MODE, check_image_size, image_to_item
from tokenloom.indexed.layout import bin_path, idx_path
from tokenloom.indexed.manifest.check import manifest_of
from tokenloom.indexed.manifest.contents import DocumentLedger, Manifest, PairFacts
from tokenloom.indexed.writing.builder import IndexedDatasetBuilder
from tokenloom.indexed.writing.outputs import existing_path, is_published
from tokenloom.inputs.cut import whole_file
from tokenloom.inputs.detect import inspect_input
from tokenloom.inputs.limits import ReadLimits
from tokenloom.inputs.reading import open_within
from tokenloom.inputs.records import BadLine, UnusableLineError, bad_line, kind_of, records_of, too_long
from tokenloom.numbers import checked_integer
from tokenloom.preprocess.recording import input_record, is_of_same_run, manifest_of_run
from tokenloom.preprocess.rejected import RejectedLines, rejected_path
from tokenloom.preprocess.threads import in_order, number_of_workers, worker_threads
from tokenloom.storage.atomic import storage_errors
from tokenloom.storage.publishing import exists_error
from tokenloom.storage.resolve import exists
from tokenloom.tokenizers.failures import in_words, refusals, require_sound
from tokenloom.tokenizers.text_tokenizer import Encoded, TextTokenizer

_TEXT_SUFFIX = ".txt"
_BLOCK_BYTES = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class MultimodalSummary:
    """What a run did.

    Attributes:
        prefix: of the dataset.
        num_documents: pairs of text and image.
        num_text_tokens: of all texts, what fills them up included.
        num_image_bytes: of all image files.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """A text and the image that goes with it; `origin` says where they come from."""

    origin: BadLine
    image_path: str
    text: str | None = None
    text_path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Encoded:
    tokens: NDArray[np.int32]
    image: NDArray[np.int32]
    num_image_bytes: int
    truncated: bool


def preprocess_multimodal(
    input_path: str | os.PathLike[str],
    output_prefix: str | os.PathLike[str],
    tokenizer: TextTokenizer,
    *,
    text_key: str = "text",
    image_key: str = "image",
    append_eod: bool = False,
    pad_length: int | None = None,
    num_workers: int | None = None,
    skip_bad_lines: bool = False,
    overwrite: bool = False,
    read_limits: ReadLimits | None = None,
    progress: Callable[[int], None] | None = None,
) -> MultimodalSummary:
    """Writes pairs of text and image as `PREFIX.bin` and `PREFIX.idx`, a document each, in the order of the input.

    A document is the tokens of the text (mode 0), then the bytes of the image file as int32 (mode 1): see
    `image_to_item`. Each image is stored as it is, never decoded.
    All files appear at the end, or none; the same call on finished output leaves it alone, after comparing it with the
    texts and images of now. In memory are the images of `num_workers` + 1 pairs.

    Args:
        input_path: of JSON lines, or a table, with a text and the path of an image, from the file's folder on; or of a
            folder of pairs with one name, such as `cat.txt` and `cat.jpg`, taken in the order of their names.
        output_prefix: of the outputs; their folder must exist.
        tokenizer: from `load_tokenizer`.
        text_key, image_key: of text and path in each JSON object.
        append_eod: whether the tokenizer's `eod` ends each text that has tokens.
        pad_length: cut texts off at this many tokens, or fill them up to it with `eod`; needs `append_eod`.
        num_workers: threads that tokenise and read images; None for one per usable processor.
        skip_bad_lines: whether bad lines or pairs are set aside in `PREFIX.rejected.jsonl`.
        overwrite: replace a dataset that is there and holds something else; it stays whole until the new one is.
        read_limits: of what reading the input may take; a text in a file of its own is a record too.
        progress: called with the number of pairs done, from the calling thread.

    Raises:
        ConfigError: a setting is wrong.
        OutputExistsError: there is another dataset under the output prefix, and no `overwrite`.
        OutputBusyError: another process writes the same output.
        InputError: a line or pair is bad (no text, an image that is missing, empty or larger than int32 can count), or
            there is none at all.
        TokenizerError: there is no `eod` to append.
        StorageError: reading or writing failed.
    """
    started = time.monotonic()
    path, prefix = os.fspath(input_path), os.fspath(output_prefix)
    workers = number_of_workers(num_workers)
    _check_padding(pad_length, append_eod=append_eod)
    limits = read_limits or ReadLimits()
    encoder = _Encoder(
        tokenizer,
        eod=tokenizer.eod if append_eod else None,
        pad_length=pad_length,
        max_text_bytes=limits.max_record_bytes,
    )
    folder = os.path.isdir(path)
    pairs = _pairs_in_folder(path) if folder else _pairs_in_records(path, text_key, image_key, limits)
    rejected = RejectedLines(prefix, skip=skip_bad_lines)
    manifest = partial(
        _manifest,
        tokenizer=tokenizer,
        options={
            "text_key": None if folder else text_key,
            "image_key": None if folder else image_key,
            "append_eod": append_eod,
            "pad_length": pad_length,
            **limits.recorded(),
        },
        inputs=[input_record(path)],
        eod=tokenizer.eod if append_eod else None,
    )
    largest_token = -1
    num_documents = num_text_tokens = num_image_bytes = num_truncated = 0
    with (
        closing(rejected),
        closing(pairs),
        worker_threads(workers) as executor,
        IndexedDatasetBuilder(
            bin_path(prefix), dtype=np.int32, multimodal=True, checksums=True, overwrite=overwrite
        ) as builder,
    ):
        if not overwrite:
            _require_same_run(prefix, manifest)
        for found in in_order(executor, encoder, None, pairs, num_ahead=workers + 1):
            if isinstance(found, BadLine):
                rejected.add(found)
                continue
            builder.add_item(found.tokens, TEXT_MODE)
            builder.add_item(found.image, IMAGE_MODE)
            builder.end_document()
            num_documents += 1
            num_text_tokens += len(found.tokens)
            largest_token = max(largest_token, found.tokens.max(initial=-1).item())
            num_image_bytes += found.num_image_bytes
            num_truncated += found.truncated
            if progress is not None:
                progress(num_documents)
        if not num_documents:
            unit = "pair" if folder else "line"
            message = f"`{path}` holds no pairs: {rejected.count} bad {unit}s{rejected.first_reason}"
            raise InputError(message, hint="expected JSON lines, or a folder of texts and images with equal names")
        ledger = DocumentLedger(
            num_read=num_documents + rejected.count, num_kept=num_documents, num_rejected=rejected.count
        )

        def record(pair: PairFacts) -> Manifest:  # the bytes of images are no tokens
            return manifest(replace(pair, largest_token=None if largest_token < 0 else largest_token), ledger)

        pending = builder.prepare(idx_path(prefix), manifest=record)
        pending.beside, pending.replaced = rejected.files, [rejected_path(prefix)]
        was_complete = not overwrite and is_published(pending)
        if was_complete:
            for file in pending.beside:
                if not exists(file.path):
                    file.publish()
            pending.discard()
        else:
            builder.publish(pending)
    return MultimodalSummary(
        prefix=prefix,
        num_documents=num_documents,
        num_text_tokens=num_text_tokens,
        num_image_bytes=num_image_bytes,
        num_truncated=num_truncated,
        num_rejected=rejected.count,
        rejected_path=rejected.path,
        seconds=time.monotonic() - started,
        was_complete=was_complete,
    )


def _manifest(pair: PairFacts, ledger: DocumentLedger, **run: Any) -> Manifest:
    return manifest_of_run(pair, ledger=ledger, **run)


def _check_padding(pad_length: int | None, *, append_eod: bool) -> None:
    if pad_length is not None and checked_integer("pad_length", pad_length) < 1:
        message = f"expected a pad_length of at least 1, got {pad_length!r}"
        raise ConfigError(message)
    if pad_length is not None and not append_eod:
        message = "expected `append_eod` with `pad_length`, found none"
        raise ConfigError(message, hint="texts are filled up with the end-of-document token")


def _require_same_run(prefix: str, manifest: Callable[[PairFacts, DocumentLedger], Manifest]) -> None:
    """Checks, before the work, that what is there under a prefix, if anything, can be what this run makes.

    Raises:
        OutputExistsError: it cannot.
    """
    if (path := existing_path(prefix)) is None:
        return
    with suppress(DatasetFormatError, DatasetNotFoundError):
        found = manifest_of(IndexedDataset(prefix, multimodal=True))
        if found is not None and is_of_same_run(found, manifest(found.pair, found.ledger)):
            return
    raise exists_error(path)


class _Encoder:
    """Tokenises a text and reads its image; safe from several threads."""

    def __init__(
        self, tokenizer: TextTokenizer, *, eod: int | None, pad_length: int | None, max_text_bytes: int
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = tokenizer.vocab_size
        self._eod = eod
        self._pad_length = pad_length
        self._max_text_bytes = max_text_bytes

    def __call__(self, pair: _Pair | BadLine) -> _Encoded | BadLine:
        """Returns both sequences, or why there are none."""
        if isinstance(pair, BadLine):
            return pair
        try:
            text = _read_text(pair, self._max_text_bytes)
            item = image_to_item(image := _read_image(pair.image_path))
            tokens = self._tokenise(text)
        except InputError as error:
            return replace(pair.origin, reason=error.message, error=type(error))
        length = len(tokens)
        if tokens and self._eod is not None:
            wanted = length + 1 if self._pad_length is None else self._pad_length
            tokens = tokens[:wanted] + [self._eod] * (wanted - length)
        return _Encoded(
            tokens=np.array(tokens, dtype=np.int32),
            image=item,
            num_image_bytes=len(image),
            truncated=self._pad_length is not None and length > self._pad_length,
        )

    def _tokenise(self, text: str) -> list[int]:
        with refusals(f"tokenizer `{self._tokenizer.path}`"):
            tokens = list(self._tokenizer.tokenize(text))
        lengths = np.array([len(tokens)], dtype=np.int64)
        require_sound(Encoded(np.array(tokens, dtype=np.int64), lengths), num_texts=1, vocab_size=self._vocab_size)
        return tokens


def _read_text(pair: _Pair, max_bytes: int) -> str:
    if pair.text_path is None:
        assert pair.text is not None
        return pair.text
    try:
        with _opened(pair.text_path) as stream:
            data = stream.read(max_bytes + 1)
        text = data.decode("utf-8") if len(data) <= max_bytes else None
    except InputError as error:
        message = f"text `{pair.text_path}`: {error.message}"
        raise InputError(message) from error
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        message = f"cannot read the text `{pair.text_path}`: {reason}"
        raise InputError(message) from error
    if text is None:
        message = f"text `{pair.text_path}`: {too_long(max_bytes)}"
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


def _pairs_in_records(path: str, text_key: str, image_key: str, limits: ReadLimits) -> Generator[_Pair | BadLine]:
    folder = os.path.dirname(path)
    file = inspect_input(path, default_format="jsonl")
    with closing(open_within(whole_file(file), limits, block_bytes=_BLOCK_BYTES)) as reader:
        for block in reader.blocks():
            for record in records_of(block, loads=json.loads):  # `orjson` crashes if it is interrupted as it starts
                if not record.is_blank:
                    yield _pair(record.value, bad_line(block, record, ""), folder, text_key, image_key)


def _pair(record: Any, origin: BadLine, folder: str, text_key: str, image_key: str) -> _Pair | BadLine:
    if isinstance(record, UnusableLineError):
        return replace(origin, reason=str(record))
    if not isinstance(record, dict):
        return replace(origin, reason=f"expected an object, found {kind_of(record)}")
    for key in (text_key, image_key):
        if not isinstance(record.get(key), str):
            found = f"found {kind_of(record[key])}" if key in record else "found none"
            return replace(origin, reason=f"expected a string under {key!r}, {found}")
    return _Pair(origin=origin, text=record[text_key], image_path=os.path.join(folder, record[image_key]))


def _pairs_in_folder(folder: str) -> Generator[_Pair | BadLine]:
    with storage_errors("list", folder):
        names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    files: dict[str, list[str]] = defaultdict(list)
    for name in names:
        files[PurePath(name).stem].append(name)
    for number, stem in enumerate(sorted(files), 1):
        origin = BadLine(path=folder, unit="pair", line=number, reason="", data=os.fsencode(stem))
        texts = [name for name in files[stem] if PurePath(name).suffix == _TEXT_SUFFIX]
        images = [name for name in files[stem] if PurePath(name).suffix != _TEXT_SUFFIX]
        if len(texts) != 1 or len(images) != 1:
            reason = f"expected `{stem}{_TEXT_SUFFIX}` and one image of that name, found {', '.join(files[stem])}"
            yield replace(origin, reason=reason)
            continue
        text_path, image_path = (os.path.join(folder, name) for name in (*texts, *images))
        yield _Pair(origin=origin, text_path=text_path, image_path=image_path)
