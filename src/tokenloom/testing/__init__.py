"""Checks for what you bring yourself: whether a dataset, store or order does all that is asked of its kind."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__package__, __file__)
