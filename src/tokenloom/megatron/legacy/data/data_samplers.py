"""`megatron.legacy.data.data_samplers`: where the samplers stood before `megatron.training.datasets`."""

from tokenloom.megatron.training.datasets.data_samplers import *  # noqa: F403
