"""Orders of samples: epochs, windows, packs, shuffles, and the cache of their indices."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__package__, __file__)
