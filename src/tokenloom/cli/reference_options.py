"""Options as Megatron's tools call them, on the commands that do the same; and what they stand for."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tokenloom.cli.parser import CommandParser
from tokenloom.cli.stopping import say
from tokenloom.cli.values import count, whole_number
from tokenloom.errors import ConfigError

if TYPE_CHECKING:
    from tokenloom.tokenizers.text_tokenizer import TextTokenizer

_TEMPLATED = ("HuggingFaceTokenizer", "GPT2BPETokenizer", "GPT2BPE", "BertWordPieceLowerCase", "BertWordPieceCase")
"""Types whose texts the reference puts into the tokenizer's own template, unless it is told not to."""

_LANGUAGE = "english"


class WithoutEffect(argparse.Action):
    """Takes an option that changes nothing here; `say_without_effect` tells, with the reason, its `const`."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, True if self.nargs == 0 else values)
        before = vars(namespace).get("without_effect", ())
        namespace.without_effect = (*before, f"{option_string} has no effect here: {self.const}")


def add_without_effect(group: Any, *names: str, reason: str, nargs: int | str | None = None) -> None:
    """Declares options that are taken, and change nothing; help does not show them.

    Args:
        group: parser or group.
        names: names of the options.
        reason: they change nothing.
        nargs: number of their values; None for one.
    """
    for name in names:
        group.add_argument(name, action=WithoutEffect, nargs=nargs, const=reason, help=argparse.SUPPRESS)


def say_without_effect(options: argparse.Namespace) -> None:
    """Says which options changed nothing, and why."""
    for note in vars(options).get("without_effect", ()):
        say(note)


def add_reference_tokenizer(parser: argparse.ArgumentParser) -> None:
    """Declares a tokenizer as Megatron's tools name one; `reference_tokenizer_of` loads it."""
    group = parser.add_argument_group("a tokenizer as Megatron's tools name it, instead of --tokenizer")
    group.add_argument(
        "--tokenizer-type",
        metavar="TYPE",
        help="GPT2BPE, HuggingFaceTokenizer, SentencePieceTokenizer, TikTokenizer, BertWordPieceLowerCase, "
        "NullTokenizer, …: the ids that Megatron's tokenizer of this type gives; nothing is downloaded",
    )
    group.add_argument("--tokenizer-model", metavar="PATH", help="file or folder of the tokenizer")
    group.add_argument("--vocab-file", metavar="FILE", help="GPT-2's vocab.json, or BERT's vocab.txt")
    group.add_argument("--merge-file", metavar="FILE", help="GPT-2's merges.txt")
    group.add_argument("--vocab-size", type=count, metavar="N", help="number of ids of NullTokenizer, TikTokenizer")
    group.add_argument(
        "--tokenizer-special-tokens", "--special-tokens", nargs="+", metavar="TOKEN", help="further special tokens"
    )
    group.add_argument(
        "--tiktoken-num-special-tokens", type=count, metavar="N", help="ids kept for them (default 1000)"
    )
    group.add_argument("--null-tokenizer-eod-id", type=whole_number, metavar="N", help="id that ends a document")
    group.add_argument(
        "--tokenizer-hf-no-include-special-tokens",
        action="store_true",
        help="put no special tokens of the tokenizer's own template around each text",
    )
    same = "the ids of texts do not depend on it"
    for name in ("--tokenizer-hf-include-special-tokens", "--tokenizer-hf-use-fast", "--tokenizer-hf-no-use-fast"):
        add_without_effect(group, name, nargs=0, reason=same)
    for name in ("--padded-vocab-size", "--vocab-extra-ids", "--make-vocab-size-divisible-by"):
        add_without_effect(group, name, reason=same)
    add_without_effect(group, "--pad-vocab-size", "--no-pad-vocab-size", nargs=0, reason=same)
    add_without_effect(group, "--tokenizer-metadata", "--metadata-path", reason="the type says all that is needed")
    add_without_effect(group, "--tokenizer-sentencepiece-legacy", nargs=0, reason="special tokens are the model's own")
    add_without_effect(group, "--trust-remote-code", nargs=0, reason="no code of a tokenizer is run")
    add_without_effect(group, "--use-gigatoken", nargs=0, reason="it is used wherever it is exact, see --engine")


def reference_tokenizer_of(options: argparse.Namespace) -> TextTokenizer | None:
    """Returns the tokenizer that these options name; None if they name none.

    Raises:
        ConfigError: they name two, or one that cannot be meant.
        TokenizerError: a file is no such tokenizer.
    """
    if options.tokenizer_type is None and options.tokenizer_model is None:
        for name in ("vocab_file", "merge_file", "vocab_size"):
            if vars(options)[name] is not None:
                message = f"expected --tokenizer-type with --{name.replace('_', '-')}, found none"
                raise ConfigError(message)
        return None
    if options.tokenizer is not None:
        message = (
            f"--tokenizer and {'--tokenizer-type' if options.tokenizer_type else '--tokenizer-model'} both name one"
        )
        raise ConfigError(message, hint="leave one out")
    from tokenloom.megatron.versions import reference_version
    from tokenloom.tokenizers.load import load_tokenizer
    from tokenloom.tokenizers.reference_types import ReferenceTokenizerOptions, load_reference_tokenizer

    if options.tokenizer_type is None:
        return load_tokenizer(options.tokenizer_model, kind=options.tokenizer_kind, eod_token=options.eod_token)
    return load_reference_tokenizer(
        ReferenceTokenizerOptions.of(vars(options)),
        null_has_own_eod=reference_version() < (0, 17),
        eod_token=options.eod_token,
    )


def has_template(options: argparse.Namespace) -> bool:
    """Whether the reference puts texts into the template of the tokenizer that these options name."""
    return options.tokenizer_type in _TEMPLATED and not options.tokenizer_hf_no_include_special_tokens


def refuse_template(options: argparse.Namespace, tokenizer: TextTokenizer) -> None:
    """Refuses a tokenizer whose template has tokens, where nothing can put them around texts.

    Raises:
        ConfigError: it is one, and nobody has said that they are to be left out.
    """
    from tokenloom.preprocess.document_tokens import TemplateTokens

    if has_template(options) and TemplateTokens.of(tokenizer) != TemplateTokens():
        message = f"the template of `{tokenizer.path}` puts special tokens around texts, which this command does not"
        raise ConfigError(message, hint="leave them out with --tokenizer-hf-no-include-special-tokens")


def add_reference_preprocessing(parser: CommandParser) -> None:
    """Declares what else Megatron's `preprocess_data.py` takes; `settle_preprocessing` reads it."""
    group = parser.add_argument_group("as Megatron's preprocess_data.py calls it")
    group.add_argument(
        "--input",
        nargs="+",
        metavar="PATH",
        dest="named_inputs",
        help="the inputs; text whose name does not tell its format is JSON lines",
    )
    group.add_argument(
        "--partitions", type=count, metavar="N", help="number of processes, among which --workers are divided"
    )
    group.add_argument("--lang", metavar="LANGUAGE", default=_LANGUAGE, help="language of sentences: english only")
    add_without_effect(
        group, "--keep-sequential-samples", nargs=0, reason="documents have the order of the input in any case"
    )
    add_without_effect(group, "--log-interval", reason="progress is shown by time")
    add_without_effect(group, "--workers-to-check", nargs="+", reason="--find-optimal-workers chooses what to try")
    add_without_effect(group, "--max-documents", reason="trials read as much as they need")
    add_without_effect(group, "--chat-template", reason="texts are no conversations: see preprocess-chat")
    group.add_argument("--dataset-impl", choices=("mmap",), help="the one format that there is")
    parser.require_any("inputs", "named_inputs", words="INPUT (or --input)")


def settle_preprocessing(options: argparse.Namespace) -> None:
    """Puts what `add_reference_preprocessing` has read where the command's own options are.

    Raises:
        ConfigError: inputs are named twice or not at all, or an option cannot be meant.
    """
    if options.lang != _LANGUAGE:
        message = f"expected sentences in {_LANGUAGE}, found --lang {options.lang}"
        raise ConfigError(message, hint="split them before, a sentence of a list under each key")
    if options.inputs and options.named_inputs:
        message = "--input and inputs without an option both name inputs"
        raise ConfigError(message, hint="leave one out")
    if options.named_inputs:
        options.inputs = options.named_inputs
        options.input_format = options.input_format or _format_of(options.inputs)
    if options.partitions is not None:
        if options.processes is not None:
            message = "--partitions and --processes both say how many processes"
            raise ConfigError(message, hint="leave one out")
        options.processes = options.partitions
        if options.workers is not None:
            options.workers = max(1, options.workers // options.partitions)


def _format_of(names: Sequence[str]) -> str | None:
    """Returns JSON lines for files whose names tell no other format: what Megatron's tool takes any file for."""
    from tokenloom.inputs.detect import formats_by_name

    by_name = [formats_by_name(name) for name in names]
    told = {formats[0] for formats in by_name if len(formats) == 1}
    return "jsonl" if told <= {"jsonl"} and not any(map(os.path.isdir, names)) else None
