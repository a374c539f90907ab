"""The process groups of a run of Megatron's, and what else of its state packing asks for."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import torch

from tokenloom.distributed.ranks import current_ranks
from tokenloom.errors import ConfigError
from tokenloom.packing.channels import Channel
from tokenloom.packing.groups import Place

_NAMES = ("dp", "cp", "dp_cp", "tp", "pp")


def parallel_state() -> Any:
    """Returns Megatron's module `parallel_state` where the program has initialised it; else None."""
    module = sys.modules.get("megatron.core.parallel_state")
    return module if module is not None and module.model_parallel_is_initialized() else None


def groups_of_run(pg_collection: Any, *names: str) -> dict[str, Any]:
    """Returns process groups by name: of a collection, else of Megatron's parallel state, else None for one process.

    Args:
        pg_collection: what has the names as attributes; None for Megatron's own groups.
        names: those that must be there, of dp, cp, dp_cp, tp and pp; of the others, those that are.

    Raises:
        ConfigError: one is missing, or nothing says what the groups of a run of several ranks are.
    """
    if pg_collection is not None:
        missing = [name for name in names if not hasattr(pg_collection, name)]
        if missing:
            message = f"expected process groups with the attributes {', '.join(names)}, found no {', '.join(missing)}"
            raise ConfigError(message)
        return {name: getattr(pg_collection, name, None) for name in _NAMES}
    state = parallel_state()
    if state is not None:
        return {
            "dp": state.get_data_parallel_group(),
            "cp": state.get_context_parallel_group(),
            "dp_cp": state.get_data_parallel_group(with_context_parallel=True),
            "tp": state.get_tensor_model_parallel_group(),
            "pp": state.get_pipeline_model_parallel_group(),
        }
    if (ranks := current_ranks()) is not None and ranks.world_size > 1:
        message = f"expected the process groups of a run of {ranks.world_size} ranks, found None"
        raise ConfigError(message, hint="initialise Megatron's `parallel_state`, or pass `pg_collection`")
    return dict.fromkeys(_NAMES)


def place_of_run(pg_collection: Any, *names: str) -> Place:
    """Returns where this process stands in those groups, with its context-parallel group of each size."""
    groups = groups_of_run(pg_collection, *names)
    own = getattr(pg_collection, "cp_of_size", None)
    dp, cp, tp, pp = (Channel(groups[name]) for name in ("dp", "cp", "tp", "pp"))
    return Place(dp, cp, tp, pp, groups["dp_cp"], GroupsBySize() if own is None else own, own_device())


def own_device() -> Any:
    """Returns where tensors of this process belong, whatever its groups work on: its GPU, if it has one."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


class GroupsBySize(Mapping[int, Any]):
    """This rank's context-parallel groups by their number of ranks, which Megatron is asked for one by one."""

    _NAMES = ("get_dynamic_data_context_parallel_groups", "get_hybrid_data_context_parallel_groups")
    """What it calls that, over the years."""

    def __getitem__(self, size: int) -> Any:
        state = sys.modules.get("megatron.core.parallel_state")
        get = next((getattr(state, name) for name in self._NAMES if hasattr(state, name)), None)
        if get is None:
            raise KeyError(size)
        try:
            return get(group_size=size)
        except AssertionError as error:  # it has made none
            raise KeyError(size) from error

    def __iter__(self) -> Iterator[int]:
        known = (2**power for power in range(20))
        return (size for size in known if size in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def global_arguments() -> Any:
    """Returns the arguments of Megatron's trainer, where it has parsed them.

    Raises:
        ConfigError: it has not.
    """
    variables = sys.modules.get("megatron.training.global_vars")
    arguments = None if variables is None else getattr(variables, "_GLOBAL_ARGS", None)
    if arguments is None:
        message = "expected a configuration, found None, and no arguments of Megatron's trainer"
        raise ConfigError(message, hint="pass `config`, or initialise Megatron first")
    return arguments


def current_num_microbatches() -> int:
    """Returns how many microbatches Megatron's calculator says a step has now.

    Raises:
        ConfigError: there is no calculator.
    """
    calculator = sys.modules.get("megatron.core.num_microbatches_calculator")
    if calculator is None or getattr(calculator, "_GLOBAL_NUM_MICROBATCHES_CALCULATOR", None) is None:
        message = "expected a number of microbatches, found None, and Megatron has none"
        raise ConfigError(message, hint="pass `num_microbatches`, or initialise Megatron's calculator")
    number: int = calculator.get_num_microbatches()
    return number


def as_megatrons_params(params: Any) -> Any:
    """Returns parameters of a pack as Megatron's own class, in programs that have loaded Megatron."""
    if "megatron.core" not in sys.modules:
        return params
    theirs = import_module("megatron.core.packed_seq_params").PackedSeqParams
    fields = {field.name for field in dataclasses.fields(theirs)}
    values = {field.name: getattr(params, field.name) for field in dataclasses.fields(params)}
    made = theirs(**{name: value for name, value in values.items() if name in fields})
    if "dataset_ids" in values:
        made.dataset_ids = values["dataset_ids"]
    return made


def tells_gaps() -> bool:
    """Whether Megatron's attention is told boundaries without padding, too: that of its development branch."""
    if "megatron.core" not in sys.modules:
        return False
    theirs = import_module("megatron.core.packed_seq_params").PackedSeqParams
    return any(field.name == "cp_partition_mode" for field in dataclasses.fields(theirs))


def rerunnable(iterator: Any) -> Any:
    """Returns an iterator that Megatron's state machine can rewind, in programs that have loaded Megatron."""
    if iterator is None or "megatron.core" not in sys.modules:
        return iterator
    return import_module("megatron.core.rerun_state_machine").RerunDataIterator(iterator)
