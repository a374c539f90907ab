"""Configuration and builder as overviews write them."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support import StandInTokenizer, write_corpus

from tokenloom import ConfigError, TokenizerError
from tokenloom.megatron import described
from tokenloom.megatron.described import BlendedMegatronDatasetBuilder, BlendedMegatronDatasetConfig, blend_of


@pytest.fixture
def prefixes(tmp_path, rng):
    return [write_corpus(tmp_path / name, rng.integers(0, 90, size=(10, 400))) for name in ("books", "web")]


def test_the_data_are_all_that_is_needed_and_one_dataset_comes_out(prefixes):
    entries = [{"name": prefixes[0], "weight": 0.75}, {"name": prefixes[1], "weight": 0.25}]
    config = BlendedMegatronDatasetConfig(datasets=entries, sequence_length=16)
    dataset = BlendedMegatronDatasetBuilder(config=config).build()
    assert len(dataset) == int(249 / 0.75)  # 3,999 tokens with a label are 249 samples
    assert np.bincount(dataset.dataset_index).tolist() == [249, 83]
    assert sorted(dataset.sample(0)) == ["dataset_id", "labels", "loss_mask", "position_ids", "tokens"]
    assert (config.random_seed, config.split, config.reset_position_ids) == (1234, "1,0,0", False)


def test_other_forms_of_a_blend_and_sizes(prefixes):
    for datasets in ([[3, prefixes[0]], (1, prefixes[1])], prefixes, [{"name": prefix} for prefix in prefixes]):
        config = BlendedMegatronDatasetConfig(datasets=datasets, sequence_length=16)
        assert len(BlendedMegatronDatasetBuilder(config=config).build()) in (332, 498)
    config = BlendedMegatronDatasetConfig(blend=(prefixes, [1.0, 1.0]), split="8,2,0", sequence_length=16)
    train, valid, test = BlendedMegatronDatasetBuilder(sizes=[40, 4, 0], config=config).build()
    assert (len(train), len(valid), test) == (40, 4, None)
    assert len(BlendedMegatronDatasetBuilder(config=BlendedMegatronDatasetConfig(datasets=prefixes[:1])).build()) == 3


@pytest.mark.parametrize("weight", [1.0, 0.3])
@pytest.mark.parametrize("form", ["names", "pairs", "blend"])
def test_one_dataset_with_a_weight_is_that_dataset(prefixes, form, weight):
    prefix = prefixes[0]
    settings = {
        "names": {"datasets": [{"name": prefix, "weight": weight}]},
        "pairs": {"datasets": [[weight, prefix]]},
        "blend": {"blend": ([prefix], [weight])},
    }[form]
    config = BlendedMegatronDatasetConfig(sequence_length=16, **settings)
    dataset = BlendedMegatronDatasetBuilder(config=config).build()
    assert (type(dataset).__name__, len(dataset)) == ("GPTDataset", 249)
    assert len(BlendedMegatronDatasetBuilder(sizes=[300, 0, 0], config=config).build()[0]) >= 300


def test_without_a_tokenizer_ids_mean_nothing(prefixes):
    config = BlendedMegatronDatasetConfig(datasets=prefixes[:1])
    with pytest.raises(TokenizerError, match="expected a tokenizer that says which token ends a document"):
        BlendedMegatronDatasetBuilder(
            config=BlendedMegatronDatasetConfig(datasets=prefixes[:1], eod_mask_loss=True)
        ).build()
    assert BlendedMegatronDatasetConfig(tokenizer=StandInTokenizer()).mock
    assert config.tokenizer.unique_identifiers == {"class": "ids alone"}


def test_retries_are_those_of_object_storage(prefixes):
    assert BlendedMegatronDatasetConfig(datasets=prefixes, retries=3).storage_settings.retries == 3
    assert BlendedMegatronDatasetConfig(datasets=prefixes).storage_settings.retries is None


@pytest.mark.parametrize(
    ("datasets", "said"),
    [
        ([], "expected datasets as {'name': …, 'weight': …}, found []"),
        ([{"path": "a"}], "expected datasets as {'name': …, 'weight': …}, found [{'path': 'a'}]"),
        ([{"name": "a", "weight": 1}, {"name": "b"}], "expected a weight for each of 2 datasets or for none, found 1"),
    ],
)
def test_other_entries_are_refused(datasets, said):
    with pytest.raises(ConfigError) as info:
        blend_of(datasets)
    assert info.value.message == said


def test_what_contradicts_itself_is_refused(prefixes):
    with pytest.raises(ConfigError, match="`datasets` and `blend` exclude each other"):
        BlendedMegatronDatasetConfig(datasets=prefixes, blend=(prefixes, None))
    with pytest.raises(ConfigError, match="expected settings as `config`, found none"):
        BlendedMegatronDatasetBuilder()
    for datasets in ([{"name": "a", "weight": 0}, {"name": "b", "weight": 1}], [[0, "a"]]):
        with pytest.raises(ConfigError, match="expected a finite weight above 0"):
            BlendedMegatronDatasetConfig(datasets=datasets)
    config = BlendedMegatronDatasetConfig(datasets=[[1, prefixes[0]], [1, prefixes[1]]])
    with pytest.raises(ConfigError, match="expected `sizes` for a blend by weight of BERTMaskedWordPieceDataset"):
        BlendedMegatronDatasetBuilder(described.BertDataset, config=config).build()
