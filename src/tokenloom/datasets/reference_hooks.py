"""Methods of the reference's classes that nothing calls here: overriding one would have no effect, so it is refused."""

from __future__ import annotations

from collections.abc import Mapping

from tokenloom.overrides import Uncalled

_SAMPLES = ("__getitem__", "sample", "_query_document_sample_shuffle_indices")

_BY_NUMBER = "choose the samples in `_query_document_sample_shuffle_indices` or `__getitem__`"
_BY_ITEM = "change what `super().__getitem__(idx)` gives, in a `__getitem__`"

GPT_HOOKS: Mapping[str, Uncalled] = {
    "_build_document_sample_shuffle_indices": Uncalled(_BY_NUMBER),
    "_build_document_index": Uncalled(_BY_NUMBER),
    "_build_shuffle_index": Uncalled(_BY_NUMBER),
    "_get_num_epochs": Uncalled("say how many samples there are by `num_samples`, or in a `__len__`"),
    "_get_num_tokens_per_epoch": Uncalled("say how many samples there are by `num_samples`, or in a `__len__`"),
    "_get_ltor_masks_and_position_ids": Uncalled(_BY_ITEM, unless=_SAMPLES),
}

MASKED_HOOKS: Mapping[str, Uncalled] = {
    "_build_sample_index": Uncalled("choose the samples in a `__getitem__`"),
    "_create_masked_lm_predictions": Uncalled(_BY_ITEM, unless=_SAMPLES),
    "_get_token_mask": Uncalled(_BY_ITEM, unless=_SAMPLES),
}

_BUILDER = (
    "override `numel_low_level_dataset`, `build_low_level_dataset` or `__init__` of the dataset class, or `build`"
)

BUILDER_HOOKS: Mapping[str, Uncalled] = {
    name: Uncalled(_BUILDER, unless=("build",))
    for name in (
        "_build_blended_dataset_splits",
        "_build_megatron_datasets_parallel",
        "_build_megatron_dataset_splits",
        "build_generic_dataset",
    )
}
