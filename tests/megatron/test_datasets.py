"""Dataset classes of `tokenloom.megatron.core.datasets`, and forks of them; `tests/peer` compares their hooks."""

import pickle

import numpy as np
import pytest
import torch
from tests.datasets import masked
from tests.datasets.masked import KINDS, SENTENCES
from tests.support import (
    EOD,
    MASKING,
    StandInTokenizer,
    StandInWordPieces,
    equal_samples,
    make_config,
    write_corpus,
    write_sentences,
)
from torch.utils.data import DataLoader, default_collate

from tokenloom.datasets.shortcuts import fills_batches, makes_batches
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError, IndexCacheError
from tokenloom.indexed.dataset import IndexedDataset as PlainIndexedDataset
from tokenloom.loading.samplers import MegatronPretrainingSampler
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.megatron.core.datasets import bert_dataset, gpt_dataset, t5_dataset
from tokenloom.megatron.core.datasets.blended_dataset import BlendedDataset
from tokenloom.megatron.core.datasets.blended_megatron_dataset_config import BlendedMegatronDatasetConfig
from tokenloom.megatron.core.datasets.gpt_dataset import (
    GPTDataset,
    GPTDatasetConfig,
    MockGPTDataset,
    MockGPTLowLevelDataset,
)
from tokenloom.megatron.core.datasets.indexed_dataset import IndexedDataset
from tokenloom.megatron.core.datasets.multimodal_dataset import MockMultimodalDataset, MultimodalDatasetConfig

DOCUMENTS = [[1, 2, 3, EOD], [4, 5, EOD], [6, 7, 8, 10, 11, EOD], [12, 13, 14, 15, 16, 17]]


def make(cls, folder, *, num_samples=None, **changes):
    prefix = f"{folder}/corpus"
    if not IndexedDataset.exists(prefix):
        write_corpus(prefix, DOCUMENTS)
    config = make_config(prefix, kind=GPTDatasetConfig, path_to_cache=f"{folder}/cache", **changes)
    rows = np.arange(len(DOCUMENTS), dtype=np.int32)
    return cls(IndexedDataset(prefix), prefix, rows, num_samples, Split.train, config)


def tokens(samples):
    return [np.asarray(sample["tokens"]).tolist() for sample in samples]


class Doubled(GPTDataset):
    def _query_document_sample_shuffle_indices(self, idx):
        text, *rest = super()._query_document_sample_shuffle_indices(idx)
        return text * 2, *rest


@pytest.mark.parametrize("changes", [{}, {"mmap_bin_files": False}, {"create_attention_mask": True}])
def test_all_paths_call_an_overridden_hook(tmp_path, changes):
    plain, mine = (make(cls, tmp_path, **changes) for cls in (GPTDataset, Doubled))
    expected = [[2 * token for token in row] for row in tokens(plain[k] for k in range(4))]
    rows = list(range(4))
    assert tokens(mine[k] for k in rows) == expected
    assert tokens(mine.sample(k) for k in rows) == expected
    assert mine.batch(rows)["tokens"].tolist() == expected
    assert tokens(mine.__getitems__(rows)) == expected
    assert next(iter(DataLoader(mine, batch_size=4)))["tokens"].tolist() == expected
    sampler = MegatronPretrainingSampler(4, 0, 4, 0, 1)
    assert next(iter(ThreadLoader(mine, sampler, num_threads=2)))["tokens"].tolist() == expected
    blend = BlendedDataset([mine, mine], [1.0, 1.0], 4, mine.config)
    halves = [expected[0], expected[0], expected[1], expected[1]]
    assert tokens(blend[k] for k in rows) == tokens(blend.__getitems__(rows)) == halves
    assert not fills_batches(mine)
    assert not makes_batches(blend)


def test_samples_of_a_batch_may_be_changed(tmp_path):
    samples = make(GPTDataset, tmp_path, create_attention_mask=True).__getitems__([0, 1])
    assert type(samples) is list
    samples[0]["attention_mask"][:] = True
    assert not samples[1]["attention_mask"].all()
    assert not make(GPTDataset, tmp_path, create_attention_mask=True)[1]["attention_mask"].all()


def test_a_cached_loss_mask_is_not_changed_by_a_sample(tmp_path, monkeypatch):  # unlike in Megatron
    monkeypatch.setattr(gpt_dataset, "_get_ltor_masks_and_position_ids", lambda *given: gpt_dataset._MASKS(*given))
    dataset = make(GPTDataset, tmp_path, tokenizer=StandInTokenizer(pad=4))
    with_pad = [k for k in range(len(dataset)) if 4 in (dataset._query_document_sample_shuffle_indices(k)[0][1:])]
    dataset.masks_and_position_ids_are_cached = False
    assert dataset[with_pad[0]]["loss_mask"].min() == 0
    assert {float(dataset[k]["loss_mask"].min()) for k in range(len(dataset)) if k not in with_pad} == {1.0}


@pytest.mark.parametrize(("version", "has_lengths"), [((0, 16, 1), False), ((0, 18), False), ((0, 19, 2), True)])
def test_a_query_returns_the_values_of_the_version(tmp_path, monkeypatch, version, has_lengths):
    monkeypatch.setattr(gpt_dataset, "reference_version", lambda: version)
    text, documents, *lengths = make(GPTDataset, tmp_path)._query_document_sample_shuffle_indices(0)
    assert len(lengths) == has_lengths
    if has_lengths:
        assert (sum(lengths[0]), len(lengths[0])) == (len(text), len(documents))


def test_boundaries_need_the_lengths_of_documents(tmp_path, monkeypatch):
    plain = make(GPTDataset, tmp_path, inter_document_masking=True)
    monkeypatch.setattr(gpt_dataset, "reference_version", lambda: (0, 19, 2))
    mine = make(Doubled, tmp_path, inter_document_masking=True)
    for k in range(len(plain)):
        names = ("cu_seqlens", "max_seqlen", "position_ids")
        assert equal_samples(*({name: each[k][name] for name in names} for each in (mine, plain)))
    monkeypatch.setattr(gpt_dataset, "reference_version", lambda: (0, 16, 1))
    with pytest.raises(ConfigError, match=r"`Doubled._query_document_sample_.*` must return three values"):
        mine[0]


def test_assigned_arrays_are_used_by_kernels_and_survive_pickling(tmp_path):
    dataset = make(GPTDataset, tmp_path)
    before = tokens(dataset[k] for k in range(len(dataset)))
    dataset.shuffle_index = np.array(dataset.shuffle_index)[::-1].copy()
    assert fills_batches(dataset)
    assert dataset._mapped_samples() is not None
    again = pickle.loads(pickle.dumps(dataset))
    for each in (dataset, again):
        assert tokens(each[k] for k in range(len(dataset))) == before[::-1]
        assert tokens(each.__getitems__(range(len(dataset)))) == before[::-1]
        assert [each.spans(k).num_tokens for k in range(len(dataset))] == [5] * len(dataset)
    dataset.sample_index = np.array(dataset.sample_index)[::2]  # no run of windows, so no kernel reads it
    assert not fills_batches(dataset)


def test_replaced_functions_build_the_index_once(tmp_path, monkeypatch):
    calls = []

    def unshuffled(num_samples, total_size, numpy_random_state):
        calls.append(total_size)
        return np.arange(total_size, dtype=np.uint32)

    monkeypatch.setattr(gpt_dataset, "_build_shuffle_index", unshuffled)
    first, second = make(GPTDataset, tmp_path), make(GPTDataset, tmp_path)
    assert calls == [len(first)]
    assert second.shuffle_index.tolist() == list(range(len(first)))
    assert fills_batches(second)
    assert tokens(first.__getitems__([0, 1])) == tokens(second.__getitems__([0, 1]))
    [path] = tmp_path.glob("**/*-shuffle_index.npy")
    np.save(path, np.load(path)[::-1])
    assert make(GPTDataset, tmp_path).shuffle_index.tolist() == list(range(len(first)))
    assert calls == [len(first)] * 2, "a damaged entry is built again"

    with pytest.raises(ConfigError, match="GPTDataset: hooks need Megatron's sample order"):
        make(GPTDataset, tmp_path, window_policy="best_fit")
    with pytest.raises(ConfigError, match="MockGPTDataset: reads mock data only"):
        make(MockGPTDataset, tmp_path)


def test_masks_and_positions_of_a_text():
    text = torch.tensor([1, EOD, 2, 3, EOD, EOD, 4])
    mask, loss, positions = gpt_dataset._get_ltor_masks_and_position_ids(text, EOD, True, True, True, True)
    assert positions.tolist() == [0, 1, 0, 1, 2, 0, 0]
    assert loss.tolist() == [1, 0, 1, 1, 0, 0, 1]
    seen = [[j for j in range(7) if not mask[0, i, j]] for i in range(7)]
    assert seen == [[0], [0, 1], [2], [2, 3], [2, 3, 4], [5], [6]]


@pytest.mark.parametrize("flags", list(np.ndindex(2, 2, 2, 2)))
@pytest.mark.parametrize("extra", [True, False])
def test_hooks_and_kernels_make_the_same_samples(tmp_path, rng, flags, extra):
    prefix = write_corpus(tmp_path / "corpus", [rng.choice([1, 2, 3, 5, EOD], size=25) for _ in range(2)])
    names = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "create_attention_mask")
    settings = {name: bool(flag) for name, flag in zip(names, flags, strict=True)}
    settings |= {"drop_last_partial_validation_sequence": False, "add_extra_token_to_sequence": extra}
    settings |= {"sequence_length": 6, "tokenizer": StandInTokenizer(pad=5)}
    config = make_config(prefix, kind=GPTDatasetConfig, path_to_cache=f"{tmp_path}/cache", **settings)
    dataset = GPTDataset(IndexedDataset(prefix), prefix, np.arange(2, dtype=np.int32), None, Split.valid, config)
    for k in range(len(dataset)):
        expected, made = dataset[k], dataset._item(k)
        dataset.masks_and_position_ids_are_cached = False
        assert equal_samples(made, expected)


@pytest.fixture
def parts(tmp_path):
    prefixes = [write_corpus(tmp_path / name, [range(start, start + 21)]) for name, start in (("a", 0), ("b", 50))]
    config = make_config(None, kind=GPTDatasetConfig)
    return [GPTDataset(IndexedDataset(prefix), prefix, range(1), 5, Split.train, config) for prefix in prefixes]


def test_getitems_equals_getitem(parts):
    blend = BlendedDataset(parts, [1.0, 1.0], 6, parts[0].config)
    assert fills_batches(blend)
    batch = blend.__getitems__(range(6))
    assert type(batch) is list
    for k, sample in enumerate(batch):
        assert [type(value) for value in sample.values()] == [type(value) for value in blend[k].values()]
        assert equal_samples(sample, blend[k])


def test_arrays_may_be_built_by_a_class_or_assigned(parts):
    class Last(BlendedDataset):
        def _build_indices(self):
            index, samples = super()._build_indices()
            return index * 0 + 1, samples

    config = parts[0].config
    made, assigned = Last(parts, [1.0, 1.0], 6, config), BlendedDataset(parts, [1.0, 1.0], 6, config)
    assigned.dataset_index = np.ones(6, dtype=np.int64)
    for blend in (made, assigned, pickle.loads(pickle.dumps(assigned))):
        assert [blend[k]["dataset_id"] for k in range(6)] == [1] * 6
        assert min(sample["tokens"].min() for sample in blend.__getitems__(range(6))) >= 50
        assert blend.batch([0, 1])["dataset_id"].dtype == blend.dataset_index.dtype
    assert fills_batches(assigned)
    assigned.dataset_sample_index = np.full(6, 99)
    with pytest.raises(IndexCacheError, match="has sample 99"):
        assigned[0]


def test_blends_keep_their_form():
    blend = (("a", "b"), (0, 1))
    config = BlendedMegatronDatasetConfig(-1, 8, blend, split="8:1:1")
    assert config.blend is blend
    assert config.split_matrix == [(0, 0.8), (0.8, 0.9), (0.9, 1.0)]
    config = BlendedMegatronDatasetConfig(1, 8, [[0.3, "a"], [0.7, "b"]], split="1,0,0")
    assert config.blend == (["a", "b"], [0.3, 0.7])


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"blend": (["a"], None)}, "no `split` given for `blend`"),
        ({"blend": (["a"], [1.0, 2.0]), "split": "1"}, "`blend`: got 2 weights for 1 prefixes"),
        ({"blend": (["a"], None), "split": "1,1,1,1"}, "split '1,1,1,1': must have at most 3 weights, got 4"),
        ({"blend": (["a"], None), "split": "1e3,1"}, "split '1e3,1': a number has a sign or exponent"),
        ({"blend": (["a"], None), "split": "1", "fast_cache_load": True}, "`fast_cache_load` and `blend` exclude"),
        ({"blend_per_split": [(["a"], None)], "split": "1"}, "`split` and `blend_per_split` exclude"),
        ({"blend_per_split": [(["a"], None)]}, "`blend_per_split`: must have 3 entries, got 1"),
        ({"blend_per_split": [(["a"], [1, 2]), None, None]}, r"`blend_per_split\[0\]`: got 2 weights"),
    ],
)
def test_errors_are_assertion_errors(settings, text):
    with pytest.raises(ConfigError, match=text) as raised:
        BlendedMegatronDatasetConfig(1, 8, path_to_cache="cache", **settings)
    assert isinstance(raised.value, AssertionError)


def test_settings_of_gpt_configurations():
    settings = {"random_seed": 1, "sequence_length": 8, "tokenizer": StandInTokenizer(vocab_size=65_536)}
    config = GPTDatasetConfig(**settings, path_to_cache="s3://bucket/indices", varlen_sbhd_validation=True)
    assert config.path_to_cache == "s3://bucket/indices"
    assert (config.reset_position_ids, config.inter_document_masking, config.token_dtype_code) == (False, False, 8)
    with pytest.raises(AssertionError, match="`varlen_sbhd_validation` and `hybrid_context_parallel`"):
        GPTDatasetConfig(**settings, varlen_sbhd_validation=True, hybrid_context_parallel=True)
    with pytest.raises(ConfigError, match="`path_to_cache`: must be a local folder"):
        BlendedMegatronDatasetConfig(1, 8, path_to_cache="s3:/bucket/indices")


def make_mock(kind=MockMultimodalDataset, **changes):
    settings = {"random_seed": 1, "sequence_length": 8, "tokenizer": StandInTokenizer()}
    config = MultimodalDatasetConfig(**{**settings, "image_h": 2, "image_w": 3, **changes})
    data = MockGPTLowLevelDataset(config.tokenizer)
    return kind(data, None, np.arange(9, dtype=np.int32), 6, Split.train, config)


def test_samples_have_an_image():
    dataset = make_mock()
    assert (dataset[0]["image"].shape, dataset[0]["image"].dtype) == ((3, 2, 3), torch.float32)
    (batch,) = DataLoader(dataset, batch_size=len(dataset))
    assert batch["image"].shape == (len(dataset), 3, 2, 3)
    assert dataset.item_hook is None
    with pytest.raises(AssertionError, match="`image_h`: must be 1 or more, got None"):
        make_mock(image_h=None)


def test_hooks_are_called():
    dataset = make_mock(preprocess_func=lambda sample: {"sum": sample["image"].sum() + sample["tokens"][0]})
    (batch,) = DataLoader(dataset, batch_size=len(dataset))
    assert batch["sum"].tolist() == [dataset[k]["sum"] for k in range(len(dataset))]

    class Fives(MockMultimodalDataset):
        def _query_document_sample_shuffle_indices(self, idx):
            text, *rest = super()._query_document_sample_shuffle_indices(idx)
            return (np.full_like(text, 5), *rest)

    (batch, *_) = DataLoader(make_mock(Fives), batch_size=6)
    assert (batch["tokens"] == 5).all()
    assert (batch["image"] == 0).all()


CLASSES = {"bert": bert_dataset.BERTMaskedWordPieceDataset, "t5": t5_dataset.T5MaskedWordPieceDataset}
both = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def corpus(tmp_path):
    return write_sentences(tmp_path / "corpus", SENTENCES)


def make_masked(cls, prefix, kind):
    data = PlainIndexedDataset(prefix)
    rows = np.arange(data.num_documents, dtype=np.int32)
    return cls(data, prefix, rows, 8, Split.train, masked.make_config(kind, prefix))


@both
def test_they_are_datasets_of_torch(corpus, kind):
    dataset = make_masked(CLASSES[kind], corpus, kind)
    assert len(dataset + dataset) == 2 * len(dataset)

    def collate(samples):
        assert type(samples) is list
        for sample in samples:
            sample["loss_mask"][:] = 7
        return default_collate(samples)

    assert all((batch["loss_mask"] == 7).all() for batch in DataLoader(dataset, batch_size=4, collate_fn=collate))


def test_settings_are_validated_as_in_megatron(corpus):
    config_class = bert_dataset.BERTMaskedWordPieceDatasetConfig
    settings = {"sequence_length": 12, "tokenizer": StandInWordPieces(), "classification_head": True, **MASKING}
    config = config_class(**settings, blend=([corpus], None), split="8:1:1")
    assert config.split_matrix == [(0, 0.8), (0.8, 0.9), (0.9, 1.0)]
    for changes in ({"masking_probability": None}, {"classification_head": None}, {"masking_max_ngram": 0}):
        with pytest.raises(AssertionError):
            config_class(**(settings | changes), blend=([corpus], None), split="1")
    data = CLASSES["bert"].build_low_level_dataset(corpus, config)
    assert type(data) is IndexedDataset
    assert CLASSES["bert"].numel_low_level_dataset(data) == 4


@both
def test_hooks_that_kernels_do_not_call_are_errors(corpus, kind):
    for name in ("_build_sample_index", "_create_masked_lm_predictions", "_get_token_mask"):
        mine = type("Mine", (CLASSES[kind],), {name: lambda self, *given: None})
        with pytest.raises(ConfigError, match=f"`Mine` overrides `{name}`, which tokenloom does not call"):
            make_masked(mine, corpus, kind)


def fork_of(base):
    class Changed(base):
        def __getitem__(self, idx):
            sample = super().__getitem__(idx)
            sample["loss_mask"][:2] = 0
            return sample

    return Changed


def lists_of(sample):
    return {name: np.asarray(value).tolist() for name, value in sample.items()}


def results_of(bert, t5, indexed_dataset, split, prefix, tokenizer, folder):
    """Returns arrays, samples and batches of BERT and of a fork of T5, of either package."""
    own = {"bert": {"classification_head": True}, "t5": {"sequence_length_decoder": 40}}
    configs = {"bert": bert.BERTMaskedWordPieceDatasetConfig, "t5": t5.T5MaskedWordPieceDatasetConfig}
    classes = {"bert": bert.BERTMaskedWordPieceDataset, "t5": fork_of(t5.T5MaskedWordPieceDataset)}
    found = {}
    for kind, cls in classes.items():
        plain = masked.make_config(kind, prefix)
        settings = {name: getattr(plain, name) for name in ("random_seed", "sequence_length", "split", "blend")}
        settings |= {name: value for name, value in vars(plain).items() if name.startswith(("masking", "short"))}
        config = configs[kind](**settings | own[kind], tokenizer=tokenizer, path_to_cache=folder)
        dataset = cls(indexed_dataset(prefix), prefix, np.arange(20, dtype=np.int32), 24, split.train, config)
        samples = [dataset[k] for k in range(len(dataset))]
        found[kind] = {
            "index": dataset.sample_index.tolist(),
            "lookup": [int(number) for number in dataset.token_lookup],
            "samples": [lists_of(sample) for sample in samples],
            "batches": [lists_of(batch) for batch in DataLoader(dataset, batch_size=4)],
        }
    return found


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")
def test_forks_equal_forks_of_megatron(tmp_path, rng):
    names = ("bert_dataset", "t5_dataset", "indexed_dataset", "utils")
    bert, t5, indexed, utils = (pytest.importorskip(f"megatron.core.datasets.{name}") for name in names)
    documents = [[rng.integers(106, 130, size=int(rng.integers(1, 12))) for _ in range(5)] for _ in range(20)]
    prefix = write_sentences(tmp_path / "corpus", documents)
    tokenizer = StandInWordPieces(vocab_size=130, pad=0, num_sentinels=100, continuations=range(107, 130, 3))
    tokenizer.inv_vocab = dict(reversed(tokenizer.inv_vocab.items()))
    given = prefix, tokenizer
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    try:
        expected = results_of(bert, t5, indexed.IndexedDataset, utils.Split, *given, f"{tmp_path}/theirs")
    finally:
        torch.distributed.destroy_process_group()
    assert results_of(bert_dataset, t5_dataset, PlainIndexedDataset, Split, *given, f"{tmp_path}/ours") == expected
