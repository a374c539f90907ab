"""Eight real processes that plan, exchange and read packs, compared with one process."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from tests.packing.conftest import RANKS, Eight
from tests.packing.worker import Run
from tests.reference.packing import pack, part_of, round_up, sample

from tokenloom.packing.schedulers import scheduler_map

slow = pytest.mark.slow


def plan_of(run: Run) -> Any:
    padded = [round_up(round_up(run.lengths[at], run.own_padding), run.alignment) for at in run.positions_by_id]
    multiple = None if run.vpp is None else 2
    scheduler = scheduler_map[run.scheduler](run.max_tokens, run.cp, run.dp, multiple)
    return scheduler.plan(np.array(padded, dtype=np.int64))


def check(run: Run, results: list[Any]) -> None:
    plan = plan_of(run)
    samples = [sample(position, run.lengths[position]) for position in run.positions_by_id]
    for rank, result in enumerate(results):
        at = run.coordinates(rank)
        assert result["count"] == plan.num_microbatches
        assert result["sums"] == [sum(run.lengths), sum(length**2 for length in run.lengths)]
        for stage, batches in enumerate(result["stages"]):
            for number, batch in enumerate(batches):
                place = at["dp"] * run.cp + at["cp"]
                ids = plan.assignments[number][place]
                cp_size = int(plan.cp_sizes[number, place])
                whole = pack([samples[i] for i in ids], max(2 * cp_size if cp_size > 1 else 1, run.own_padding))
                check_batch(run, at, stage, batch, part_of(whole, cp_size, place % cp_size))
                sources = [run.positions_by_id[i] % 3 for i in ids]
                assert batch["sources"] == (sources if run.has_tokens(at["pp"], stage) else None)
                varies = bool((plan.cp_sizes != run.cp).any())
                assert batch["local_cp_size"] == (cp_size if varies else None)
                assert batch["cp_group"] == (place // cp_size * cp_size if varies and cp_size > 1 else None)


def check_batch(run: Run, at: dict[str, int], stage: int, batch: dict[str, Any], expected: dict[str, Any]) -> None:
    is_first = (at["pp"], stage) == (0, 0)
    is_last = (at["pp"], stage) == (run.pp - 1, (run.vpp or 1) - 1)
    mtp = (at["pp"], stage) == run.mtp
    needed = {"tokens": is_first, "position_ids": is_first, "labels": is_last, "loss_mask": is_last}
    for name, needs in needed.items():
        assert (batch[name] is not None) == (needs or mtp), (at, stage, name)
        if batch[name] is not None:
            dtype, values = batch[name]
            assert dtype == ("torch.float32" if name == "loss_mask" else "torch.int64")
            assert values.tolist() == [expected[name]], (at, stage, name)
    assert batch["padding_mask"][0] == "torch.bool"
    assert batch["padding_mask"][1].tolist() == [expected["padding_mask"]]
    assert batch["cu_seqlens_padded"] == expected["cu_seqlens_padded"]
    assert batch["max_seqlen"] == max(np.diff(expected["cu_seqlens_padded"]))


SHAPES = [
    {"cp": 8},
    {"tp": 2, "cp": 4},
    {"pp": 4, "vpp": 4},
    {"tp": 2, "pp": 2, "cp": 2},
    {},
    {"tp": 2, "pp": 4, "mtp": (3, 0)},
    {"pp": 4, "cp": 2, "vpp": 4, "mtp": (1, 2)},
    {"cp": 2, "order": ("cp", "dp")},
]
MORE_SHAPES = [
    {"tp": 2, "pp": 4},
    {"tp": 2, "pp": 2},
    {"pp": 2, "cp": 2},
    {"tp": 8},
    {"pp": 8},
    {"tp": 2, "pp": 2, "vpp": 2},
    {"pp": 4, "cp": 2, "vpp": 3},
    {"pp": 4, "tp": 2, "mtp": (1, 0)},
    {"tp": 2, "cp": 2, "order": ("tp", "cp", "dp")},
]


def name_of(shape: Any) -> str:
    return "-".join(f"{name}{value}" for name, value in shape.items()) or "dp8"


def draw(rng: np.random.Generator, shape: Any, **changes: Any) -> Run:
    """Returns a run whose global batch needs several packs per rank."""
    order = tuple(shape.get("order", ()))
    order += tuple(name for name in ("pp", "dp", "cp", "tp") if name not in order)
    run = Run(**{**shape, "order": order}, lengths=())
    lengths = tuple(rng.integers(9, 33, size=run.dp * 8).tolist())  # any two fit a pack, not all do
    return dataclasses.replace(run, **{"lengths": lengths, "max_tokens": -(-66 // run.cp), **changes})


def check_both_modes(fleet: Eight, run: Run) -> list[Any]:
    """Compares exchanged packs with those of one process, and packs of known lengths with these."""
    exchanged = fleet.results("wrap", run=run, mode="exchange")
    check(run, exchanged)
    read_alone = fleet.results("wrap", run=run, mode="known lengths")
    for one, other in zip(exchanged, read_alone, strict=True):
        np.testing.assert_equal(one["stages"], other["stages"])
        assert [one[key] for key in ("count", "sums", "kept")] == [other[key] for key in ("count", "sums", "kept")]
    return exchanged


@pytest.mark.parametrize("shape", [*SHAPES, *(pytest.param(shape, marks=slow) for shape in MORE_SHAPES)], ids=name_of)
def test_every_rank_gets_its_part_of_the_packs_in_both_modes(fleet, rng, shape):
    check_both_modes(fleet, draw(rng, shape))


BALANCED = {"scheduler": "cost_balanced"}


@pytest.mark.parametrize(
    ("shape", "changes"), [({"cp": 2}, BALANCED), ({"pp": 4, "vpp": 2}, BALANCED), ({"cp": 2}, {"own_padding": 8})]
)
def test_costs_are_balanced_and_data_that_pad_themselves_keep_their_padding(fleet, rng, shape, changes):
    check_both_modes(fleet, draw(rng, shape, **changes))


@pytest.mark.parametrize(
    "shape", [{}, {"tp": 2}, pytest.param({"pp": 2}, marks=slow), pytest.param({"pp": 4}, marks=slow)], ids=name_of
)
def test_groups_of_several_sizes_share_long_sub_samples(fleet, rng, shape):
    run = draw(rng, shape, scheduler="hybrid_cost_balanced", max_tokens=35)
    run = dataclasses.replace(run, lengths=(*run.lengths[:-1], 30 * run.dp))  # the last one needs all ranks
    exchanged = check_both_modes(fleet, run)
    assert {batch["local_cp_size"] for result in exchanged for batch in result["stages"][0]} >= {1, run.dp}


def test_plans_of_the_development_branch_are_executed(fleet, rng):
    run = draw(rng, {"tp": 2}, scheduler="default_dynamic_cp", max_tokens=48, own_padding=16)
    run = dataclasses.replace(run, lengths=(*run.lengths[:-1], 40 * run.dp))  # the last one needs all ranks
    check(run, fleet.results("wrap", run=run, mode="exchange"))


@pytest.mark.parametrize(
    "settings", [{}, {"cp_partition_mode": "contiguous", "thd_tail_padding_policy": "extend_last"}], ids=len
)
def test_packs_of_one_shape(fleet, rng, settings):
    run = draw(rng, {"tp": 2, "cp": 2})
    shape = {"pad_packed_seq_alignment": "max", "thd_max_packed_sequences": 5, "max_seqlen_per_dp_cp_rank": 40}
    results = fleet.results("fill", run=run, settings={**shape, **settings})
    held, shapes = [], set()
    for rank, result in enumerate(results):
        assert result == results[rank // 2 * 2]  # both ranks of a tensor-parallel group
        shapes |= {(*one[0], *map(len, one[3])) for one in result}
        held += [token for one in result for token, pad in zip(one[1], one[2], strict=True) if not pad]
        assert all(token == 0 for one in result for token, pad in zip(one[1], one[2], strict=True) if pad)
    assert shapes == {(1, 40, 6, 6)}
    every = np.concatenate([sample(position, length)["tokens"] for position, length in enumerate(run.lengths)])
    assert sorted(held) == sorted(every.tolist() * run.tp)


def test_with_known_lengths_nothing_is_sent_and_each_rank_reads_its_own(fleet, rng):
    run = draw(rng, {"cp": 2})
    exchanged, alone = (fleet.results("wrap", run=run, mode=mode) for mode in ("exchange", "known lengths"))
    plan, positions = plan_of(run), run.positions_by_id
    for rank, result in enumerate(alone):
        assert result["sent_bytes"] == {}
        mine = [positions[number] for row in plan.assignments for number in row[rank]]
        assert result["read"] == mine
    sent = sum(result["sent_bytes"]["sub-samples over DP"] for result in exchanged)
    owner = {number: number // (len(positions) // run.dp) for number in range(len(positions))}
    moved = [
        run.lengths[positions[number]]
        for row in plan.assignments
        for rank, numbers in enumerate(row)
        for number in numbers
        if owner[number] != run.coordinates(rank)["dp"]
    ]
    # Three int64 and one float32, padded to words.
    assert 28 * sum(moved) <= sent <= 28 * sum(moved) + 8 * RANKS * run.dp


def test_large_integers_are_broadcast_exactly(fleet):
    numbers = [2**24 + 1, 2**53 + 1, 2**63 - 1]
    pack = {"cu_seqlens": [0, 2**24 + 1, 2**31 - 9], "cu_seqlens_padded": [0, 2**24 + 8, 2**31 - 1]}
    pack |= {"max_seqlen": 2**31 - 1, "local_cp_size": 4}
    found = fleet.results("broadcast_large_numbers", run=Run(tp=2, pp=4, lengths=()))
    assert found == [([pack, pack], numbers, numbers, [rank | 1] * 3) for rank in range(RANKS)]


def test_sub_samples_reach_any_set_of_ranks(fleet, rng):
    run = draw(rng, {"cp": 2, "order": ("cp", "dp")})
    positions = run.positions_by_id
    for rank, pairs, tokens in fleet.results("reroute", run=run):
        assert pairs == [(number, run.lengths[position]) for number, position in enumerate(positions)]
        expected = {n: sample(positions[n], run.lengths[positions[n]])["tokens"].tolist() for n in range(rank + 1)}
        assert tokens == expected


def check_all_fail(fleet: Eight, text: str, case: str, *, kind: str = "BuildError", **options: Any) -> None:
    errors = fleet.errors(case, **options)
    assert len(errors) == RANKS
    for found, message in errors:
        assert found == kind, message
        assert text in message
    run = Run(tp=2, cp=2, lengths=(30,) * 16)
    check(run, fleet.results("wrap", run=run, mode="exchange"))


@pytest.mark.parametrize("mode", ["exchange", "known lengths"])
@pytest.mark.parametrize(
    ("run", "message"),
    [
        (Run(tp=2, pp=2, lengths=tuple([5] * 7 + [70] + [5] * 8), max_tokens=32), "sub-sample 11 "),
        (Run(cp=2, lengths=(3, 2, 0, 4) * 4), "sub-sample 8 has 0 tokens"),
        (Run(pp=4, vpp=2, lengths=(3, 3), max_tokens=8), "failed in "),
    ],
)
def test_global_batches_without_a_plan_fail_on_all_ranks(fleet, run, message, mode):
    check_all_fail(fleet, message, "wrap", run=run, mode=mode)


@pytest.mark.parametrize(
    ("what", "who", "text"),
    [
        ("one", 5, "rank 5 on `"),
        ("none", 6, "rank 6 on `"),
        ("short", 2, "the data iterator ended after 1"),
        ("no labels", 2, "`labels`, `position_ids`, `loss_mask` missing in item 0"),
    ],
)
def test_a_wrong_iterator_on_one_rank_fails_all(fleet, what, who, text):
    run = Run(tp=2, pp=2, lengths=(4, 6, 1, 3) * 2, max_tokens=8)
    check_all_fail(fleet, text, "wrong_input", run=run, who=who, what=what)


def test_ranks_with_different_plans_or_data_are_named(fleet, rng):
    assert {kind for kind, _ in fleet.errors("differ", run=draw(rng, {}))} == {"DivergenceError"}
    run, kind = Run(cp=8, lengths=(4, 6, 1, 3), max_tokens=8), "DivergenceError"
    check_all_fail(fleet, "on rank 3", "wrong_input", kind=kind, run=run, who=3, what="other lengths")
    run = Run(cp=2, lengths=(4, 6, 1, 3) * 2, max_tokens=8)
    check_all_fail(fleet, "on rank 5", "wrong_dataset", kind=kind, run=run, who=5, what="positions")
    check_all_fail(fleet, "DatasetFormatError: sample at position ", "wrong_dataset", run=run, who=0, what="lengths")


@pytest.mark.parametrize(("victim", "mode"), [(0, "known lengths"), (3, "exchange"), (7, "exchange")])
def test_a_rank_that_fails_to_read_fails_all_with_its_cause(fleet, victim, mode):
    run = Run(cp=2, lengths=(4, 6, 1, 3) * 4, max_tokens=8)
    options = {"run": run, "mode": mode, "victim": victim, "how": "raise", "where": "reading"}
    check_all_fail(fleet, "InputError: broken data", "break_in", **options)


def test_ranks_that_wait_for_a_failed_reader_are_notified(fleet):
    errors = fleet.errors("fail_to_read_a_pack", run=Run(tp=4, lengths=()))
    assert [kind for kind, _ in errors] == ["ConfigError", "BuildError", "BuildError", "BuildError"] * 2
    assert errors[6][1] == "rank 4 failed to read its pack"


def check_survivors(doomed: Eight, victim: int, case: str, **options: Any) -> None:
    outcomes = doomed.outcomes(case, victim=victim, **options)
    assert set(outcomes.by_rank) == set(range(RANKS)) - {victim}
    for kind, message in outcomes.errors:
        assert kind == "BuildError", message
        assert message.startswith(f"rank {victim}")
        assert "died or ended during " in message


@pytest.mark.parametrize("shape", [{"cp": 4}, pytest.param({"tp": 2, "pp": 2}, marks=slow)], ids=name_of)
def test_a_rank_that_fails_in_the_exchange_fails_all_with_its_cause(doomed, rng, shape):
    options = {"mode": "exchange", "victim": 0, "how": "raise", "where": "exchange"}
    for kind, message in doomed.errors("break_in", run=draw(rng, shape), **options):
        assert kind == "BuildError"
        assert message.startswith("rank 0 on `")
        assert message.endswith("` failed in exchanging sub-samples: InputError: broken data")


def test_failures_are_reported_with_the_default_group(doomed, rng):
    for kind, message in doomed.errors("use_world_groups", run=draw(rng, {})):
        assert kind == "BuildError"
        assert message.startswith("rank 2 on `")


@pytest.mark.parametrize(
    ("victim", "mode", "where"),
    [
        (3, "exchange", "exchange"),
        pytest.param(0, "exchange", "reading", marks=slow),
        pytest.param(3, "exchange", "reading", marks=slow),
        pytest.param(7, "exchange", "exchange", marks=slow),
        pytest.param(4, "known lengths", "reading", marks=slow),
    ],
)
def test_a_rank_killed_in_the_middle_fails_all_others(doomed, rng, victim, mode, where):
    check_survivors(doomed, victim, "break_in", run=draw(rng, {"cp": 2}), mode=mode, how="die", where=where)


@slow
@pytest.mark.parametrize(("mode", "where"), [("exchange", "exchange"), ("known lengths", "reading")])
def test_a_frozen_rank_is_named_by_all_others_and_fails_when_it_wakes(doomed, rng, mode, where):
    options = {"run": draw(rng, {"cp": 2}), "mode": mode, "victim": 3, "how": "freeze", "where": where}
    outcomes = doomed.outcomes("break_in", frozen=(3,), silence=4, **options)
    for rank, (kind, message) in enumerate(outcomes.errors):
        assert kind == "BuildError"
        assert rank == 3 or (message.startswith("rank 3 on `") and " has been silent for " in message)


@slow
@pytest.mark.parametrize("victim", [0, 1, 5, 7])
def test_a_rank_killed_at_any_moment_fails_all_others(doomed, rng, victim):
    run = draw(rng, {"tp": 2, "pp": 4})
    check_survivors(doomed, victim, "die_at_any_moment", run=run, delay_seconds=float(rng.uniform(0.2, 0.6)))
