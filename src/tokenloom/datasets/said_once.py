"""What was said of a configuration already, so that a blend of thousands of datasets warns once."""

from __future__ import annotations

import weakref

from tokenloom.datasets.config import BlendedMegatronDatasetConfig

_SAID: dict[int, set[str]] = {}
"""Topics by the identity of the configuration, as long as it lives."""


def is_new(config: BlendedMegatronDatasetConfig, topic: str) -> bool:
    """Whether nobody has asked this of a configuration and a topic before; from now on somebody has."""
    key = id(config)
    if key not in _SAID:
        _SAID[key] = set()
        weakref.finalize(config, _SAID.pop, key, None)
    if topic in _SAID[key]:
        return False
    _SAID[key].add(topic)
    return True
