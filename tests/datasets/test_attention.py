"""Document boundaries for attention, compared with torch's own masks."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.attention.flex_attention as flex
from hypothesis import given
from hypothesis import strategies as st
from tests.datasets.conversations import ANSWER, PROMPT, conversation, make_sft, write_conversations
from tests.support import few_examples, make_config, make_dataset, write_corpus

import tokenloom
from tokenloom.datasets.attention import BLOCK_LISTS, block_mask_arrays, flex_block_mask, future_labels
from tokenloom.errors import ConfigError
from tokenloom.packing.batch import build_packed_microbatches, context_parallel_indices


def expected_mask(document_ids, block_size, window, in_prefix=None):
    """Returns torch's dense mask of a block mask, per token."""
    ids = torch.as_tensor(document_ids)
    length = ids.shape[1]
    prefix = torch.zeros_like(ids, dtype=torch.bool) if in_prefix is None else torch.as_tensor(in_prefix)

    def sees(row, _head, query, key):
        seen = (key <= query) | (prefix[row, query] & prefix[row, key])
        seen = seen & (ids[row, query] == ids[row, key])
        return seen if window is None else seen & (query - key < window)

    return flex.create_block_mask(sees, len(ids), 1, length, length, device="cpu", BLOCK_SIZE=block_size)


def assert_same_lists(arrays, mask):
    for name in BLOCK_LISTS:
        assert np.array_equal(np.asarray(arrays[name]), getattr(mask, name).numpy()), name


def test_blocks_of_two_documents():
    arrays = block_mask_arrays([0, 5, 8], block_size=2)
    assert arrays["kv_num_blocks"].tolist() == [[1, 1, 3, 2]]
    assert arrays["kv_indices"].tolist() == [[[0, 1, 2, 3], [1, 0, 2, 3], [0, 1, 2, 3], [2, 3, 0, 1]]]
    assert arrays["full_kv_num_blocks"].tolist() == [[0, 1, 0, 0]]
    assert arrays["full_kv_indices"].tolist() == [[[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3]]]


@few_examples
@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=8).filter(sum),
    block_size=st.integers(1, 9),
    window=st.none() | st.integers(1, 14),
)
@pytest.mark.draws
def test_blocks_are_those_of_torch(lengths, block_size, window):
    bounds = np.cumsum([0, *lengths])
    arrays = block_mask_arrays(bounds[None], block_size=block_size, window=window)
    document_ids = np.repeat(np.arange(len(lengths)), lengths)[None]
    assert_same_lists(arrays, expected_mask(document_ids, block_size, window))


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attention")
    return write_corpus(folder / "a", [list(range(1, 2 + row % 23)) for row in range(400)])


SETTINGS = {"attention": "block_mask", "attention_block_size": 8, "attention_window": 20}


def test_samples_have_the_masks_of_their_documents(prefix):
    dataset = make_dataset(prefix, sequence_length=60, **SETTINGS)
    plain = make_dataset(prefix, sequence_length=60, inter_document_masking=True)
    batch, rows = dataset.batch(range(6)), plain.batch(range(6))
    ids = make_dataset(prefix, sequence_length=60, attention="document_ids").batch(range(6))["document_ids"]
    assert_same_lists(batch, expected_mask(ids, 8, 20))
    assert ids[3].tolist() == np.cumsum(np.isin(np.arange(60), rows["cu_seqlens"][3][1:])).tolist()
    assert all(np.array_equal(batch[name], rows[name]) for name in rows)
    for number in range(6):
        sample = dataset.sample(number)
        assert list(sample) == list(batch)
        assert all(np.array_equal(sample[name], batch[name][number]) for name in batch)
    out = dataset.allocate_batch(2, integer_dtype=np.int32)
    dataset.batch([5, 0], out=out)
    assert np.array_equal(out["kv_indices"], batch["kv_indices"][[5, 0]])


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_attention_over_the_lists_keeps_documents_apart(prefix, tmp_path):
    other = write_corpus(tmp_path / "other", [list(range(100, 101 + row % 31)) for row in range(400)])
    blend = tokenloom.load([prefix, other], sequence_length=64, tokenizer=make_config(prefix).tokenizer, **SETTINGS)
    loader = tokenloom.build_dataloader(blend, [[0, 1, 2], [3, 4, 5]])
    for batch in loader:
        mask = flex_block_mask(batch, block_size=8, window=20)
        query = torch.randn(3, 1, 64, 16, generator=torch.Generator().manual_seed(1))
        found = flex.flex_attention(query, query, query, block_mask=mask)
        ids, at = (batch["position_ids"] == 0).cumsum(1), torch.arange(64)
        near = (at[:, None] >= at) & (at[:, None] - at < 20)
        dense = (ids[:, None, :, None] == ids[:, None, None, :]) & near
        expected = torch.nn.functional.scaled_dot_product_attention(query, query, query, attn_mask=dense)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attention": "flash"}, "`attention`: must be one of 'cu_seqlens', 'document_ids', 'block_mask'"),
        ({"attention": "block_mask", "attention_block_size": 0}, "`attention_block_size`: must be 1 or more, got 0"),
        ({"attention_window": 5}, '`attention_window`: needs `attention="block_mask"`, got None'),
        ({"attention": "document_ids", "reset_position_ids": True}, "exclude each other"),
    ],
)
def test_settings_that_cannot_be_are_refused(prefix, settings, message):
    with pytest.raises(ConfigError, match=message):
        make_config(prefix, **settings)


def test_boundaries_that_do_not_rise_and_batches_without_lists_are_refused(prefix):
    for bounds in ([1, 4], [0, 5, 3], [0], [[]], 7):
        with pytest.raises(ConfigError, match=r"boundaries|`cu_seqlens`"):
            block_mask_arrays(bounds)
    batch = make_dataset(prefix, inter_document_masking=True).batch([0])
    with pytest.raises(ConfigError, match=r"the batch has no kv_num_blocks, "):
        flex_block_mask({name: torch.as_tensor(array) for name, array in batch.items()})


@pytest.fixture
def chat(tmp_path):
    rows = [conversation((PROMPT, [11] * (1 + row % 5)), (ANSWER, [12] * (1 + row % 3))) for row in range(40)]
    return write_conversations(tmp_path / "chat", rows)


def test_packed_conversations_have_the_masks_of_theirs(chat):
    dataset = make_sft(chat, sequence_length=16, attention="block_mask")
    batch = dataset.batch(range(4))
    assert_same_lists(batch, expected_mask(np.cumsum(batch["position_ids"] == 0, axis=1), 128, None))
    assert all(np.array_equal(dataset.sample(3)[name], batch[name][3]) for name in batch)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_prompts_of_conversations_see_all_of_themselves(chat):
    settings = {"attention": "block_mask", "attention_block_size": 4, "attention_prefix": True}
    dataset = make_sft(chat, sequence_length=16, **settings)
    batch = {name: torch.as_tensor(array) for name, array in dataset.batch(range(4)).items()}
    ids = (batch["position_ids"] == 0).cumsum(1)
    before = torch.stack([(ids == number) & (batch["loss_mask"] > 0) for number in range(1, 17)], 2).cumsum(1)
    own = torch.gather(before, 2, ids[..., None] - 1)[..., 0]
    has_loss = torch.gather(before[:, -1], 1, ids - 1) > 0
    in_prefix = has_loss & (own - (batch["loss_mask"] > 0).long() == 0)
    assert_same_lists(batch, expected_mask(ids, 4, None, in_prefix))
    query = torch.randn(4, 1, 16, 16, generator=torch.Generator().manual_seed(1))
    found = flex.flex_attention(query, query, query, block_mask=flex_block_mask(batch, block_size=4))
    at = torch.arange(16)
    seen = (at[:, None] >= at) | (in_prefix[:, :, None] & in_prefix[:, None, :])
    dense = (seen & (ids[:, :, None] == ids[:, None, :]))[:, None]
    expected = torch.nn.functional.scaled_dot_product_attention(query, query, query, attn_mask=dense)
    torch.testing.assert_close(found, expected)
    with pytest.raises(ConfigError, match='`attention_prefix`: needs `attention="block_mask"`, got None'):
        make_sft(chat, attention_prefix=True)
    with pytest.raises(ConfigError, match="exclude each other, got both"):
        make_sft(chat, **settings, attention_window=4)


def test_labels_further_on_stay_in_their_document():
    batch = {"labels": [2, 3, 4, 8, 9, 10], "loss_mask": [1, 1, 0, 1, 1, 1], "position_ids": [0, 1, 2, 0, 1, 2]}
    tensors = {name: torch.tensor([row] * 2) for name, row in batch.items()}
    labels, loss_mask = future_labels(tensors, 2)
    # The third label is in the next document and has no loss; the document of the last label is unknown.
    assert labels.tolist() == [[[3, 0, 0, 9, 10, 0], [0, 0, 0, 10, 0, 0]]] * 2
    assert loss_mask.tolist() == [[[1, 0, 0, 1, 1, 0], [0, 0, 0, 1, 0, 0]]] * 2
    with pytest.raises(ConfigError, match="num_future"):
        future_labels(tensors, 0)


def test_labels_further_on_are_the_tokens_there(prefix):
    dataset = make_dataset(prefix, sequence_length=60, inter_document_masking=True)
    batch = {name: torch.as_tensor(array) for name, array in dataset.batch(range(4)).items()}
    labels, loss_mask = future_labels(batch, 3)
    tokens, starts = batch["tokens"], (batch["position_ids"] == 0).cumsum(1)
    for ahead, row, place in itertools.product(range(1, 4), range(4), range(60)):
        target = place + ahead + 1
        is_own = target < 60 and starts[row, target] == starts[row, place]
        if target != 60:
            assert bool(loss_mask[row, ahead - 1, place]) == bool(is_own)
        if is_own:
            assert labels[row, ahead - 1, place] == tokens[row, target]


def test_ranks_that_share_a_pack_have_labels_of_their_tokens():
    lengths = [3, 8, 5]
    samples = []
    for number, length in enumerate(lengths):
        at, sizes = torch.arange(length), {"original_seq_len": length, "padded_seq_len": -(-length // 4) * 4}
        row = {"tokens": at + 10 * number, "labels": at + 10 * number + 1, "position_ids": at}
        samples.append({**row, "loss_mask": torch.ones(length), **sizes})
    (pack,) = build_packed_microbatches([samples], torch.device("cpu"))
    labels, loss_mask = future_labels(pack, 2)
    for rank, ahead in itertools.product(range(2), range(2)):
        own = context_parallel_indices(pack["cu_seqlens_padded"], cp_size=2, cp_rank=rank)
        has_label = loss_mask[ahead, own] > 0
        tokens, found = pack["tokens"][own][has_label], labels[ahead, own][has_label]
        assert found.tolist() == (tokens + ahead + 2).tolist()
        assert (tokens % 10 + ahead + 1 < torch.tensor(lengths)[tokens // 10]).all()
    assert int(loss_mask[0].sum()) == sum(length - 2 for length in lengths)  # the document of the last label is unknown
