"""Text and conversations into datasets: a whole corpus as a job, and the parts of that."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__package__, __file__)
