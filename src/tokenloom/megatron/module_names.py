"""The reference's modules that are ours here."""

from __future__ import annotations

from importlib.metadata import entry_points

_CORE = (
    "bert_dataset",
    "blended_dataset",
    "blended_megatron_dataset_builder",
    "blended_megatron_dataset_config",
    "data_schedule",
    "data_schedule_utils",
    "gpt_dataset",
    "helpers",
    "helpers_cpp",
    "indexed_dataset",
    "masked_dataset",
    "megatron_dataset",
    "megatron_tokenizer",
    "multimodal_dataset",
    "object_storage_utils",
    "t5_dataset",
    "utils",
    "utils_object_storage",
    "utils_s3",
)
_TRAINING = ("data_samplers", "fim_dataset", "sft_dataset", "utils", "varlen_dataset")

OURS = {
    name: f"tokenloom.{name}"
    for name in (
        *(f"megatron.core.datasets.{module}" for module in _CORE),
        *(f"megatron.training.datasets.{module}" for module in _TRAINING),
        "megatron.legacy.data.data_samplers",
    )
}
"""The name of each of the reference's modules, and that of ours; satellites add theirs as entry points."""

OURS.update((found.name, found.value) for found in entry_points(group="tokenloom.megatron_modules"))

PACKAGES = frozenset(name.rsplit(".", depth)[0] for name in OURS for depth in range(1, name.count(".") + 1))
"""The packages that they lie in, at any depth; these stay the reference's, where it is installed."""

EXPORTING = "megatron.core.datasets"
"""The package whose classes are there by name, too, which the reference's are not."""
