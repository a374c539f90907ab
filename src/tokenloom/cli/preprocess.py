"""Commands that tokenize texts, conversations and texts with images, and the options that they share."""

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
    from tokenloom.preprocess.job import CorpusSummary
    from tokenloom.preprocess.sharded import Runner
    from tokenloom.preprocess.text import CorpusPreview
    from tokenloom.tokenizers.text_tokenizer import TextTokenizer

_TEMPLATED = ("HuggingFaceTokenizer", "GPT2BPETokenizer", "GPT2BPE", "BertWordPieceLowerCase", "BertWordPieceCase")
"""Types whose texts the reference puts into the tokenizer's own template by default."""

_TOOL = "names of Megatron's preprocess_data.py"
INPUT = Written(metavar="INPUT", names=("--input",), is_positional=True)
_SPECIAL = Written(names=("--tokenizer-special-tokens", "--special-tokens"), metavar="TOKEN")

_SHOWN_CHARACTERS = 200


@dataclass(frozen=True, kw_only=True)
class ReferenceTokenizer:
    """A tokenizer under the names of Megatron's tools.

    Attributes:
        tokenizer_type: GPT2BPE, HuggingFaceTokenizer, SentencePieceTokenizer, TikTokenizer, BertWordPieceLowerCase,
            NullTokenizer, …: gives the ids of Megatron's tokenizer of this type; downloads nothing.
        tokenizer_model: file or folder of the tokenizer.
        vocab_file: GPT-2's vocab.json, or BERT's vocab.txt.
        merge_file: GPT-2's merges.txt.
        vocab_size: number of ids of NullTokenizer, TikTokenizer.
        tokenizer_special_tokens: further special tokens.
        tiktoken_num_special_tokens: ids reserved for them (default 1000).
        null_tokenizer_eod_id: id that ends a document.
        tokenizer_hf_no_include_special_tokens: leave out the special tokens of the tokenizer's own template.
    """

    GROUP = "a tokenizer under the names of Megatron's tools, instead of --tokenizer"
    WITHOUT_EFFECT: ClassVar[Any] = {
        "the ids of texts do not depend on it": (
            "--tokenizer-hf-include-special-tokens --tokenizer-hf-use-fast --tokenizer-hf-no-use-fast --pad-vocab-size "
            "--no-pad-vocab-size --padded-vocab-size=N --vocab-extra-ids=N --make-vocab-size-divisible-by=N"
        ),
        "the type decides it": "--tokenizer-metadata=N --metadata-path=N",
        "special tokens are those of the model": "--tokenizer-sentencepiece-legacy",
        "no code of a tokenizer is run": "--trust-remote-code",
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
        """Whether the reference puts texts into the template of this tokenizer."""
        return self.tokenizer_type in _TEMPLATED and not self.tokenizer_hf_no_include_special_tokens


@dataclass(frozen=True, kw_only=True)
class TokenizerOptions(ReferenceTokenizer):
    """The tokenizer.

    Attributes:
        tokenizer: a tokenizer.json, a SentencePiece .model, a .tiktoken, GPT-2's vocab.json or BERT's vocab.txt, or a
            folder with one; byte: bytes are ids; null:N: texts are lists of ids below N.
        tokenizer_kind: kind of tokenizer; auto: by the content of the file.
        tiktoken_pattern: expression by which tiktoken splits words, or r50k, p50k, cl100k, o200k (default: that of
            PATH.json or of a published file); v1 or v2 of TikTokenizer.
        eod_token: token that ends a document, if the tokenizer defines none.
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
        """Returns the tokenizer; `bos_token` begins a document, if the tokenizer defines none."""
        from tokenloom.tokenizers.load import load_tokenizer

        if self.tokenizer is not None and (self.tokenizer_type or self.tokenizer_model):
            other = "--tokenizer-type" if self.tokenizer_type else "--tokenizer-model"
            refuse(f"--tokenizer and {other} both name one", hint="leave one out")
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
    """Processes and threads of a job.

    Attributes:
        num_processes: number of processes on this machine (default: one per 8 processors, or fewer).
        num_workers: number of threads (default: one per processor).
        runner: run on this machine or on a Ray cluster.
        ray_address: address of the cluster (default: one on this machine, or a new one).
        restart: drop the work of an interrupted run.
    """

    GROUP = "execution"

    num_processes: Annotated[int | None, Written(names=("--processes",))] = None
    num_workers: Annotated[int | None, Written(names=("--workers",))] = None
    runner: Literal["local", "ray"] = "local"
    ray_address: str | None = None
    restart: bool = False

    def job_arguments(self, function: Callable[..., Any], **others: Any) -> dict[str, Any]:
        """Returns the options as arguments of a job's function; see `arguments_of`."""
        runner: Runner | None = None
        if self.runner == "ray":
            from tokenloom.preprocess.ray_runner import RayRunner

            runner = RayRunner(address=self.ray_address, num_workers=self.num_workers or 1)
        return arguments_of(self, function, **{"runner": runner, **others})


@dataclass(frozen=True, kw_only=True)
class JobOptions(RunnerOptions):
    """Outputs of a job.

    Attributes:
        output_prefix: path of the outputs without suffix.
        overwrite: replace outputs of another run.
        work_folder: folder of unfinished work (default PREFIX.job).
        verbose: print all numbers as a table.
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
        """Returns the summary of a job."""
        record = {**members(summary), "num_tokens": summary.num_tokens}

        def lines() -> Iterator[str]:
            if self.verbose:
                yield from facts_lines(self.output_prefix, record | {"datasets": [*map(members, summary.datasets)]})
            time = "all of it was done before" if summary.was_complete else f"in {summary.seconds:.1f} s"
            num_tokens = summary.numbers.get("num_text_tokens", summary.num_tokens)
            yield f"{self.output_prefix}: {summary.num_documents:,} documents, {num_tokens:,} tokens, {time}"
            if doubled := summary.numbers.get("num_doubled"):
                yield f"{doubled:,} texts already spell out a token that was added"
            if summary.num_rejected:
                yield f"{summary.num_rejected:,} bad records are set aside in {', '.join(summary.rejected_paths)}"

        return Answer(record, lines())


def written(**fields: Written) -> Written:
    """Returns the options of a job's settings; `fields` are those of some jobs only."""
    origins = Written(help="write no PREFIX.origins.npy, which maps documents to files and records")
    aside = "move any number of bad records to PREFIX.rejected.jsonl instead of stopping"
    skipped = {"action": "store_const", "const": BadRecordBudget(most=None), "help": aside}
    others, parse = {"--skip-bad-lines": skipped}, BadRecordBudget.parse
    bad_records = Written(names=("--max-bad-records",), metavar="N|P%", parse=parse, others=others)
    return Written(without=("block_bytes",), fields={"bad_records": bad_records, "origins": origins, **fields})


_SETTINGS = written(
    keys=Written(names=("--json-keys",), metavar="KEY"),
    input_format=Written(choices=tuple(FORMATS)),
    shares=Written(
        names=("--split",),
        metavar="SPLIT",
        parse=shares,
        help="share of documents per dataset, assigned by a hash of their text: train=0.99,valid=0.01 or 98,1,1",
    ),
)


@dataclass(frozen=True, kw_only=True)
class TextOptions(TokenizerOptions, JobOptions, JsonOption):
    """Tokenize a corpus into PREFIX_KEY_document.bin and .idx. Run the same command again to resume an interrupted job;
    run it on several machines with a shared folder to divide the work.

    Attributes:
        inputs: files, folders, patterns, s3:// addresses, @LIST, or - for standard input: JSON lines, text, Parquet,
            Arrow and Hugging Face datasets; gzip, zstd, bz2, xz.
        named_inputs: the inputs; files of unknown format are JSON lines.
        partitions: number of processes, which share --workers.
        lang: language of sentences, only english; other texts may be lists of sentences under each key.
        dataset_impl: the only format.
        bos_token: token that begins a document, if the tokenizer defines none.
        dry_run: show the first N documents as tokenized, write nothing.
        json: print one JSON object: num_files, num_ignored, num_shards, num_shards_reused, was_complete, num_documents,
            num_duplicates, num_blank_lines, num_rejected, rejected_paths, num_text_bytes, num_tokens, dtype, engine,
            engine_reason, seconds, in datasets key, split, prefix, num_documents, num_empty, num_sequences, num_tokens,
            num_bytes of each, and in numbers num_doubled.
    """

    ONE_OF: ClassVar[Any] = {"INPUT (or --input)": ("inputs", "named_inputs")}
    WITHOUT_EFFECT: ClassVar[Any] = {
        "documents have the order of the input in any case": "--keep-sequential-samples",
        "progress is shown by time": "--log-interval=N",
        "a job has a thread per processor, and prints its speed": (
            "--find-optimal-num-workers --workers-to-check=N… --max-documents=N"
        ),
        "texts are no conversations, see preprocess-chat": "--chat-template=N",
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
    from tokenloom.preprocess.text import preprocess_corpus, preview_corpus

    options = _settled(options)
    tokenizer = options.load_tokenizer(bos_token=options.bos_token)
    if options.dry_run is not None:
        names = options.inputs, options.output_prefix
        preview = preview_corpus(*names, tokenizer, options.settings, count=options.dry_run)
        return Answer(preview, _preview_lines(preview))
    summary = preprocess_corpus(**options.job_arguments(preprocess_corpus, tokenizer=tokenizer))
    return options.answer(summary)


def _settled(options: TextOptions) -> TextOptions:
    """Returns the options with those of Megatron's tool moved to ours."""
    settings, both = options.settings, "leave one out"
    if options.has_template:
        settings = replace(settings, template_tokens=True)
    if options.inputs and options.named_inputs:
        refuse("INPUT and --input both name inputs", hint=both)
    if options.named_inputs and settings.input_format is None and not any(map(os.path.isdir, options.named_inputs)):
        from tokenloom.inputs.find import formats_by_name

        known = {formats[0] for formats in map(formats_by_name, options.named_inputs) if len(formats) == 1}
        if known <= {"jsonl"}:  # the format that Megatron's tool assumes
            settings = replace(settings, input_format="jsonl")
    if options.partitions is not None:
        if options.num_processes is not None:
            refuse("--partitions and --processes both set the number of processes", hint=both)
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
            yield "  its text already spells out a token that is added"
        if not document.is_exact:
            yield "  decoding does not give the text back: the tokenizer normalises it, or lacks characters"
    bad = [members(each, "path", "unit", "line", "reason") for each in preview.bad_lines]
    yield from facts_lines("in all; nothing was written", {**members(preview), "documents": None, "bad_lines": bad})


@dataclass(frozen=True, kw_only=True)
class ChatOptions(TokenizerOptions, JobOptions, JsonOption):
    """Tokenize conversations into PREFIX.bin, PREFIX.idx and PREFIX.roles.npy, which marks prompts and answers. Run the
    same command again to resume an interrupted job; run it on several machines with a shared folder to divide the work.

    Attributes:
        input_path: JSON lines (.jsonl; also .gz, .zst, .bz2, .xz), .parquet or .arrow.
        json: print one JSON object with the keys of `preprocess`, and num_answer_tokens in numbers.
    """

    input_path: Annotated[str, INPUT]
    settings: Annotated[ChatSettings, written()] = field(default_factory=ChatSettings)


def preprocess_chat(options: ChatOptions) -> Answer:
    from tokenloom.preprocess import chat

    job = chat.preprocess_chat
    return options.answer(job(**options.job_arguments(job, tokenizer=options.load_tokenizer())))


@dataclass(frozen=True, kw_only=True)
class MultimodalOptions(TokenizerOptions, JobOptions, JsonOption):
    """Tokenize texts and store their images in PREFIX.bin and .idx: a document is the text (mode 0), then the bytes of
    the image file (mode 1). Run the same command again to resume an interrupted job; run it on several machines with a
    shared folder to divide the work.

    Attributes:
        input_path: JSON lines, or a folder of pairs with equal names, such as cat.txt and cat.jpg.
        input_image: folder of images, one per record, sorted by name, as for Megatron's preprocess_mmdata.py;
            PREFIX.pairs.jsonl lists the pairs.
        json: print one JSON object with the keys of `preprocess`, and num_text_tokens, num_image_bytes and
            num_truncated in numbers.
    """

    WITHOUT_EFFECT: ClassVar[Any] = {
        "texts are not split, and progress is shown by time": "--log-interval=N --lang=N",
        "texts are not split": "--split-sentences --keep-newlines",
    }

    input_path: Annotated[str, INPUT]
    settings: Annotated[MultimodalSettings, written()] = field(default_factory=MultimodalSettings)
    input_image: Annotated[str | None, Written(metavar="FOLDER")] = None


def preprocess_multimodal(options: MultimodalOptions) -> Answer:
    from tokenloom.preprocess import multimodal
    from tokenloom.preprocess.blocks import TemplateTokens

    tokenizer, path = options.load_tokenizer(), options.input_path
    if options.has_template and TemplateTokens.of(tokenizer) != TemplateTokens():
        message = f"the template of `{tokenizer.path}` adds special tokens, which this command does not support"
        refuse(message, hint="leave them out with --tokenizer-hf-no-include-special-tokens")
    if options.input_image is not None:
        images, path, key = options.input_image, f"{options.output_prefix}.pairs.jsonl", options.settings.image_key
        multimodal.write_image_records(options.input_path, images, path, image_key=key, overwrite=options.overwrite)
    job = multimodal.preprocess_multimodal
    return options.answer(job(**options.job_arguments(job, input_path=path, tokenizer=tokenizer)))
