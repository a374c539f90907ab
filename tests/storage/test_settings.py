"""Settings of object storage."""

from __future__ import annotations

import pytest

from tokenloom import (
    ConfigError,
    ObjectStorageSettings,
)


def test_settings_are_checked():
    with pytest.raises(ConfigError, match="expected concurrency of at least 1, found 0"):
        ObjectStorageSettings(concurrency=0)
    with pytest.raises(ConfigError, match=r"expected deadline_seconds above 0, found 0"):
        ObjectStorageSettings(deadline_seconds=0)
    with pytest.raises(ConfigError, match="expected cache_bytes of at least block_bytes = 10, found 9"):
        ObjectStorageSettings(cache_bytes=9, block_bytes=10)
