"""Commands that tokenize texts, conversations and text-image pairs, and their shared options."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from tokenloom.cli.options import JsonOption, Written, arguments_of, refuse, shares
from tokenloom.cli.output import Answer, facts_lines, members
from tokenloom.inputs.formats import FORMATS
from tokenloom.preprocess.settings import BadRecordBudget, ChatSettings, CorpusSettings, MultimodalSettings
from tokenloom.setting_types import Count, Number
from tokenloom.tokenizers.kinds import KINDS

if TYPE_CHECKING:
    from tokenloom.preprocess.corpus import CorpusPreview
    from tokenloom.preprocess.job import CorpusSummary
    from tokenloom.preprocess.sharded import Runner
    from tokenloom.tokenizers.text_tokenizer import TextTokenizer

_TEMPLATED = ("HuggingFaceTokenizer", "GPT2BPETokenizer", "GPT2BPE", "BertWordPieceLowerCase", "BertWordPieceCase")
"""Tokenizer types of Megatron that, by default, add a post-processor's special tokens, such as [CLS], to each text."""

_TOOL = "option names of Megatron's preprocess_data.py"
INPUT = Written(metavar="INPUT", names=("--input",), is_positional=True)
_SPECIAL = Written(names=("--tokenizer-special-tokens", "--special-tokens"), metavar="TOKEN")

_SHOWN_CHARACTERS = 200


@dataclass(frozen=True, kw_only=True)
class ReferenceTokenizer:
    """Options that define a tokenizer by the option names of Megatron's tools.

    Attributes:
        tokenizer_type: GPT2BPE, HuggingFaceTokenizer, SentencePieceTokenizer, TikTokenizer, BertWordPieceLowerCase,
            NullTokenizer, …; gives the same ids as Megatron's tokenizer of this type; needs no download.
        tokenizer_model: file or folder of the tokenizer.
        vocab_file: GPT-2's vocab.json, or BERT's vocab.txt.
        merge_file: GPT-2's merges.txt.
        vocab_size: number of ids of a NullTokenizer or TikTokenizer.
        tokenizer_special_tokens: additional special tokens.
        tiktoken_num_special_tokens: number of ids reserved for special tokens (default 1000).
        null_tokenizer_eod_id: end-of-document id of a NullTokenizer.
        tokenizer_hf_no_include_special_tokens: do not add the special tokens of the post-processor, such as [CLS].
    """

    GROUP = "tokenizer by Megatron's option names, instead of --tokenizer"
    WITHOUT_EFFECT: ClassVar[Any] = {
        "it does not change the ids of texts": (
            "--tokenizer-hf-include-special-tokens --tokenizer-hf-use-fast --tokenizer-hf-no-use-fast --pad-vocab-size "
            "--no-pad-vocab-size --padded-vocab-size=N --vocab-extra-ids=N --make-vocab-size-divisible-by=N"
        ),
        "it follows from --tokenizer-type": "--tokenizer-metadata=N --metadata-path=N",
        "the special tokens come from the model file": "--tokenizer-sentencepiece-legacy",
        "tokenloom never runs code of a tokenizer": "--trust-remote-code",
        "gigatoken is used wherever it is exact, see --engine": "--use-gigatoken",
    }

    tokenizer_type: str | None = None
    tokenizer_model: Annotated[str | None, Written(metavar="PATH")] = None
    vocab_file: str | None = None
    merge_file: str | None = None
    vocab_size: Count | None = None
    tokenizer_special_tokens: Annotated[tuple[str, ...] | None, _SPECIAL] = None
    tiktoken_num_special_tokens: Count | None = None
    null_tokenizer_eod_id: Number | None = None
    tokenizer_hf_no_include_special_tokens: bool = False

    @property
    def has_template(self) -> bool:
        """Whether Megatron adds the special tokens of this tokenizer's post-processor to each text."""
        return self.tokenizer_type in _TEMPLATED and not self.tokenizer_hf_no_include_special_tokens


@dataclass(frozen=True, kw_only=True)
class TokenizerOptions(ReferenceTokenizer):
    """Options that define a tokenizer.

    Attributes:
        tokenizer: a tokenizer.json, a SentencePiece .model, a .tiktoken, GPT-2's vocab.json or BERT's vocab.txt, or a
            folder with one of these; `byte`: ids are the bytes of the text; `null:N`: texts are lists of ids up to N.
        tokenizer_kind: kind of tokenizer; `auto`: detect the kind from the content of the file.
        tiktoken_pattern: regular expression with which tiktoken splits texts, or its name: r50k, p50k, cl100k, o200k
            (default: the expression in PATH.json, or that of the published file); v1 or v2 for a TikTokenizer.
        eod_token: end-of-document token if the tokenizer defines none.
    """

    ONE_OF: ClassVar[Any] = {
        "--tokenizer PATH (or --tokenizer-type)": (
            *("tokenizer", "tokenizer_type", "tokenizer_model"),
            *("vocab_file", "merge_file", "vocab_size"),
        )
    }

    tokenizer: Annotated[str | None, Written(metavar="PATH|byte|null:N")] = None
    tokenizer_kind: Annotated[str, Written(choices=("auto", *KINDS))] = "auto"
    tiktoken_pattern: str | None = None
    eod_token: str | None = None

    def load_tokenizer(self, *, bos_token: str | None = None) -> TextTokenizer:
        """Loads the tokenizer; `bos_token` is the begin-of-document token to use if the tokenizer defines none."""
        from tokenloom.tokenizers.load import load_tokenizer

        if self.tokenizer is not None and (self.tokenizer_type or self.tokenizer_model):
            other = "--tokenizer-type" if self.tokenizer_type else "--tokenizer-model"
            refuse(f"--tokenizer and {other} both set the tokenizer", hint="pass only one of them")
        if self.tokenizer_type is None:
            for name in ("vocab_file", "merge_file", "vocab_size"):
                if getattr(self, name) is not None:
                    refuse(f"--{name.replace('_', '-')} needs --tokenizer-type")
            given: dict[str, Any] = {"kind": self.tokenizer_kind, "pattern": self.tiktoken_pattern}
            given |= {"eod_token": self.eod_token, "bos_token": bos_token}
            return load_tokenizer(self.tokenizer or self.tokenizer_model, **given)
        from tokenloom.megatron.installation import reference_version
        from tokenloom.tokenizers.reference_types import ReferenceTokenizerOptions, load_reference_tokenizer

        options, is_old = ReferenceTokenizerOptions.of(vars(self)), reference_version() < (0, 17)
        return load_reference_tokenizer(options, null_has_own_eod=is_old, eod_token=self.eod_token)


@dataclass(frozen=True, kw_only=True)
class RunnerOptions:
    """Options for the processes and threads of a job.

    Attributes:
        num_processes: number of processes on this machine (default: enough to use all processors).
        num_workers: number of threads per process (default: the number of processors per process).
        runner: run the job on this machine (local) or on a Ray cluster (ray).
        ray_address: address of the Ray cluster (default: the cluster on this machine, or a new cluster).
        restart: discard the work of an interrupted job instead of resuming the job.
    """

    GROUP = "execution"

    num_processes: Annotated[int | None, Written(names=("--processes",))] = None
    num_workers: Annotated[int | None, Written(names=("--workers",))] = None
    runner: Literal["local", "ray"] = "local"
    ray_address: str | None = None
    restart: bool = False

    def job_arguments(self, function: Callable[..., Any], **others: Any) -> dict[str, Any]:
        """Returns the options as keyword arguments for `function`, which runs the job; see `arguments_of`."""
        runner: Runner | None = None
        if self.runner == "ray":
            from tokenloom.preprocess.ray_runner import RayRunner

            runner = RayRunner(address=self.ray_address, num_workers=self.num_workers or 1)
        return arguments_of(self, function, **{"runner": runner, **others})


@dataclass(frozen=True, kw_only=True)
class JobOptions(RunnerOptions):
    """Options for the outputs of a job.

    Attributes:
        output_prefix: path of the outputs, without suffix.
        overwrite: replace existing outputs of another job.
        work_folder: folder of unfinished work (default PREFIX.job).
        verbose: print all counts as a table.
    """

    output_prefix: str
    overwrite: bool = False
    work_folder: str | None = None
    verbose: bool = False

    def job_arguments(self, function: Callable[..., Any], **others: Any) -> dict[str, Any]:
        from tokenloom.preprocess.job import JobArguments

        names = JobArguments.__annotations__.keys() & vars(self).keys() - {"runner"}
        return super().job_arguments(function, **{name: getattr(self, name) for name in names}, **others)

    def answer(self, summary: CorpusSummary) -> Answer:
        """Formats the summary of a job."""
        record = {**members(summary), "num_tokens": summary.num_tokens}

        def lines() -> Iterator[str]:
            if self.verbose:
                yield from facts_lines(self.output_prefix, record | {"datasets": [*map(members, summary.datasets)]})
            time = "already complete" if summary.was_complete else f"in {summary.seconds:.1f} s"
            num_tokens = summary.numbers.get("num_text_tokens", summary.num_tokens)
            yield f"{self.output_prefix}: {summary.num_documents:,} documents, {num_tokens:,} tokens, {time}"
            if doubled := summary.numbers.get("num_doubled"):
                yield f"{doubled:,} texts already contained a special token that was added to them"
            if summary.num_rejected:
                yield f"{summary.num_rejected:,} bad records were moved to {', '.join(summary.rejected_paths)}"

        return Answer(record, lines())


def written(**fields: Written) -> Written:
    """Returns the overrides for a nested class of job settings; `fields` are further overrides, by field."""
    origins = Written(help="do not write PREFIX.origins.npy, which maps documents to input files and records")
    skips = "move any number of bad records to PREFIX.rejected.jsonl instead of stopping"
    skip_all = {"action": "store_const", "const": BadRecordBudget(most=None), "help": skips}
    others, parse = {"--skip-bad-lines": skip_all}, BadRecordBudget.parse
    bad_records = Written(names=("--max-bad-records",), metavar="N|P%", parse=parse, others=others)
    return Written(without=("block_bytes",), fields={"bad_records": bad_records, "origins": origins, **fields})


_SETTINGS = written(
    keys=Written(names=("--json-keys",), metavar="KEY"),
    input_format=Written(choices=tuple(FORMATS)),
    shares=Written(
        names=("--split",),
        metavar="SPLIT",
        parse=shares,
        help="write one dataset per split: train=0.99,valid=0.01 or 98,1,1; a hash of each text chooses its split",
    ),
)


@dataclass(frozen=True, kw_only=True)
class TextOptions(TokenizerOptions, JobOptions, JsonOption):
    """Tokenize a corpus into PREFIX_KEY_document.bin and .idx. Run the same command again to resume an interrupted job,
    or on several machines with a shared folder to divide the work.

    Attributes:
        inputs: files, folders, globs, s3:// URLs, @FILE with a list of these, or - for standard input. Formats are JSON
            lines, text, Parquet, Arrow and Hugging Face datasets; also compressed with gzip, zstd, bz2 or xz.
        named_inputs: the inputs, instead of INPUT; files of unknown format are read as JSON lines.
        partitions: number of processes; the threads of --workers are divided among these processes.
        lang: language for --split-sentences. For other languages, write each text as a list of sentences.
        dataset_impl: output format; the only format is mmap.
        bos_token: begin-of-document token if the tokenizer defines none.
        dry_run: show how the first N documents are tokenized, and write nothing.
        json: print one JSON object: num_files, num_ignored, num_shards, num_shards_reused, was_complete, num_documents,
            num_duplicates, num_blank_lines, num_rejected, rejected_paths, num_text_bytes, num_tokens, dtype, engine,
            engine_reason, seconds; `datasets`: a list with one object per output: key, split, prefix, num_documents,
            num_empty, num_sequences, num_tokens, num_bytes; `numbers`: an object: num_doubled.
    """

    ONE_OF: ClassVar[Any] = {"INPUT (or --input)": ("inputs", "named_inputs")}
    WITHOUT_EFFECT: ClassVar[Any] = {
        "documents always keep the order of the input": "--keep-sequential-samples",
        "progress is printed at fixed times": "--log-interval=N",
        "by default a job uses all processors; set --processes and --workers to limit them": (
            "--find-optimal-num-workers --workers-to-check=N… --max-documents=N"
        ),
        "use `tokenloom preprocess-chat` for conversations": "--chat-template=N",
    }

    inputs: Annotated[tuple[str, ...], Written(metavar="INPUT", is_positional=True)] = ()
    settings: Annotated[CorpusSettings, _SETTINGS] = field(default_factory=CorpusSettings)
    bos_token: str | None = None
    dry_run: Count | None = None
    named_inputs: Annotated[tuple[str, ...], Written(names=("--input",), metavar="PATH", group=_TOOL)] = ()
    partitions: Annotated[Count | None, Written(group=_TOOL)] = None
    lang: Annotated[Literal["english"], Written(metavar="LANGUAGE", group=_TOOL)] = "english"
    dataset_impl: Annotated[Literal["mmap"] | None, Written(group=_TOOL)] = None


def preprocess(options: TextOptions) -> Answer:
    from tokenloom.preprocess.corpus import preprocess_corpus, preview_corpus

    options = _apply_megatron_options(options)
    tokenizer = options.load_tokenizer(bos_token=options.bos_token)
    if options.dry_run is not None:
        names = options.inputs, options.output_prefix
        preview = preview_corpus(*names, tokenizer, options.settings, count=options.dry_run)
        return Answer(preview, _preview_lines(preview))
    summary = preprocess_corpus(**options.job_arguments(preprocess_corpus, tokenizer=tokenizer))
    return options.answer(summary)


def _apply_megatron_options(options: TextOptions) -> TextOptions:
    """Replaces the options of Megatron's tool by tokenloom's options."""
    settings, hint = options.settings, "pass only one of them"
    if options.has_template:
        settings = replace(settings, template_tokens=True)
    if options.inputs and options.named_inputs:
        refuse("INPUT and --input both set the inputs", hint=hint)
    if options.named_inputs and settings.input_format is None and not any(map(os.path.isdir, options.named_inputs)):
        from tokenloom.inputs.find import formats_by_name

        known = {formats[0] for formats in map(formats_by_name, options.named_inputs) if len(formats) == 1}
        if known <= {"jsonl"}:  # the format that Megatron's tool assumes
            settings = replace(settings, input_format="jsonl")
    if options.partitions is not None:
        if options.num_processes is not None:
            refuse("--partitions and --processes both set the number of processes", hint=hint)
        num_workers = None if options.num_workers is None else max(1, options.num_workers // options.partitions)
        options = replace(options, num_processes=options.partitions, num_workers=num_workers)
    return replace(options, settings=settings, inputs=options.inputs or options.named_inputs)


def _preview_lines(preview: CorpusPreview) -> Iterator[str]:
    half = _SHOWN_CHARACTERS // 2
    for document in preview.documents:
        text = document.text if len(document.text) <= 2 * half else f"{document.text[:half]} … {document.text[-half:]}"
        known = {**members(document), "path": None, "key": None, "text": repr(text)}
        if document.num_tokens:
            known["bytes_per_token"] = document.num_text_bytes / document.num_tokens
        yield from facts_lines(f"{document.path}, {document.key!r}", known)
        if document.is_doubled:
            yield "  the text already contains a special token that is added to it"
        if not document.is_exact:
            yield "  the decoded tokens differ from the text: the tokenizer normalizes text or lacks characters"
    bad = [members(each, "path", "unit", "line", "reason") for each in preview.bad_lines]
    yield from facts_lines("total; nothing was written", {**members(preview), "documents": None, "bad_lines": bad})


@dataclass(frozen=True, kw_only=True)
class ChatOptions(TokenizerOptions, JobOptions, JsonOption):
    """Tokenize conversations into PREFIX.bin, PREFIX.idx and PREFIX.roles.npy, which marks prompts and answers. Run the
    same command again to resume an interrupted job, or on several machines with a shared folder to divide the work.

    Attributes:
        input_path: JSON lines (.jsonl; also .gz, .zst, .bz2, .xz), .parquet or .arrow.
        json: print one JSON object with the keys of `preprocess`; the object `numbers` has num_answer_tokens.
    """

    input_path: Annotated[str, INPUT]
    settings: Annotated[ChatSettings, written()] = field(default_factory=ChatSettings)


def preprocess_chat(options: ChatOptions) -> Answer:
    from tokenloom.preprocess import chat

    job = chat.preprocess_chat
    return options.answer(job(**options.job_arguments(job, tokenizer=options.load_tokenizer())))


@dataclass(frozen=True, kw_only=True)
class MultimodalOptions(TokenizerOptions, JobOptions, JsonOption):
    """Tokenize texts and store them with their images in PREFIX.bin and .idx: a document is the text (mode 0), then the
    bytes of the image file (mode 1). Run the same command again to resume an interrupted job, or on several
    machines with a shared folder to divide the work.

    Attributes:
        input_path: JSON lines, or a folder of file pairs with equal names, such as cat.txt and cat.jpg.
        input_image: folder of images, as for Megatron's preprocess_mmdata.py; record n of INPUT gets the n-th image by
            file name; the records with their image paths are written to PREFIX.pairs.jsonl.
        json: print one JSON object with the keys of `preprocess`; the object `numbers` has num_text_tokens,
            num_image_bytes, num_truncated.
    """

    WITHOUT_EFFECT: ClassVar[Any] = {
        "progress is printed at fixed times": "--log-interval=N",
        "this command does not split texts into sentences": "--lang=N --split-sentences --keep-newlines",
    }

    input_path: Annotated[str, INPUT]
    settings: Annotated[MultimodalSettings, written()] = field(default_factory=MultimodalSettings)
    input_image: Annotated[str | None, Written(metavar="FOLDER")] = None


def preprocess_multimodal(options: MultimodalOptions) -> Answer:
    from tokenloom.preprocess import multimodal
    from tokenloom.preprocess.blocks import TemplateTokens

    tokenizer, path = options.load_tokenizer(), options.input_path
    if options.has_template and TemplateTokens.of(tokenizer) != TemplateTokens():
        message = f"the post-processor of `{tokenizer.path}` adds special tokens, which this command does not support"
        refuse(message, hint="add --tokenizer-hf-no-include-special-tokens")
    if options.input_image is not None:
        images, path, key = options.input_image, f"{options.output_prefix}.pairs.jsonl", options.settings.image_key
        multimodal.write_image_records(options.input_path, images, path, image_key=key, overwrite=options.overwrite)
    job = multimodal.preprocess_multimodal
    return options.answer(job(**options.job_arguments(job, input_path=path, tokenizer=tokenizer)))
