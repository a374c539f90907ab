"""`load`: names of data, what it takes from the data, and its errors."""

from pathlib import Path

import numpy as np
import pytest
from tests.datasets.conversations import ANSWER, PROMPT, conversation, write_conversations
from tests.inspect.targets import write_run
from tests.support import StandInTokenizer, random_documents, write_corpus

from tokenloom import (
    BlendedDataset,
    BlendedMegatronDatasetBuilder,
    GPTDataset,
    GPTDatasetConfig,
    SFTDataset,
    ThreadLoader,
    load,
    preprocess_corpus,
)
from tokenloom.errors import ConfigError, TokenizerError
from tokenloom.run.dataset import RunDataset
from tokenloom.tokenizers.load import load_tokenizer

TOKENIZER = StandInTokenizer()


@pytest.fixture
def pairs(tmp_path: Path) -> list[str]:
    rng, shape = np.random.default_rng(0), {"count": 30, "longest": 20, "vocab_size": 50}
    return [write_corpus(tmp_path / name, random_documents(rng, **shape)) for name in ("books", "web")]


def made_of_text(folder: Path) -> str:
    (folder / "corpus.jsonl").write_text("".join(f'{{"text": "line {number}"}}\n' for number in range(50)))
    preprocess_corpus(folder / "corpus.jsonl", folder / "corpus", load_tokenizer("byte"), num_processes=1)
    return str(folder / "corpus_text_document")


def built(blend, num_samples=None, **settings):
    settings |= {"random_seed": 1234, "sequence_length": 8, "tokenizer": TOKENIZER}
    config = GPTDatasetConfig(blend=blend, split="1,0,0", **settings)
    return BlendedMegatronDatasetBuilder(GPTDataset, [num_samples, None, None], lambda: True, config).build()[0]


def assert_same(found, expected):
    assert len(found) == len(expected)
    ours, theirs = (dataset.batch(range(len(dataset))) for dataset in (found, expected))
    assert list(ours) == list(theirs)
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_a_pair_is_a_gpt_dataset_of_all_its_documents(pairs):
    prefix = pairs[0]
    for name in (prefix, Path(prefix), f"{prefix}.bin", [prefix], ([prefix], None)):
        assert_same(load(name, sequence_length=8, tokenizer=TOKENIZER), built(([prefix], None)))
    changed = load(prefix, sequence_length=8, tokenizer=TOKENIZER, num_samples=100, eod_mask_loss=True)
    assert_same(changed, built(([prefix], None), 100, eod_mask_loss=True))


def test_several_are_a_blend(pairs, tmp_path):
    books, web = pairs
    plain = built((pairs, None))
    for data in (pairs, tuple(pairs), str(tmp_path / "*"), str(tmp_path), (pairs, None)):
        found = load(data, sequence_length=8, tokenizer=TOKENIZER)
        assert isinstance(found, BlendedDataset)
        assert_same(found, plain)
    weighted = built((pairs, [3.0, 1.0]), 60, extend_short_datasets=True)
    for data in ({books: 3, web: 1}, [(3, books), (1, web)], [["3", books], ["1", web]], (pairs, [3, 1])):
        assert_same(load(data, sequence_length=8, tokenizer=TOKENIZER, num_samples=60), weighted)


def test_a_split_gives_three_datasets(pairs):
    for split in ("80,20", (80, 20), [0.8, 0.2, 0.0], np.array([4, 1])):
        train, valid, test = load(pairs[0], sequence_length=8, tokenizer=TOKENIZER, split=split, num_samples=100)
        assert (len(train) >= 100, valid.index_split.name, test) == (True, "valid", None)
    train, valid, _ = load(pairs[0], sequence_length=8, tokenizer=TOKENIZER, split="80,20", num_samples=(9, 7, 0))
    assert (len(train) >= 9, len(valid) >= 7) == (True, True)


def test_data_with_roles_are_conversations(tmp_path, pairs):
    talk = conversation((PROMPT, [11, 12]), (ANSWER, [13, 9]))
    chats = [write_conversations(tmp_path / name, [talk] * 9) for name in ("chat", "talk")]
    found = load(chats[0], sequence_length=8, tokenizer=StandInTokenizer(pad=7), train_on="everything")
    assert isinstance(found, SFTDataset)
    assert found.config.train_on == "everything"
    blend = load(chats, sequence_length=8, tokenizer=StandInTokenizer(pad=7))
    assert isinstance(blend.datasets[1], SFTDataset)
    with pytest.raises(ConfigError, match=r"a blend cannot mix conversations \(`.*chat`\) with other data"):
        load([chats[0], pairs[0]], sequence_length=8, tokenizer=TOKENIZER)


def test_a_run_refuses_settings_of_load(tmp_path):
    path = write_run(tmp_path)
    found = load(Path(path), tokenizer="byte", allow_data_mismatch=True)
    assert isinstance(found, RunDataset)
    assert len(found) == 4
    for name in ("sequence_length", "split", "num_samples", "seed", "eod_mask_loss"):
        message = f"`{name}` is not a setting of `load` for a run\nhint: set it in `{path}`"
        with pytest.raises(ConfigError, match=message):
            load(path, **{name: 3})


def test_the_tokenizer_is_that_of_the_manifest(tmp_path):
    prefix = made_of_text(tmp_path)
    dataset = load(prefix, sequence_length=8)
    assert dataset.config.tokenizer.sha256 == load_tokenizer("byte").sha256
    assert next(iter(ThreadLoader(dataset, batch_size=4)))["tokens"].shape == (4, 8)
    (tmp_path / "corpus_text_document.manifest.json").unlink()
    message = f"^no `tokenizer` given, and no manifest beside `{prefix}` names a tokenizer\nhint"
    with pytest.raises(TokenizerError, match=message):
        load(prefix, sequence_length=8)
    assert len(load(prefix, sequence_length=8, tokenizer="byte")) > 0


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        ({"random_seed": 1}, "`random_seed` is not a setting of `load` or `GPTDatasetConfig`", "use `seed`"),
        ({"num_samples": [1, 2, 3]}, "`num_samples`: must be one integer if `split` is None", "pass `split"),
        ({"split": {"train": 1}}, "`split`: must be weights", 'pass weights such as "98,1,1"'),
        ({"split": "train"}, "split 'train': item 1 'train' at column 1 is not a number", None),
    ],
)
def test_wrong_settings_are_refused(pairs, changes, message, hint):
    with pytest.raises(ConfigError) as caught:
        load(pairs[0], **({"sequence_length": 8, "tokenizer": TOKENIZER} | changes))
    assert caught.value.message.startswith(message)
    assert caught.value.hint is None if hint is None else caught.value.hint.startswith(hint)


def test_a_blend_by_weights_ends_where_data_would_be_read_twice(pairs):
    lengths = [len(built(([prefix], None))) for prefix in pairs]
    found = load({pairs[0]: 3, pairs[1]: 1}, sequence_length=8, tokenizer=TOKENIZER)
    assert lengths[0] / 0.75 - 2 < len(found) <= lengths[0] / 0.75 + 2
    train, valid, test = load(dict.fromkeys(pairs, 1), sequence_length=8, tokenizer=TOKENIZER, split="9,1")
    assert [isinstance(each, BlendedDataset) for each in (train, valid)] == [True, True]
    assert test is None
    fewer, _, _ = load(dict.fromkeys(pairs, 1), sequence_length=8, tokenizer=TOKENIZER, split="9,1", num_samples=10)
    assert len(fewer) == 10
