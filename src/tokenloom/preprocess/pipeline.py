"""JSON lines into `.bin`/`.idx` pairs: one reader, threads that tokenise, one writer that keeps the order.

Threads suffice because nearly all the time is spent in native code that lets others run; they share memory, so that
blocks are never copied between processes, and the whole run ends with its process.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass

import numpy as np

from tokenloom.errors import ConfigError, InputError
from tokenloom.indexed.builder import IndexedDatasetBuilder
from tokenloom.indexed.layout import DType, bin_path, idx_path
from tokenloom.preprocess.blocks import BlockTokeniser, TokenisedBlock
from tokenloom.preprocess.engines import EngineChoice, EngineName, choose_engine, one_thread_per_call
from tokenloom.preprocess.inputs import InputFormat
from tokenloom.preprocess.inputs.blocks import Block
from tokenloom.preprocess.inputs.cut import whole_file
from tokenloom.preprocess.inputs.detect import inspect_input
from tokenloom.preprocess.inputs.reading import open_slice
from tokenloom.preprocess.parsing import parse_block
from tokenloom.preprocess.rejected import RejectedLines
from tokenloom.preprocess.threads import in_order, worker_threads
from tokenloom.preprocess.tokenizers import HuggingFaceTokenizer
from tokenloom.storage.resolve import remove

_LOGGER = logging.getLogger(__name__)
_FIRST_BLOCK_BYTES = 512 << 10
_MAX_BLOCK_BYTES = 64 << 20
# `tokenizers` needs some 100 ms for a block, so that an interruption need not wait for long.
_BLOCK_BYTES = {"gigatoken": 4 << 20, "tokenizers": 256 << 10}


@dataclass(frozen=True, slots=True, kw_only=True)
class PreprocessedKey:
    """The dataset that the texts under one key became."""

    key: str
    prefix: str
    num_sequences: int
    num_tokens: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreprocessSummary:
    """What a run did.

    Attributes:
        outputs: one dataset per key.
        num_documents: in each dataset, those without tokens included.
        num_blank_lines: lines of nothing but white space.
        num_rejected: bad lines, set aside in the file `rejected_path`, which is None if there were none.
        num_text_bytes: read, after decompression.
        dtype: of the tokens.
        engine, engine_reason: what tokenised, and why.
        seconds: the run took.
    """

    outputs: tuple[PreprocessedKey, ...]
    num_documents: int
    num_blank_lines: int
    num_rejected: int
    rejected_path: str | None
    num_text_bytes: int
    dtype: str
    engine: str
    engine_reason: str
    seconds: float

    @property
    def num_tokens(self) -> int:
        """Tokens written, over all keys."""
        return sum(output.num_tokens for output in self.outputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreprocessProgress:
    """How far a run is: bytes of the file read and of all, compressed as they may be; text bytes and tokens so far."""

    num_file_bytes: int
    total_file_bytes: int
    num_text_bytes: int
    num_tokens: int


def preprocess_jsonl(
    input_path: str | os.PathLike[str],
    output_prefix: str | os.PathLike[str],
    tokenizer: HuggingFaceTokenizer,
    *,
    input_format: InputFormat | None = "jsonl",
    keys: Sequence[str] = ("text",),
    append_eod: bool = False,
    num_workers: int | None = None,
    engine: EngineName = "auto",
    skip_bad_lines: bool = False,
    block_bytes: int | None = None,
    progress: Callable[[PreprocessProgress], None] | None = None,
) -> PreprocessSummary:
    """Tokenises a file of JSON lines into `PREFIX_KEY_document.bin` and `.idx` for each key.

    Each line is an object; a value is a string, or an array of strings: a document of several sequences. The order of
    the documents is kept, and the bytes written depend on neither `num_workers`, `block_bytes` nor `engine`. A document
    that comes to no tokens stays, empty. All outputs appear at the end, or none. Memory: some 120 MB and 60 MB per
    worker, more (measured: 120 MB and 190 MB) for text in which nearly all words are new, whatever the size of the
    file; besides, 5 times the longest line with `gigatoken`, and 120 times with `tokenizers`.

    Args:
        input_path: of the file; `.gz`, `.zst`, `.bz2` and `.xz` are decompressed.
        output_prefix: of the outputs; their folder must exist.
        tokenizer: from `load_tokenizer`.
        input_format: of its records; None to tell, see `inspect_input`.
        keys: of the texts; `meta.text` is `text` in the object under `meta`.
        append_eod: whether the tokenizer's `eod` ends each document that has tokens.
        num_workers: threads that tokenise; None for one per usable processor.
        engine: `auto` takes `gigatoken` if it gives the same ids, else `tokenizers`, and says why in the summary.
        skip_bad_lines: whether lines without a document are set aside in `PREFIX.rejected.jsonl`.
        block_bytes: of text that a thread takes at once; None for what measured best.
        progress: called often, from the calling thread.

    Raises:
        ConfigError: a setting is wrong.
        InputError: a line is bad, the file is damaged, or it holds no documents.
        TokenizerError: no `eod` to append, or the engine asked for cannot be used.
        StorageError: reading or writing failed.
    """
    started = time.monotonic()
    path, prefix = os.fspath(input_path), os.fspath(output_prefix)
    workers = len(os.sched_getaffinity(0)) if num_workers is None else num_workers
    _check_settings(keys, workers, block_bytes)
    eod = tokenizer.eod if append_eod else None
    dtype = np.dtype(DType.optimal_dtype(tokenizer.vocab_size))
    first_bytes = _FIRST_BLOCK_BYTES if block_bytes is None else min(block_bytes, _FIRST_BLOCK_BYTES)
    slice_ = whole_file(inspect_input(path, input_format=input_format))
    with (
        closing(open_slice(slice_, block_bytes=first_bytes, keys=keys)) as reader,
        one_thread_per_call(),
        worker_threads(workers) as executor,
        _Outputs(path, prefix, keys, dtype, skip_bad_lines=skip_bad_lines) as outputs,
    ):
        blocks = reader.blocks()
        first = next(blocks, None)
        # Not in this thread, where an interruption is raised: `orjson` and `gigatoken` crash on one as they start.
        choice = executor.submit(_choose_engine, engine, tokenizer, first, keys).result()
        if engine == "auto" and choice.name == "tokenizers":
            _LOGGER.warning("tokenising with `tokenizers`, the slow engine: %s", choice.reason)
        reader.block_bytes = _BLOCK_BYTES[choice.name] if block_bytes is None else block_bytes
        tokenise = BlockTokeniser(tokenizer, choice, keys=keys, dtype=dtype, eod=eod, num_workers=workers)
        for block in in_order(executor, tokenise, first, blocks, num_ahead=workers + 1):
            outputs.write(block)
            if progress is not None:
                progress(
                    PreprocessProgress(
                        num_file_bytes=reader.position,
                        total_file_bytes=reader.num_bytes,
                        num_text_bytes=reader.num_text_bytes,
                        num_tokens=sum(outputs.num_tokens),
                    )
                )
        outputs.publish()
        return outputs.summary(choice, num_text_bytes=reader.num_text_bytes, seconds=time.monotonic() - started)


def _check_settings(keys: Sequence[str], workers: int, block_bytes: int | None) -> None:
    if not keys or len(set(keys)) != len(keys):
        message = f"expected distinct keys, at least one, got {list(keys)!r}"
        raise ConfigError(message)
    if workers < 1:
        message = f"expected at least 1 worker, got {workers!r}"
        raise ConfigError(message)
    if block_bytes is not None and not 1 <= block_bytes <= _MAX_BLOCK_BYTES:
        message = f"expected block_bytes from 1 to {_MAX_BLOCK_BYTES}, got {block_bytes!r}"
        raise ConfigError(message)


def _choose_engine(
    engine: EngineName, tokenizer: HuggingFaceTokenizer, block: Block | None, keys: Sequence[str]
) -> EngineChoice:
    """Returns the engine, checked on the texts of a block; bad lines are left to the run itself."""
    columns = [] if block is None else parse_block(block, keys).columns
    return choose_engine(engine, tokenizer, [text for texts in columns for text in texts.texts])


class _Outputs:
    """The files of a run, which appear together or not at all."""

    def __init__(
        self, input_path: str, prefix: str, keys: Sequence[str], dtype: np.dtype[np.generic], *, skip_bad_lines: bool
    ) -> None:
        self._input_path = input_path
        self._keys = keys
        self._dtype = dtype
        self._prefixes = [f"{prefix}_{key}_document" for key in keys]
        self._stack = ExitStack()
        self._builders: list[IndexedDatasetBuilder] = []
        self._rejected = RejectedLines(prefix, skip=skip_bad_lines)
        self.num_tokens = [0] * len(keys)
        self.num_documents = 0
        self.num_blank_lines = 0

    def __enter__(self) -> _Outputs:
        with ExitStack() as stack:  # undoes what was opened if one fails
            for prefix in self._prefixes:
                self._builders.append(stack.enter_context(IndexedDatasetBuilder(bin_path(prefix), dtype=self._dtype)))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._rejected.close()
        self._stack.close()

    def write(self, block: TokenisedBlock) -> None:
        """Appends the documents of a block, and its bad lines to those set aside."""
        for index, (builder, column) in enumerate(zip(self._builders, block.columns, strict=True)):
            if block.num_documents:
                builder.append_block(column.tokens, column.lengths, document_ends=column.document_ends)
            self.num_tokens[index] += len(column.tokens)
        self.num_documents += block.num_documents
        self.num_blank_lines += block.num_blank_lines
        for bad_line in block.bad_lines:
            self._rejected.add(bad_line)

    def publish(self) -> None:
        """Makes the files appear; when one of them cannot, those that did are removed."""
        if not self.num_documents:
            details = f"{self.num_blank_lines} blank lines, {self._rejected.count} bad lines"
            message = f"`{self._input_path}` holds no documents: {details}{self._rejected.first_reason}"
            raise InputError(message, hint="expected one JSON object per line")
        published: list[str] = []
        try:
            for builder, prefix in zip(self._builders, self._prefixes, strict=True):
                builder.finalize(idx_path(prefix))
                published.append(prefix)
            self._rejected.publish()
        except BaseException:
            for prefix in published:
                for name in (idx_path(prefix), bin_path(prefix)):
                    with suppress(OSError):
                        remove(name)
            raise

    def summary(self, choice: EngineChoice, *, num_text_bytes: int, seconds: float) -> PreprocessSummary:
        """Returns the numbers of the run."""
        return PreprocessSummary(
            outputs=tuple(
                PreprocessedKey(
                    key=key,
                    prefix=prefix,
                    num_sequences=builder.num_sequences,
                    num_tokens=num_tokens,
                    num_bytes=num_tokens * self._dtype.itemsize,
                )
                for key, prefix, builder, num_tokens in zip(
                    self._keys, self._prefixes, self._builders, self.num_tokens, strict=True
                )
            ),
            num_documents=self.num_documents,
            num_blank_lines=self.num_blank_lines,
            num_rejected=self._rejected.count,
            rejected_path=self._rejected.path,
            num_text_bytes=num_text_bytes,
            dtype=self._dtype.name,
            engine=choice.name,
            engine_reason=choice.reason,
            seconds=seconds,
        )
