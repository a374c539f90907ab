"""`tokenloom show`: a document, a training sample, or what stands at a position of a run, decoded."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from tokenloom.cli.drawing import LookOptions, look_of, print_shown
from tokenloom.cli.json_output import print_json
from tokenloom.cli.options import Either, OneOf, UsageError, Written
from tokenloom.cli.run_options import SampleOptions
from tokenloom.cli.stopping import say
from tokenloom.cli.values import split_weights
from tokenloom.datasets.chat_config import SFTDatasetConfig
from tokenloom.datasets.config import GPTDatasetConfig
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.sft import SFTDataset
from tokenloom.datasets.splits import Split, split_indices
from tokenloom.errors import ConfigError, TokenizerError
from tokenloom.indexed.layout import prefix_of
from tokenloom.inspect.shown import Shown
from tokenloom.inspect.shown_data import OpenPair, shown_document, shown_sample
from tokenloom.loading.from_data import tokenizer_of_data
from tokenloom.run.run import Run
from tokenloom.setting_types import Number
from tokenloom.tokenizers.load import load_tokenizer
from tokenloom.tokenizers.text_tokenizer import TextTokenizer


@dataclass(frozen=True, kw_only=True)
class Options(SampleOptions, LookOptions):
    """Decode a document, or a training sample: a heading per document in it, end of document and other special tokens,
    padding, prompt and answer, and which tokens are labels with loss. Without a tokenizer, named or found by the
    manifest, a document is shown as token ids.

    Attributes:
        prefix: path of the pair without .bin or .idx.
        run_path: run.toml of a run, for --position.
        document: show document I.
        sample: show sample K of a split.
        position: show what stands at position N of a run.
        holdout: of a run: show what is held out instead.
        json: print one JSON object: heading, facts, notes, spans, first, num_tokens, and in tokens id, text, kind,
            part, loss and span of each.
        tokenizer: tokenizer.json or its folder (default: that of the data).
        ids: write the id of each token below it.
        split: 98,1,1 or train=0.99,valid=0.01.
        split_name: split of the sample.
        num_samples: samples asked for (default one epoch).
        path_to_cache: folder of the index cache.
    """

    EITHER: ClassVar[Either] = (("document", "sample", "position"),)
    ONE_OF: ClassVar[OneOf] = {"--document, --sample or --position": ("document", "sample", "position")}

    prefix: Annotated[str | None, Written(metavar="PREFIX", is_positional=True)] = None
    run_path: Annotated[str | None, Written(names=("--run",), metavar="RUN")] = None
    document: Annotated[int | None, Written(metavar="I")] = None
    sample: Annotated[int | None, Written(metavar="K")] = None
    position: Number | None = None
    holdout: bool = False
    tokenizer: Annotated[str | None, Written(metavar="PATH")] = None
    ids: bool = False
    json: bool = False
    split: Annotated[str, Written(parse=split_weights)] = "969,30,1"
    split_name: Annotated[str, Written(names=("--from",), choices=tuple(Split.__members__))] = "train"
    num_samples: Number | None = None
    path_to_cache: Annotated[str | None, Written(metavar="FOLDER")] = None

    def __post_init__(self) -> None:
        """Refuses options that do not go together."""
        if (self.run_path is None) == (self.prefix is None):
            message = "name a PREFIX or --run, one of both"
            raise UsageError(message)
        if (self.run_path is None) != (self.position is None):
            message = "--run and --position belong together"
            raise UsageError(message)
        if self.holdout and self.run_path is None:
            message = "--holdout is about positions of a run"
            raise UsageError(message)


def run(options: Options) -> int:
    """Prints what is asked for, a heading per document."""
    try:
        shown = _of_pair(options) if options.run_path is None else _of_run(options)
    except IndexError as error:
        say(f"error: {error}")
        return 1
    if options.json:
        print_json(shown)
    else:
        print_shown(shown, look_of(options, ids=options.ids))
    return 0


def _of_run(options: Options) -> Shown:
    assert options.run_path is not None  # looked at before
    assert options.position is not None
    opened = Run.open(options.run_path)
    tokenizer = tokenizer_of(opened) if options.tokenizer is None else load_tokenizer(options.tokenizer)
    dataset = opened.holdout() if options.holdout else opened.dataset()
    name = f"position {options.position:,} of {'what is held out' if options.holdout else 'the run'}"
    shown = shown_sample(dataset, options.position, tokenizer, run=None if options.holdout else opened)
    return dataclasses.replace(shown, heading=name)


def tokenizer_of(opened: Run) -> TextTokenizer | None:
    """Returns the tokenizer of a run; None if it names none, or one that cannot be loaded, which is said."""
    try:
        return None if opened.lock.tokenizer is None else opened.tokenizer.loaded
    except TokenizerError as error:
        say(f"the tokenizer of the run cannot be used: {error.message}")
        return None


def _of_pair(options: Options) -> Shown:
    assert options.prefix is not None  # looked at before
    pair, tokenizer = OpenPair(prefix_of(options.prefix)), None
    try:
        tokenizer = tokenizer_of_data(options.tokenizer, [pair.prefix])
    except TokenizerError as error:
        if options.tokenizer is not None or options.document is None:
            raise
        say(f"{error.message}: ids are shown")
    if options.document is not None:
        return shown_document(pair, options.document, tokenizer)
    if pair.data.multimodal:
        message = f"expected text in `{pair.prefix}`, found text and images"
        raise ConfigError(message, hint="samples are of text: show a document with --document")
    assert options.sample is not None
    samples = _samples(options, pair, tokenizer)
    name = f"sample {options.sample:,} of {len(samples):,} ({options.split_name})"
    return dataclasses.replace(shown_sample(samples, options.sample, tokenizer), heading=name)


def _samples(options: Options, pair: OpenPair, tokenizer: Any) -> GPTDataset | SFTDataset:
    """Returns the samples of a split alone, of conversations if the pair knows prompts from answers."""
    split = Split[options.split_name]
    is_chat = pair.roles is not None
    config_class, dataset_class = (SFTDatasetConfig, SFTDataset) if is_chat else (GPTDatasetConfig, GPTDataset)
    config = config_class(
        random_seed=options.seed,
        sequence_length=options.sequence_length,
        blend=([pair.prefix], None),
        split=options.split,
        path_to_cache=options.path_to_cache,
        tokenizer=tokenizer,
        window_policy=options.window_policy,
    )
    assert config.split_matrix is not None
    if (bounds := config.split_matrix[split.value]) is None:
        message = f"the split {options.split!r} leaves nothing for {split.name}"
        raise ConfigError(message)
    data: Any = dataset_class.build_low_level_dataset(pair.prefix, config)
    indices = split_indices(bounds, dataset_class.numel_low_level_dataset(data))
    return dataset_class(data, pair.prefix, indices, options.num_samples, split, config)
