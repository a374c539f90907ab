"""Variable lengths into balanced microbatches: planning, exchanging, batches of packs."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__package__, __file__)
