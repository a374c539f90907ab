"""Tokenizes conversations into a pair with a roles column; datasets pack these conversations into samples."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError, RefusedTextError, StuckRecordError
from tokenloom.indexed.roles import PartKind, role_bytes
from tokenloom.inputs import InputSlice
from tokenloom.inputs.find import inspect_input, whole_file
from tokenloom.inputs.record_format import SliceReader, open_slice
from tokenloom.inputs.records import Block, Texts, UnusableLineError, records_of, refuse_record
from tokenloom.preprocess.blocks import Column, DocumentTokens, TokenizedBlock, convert_records, group_blocks
from tokenloom.preprocess.chat_templates import ChatML, JinjaTemplate, Part, TemplateSource, find_chat_template
from tokenloom.preprocess.job import CorpusSummary, JobArguments, run_job
from tokenloom.preprocess.job_plan import BlockPipeline, Recipe, plan_job
from tokenloom.preprocess.schemas import Schema, detect_schema, read_record
from tokenloom.preprocess.selection import hash_documents
from tokenloom.preprocess.settings import ChatSettings
from tokenloom.preprocess.shard import WorkerThreads
from tokenloom.setting_types import checked_output_prefix, checked_path
from tokenloom.storage.json_files import parse_json
from tokenloom.storage.secrets import admit
from tokenloom.tokenizers.engines import EngineChoice, EnginePool, choose_engine
from tokenloom.tokenizers.huggingface import HuggingFaceTokenizer, require_hugging_face
from tokenloom.tokenizers.load import load_tokenizer
from tokenloom.tokenizers.text_tokenizer import Encoded, TextTokenizer, refusals, require_sound

_BLOCK_BYTES = 256 << 10  # the block size of the slow engines
_REASON = "only `tokenizers` returns token offsets, which locate the answers"


@dataclass(frozen=True, slots=True)
class EncodedParts(Encoded):
    """The token ids of texts that consist of parts.

    `part_stops`, int64[num_parts], has the end of each part, as a number of tokens from the start of the text.
    """

    part_stops: NDArray[np.int64]


class SpanEncoder:
    """A thread-safe encoder of texts that consist of parts, for `num_workers` threads.

    A text is encoded as a whole; a token belongs to the part in which it ends. The fast engine returns no offsets, but
    the tokens of a byte-level tokenizer spell the bytes of the text, so the cumulative byte lengths of the tokens are
    the offsets. If the byte lengths do not add up to the length of a text (because the tokenizer normalizes), the
    library `tokenizers` encodes all texts again and returns offsets.
    """

    def __init__(self, tokenizer: HuggingFaceTokenizer, choice: EngineChoice, *, num_workers: int) -> None:
        self._vocab_size = tokenizer.vocab_size
        self._with_offsets = tokenizer.with_whole_offsets()
        self._token_bytes = None if choice.name == tokenizer.engine_name else token_bytes(tokenizer)
        self._engines = EnginePool(tokenizer, choice, num_workers=num_workers)

    def encode(self, texts: Sequence[Sequence[str]], *, number: int) -> EncodedParts:
        """Encodes texts, each a list of parts; `number`, any integer, selects the text to compare between engines."""
        if self._token_bytes is not None:
            encoded = self._encode_by_bytes(texts, self._token_bytes, number)
            if encoded is not None:
                return encoded
        return self._encode_with_offsets(texts)

    def _encode_by_bytes(
        self, texts: Sequence[Sequence[str]], lengths_in_bytes: NDArray[np.int64], number: int
    ) -> EncodedParts | None:
        """Encodes with the chosen engine; returns None if the tokens do not spell the bytes of the texts."""
        part_bytes = np.array([len(part.encode()) for parts in texts for part in parts], dtype=np.int64)
        part_ends = np.cumsum(part_bytes)
        counts = np.array([len(parts) for parts in texts], dtype=np.int64)
        text_ends = np.concatenate([np.zeros(1, dtype=np.int64), part_ends])[np.cumsum(counts)]
        whole = ["".join(parts) for parts in texts]
        encoded = self._engines.encode(whole, num_bytes=int(part_bytes.sum()), number=number)
        token_ends = np.cumsum(lengths_in_bytes[encoded.tokens])
        stops = np.cumsum(encoded.lengths)
        if not np.array_equal(np.concatenate([np.zeros(1, dtype=np.int64), token_ends])[stops], text_ends):
            return None
        part_stops = np.searchsorted(token_ends, part_ends, side="right") - np.repeat(stops - encoded.lengths, counts)
        return EncodedParts(encoded.tokens, encoded.lengths, part_stops)

    def _encode_with_offsets(self, texts: Sequence[Sequence[str]]) -> EncodedParts:
        with refusals("`tokenizers`"):
            encodings = self._with_offsets.encode_batch(["".join(parts) for parts in texts], add_special_tokens=False)
        tokens: list[NDArray[Any]] = [np.empty(0, dtype=np.uint32)]
        part_stops: list[NDArray[Any]] = [np.empty(0, dtype=np.int64)]
        for parts, encoding in zip(texts, encodings, strict=True):
            tokens.append(np.array(encoding.ids, dtype=np.uint32))
            ends = np.array([end for _, end in encoding.offsets], dtype=np.int64)
            part_stops.append(np.searchsorted(ends, list(accumulate(map(len, parts))), side="right"))
        encoded = Encoded(np.concatenate(tokens), np.array([len(row) for row in tokens[1:]], dtype=np.int64))
        require_sound(encoded, num_texts=len(texts), vocab_size=self._vocab_size)
        return EncodedParts(encoded.tokens, encoded.lengths, np.concatenate(part_stops))


def token_bytes(tokenizer: HuggingFaceTokenizer) -> NDArray[np.int64] | None:
    """Returns the length in bytes, int64[vocab_size], of each token; None if the tokenizer is not byte-level."""
    if (parse_json(tokenizer.data, most_bytes=len(tokenizer.data)).get("decoder") or {}).get("type") != "ByteLevel":
        return None
    lengths = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    for token, number in tokenizer.backend.get_vocab(with_added_tokens=False).items():
        lengths[number] = len(token)  # one character stands for each byte
    for number, added in tokenizer.backend.get_added_tokens_decoder().items():
        lengths[number] = len(added.content.encode())
    return lengths


def _schema_of(block: Block | None) -> Schema:
    """Returns the schema of the first record that fits a schema, or `messages` if no record is an object."""
    failure: ConfigError | None = None
    for record in () if block is None else records_of(block):
        if type(record.value) is dict:
            try:
                return detect_schema(record.value)
            except ConfigError as error:
                failure = failure or error
    if failure is not None:
        raise failure
    return "messages"


def _sequences_of(value: Any, *, schema: Schema, template: ChatML | JinjaTemplate | None) -> list[list[Part]]:
    record = read_record(value, schema)
    if isinstance(record, str):
        return [[Part(record, is_answer=True)]]
    assert template is not None  # only the schema `text` has no template
    rendered = [template.render(conversation) for conversation in record]
    if not all(rendered):
        refuse_record(f"{template.name} rendered no text for conversation {rendered.index([]) + 1}")
    return rendered


class ConversationTokenizer:
    """A thread-safe function that tokenizes blocks of conversations; each sequence ends with one `eod` token."""

    def __init__(self, recipe: ConversationRecipe, encoder: SpanEncoder) -> None:
        self._template = None if recipe.template is None else recipe.template.compiled()
        self._schema = recipe.schema
        self._encoder = encoder
        self._dtype = recipe.dtype
        self._eod = recipe.tokenizer.eod
        self._hash_texts = recipe.settings.document_hashes

    def __call__(self, bundle: Sequence[Block]) -> TokenizedBlock:
        make = partial(_sequences_of, schema=self._schema, template=self._template)
        documents, bad_lines, skipped = convert_records(bundle, make)
        column, num_answer_tokens = self._column(documents, number=bundle[0].first_record if bundle else 0)
        return TokenizedBlock(
            columns=(column,),
            num_documents=len(documents),
            bad_lines=bad_lines,
            skipped=skipped,
            numbers={"num_answer_tokens": num_answer_tokens},
        )

    def _column(self, documents: Sequence[Sequence[Sequence[Part]]], *, number: int) -> tuple[Column, int]:
        """Returns the tokens and roles of documents as a column, and the number of tokens in answers or plain text."""
        sequences = [[part.text for part in parts] for document in documents for parts in document]
        encoded = self._encoder.encode(sequences, number=number)
        tokens, lengths, part_stops = encoded.tokens, encoded.lengths, encoded.part_stops
        if not lengths.all():  # otherwise, a lone `eod` would be trained as an answer
            raise RefusedTextError("the conversation or text has no tokens")
        part_counts = np.array([len(parts) for parts in sequences], dtype=np.int64)
        are_answers = [part.is_answer for document in documents for parts in document for part in parts]
        answer = PartKind.text if self._schema == "text" else PartKind.answer
        kinds = np.where(np.array(are_answers, dtype=bool), np.uint8(answer), np.uint8(PartKind.prompt))
        last_part = np.cumsum(part_counts) - 1

        # The end-of-document token belongs to the last part.
        ends = np.cumsum(lengths)
        open_ended = tokens[ends - 1] != self._eod
        tokens = np.insert(tokens, ends[open_ended], self._eod)
        lengths = lengths + open_ended
        part_stops[last_part] = lengths

        part_starts = np.concatenate([np.zeros(1, dtype=np.int64), part_stops])[: len(part_stops)]
        part_starts[last_part - part_counts + 1] = 0
        kept = part_stops > part_starts  # omits parts in which no token ends
        owner = np.repeat(np.arange(len(lengths)), part_counts)
        document_ends = np.cumsum([len(document) for document in documents], dtype=np.int64)
        hashes = None
        if self._hash_texts:
            texts = Texts(texts=["".join(parts) for parts in sequences], document_ends=document_ends)
            hashes = hash_documents([texts], len(documents))
        counts = np.bincount(owner[kept], minlength=len(lengths)).astype(np.int64)
        column = Column(
            tokens=tokens.astype(self._dtype),
            lengths=lengths.astype(np.int32),
            document_ends=document_ends,
            roles=role_bytes(counts, part_stops[kept].astype(np.int32), kinds[kept], num_tokens=len(tokens)),
            hashes=hashes,
        )
        return column, int((part_stops - part_starts)[kinds != PartKind.prompt].sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRecipe(Recipe):
    """The recipe for conversations; see `Recipe`."""

    tokenizer: HuggingFaceTokenizer
    settings: ChatSettings
    schema: Schema  # of the records in all shards
    template: TemplateSource | None  # None for the schema `text`
    sample: Sequence[str]  # rendered texts of the first block, for comparing engines
    stream: SliceReader | None  # the open reader of a pipe; None for other inputs
    threads_per_process: int = 4  # rendering is pure Python and holds the GIL

    has_roles = True
    documents = "conversations"
    expected = "provide one JSON object per line, or a table with one conversation per row"

    def options(self, _key: str, _split: str | None) -> dict[str, Any]:
        template = None
        if self.template is not None:
            sha256 = hashlib.sha256(self.template.source.encode()).hexdigest()
            template = {"name": self.template.name, "sha256": sha256}
        append_eod = "where it is not the last token already"
        chosen = {"schema": self.schema, "chat_template": template, "append_eod": append_eod}
        return chosen | self.settings.recorded()

    def of_shards(self) -> dict[str, Any]:
        special_tokens = self.tokenizer.special_tokens_dict  # chat templates may use these tokens
        return {"recipe": "conversations", "special_tokens": special_tokens, **self.options("", None)}

    def pipeline(self, _first: InputSlice, *, num_workers: int) -> BlockPipeline:
        choice = choose_engine(self.settings.engine, self.tokenizer, self.sample)
        encoder = SpanEncoder(self.tokenizer, choice, num_workers=num_workers)
        return BlockPipeline(
            engine=choice.recorded,
            engine_reason=choice.reason,
            open=partial(self.open, block_bytes=_BLOCK_BYTES),
            bundles=partial(group_blocks, num_bytes=1),
            work=ConversationTokenizer(self, encoder),
        )

    def open(self, slice_: InputSlice, *, block_bytes: int) -> SliceReader:
        return self.stream or Recipe.open(self, slice_, block_bytes=block_bytes)


def preprocess_chat(
    input_path: str | os.PathLike[str],
    output_prefix: str | os.PathLike[str],
    tokenizer: TextTokenizer | str | os.PathLike[str] | Any,
    settings: ChatSettings | None = None,
    **how: Unpack[JobArguments],
) -> CorpusSummary:
    """Tokenizes conversations into `PREFIX.bin`, `PREFIX.idx` and `PREFIX.roles.npy`.

    A line of JSON or a row of a table becomes a document; each of its conversations becomes a sequence. The template
    renders a conversation, and the rendered text is tokenized as a whole; a token belongs to the part of the text in
    which the token ends. Each sequence ends with an end-of-document token, which belongs to the last part; this token
    is appended if the text does not end with it. Runs as a resumable job, like `preprocess_corpus`. Memory: about
    170 MB per process with two threads, plus 20 bytes per conversation and 5 bytes per part of a conversation.

    Args:
        input_path: JSON lines (optionally compressed: `.gz`, `.zst`, `.bz2`, `.xz`), Parquet or Arrow.
        output_prefix: prefix of the outputs.
        tokenizer: Hugging Face tokenizer, or its path, name or object as for `load_tokenizer`.
        settings: see `ChatSettings`.
        how: see `preprocess_corpus`; by default, there is one process per four processors.

    Raises:
        ConfigError: a setting is wrong, or no schema fits the columns.
        InputError: a record is bad, or the file is damaged or contains no conversations.
        StuckRecordError: the template or the tokenizer exceeds `record_timeout_seconds` on a record.
        TokenizerError: the tokenizer is not a Hugging Face tokenizer, does not support the engine, or has no chat
            template or no end-of-document token.
        TokenloomError: see `preprocess_corpus`.
    """
    path = admit(checked_path("input_path", input_path, example="such as `chat.jsonl`"))
    prefix = admit(checked_output_prefix("output_prefix", output_prefix))
    file = inspect_input(path, default_format="jsonl")
    known = require_hugging_face(load_tokenizer(tokenizer), reason=_REASON)
    settings = settings or ChatSettings()
    reader = open_slice(whole_file(file), block_bytes=_BLOCK_BYTES, limits=settings)
    first = reader.first_block()
    if not file.is_stream:
        reader.close()
    schema, template, sample = _inspect_first_block(first, known, settings, path=path)
    recipe = ConversationRecipe(
        settings=settings,
        tokenizer=known,
        document_tokens=DocumentTokens(eod=known.eod),
        schema=schema,
        template=template,
        sample=sample,
        stream=reader if file.is_stream else None,
    )
    return run_job(plan_job(recipe, prefix, [file]), **how)


def _inspect_first_block(
    first: Block | None, tokenizer: HuggingFaceTokenizer, settings: ChatSettings, *, path: str
) -> tuple[Schema, TemplateSource | None, list[str]]:
    """Returns the schema, the template, and the texts rendered from the first block within the time limit."""
    texts: list[str] = []
    seconds = settings.record_timeout_seconds
    with WorkerThreads(1) as threads:  # `orjson` crashes if an interrupt arrives while it starts
        schema = settings.schema or threads.submit(partial(_schema_of, first)).result()
        template = None if schema == "text" else find_chat_template(tokenizer, settings.chat_template)

        def render() -> None:
            compiled = None if template is None else template.compiled()
            for record in () if first is None else records_of(first):
                with suppress(UnusableLineError):  # the job itself reports bad records
                    sequences = _sequences_of(record.value, schema=schema, template=compiled)
                    texts.extend("".join(part.text for part in parts) for parts in sequences)

        try:
            threads.submit(render).result(timeout=seconds)
        except TimeoutError as error:
            threads.is_hung = True
            if not texts:
                name = "reading" if template is None else template.name
                message = f"{name} takes longer than {seconds:g} seconds for the first record of `{path}`"
                raise StuckRecordError(message, hint="simplify it, or raise `record_timeout_seconds`") from error
    return schema, template, list(texts)
