"""Which samples each rank takes next: Megatron's samplers, for training, validation and batches that grow."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__package__, __file__)
