"""Where bytes are: local files read by mapping or by position, and files that appear atomically."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__package__, __file__)
