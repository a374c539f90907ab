"""Where a run stands, as a state to keep beside the weights: a position, and the digest of the order before it.

Positions are global, so a state says nothing of ranks, micro-batches, batch sizes or threads: any of them may be
another when the run goes on.
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
    """Whether a sampler has `position_after` and `begin_at`, be it a class of a user's own."""
    return hasattr(sampler, "position_after") and hasattr(sampler, "begin_at")


def in_order(sampler: Any, dataset: Any) -> Any:
    """Returns the sampler of a loader over a run, if a position says what it has yielded."""
    found = f"{type(sampler).__name__}, of which a position does not say what was read"
    hint = "use `MegatronPretrainingSampler`, or give the sampler `position_after` and `begin_at`; a run is in a "
    hint += "random order already"
    if is_in_order(sampler):
        hook = Overrides.of(sampler, ("position_after", "__iter__")).skipped("position_after", "__iter__")
        if hook is None:
            return sampler
        found = f"`{hook}`, which `position_after` does not know"
        hint = "override `position_after` and `begin_at` too"
    message = f"expected a sampler in the order of positions for a state of {type(dataset).__name__}, found {found}"
    raise ConfigError(message, hint=hint)


def loader_state(dataset: Any, consumed_samples: int) -> dict[str, Any]:
    """Returns the state of a run after so many samples of all ranks: plain values, the same on every rank.

    A `ThreadLoader` that stands there has the same, and as `read` what was read, if it knows that. With torch's
    DataLoader, count the samples of the batches that you were handed, and make the sampler that goes on with
    `consumed_of_state`.
    """
    consumed = checked_integer("consumed_samples", consumed_samples, at_least=0)
    if (order := order_of(dataset)) is None:
        message = f"expected a dataset that knows its order, such as that of a run, found {type(dataset).__name__}"
        raise ConfigError(message, hint="keep the consumed samples themselves")
    return {"version": _VERSION, **order.order_state(consumed)}


def read_of_state(state: Mapping[str, Any]) -> RangeDigest | None:
    """Returns what all ranks had read at a state that `consumed_of_state` has accepted, if it says so."""
    read = RangeDigest.parse(state["read"]) if state.get("read") is not None else None
    run, position = name_of_run(state["run"]), state["position"]
    if read is not None and (read.run, read.stop, read.share) != (run, position, None):
        message = f"expected a digest up to position {position} of run {run} as `read` of a state, found {read}"
        raise ConfigError(message, hint="leave `read` out to begin a new sum there")
    return read


def consumed_of_state(dataset: Any, state: Mapping[str, Any]) -> int:
    """Returns the samples that all ranks had consumed at a state: what the sampler that goes on is made with.

    Raises:
        ConfigError: it is no such state, or one of another run, of another past, of data that were replaced since, or
            beyond the end.
    """
    if not isinstance(state, Mapping):
        message = f"expected a mapping as the state of a loader, found {quoted(str(state))}"
        raise ConfigError(message)
    if (order := order_of(dataset)) is None:
        message = f"expected a state of a loader over {type(dataset).__name__}, found that of a run, {dict(state)!r}"
        raise ConfigError(message, hint="give the loader the dataset of that run")
    if (version := state.get("version")) != _VERSION:
        message = f"expected the state of a loader over a run, version {_VERSION}, found version {version!r}"
        hint = "that state is of a dataset that is no run; to go on in a run, give the sampler consumed samples"
        raise ConfigError(message, hint=hint if version == 1 else None)
    for name in ("run", "digest"):
        if not isinstance(state.get(name), str):
            message = f"expected a text as `{name}` of the state of a loader over a run, found {state.get(name)!r}"
            raise ConfigError(message)
    position = checked_integer("`position` of the state of a loader", state.get("position"), at_least=0)
    return order.position_of_state({"run": state["run"], "position": position, "digest": state["digest"]})
