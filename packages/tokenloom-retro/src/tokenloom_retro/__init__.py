"""Retrieval-augmented training data (RETRO): a database of text chunks, and samples with neighbors of their chunks."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__package__, __file__)
