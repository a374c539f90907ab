"""Turns text and conversations into tokenized datasets: whole jobs, and the functions that a job consists of."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__package__, __file__)
