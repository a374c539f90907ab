"""Blends, and the builder of the train, valid and test datasets of a configuration."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__package__, __file__)
