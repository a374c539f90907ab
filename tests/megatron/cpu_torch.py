"""A torch whose CUDA is the processor: Megatron's trainers ask for CUDA by name, and tests have none.

Call `pretend` before Megatron is imported. Tensors that are asked for on CUDA lie in memory; streams and
synchronisation do nothing; CUDA's random state is the processor's; nothing is compiled.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


class _OnTheProcessor(TorchFunctionMode):
    """Sends `device="cuda"` of every torch function to the processor."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("device") is not None:
            kwargs["device"] = CPU
        return function(*args, **kwargs)


def _itself(value: Any, *_: Any, **__: Any) -> Any:
    return value


def _nothing(*_: Any, **__: Any) -> None:
    return None


class _Stream:
    """A stream, or an event, on which everything is done at once."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = CPU

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing


def pretend() -> None:
    """Replaces what trainers use of CUDA; for the whole process."""
    torch.compile = lambda function=None, **_: _itself if function is None else function  # type: ignore[assignment]
    torch.Tensor.cuda = _itself  # type: ignore[method-assign]
    torch.nn.Module.cuda = _itself  # type: ignore[method-assign]
    replacements: dict[str, Any] = {
        "current_device": lambda: CPU,
        "current_stream": _Stream,
        "default_stream": _Stream,
        "Stream": _Stream,
        "Event": _Stream,
        "stream": lambda _: contextlib.nullcontext(),
        "synchronize": _nothing,
        "set_device": _nothing,
        "manual_seed": torch.manual_seed,
        "get_rng_state": lambda *_, **__: torch.get_rng_state(),
        "set_rng_state": lambda state, *_, **__: torch.set_rng_state(state),
    }
    for name, replacement in replacements.items():
        setattr(torch.cuda, name, replacement)
    torch.cuda.random.get_rng_state = replacements["get_rng_state"]
    _OnTheProcessor().__enter__()
