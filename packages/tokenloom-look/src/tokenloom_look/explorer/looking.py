"""What all views look at: a target, and what a position is in steps."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.loading.batch_sizes import Topology
from tokenloom.rendering.words import printable
from tokenloom.run.audit.source_origins import SourceOrigins
from tokenloom.run.lock import RunLock
from tokenloom.tokenizers.text_tokenizer import TextTokenizer, decoded
from tokenloom_look.explorer.queries import NotThereError, Query
from tokenloom_look.target import Target, TargetKind

PREVIEW_TOKENS = 64
_PREVIEW_CHARACTERS = 200


@dataclass(frozen=True, kw_only=True)  # without slots, to remember what is opened
class Looking:
    """What is looked at. Nothing of it changes, and several threads ask it.

    Attributes:
        target: it.
        topology: which step reads a position; None where batch sizes were not told.
        consumed: positions that training has consumed; None where that was not told.
        followed: a file that a training loop writes; None for none.
        losses: a folder of losses by position; None for none.
    """

    target: Target
    topology: Topology | None = None
    consumed: int | None = None
    followed: str | None = None
    losses: str | None = None
    opening: threading.Lock = field(default_factory=threading.Lock)
    """Held while samples are opened, so that threads do not build the same order side by side."""
    making: threading.Lock = field(default_factory=threading.Lock)
    """Held while a section is made."""
    made: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Sections as JSON, by their ids."""
    sought: dict[str, Any] = field(default_factory=dict)
    """What was made of texts that were looked for last, which the search keeps here."""

    @cached_property
    def origins(self) -> SourceOrigins:
        """Which records documents were made of."""
        return SourceOrigins(self.target.pair_rows, object_storage=self.target.object_storage)

    @property
    def lock(self) -> RunLock | None:
        """The lock of a run; None for all else."""
        return None if self.target.run is None else self.target.run.lock

    @property
    def has_positions(self) -> bool:
        """Whether something stands at positions; answered without opening what may take seconds."""
        if self.target.kind in (TargetKind.pair, TargetKind.catalogue):
            return not self.target.pairs.get(self.target.name).data.multimodal
        return self.target.kind is TargetKind.run

    @property
    def num_positions(self) -> int | None:
        """Positions, as far as that is known without building an order; None without end."""
        return None if self.target.run is None else self.target.run.num_samples

    def source(self, query: Query) -> int:
        """Returns the source that a query names by number; the first if it names none.

        Raises:
            NotThereError: there is none of this number.
        """
        number, count = query.number("source", 0), len(self.target.sources)
        if number >= count:
            message = f"expected a source in [0, {count}), found {number}"
            raise NotThereError(message)
        return number

    def document(self, query: Query, source: int) -> int:
        """Returns the document of a source that a query names.

        Raises:
            NotThereError: there is none of this number.
        """
        number, named = query.number("document"), self.target.sources[source]
        if number >= named.num_documents:
            message = f"expected a document of {named.name} in [0, {named.num_documents}), found {number}"
            raise NotThereError(message)
        return number

    def samples(self) -> Any:
        """Returns the dataset whose positions are looked at.

        Raises:
            ConfigError: there is none.
        """
        with self.opening:
            samples = self.target.samples if self.has_positions else None
        if samples is None:
            message = f"expected something with samples, found the {self.target.kind} `{self.target.name}`"
            raise ConfigError(message, hint="name a pair, or the run.toml of a run")
        return samples

    def steps(self, positions: NDArray[np.int64]) -> list[int | None]:
        """Returns the step that reads each position; None where batch sizes were not told."""
        if self.topology is None:
            return [None] * len(positions)
        found: list[int | None] = list(self.topology.steps(positions).tolist())
        return found


def preview(ids: Sequence[int], tokenizer: TextTokenizer | None) -> str:
    """Returns how a text begins, in a line that is fit for eyes."""
    text = decoded(ids, tokenizer)
    return printable(" ".join(text[: 4 * _PREVIEW_CHARACTERS].split()), keep="")[:_PREVIEW_CHARACTERS]
