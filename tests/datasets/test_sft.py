"""Samples of packed conversations."""

from __future__ import annotations

import tempfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.datasets.conversations import (
    ANSWER,
    FIRST,
    PROMPT,
    conversation,
    conversations_strategy,
    make_sft,
    write_conversations,
)
from tests.datasets.everywhere import check_everywhere
from tests.reference import chat as reference
from tests.support import StandInTokenizer, equal_samples, make_config, write_corpus

from tokenloom.blending.builder import BlendedMegatronDatasetBuilder
from tokenloom.datasets.chat_config import SFTDatasetConfig
from tokenloom.datasets.conversations import SFTDataset
from tokenloom.datasets.exposure import SFTLowLevelDataset
from tokenloom.datasets.ledger import Count
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError, DatasetNotFoundError, IndexCacheError, UntrainableWarning
from tokenloom.loading.loader import build_dataloader
from tokenloom.loading.samplers import MegatronPretrainingSampler

SECOND = conversation((PROMPT, [21]), (ANSWER, [22, 9]))
THIRD = conversation((PROMPT, [31, 32, 33, 34, 35]), (ANSWER, [36, 9]))


def test_a_sample_of_two_conversations_is_what_it_must_be(tmp_path):
    dataset = make_sft(write_conversations(tmp_path / "chat", [FIRST, SECOND]))
    assert len(dataset) == 1
    assert dataset.document_index.tolist() == [0, 1]
    sample = {name: array.tolist() for name, array in dataset.sample(0).items()}
    assert sample == {
        "tokens": [11, 12, 13, 9, 21, 22, 9, 7],
        "labels": [-100, 13, 9, -100, 22, 9, -100, -100],
        "loss_mask": [0, 1, 1, 0, 1, 1, 0, 0],
        "position_ids": [0, 1, 2, 3, 0, 1, 2, 3],
        "cu_seqlens": [0, 4, 8, 8, 8, 8, 8, 8, 8],
        "max_seqlen": 4,
    }
    dtypes = [array.dtype.name for array in dataset.sample(0).values()]
    assert dtypes == ["int64", "int64", "float32", "int64", "int32", "int32"]


@pytest.mark.parametrize("pad", [9, 0])
def test_the_end_of_an_answer_is_trained_whatever_the_pad_id(tmp_path, pad):
    zeros = conversation((PROMPT, [0, 9]), (ANSWER, [0, 9, 0, 9]))
    prefix = write_conversations(tmp_path / "chat", [zeros])
    sample = make_sft(prefix, tokenizer=StandInTokenizer(pad=pad), quiet=True).sample(0)
    assert sample["loss_mask"].tolist() == [0, 1, 1, 1, 1, 0, 0, 0]
    assert sample["labels"].tolist() == [-100, 0, 9, 0, 9, -100, -100, -100]
    assert sample["tokens"].tolist() == [0, 9, 0, 9, 0, 9, pad, pad]


def test_long_conversations_are_truncated_dropped_or_refused(tmp_path):
    prefix = write_conversations(tmp_path / "chat", [THIRD, FIRST])
    cut = make_sft(prefix, sequence_length=6)
    assert sorted(sample["tokens"].tolist() for sample in map(cut.sample, range(len(cut)))) == [
        [11, 12, 13, 9, 7, 7],
        [31, 32, 33, 34, 35, 36],
    ]
    assert cut.ledger().truncated == Count(conversations=1, tokens=1)
    dropped = make_sft(prefix, sequence_length=6, long_conversations="drop")
    assert dropped.document_index.tolist() == [1]
    assert dropped.ledger().dropped_long == Count(conversations=1, tokens=7)
    with pytest.raises(ConfigError, match=r"1 conversations are longer .* the first is sequence 0 with 7 tokens"):
        make_sft(prefix, sequence_length=6, long_conversations="error")


def test_a_prompt_longer_than_the_sample_is_reported_not_nan(tmp_path):
    prefix = write_conversations(tmp_path / "chat", [THIRD, FIRST])
    with pytest.warns(UntrainableWarning, match="1 of 2 conversations have no token to train on .* dropped"):
        dataset = make_sft(prefix, sequence_length=4)
    assert dataset.document_index.tolist() == [1]
    ledger = dataset.ledger()
    assert ledger.dropped_untrainable == Count(conversations=1, tokens=7)
    assert ledger.num_untrainable_samples == 0
    with pytest.warns(UntrainableWarning, match="they are kept"):
        kept = make_sft(prefix, sequence_length=4, untrainable_conversations="keep", path_to_cache=str(tmp_path / "c"))
    assert kept.ledger().num_untrainable_samples == 1
    with pytest.raises(ConfigError, match="no token to train on within a sample of 4 tokens; the first is sequence"):
        make_sft(prefix, sequence_length=4, untrainable_conversations="error")


def test_samples_of_a_users_own_are_not_counted(tmp_path):
    class Own(SFTDataset):
        def sample(self, idx):
            return super().sample(idx)

    plain = make_sft(write_conversations(tmp_path / "chat", [FIRST, SECOND]))
    dataset = Own(plain.dataset, plain.dataset.path_prefix, np.arange(2), None, Split.train, plain.config)
    for count in (lambda: dataset.slot_counts(np.array([0])), dataset.ledger):
        with pytest.raises(ConfigError, match=r"^Own overrides `.*`: no support for"):
            count()


def test_more_samples_begin_with_the_same_ones(tmp_path, rng):
    talks = [conversation((PROMPT, [1] * int(n)), (ANSWER, [2, 9])) for n in rng.integers(1, 5, size=40)]
    prefix = write_conversations(tmp_path / "chat", talks)
    few, many = make_sft(prefix, num_samples=7), make_sft(prefix, num_samples=70)
    for position in range(7):
        assert equal_samples(few.sample(position), many.sample(position))
        assert few.spans(position).documents.tolist() == many.spans(position).documents.tolist()


def test_every_epoch_has_every_conversation_once(tmp_path):
    talks = [conversation((PROMPT, [1]), (ANSWER, [number, 9])) for number in range(20, 50)]
    dataset = make_sft(write_conversations(tmp_path / "chat", talks), num_samples=40)
    stream = dataset.document_index.tolist()
    assert len(stream) > 60
    for start in (0, 30):
        assert sorted(stream[start : start + 30]) == list(range(30))
    assert stream[:30] != stream[30:60]
    assert make_sft(dataset.dataset.path_prefix, num_samples=40, random_seed=58).document_index.tolist() != stream


def test_a_gpt_config_will_do_and_a_wrong_one_is_refused(tmp_path):
    prefix = write_conversations(tmp_path / "chat", [FIRST, SECOND])
    config = make_config(prefix, sequence_length=8)
    data = SFTDataset.build_low_level_dataset(prefix, config)
    dataset = SFTDataset(data, prefix, np.arange(2, dtype=np.int32), None, Split.train, config)
    assert len(dataset) == 1
    wrong = make_config(prefix, sequence_length=8, create_attention_mask=True)
    with pytest.raises(ConfigError, match="`create_attention_mask`: must be False for conversations"):
        SFTDataset(data, prefix, np.arange(2, dtype=np.int32), None, Split.train, wrong)
    with pytest.raises(ConfigError, match="must be 'concat' for conversations, got 'best_fit'"):
        SFTDatasetConfig(random_seed=1, sequence_length=8, tokenizer=StandInTokenizer(), window_policy="best_fit")
    with pytest.raises(ConfigError, match="`train_on`: must be one of 'answers', 'last_answer', 'everything'"):
        SFTDatasetConfig(random_seed=1, sequence_length=8, tokenizer=StandInTokenizer(), train_on="prompts")


def test_a_pair_without_roles_is_refused(tmp_path):
    prefix = write_corpus(tmp_path / "corpus", [[1, 2, 3]])
    with pytest.raises(DatasetNotFoundError, match=r"corpus\.roles\.npy` with the roles of the tokens"):
        SFTLowLevelDataset(prefix)


def test_a_wrong_index_is_built_again_or_noticed(tmp_path):
    prefix = write_conversations(tmp_path / "chat", [FIRST, SECOND, THIRD] * 5)
    cache = tmp_path / "cache"
    dataset = make_sft(prefix, path_to_cache=str(cache))
    assert dataset.verify_indices() == []
    expected = dataset.sample(0)
    [path] = cache.glob("*-document_index.npy")
    stream = np.load(path)
    np.save(path, stream[::-1].copy())
    assert equal_samples(make_sft(prefix, path_to_cache=str(cache)).sample(0), expected)
    write_conversations(tmp_path / "chat", [FIRST, SECOND, SECOND] * 5)
    assert make_sft(prefix, path_to_cache=str(cache)).ledger().exposed.tokens == 5 * 10


def test_a_sample_that_holds_too_much_is_an_error_of_the_index(tmp_path):
    dataset = make_sft(write_conversations(tmp_path / "chat", [FIRST, SECOND, THIRD] * 5))
    order = dataset.order
    order.opened = {**order.arrays, "sample_index": np.array([0, 15], dtype=np.int64)}
    with pytest.raises(IndexCacheError, match="do not match the data: segment 2 does not fit its row"):
        dataset.sample(0)


@given(
    talks=conversations_strategy(),
    length=st.sampled_from([4, 8, 12, 16]),
    context=st.sampled_from([None, 2]),
    train_on=st.sampled_from(["answers", "last_answer", "everything"]),
    long=st.sampled_from(["truncate", "drop"]),
    untrainable=st.sampled_from(["keep", "drop"]),
    wanted=st.one_of(st.none(), st.integers(0, 9)),
    most=st.none() | st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
    pad=st.sampled_from([7, 9]),
)
def test_samples_and_ledger_agree_with_the_twin(
    talks, length, context, train_on, long, untrainable, wanted, most, seed, pad
):
    options = {
        "sequence_length": length,
        "context_parallel_size": context,
        "train_on": train_on,
        "long_conversations": long,
        "untrainable_conversations": untrainable,
        "most_conversations": most,
        "random_seed": seed,
        "tokenizer": StandInTokenizer(pad=pad),
    }
    multiple = 4 if context else 1
    with tempfile.TemporaryDirectory() as folder:
        prefix = write_conversations(f"{folder}/chat", talks)
        usable = [
            number
            for number, (tokens, parts) in enumerate(talks)
            if tokens
            and not (long == "drop" and len(tokens) > length)
            and not (untrainable == "drop" and not reference.trained_tokens(parts, min(len(tokens), length), train_on))
        ]
        if wanted and not usable:
            with pytest.raises(ConfigError, match="no conversation to train on"):
                make_sft(prefix, num_samples=wanted, quiet=True, **options)
            return
        dataset = make_sft(prefix, num_samples=wanted, quiet=True, **options)
        assert wanted is None or len(dataset) == wanted
        samples = [dataset.sample(position) for position in range(len(dataset))]
        stream = dataset.document_index.tolist()
        if wanted is None:
            assert sorted(stream) == usable
        # The contents of each sample.
        slots = [reference.round_up(min(len(talks[number][0]), length), multiple) for number in stream]
        rows = reference.next_fit(slots, length, most)
        assert [dataset.spans(position).documents.tolist() for position in range(len(dataset))] == [
            [stream[item] for item in row] for row in rows[: len(dataset)]
        ]
        for sample, row in zip(samples, rows, strict=True):
            expected = reference.sft_sample(
                [talks[stream[item]] for item in row], length=length, multiple=multiple, fill=pad, train_on=train_on
            )
            assert equal_samples(sample, expected)
        # The ledger's counts of the same samples.
        ledger = dataset.ledger()
        assert ledger.balance == (0, 0, 0, 0)
        assert ledger.counts.with_loss == sum(int(sample["loss_mask"].sum()) for sample in samples)
        assert ledger.num_untrainable_samples == sum(not sample["loss_mask"].any() for sample in samples)
        assert ledger.counts.slots == len(samples) * length
        assert ledger.read == Count(conversations=len(stream), tokens=sum(len(talks[number][0]) for number in stream))
        assert ledger.exposed.tokens == ledger.num_epochs * sum(len(tokens) for tokens, _ in talks)
        assert ledger.exposed.conversations == ledger.num_epochs * len(talks)
        assert untrainable == "keep" or ledger.num_untrainable_samples == 0


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    rng = np.random.default_rng(5)
    talks = [
        conversation((PROMPT, [1] * int(a)), (ANSWER, rng.integers(10, 99, size=b).tolist()))
        for a, b in rng.integers(1, 20, size=(200, 2))
    ]
    return write_conversations(tmp_path_factory.mktemp("chat") / "chat", talks)


def test_a_sample_is_the_same_everywhere(corpus, tmp_path):
    cache, settings = str(tmp_path / "cache"), {"num_samples": 60, "sequence_length": 64}
    dataset = make_sft(corpus, **settings, path_to_cache=cache)
    from_cache = make_sft(corpus, **settings, path_to_cache=cache)
    deferred = make_sft(corpus, **settings, path_to_cache=cache, defer_npy_index_mmap=True)
    unmapped = make_sft(corpus, **settings, mmap_bin_files=False)
    check_everywhere(dataset, list(range(60)), from_cache, deferred, unmapped)


def test_a_position_of_none_has_no_loss(corpus):
    dataset = make_sft(corpus, sequence_length=64)
    assert dataset.sample(None)["loss_mask"].sum() == 0
    with pytest.raises(IndexError, match="sample 999 out of range"):
        dataset.sample(999)
    assert equal_samples(dataset.sample(-1), dataset.sample(len(dataset) - 1))


def test_conversations_split_blend_and_load_like_everything_else(corpus, tmp_path):
    other = write_conversations(tmp_path / "other", [FIRST, SECOND, THIRD] * 30)
    config = SFTDatasetConfig(
        random_seed=3,
        sequence_length=64,
        blend=([corpus, other], [3.0, 1.0]),
        split="8,1,1",
        tokenizer=StandInTokenizer(pad=7),
        path_to_cache=str(tmp_path / "cache"),
    )
    train, valid, test = BlendedMegatronDatasetBuilder(SFTDataset, [100, 8, 0], lambda: True, config).build()
    assert len(train) >= 100
    seen = {int(number) for k in range(len(train)) for number in train.spans(k).documents if train.locate(k)[0] == 0}
    assert seen <= set(range(160))
    seen = {int(number) for k in range(len(valid)) for number in valid.spans(k).documents}
    assert seen <= {*range(160, 180), *range(72, 81)}
    assert test is None or len(test) == 0
    sampler = MegatronPretrainingSampler(len(train), 0, 4, data_parallel_rank=0, data_parallel_size=1)
    batches = list(build_dataloader(train, sampler, num_workers=2))
    assert len(batches) == len(train) // 4
    for number, batch in enumerate(batches):
        expected = [train.sample(4 * number + row) for row in range(4)]
        for name, tensor in batch.items():
            assert np.array_equal(tensor.numpy(), np.stack([sample[name] for sample in expected])), name
    assert train.verify_indices() == []


@pytest.mark.parametrize(
    ("changes", "multiple"),
    [
        ({}, 1),
        ({"context_parallel_size": 1}, 1),
        ({"context_parallel_size": 2}, 4),
        ({"context_parallel_size": 2, "sequence_parallel_size": 2}, 8),
        ({"context_parallel_size": 2, "hybrid_context_parallel": True, "data_parallel_size": 2}, 8),
        ({"sequence_parallel_size": 4}, 4),
    ],
)
def test_the_multiple_follows_from_the_parallel_sizes(changes, multiple):
    config = SFTDatasetConfig(random_seed=1, sequence_length=8, tokenizer=StandInTokenizer(), **changes)
    assert config.slot_multiple == multiple


def test_a_length_that_is_no_multiple_is_refused(tmp_path):
    prefix = write_conversations(tmp_path / "chat", [FIRST])
    with pytest.raises(ConfigError, match="`sequence_length`: must be a multiple of 4, got 10\nhint: round it up"):
        make_sft(prefix, sequence_length=10, context_parallel_size=2)
