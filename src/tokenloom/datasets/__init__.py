"""A sample by number: configurations, the base class, and the dataset family."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__package__, __file__)
