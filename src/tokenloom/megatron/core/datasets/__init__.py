"""`megatron.core.datasets`, with its classes by name, as published examples import them; the reference's has none."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__package__, __file__)
