"""Retrieval-augmented training data (RETRO): a database of chunks, and samples with the neighbors of theirs."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__package__, __file__)
