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
from tokenloom.distributed.steps import do_together
from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.run.changes import WHOLE, stored_order_facts
from tokenloom.run.check import check_opened
from tokenloom.run.digest import position_of_state, run_identity
from tokenloom.run.lock import LockedPair, LockedSegment, LockedSource, RunLock
from tokenloom.run.members import CLASSES, Reading, run_config
from tokenloom.run.packs import CONVERSATION_CLASSES
from tokenloom.run.settings import RunSettings, whole_weights


def megatron_segment(settings: RunSettings, sources: tuple[LockedSource, ...]) -> LockedSegment:
    """Returns the only segment of a run in the reference's order."""
    [stage] = settings.stages
    assert stage.weights is not None
    assert stage.num_samples is not None
    shares = dict(stage.weights)
    weights = [(number, shares[source.name]) for number, source in enumerate(sources) if source.name in shares]
    return LockedSegment(
        stage=stage.name,
        start=0,
        num_samples=stage.num_samples,
        sequence_length=stage.sequence_length,
        weights=tuple(whole_weights(weights)),
    )


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
        return {"run": self.run, "position": position, "digest": self.digest_at(position)}

    def digest_at(self, position: int) -> str:
        """Returns a digest of what decides the positions before one: nothing at 0, else everything.

        Raises:
            ConfigError: the run has no such position.
        """
        if not 0 <= position <= self.num_samples:
            message = f"expected a position in [0, {self.num_samples}] of the run, found {position}"
            raise ConfigError(message, hint="a longer run in the reference's order is another run")
        return self.digest if position else hashlib.sha256(b"").hexdigest()

    def position_of_state(self, state: Mapping[str, Any]) -> int:
        """Returns the position that a state is of, see `digest.position_of_state`."""
        return position_of_state(
            state, run=self.run, num_samples=self.num_samples, digest_at=self.digest_at, why=f": {WHOLE}"
        )


def stored_order(settings: RunSettings, lock: RunLock, *, num_samples: int | None = None) -> StoredOrder:
    """Returns what identifies the order of a run.

    Args:
        settings: what `run.toml` says.
        lock: its lock.
        num_samples: positions that there are; None for those that the lock asks for.
    """
    _, shares = _blend(settings, lock)
    facts = {
        **stored_order_facts(lock),
        "weights": [] if shares is None else [share.hex() for share in normalize(shares)],
    }
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
    kind: type[MegatronDataset] = {**CLASSES, **CONVERSATION_CLASSES}[lock.dataset]
    train, _, _ = BlendedMegatronDatasetBuilder(kind, sizes, lambda: True, config).build()
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
