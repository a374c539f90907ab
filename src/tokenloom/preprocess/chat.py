"""Conversations into a `.bin`/`.idx` pair and the roles beside it: tokenised once, packed at any length afterwards."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import (
    ConfigError,
    DatasetFormatError,
    DatasetNotFoundError,
    InputError,
    OutputExistsError,
    RefusedTextError,
)
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import DType, bin_path, idx_path
from tokenloom.indexed.manifest.check import manifest_of
from tokenloom.indexed.manifest.contents import DocumentLedger, Manifest, PairFacts
from tokenloom.indexed.roles import PartKind, RolesWriter, read_roles
from tokenloom.indexed.writing.builder import IndexedDatasetBuilder
from tokenloom.indexed.writing.outputs import existing_path
from tokenloom.inputs import STDIN
from tokenloom.inputs.blocks import Block
from tokenloom.inputs.detect import inspect_input
from tokenloom.inputs.limits import ReadLimits
from tokenloom.inputs.reading import open_whole
from tokenloom.inputs.records import BadLine
from tokenloom.preprocess.chat_templates import load_chat_template
from tokenloom.preprocess.recording import input_record, is_of_same_run, manifest_of_run
from tokenloom.preprocess.refusals import Isolating, stuck_error
from tokenloom.preprocess.rejected import RejectedLines, rejected_path
from tokenloom.preprocess.rendering import RenderedBlock, Renderer, schema_of
from tokenloom.preprocess.schemas import SCHEMAS, Schema
from tokenloom.preprocess.spans import SpanEncoder
from tokenloom.preprocess.template_limits import RenderLimits
from tokenloom.preprocess.threads import StuckError, WorkerThreads, in_order, number_of_workers, worker_threads
from tokenloom.storage.publishing import exists_error
from tokenloom.storage.resolve import exists
from tokenloom.tokenizers.engines import EngineChoice, choose_engine, one_thread_per_call
from tokenloom.tokenizers.huggingface import HuggingFaceTokenizer, require_hugging_face
from tokenloom.tokenizers.kinds import EngineName
from tokenloom.tokenizers.text_tokenizer import TextTokenizer

_BLOCK_BYTES = 256 << 10  # as the slow engines take
_MOST_HEAD_BLOCKS = 100  # looked at for the schema

_REASON = "which tokens belong to an answer is told by their offsets, which other libraries do not give"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSummary:
    """What a run did.

    Attributes:
        prefix: of the pair and its roles.
        num_documents: lines or rows that hold conversations.
        num_sequences: conversations or texts.
        num_tokens: of these, end-of-document tokens included.
        num_answer_tokens: tokens that the assistant says, or of plain text.
        num_blank_lines: lines of nothing but white space.
        num_rejected: bad lines, set aside in the file `rejected_path`, which is None if there were none.
        schema: of the records.
        template: that rendered them.
        dtype: of the tokens.
        engine, engine_reason: what tokenised, and why.
        seconds: the run took.
        was_complete: whether there was nothing to do.
    """

    prefix: str
    num_documents: int
    num_sequences: int
    num_tokens: int
    num_answer_tokens: int
    num_blank_lines: int
    num_rejected: int
    rejected_path: str | None
    schema: str
    template: str
    dtype: str
    engine: str
    engine_reason: str
    seconds: float
    was_complete: bool = False


def preprocess_chat(
    input_path: str | os.PathLike[str],
    output_prefix: str | os.PathLike[str],
    tokenizer: TextTokenizer,
    *,
    chat_template: str | None = None,
    schema: Schema | None = None,
    num_workers: int | None = None,
    engine: EngineName = "auto",
    skip_bad_lines: bool = False,
    overwrite: bool = False,
    render_limits: RenderLimits | None = None,
    read_limits: ReadLimits | None = None,
    record_timeout_seconds: float = 600.0,
    progress: Callable[[int, int, int], None] | None = None,
) -> ChatSummary:
    """Tokenises conversations into `PREFIX.bin`, `PREFIX.idx` and `PREFIX.roles`.

    A line of JSON or a row of a table becomes a document, each conversation in it a sequence. A conversation is
    rendered by the template and tokenised as a whole; a token belongs to the part of the text in which it ends. An
    end-of-document token is appended where it is not the last token already; it belongs to the last part. All files
    appear at the end, or none; the bytes do not depend on `num_workers` or `engine`. The same call on finished output
    has nothing to do. Memory:
    some 170 MB with two threads, and 20 bytes per conversation and 5 per part of one.

    Args:
        input_path: JSON lines (`.gz`, `.zst`, `.bz2` and `.xz` are decompressed), Parquet or Arrow.
        output_prefix: of the outputs; their folder must exist.
        tokenizer: from `load_tokenizer`, of Hugging Face.
        chat_template: see `load_chat_template`; not used for texts.
        schema: of the records; None to tell it from their columns.
        num_workers: threads that tokenise; None for one per usable processor.
        engine: `auto` takes `gigatoken` if it gives the same ids, else `tokenizers`, and says why in the summary.
        skip_bad_lines: whether lines and rows without conversations are set aside in `PREFIX.rejected.jsonl`.
        overwrite: replace a dataset that is there and was not made by this very call; it stays whole until the new one
            is.
        render_limits: of what the template may do for one conversation: a record for which it does more is a bad one.
        read_limits: of what reading the input may take.
        record_timeout_seconds: that a thread may take for the records it is given at once.
        progress: called often with the bytes read, of how many, and the tokens so far.

    Raises:
        ConfigError: a setting is wrong, or no schema fits the columns.
        OutputExistsError: there is another dataset under the output prefix, and no `overwrite`.
        OutputBusyError: another process writes the same output.
        InputError: a line is bad, the file is damaged, or it holds no conversations.
        StuckRecordError: the tokenizer does not come to an end with some of the records.
        TokenizerError: the tokenizer is not one of Hugging Face, there is no template or no end-of-document
            token, or the engine asked for cannot be used.
        MissingExtraError: `jinja2` or `pyarrow` is needed and not installed.
        StorageError: reading or writing failed.
    """
    started = time.monotonic()
    path, prefix = os.fspath(input_path), os.fspath(output_prefix)
    workers = number_of_workers(num_workers)
    if schema is not None and schema not in SCHEMAS:
        message = f"expected a schema out of {', '.join(SCHEMAS)}, got {schema!r}"
        raise ConfigError(message)
    tokenizer = require_hugging_face(tokenizer, reason=_REASON)
    eod = tokenizer.eod
    dtype = np.dtype(DType.optimal_dtype(tokenizer.vocab_size))
    limits = read_limits or ReadLimits()
    file = inspect_input(path, default_format="jsonl")
    with (
        closing(open_whole(file, limits, block_bytes=_BLOCK_BYTES)) as reader,
        one_thread_per_call(),
        worker_threads(workers) as executor,
        _Outputs(path, prefix, tokenizer, dtype, skip_bad_lines=skip_bad_lines, overwrite=overwrite) as outputs,
    ):
        blocks = reader.blocks()
        head = _up_to_first_readable(blocks)
        first = head[-1] if head else None
        if schema is None:  # not in this thread: an interruption would hit `orjson` as it starts
            schema = executor.submit(schema_of, first).result()
        template = None if schema == "text" else load_chat_template(tokenizer, chat_template, limits=render_limits)
        options: dict[str, Any] = {
            "schema": schema,
            "chat_template": None if template is None else {"name": template.name, "sha256": _sha256(template.source)},
            "append_eod": "where it is not the last token already",
            **limits.recorded(),
        }
        if render_limits not in (None, RenderLimits()):  # which decide what is a bad record
            options["render_limits"] = asdict(render_limits)
        template_name = "none" if template is None else template.name
        if (found := outputs.finished(tokenizer, options=options)) is not None:
            return _finished_summary(*found, schema=schema, template=template_name, seconds=time.monotonic() - started)
        render = Renderer(template, schema=schema)
        sample = executor.submit(render.texts, first).result()
        choice = executor.submit(choose_engine, engine, tokenizer, sample).result()
        encoder = SpanEncoder(tokenizer, choice, num_workers=workers)
        tokeniser = _ConversationTokeniser(render, encoder, dtype=dtype, eod=eod)
        tokenise = Isolating(tokeniser, tokeniser.rejected)
        bundles = ([block] for block in chain(head, blocks))
        for made in _ended(executor, tokenise, bundles, num_ahead=workers + 1, seconds=record_timeout_seconds):
            for block in made:
                outputs.write(block)
            if progress is not None:
                progress(reader.position, reader.num_bytes, outputs.num_tokens)
        outputs.publish(tokenizer, choice, options=options)
    return outputs.summary(choice, schema=schema, template=template_name, seconds=time.monotonic() - started)


def _up_to_first_readable(blocks: Iterator[Block]) -> list[Block]:
    """Returns the first blocks, up to one that is not the beginning of a record that is too long."""
    head: list[Block] = []
    for block in blocks:
        head.append(block)
        if not block.too_long or len(head) == _MOST_HEAD_BLOCKS:
            break
    return head


def _finished_summary(
    dataset: IndexedDataset, manifest: Manifest, *, schema: str, template: str, seconds: float
) -> ChatSummary:
    """Returns what an earlier call did, which was the same."""
    roles, ledger = read_roles(dataset), manifest.ledger
    prefix = dataset.path_prefix
    starts = np.concatenate([np.zeros(1, dtype=np.int32), roles.stops])[: len(roles.stops)]
    starts[roles.offsets[:-1][np.diff(roles.offsets) > 0]] = 0
    return ChatSummary(
        prefix=prefix,
        num_documents=dataset.num_documents,
        num_sequences=len(dataset),
        num_tokens=dataset.num_tokens,
        num_answer_tokens=int((roles.stops - starts)[roles.kinds != PartKind.prompt].sum(dtype=np.int64)),
        num_blank_lines=ledger.num_blank,
        num_rejected=ledger.num_rejected,
        rejected_path=rejected_path(prefix) if ledger.num_rejected else None,
        schema=schema,
        template=template,
        dtype=dataset.dtype.name,
        engine=manifest.engine or "unknown",
        engine_reason="as the manifest tells",
        seconds=seconds,
        was_complete=True,
    )


def _ended(
    executor: WorkerThreads,
    work: Isolating[_ChatBlock],
    bundles: Iterator[list[Block]],
    *,
    num_ahead: int,
    seconds: float,
) -> Iterator[list[_ChatBlock]]:
    """Yields what becomes of blocks, in order; raises StuckRecordError where that takes too long."""
    try:
        yield from in_order(executor, work, None, bundles, num_ahead=num_ahead, timeout_seconds=seconds)
    except StuckError as error:
        hint = "its expression may need exponential time for one of these texts: leave that out, or allow more time"
        raise stuck_error(error.given, seconds, hint=hint) from error


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChatBlock:
    """What came out of a block of lines.

    Attributes:
        tokens: of all sequences, back to back.
        lengths: int32[num_sequences].
        document_ends: int64[num_documents], the number of sequences before each document's end.
        part_counts: int64[num_sequences].
        part_stops, part_kinds: int32 and uint8 [sum(part_counts)].
        num_answer_tokens: tokens of the parts that are no prompts.
        num_blank_lines: left out.
        bad_lines: likewise.
    """

    tokens: NDArray[Any]
    lengths: NDArray[np.int32]
    document_ends: NDArray[np.int64]
    part_counts: NDArray[np.int64]
    part_stops: NDArray[np.int32]
    part_kinds: NDArray[np.uint8]
    num_answer_tokens: int
    num_blank_lines: int
    bad_lines: list[BadLine]


class _ConversationTokeniser:
    """Turns some blocks into arrays; safe from several threads."""

    def __init__(self, render: Renderer, encoder: SpanEncoder, *, dtype: np.dtype[Any], eod: int) -> None:
        self._render = render
        self._encoder = encoder
        self._dtype = dtype
        self._eod = eod

    def __call__(self, bundle: Sequence[Block]) -> _ChatBlock:
        [block] = bundle
        return self._tokenised(self._render(block), number=block.first_record)

    def rejected(self, bad_line: BadLine) -> _ChatBlock:
        """Returns what comes out of a block with nothing but a bad record."""
        return self._tokenised(
            RenderedBlock(sequences=[], owners=[], num_documents=0, num_blank_lines=0, bad_lines=[bad_line]), number=0
        )

    def _tokenised(self, rendered: RenderedBlock, *, number: int) -> _ChatBlock:
        encoded = self._encoder.encode([sequence.parts for sequence in rendered.sequences], number=number)
        tokens, lengths, part_stops = encoded.tokens, encoded.lengths, encoded.part_stops
        if not lengths.all():  # a lone end of a document would be trained on as somebody's answer
            message = "no token comes of the conversation or text"
            raise RefusedTextError(message)
        part_counts = np.array([len(sequence.parts) for sequence in rendered.sequences], dtype=np.int64)
        kinds = np.array([kind for sequence in rendered.sequences for kind in sequence.kinds], dtype=np.uint8)
        last_part = np.cumsum(part_counts) - 1

        # The end-of-document token joins the last part.
        ends = np.cumsum(lengths)
        open_ended = tokens[ends - 1] != self._eod
        tokens = np.insert(tokens, ends[open_ended], self._eod)
        lengths = lengths + open_ended
        part_stops[last_part] = lengths

        part_starts = np.concatenate([np.zeros(1, dtype=np.int64), part_stops])[: len(part_stops)]
        part_starts[last_part - part_counts + 1] = 0
        kept = part_stops > part_starts  # a part may come to no token of its own
        owner = np.repeat(np.arange(len(lengths)), part_counts)
        return _ChatBlock(
            tokens=tokens.astype(self._dtype),
            lengths=lengths.astype(np.int32),
            document_ends=np.searchsorted(
                np.array(rendered.owners, dtype=np.int64), np.arange(rendered.num_documents), side="right"
            ),
            part_counts=np.bincount(owner[kept], minlength=len(lengths)).astype(np.int64),
            part_stops=part_stops[kept].astype(np.int32),
            part_kinds=kinds[kept],
            num_answer_tokens=int((part_stops - part_starts)[kinds != PartKind.prompt].sum()),
            num_blank_lines=rendered.num_blank_lines,
            bad_lines=rendered.bad_lines,
        )


class _Outputs:
    """The files of a run, which appear together or not at all."""

    def __init__(
        self,
        input_path: str,
        prefix: str,
        tokenizer: HuggingFaceTokenizer,
        dtype: np.dtype[Any],
        *,
        skip_bad_lines: bool,
        overwrite: bool,
    ) -> None:
        self._skips = skip_bad_lines
        self._overwrite = overwrite
        self._input_path = input_path
        self._prefix = prefix
        self._dtype = dtype
        self._roles = RolesWriter(prefix, tokenizer_sha256=tokenizer.sha256)
        self._rejected = RejectedLines(prefix, skip=skip_bad_lines)
        self._inputs = [input_record(input_path)]  # as it is before it is read
        self._stack = ExitStack()
        self.num_tokens = 0
        self.num_answer_tokens = 0
        self.num_documents = 0
        self.num_blank_lines = 0

    def __enter__(self) -> _Outputs:
        self._builder = self._stack.enter_context(
            IndexedDatasetBuilder(bin_path(self._prefix), dtype=self._dtype, checksums=True, overwrite=self._overwrite)
        )
        return self

    def finished(
        self, tokenizer: HuggingFaceTokenizer, *, options: Mapping[str, Any]
    ) -> tuple[IndexedDataset, Manifest] | None:
        """Returns the dataset that an earlier run of this very kind made; None if there is none.

        Raises:
            OutputExistsError: something else is there, and is not to be replaced.
        """
        if self._overwrite or (path := existing_path(self._prefix)) is None:
            return None
        with suppress(DatasetFormatError, DatasetNotFoundError):
            dataset = IndexedDataset(self._prefix)
            found = manifest_of(dataset)
            if found is not None and self._input_path != STDIN:
                expected = self._manifest(
                    found.pair, tokenizer=tokenizer, options=options, ledger=found.ledger, engine=found.engine
                )
                if is_of_same_run(found, expected) and (self._skips or not found.ledger.num_rejected):
                    if found.ledger.num_rejected and not exists(lost := rejected_path(self._prefix)):
                        message = f"`{lost}` is gone, where the bad records are that `{path}` was made without"
                        raise OutputExistsError(message, hint="make both again: `--overwrite`, `overwrite=True`")
                    return dataset, found
        raise exists_error(path)

    def _manifest(
        self,
        pair: PairFacts,
        *,
        tokenizer: HuggingFaceTokenizer,
        options: Mapping[str, Any],
        ledger: DocumentLedger,
        engine: str | None,
    ) -> Manifest:
        return manifest_of_run(
            pair,
            tokenizer=tokenizer,
            options=options,
            ledger=ledger,
            inputs=self._inputs,
            engine=engine,
            eod=tokenizer.eod,
        )

    def __exit__(self, *_: object) -> None:
        self._rejected.close()
        self._stack.close()

    def write(self, block: _ChatBlock) -> None:
        """Appends the conversations of a block, and its bad lines to those set aside."""
        if len(block.document_ends):
            self._builder.append_block(block.tokens, block.lengths, document_ends=block.document_ends)
            self._roles.append(block.part_counts, block.part_stops, block.part_kinds, lengths=block.lengths)
        self.num_tokens += len(block.tokens)
        self.num_answer_tokens += block.num_answer_tokens
        self.num_documents += len(block.document_ends)
        self.num_blank_lines += block.num_blank_lines
        for bad_line in block.bad_lines:
            self._rejected.add(bad_line)

    def publish(self, tokenizer: HuggingFaceTokenizer, choice: EngineChoice, *, options: Mapping[str, Any]) -> None:
        """Makes the files appear, all or none."""
        if not self.num_documents:
            details = f"{self.num_blank_lines} blank lines, {self._rejected.count} bad lines"
            message = f"`{self._input_path}` holds no conversations: {details}{self._rejected.first_reason}"
            raise InputError(message, hint="expected one JSON object per line, or one conversation per row")
        ledger = DocumentLedger(
            num_read=self.num_documents + self.num_blank_lines + self._rejected.count,
            num_kept=self.num_documents,
            num_rejected=self._rejected.count,
            num_blank=self.num_blank_lines,
        )
        record = partial(self._manifest, tokenizer=tokenizer, options=options, ledger=ledger, engine=choice.name)
        pending = self._builder.prepare(idx_path(self._prefix), manifest=record, roles=self._roles)
        pending.beside, pending.replaced = self._rejected.files, [rejected_path(self._prefix)]
        self._builder.publish(pending)

    def summary(self, choice: EngineChoice, *, schema: str, template: str, seconds: float) -> ChatSummary:
        """Returns the numbers of the run."""
        return ChatSummary(
            prefix=self._prefix,
            num_documents=self.num_documents,
            num_sequences=self._builder.num_sequences,
            num_tokens=self.num_tokens,
            num_answer_tokens=self.num_answer_tokens,
            num_blank_lines=self.num_blank_lines,
            num_rejected=self._rejected.count,
            rejected_path=self._rejected.path,
            schema=schema,
            template=template,
            dtype=self._dtype.name,
            engine=choice.name,
            engine_reason=choice.reason,
            seconds=seconds,
        )
