"""Runs: `run.toml` and `run.lock` determine the sample at each position of a training run."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__package__, __file__)
