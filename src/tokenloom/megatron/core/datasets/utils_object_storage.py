"""`megatron.core.datasets.utils_object_storage`: another name of `object_storage_utils`."""

from tokenloom.megatron.core.datasets.object_storage_utils import *  # noqa: F403
