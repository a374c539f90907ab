"""A pytest plugin that runs Megatron's tests with tokenloom's data modules in place of Megatron's.

If the environment variable `PEER_SUITE_PLAIN` is set, Megatron keeps its own modules. Without a GPU, the plugin creates
CUDA tensors on the CPU and replaces NCCL by gloo, so that data tests run.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

if "PEER_SUITE_PLAIN" not in os.environ:
    import tokenloom.megatron

    tokenloom.megatron.install(unchecked=True)
elif find_spec("megatron.core.datasets.helpers_cpp") is not None:
    from megatron.core.datasets import utils

    utils.compile_helpers = lambda: None  # already compiled; some machines have no compiler


def _is_gpu(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and value.partition(":")[0] == "cuda"


class _OnCpu(TorchFunctionMode):
    """Creates tensors on the CPU that are requested on a GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        if _is_gpu(device) or (isinstance(device, int) and not isinstance(device, bool)):
            kwargs["device"] = "cpu"
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.to:
            args = tuple("cpu" if _is_gpu(each) or type(each) is int else each for each in args)
        kwargs.pop("pin_memory", None)
        return func(*args, **kwargs)


def _without_gpu() -> None:
    start = torch.distributed.init_process_group

    def init_process_group(backend: str | None = None, *args: Any, **settings: Any) -> None:
        settings.pop("device_id", None)
        start("gloo" if backend == "nccl" else backend, *args, **settings)

    torch.distributed.init_process_group = init_process_group
    for name, value in {"device_count": 1, "current_device": 0, "get_device_capability": (9, 0)}.items():
        setattr(torch.cuda, name, lambda *_, value=value: value)
    for name in ("set_device", "synchronize", "manual_seed", "empty_cache"):
        setattr(torch.cuda, name, lambda *_, **__: None)
    _OnCpu().__enter__()


if not torch.cuda.is_available():
    _without_gpu()
