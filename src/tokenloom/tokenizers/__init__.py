"""Loads tokenizers of several libraries, and encodes many texts with them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__package__, __file__)
