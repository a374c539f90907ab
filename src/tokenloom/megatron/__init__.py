"""Megatron's names, hooks and behaviours: programs that were written for its data classes run on those of tokenloom.

The modules below mirror those of the reference. `from tokenloom.megatron.core.datasets.gpt_dataset import GPTDataset`
is what `from megatron.core.datasets.gpt_dataset import GPTDataset` was. `install()` lets the latter give the former,
and `python -m tokenloom.megatron pretrain_gpt.py …` runs a program so.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__package__, __file__)
