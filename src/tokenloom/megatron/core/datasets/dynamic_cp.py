"""The functions of the reference's scheduler with context-parallel groups of several sizes, under their names."""

from __future__ import annotations

from collections.abc import Sequence

from tokenloom.errors import ConfigError
from tokenloom.packing.dynamic import Group, cut_to_multiple, next_microbatch, ranks_needed

Ids = list[list[int]]


def dcp_gpus_needed(seq_len: int, max_seq_len_per_rank: int, min_cp_size: int = 1) -> int:
    """Returns the fewest ranks that can share a sub-sample: a power of two, and no fewer than `min_cp_size`."""
    return ranks_needed(seq_len, max_seq_len_per_rank, min_cp_size, 2**62)


def next_hdp_group_packing_aware(
    sample_seqlens: Sequence[tuple[int, int]], total_gpus: int, max_seq_len_per_rank: int, min_cp_size: int = 1
) -> tuple[Ids, list[tuple[int, int]], list[float], Ids]:
    """Returns one microbatch of `default_dynamic_cp`: (lengths by rank, what is left, work by rank, ids by rank).

    Raises:
        ConfigError: the longest sub-sample does not fit all ranks.
    """
    if not sample_seqlens:
        return [[] for _ in range(total_gpus)], [], [0.0] * total_gpus, [[] for _ in range(total_gpus)]
    ordered = sorted(sample_seqlens, key=lambda pair: pair[1], reverse=True)
    groups, left = next_microbatch(ordered, total_gpus, max_seq_len_per_rank, min_cp_size)
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
