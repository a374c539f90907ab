"""`megatron.core.datasets.object_storage_utils`: settings and paths of datasets in object storage."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Protocol

import torch.distributed

from tokenloom.errors import ConfigError, DatasetNotFoundError
from tokenloom.megatron.core.datasets.utils import has_ranks
from tokenloom.storage.atomic import publish_bytes
from tokenloom.storage.resolve import exists, map_whole

S3_PREFIX = "s3://"
MSC_PREFIX = "msc://"


@dataclass
class ObjectStorageConfig:
    """Settings for reading a dataset in object storage.

    Attributes:
        path_to_idx_cache: local folder for copies of `.idx` files.
        bin_chunk_nbytes: maximum bytes per read of the `.bin` object.
    """

    path_to_idx_cache: str
    bin_chunk_nbytes: int = 256 * 1024 * 1024


S3Config = ObjectStorageConfig
"""The name of the class in older Megatron versions."""


class S3Client(Protocol):
    """An empty protocol for type annotations in programs; tokenloom does not use boto3."""


def is_object_storage_path(path: str) -> bool:
    """Returns whether a path starts with `s3://` or `msc://`."""
    return path.startswith((S3_PREFIX, MSC_PREFIX))


def get_index_cache_path(idx_path: str, object_storage_config: ObjectStorageConfig) -> str:
    """Returns the path of the local copy of an `.idx` object: `path_to_idx_cache/BUCKET/KEY`."""
    _check_address(idx_path)
    return os.path.join(object_storage_config.path_to_idx_cache, idx_path.partition("://")[2])


def parse_s3_path(path: str) -> tuple[str, str]:
    """Returns the bucket and the key of an `s3://` address; the key may be empty."""
    rest = path.removeprefix(S3_PREFIX)
    if rest == path or S3_PREFIX in rest:
        raise ConfigError(f"address must be `{S3_PREFIX}BUCKET/KEY`, got `{path}`")
    bucket, _, key = rest.partition("/")
    return bucket, key


def get_object_storage_access(path: str) -> str:
    """Returns the name of the client for a path: "s3" for `s3://`, else "msc"."""
    return "s3" if path.startswith(S3_PREFIX) else "msc"


def dataset_exists(path_prefix: str, idx_path: str, bin_path: str) -> bool:
    """Returns whether both objects of a pair exist; raises `StorageError` if the store cannot be read."""
    _check_address(path_prefix)
    return exists(idx_path) and exists(bin_path)


def cache_index_file(remote_path: str, local_path: str) -> None:
    """Copies an object to a local file; if `torch.distributed` is initialized, only rank 0 copies.

    The other ranks must call this after rank 0 has returned (use a barrier); else the missing file is an error.
    """
    _check_address(remote_path)
    if not has_ranks() or torch.distributed.get_rank() == 0:
        os.makedirs(os.path.dirname(local_path) or ".", exist_ok=True)
        publish_bytes(local_path, bytes(map_whole(remote_path)))
    if not os.path.exists(local_path):
        message = f"no file `{local_path}`: rank 0 has not copied `{remote_path}` yet"
        raise DatasetNotFoundError(message, hint="call `torch.distributed.barrier()` after rank 0 copied the object")


def _check_address(path: str) -> None:
    if not is_object_storage_path(path):
        raise ConfigError(f"address must start with `{S3_PREFIX}` or `{MSC_PREFIX}`, got `{path}`")
