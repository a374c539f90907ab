"""`tokenloom prepare-cache`: build the indices of a run before it starts."""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from tokenloom.blending.builder import BlendedMegatronDatasetBuilder
from tokenloom.cli.json_output import print_json
from tokenloom.cli.options import UsageError, WithoutEffect, Written
from tokenloom.cli.run_options import CACHE, RunOptions
from tokenloom.cli.tokenising_options import TokenizerOptions
from tokenloom.datasets.base import MegatronDataset
from tokenloom.datasets.bert import BERTMaskedWordPieceDataset, BERTMaskedWordPieceDatasetConfig
from tokenloom.datasets.chat_config import SFTDatasetConfig, VarlenDatasetConfig
from tokenloom.datasets.config import BlendedMegatronDatasetConfig, GPTDatasetConfig
from tokenloom.datasets.fim import GPTFIMDataset, GPTFIMDatasetConfig
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.pair_samples import verification_of
from tokenloom.datasets.sft import SFTDataset
from tokenloom.datasets.splits import Split
from tokenloom.datasets.t5 import T5MaskedWordPieceDataset, T5MaskedWordPieceDatasetConfig
from tokenloom.datasets.varlen import VarlenDataset
from tokenloom.errors import ConfigError
from tokenloom.progress import if_stopped
from tokenloom.setting_types import Count, Number
from tokenloom.storage.json_files import parse_json

_EVAL_ITERS = 100
_COUNTS = (
    *("train_iters", "eval_iters", "eval_interval", "global_batch_size", "micro_batch_size"),
    *("step_batch_size_schedule", "phase_transition_iterations"),
)
"""Options that say that samples are to be counted as the trainer does."""

_HIDDEN = Written(is_hidden=True)


@dataclass(frozen=True, kw_only=True)
class TrainerOptions(RunOptions):
    """The samples and settings of a run, as Megatron's trainer calls them.

    Attributes:
        train_iters: steps of training.
        eval_iters: steps of each validation (default 100).
        eval_interval: steps of training between two validations.
        global_batch_size: samples of a step (default a micro-batch of each data-parallel rank).
        micro_batch_size: samples of a rank and micro-batch.
        eval_global_batch_size: samples of a step of validation (default those of training).
        tensor_model_parallel_size: ranks that share a layer.
        pipeline_model_parallel_size: ranks that share the layers.
        context_parallel_size: ranks that share a sample.
        start_eval_at_iter: step before which none validates.
        skip_train: validate once, and train nothing.
        world_size: ranks of the run.
        step_batch_size_schedule: batch sizes by tokens: 0:768 250B:1536.
        phase_transition_iterations: steps at which data change: the samples up to the next.
        iteration: step that the phase holds.
        sft: the same as --dataset sft.
        fim_data: the same as --dataset fim.
        mmap_bin_files: read .bin files by position.
        object_storage_cache_path: folder of copies of .idx files.
        per_dataset_sequences_path: counts of the datasets, see sequences-per-dataset.
    """

    GROUP: ClassVar[str] = "samples wanted, and settings, as Megatron's trainer calls them"
    WITHOUT_EFFECT: ClassVar[tuple[WithoutEffect, ...]] = (
        WithoutEffect(
            ("--dataloader-fast-cache-load", "--dataloader-defer-npy-index-mmap"),
            "it is for runs that read the indices",
            nargs=0,
        ),
        WithoutEffect(
            ("--no-create-attention-mask-in-dataloader", "--dataloader-inter-document-masking"),
            "no index depends on it",
            nargs=0,
        ),
        WithoutEffect(("--num-workers",), "nothing is loaded"),
    )

    train_iters: Count | None = None
    eval_iters: Count | None = None
    eval_interval: Count | None = None
    global_batch_size: Count | None = None
    micro_batch_size: Count | None = None
    eval_global_batch_size: Count | None = None
    tensor_model_parallel_size: Count | None = None
    pipeline_model_parallel_size: Count | None = None
    context_parallel_size: Count | None = None
    start_eval_at_iter: Number | None = None
    skip_train: bool = False
    world_size: Annotated[Count | None, Written(names=("--prepare-cache-world-size", "--world-size"))] = None
    step_batch_size_schedule: Annotated[str | None, Written(metavar="TEXT")] = None
    phase_transition_iterations: Annotated[str | None, Written(metavar="N,…")] = None
    iteration: Number = 0
    sft: bool = False
    fim_data: bool = False
    mock_data: Annotated[bool, _HIDDEN] = False
    reset_position_ids: Annotated[bool, _HIDDEN] = False
    reset_attention_mask: Annotated[bool, _HIDDEN] = False
    eod_mask_loss: Annotated[bool, _HIDDEN] = False
    allow_ambiguous_pad_tokens: Annotated[bool, _HIDDEN] = False
    mmap_bin_files: bool = True
    object_storage_cache_path: Annotated[str | None, Written(metavar="FOLDER")] = None
    per_dataset_sequences_path: Annotated[str | None, Written(metavar="FILE")] = None

    def wanted_sizes(self) -> list[int | None]:
        """Returns the samples of train, valid and test that the trainer asks for, else those that are wanted.

        Raises:
            ConfigError: they are named in another way too, or an option that counts is missing.
        """
        named = [name for name in _COUNTS if getattr(self, name) is not None]
        if not named:
            return super().wanted_sizes()
        others = [name for name in ("sizes", "valid_samples", "test_samples") if getattr(self, name) is not None]
        if others:
            message = f"--{others[0].replace('_', '-')} and --{named[0].replace('_', '-')} both say how many samples"
            raise ConfigError(message, hint="leave one out")
        from tokenloom.megatron.sample_counts import train_valid_test_num_samples

        values = vars(self) | {
            "seq_length": self.sequence_length,
            "eval_iters": self.eval_iters or _EVAL_ITERS,
            "_is_global_batch_size_explicitly_specified": self.global_batch_size is not None,
        }
        return list(train_valid_test_num_samples(values))

    def trainer_settings(self) -> dict[str, Any]:
        """Returns the settings of a configuration that these options name.

        Raises:
            ConfigError: data are to be made up, or counts cannot be read.
        """
        if self.mock_data:
            message = "--mock-data makes up samples, which have no indices"
            raise ConfigError(message, hint="name data with --data-path")
        from tokenloom.megatron.arg_blends import sequences_from_args

        names = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "object_storage_cache_path")
        settings: dict[str, Any] = {name: vars(self)[name] for name in names if vars(self)[name] not in (None, False)}
        if (counts := sequences_from_args(self)) is not None:
            settings["sequences_per_dataset"] = counts
        return settings


_KINDS: dict[str, tuple[type[MegatronDataset], type[BlendedMegatronDatasetConfig]]] = {
    "gpt": (GPTDataset, GPTDatasetConfig),
    "fim": (GPTFIMDataset, GPTFIMDatasetConfig),
    "bert": (BERTMaskedWordPieceDataset, BERTMaskedWordPieceDatasetConfig),
    "t5": (T5MaskedWordPieceDataset, T5MaskedWordPieceDatasetConfig),
    "sft": (SFTDataset, SFTDatasetConfig),
    "varlen": (VarlenDataset, VarlenDatasetConfig),
}
_FIM = {"fim_rate": 0.0, "fim_spm_rate": 0.0, "fim_extra_tokens": {"prefix": 0, "middle": 1, "suffix": 2}}
"""What the configuration asks for, and no index depends on."""

_KEPT = "indices that are complete are kept: run the same command again to go on"


def _setting(text: str) -> tuple[str, Any]:
    """Returns the name and the value of NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        message = f"expected NAME=VALUE, found {text!r}"
        raise ConfigError(message)
    try:
        return name, parse_json(value)
    except ValueError:
        return name, value


@dataclass(frozen=True, kw_only=True)
class Options(TrainerOptions, TokenizerOptions):
    """Build the indices of a run before it starts, on a machine without accelerators. They do not depend on the number
    of ranks: name the samples that the run will ask for (its steps times its global batch size), and the settings it
    will have.

    Attributes:
        dataset: kind of dataset that the run reads (default gpt).
        settings: a further setting of the run's configuration, its value as JSON or plain text, such as
            masking_probability=0.15 or add_extra_token_to_sequence=false; may be repeated.
        path_to_cache: folder of the index cache, here or in a bucket.
        seed: seed of the run.
        num_dataset_builder_threads: number of datasets built at once.
        verify: build all indices again and compare.
        verify_data: also read all data and compare them with their manifests; remembered, so that a run on this node
            with verify="full" has nothing to read.
        json: print one JSON object: path, verified, problems, sequence_length, and in datasets split, kind and
            num_samples of each.
    """

    dataset: Annotated[str | None, Written(choices=tuple(_KINDS))] = None
    settings: Annotated[
        tuple[tuple[str, Any], ...],
        Written(names=("--set",), metavar="NAME=VALUE", parse=_setting, is_repeated=True),
    ] = ()
    path_to_cache: Annotated[str, CACHE]
    seed: Number = 1234
    num_dataset_builder_threads: Count = 1
    verify: bool = False
    verify_data: bool = False
    json: bool = False

    @property
    def kind(self) -> str:
        """The kind of dataset that the run reads.

        Raises:
            UsageError: several are named.
        """
        named = ((self.dataset, True), ("sft", self.sft), ("fim", self.fim_data))
        kinds = sorted({name for name, is_named in named if name is not None and is_named})
        if len(kinds) > 1:
            message = f"expected one kind of dataset, found {' and '.join(kinds)}"
            raise UsageError(message)
        return kinds[0] if kinds else "gpt"


def run(options: Options) -> int:
    """Builds, and prints one line per dataset; 1 if verifying indices found a difference."""
    dataset_class, config_class = _KINDS[options.kind]
    sizes = options.wanted_sizes()
    settings = {
        **(_FIM if options.kind == "fim" else {}),
        **options.run_settings(),
        **options.trainer_settings(),
        "random_seed": options.seed,
        "tokenizer": _tokenizer(options),
        "verify": "full" if options.verify_data else "quick",
        **dict(options.settings),
    }
    known = {field.name: field.init for field in dataclasses.fields(config_class)}
    if options.window_policy != "concat":
        settings["window_policy"] = options.window_policy
    for name in settings:
        if not known.get(name):
            message = f"{config_class.__name__} has no setting `{name}`"
            near = difflib.get_close_matches(name, [each for each, settable in known.items() if settable], n=3)
            raise ConfigError(message, hint=f"did you mean {' or '.join(near)}?" if near else None)
    config = config_class(**settings)
    with if_stopped(lambda: _KEPT):
        built = BlendedMegatronDatasetBuilder(dataset_class, sizes, lambda: True, config).build()
    problems, datasets = [], []
    for split, entry in zip(Split, built, strict=True):
        for dataset in entry if isinstance(entry, list) else [entry]:
            if dataset is None:
                continue
            kind_name = type(dataset).__name__
            datasets.append({"split": split.name, "kind": kind_name, "num_samples": len(dataset)})
            if not options.json:
                print(f"{split.name}: {len(dataset)} samples of {config.sequence_length} tokens ({kind_name})")
            if options.verify:
                problems += dataset.verify_indices()
    if (verification := verification_of(config)) is not None:
        verification.wait()
    if options.json:
        print_json(
            {
                "path": options.path_to_cache,
                "verified": options.verify and not problems,
                "problems": problems,
                "sequence_length": config.sequence_length,
                "datasets": datasets,
            }
        )
        return 1 if problems else 0
    for problem in problems:
        print(f"problem: {problem}")
    print(f"indices in {options.path_to_cache}" + (", verified" if options.verify and not problems else ""))
    return 1 if problems else 0


def _tokenizer(options: Options) -> Any:
    """Returns the tokenizer; of Megatron's options Megatron's own where it is installed, for a run has that one."""
    if options.tokenizer_type is None:
        return options.load_tokenizer()
    from tokenloom.megatron.args import tokenizer_from_args

    values = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(options).items()}
    return tokenizer_from_args(values)  # with lists, as its own parser has them
