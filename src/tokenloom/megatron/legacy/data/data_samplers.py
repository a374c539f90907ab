"""`megatron.legacy.data.data_samplers`: where the samplers stood before `megatron.training.datasets`."""

from __future__ import annotations

from tokenloom.megatron.training.datasets.data_samplers import (
    HybridCPMegatronPretrainingSampler,
    MegatronFullValidationSampler,
    MegatronPretrainingRandomSampler,
    MegatronPretrainingSampler,
    RandomSeedDataset,
    Split,
    build_pretraining_data_loader,
    get_args,
)

__all__ = [
    "HybridCPMegatronPretrainingSampler",
    "MegatronFullValidationSampler",
    "MegatronPretrainingRandomSampler",
    "MegatronPretrainingSampler",
    "RandomSeedDataset",
    "Split",
    "build_pretraining_data_loader",
    "get_args",
]
