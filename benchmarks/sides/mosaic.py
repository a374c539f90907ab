"""Imports mosaicml-streaming without torchvision, whose released builds do not fit the torch that is pinned here."""

from __future__ import annotations

import sys
import types
from importlib.machinery import ModuleSpec

for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.functional", "torchvision.datasets"):
    module = types.ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)  # libraries look whether it is installed
    # Datasets of images derive from these; none is used here.
    module.VisionDataset = module.to_tensor = type("Missing", (), {})
    sys.modules[name] = module

from streaming import MDSWriter, StreamingDataset  # noqa: E402
from streaming.base.util import clean_stale_shared_memory  # noqa: E402

__all__ = ["MDSWriter", "StreamingDataset", "clean_stale_shared_memory"]
