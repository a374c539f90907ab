"""`megatron.core.datasets.utils_s3`: the name of `object_storage_utils` in older Megatron versions."""

from tokenloom.megatron.core.datasets.object_storage_utils import S3_PREFIX as S3_PREFIX
from tokenloom.megatron.core.datasets.object_storage_utils import S3Client as S3Client
from tokenloom.megatron.core.datasets.object_storage_utils import S3Config as S3Config
