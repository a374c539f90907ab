"""Sequences with shared prefixes in one row: loss and gradient are those of single sequences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenloom import ConfigError
from tokenloom.errors import InputError
from tokenloom.packing import PrefixForest, PrefixPack

torch = pytest.importorskip("torch")

from tests.packing.prefix_toy import Toy, causal, gradients, unpacked_loss  # noqa: E402

TREE = [[1, 2, 3, 4], [9, 8], [1, 2, 5], [1, 2, 3, 6, 7], [1, 2], [9, 8]]
"""Two trees; one sequence is the beginning of others, and two are equal."""


def test_a_forest_in_depth_first_order():
    forest = PrefixForest.of(TREE)
    assert forest.order.tolist() == [0, 3, 4, 2, 1, 5]
    assert forest.shared.tolist() == [0, 3, 2, 2, 0, 2]
    assert list(forest.facts().values()) == [6, 2, 18, 9, 5, 4]


def test_a_row_of_sequences_with_shared_prefixes():
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


def test_one_sequence_and_no_shared_beginning():
    assert PrefixPack.of([[4, 5]]).attention_mask().tolist() == causal(2).tolist()
    apart = PrefixPack.of([[4, 5], [5, 4]])
    assert apart.tokens.tolist() == [4, 5, 5, 4]
    assert apart.attention_mask().tolist() == torch.block_diag(causal(2), causal(2)).bool().tolist()


def test_columns_are_split_by_sequence():
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
        ({"sequences": [[1, 2]], "loss_weights": [1.0, 2.0]}, "`loss_weights`: expected 1 sequences, got 2"),
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
    with pytest.raises(ConfigError, match="cannot be divided among 1000 ranks"):
        pack.part(cp_size=1000, cp_rank=0, block_size=8)
    if cp_size > 1:
        with pytest.raises(ConfigError, match="not the part of a context-parallel rank"):
            parts[-1].block_mask()
