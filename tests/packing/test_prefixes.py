"""Sequences with shared prefixes: rows whose loss and gradient are those of single sequences, and trees on ranks."""

from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.packing.conftest import RANKS
from tests.packing.worker import Run, rollout

from tokenloom import ConfigError, CostBalancedScheduler, PolynomialCost
from tokenloom.errors import InputError
from tokenloom.packing import (
    PackingConfig,
    PrefixForest,
    PrefixPack,
    PrefixTreeScheduler,
    pack_prefixes,
    wrap_data_iterator,
    wrap_dataset,
)


class Toy(torch.nn.Module):
    def __init__(self, vocabulary: int = 17, width: int = 16, positions: int = 128) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)

        def parameter(*shape: int) -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.randn(*shape, generator=generator) / width**0.5)

        self.embedding = parameter(vocabulary, width)
        self.places = parameter(positions, width)
        self.layers = torch.nn.ParameterList([parameter(width, 5 * width) for _ in range(2)])
        self.outs = torch.nn.ParameterList([parameter(2 * width, width) for _ in range(2)])
        self.head = parameter(width, vocabulary)

    def forward(self, tokens, position_ids, mask):
        x = self.embedding[tokens] + self.places[position_ids]
        for layer, out in zip(self.layers, self.outs, strict=True):
            normal = x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
            query, key, value, gate, up = (normal @ layer).chunk(5, dim=-1)
            scores = (query @ key.T / query.shape[-1] ** 0.5).masked_fill(~mask, float("-inf"))
            x = x + torch.cat([scores.softmax(-1) @ value, torch.nn.functional.silu(gate) * up], dim=-1) @ out
        return x @ self.head


def causal(length):
    return torch.ones(length, length, dtype=torch.bool).tril()


def unpacked_loss(model, sequences, labels, weights, positions):
    """Returns the sum of the weighted losses of single sequences."""
    total = torch.zeros((), dtype=torch.float64)
    for tokens, wanted, weight, places in zip(sequences, labels, weights, positions, strict=True):
        logits = model(torch.tensor(tokens), torch.tensor(places), causal(len(tokens)))
        losses = torch.nn.functional.cross_entropy(logits, torch.tensor(wanted), reduction="none")
        total = total + (losses * torch.tensor(weight, dtype=losses.dtype)).sum()
    return total


def gradients(model, loss):
    model.zero_grad(set_to_none=True)
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


TREE = [[1, 2, 3, 4], [9, 8], [1, 2, 5], [1, 2, 3, 6, 7], [1, 2], [9, 8]]
"""Two trees; one sequence is the beginning of others, and two are equal."""


def test_a_forest_in_depth_first_order_and_its_row():
    forest = PrefixForest.of(TREE)
    assert forest.order.tolist() == [0, 3, 4, 2, 1, 5]
    assert forest.shared.tolist() == [0, 3, 2, 2, 0, 2]
    assert list(forest.facts().values()) == [6, 2, 18, 9, 5, 4]
    pack = PrefixPack.of(TREE, multiple=4)
    assert pack.tokens.tolist() == [1, 2, 3, 4, 6, 7, 5, 9, 8, 0, 0, 0]
    assert pack.position_ids.tolist() == [0, 1, 2, 3, 3, 4, 2, 0, 1, 0, 0, 0]
    assert pack.tree_in.tolist() == list(range(12))
    assert pack.tree_out.tolist() == [7, 7, 6, 4, 6, 6, 7, 9, 9, 10, 11, 12]
    assert [row.tolist() for row in pack.split(pack.tokens[pack.places])] == TREE
    assert [row.tolist() for row in pack.split(pack.labels)][:2] == [[2, 3, 4, 0], [8, 0]]
    assert [row.tolist() for row in pack.split(pack.loss_weights)][:2] == [[1, 1, 1, 0], [1, 0]]
    terms = zip(pack.term_places.tolist(), pack.term_labels.tolist(), pack.term_weights.tolist(), strict=True)
    expected = {(0, 2): 4, (1, 3): 2, (2, 4): 1, (2, 6): 1, (4, 7): 1, (1, 5): 1, (7, 8): 2}
    assert {(place, label): weight for place, label, weight in terms if weight} == expected


def test_rows_without_a_shared_prefix_and_with_columns():
    assert PrefixPack.of([[4, 5]]).attention_mask().tolist() == causal(2).tolist()
    apart = PrefixPack.of([[4, 5], [5, 4]])
    assert apart.tokens.tolist() == [4, 5, 5, 4]
    assert apart.attention_mask().tolist() == torch.block_diag(causal(2), causal(2)).bool().tolist()
    pack = PrefixPack.of([[1, 2], [1, 3]], columns={"value": [[[1.0], [2.0]], [[3.0], [4.0]]]})
    assert [row.tolist() for row in pack.split(pack.columns["value"])] == [[[1.0], [2.0]], [[3.0], [4.0]]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"sequences": []}, "`sequences` is empty"),
        ({"sequences": [[1], []]}, "sequence 1 has no tokens"),
        ({"sequences": [[1.5]]}, "sequence 0 must be a vector of integers, got float64"),
        ({"sequences": [[[1, 2]]]}, r"sequence 0 must be a vector of integers, got int64\[1, 2\]"),
        ({"sequences": [[1, 2]], "labels": [[1]]}, r"`labels` of sequence 0: length must be 2, got shape \[1\]"),
        ({"sequences": [[1, 2]], "loss_weights": [[1.0]]}, "`loss_weights` of sequence 0: length must be 2"),
        ({"sequences": [[1, 2]], "loss_weights": [1.0, 2.0]}, "`loss_weights`: expected values for 1 sequences, got 2"),
        ({"sequences": [[1, 2]], "position_ids": [[0]]}, "`position_ids`: must have a position for each token"),
        (
            {"sequences": [[1, 2]], "position_ids": [[-1, 0]]},
            r"sequence 0: tokens and positions must be in \[0, 2\*\*31\)",
        ),
        ({"sequences": [[1, 2]], "columns": {"value": [[1]]}}, "`value` of sequence 0: length must be 2"),
        (
            {"sequences": [[1], [1, 2]], "loss_weights": [1.0, [0.0, float("nan")]]},
            "weight nan at token 1 of sequence 1",
        ),
    ],
)
def test_invalid_arguments_are_refused(arguments, words):
    with pytest.raises((ConfigError, InputError), match=words):
        PrefixPack.of(**arguments)


@st.composite
def batches(draw):
    """Draws sequences with shared prefixes, whose labels, weights and positions may differ at equal tokens."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sequences: list[list[int]] = []
    for _ in range(draw(st.integers(1, 7))):
        begin = list(sequences[rng.integers(len(sequences))]) if sequences and rng.random() < 0.8 else []
        begin = begin[: rng.integers(len(begin) + 1)]
        sequences.append(begin + rng.integers(0, 3, rng.integers(0 if begin else 1, 6)).tolist())
    labels = [[*row[1:], 0] for row in sequences]
    if draw(st.booleans()):
        labels = [rng.integers(0, 3, len(row)).tolist() for row in sequences]
    weights = [
        (rng.normal(size=len(row)) * (rng.random(len(row)) < 0.7)).astype(np.float32).tolist() for row in sequences
    ]
    positions = [list(range(len(row))) for row in sequences]
    if draw(st.booleans()):
        positions = [[place + int(rng.random() < 0.2) for place in row] for row in positions]
    return sequences, labels, weights, positions


@given(batches())
def test_loss_and_gradient_are_those_of_sequences_alone(batch):
    sequences, labels, weights, positions = batch
    pack = PrefixPack.of(sequences, labels=labels, loss_weights=weights, position_ids=positions, multiple=8)
    assert [row.tolist() for row in pack.split(pack.tokens[pack.places])] == sequences
    assert [row.tolist() for row in pack.split(pack.position_ids[pack.places])] == positions
    model = Toy().double()
    alone = unpacked_loss(model, sequences, labels, weights, positions)
    expected = gradients(model, alone)
    logits = model(pack.tokens, pack.position_ids, pack.attention_mask())
    packed = -(model_log_probs(logits, pack) * pack.term_weights).sum()
    torch.testing.assert_close(packed, alone, rtol=1e-6, atol=1e-6)  # weights are summed in float32
    for name, gradient in gradients(model, packed).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-6)


def model_log_probs(logits, pack):
    return logits.log_softmax(-1)[pack.term_places, pack.term_labels]


@given(batches())
def test_a_token_sees_the_tokens_before_it_in_its_sequences(batch):
    sequences, labels, weights, positions = batch
    pack = PrefixPack.of(sequences, labels=labels, loss_weights=weights, position_ids=positions)
    expected = torch.zeros(len(pack.tokens), len(pack.tokens), dtype=torch.bool)
    for places in pack.split(pack.places):
        for end, query in enumerate(places):
            expected[query, places[: end + 1]] = True
    assert torch.equal(pack.attention_mask(), expected)
    assert pack.num_tokens == len(
        {
            tuple(zip(row[: end + 1], place[: end + 1], strict=True))
            for row, place in zip(sequences, positions, strict=True)
            for end in range(len(row))
        }
    )


def test_log_probabilities_come_back_along_each_sequence():
    model, pack = Toy(), PrefixPack.of(TREE, multiple=4)
    found = pack.split(pack.log_probs(model(pack.tokens, pack.position_ids, pack.attention_mask())))
    for tokens, row in zip(TREE, found, strict=True):
        logits = model(torch.tensor(tokens), torch.arange(len(tokens)), causal(len(tokens)))
        expected = logits.log_softmax(-1)[torch.arange(len(tokens)), torch.tensor([*tokens[1:], 0])]
        torch.testing.assert_close(row, expected)


@pytest.mark.parametrize("block_size", [4, 16])
def test_block_masks_are_those_of_torch(rng, block_size):
    from torch.nn.attention.flex_attention import create_block_mask

    for _ in range(20):
        stems = [rng.integers(0, 9, rng.integers(1, 30)) for _ in range(3)]
        sequences = [
            np.concatenate([stems[rng.integers(3)], rng.integers(0, 9, rng.integers(1, 20))]) for _ in range(8)
        ]
        pack = PrefixPack.of(sequences, multiple=int(rng.integers(1, 9)))
        made = pack.block_mask(block_size=block_size)
        length = len(pack.tokens)
        expected = create_block_mask(made.mask_mod, None, None, length, length, device="cpu", BLOCK_SIZE=block_size)
        for name in ("kv_num_blocks", "full_kv_num_blocks"):
            assert torch.equal(getattr(made, name), getattr(expected, name)), name
        for name in ("kv", "full_kv"):
            counts = getattr(made, f"{name}_num_blocks")[0, 0].tolist()
            for row, count in enumerate(counts):
                assert torch.equal(
                    getattr(made, f"{name}_indices")[0, 0, row, :count],
                    getattr(expected, f"{name}_indices")[0, 0, row, :count],
                )
        assert torch.equal(made.to_dense().bool(), expected.to_dense().bool())


@pytest.mark.parametrize("cp_size", [1, 2, 4])
def test_parts_of_ranks_add_up_to_the_row(rng, cp_size):
    stem = rng.integers(0, 17, 30)
    sequences = [np.concatenate([stem, rng.integers(0, 17, rng.integers(1, 20))]) for _ in range(5)]
    weights = [rng.normal(size=len(row)) for row in sequences]
    model, pack = Toy(), PrefixPack.of(sequences, loss_weights=weights, multiple=8 * cp_size)
    logits, whole = model(pack.tokens, pack.position_ids, pack.attention_mask()), pack.attention_mask()
    parts = [pack.part(cp_size=cp_size, cp_rank=rank, block_size=8) for rank in range(cp_size)]
    assert sorted(torch.cat([part.tree_in for part in parts]).tolist()) == list(range(len(pack.tokens)))
    assert sorted(torch.cat([part.term_numbers for part in parts]).tolist()) == pack.term_numbers.tolist()
    loss = sum(part.loss(logits[part.tree_in]) for part in parts)
    torch.testing.assert_close(loss, pack.loss(logits))
    for part in parts:
        keys = (pack.tree_in[None] <= part.tree_in[:, None]) & (part.tree_in[:, None] < pack.tree_out[None])
        assert torch.equal(keys, whole[part.tree_in])
    with pytest.raises(ConfigError, match="cannot be divided evenly among 1000 ranks"):
        pack.part(cp_size=1000, cp_rank=0, block_size=8)
    if cp_size > 1:
        with pytest.raises(ConfigError, match="not the part of a context-parallel rank"):
            parts[-1].block_mask()


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


def test_trees_that_fit_are_whole_and_others_split_where_the_fewest_tokens_are_repeated():
    packs = pack_prefixes([[1, 2, 3, 4], [9, 8], [1, 2, 3, 5], [9, 7, 6]], max_tokens=6)
    assert [pack.sequences.tolist() for pack in packs] == [[0, 2], [1, 3]]
    assert [pack.tokens.tolist() for pack in packs] == [[1, 2, 3, 4, 5], [9, 8, 7, 6]]
    (pack,) = pack_prefixes([[1, 2]] * 100, max_tokens=2)
    assert (pack.tokens.tolist(), pack.term_weights.tolist()) == ([1, 2], [100, 0])
    packs = pack_prefixes([[1, 2], [1, 3], [4] * 7], max_tokens=8, pad_to="max")
    assert [len(pack.tokens) for pack in packs] == [8, 8]
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
    ("shape", "max_tokens", "dp_size", "saved"),
    [
        ((64, 8, 128, 256), 8192, 2, 0.97),  # at least 0.979 in 60 draws
        ((16, 32, 256, 256), 8192, 8, 0.9),
        ((256, 2, 100, 200), 2048, 8, 0.87),  # at least 0.891 in 200 draws
    ],
)
def test_ranks_work_alike_and_little_is_repeated(rng, shape, max_tokens, dp_size, saved):
    sequences = rollouts(rng, *shape)
    forest = PrefixForest.of(sequences)
    plan = PrefixTreeScheduler(max_tokens, 1, dp_size).plan_forest(forest)
    costs, tokens = costs_of(plan, sequences, PolynomialCost(), 1)
    assert costs.max(axis=1).sum() <= 1.05 * costs.sum() / dp_size
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
        with pytest.raises(ConfigError, match="sub-samples with"):
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
        ([[1, 2]], {"dp_size": 2}, "1 sub-samples with 2 tokens in total cannot fill a multiple of 2 packs"),
        ([[1]], {"dp_rank": 1}, r"`dp_rank`: must be in \[0, 1\), got 1"),
        ([[1]], {"loss_weights": [1.0, 2.0]}, "`loss_weights`: expected values for 1 sequences, got 2"),
        ([[1]], {"pad_to": 3}, "8 tokens per rank must be a multiple of 3"),
        ([[1], [2]], {"cp_size": 2}, "8 tokens per rank must be a multiple of 128"),
    ],
)
def test_invalid_sequences_are_refused(sequences, options, words):
    with pytest.raises(ConfigError, match=words):
        pack_prefixes(sequences, max_tokens=8, **options)
    with pytest.raises(ConfigError, match="`thd_max_packed_sequences` is not supported by `prefix_trees`"):
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
    packs, *sums = wrap_data_iterator((data[number] for number in range(6)), config, 6)
    exchanged = list(packs)
    assert sorted(sorted(pack.sequences.tolist()) for pack in exchanged) == [[0, 2, 4], [1, 3, 5]]
    read, *same = wrap_dataset(data, range(6), config)
    assert sums == same == [2, 72, 6 * 144]
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
