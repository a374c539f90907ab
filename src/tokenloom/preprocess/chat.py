"""Conversations into a `.bin`/`.idx` pair and the roles beside it: tokenized once, packed at any length afterwards."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenloom.errors import InputError, OutputExistsError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import DType
from tokenloom.indexed.roles import PartKind, read_roles
from tokenloom.indexed.writing.outputs import existing_path
from tokenloom.inputs import InputSlice
from tokenloom.inputs.blocks import Block
from tokenloom.inputs.cut import whole_file
from tokenloom.inputs.detect import inspect_input
from tokenloom.inputs.reading import open_within
from tokenloom.inputs.record_format import SliceReader
from tokenloom.preprocess.bad_records import Isolating, rejected_path
from tokenloom.preprocess.chat_templates import TemplateSource, find_chat_template, first_texts
from tokenloom.preprocess.conversation_blocks import ConversationTokenizer, SpanEncoder, schema_of
from tokenloom.preprocess.document_tokens import DocumentTokens
from tokenloom.preprocess.job import run_job
from tokenloom.preprocess.plan import JobPlan, plan_job
from tokenloom.preprocess.recipe import Making, Recipe, input_record
from tokenloom.preprocess.schemas import Schema
from tokenloom.preprocess.settings import ChatSettings
from tokenloom.preprocess.sharded import JobProgress, Runner
from tokenloom.preprocess.summary import own_manifest
from tokenloom.preprocess.threads import worker_threads
from tokenloom.rendering.card import HasFacts
from tokenloom.setting_types import checked_output_prefix, checked_path
from tokenloom.storage.publishing import exists_error
from tokenloom.storage.resolve import exists
from tokenloom.storage.secrets import admit
from tokenloom.tokenizers.engines import choose_engine
from tokenloom.tokenizers.huggingface import HuggingFaceTokenizer, require_hugging_face
from tokenloom.tokenizers.load import load_tokenizer
from tokenloom.tokenizers.text_tokenizer import TextTokenizer

_BLOCK_BYTES = 256 << 10  # as the slow engines take
_REASON = "which tokens belong to an answer is told by their offsets, which other libraries do not give"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRecipe(Recipe):
    """The recipe for conversations; see `Recipe`.

    Attributes:
        schema: schema of the records, the same in all shards.
        template: what renders conversations; None for texts, which need no template.
        sample: texts of the beginning, by which engines are compared.
        stream: its reader, which has begun, where it can be read once only; None otherwise.
    """

    tokenizer: HuggingFaceTokenizer
    settings: ChatSettings
    schema: Schema
    template: TemplateSource | None
    sample: Sequence[str]
    stream: SliceReader | None

    has_roles = True
    threads_per_process = 4  # rendering is Python, and one thread at a time does it

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the tokens."""
        return np.dtype(DType.optimal_dtype(self.tokenizer.vocab_size))

    def options(self, _key: str, _split: str | None) -> dict[str, Any]:
        """Returns what the manifest says of how the dataset was made."""
        template = None
        if self.template is not None:
            sha256 = hashlib.sha256(self.template.source.encode()).hexdigest()
            template = {"name": self.template.name, "sha256": sha256}
        return {
            "schema": self.schema,
            "chat_template": template,
            "append_eod": "where it is not the last token already",
            **self.settings.recorded(),
            **self.settings.of_hashes(),
        }

    def of_shards(self) -> dict[str, Any]:
        """Returns what decides what a shard holds."""
        special_tokens = self.tokenizer.special_tokens_dict  # which templates may name
        return {"recipe": "conversations", "special_tokens": special_tokens, **self.options("", None)}

    def making(self, _first: InputSlice, *, num_workers: int) -> Making:
        """Returns what one process works with."""
        choice = choose_engine(self.settings.engine, self.tokenizer, self.sample)
        encoder = SpanEncoder(self.tokenizer, choice, num_workers=num_workers)
        template = None if self.template is None else self.template.compiled()
        work = ConversationTokenizer(
            template,
            self.schema,
            encoder,
            dtype=self.dtype,
            eod=self.tokenizer.eod,
            hash_texts=self.settings.document_hashes,
        )
        return Making(
            engine=choice.recorded,
            engine_reason=choice.reason,
            open=self._open,
            bundles=_one_by_one,
            work=Isolating(work),
        )

    def _open(self, slice_: InputSlice) -> SliceReader:
        return self.stream or open_within(slice_, self.settings, block_bytes=_BLOCK_BYTES)

    def nothing_found(self, inputs: str, *, num_blank: int, num_bad: int, first: str) -> InputError:
        """Returns the error for an input without conversations."""
        message = f"{inputs} holds no conversations: {num_blank} blank lines, {num_bad} bad lines{first}"
        return InputError(message, hint="expected one JSON object per line, or one conversation per row")


def _one_by_one(blocks: Iterable[Block]) -> Iterator[list[Block]]:
    for block in blocks:
        yield [block]
        del block  # the receiver's to drop


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSummary(HasFacts):
    """What a run did.

    Attributes:
        prefix: prefix of the pair and its roles.
        num_documents: lines or rows that hold conversations.
        num_sequences: conversations or texts.
        num_tokens: number of tokens of these, end-of-document tokens included.
        num_answer_tokens: tokens that the assistant says, or of plain text.
        num_blank_lines: lines of nothing but white space.
        num_rejected: bad lines, set aside in the file `rejected_path`, which is None if there were none.
        schema: schema of the records.
        template: template that rendered them.
        dtype: dtype of the tokens.
        engine, engine_reason: what tokenized, and why.
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

    def facts(self) -> dict[str, Any]:
        """Returns what was read and written; see `HasFacts`."""
        rejected = f"{self.num_rejected:,} bad records are set aside in {self.rejected_path}"
        return {
            "problems": [rejected] if self.num_rejected else [],
            "pair": self.prefix,
            "conversations": self.num_sequences,
            "documents": self.num_documents,
            "tokens": self.num_tokens,
            "tokens of answers": self.num_answer_tokens,
            "blank lines": self.num_blank_lines or None,
            "schema": self.schema,
            "template": self.template,
            "dtype": self.dtype,
            "engine": f"{self.engine}: {self.engine_reason}",
            "seconds": None if self.was_complete else self.seconds,
        }


def preprocess_chat(
    input_path: str | os.PathLike[str],
    output_prefix: str | os.PathLike[str],
    tokenizer: TextTokenizer | str | os.PathLike[str] | Any,
    settings: ChatSettings | None = None,
    *,
    num_processes: int | None = None,
    num_workers: int | None = None,
    runner: Runner | None = None,
    work_folder: str | os.PathLike[str] | None = None,
    restart: bool = False,
    overwrite: bool = False,
    progress: Callable[[JobProgress], None] | None = None,
) -> ChatSummary:
    """Tokenizes conversations into `PREFIX.bin`, `PREFIX.idx` and `PREFIX.roles`.

    A line of JSON or a row of a table becomes a document, each conversation in it a sequence. A conversation is
    rendered by the template and tokenized as a whole; a token belongs to the part of the text in which it ends. An
    end-of-document token is appended where it is not the last token already; it belongs to the last part. All files
    appear at the end, or none; the same call on finished output has nothing to do.

    This is a job as `preprocess_corpus` is: of shards, in `PREFIX.job`, which the same call goes on with after whatever
    ended an earlier one, and which processes and machines that share the folder share. The bytes depend on neither of
    these, nor on `num_workers` and `engine`. Memory: some 170 MB per process with two threads, and 20 bytes per
    conversation and 5 per part of one.

    Args:
        input_path: JSON lines (`.gz`, `.zst`, `.bz2` and `.xz` are decompressed), Parquet or Arrow.
        output_prefix: prefix of the outputs; their folder must exist.
        tokenizer: tokenizer of Hugging Face, from `load_tokenizer`.
        settings: see `ChatSettings`.
        num_processes: number of processes on this machine; None for one per four threads.
        num_workers, runner, work_folder, restart, progress: see `preprocess_corpus`.
        overwrite: replace a dataset that is there and was not made by this very call; it stays whole until the new one
            is.

    Raises:
        ConfigError: a setting is wrong, no schema fits the columns, or an unfinished job with other settings or inputs
            is in the folder.
        OutputExistsError: there is another dataset under the output prefix, and no `overwrite`.
        OutputBusyError: another process writes the same output.
        InputError: a line is bad, the file is damaged, or it holds no conversations.
        StuckRecordError: the template or the tokenizer does not come to an end with some of the records.
        TokenizerError: the tokenizer is not one of Hugging Face, there is no template or no end-of-document
            token, or the engine asked for cannot be used.
        WorkerError: processes keep dying.
        MissingExtraError: `jinja2` or `pyarrow` is needed and not installed.
        StorageError: reading or writing failed.
    """
    started = time.monotonic()
    path = admit(checked_path("input_path", input_path, example="such as `chat.jsonl`"))
    output_prefix = checked_output_prefix("output_prefix", output_prefix)
    file = inspect_input(path, default_format="jsonl")
    known = require_hugging_face(load_tokenizer(tokenizer), reason=_REASON)
    settings = settings or ChatSettings()
    inputs = (input_record(path),)
    reader = open_within(whole_file(file), settings, block_bytes=_BLOCK_BYTES)
    first = reader.first_block()
    if not file.is_stream:
        reader.close()
    schema = settings.schema or _schema_of(first)
    template = None if schema == "text" else find_chat_template(known, settings.chat_template)
    recipe = ConversationRecipe(
        settings=settings,
        tokenizer=known,
        document_tokens=DocumentTokens(eod=known.eod),
        inputs=inputs,
        schema=schema,
        template=template,
        sample=first_texts(first, template, schema=schema, timeout_seconds=settings.record_timeout_seconds),
        stream=reader if file.is_stream else None,
    )
    plan = plan_job(recipe, admit(os.fspath(output_prefix)), [file])
    if not overwrite:
        _require_same_bad_records(plan, skips=not settings.bad_records.allows_none)
    result = run_job(
        plan,
        num_processes=num_processes,
        num_workers=num_workers,
        runner=runner,
        work_folder=work_folder,
        restart=restart,
        overwrite=overwrite,
        makes_again=overwrite,
        progress=progress,
        started=started,
    )
    done = result.summary
    [dataset] = done.datasets
    return ChatSummary(
        prefix=dataset.prefix,
        num_documents=dataset.num_documents,
        num_sequences=dataset.num_sequences,
        num_tokens=dataset.num_tokens,
        num_answer_tokens=result.number("num_answer_tokens") if result.reports else _num_answer_tokens(dataset.prefix),
        num_blank_lines=done.num_blank_lines,
        num_rejected=done.num_rejected,
        rejected_path=next(iter(done.rejected_paths), None),
        schema=recipe.schema,
        template="none" if recipe.template is None else recipe.template.name,
        dtype=done.dtype,
        engine=done.engine,
        engine_reason=done.engine_reason,
        seconds=done.seconds,
        was_complete=done.was_complete,
    )


def _schema_of(first: Block | None) -> Schema:
    """Returns the schema of the first block."""
    with worker_threads(1) as executor:  # in this thread, an interruption would hit `orjson` as it starts
        found: Schema = executor.submit(schema_of, first).result()
    return found


def _require_same_bad_records(plan: JobPlan, *, skips: bool) -> None:
    """Checks that a dataset that such a call made before was made without bad records, or that these are still there.

    Raises:
        OutputExistsError: it was not, and they are not wanted, or gone.
    """
    [output] = plan.outputs
    if (path := existing_path(output.prefix)) is None:
        return
    found = own_manifest(plan, output, output.datasets[0])
    if found is None or not found.ledger.num_rejected:
        return
    if not skips:
        raise exists_error(path)
    if not exists(lost := rejected_path(output.prefix)):
        message = f"`{lost}` is gone, where the bad records are that `{path}` was made without"
        raise OutputExistsError(message, hint="make both again with `overwrite=True`")


def _num_answer_tokens(prefix: str) -> int:
    """Returns how many tokens of a pair the assistant says, or are of plain text."""
    roles = read_roles(IndexedDataset(prefix))
    starts = np.concatenate([np.zeros(1, dtype=np.int32), roles.stops])[: len(roles.stops)]
    starts[roles.offsets[:-1][np.diff(roles.offsets) > 0]] = 0
    return int((roles.stops - starts)[roles.kinds != PartKind.prompt].sum(dtype=np.int64))
