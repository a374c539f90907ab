"""The state shared by all views of one explorer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.loading.batch_sizes import Topology
from tokenloom.rendering.words import printable
from tokenloom.run.audit.source_origins import SourceOrigins
from tokenloom.run.lock import RunLock
from tokenloom.tokenizers.text_tokenizer import TextTokenizer, decoded
from tokenloom_look.explorer.queries import NotThereError, Query
from tokenloom_look.target import Target, TargetKind

PREVIEW_TOKENS = 64
_PREVIEW_CHARACTERS = 200


@dataclass(frozen=True, kw_only=True)  # without slots, for cached properties
class Session:
    """The target of an explorer, with settings and caches. Thread-safe."""

    target: Target
    topology: Topology | None = None  # batch sizes, to compute steps
    consumed: int | None = None  # positions consumed by training
    followed: str | None = None  # statistics file of a training loop
    losses: str | None = None  # folder of recorded losses
    sample_lock: threading.Lock = field(default_factory=threading.Lock)  # for opening samples
    section_lock: threading.Lock = field(default_factory=threading.Lock)  # for making a section
    sections: dict[str, dict[str, Any]] = field(default_factory=dict)  # cached sections as JSON, by id
    patterns: dict[str, Any] = field(default_factory=dict)  # cached search patterns, by text

    @cached_property
    def origins(self) -> SourceOrigins:
        return SourceOrigins(self.target.pair_rows, object_storage=self.target.object_storage)

    @property
    def lock(self) -> RunLock | None:
        return None if self.target.run is None else self.target.run.lock

    @property
    def has_positions(self) -> bool:
        """Returns whether the target has samples by position; does not open the samples."""
        if self.target.kind in (TargetKind.pair, TargetKind.catalogue):
            return not self.target.pairs.get(self.target.name).data.multimodal
        return self.target.kind is TargetKind.run

    @property
    def num_positions(self) -> int | None:
        """Returns the number of positions of a run; None for an endless run and for other targets."""
        return None if self.target.run is None else self.target.run.num_samples

    def source(self, query: Query) -> int:
        number, count = query.number("source", 0), len(self.target.sources)
        if number >= count:
            raise NotThereError(f"source {number} out of range: the target has {count} sources")
        return number

    def document(self, query: Query, source: int) -> int:
        return self.checked_document(source, query.number("document"))

    def checked_document(self, source: int, number: int) -> int:
        """Returns `number`; raises NotThereError if the source has no document with this index."""
        named = self.target.sources[source]
        if number >= named.num_documents:
            raise NotThereError(f"document {number} out of range: {named.name} has {named.num_documents} documents")
        return number

    def samples(self) -> Any:
        with self.sample_lock:
            samples = self.target.samples if self.has_positions else None
        if samples is None:
            raise self.target.no_samples()
        return samples

    def steps(self, positions: NDArray[np.int64]) -> list[int | None]:
        """Returns the training step of each position; a list of None if the batch sizes are unknown."""
        if self.topology is None:
            return [None] * len(positions)
        found: list[int | None] = list(self.topology.steps(positions).tolist())
        return found


def preview(ids: Sequence[int], tokenizer: TextTokenizer | None) -> str:
    """Decodes ids and returns the start of their text on one printable line."""
    text = decoded(ids, tokenizer)
    return printable(" ".join(text[: 4 * _PREVIEW_CHARACTERS].split()), keep="")[:_PREVIEW_CHARACTERS]
