"""Checks around tokenloom: whether a machine is fit (`doctor`), benchmarks stand in data (`contamination`), a loader
resumes exactly, documents are apart in a model, an order is well shuffled, packs are full."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__package__, __file__)
