"""Small locks, and strategies that make many of them."""

from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from tokenloom.run.lock import LockedPair, LockedSegment, LockedSource, RunLock
from tokenloom.run.locking import resolve
from tokenloom.run.settings import StageSettings


def pair(num_tokens: int, *, since: int = 0, name: str = "pair", **other) -> LockedPair:
    return LockedPair(
        prefix=name, num_documents=num_tokens, num_tokens=num_tokens, dtype="uint16", idx_bytes=1,
        index_start_crc32=num_tokens % 2**32, tokens_crc32=num_tokens % 2**32, since=since, **other,
    )  # fmt: skip


def source(name: str, *windows: int, since: tuple[int, ...] = (), length: int = 10, max_passes=None) -> LockedSource:
    """A source of pairs with so many windows each; a walk over all has no window more."""
    pairs = [
        pair(length * count + 1, name=f"{name}{number}", since=position)
        for number, (count, position) in enumerate(zip(windows, since or (0,) * len(windows), strict=True))
    ]
    return LockedSource(name=name, pairs=tuple(pairs), max_passes=max_passes)


def segment(start: int, num_samples: int | None, weights, *, length=10, mixed_as=None, stage="main", **other):
    by_number = dict(enumerate(weights)) if isinstance(weights, list) else weights
    return LockedSegment(
        stage=stage, start=start, num_samples=num_samples, mixed_as=mixed_as, sequence_length=length,
        weights=tuple((number, weight) for number, weight in sorted(by_number.items()) if weight), **other,
    )  # fmt: skip


def lock(sources, segments, *, block: int = 1, **other) -> RunLock:
    settings = {"order": 1, "seed": 1, "documents": "shuffled", "windows": "concat", "dataset": "gpt"}
    settings |= {"mixing_block": block, "settings_sha256": ""} | other
    return RunLock(sources=tuple(sources), segments=tuple(segments), **settings)


LENGTHS = (5, 7, 10)


@st.composite
def random_sources(draw, positions: list[int], *, max_sources: int = 4) -> tuple[LockedSource, ...]:
    """Sources of one to thirty windows, some of which grow at some of the positions."""
    made = []
    for number in range(draw(st.integers(1, max_sources))):
        tokens = [draw(st.integers(max(LENGTHS) + 1, 150))]
        sinces = sorted(draw(st.lists(st.sampled_from(positions), max_size=3))) if positions else []
        tokens += [draw(st.integers(0, 150)) for _ in sinces]
        pairs = [
            replace(pair(count, since=since, name=f"{number}-{place}"), held_tokens=draw(st.integers(0, count // 20)))
            for place, (count, since) in enumerate(zip(tokens, [0, *sinces], strict=True))
        ]
        pairs[0] = replace(pairs[0], held_tokens=0)
        made.append(LockedSource(name=f"source {number}", pairs=tuple(pairs)))
    return tuple(made)


BLOCKS = st.sampled_from([1, 2, 3, 8, 16, 40])


@st.composite
def random_locks(draw, *, blocks=BLOCKS) -> RunLock:
    """Locks of up to six segments: cut, of several lengths that may share passes, with sources that leave and grow."""
    block = draw(blocks)
    sizes = draw(st.lists(st.integers(1, 90), min_size=1, max_size=6))
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    sources = draw(random_sources([*starts[1:], *(start + 1 for start in starts)]))
    segments = []
    length = draw(st.sampled_from(LENGTHS))
    for number, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        length = draw(st.sampled_from([length, length, *LENGTHS]))
        weights = draw(st.lists(st.integers(0, 9), min_size=len(sources), max_size=len(sources)))
        weights = weights if any(weights) else [1] * len(sources)
        mixed_as = size + draw(st.integers(0, 2 * block)) if draw(st.booleans()) else None
        endless = number == len(sizes) - 1 and draw(st.booleans())
        shared = {"stretch_length": draw(st.sampled_from([length, 3 * length, 10, 20]))} if draw(st.booleans()) else {}
        if shared and shared["stretch_length"] % length:
            shared = {}
        if shared and not endless and mixed_as is not None:
            shared["planned"] = draw(st.sampled_from([mixed_as, mixed_as + 7, 2 * mixed_as, 2**60]))
        mixed_as = None if endless else mixed_as
        segments.append(segment(start, None if endless else size, weights, length=length, mixed_as=mixed_as, **shared))
    return lock(sources, segments, block=block, seed=draw(st.integers(0, 2**63 - 1)))


def tuples(*columns) -> list[tuple]:
    """Returns the rows of arrays of equal length."""
    return list(zip(*(column.tolist() for column in columns), strict=True))


def shares(weights: dict[str, object]) -> tuple[tuple[str, Fraction], ...]:
    return tuple((name, Fraction(str(weight))) for name, weight in weights.items())


@dataclass(frozen=True, kw_only=True)
class Settings:
    """As much of `RunSettings` as decides segments."""

    stages: tuple[StageSettings, ...]
    order: int = 1
    seed: int = 1
    mixing_block: int = 1
    windows: str = "concat"
    dataset: str = "gpt"
    samples: dict = field(default_factory=dict)


def stage(name: str = "main", *, length: int = 10, on_exhausted: str = "stop", **other) -> StageSettings:
    """A stage of shares by name."""
    given = {key: shares(value) if key in ("weights", "passes") else value for key, value in other.items()}
    return StageSettings(name=name, sequence_length=length, on_exhausted=on_exhausted, **given)


def resolved_lock(settings: Settings, sources, old: RunLock | None = None, consumed: int = 0, **other) -> RunLock:
    """The lock of a run, or of one that goes on."""
    segments = resolve(settings, sources, old, consumed).segments
    facts = {"seed": settings.seed, "windows": settings.windows, "dataset": settings.dataset}
    return lock(sources, segments, block=settings.mixing_block, consumed=consumed, **facts, **other)


def make_pair(prefix: str, **changes: Any) -> LockedPair:
    """Returns a pair of ten documents of ten tokens each."""
    facts: dict[str, Any] = {"num_documents": 10, "num_tokens": 100, "dtype": "uint16", "idx_bytes": 242}
    return LockedPair(**{"prefix": prefix, "index_start_crc32": 0xDEADBEEF, **facts, **changes})


def make_lock(*sources: LockedSource, **changes: Any) -> RunLock:
    """Returns a lock of sources of equal weight, with windows of four tokens, endless."""
    weights = tuple((number, 1) for number in range(len(sources)))
    segment = LockedSegment(stage="main", start=0, num_samples=None, sequence_length=4, weights=weights)
    members: dict[str, Any] = {"order": 1, "seed": 1234, "documents": "shuffled", "windows": "concat"}
    members |= {"mixing_block": 1024, "dataset": "gpt", "settings_sha256": "0" * 64}
    members |= {"sources": sources, "segments": (segment,) if sources else ()}
    return RunLock(**(members | changes))


def source_of(name: str, *prefixes: str, max_passes: int | None = None, **changes: Any) -> LockedSource:
    """Returns a source of such pairs."""
    pairs = tuple(make_pair(prefix, **changes) for prefix in prefixes)
    return LockedSource(name=name, pairs=pairs, max_passes=max_passes)
