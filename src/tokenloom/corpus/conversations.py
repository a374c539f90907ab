"""The recipe for conversations: those of a record become the sequences of a document, with roles beside them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenloom.corpus.one_pair import OnePairRecipe, OnePairSettings
from tokenloom.corpus.recipe import Making
from tokenloom.errors import ConfigError, InputError
from tokenloom.indexed.layout import DType
from tokenloom.indexed.manifest.contents import InputRecord
from tokenloom.inputs import InputFile, InputSlice
from tokenloom.inputs.blocks import Block
from tokenloom.inputs.cut import whole_file
from tokenloom.inputs.limits import ReadLimits
from tokenloom.inputs.reading import BegunReader, open_within
from tokenloom.inputs.record_format import SliceReader
from tokenloom.preprocess.chat_templates import TemplateSource, find_chat_template
from tokenloom.preprocess.conversation_blocks import ConversationTokenizer
from tokenloom.preprocess.document_tokens import DocumentTokens
from tokenloom.preprocess.refusals import Isolating
from tokenloom.preprocess.rendering import Renderer, first_texts, schema_of
from tokenloom.preprocess.schemas import SCHEMAS, Schema
from tokenloom.preprocess.spans import SpanEncoder
from tokenloom.preprocess.threads import worker_threads
from tokenloom.tokenizers.engines import choose_engine
from tokenloom.tokenizers.huggingface import HuggingFaceTokenizer
from tokenloom.tokenizers.kinds import EngineName

_BLOCK_BYTES = 256 << 10  # as the slow engines take


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRecipe(OnePairRecipe):
    """The recipe for conversations; see `Recipe`.

    Attributes:
        tokenizer: tokenizer that names the ids.
        schema: schema of the records, the same in all shards.
        template: what renders conversations; None for texts, which need no template.
        engine: asked for.
        sample: texts of the beginning, by which engines are compared.
        stream: its reader, which has begun, where it can be read once only; None otherwise.
    """

    tokenizer: HuggingFaceTokenizer
    schema: Schema
    template: TemplateSource | None
    engine: EngineName
    sample: Sequence[str]
    stream: BegunReader | None

    is_multimodal = False
    has_roles = True
    compares_bytes = False
    threads_per_process = 4  # rendering is Python, and one thread at a time does it

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the tokens."""
        return np.dtype(DType.optimal_dtype(self.tokenizer.vocab_size))

    @property
    def document_tokens(self) -> DocumentTokens:
        """What is added to each sequence that does not end with it."""
        return DocumentTokens(eod=self.tokenizer.eod)

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
            **self.limits.recorded(),
            **self.hash_options(),
        }

    def of_shards(self) -> dict[str, Any]:
        """Returns what decides what a shard holds."""
        special_tokens = self.tokenizer.special_tokens_dict  # which templates may name
        return {"recipe": "conversations", "special_tokens": special_tokens, **self.options("", None)}

    def making(self, _first: InputSlice, *, num_workers: int) -> Making:
        """Returns what one process works with."""
        choice = choose_engine(self.engine, self.tokenizer, self.sample)
        encoder = SpanEncoder(self.tokenizer, choice, num_workers=num_workers)
        template = None if self.template is None else self.template.compiled()
        work = ConversationTokenizer(
            Renderer(template, schema=self.schema),
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
            work=Isolating(work, work.rejected),
        )

    def _open(self, slice_: InputSlice) -> SliceReader:
        return self.stream or open_within(slice_, self.limits, block_bytes=_BLOCK_BYTES)

    def nothing_found(self, inputs: str, *, num_blank: int, num_bad: int, first: str) -> InputError:
        """Returns the error for an input without conversations."""
        message = f"{inputs} holds no conversations: {num_blank} blank lines, {num_bad} bad lines{first}"
        return InputError(message, hint="expected one JSON object per line, or one conversation per row")


def conversation_recipe(
    file: InputFile,
    tokenizer: HuggingFaceTokenizer,
    *,
    settings: OnePairSettings,
    inputs: tuple[InputRecord, ...],
    chat_template: str | None,
    schema: Schema | None,
    engine: EngineName,
    limits: ReadLimits,
) -> ConversationRecipe:
    """Returns the recipe for the conversations of a file, of which no more than the beginning is read.

    Args:
        file: file with the conversations.
        tokenizer: tokenizer that names the ids.
        settings, inputs, limits: see `OnePairRecipe`.
        chat_template, schema, engine: see `preprocess_chat`.

    Raises:
        TokenloomError: see `preprocess_chat`.
    """
    if schema is not None and schema not in SCHEMAS:
        message = f"expected a schema out of {', '.join(SCHEMAS)}, got {schema!r}"
        raise ConfigError(message)
    begun = BegunReader(open_within(whole_file(file), limits, block_bytes=_BLOCK_BYTES))
    if not file.is_stream:
        begun.close()
    if schema is None:  # not in this thread: an interruption would hit `orjson` as it starts
        with worker_threads(1) as executor:
            schema = executor.submit(schema_of, begun.first).result()
    template = None if schema == "text" else find_chat_template(tokenizer, chat_template)
    sample = first_texts(begun.first, template, schema=schema, timeout_seconds=settings.record_timeout_seconds)
    return ConversationRecipe(
        settings=settings,
        limits=limits,
        inputs=inputs,
        tokenizer=tokenizer,
        schema=schema,
        template=template,
        engine=engine,
        sample=sample,
        stream=begun if file.is_stream else None,
    )


def _one_by_one(blocks: Iterable[Block]) -> Iterator[list[Block]]:
    for block in blocks:
        yield [block]
        del block  # the receiver's to drop
