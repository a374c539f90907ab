"""`megatron.core.datasets.utils_s3`: where `object_storage_utils` stood before."""

from __future__ import annotations

from tokenloom.megatron.core.datasets.object_storage_utils import S3_PREFIX, S3Client, S3Config

__all__ = ["S3_PREFIX", "S3Client", "S3Config"]
