"""The functions of the reference's scheduler with context-parallel groups of several sizes, under their names."""

from __future__ import annotations

from collections.abc import Sequence

from tokenloom.errors import ConfigError
from tokenloom.megatron.versions import reference_version
from tokenloom.packing.dynamic import Group, cut_to_multiple, dividing_sizes, next_microbatch, powers_of_two

Ids = list[list[int]]

NEWEST_SCHEDULER = (0, 20)
"""The version from which on the reference has its newest scheduler."""


def is_newest() -> bool:
    """Whether the version that is followed has the reference's newest scheduler."""
    return reference_version() >= NEWEST_SCHEDULER


def valid_group_sizes(num_ranks: int) -> list[int] | None:
    """Returns the numbers of ranks that can share a pack, as the version says; None for powers of two, and all."""
    return dividing_sizes(num_ranks) if is_newest() else None


def dcp_gpus_needed(
    seq_len: int, max_seq_len_per_rank: int, min_cp_size: int = 1, valid_group_sizes: Sequence[int] | None = None
) -> int:
    """Returns the fewest ranks that can share a sub-sample, and no fewer than `min_cp_size`.

    Args:
        seq_len: its tokens.
        max_seq_len_per_rank: what a rank holds.
        min_cp_size: the fewest.
        valid_group_sizes: the numbers of ranks that there are, rising; powers of two by default.
    """
    least = max(min_cp_size, -(-seq_len // max_seq_len_per_rank), 1)
    if valid_group_sizes is not None:
        return next((size for size in valid_group_sizes if size >= least), least)
    return 1 << (least - 1).bit_length()


def next_hdp_group_packing_aware(
    sample_seqlens: Sequence[tuple[int, int]],
    total_gpus: int,
    max_seq_len_per_rank: int,
    min_cp_size: int = 1,
    cp_group_sizes: Sequence[int] | None = None,
) -> tuple[Ids, list[tuple[int, int]], list[float], Ids]:
    """Returns one microbatch of `default_dynamic_cp`: (lengths by rank, what is left, work by rank, ids by rank).

    Raises:
        ConfigError: the longest sub-sample does not fit all ranks, or there are no groups of such sizes.
    """
    known = valid_group_sizes(total_gpus)
    sizes = sorted(set(cp_group_sizes or known or powers_of_two(total_gpus)))
    if known is not None and (min_cp_size not in sizes or not set(sizes) <= set(known)):
        message = f"expected min_cp_size and sizes of groups among {known}, found {min_cp_size} and {sizes}"
        raise ConfigError(message)
    if not sample_seqlens:
        return [[] for _ in range(total_gpus)], [], [0.0] * total_gpus, [[] for _ in range(total_gpus)]
    ordered = sorted(sample_seqlens, key=lambda pair: pair[1], reverse=True)
    enabled = [size for size in sizes if size >= min_cp_size]
    groups, left = next_microbatch(ordered, total_gpus, max_seq_len_per_rank, enabled)
    shared = [group for group in groups for _ in range(group.size)]
    lengths = [[length for _, length in group.members] for group in shared]
    return (
        lengths,
        left,
        [group.work for group in shared],
        [[number for number, _ in group.members] for group in shared],
    )


def align_sample_id_groups(
    sample_id_groups: Sequence[Sequence[Sequence[int]]], microbatch_group_size_per_vp_stage: int
) -> list[Ids]:
    """Returns the microbatches, some cut in two, so that their number is a multiple.

    Raises:
        ConfigError: too few can be cut.
    """
    cut = cut_to_multiple([_groups(ranks) for ranks in sample_id_groups], int(microbatch_group_size_per_vp_stage))
    return [[[number for number, _ in group.members] for group in row for _ in range(group.size)] for row in cut]


def _groups(ranks: Sequence[Sequence[int]]) -> list[Group]:
    """Returns the groups of neighbours that hold the same sub-samples; their lengths do not matter here."""
    groups: list[Group] = []
    for ids in ranks:
        if not ids:
            message = "expected sub-samples on each rank of a microbatch, found a rank without"
            raise ConfigError(message)
        if groups and ids[0] in [number for number, _ in groups[-1].members]:
            groups[-1].size += 1
        else:
            groups.append(Group(1, [(number, 0) for number in ids]))
    return groups
