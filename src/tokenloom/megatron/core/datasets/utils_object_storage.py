"""`megatron.core.datasets.utils_object_storage`: another name of `object_storage_utils`."""

from __future__ import annotations

from tokenloom.megatron.core.datasets.object_storage_utils import (
    MSC_PREFIX,
    S3_PREFIX,
    ObjectStorageConfig,
    S3Client,
    S3Config,
    cache_index_file,
    dataset_exists,
    get_index_cache_path,
    get_object_storage_access,
    is_object_storage_path,
    parse_s3_path,
)

__all__ = [
    "MSC_PREFIX",
    "S3_PREFIX",
    "ObjectStorageConfig",
    "S3Client",
    "S3Config",
    "cache_index_file",
    "dataset_exists",
    "get_index_cache_path",
    "get_object_storage_access",
    "is_object_storage_path",
    "parse_s3_path",
]
