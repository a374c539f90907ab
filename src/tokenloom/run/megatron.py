"""The reference's order as a run: built and cached by the builder, and never to be changed.

`run.lock` holds which data it reads, as for every run. Its samples are those of `BlendedMegatronDatasetBuilder`, bit
for bit, and so are the cached index arrays. What only a computed order can do is refused with the reason.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from tokenloom.blending.builder import BlendedMegatronDatasetBuilder
from tokenloom.blending.quota import normalize
from tokenloom.datasets.base import MegatronDataset
from tokenloom.datasets.fim import GPTFIMDataset
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.sft import SFTDataset
from tokenloom.datasets.varlen import VarlenDataset
from tokenloom.distributed.steps import do_together
from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.run.changes import Moved
from tokenloom.run.check import check_opened
from tokenloom.run.digest import content_of, ratio_of, run_identity
from tokenloom.run.lock import LockedPair, LockedSegment, LockedSource, RunLock
from tokenloom.run.members import Reading, run_config
from tokenloom.run.sample_settings import WITHOUT_EFFECT
from tokenloom.run.settings import RunSettings, whole_weights

CLASSES: Mapping[str, type[MegatronDataset]] = {
    "gpt": GPTDataset,
    "fim": GPTFIMDataset,
    "sft": SFTDataset,
    "varlen": VarlenDataset,
}
"""The class of a kind of dataset, by its name in a run."""

_WHOLE = "the reference's order is reshuffled as a whole by any change"


def megatron_segment(settings: RunSettings, sources: tuple[LockedSource, ...]) -> LockedSegment:
    """Returns the only segment of a run in the reference's order."""
    [stage] = settings.stages
    assert stage.weights is not None
    assert stage.num_samples is not None
    shares = dict(stage.weights)
    weights = [(number, shares[source.name]) for number, source in enumerate(sources) if source.name in shares]
    whole = _whole([share for _, share in weights])
    return LockedSegment(
        stage=stage.name,
        start=0,
        num_samples=stage.num_samples,
        sequence_length=stage.sequence_length,
        weights=tuple((number, weight) for (number, _), weight in zip(weights, whole, strict=True)),
    )


def first_moved_in_megatron(old: RunLock, new: RunLock) -> Moved | None:
    """Returns that the first position moves, if two locks, one of them in the reference's order, differ in anything."""
    before, after = _facts(old), _facts(new)
    for name, value in before.items():
        if value != after[name]:
            shown = (f"a sample of {name} {_short(each)}" for each in (value, after[name]))
            return Moved(position=0, before=next(shown), after=next(shown))
    return None


def check_past_in_megatron(old: RunLock, new: RunLock, consumed: int) -> None:
    """Checks that nothing has changed of a run that was read, if its order is or was the reference's.

    Raises:
        ConfigError: something has.
    """
    moved = first_moved_in_megatron(old, new) if consumed else None
    if moved is not None:
        message = (
            f"expected the {consumed} positions that were read to stay as they are, found {moved.before} that would "
            f"become {moved.after}: {_WHOLE}"
        )
        raise ConfigError(message, hint="undo that change; runs with `order = 1` can be changed while they run")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOrder:
    """What identifies the positions of a run in the reference's order: all of it is one thing.

    Attributes:
        run: identity of the run.
        digest: of everything that decides the order.
        num_samples: positions that there are.
    """

    run: str
    digest: str
    num_samples: int

    def order_state(self, position: int) -> dict[str, Any]:
        """Returns what to keep of a run that has consumed the samples before a position.

        Raises:
            ConfigError: the run has no such position.
        """
        self._check(position)
        return {"run": self.run, "position": position, "digest": self.digest_at(position)}

    def digest_at(self, position: int) -> str:
        """Returns a digest of what decides the positions before one: nothing at 0, else everything."""
        return self.digest if position else hashlib.sha256(b"").hexdigest()

    def position_of_state(self, state: Mapping[str, Any]) -> int:
        """Returns the position that a state is of.

        Raises:
            ConfigError: it is of another run, of one that was changed since, or lies beyond the end.
        """
        position: int = state["position"]
        if state["run"] != self.run:
            message = f"expected a state of this run, {self.run[:16]}…, found one of {state['run'][:16]}…"
            hint = "another seed, another order or other data at its beginning make another run; use its lock"
            raise ConfigError(message, hint=hint)
        self._check(position)
        if state["digest"] != (found := self.digest_at(position)):
            message = (
                f"expected the order that was read before position {position}, of digest {state['digest'][:16]}…, "
                f"found {found[:16]}…: {_WHOLE}"
            )
            raise ConfigError(message, hint="restore `run.toml` and `run.lock`")
        return position

    def _check(self, position: int) -> None:
        if not 0 <= position <= self.num_samples:
            message = f"expected a position in [0, {self.num_samples}] of the run, found {position}"
            raise ConfigError(message, hint="a longer run in the reference's order is another run")


def stored_order(settings: RunSettings, lock: RunLock, *, num_samples: int | None = None) -> StoredOrder:
    """Returns what identifies the order of a run.

    Args:
        settings: what `run.toml` says.
        lock: its lock.
        num_samples: positions that there are; None for those that the lock asks for.
    """
    _, shares = _blend(settings, lock)
    facts = {**_facts(lock), "weights": [] if shares is None else [share.hex() for share in normalize(shares)]}
    digest = hashlib.sha256(json.dumps(facts, separators=(",", ":"), sort_keys=True).encode()).hexdigest()
    if num_samples is None:
        num_samples = lock.segments[0].num_samples
    assert num_samples is not None
    return StoredOrder(run=run_identity(lock), digest=digest, num_samples=num_samples)


def megatron_dataset(
    settings: RunSettings, lock: RunLock, *, tokenizer: Any, reading: Reading, path_to_cache: str | None
) -> Any:
    """Returns the samples of a run: what the builder returns, which knows its order besides.

    Under `torch.distributed` all ranks call this, and one builds. A run of one pair is its dataset, one of several the
    blend of them. A dataset of which the blend takes more samples than the reference builds is built longer, where the
    reference stops.

    Args:
        settings: what `run.toml` says: weights count as they are written there, as the reference rounds them.
        lock: its lock.
        tokenizer: the tokenizer of the run.
        reading: how to read the data.
        path_to_cache: folder of the index cache; beside the data if None.

    Raises:
        ConfigError: the class refuses the settings.
        DatasetFormatError: data are not what was locked.
        BuildError, IndexCacheError: see `BlendedMegatronDatasetBuilder.build`.
    """
    pairs, shares = _blend(settings, lock)
    segment = lock.segments[0]
    config = run_config(
        lock,
        segment.sequence_length,
        tokenizer,
        reading,
        random_seed=lock.seed,
        blend_per_split=[([pair.prefix for pair in pairs], shares), None, None],
        path_to_cache=path_to_cache,
        extend_short_datasets=True,
    )
    do_together("comparing the data of the run with its lock", lambda: _check_pairs(pairs, reading))
    sizes = [segment.num_samples, None, None]
    train, _, _ = BlendedMegatronDatasetBuilder(CLASSES[lock.dataset], sizes, lambda: True, config).build()
    train.run_order = stored_order(settings, lock, num_samples=len(train))
    return train


def _check_pairs(pairs: list[LockedPair], reading: Reading) -> None:
    for pair in pairs:
        check_opened(IndexedDataset(pair.prefix, mmap=reading.mmap, object_storage=reading.object_storage), pair)


def _blend(settings: RunSettings, lock: RunLock) -> tuple[list[LockedPair], list[float] | None]:
    """Returns the pairs that a run blends, in the order of the lock, and their weights; None for a single pair.

    A source of several pairs divides its weight among them by their tokens; pairs without tokens are left out.
    """
    shares = dict(settings.stages[0].weights or ())
    pairs: list[LockedPair] = []
    weights: list[float] = []
    for number, _ in lock.segments[0].weights:
        source = lock.sources[number]
        total = sum(pair.num_tokens for pair in source.pairs)
        for pair in source.pairs:
            if pair.num_tokens:
                pairs.append(pair)
                weights.append(float(shares[source.name] * Fraction(pair.num_tokens, total)))
    return pairs, None if len(pairs) == 1 else weights


def _facts(lock: RunLock) -> dict[str, Any]:
    """Returns all that decides the order of a run, as far as the lock says it, by name."""
    segment = lock.segments[0]
    read = [lock.sources[number] for number, _ in segment.weights]
    weights = dict(zip([source.name for source in read], ratio_of(segment), strict=True))
    return {
        "`order`": "megatron" if lock.is_megatron else lock.order,
        "`seed`": lock.seed,
        "`dataset`": lock.dataset,
        "[samples]": {name: value for name, value in lock.samples.items() if name not in WITHOUT_EFFECT},
        "`sequence_length`": segment.sequence_length,
        "a stage of samples": segment.num_samples,
        "`weights`": list(weights.items()),
        "data": [[source.name, [content_of(pair) for pair in source.pairs]] for source in read],
    }


def _whole(shares: list[Fraction]) -> list[int]:
    """Returns shares as the smallest whole numbers of the same ratio."""
    names = [(str(number), share) for number, share in enumerate(shares)]
    return [weight for _, weight in whole_weights(tuple(names))]


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
