"""The state of a loader over a run, kept beside the weights: a position, and the digest of the order before it.

Positions are global: ranks, micro-batches, batch sizes and threads may change on resuming.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenloom.datasets.protocols import order_of
from tokenloom.errors import ConfigError
from tokenloom.loading.digest import RangeDigest, name_of_run
from tokenloom.numbers import checked_integer, quoted
from tokenloom.overrides import Overrides

_VERSION = 2


def is_in_order(sampler: Any) -> bool:
    """Whether a sampler has `position_after` and `begin_at`, as a user's own may have."""
    return hasattr(sampler, "position_after") and hasattr(sampler, "begin_at")


def in_order(sampler: Any, dataset: Any) -> Any:
    """Returns the sampler of a loader over a run, after checking that it is in the order of positions."""
    if not is_in_order(sampler):
        message = (
            f"{type(sampler).__name__} does not follow the order of positions, so its state cannot be saved for a run"
        )
        hint = "use `MegatronPretrainingSampler`, or give the sampler `position_after` and `begin_at`"
        raise ConfigError(message, hint=hint)
    if hook := Overrides.of(sampler, ("position_after", "__iter__")).skipped("position_after", "__iter__"):
        message = f"`{hook}` is overridden without `position_after`, which a state of {type(dataset).__name__} needs"
        raise ConfigError(message, hint="override `position_after` and `begin_at` too")
    return sampler


def loader_state(dataset: Any, consumed_samples: int) -> dict[str, Any]:
    """Returns the state of a run after `consumed_samples` of all ranks: plain values, the same on every rank.

    A `ThreadLoader` at that position has the same state, with `read`, the digest of all ranks, if it is known. With
    torch's DataLoader, count the samples of your batches, and resume with a sampler at `consumed_of_state`.
    """
    consumed = checked_integer("consumed_samples", consumed_samples, at_least=0)
    if (order := order_of(dataset)) is None:
        message = f"{type(dataset).__name__} is no run, which alone has a state"
        raise ConfigError(message, hint="keep the consumed samples themselves")
    return {"version": _VERSION, **order.order_state(consumed)}


def read_of_state(state: Mapping[str, Any]) -> RangeDigest | None:
    """Returns the digest of all ranks in a state that `consumed_of_state` has accepted, if any."""
    read = RangeDigest.parse(state["read"]) if state.get("read") is not None else None
    run, position = name_of_run(state["run"]), state["position"]
    if read is not None and (read.run, read.stop) != (run, position):
        message = f"`read` of the state: {read} does not end at position {position} of run {run}"
        raise ConfigError(message, hint="leave `read` out to begin a new sum there")
    return read


def consumed_of_state(dataset: Any, state: Mapping[str, Any]) -> int:
    """Returns the samples that all ranks had consumed at a state, for the sampler that resumes.

    Raises:
        ConfigError: `state` is no state of a run, or of another run, past or data, or beyond the end.
    """
    if not isinstance(state, Mapping):
        raise ConfigError(f"the state of a loader must be a mapping, got {quoted(str(state))}")
    if (order := order_of(dataset)) is None:
        message = f"the state is of a run, and the dataset, {type(dataset).__name__}, is none"
        raise ConfigError(message, hint="give the loader the dataset of that run")
    if (version := state.get("version")) != _VERSION:
        message = f"version of the state of a run: expected {_VERSION}, found {version!r}"
        hint = "that state is of a dataset that is no run; to go on in a run, give the sampler consumed samples"
        raise ConfigError(message, hint=hint if version == 1 else None)
    for name in ("run", "digest"):
        if not isinstance(state.get(name), str):
            raise ConfigError(f"`{name}` of the state of a loader must be text, got {state.get(name)!r}")
    position = checked_integer("`position` of the state of a loader", state.get("position"), at_least=0)
    return order.position_of_state({"run": state["run"], "position": position, "digest": state["digest"]})
