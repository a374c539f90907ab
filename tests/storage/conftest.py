import numpy as np
import pytest
from tests.object_store.fixtures import Bucket
from tests.storage.remotes import BLOCK, SETTINGS

from tokenloom.storage.objects import RemoteFile
from tokenloom.storage.statistics import forget_statistics


@pytest.fixture
def data(rng: np.random.Generator) -> bytes:
    return rng.integers(0, 256, size=10 * BLOCK + 77, dtype=np.uint8).tobytes()


@pytest.fixture
def remote(bucket: Bucket, data: bytes) -> RemoteFile:
    file = RemoteFile(bucket.put("some/object", data), SETTINGS)
    forget_statistics()
    bucket.proxy.counts.clear()
    return file
