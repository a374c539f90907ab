"""Which tokens are sample i: epochs, windows, shuffles, and the cache of the indices that say so."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__package__, __file__)
