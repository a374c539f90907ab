"""The state of a loader over a run, for checkpoints: a position and the digest of the order before that position.

Positions are global, so the numbers of ranks and threads and all batch sizes may change on resuming.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenloom.datasets.protocols import order_of
from tokenloom.errors import ConfigError
from tokenloom.loading.sample_digests import RangeDigest, name_of_run
from tokenloom.numbers import checked_integer, quoted
from tokenloom.overrides import Overrides

_VERSION = 2


def is_in_order(sampler: Any) -> bool:
    return hasattr(sampler, "position_after") and hasattr(sampler, "begin_at")


def in_order(sampler: Any, dataset: Any) -> Any:
    """Returns `sampler`; raises if the sampler does not follow the order of positions, as a run's state requires."""
    if not is_in_order(sampler):
        message = f"{type(sampler).__name__} does not follow the order of positions, which a state of a run requires"
        raise ConfigError(message, hint="use `MegatronPretrainingSampler`, or add `position_after` and `begin_at`")
    if hook := Overrides.of(sampler, ("position_after", "__iter__")).skipped("position_after", "__iter__"):
        message = f"`{hook}` is overridden without `position_after`, which a state of {type(dataset).__name__} needs"
        raise ConfigError(message, hint="override `position_after` and `begin_at` too")
    return sampler


def loader_state(dataset: Any, consumed_samples: int) -> dict[str, Any]:
    """Returns the state of a run after all ranks together consumed `consumed_samples` samples; equal on all ranks.

    The state is an `order_state` (see `KnowsOrder`) with a `version`. The state of a `ThreadLoader` also has `read`,
    if known: the digest of the samples that all ranks have read. With torch's DataLoader, count the consumed samples
    yourself. To resume, pass the result of `consumed_of_state` to the sampler.
    """
    consumed = checked_integer("consumed_samples", consumed_samples, at_least=0)
    if (order := order_of(dataset)) is None:
        raise ConfigError(f"{type(dataset).__name__} is not a run, so it has no state", hint="save `consumed_samples`")
    return {"version": _VERSION, **order.order_state(consumed)}


def read_of_state(state: Mapping[str, Any]) -> RangeDigest | None:
    """Returns the digest of all ranks in a state, or None; call `consumed_of_state` first to validate the state."""
    read = RangeDigest.parse(state["read"]) if state.get("read") is not None else None
    run, position = name_of_run(state["run"]), state["position"]
    if read is not None and (read.run, read.stop) != (run, position):
        message = f"`read` of the state, {read}, does not end at position {position} of run {run}"
        raise ConfigError(message, hint="remove `read` from the state to start a new digest there")
    return read


def consumed_of_state(dataset: Any, state: Mapping[str, Any]) -> int:
    """Returns how many samples all ranks had consumed when `state` was saved; pass this number to the new sampler.

    Raises:
        ConfigError: `state` is not a loader state of a run, or its position, order or data do not match this run.
    """
    if not isinstance(state, Mapping):
        raise ConfigError(f"loader state must be a mapping, got {quoted(str(state))}")
    if (order := order_of(dataset)) is None:
        message = f"the state belongs to a run, but the dataset, {type(dataset).__name__}, is not a run"
        raise ConfigError(message, hint="pass the dataset of that run to the loader")
    if (version := state.get("version")) != _VERSION:
        message = f"version of the run's loader state: expected {_VERSION}, found {version!r}"
        raise ConfigError(message, hint="pass `consumed_samples` to the sampler instead" if version == 1 else None)
    for name in ("run", "digest"):
        if not isinstance(state.get(name), str):
            raise ConfigError(f"`{name}` of the loader state must be text, got {state.get(name)!r}")
    position = checked_integer("`position` of the loader state", state.get("position"), at_least=0)
    return order.position_of_state({"run": state["run"], "position": position, "digest": state["digest"]})
