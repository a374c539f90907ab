"""Synchronization of the ranks of `torch.distributed`: one rank builds for all; if one fails, all raise its error."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__package__, __file__)
