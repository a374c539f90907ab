"""What a start knows of a run: sources with their pairs, and segments, as `run.lock` holds them.

`run.toml` is written by people, `run.lock` by the program, see `lock_file.py`. All that decides which tokens stand at
which position is in here, and all that tells changed data from those that were locked; a start reads nothing else.

Numbers of sources are places in `RunLock.sources` and never change: new sources are appended, old ones stay even if no
stage names them any more. Pairs of a source are appended too. Numbers of documents count over its pairs in this order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tokenloom.storage.typed_json import MAY_BE_MISSING, Crc32

VERSION = 1
"""Of the file."""

MEGATRON_ORDER = 0
"""`RunLock.order` of a run whose order is the reference's, which has no versions."""

BLOCK_DOCUMENTS = 256
"""Documents in a block: what a holdout takes as a whole, and what is shuffled together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedPair:
    """A pair as it was when it was locked.

    Attributes:
        prefix: its prefix; of local pairs as it is to be opened from the working directory.
        num_documents: its sequences, each of which is a document here.
        num_tokens: tokens of all.
        dtype: name of the dtype of the tokens.
        idx_bytes: size of the `.idx` file.
        index_start_crc32: checksum of the start of the `.idx` file, see `manifest.contents.index_start_crc32`.
        tokens_crc32: checksum of the `.bin` file; None if there is no manifest that tells it.
        index_crc32: checksum of the `.idx` file; likewise.
        fingerprint: fingerprint of the tokenizer; likewise.
        held_blocks: blocks of `BLOCK_DOCUMENTS` documents that are held out.
        held_documents: single documents that are held out; this or `held_blocks` is 0.
        held_tokens: tokens of all that is held out.
        packs: (sequence length, packs in a pass), where a window is a pack.
        since: position from which on the source has this pair.
    """

    prefix: str
    num_documents: int
    num_tokens: int
    dtype: str
    idx_bytes: int
    index_start_crc32: Crc32
    tokens_crc32: Crc32 | None = field(default=None, metadata=MAY_BE_MISSING)
    index_crc32: Crc32 | None = field(default=None, metadata=MAY_BE_MISSING)
    fingerprint: str | None = field(default=None, metadata=MAY_BE_MISSING)
    held_blocks: int = field(default=0, metadata=MAY_BE_MISSING)
    held_documents: int = field(default=0, metadata=MAY_BE_MISSING)
    held_tokens: int = field(default=0, metadata=MAY_BE_MISSING)
    packs: tuple[tuple[int, int], ...] = field(default=(), metadata=MAY_BE_MISSING)
    since: int = field(default=0, metadata=MAY_BE_MISSING)

    @property
    def num_token_bytes(self) -> int:
        """Size of its tokens in bytes."""
        return self.num_tokens * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedSource:
    """The pairs under one name, in the order in which they were added.

    Attributes:
        name: its name in `run.toml`.
        pairs: its pairs; the first have `since` 0, or the position from which on there is such a source.
        max_passes: most walks through it; None for any number.
    """

    name: str
    pairs: tuple[LockedPair, ...]
    max_passes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedSegment:
    """Positions with one mixture: a stage, or a part of one.

    Attributes:
        stage: name of the stage.
        start: its first position.
        num_samples: how many positions; None for an endless one, which is the last.
        mixed_as: size that its mixing blocks go by, at least `num_samples`, which a cut has left as it was; None if it
            is the same.
        sequence_length: tokens in a sample.
        weights: (number of a source, weight above 0), by number.
    """

    stage: str
    start: int
    num_samples: int | None
    mixed_as: int | None = None
    sequence_length: int
    weights: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedDenial:
    """Documents that are padding from a position on.

    Attributes:
        start: the first position at which they are.
        documents: (number of a source, numbers of its documents, rising), by number.
    """

    start: int
    documents: tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedTokenizer:
    """The tokenizer that `run.toml` names.

    Attributes:
        name: as it stands there.
        fingerprint: tells it from others, see `TokenizerIdentity`.
        eod, pad: ids of the end of a document and of padding; None if it has none.
        vocab_size: number of its ids.
    """

    name: str
    fingerprint: str
    eod: int | None
    pad: int | None
    vocab_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLock:
    """All of a run but its tokens.

    Attributes:
        order: version of the order; `MEGATRON_ORDER` for the reference's.
        seed: seed of the order.
        documents, windows: how documents become windows: "shuffled" or "file", "concat" or "best_fit".
        mixing_block: positions that are permuted among themselves; 1 for none.
        dataset: kind of the samples: "gpt", "fim", "sft" or "varlen".
        samples: settings of the dataset, by name.
        tokenizer: the tokenizer of the run; None if it names none.
        sources: its sources, by number.
        segments: its segments, in the order of their positions, without gaps.
        denials: documents that are no longer read, by `start`.
        consumed: positions that training is known to have read: what lies before it may not move.
        amended: where the latest amendment begins: what lies before it stays as it is, read or not, until `run.toml`
            says otherwise.
        cut_short: the source whose `max_passes` end the run before its stages end; None for none.
        settings_sha256: hash of the `run.toml` that this was made from.
        content_sha256: hash of what that says, which comments and layout do not change.
        version: version of the file.
    """

    order: int
    seed: int
    documents: str
    windows: str
    mixing_block: int
    dataset: str
    samples: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: LockedTokenizer | None = None
    sources: tuple[LockedSource, ...]
    segments: tuple[LockedSegment, ...]
    denials: tuple[LockedDenial, ...] = ()
    consumed: int = 0
    amended: int = 0
    cut_short: str | None = None
    settings_sha256: str
    content_sha256: str = ""
    version: int = VERSION

    @property
    def is_megatron(self) -> bool:
        """Whether the order is the reference's."""
        return self.order == MEGATRON_ORDER

    @property
    def early_end(self) -> str | None:
        """Says that the run ends before its stages do, and why; None if it does not."""
        if self.cut_short is None:
            return None
        last = self.segments[-1]
        end = last.start + (last.num_samples or 0)
        return (
            f"the run ends at position {end}, before its stages do: source {self.cut_short!r} has been read "
            "`max_passes` times there; raise that, make the stages shorter, or set `on_exhausted` of the stage"
        )
