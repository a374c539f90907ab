"""Commands that turn records into pairs: texts, conversations, and texts with images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from tokenloom.cli.options import JsonOption, OneOf, UsageError, WithoutEffect, Written
from tokenloom.cli.output import Answer, facts_lines, members
from tokenloom.cli.tokenising_options import JobOptions, ReferencePreprocessing, TokenizerOptions, format_of, written
from tokenloom.cli.values import shares
from tokenloom.errors import ConfigError
from tokenloom.inputs.formats import FORMATS
from tokenloom.preprocess.settings import ChatSettings, CorpusSettings, MultimodalSettings
from tokenloom.setting_types import Count

if TYPE_CHECKING:
    from tokenloom.preprocess.preview import CorpusPreview, DocumentPreview
    from tokenloom.tokenizers.text_tokenizer import TextTokenizer

_SHOWN_CHARACTERS = 200
_MOST_NAMED = 3
"""Inputs in its title."""

_SETTINGS = written(
    keys=Written(names=("--json-keys",), metavar="KEY"),
    input_format=Written(choices=tuple(FORMATS)),
    shares=Written(
        names=("--split",),
        metavar="SPLIT",
        parse=shares,
        help="share of documents of each dataset, assigned by a hash of their text: train=0.99,valid=0.01 or 98,1,1",
    ),
)


@dataclass(frozen=True, kw_only=True)
class TextOptions(TokenizerOptions, JobOptions, ReferencePreprocessing, JsonOption):
    """Tokenize a corpus into PREFIX_KEY_document.bin and .idx. What was interrupted goes on where it was when the same
    command runs again; on several machines that share the folder, all take part.

    Attributes:
        inputs: files, folders, patterns, s3:// addresses, @LIST, or - for standard input: JSON lines, text, Parquet,
            Arrow and Hugging Face datasets; gzip, zstd, bz2, xz.
        bos_token: token that begins a document, where the tokenizer does not say.
        dry_run: show how the first N documents are tokenized, and write nothing.
        json: print one JSON object: num_files, num_ignored, num_shards, num_shards_reused, was_complete, num_documents,
            num_duplicates, num_doubled, num_blank_lines, num_rejected, rejected_paths, num_text_bytes, num_tokens,
            dtype, engine, engine_reason, seconds, and in datasets key, split, prefix, num_documents, num_empty,
            num_sequences, num_tokens, num_bytes of each.
    """

    ONE_OF: ClassVar[OneOf] = {"INPUT (or --input)": ("inputs", "named_inputs")}

    inputs: Annotated[tuple[str, ...], Written(metavar="INPUT", is_positional=True)] = ()
    settings: Annotated[CorpusSettings, _SETTINGS] = field(default_factory=CorpusSettings)
    bos_token: str | None = None
    dry_run: Count | None = None


def texts(options: TextOptions) -> Answer:
    """Tokenizes; returns the summary."""
    from tokenloom.preprocess.preview import preview_corpus
    from tokenloom.preprocess.text import preprocess_corpus

    options = _settled(options)
    tokenizer = options.load_tokenizer(bos_token=options.bos_token)
    if options.dry_run is not None:
        names = options.inputs, options.output_prefix
        preview = preview_corpus(*names, tokenizer, options.settings, count=options.dry_run)
        documents = [{"path": path, "key": key, **members(document)} for path, key, document in preview.documents]
        return Answer({**members(preview), "documents": documents}, _preview_lines(preview))
    summary = preprocess_corpus(**options.job_arguments(preprocess_corpus, tokenizer=tokenizer))
    known = summary.facts() | {"ignored files": summary.num_ignored or None}
    if not (summary.was_complete or summary.num_shards_reused):  # else some of it was not read now
        known["text a second"] = f"{summary.num_text_bytes / summary.seconds / 1e6:.1f} MB"
        known["tokens a second"] = round(summary.num_tokens / summary.seconds)
    record = {**members(summary), "num_tokens": summary.num_tokens}
    return Answer(record, _summary_lines(_listed(options.inputs), summary, known))


def _settled(options: TextOptions) -> TextOptions:
    """Returns the options with those that say the same in another way put where the command's own are."""
    settings, both = options.settled(options.settings), "leave one out"
    if options.has_template:
        settings = replace(settings, template_tokens=True)
    if options.inputs and options.named_inputs:
        message = "--input and inputs without an option both name inputs"
        raise ConfigError(message, hint=both)
    if options.named_inputs:
        settings = replace(settings, input_format=settings.input_format or format_of(options.named_inputs))
    num_processes, num_workers = options.num_processes, options.num_workers
    if options.partitions is not None:
        if num_processes is not None:
            message = "--partitions and --processes both say how many processes"
            raise ConfigError(message, hint=both)
        num_processes = options.partitions
        num_workers = None if num_workers is None else max(1, num_workers // num_processes)
    return replace(
        options,
        settings=settings,
        inputs=options.inputs or options.named_inputs,
        num_processes=num_processes,
        num_workers=num_workers,
    )


def _listed(names: Sequence[str]) -> str:
    hidden = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {hidden:,} more" if hidden > 0 else "")


def _preview_lines(preview: CorpusPreview) -> Iterator[str]:
    for path, key, document in preview.documents:
        density = ""
        if document.num_tokens:
            density = f", {document.num_text_bytes / document.num_tokens:.2f} bytes per token"
        yield f"{path}, {key!r}: {document.num_text_bytes:,} bytes, {document.num_tokens:,} tokens{density}"
        yield f"  ids:  {_ids_in_words(document)}"
        yield f"  text: {_shortened(document.text)!r}"
        if document.is_doubled:
            yield "  its text already spells out a token that is added"
        if not document.is_exact:
            yield "  decoding does not give the text back: the tokenizer normalises it, or lacks characters"
    for bad in preview.bad_lines:
        yield f"{bad.path} {bad.unit} {bad.line}: {bad.reason}"
    yield f"\nengine {preview.engine}: {preview.engine_reason}"
    yield f"input: {preview.num_files:,} files, {preview.num_bytes:,} bytes; {preview.num_ignored:,} others ignored"
    yield f"tokens would be stored as {preview.dtype}, in {preview.num_shards:,} shards; nothing was written"


def _ids_in_words(document: DocumentPreview) -> str:
    shown = list(map(str, document.first_ids))
    if document.num_tokens > len(document.first_ids):
        rest = document.last_ids[-(document.num_tokens - len(document.first_ids)) :]
        shown += ([] if len(rest) < len(document.last_ids) else ["…"]) + list(map(str, rest))
    return " ".join(shown)


def _shortened(text: str) -> str:
    half = _SHOWN_CHARACTERS // 2
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:half]} … {text[-half:]}"


def _summary_lines(title: str, summary: Any, known: Mapping[str, Any]) -> Iterator[str]:
    done = {"nothing to do": "all of it was done before"} if summary.was_complete else {}
    return facts_lines(title, {**done, **known})


@dataclass(frozen=True, kw_only=True)
class ChatOptions(TokenizerOptions, JobOptions, JsonOption):
    """Tokenize conversations into PREFIX.bin, PREFIX.idx and PREFIX.roles, which says what of them the assistant said.
    What was interrupted goes on where it was when the same command runs again; on several machines that share the
    folder, all take part.

    Attributes:
        input_path: JSON lines (.jsonl; also .gz, .zst, .bz2, .xz), .parquet or .arrow.
        named_input: the input, by an option.
        json: print one JSON object: prefix, num_documents, num_sequences, num_tokens, num_answer_tokens,
            num_blank_lines, num_rejected, rejected_path, schema, template, dtype, engine, engine_reason, seconds,
            was_complete.
    """

    ONE_OF: ClassVar[OneOf] = {"INPUT (or --input)": ("input_path", "named_input")}

    input_path: Annotated[str | None, Written(metavar="INPUT", is_positional=True)] = None
    named_input: Annotated[str | None, Written(names=("--input",), metavar="PATH")] = None
    settings: Annotated[ChatSettings, written()] = field(default_factory=ChatSettings)

    def __post_init__(self) -> None:
        """Refuses two inputs."""
        if self.input_path and self.named_input:
            message = "expected INPUT or `--input`, found both"
            raise UsageError(message)


def chat(options: ChatOptions) -> Answer:
    """Tokenizes; returns the summary."""
    from tokenloom.preprocess.chat import preprocess_chat

    path, settings = options.input_path or options.named_input, options.settled(options.settings)
    tokenizer = options.load_tokenizer()
    summary = preprocess_chat(
        **options.job_arguments(preprocess_chat, input_path=path, tokenizer=tokenizer, settings=settings)
    )
    speed = None if summary.was_complete else round(summary.num_tokens / summary.seconds)
    return Answer(summary, _summary_lines(path or "", summary, summary.facts() | {"tokens a second": speed}))


@dataclass(frozen=True, kw_only=True)
class ReferenceMultimodal:
    """What Megatron's `preprocess_mmdata.py` takes.

    Attributes:
        named_input: the input.
        input_image: images that go with the records by their order, sorted by name; PREFIX.pairs.jsonl says which with
            which.
    """

    GROUP: ClassVar[str] = "as Megatron's preprocess_mmdata.py calls it"
    WITHOUT_EFFECT: ClassVar[WithoutEffect] = {
        "texts are not cut, and progress is shown by time": "--log-interval=N --lang=N",
        "texts are not cut": "--split-sentences --keep-newlines",
    }

    named_input: Annotated[str | None, Written(names=("--input",), metavar="FILE")] = None
    input_image: Annotated[str | None, Written(metavar="FOLDER")] = None


@dataclass(frozen=True, kw_only=True)
class MultimodalOptions(TokenizerOptions, JobOptions, ReferenceMultimodal, JsonOption):
    """Tokenize texts and store the images that go with them in PREFIX.bin and .idx: a document is the text (mode 0),
    then the bytes of the image file (mode 1). What was interrupted goes on where it was when the same command runs
    again; on several machines that share the folder, all take part.

    Attributes:
        inputs: JSON lines, or a folder of pairs with equal names, such as cat.txt and cat.jpg.
        json: print one JSON object: prefix, num_documents, num_text_tokens, num_image_bytes, num_truncated,
            num_rejected, rejected_path, seconds, was_complete.
    """

    inputs: Annotated[tuple[str, ...], Written(metavar="INPUT", is_positional=True)] = ()
    settings: Annotated[MultimodalSettings, written()] = field(default_factory=MultimodalSettings)

    @property
    def input(self) -> str:
        """The one input."""
        names = [*self.inputs, *([self.named_input] if self.named_input else [])]
        if len(names) != 1:
            message = f"expected one INPUT, or one --input, found {len(names)}"
            raise UsageError(message)
        return names[0]


def multimodal(options: MultimodalOptions) -> Answer:
    """Writes the dataset; returns the summary."""
    from tokenloom.preprocess.multimodal import preprocess_multimodal, write_image_records

    tokenizer, named, settings = options.load_tokenizer(), options.input, options.settled(options.settings)
    _refuse_template(options, tokenizer)
    if options.input_image is not None:
        records = f"{options.output_prefix}.pairs.jsonl"
        write_image_records(
            named, options.input_image, records, image_key=settings.image_key, overwrite=options.overwrite
        )
        named = records
    summary = preprocess_multimodal(
        **options.job_arguments(preprocess_multimodal, input_path=named, tokenizer=tokenizer, settings=settings)
    )
    known = members(summary) | {"was_complete": None}
    return Answer(summary, _summary_lines(named, summary, known))


def _refuse_template(options: MultimodalOptions, tokenizer: TextTokenizer) -> None:
    """Refuses a tokenizer whose template has tokens, which nothing puts around texts here."""
    from tokenloom.preprocess.blocks import TemplateTokens

    if options.has_template and TemplateTokens.of(tokenizer) != TemplateTokens():
        message = f"the template of `{tokenizer.path}` puts special tokens around texts, which this command does not"
        raise ConfigError(message, hint="leave them out with --tokenizer-hf-no-include-special-tokens")


COMMANDS = {"preprocess": texts, "preprocess-chat": chat, "preprocess-multimodal": multimodal}
