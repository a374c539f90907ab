"""Packs of one shape, which CUDA graphs need: tokens and boundaries are filled up to sizes that settings name.

The tail is padding, whatever it is called: tokens, labels, positions and loss mask 0, and the padding mask True.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenloom.errors import ConfigError
from tokenloom.numbers import checked_integer
from tokenloom.optional import require

APPEND_DUMMY_SEQ = "append_dummy_seq"
EXTEND_LAST = "extend_last"

ZIGZAG = "zigzag"
CONTIGUOUS = "contiguous"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """The boundaries of a pack that is filled up.

    Attributes:
        cu_seqlens: int32, boundaries counted without padding; those of a dummy sequence count its tokens.
        cu_seqlens_padded: int32, as many, with padding.
        max_seqlen: longest sequence, or what the shape allows.
        num_tokens: of the pack, all context-parallel ranks together.
        num_sequences: before boundaries are filled up.
    """

    cu_seqlens: Any
    cu_seqlens_padded: Any
    max_seqlen: int
    num_tokens: int
    num_sequences: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticShape:
    """What packs are filled up to.

    Attributes:
        num_tokens: of each context-parallel rank; None where there is a multiple.
        multiple: what those are a multiple of; None where there is a number.
        num_sequences: the most sequences, dummy included; None leaves the boundaries as many as they are.
        extends_last: whether the tail belongs to the last sequence; otherwise it is one of its own.
    """

    num_tokens: int | None
    multiple: int | None
    num_sequences: int | None
    extends_last: bool

    @classmethod
    def of(cls, config: Any) -> StaticShape | None:
        """Returns the shape that a configuration asks for; None if it asks for none."""
        alignment = getattr(config, "pad_packed_seq_alignment", None)
        if alignment is None:
            tail_padding_policy(config)
            return None
        for_graphs = getattr(config, "cuda_graph_impl", None) not in (None, "none")
        num_tokens = multiple = None
        limit = getattr(config, "max_seqlen_per_dp_cp_rank", None)
        if alignment == "max" or for_graphs:
            num_tokens = checked_integer("max_seqlen_per_dp_cp_rank", limit, at_least=1)
        else:
            multiple = checked_integer("pad_packed_seq_alignment", alignment, at_least=1)
            if limit is not None and multiple > limit:
                message = f"expected pad_packed_seq_alignment up to {limit}, found {multiple}"
                raise ConfigError(message, hint="a rank holds at most `max_seqlen_per_dp_cp_rank` tokens")
        return cls(
            num_tokens=num_tokens,
            multiple=multiple,
            num_sequences=getattr(config, "thd_max_packed_sequences", None),
            extends_last=tail_padding_policy(config) == EXTEND_LAST,
        )

    def fill(self, cu_seqlens: Any, cu_seqlens_padded: Any, max_seqlen: int, *, cp_size: int, zigzag: bool) -> Filled:
        """Returns the boundaries of a pack with its tail.

        Args:
            cu_seqlens, cu_seqlens_padded: int32[num_sequences + 1] tensors, without and with padding, from 0.
            max_seqlen: longest sequence, with padding.
            cp_size: ranks that share the pack.
            zigzag: whether they hold two chunks of each sequence.

        Raises:
            ConfigError: the pack is too large for the shape, or the tail cannot be cut for these ranks.
        """
        torch = require("torch", extra="torch")
        found = int(cu_seqlens_padded[-1])
        num_rows = self.num_tokens
        if num_rows is None:
            assert self.multiple is not None
            num_rows = -(-found // (cp_size * self.multiple)) * self.multiple
        num_tokens = num_rows * cp_size
        tail = num_tokens - found
        if tail < 0:
            message = f"expected at most {num_rows} tokens for each of {cp_size} ranks in a pack, found {found} in all"
            raise ConfigError(message, hint="raise `max_seqlen_per_dp_cp_rank`, or leave out sub-samples")
        if zigzag and cp_size > 1 and tail % (2 * cp_size):
            message = f"expected a tail of a multiple of 2 * {cp_size} tokens, to cut it for these ranks, found {tail}"
            raise ConfigError(message, hint="fill up to an even number of tokens per rank")
        if tail and self.extends_last:
            cu_seqlens_padded = cu_seqlens_padded.clone()
            cu_seqlens_padded[-1] = num_tokens
        elif tail:
            cu_seqlens = torch.cat([cu_seqlens, cu_seqlens[-1:] + tail])
            cu_seqlens_padded = torch.cat([cu_seqlens_padded, cu_seqlens_padded[-1:] + tail])
        num_sequences = len(cu_seqlens) - 1
        longest = max(max_seqlen, int(cu_seqlens_padded[-1] - cu_seqlens_padded[-2]))
        if self.num_sequences is not None:
            missing = self.num_sequences - num_sequences
            if missing < 0:
                message = f"expected at most {self.num_sequences} sequences in a pack, found {num_sequences}"
                raise ConfigError(message, hint="raise `thd_max_packed_sequences`")
            longest = num_tokens
            cu_seqlens, cu_seqlens_padded = (
                torch.cat([row, row[-1:].expand(missing)]) for row in (cu_seqlens, cu_seqlens_padded)
            )
        return Filled(
            cu_seqlens=cu_seqlens,
            cu_seqlens_padded=cu_seqlens_padded,
            max_seqlen=longest,
            num_tokens=num_tokens,
            num_sequences=num_sequences,
        )


def tail_padding_policy(config: Any) -> str:
    """Returns what the tail of a pack is: "append_dummy_seq", by default, or "extend_last"."""
    policy = getattr(config, "thd_tail_padding_policy", None) or APPEND_DUMMY_SEQ
    if policy not in (APPEND_DUMMY_SEQ, EXTEND_LAST):
        message = f"expected {APPEND_DUMMY_SEQ!r} or {EXTEND_LAST!r} as thd_tail_padding_policy, found {policy!r}"
        raise ConfigError(message)
    return str(policy)


def partition_mode(config: Any) -> str:
    """Returns how context-parallel ranks share a pack: "zigzag", by default, or "contiguous"."""
    mode = getattr(config, "cp_partition_mode", ZIGZAG)
    if mode not in (ZIGZAG, CONTIGUOUS):
        message = f"expected {ZIGZAG!r} or {CONTIGUOUS!r} as cp_partition_mode, found {mode!r}"
        raise ConfigError(message)
    return str(mode)


def max_num_sequences(config: Any) -> int | None:
    """Returns how many sub-samples a pack may have, where the configuration says so.

    That is `thd_max_packed_sequences`, less one where packs get a dummy sequence.
    """
    most = getattr(config, "thd_max_packed_sequences", None)
    if most is None:
        return None
    number = checked_integer("thd_max_packed_sequences", most, at_least=1)
    if getattr(config, "pad_packed_seq_alignment", None) is None or tail_padding_policy(config) == EXTEND_LAST:
        return number
    if number == 1:
        message = "expected thd_max_packed_sequences of at least 2, found 1"
        raise ConfigError(message, hint="it includes that dummy sequence which fills a pack up")
    return number - 1
