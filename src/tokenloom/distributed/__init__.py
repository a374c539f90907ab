"""Ranks of `torch.distributed` as values: building together, failing together, comparing."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__package__, __file__)
