"""One tokenizer: of any library, loaded from its file, and the engines that encode many texts with it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__package__, __file__)
