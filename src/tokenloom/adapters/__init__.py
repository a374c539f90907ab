"""Batches and samples as other frameworks want them: a few lines for each, over what the other namespaces have."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__package__, __file__)
