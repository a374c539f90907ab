"""`megatron.core.datasets`; unlike Megatron's package, this package exports the classes by name."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__package__, __file__)
