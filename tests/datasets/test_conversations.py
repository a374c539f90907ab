"""Samples of conversations: packed, one by one, and of several pairs in a computed order."""

import pickle
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.datasets.conversations import (
    ANSWER,
    FIRST,
    PROMPT,
    TEXT,
    conversation,
    conversations_strategy,
    make_sft,
    make_varlen,
    write_conversations,
)
from tests.datasets.conversations import settings as config_settings
from tests.datasets.everywhere import check_everywhere
from tests.reference import chat as reference
from tests.reference.pack_walks import packs_of_walk
from tests.support import StandInTokenizer, equal_samples, make_config, write_corpus

from tokenloom.blending.dataset_builder import BlendedMegatronDatasetBuilder
from tokenloom.datasets.chat_config import SFTDatasetConfig, VarlenDatasetConfig
from tokenloom.datasets.conversations import MockVarlenDataset, MockVarlenLowLevelDataset, SFTDataset, VarlenDataset
from tokenloom.datasets.exposure import SFTLowLevelDataset
from tokenloom.datasets.slot_counts import Count
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError, DatasetNotFoundError, IndexCacheError, UntrainableWarning
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.joined import JoinedPairs, PairToJoin
from tokenloom.kernels.permutation import Key
from tokenloom.kernels.walks import NOT_KNOWN, count_packs_of, make_source_documents, make_walk_reader, sample_numbers
from tokenloom.loading.loader import build_dataloader
from tokenloom.loading.samplers import MegatronPretrainingSampler
from tokenloom.order.walk_order import WalkOrder

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
    tokens = sorted(cut.sample(k)["tokens"].tolist() for k in range(len(cut)))
    assert tokens == [[11, 12, 13, 9, 7, 7], [31, 32, 33, 34, 35, 36]]
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
    with pytest.raises(ConfigError, match=r"no token to train on within a sample of 4 tokens \(the first is sequence"):
        make_sft(prefix, sequence_length=4, untrainable_conversations="error")


def test_samples_of_a_users_own_are_not_counted(tmp_path):
    class Own(SFTDataset):
        def sample(self, idx):
            return super().sample(idx)

    plain = make_sft(write_conversations(tmp_path / "chat", [FIRST, SECOND]))
    dataset = Own(plain.dataset, plain.dataset.path_prefix, np.arange(2), None, Split.train, plain.config)
    for count in (lambda: dataset.slot_counts(np.array([0])), dataset.ledger):
        with pytest.raises(ConfigError, match=r"^Own overrides `.*`, so it does not support"):
            count()


def test_more_samples_begin_with_the_same_ones_and_every_epoch_has_every_conversation(tmp_path, rng):
    talks = [conversation((PROMPT, [1] * int(n)), (ANSWER, [2, 9])) for n in rng.integers(1, 5, size=40)]
    prefix = write_conversations(tmp_path / "chat", talks)
    few, many = make_sft(prefix, num_samples=7), make_sft(prefix, num_samples=70)
    for position in range(7):
        assert equal_samples(few.sample(position), many.sample(position))
        assert few.spans(position).documents.tolist() == many.spans(position).documents.tolist()
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
    with pytest.raises(ConfigError, match="cannot be set for conversations, got 'best_fit'"):
        SFTDatasetConfig(**config_settings(None, window_policy="best_fit"))
    with pytest.raises(ConfigError, match="`train_on`: must be one of 'answers', 'last_answer', 'everything'"):
        SFTDatasetConfig(**config_settings(None, train_on="prompts"))


def test_a_pair_without_roles_and_a_length_that_is_no_multiple_are_refused(tmp_path):
    prefix = write_corpus(tmp_path / "corpus", [[1, 2, 3]])
    with pytest.raises(DatasetNotFoundError, match=r"corpus\.roles\.npy` with the roles of the tokens"):
        SFTLowLevelDataset(prefix)
    prefix = write_conversations(tmp_path / "chat", [FIRST])
    with pytest.raises(ConfigError, match="`sequence_length`: must be a multiple of 4, got 10\nhint: round it up"):
        make_sft(prefix, sequence_length=10, context_parallel_size=2)


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
    options = {"sequence_length": length, "context_parallel_size": context, "train_on": train_on, "random_seed": seed}
    options |= {"long_conversations": long, "untrainable_conversations": untrainable, "most_conversations": most}
    options |= {"tokenizer": StandInTokenizer(pad=pad)}
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
            made = {"length": length, "multiple": multiple, "fill": pad, "train_on": train_on}
            assert equal_samples(sample, reference.sft_sample([talks[stream[item]] for item in row], **made))
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
    blend = {"blend": ([corpus, other], [3.0, 1.0]), "split": "8,1,1", "path_to_cache": str(tmp_path / "cache")}
    config = SFTDatasetConfig(**config_settings(None, random_seed=3, sequence_length=64, **blend))
    train, valid, test = BlendedMegatronDatasetBuilder(SFTDataset, [100, 8, 0], lambda: True, config).build()
    assert len(train) >= 100
    seen = {int(number) for k in range(len(train)) for number in train.spans(k).documents if train.locate(k)[0] == 0}
    assert seen <= set(range(160))
    seen = {int(number) for k in range(len(valid)) for number in valid.spans(k).documents}
    assert seen <= {*range(160, 180), *range(72, 81)}
    assert test is None or len(test) == 0
    sampler = MegatronPretrainingSampler(len(train), 0, 4, 0, 1)
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
    assert SFTDatasetConfig(**config_settings(None, **changes)).slot_multiple == multiple


TALK = conversation((PROMPT, [11, 12]), (ANSWER, [13, 14, 9]))


def test_a_sample_is_one_padded_conversation_and_has_no_batch_of_arrays(tmp_path):
    dataset = make_varlen(write_conversations(tmp_path / "chat", [TALK]), context_parallel_size=3, sequence_length=12)
    sample = dataset.sample(0)
    assert {name: array.tolist() for name, array in sample.items()} == {
        "tokens": [11, 12, 13, 14, 7, 7],
        "labels": [-100, 13, 14, 9, -100, -100],
        "loss_mask": [0, 1, 1, 1, 0, 0],
        "position_ids": [0, 1, 2, 3, 4, 5],
        "original_seq_len": [4],
        "padded_seq_len": [6],
    }
    assert sample["original_seq_len"].dtype == sample["padded_seq_len"].dtype == np.int32
    assert equal_samples({name: tensor.numpy() for name, tensor in dataset[0].items()}, sample)
    dataset = make_varlen(write_conversations(tmp_path / "chat", [TALK]))
    with pytest.raises(ConfigError, match="cannot batch samples of different lengths"):
        dataset.batch([0])
    assert [len(sample["tokens"]) for sample in dataset.__getitems__([0, None])] == [4, 4]
    assert dataset.sample(None)["loss_mask"].tolist() == [0, 0, 0, 0]


def test_an_ordinary_pair_is_text_with_loss_everywhere(tmp_path):
    prefix = write_corpus(tmp_path / "corpus", [[1, 2, 3, 9], [4, 9], [], [5]])
    with pytest.warns(UntrainableWarning, match="2 of 4 conversations have no token to train on .*; they are dropped"):
        dataset = make_varlen(prefix)
    assert sorted(dataset.sample(k)["tokens"].tolist() for k in range(2)) == [[1, 2, 3], [4]]
    assert sorted(dataset.sample(k)["labels"].tolist() for k in range(2)) == [[2, 3, 9], [9]]
    assert dataset.ledger().dropped_empty == Count(conversations=2, tokens=1)
    prefix = write_conversations(tmp_path / "chat", [conversation((TEXT, [1, 2, 3, 4, 5, 9]))])
    dataset = make_varlen(prefix, sequence_length=4)
    assert dataset.sample(0)["labels"].tolist() == [2, 3, 4, 5]
    assert dataset.ledger().truncated == Count(conversations=1, tokens=1)


def test_lengths_are_known_without_reading_tokens(tmp_path, monkeypatch):
    talks = [conversation((PROMPT, [1]), (ANSWER, [2] * count)) for count in (1, 5, 30, 2)]
    dataset = make_varlen(write_conversations(tmp_path / "chat", talks), num_samples=9, context_parallel_size=2)
    samples = [dataset.sample(k) for k in range(9)]
    monkeypatch.setattr(type(dataset.dataset), "gather", None)
    assert dataset.lengths().dtype == np.int64
    assert dataset.lengths().tolist() == [int(sample["original_seq_len"][0]) for sample in samples]
    assert dataset.padded_lengths().tolist() == [len(sample["tokens"]) for sample in samples]


@given(
    talks=conversations_strategy(),
    length=st.sampled_from([4, 8]),
    context=st.sampled_from([None, 2]),
    train_on=st.sampled_from(["answers", "last_answer", "everything"]),
    untrainable=st.sampled_from(["keep", "drop"]),
    wanted=st.one_of(st.none(), st.integers(0, 20)),
    seed=st.integers(0, 2**32 - 1),
)
def test_single_samples_and_ledger_agree_with_the_twin(talks, length, context, train_on, untrainable, wanted, seed):
    options = {"sequence_length": length, "context_parallel_size": context, "train_on": train_on}
    options |= {"untrainable_conversations": untrainable, "random_seed": seed}
    with tempfile.TemporaryDirectory() as folder:
        prefix = write_conversations(f"{folder}/chat", talks)
        usable = [
            number
            for number, (tokens, parts) in enumerate(talks)
            if len(tokens) > 1
            and (untrainable == "keep" or reference.trained_tokens(parts, min(len(tokens), length + 1), train_on))
        ]
        if wanted and not usable:
            with pytest.raises(ConfigError, match="no conversation to train on"):
                make_varlen(prefix, num_samples=wanted, quiet=True, **options)
            return
        dataset = make_varlen(prefix, num_samples=wanted, quiet=True, **options)
        stream = dataset.document_index.tolist()
        assert len(dataset) == len(stream) == (len(usable) if wanted is None else wanted)
        for epoch in range(0, len(stream), max(len(usable), 1)):
            part = stream[epoch : epoch + len(usable)]
            assert len(set(part)) == len(part)
            assert set(part) <= set(usable)
        samples = [dataset.sample(k) for k in range(len(dataset))]
        for number, sample in zip(stream, samples, strict=True):
            ids, parts = talks[number]
            made = {"length": length, "multiple": 4 if context else 1, "fill": 7, "train_on": train_on}
            assert equal_samples(sample, reference.varlen_sample(ids, parts, **made))
        ledger = dataset.ledger()
        assert ledger.balance == (0, 0, 0, 0)
        assert ledger.counts.with_loss == sum(int(sample["loss_mask"].sum()) for sample in samples)
        assert ledger.counts.slots == sum(len(sample["tokens"]) for sample in samples)
        assert ledger.num_untrainable_samples == sum(not sample["loss_mask"].any() for sample in samples)
        assert pickle.loads(pickle.dumps(dataset)).lengths().tolist() == dataset.lengths().tolist()


def mock(**changes):
    config = VarlenDatasetConfig(**config_settings(None, sequence_length=64, **changes))
    data = MockVarlenDataset.build_low_level_dataset(None, config)
    return MockVarlenDataset(data, None, np.arange(len(data), dtype=np.int32), 20, Split.train, config)


@pytest.fixture(autouse=True)
def small_mock(monkeypatch):
    monkeypatch.setattr(MockVarlenLowLevelDataset, "size", 1000)


def test_mock_lengths_are_lognormal_or_those_of_a_file(tmp_path):
    settings = {"mode": "distribution", "type": "lognormal", "min_seq_len": 3, "max_seq_len": 500}
    settings |= {"mean_seq_len": 60, "lognormal_sigma": 0.7}
    lengths = MockVarlenLowLevelDataset(StandInTokenizer(), **settings).sequence_lengths
    drawn = np.random.RandomState(0).lognormal(np.log(60) - 0.7**2 / 2, 0.7, 1000)
    assert lengths.tolist() == np.clip(drawn, 3, 500).astype(int).tolist()
    assert 55 < lengths.mean() < 65
    assert len(set(lengths.tolist())) > 50
    (tmp_path / "lengths.csv").write_text("length\n1\n3\n2147483647\n")
    data = MockVarlenLowLevelDataset(StandInTokenizer(), mode="file", path=str(tmp_path / "lengths.csv"))
    assert data.sequence_lengths.tolist() == [2, 3, 2147483647]  # at least one token and its label


def test_a_mock_sample_counts_up_to_its_end():
    dataset = mock(tokenizer=StandInTokenizer(pad=7, vocab_size=40))
    sample = dataset.sample(0)
    original = int(sample["original_seq_len"][0])
    assert sample["tokens"].tolist() == [(k + 1) % 40 for k in range(original)]
    assert sample["labels"].tolist() == [*((k + 1) % 40 for k in range(1, original)), 9]
    assert sample["loss_mask"].all()
    again = pickle.loads(pickle.dumps(dataset))
    assert all(equal_samples(again.sample(k), mock(tokenizer=dataset.config.tokenizer).sample(k)) for k in range(3))
    assert dataset.ledger().balance == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"mode": "dream"}, "`mode` of mock data: must be 'distribution' or 'file', got 'dream'"),
        ({"mode": "file", "path": "/nowhere"}, "must have a header and one length per line"),
        ({"mode": "distribution", "type": "lognormal"}, "invalid settings for mode 'distribution': .*missing"),
    ],
)
def test_wrong_settings_of_made_up_data_are_named(settings, text):
    with pytest.raises(ConfigError, match=text):
        mock(mock_dataset_config=settings)


def test_varlen_data_blends(tmp_path):
    first = write_conversations(tmp_path / "first", [TALK] * 8)
    second = write_conversations(tmp_path / "second", [conversation((PROMPT, [1]), (ANSWER, [2, 9]))] * 8)
    blend = {"blend": ([first, second], [1.0, 1.0]), "split": "1,0,0", "path_to_cache": str(tmp_path / "c")}
    config = VarlenDatasetConfig(**config_settings(None, **blend))
    train, _, _ = BlendedMegatronDatasetBuilder(VarlenDataset, [10, 0, 0], lambda: True, config).build()
    assert sorted({int(train[k]["original_seq_len"]) for k in range(10)}) == [2, 4]
    assert train.lengths().tolist() == [int(train[k]["original_seq_len"]) for k in range(len(train))]
    assert train.padded_lengths().tolist() == [len(train[k]["tokens"]) for k in range(len(train))]
    sampler = MegatronPretrainingSampler(len(train), 0, 4, data_parallel_rank=0, data_parallel_size=1)
    for number, batch in enumerate(build_dataloader(train, sampler, num_workers=1)):
        assert isinstance(batch, list)
        for row, sample in enumerate(batch):
            expected = {name: tensor for name, tensor in train[4 * number + row].items() if name != "dataset_id"}
            assert all(sample[name].tolist() == tensor.tolist() for name, tensor in expected.items())


KEY = Key(8, 2)
KINDS = {SFTDataset: SFTDatasetConfig, VarlenDataset: VarlenDatasetConfig}


class InOrder:
    """Returns a dataset of conversations in a computed order, built like in a run."""

    def __init__(self, kind, prefixes, *, denied=(), held=0, reads_held=False, **changes):
        config = KINDS[kind](**config_settings(None, **changes))
        opened = [IndexedDataset(prefix) for prefix in prefixes]
        joined = [
            PairToJoin(prefix=prefix, num_sequences=len(pair), check=lambda pair: None)
            for prefix, pair in zip(prefixes, opened, strict=True)
        ]
        self.pairs = JoinedPairs(joined, dtype=opened[0].dtype, mmap=config.mmap_bin_files)
        capacity = config.sequence_length if kind.shares_samples else 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UntrainableWarning)
            self.places = [kind.count_slots(pair, config) for pair in opened]
        rule = {"sequence_length": capacity, "extra": 0}
        options = {"key": KEY, "held_documents": held, "reads_held": reads_held, **rule}
        counts = [count_packs_of(places, pair=number, **options) for number, places in enumerate(self.places)]
        self.num_windows = sum(counts)
        facts = [
            (len(pair), NOT_KNOWN if kind.shares_samples else count, 0, held)
            for pair, count in zip(opened, counts, strict=True)
        ]
        documents = make_source_documents(facts, key=KEY, reads_held=reads_held)
        taken = kind.joined_conversations(self.pairs, config, name="talks")
        taken.report_slots(documents, shares_samples=kind.shares_samples)
        num_packs = counts if kind.shares_samples else None
        reader = make_walk_reader(documents, is_shuffled=True, denied=denied, num_packs=num_packs, **rule)
        reader.add_walks(0, 0, len(prefixes), self.num_windows)
        self.dataset = kind.in_order(taken, WalkOrder(self.pairs, reader, identity="test"))
        self.windows = np.arange(self.num_windows)

    def walk(self, number):
        return sample_numbers(np.full(self.num_windows, number), self.windows).tolist()


@pytest.mark.parametrize("kind", KINDS)
@given(
    pairs=st.lists(conversations_strategy(), min_size=1, max_size=4),
    length=st.sampled_from([4, 8, 16]),
    context=st.sampled_from([None, 2]),
    train_on=st.sampled_from(["answers", "last_answer", "everything"]),
    walk=st.integers(0, 5),
    mmap=st.booleans(),
)
def test_samples_are_those_of_the_twin(kind, pairs, length, context, train_on, walk, mmap) -> None:
    with tempfile.TemporaryDirectory() as folder:
        prefixes = [write_conversations(f"{folder}/{number}", talks) for number, talks in enumerate(pairs)]
        settings = {"sequence_length": length, "context_parallel_size": context, "train_on": train_on}
        source = InOrder(kind, prefixes, mmap_bin_files=mmap, **settings)
        everything = [talk for talks in pairs for talk in talks]
        ahead = 0 if kind is SFTDataset else 1
        usable = [
            number
            for number, (tokens, parts) in enumerate(everything)
            if len(tokens) > ahead and reference.trained_tokens(parts, min(len(tokens), length + ahead), train_on)
        ]
        numbers = source.walk(walk)
        rows = [source.dataset.spans(number).documents.tolist() for number in numbers]
        assert sorted(number for row in rows for number in row) == usable
        made = {"length": length, "multiple": 4 if context else 1, "fill": 7, "train_on": train_on}
        for number, row in zip(numbers, rows, strict=True):
            own = [everything[item] for item in row]
            expected = reference.sft_sample(own, **made) if not ahead else reference.varlen_sample(*own[0], **made)
            assert equal_samples(source.dataset.sample(number), expected)
        if kind is SFTDataset:
            places = [places.tolist() for places in source.places]
            packs = packs_of_walk(places, key=KEY, walk=walk, sequence_length=length, extra=0)
            assert rows == [[document for document, _, _ in pack] for pack in packs]
        elif numbers:
            lengths = [int(source.dataset.sample(number)["original_seq_len"][0]) for number in numbers]
            assert source.dataset.lengths(numbers).tolist() == lengths


@pytest.fixture
def talks(tmp_path):
    random = np.random.default_rng(0)
    pairs = [
        [
            conversation((PROMPT, random.integers(10, 99, size=3).tolist()), (ANSWER, [*range(10, 11 + size), 9]))
            for size in random.integers(0, 9, size=count)
        ]
        for count in (30, 1, 25)
    ]
    prefixes = [write_conversations(tmp_path / f"p{number}", part) for number, part in enumerate(pairs)]
    return prefixes, [talk for part in pairs for talk in part]


@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_the_same_in_any_batch_and_thread(kind, talks) -> None:
    prefixes, _ = talks
    source, again = (InOrder(kind, prefixes, sequence_length=16) for _ in range(2))
    numbers = [*source.walk(0), *source.walk(7)]
    samples = [source.dataset.sample(number) for number in numbers]
    orders = [np.random.default_rng(seed).permutation(len(numbers))[:20].tolist() for seed in range(8)]

    def ask(order):
        asked = [numbers[place] for place in order]
        if kind is VarlenDataset:
            return [again.dataset.sample(number) for number in asked]
        batch = again.dataset.batch(asked)
        return [{name: array[row] for name, array in batch.items()} for row in range(len(asked))]

    with ThreadPoolExecutor(4) as pool:
        for order, found in zip(orders, pool.map(ask, orders), strict=True):
            assert all(equal_samples(sample, samples[place]) for place, sample in zip(order, found, strict=True))
    assert equal_samples({name: tensor.numpy() for name, tensor in again.dataset[numbers[0]].items()}, samples[0])


@pytest.mark.parametrize("kind", KINDS)
def test_denied_conversations_are_padding_and_never_read(kind, talks, monkeypatch) -> None:
    prefixes, _ = talks
    denied = (0, 4, 30, 40)
    plain = InOrder(kind, prefixes, sequence_length=16)
    source = InOrder(kind, prefixes, sequence_length=16, denied=denied)
    read = []
    gather = IndexedDataset.gather

    def recorded(pair, sequences, *rest):
        read.append((pair, sequences))
        return gather(pair, sequences, *rest)

    monkeypatch.setattr(IndexedDataset, "gather", recorded)
    hidden = 0
    for number in source.walk(0):
        read.clear()
        after = source.dataset.sample(number)
        firsts = {prefix: source.pairs.first_of(place) for place, prefix in enumerate(prefixes)}
        asked = {firsts[pair.path_prefix] + sequence for pair, sequences in read for sequence in sequences.tolist()}
        assert not asked & {*denied}
        before, spans = plain.dataset.sample(number), plain.dataset.spans(number)
        changed = source.dataset.spans(number)
        assert changed.lengths.tolist() == spans.lengths.tolist()
        assert changed.documents.tolist() == [-1 - d if d in denied else d for d in spans.documents.tolist()]
        for name in after:
            if name not in ("tokens", "labels", "loss_mask"):
                assert np.array_equal(after[name], before[name]), name
        begin = 0
        for document, slots in zip(spans.documents.tolist(), places_of(plain, spans), strict=True):
            own = slice(begin, begin + slots)
            if document in denied:
                hidden += 1
                assert after["tokens"][own].tolist() == [7] * slots
                assert after["labels"][own].tolist() == [-100] * slots
                assert not after["loss_mask"][own].any()
            else:
                assert all(np.array_equal(after[name][own], before[name][own]) for name in after if name == "tokens")
                assert np.array_equal(after["labels"][own], before["labels"][own])
            begin += slots
    assert hidden == len(denied)
    if kind is VarlenDataset:
        numbers = source.walk(0)
        assert source.dataset.lengths(numbers).tolist() == plain.dataset.lengths(numbers).tolist()
        assert source.dataset.padded_lengths(numbers).tolist() == plain.dataset.padded_lengths(numbers).tolist()


def places_of(source, spans):
    everything = np.concatenate(source.places)
    if type(source.dataset) is SFTDataset:
        return everything[spans.documents].tolist()
    return [int(spans.lengths[0]) - 1]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_held_out_is_disjoint(kind, talks) -> None:
    prefixes, everything = talks
    read = [
        [document for number in source.walk(0) for document in source.dataset.spans(number).documents.tolist()]
        for source in (InOrder(kind, prefixes, sequence_length=16, held=5, reads_held=held) for held in (True, False))
    ]
    assert len(read[0]) == 5 + 1 + 5
    assert sorted(read[0] + read[1]) == list(range(len(everything)))


def test_plain_text_is_for_variable_lengths_alone_and_indices_are_refused(tmp_path, talks) -> None:
    prefix = write_corpus(tmp_path / "text", [[1, 2, 3, 9], [4, 9], [], [5]])
    source = InOrder(VarlenDataset, [prefix])
    assert sorted(source.dataset.sample(number)["labels"].tolist() for number in source.walk(2)) == [[2, 3, 9], [9]]
    with pytest.raises(DatasetNotFoundError, match="with the roles of the tokens"):
        InOrder(SFTDataset, [prefix])
    source = InOrder(SFTDataset, talks[0])
    for ask in (source.dataset.ledger, lambda: source.dataset.document_index, lambda: source.dataset.sample_index):
        with pytest.raises(ConfigError, match="has no index arrays, as its order is computed"):
            ask()
    with pytest.raises(ConfigError, match="has no index arrays"):
        InOrder(VarlenDataset, talks[0]).dataset.lengths()
    with pytest.raises(ConfigError, match="longer than a sample of 4"):
        InOrder(SFTDataset, talks[0], sequence_length=4, long_conversations="error")
