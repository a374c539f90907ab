"""The kernel that packs to levels, compared with its readable reference."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from tests.reference.level_packing import LevelPacking

from tokenloom.kernels.packs import pack_to_levels


def pack(lengths, costs, **task):
    task = {"most_items": len(lengths), **task}
    arrays = {name: np.array(task.pop(name), dtype=np.int64) for name in ("widths", "levels", "bases")}
    found = pack_to_levels(np.array(lengths, dtype=np.int64), np.array(costs, dtype=np.int64), **arrays, **task)
    return None if found is None else found.tolist()


def squares(lengths):
    return [length * length for length in lengths]


def uniform(num_steps, width, **task):
    nothing = [0] * num_steps
    return {"widths": [width] * num_steps, "levels": nothing, "bases": nothing, "num_ranks": width, **task}


def test_literal_packs():
    task = uniform(1, 2, capacity=10, by_length=False)
    assert pack([4, 3, 2, 1], squares([4, 3, 2, 1]), **task) == [0, 1, 1, 1]
    assert pack([5, 5], squares([5, 5]), **task) == [0, 1]
    assert pack([9, 8, 7], squares([9, 8, 7]), **task) is None


def test_a_costly_one_takes_the_costliest_others_into_its_step():
    lengths = [8, 8, 4, 4, 4, 4]
    assert pack(lengths, squares(lengths), **uniform(2, 2, capacity=8, by_length=False)) == [0, 1, 2, 2, 3, 3]


def test_steps_share_long_ones_out_when_the_last_would_have_too_few():
    lengths = [9] * 4 + [1] * 12  # four long items for two steps of three: two per step, instead of 3 and 1
    found = pack(lengths, squares(lengths), **uniform(2, 3, capacity=10, by_length=False))
    assert sorted(number // 3 for number in found[:4]) == [0, 0, 1, 1]


def test_packing_by_length_fits_where_balance_does_not():
    # 6 + 4, 6 + 4 and 5 + 5 leave no room at all.
    lengths = [6, 6, 5, 5, 4, 4]
    assert pack(lengths, squares(lengths), **uniform(1, 3, capacity=10, by_length=True)) == [0, 1, 2, 2, 0, 1]


@st.composite
def tasks(draw):
    """Draws sub-samples of many kinds, and steps that may already contain items."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    capacity = draw(st.sampled_from([1, 8, 100, 4096, 2**40]))
    count = draw(st.integers(1, 120))
    kind = draw(st.sampled_from(["uniform", "lognormal", "bimodal", "equal", "few"]))
    lengths = {
        "uniform": lambda: rng.integers(1, capacity + 1, size=count),
        "lognormal": lambda: rng.lognormal(np.log(capacity) - 1.5, 1.0, size=count),
        "bimodal": lambda: np.where(rng.random(count) < 0.2, capacity, max(capacity // 30, 1)),
        "equal": lambda: np.full(count, rng.integers(1, capacity + 1)),
        "few": lambda: rng.choice(rng.integers(1, capacity + 1, size=3), size=count),
    }[kind]()
    lengths = np.sort(np.clip(lengths, 1, capacity))[::-1].astype(np.int64)
    costs = np.sort(draw(st.sampled_from([lengths, lengths // 3, lengths**2 if capacity < 2**20 else lengths])))[::-1]
    num_ranks = draw(st.integers(1, 9))
    least = -(-int(lengths.sum()) // (capacity * num_ranks))
    num_steps = draw(st.integers(1, max(1, min(count, 2 * least))))
    if draw(st.booleans()):
        widths, levels = [num_ranks] * num_steps, [0] * num_steps
    else:
        widths = rng.integers(0, num_ranks + 1, size=num_steps).tolist()
        levels = rng.integers(0, 2 * int(costs.max()) + 1, size=num_steps).tolist()
        levels = draw(st.sampled_from([levels, sorted(levels, reverse=True)]))
    while sum(widths) > count:
        widths[int(np.argmax(widths))] -= 1
    bases = [level * (num_ranks - width) for level, width in zip(levels, widths, strict=True)]
    options = {"capacity": capacity, "most_items": draw(st.sampled_from([count, count, 1, 2, 5, 9]))}
    options |= {"widths": widths, "levels": levels, "bases": bases, "num_ranks": num_ranks}
    options |= {"by_length": draw(st.booleans()), "short_first": draw(st.sampled_from([0, 0, 2, 4]))}
    return lengths.tolist(), costs.tolist(), options


@given(task=tasks())
@example(task=([1], [0], uniform(1, 1, capacity=1, most_items=1, by_length=False)))
def test_packs_equal_the_twin_and_keep_the_rules(task):
    lengths, costs, options = task
    found = pack(lengths, costs, **options)
    assert found == LevelPacking(lengths, costs, **options).pack_of()
    if found is not None:
        tokens = np.bincount(found, weights=lengths, minlength=sum(options["widths"]))
        assert len(tokens) == sum(options["widths"])
        assert tokens.min(initial=1) >= 1
        assert tokens.max(initial=0) <= options["capacity"]
        assert np.bincount(found).max(initial=0) <= options["most_items"]
