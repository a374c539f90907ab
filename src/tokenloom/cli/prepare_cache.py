"""`tokenloom prepare-cache`: build the indices of a run before it starts."""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass
from typing import Annotated, Any

from tokenloom.blending.builder import BlendedMegatronDatasetBuilder
from tokenloom.cli.json_output import print_json
from tokenloom.cli.options import UsageError, Written
from tokenloom.cli.run_options import CACHE
from tokenloom.cli.tokenising_options import TokenizerOptions
from tokenloom.cli.trainer_options import TrainerOptions
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
