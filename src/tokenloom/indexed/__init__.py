"""What bytes mean: the `.bin`/`.idx` pair, its reader, builder, merge and checks. The format is in FORMAT.md."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__package__, __file__)
