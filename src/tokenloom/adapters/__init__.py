"""Adapters that give documents, samples and batches to other frameworks: Arrow, Hugging Face, JAX, Lightning, Ray, …"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__package__, __file__)
