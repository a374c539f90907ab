"""The `.bin`/`.idx` pair: reader, builder, merge and checks. FORMAT.md describes the format."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__package__, __file__)
