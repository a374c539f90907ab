"""`tokenloom preprocess-multimodal`: texts and images into a dataset."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

from tokenloom.cli import console
from tokenloom.cli.json_output import print_json
from tokenloom.cli.options import UsageError, WithoutEffect, Written
from tokenloom.cli.tokenising_options import JobOptions, TokenizerOptions, written
from tokenloom.errors import ConfigError
from tokenloom.preprocess.settings import MultimodalSettings

if TYPE_CHECKING:
    from tokenloom.tokenizers.text_tokenizer import TextTokenizer


@dataclass(frozen=True, kw_only=True)
class ReferenceMultimodal:
    """What Megatron's `preprocess_mmdata.py` takes.

    Attributes:
        named_input: the input.
        input_image: images that go with the records by their order, sorted by name; PREFIX.pairs.jsonl says which with
            which.
    """

    GROUP: ClassVar[str] = "as Megatron's preprocess_mmdata.py calls it"
    WITHOUT_EFFECT: ClassVar[tuple[WithoutEffect, ...]] = (
        WithoutEffect(("--log-interval", "--lang"), "texts are not cut, and progress is shown by time"),
        WithoutEffect(("--split-sentences", "--keep-newlines"), "texts are not cut", nargs=0),
    )

    named_input: Annotated[str | None, Written(names=("--input",), metavar="FILE")] = None
    input_image: Annotated[str | None, Written(metavar="FOLDER")] = None


@dataclass(frozen=True, kw_only=True)
class Options(TokenizerOptions, JobOptions, ReferenceMultimodal):
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
    json: bool = False

    @property
    def input(self) -> str:
        """The one input.

        Raises:
            UsageError: there are several, or none.
        """
        names = [*self.inputs, *([self.named_input] if self.named_input else [])]
        if len(names) != 1:
            message = f"expected one INPUT, or one --input, found {len(names)}"
            raise UsageError(message)
        return names[0]


def run(options: Options) -> int:
    """Writes the dataset and prints the summary."""
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
    if options.json:
        print_json(summary)
        return 0
    rejected = "0" if summary.rejected_path is None else f"{summary.num_rejected:,} in {summary.rejected_path}"
    console.print_table(
        (named, ""),
        [
            *([("nothing to do", "all of it was done before")] if summary.was_complete else []),
            ("documents", f"{summary.num_documents:,}"),
            ("tokens of texts", f"{summary.num_text_tokens:,}"),
            ("bytes of images", f"{summary.num_image_bytes:,}"),
            ("texts cut off", f"{summary.num_truncated:,}"),
            ("rejected pairs", rejected),
            ("seconds", f"{summary.seconds:.2f}"),
            ("dataset", summary.prefix),
        ],
    )
    return 0


def _refuse_template(options: Options, tokenizer: TextTokenizer) -> None:
    """Refuses a tokenizer whose template has tokens, which nothing puts around texts here.

    Raises:
        ConfigError: it is one, and nobody has said that they are to be left out.
    """
    from tokenloom.preprocess.blocks import TemplateTokens

    if options.has_template and TemplateTokens.of(tokenizer) != TemplateTokens():
        message = f"the template of `{tokenizer.path}` puts special tokens around texts, which this command does not"
        raise ConfigError(message, hint="leave them out with --tokenizer-hf-no-include-special-tokens")
