"""Prefix trees assigned to ranks."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom import ConfigError, CostBalancedScheduler, PolynomialCost
from tokenloom.packing import (
    PackingConfig,
    PrefixForest,
    PrefixTreeScheduler,
    pack_prefixes,
    wrap_data_iterator,
    wrap_dataset,
)

torch = pytest.importorskip("torch")

from tests.packing.conftest import RANKS  # noqa: E402
from tests.packing.prefix_toy import Toy, gradients, unpacked_loss  # noqa: E402
from tests.packing.worker import Run, rollout  # noqa: E402


def rollouts(rng, prompts, each, prompt_tokens, most_tokens):
    """Returns `each` continuations of `prompts` prompts, in random order."""
    sequences = []
    for _ in range(prompts):
        prompt = rng.integers(0, 17, prompt_tokens)
        sequences += [np.concatenate([prompt, rng.integers(0, 17, rng.integers(1, most_tokens))]) for _ in range(each)]
    return [sequences[number] for number in rng.permutation(len(sequences))]


def costs_of(plan, sequences, model, cp_size):
    """Returns costs and tokens of all packs, [microbatches, data-parallel ranks]."""
    costs, tokens = [], []
    for microbatch in range(plan.num_microbatches):
        forests = [
            PrefixForest.of([sequences[number] for number in plan.ids_of(microbatch, rank)])
            for rank in range(0, plan.num_ranks, cp_size)
        ]
        costs.append([tree_cost(forest, model, cp_size) for forest in forests])
        tokens.append([forest.num_tokens for forest in forests])
    return np.array(costs), np.array(tokens)


def tree_cost(forest, model, cp_size):
    shared = np.where(forest.shared > 0, model.cost(np.maximum(forest.shared, 1), cp_size), 0)
    return float((model.cost(forest.lengths, cp_size) - shared).sum())


def test_trees_that_fit_are_kept_whole():
    packs = pack_prefixes([[1, 2, 3, 4], [9, 8], [1, 2, 3, 5], [9, 7, 6]], max_tokens=6)
    assert [pack.sequences.tolist() for pack in packs] == [[0, 2], [1, 3]]
    assert [pack.tokens.tolist() for pack in packs] == [[1, 2, 3, 4, 5], [9, 8, 7, 6]]
    (pack,) = pack_prefixes([[1, 2]] * 100, max_tokens=2)
    assert (pack.tokens.tolist(), pack.term_weights.tolist()) == ([1, 2], [100, 0])
    packs = pack_prefixes([[1, 2], [1, 3], [4] * 7], max_tokens=8, pad_to="max")
    assert [len(pack.tokens) for pack in packs] == [8, 8]


def test_a_large_tree_is_split_where_the_fewest_tokens_are_repeated():
    sequences = [[1, 2, 3, 4, number] for number in range(3)] + [[1, 8, 3, 4, number] for number in range(3)]
    packs = pack_prefixes(sequences, max_tokens=8)
    assert [sorted(pack.sequences.tolist()) for pack in packs] == [[0, 1, 2], [3, 4, 5]]
    assert [pack.num_tokens for pack in packs] == [7, 7]


def test_sequences_that_share_nothing_are_packed_as_cost_balanced_packs_them(rng):
    lengths = rng.integers(1, 60, 200)
    sequences = [np.full(length, number) for number, length in enumerate(lengths)]
    plan = PrefixTreeScheduler(64, 2, 4).plan_forest(PrefixForest.of(sequences))
    expected = CostBalancedScheduler(64, 2, 4).plan(lengths)
    assert np.array_equal(plan.packs, expected.packs)
    found, _ = costs_of(plan, sequences, PolynomialCost(), 2)
    wanted, _ = costs_of(expected, sequences, PolynomialCost(), 2)
    assert found.max(axis=1).sum() <= wanted.max(axis=1).sum() * 1.001


@pytest.mark.parametrize(
    ("shape", "max_tokens", "dp_size", "saved", "most"),
    [
        ((64, 8, 128, 256), 8192, 2, 0.98, 1.05),
        ((16, 32, 256, 256), 8192, 8, 0.9, 1.05),
        ((256, 2, 100, 200), 2048, 8, 0.95, 1.05),
    ],
)
def test_ranks_work_alike_and_little_is_repeated(rng, shape, max_tokens, dp_size, saved, most):
    sequences = rollouts(rng, *shape)
    forest = PrefixForest.of(sequences)
    plan = PrefixTreeScheduler(max_tokens, 1, dp_size).plan_forest(forest)
    costs, tokens = costs_of(plan, sequences, PolynomialCost(), 1)
    assert costs.max(axis=1).sum() <= most * costs.sum() / dp_size
    assert tokens.max() <= max_tokens
    total = sum(map(len, sequences))
    assert total - tokens.sum() >= saved * (total - forest.num_tokens)


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 3]), st.sampled_from([1, 2]), st.sampled_from([1, 2]))
def test_every_sequence_is_in_one_pack_and_ranks_agree(seed, dp_size, cp_size, multiple):
    rng = np.random.default_rng(seed)
    sequences = rollouts(rng, int(rng.integers(1, 5)), int(rng.integers(1, 6)), int(rng.integers(1, 9)), 12)
    options = {"dp_size": dp_size, "cp_size": cp_size, "microbatch_multiple": multiple}
    options |= {"max_tokens": 24, "block_size": 4}
    if len(sequences) < dp_size * multiple:
        with pytest.raises(ConfigError, match="sub-samples of"):
            pack_prefixes(sequences, **options)
        return
    ranks = None
    with suppress(ConfigError):
        ranks = [pack_prefixes(sequences, dp_rank=rank, **options) for rank in range(dp_size)]
    if ranks is None:  # allowed if a sequence per pack is no multiple, and packs must be more than half full
        assert len(sequences) % (dp_size * multiple)
        assert sum(map(len, sequences)) > 12 * cp_size * dp_size * multiple
        return
    assert len({len(packs) for packs in ranks}) == 1
    assert len(ranks[0]) % multiple == 0
    packs = [pack for row in ranks for pack in row]
    assert sorted(number for pack in packs for number in pack.sequences.tolist()) == list(range(len(sequences)))
    for pack in packs:
        assert 0 < pack.num_tokens <= 24 * cp_size
        assert len(pack.tokens) % (4 * cp_size if cp_size > 1 else 1) == 0
        for number, tokens in zip(pack.sequences.tolist(), pack.split(pack.tokens[pack.places]), strict=True):
            assert tokens.tolist() == sequences[number].tolist()


@given(st.integers(0, 2**32 - 1))
def test_losses_of_all_packs_are_those_of_the_batch_unpacked(seed):
    rng = np.random.default_rng(seed)
    sequences = [row.tolist() for row in rollouts(rng, 3, 4, 5, 9)]
    advantages = rng.normal(size=len(sequences)).astype(np.float32)
    masks = [np.arange(len(row)) >= 4 for row in sequences]
    weights = [mask * advantage for mask, advantage in zip(masks, advantages, strict=True)]
    model = Toy()
    labels = [[*row[1:], 0] for row in sequences]
    alone = [[*weight[:-1], 0] for weight in weights]
    expected = unpacked_loss(model, sequences, labels, alone, [range(len(row)) for row in sequences])
    wanted = gradients(model, expected)
    packs = [
        pack
        for rank in range(2)
        for pack in pack_prefixes(sequences, max_tokens=30, loss_weights=weights, dp_rank=rank, dp_size=2)
    ]
    loss = sum(pack.loss(model(pack.tokens, pack.position_ids, pack.attention_mask())) for pack in packs)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=1e-4)
    for name, gradient in gradients(model, loss).items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("sequences", "options", "words"),
    [
        ([], {}, "`sequences` is empty"),
        ([[1], [1] * 9], {}, "sub-sample 1 has 9 tokens"),
        ([[1, 2]], {"dp_size": 2}, "1 sub-samples of 2 tokens do not fill a multiple of 2 packs"),
        ([[1]], {"dp_rank": 1}, r"`dp_rank`: must be in \[0, 1\), got 1"),
        ([[1]], {"loss_weights": [1.0, 2.0]}, "`loss_weights`: expected 1 sequences, got 2"),
        ([[1]], {"pad_to": 3}, "8 tokens per rank are not a multiple of 3"),
        ([[1], [2]], {"cp_size": 2}, "8 tokens per rank are not a multiple of 128"),
    ],
)
def test_invalid_sequences_are_refused(sequences, options, words):
    with pytest.raises(ConfigError, match=words):
        pack_prefixes(sequences, max_tokens=8, **options)


def test_packs_from_an_iterator():
    config = PackingConfig(max_seqlen_per_dp_cp_rank=32, sequence_packing_scheduler="prefix_trees")
    items = [rollout(number, 12, 2) for number in range(6)]
    packs, count, total, squares = wrap_data_iterator(iter(items), config, 6)
    assert (count, total, squares) == (2, 72, 6 * 144)
    assert sorted(sorted(pack.sequences.tolist()) for pack in packs) == [[0, 2, 4], [1, 3, 5]]
    with pytest.raises(ConfigError, match="`prefix_trees` does not support `thd_max_packed_sequences`"):
        PrefixTreeScheduler(32, 1, 1, max_num_seqs=4).plan_forest(PrefixForest.of([[1]]))


class Rollouts:
    def __len__(self):
        return 6

    def lengths(self, positions):
        return np.full(len(positions), 12)

    padded_lengths = lengths

    def __getitem__(self, position):
        return rollout(position, 12, 2)


def test_packs_of_a_dataset_are_those_of_its_iterator():
    config = PackingConfig(max_seqlen_per_dp_cp_rank=32, sequence_packing_scheduler="prefix_trees")
    data = Rollouts()
    exchanged, *sums = wrap_data_iterator((data[number] for number in range(6)), config, 6)
    read, *same = wrap_dataset(data, range(6), config)
    assert sums == same
    for left, right in zip(exchanged, read, strict=True):
        for name in ("sequences", "tokens", "tree_out", "term_places", "term_labels", "term_weights"):
            assert torch.equal(getattr(left, name), getattr(right, name))


@pytest.mark.parametrize("shape", [{}, {"cp": 2}, {"tp": 2}])
def test_eight_ranks_get_the_trees_of_their_iterators(fleet, rng, shape):
    num_samples = 64 // (shape.get("cp", 1) * shape.get("tp", 1))
    lengths = tuple(rng.integers(9, 33, size=num_samples).tolist())
    max_tokens = 128 if "cp" in shape else 64  # ranks get blocks of 128
    run = Run(**shape, lengths=lengths, max_tokens=max_tokens, scheduler="prefix_trees")
    results = fleet.results("trees", run=run, stems=4)
    sequences = [rollout(position, run.lengths[position], 4)["tokens"] for position in run.positions_by_id]
    plan = PrefixTreeScheduler(run.max_tokens, run.cp, run.dp).plan_forest(PrefixForest.of(sequences))
    for rank in range(RANKS):
        at, result = run.coordinates(rank), results[rank]
        assert result["count"] == plan.num_microbatches
        assert result["sums"] == [sum(run.lengths), sum(length**2 for length in run.lengths)]
        for microbatch, (ids, num_tokens, size, labels) in enumerate(result["packs"]):
            assert ids == plan.ids_of(microbatch, at["dp"] * run.cp).tolist()
            assert num_tokens == PrefixForest.of([sequences[number] for number in ids]).num_tokens
            assert size % (128 * run.cp if run.cp > 1 else 1) == 0
            assert labels == [[run.positions_by_id[number]] * len(sequences[number]) for number in ids]
