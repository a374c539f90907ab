"""Drop-in replacements for Megatron's data modules: same names, signatures and hooks (methods to override).

`tokenloom.megatron.core.datasets.gpt_dataset` replaces `megatron.core.datasets.gpt_dataset`, and so on. `install()`
redirects imports of Megatron's modules to the replacements; `python -m tokenloom.megatron pretrain_gpt.py …` calls
`install()` and runs the script.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__package__, __file__)
