"""Samplers that choose the positions of each rank, and loaders that read batches at these positions."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__package__, __file__)
