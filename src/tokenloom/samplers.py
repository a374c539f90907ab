"""Batch-size schedules, and samplers, which assign sample positions to ranks."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__package__, __file__)
