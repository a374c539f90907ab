"""`tokenloom prepare-cache` and `tokenloom sequences-per-dataset`: before a run starts."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from tests.cli.runs import rows_of
from tests.support import MASKING, make_config, write_corpus

import tokenloom
from tokenloom import cli


@pytest.fixture
def folder(tmp_path, tokenizer_path):
    shutil.copy(tokenizer_path, tmp_path / "tokenizer.json")
    for name, count in (("books", 40), ("web", 90)):
        write_corpus(tmp_path / name, [[number % 60 + 1] * (number % 11 + 2) for number in range(count)])
    return tmp_path


@pytest.fixture(scope="module")
def tokenizer_path(tmp_path_factory):
    """A tokenizer of a few words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {f"w{number}": number + 1 for number in range(99)} | {"<|endoftext|>": 0}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w1"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def prepare(folder, *more):
    data = ["--data-path", "30", f"{folder}/books", "70", f"{folder}/web", "--split", "80,20,0"]
    settings = ["--sequence-length", "8", "--train-samples", "50", "--valid-samples", "9", "--test-samples", "0"]
    where = ["--path-to-cache", f"{folder}/cache", "--tokenizer", f"{folder}/tokenizer.json", "--seed", "5"]
    return cli.main(["prepare-cache", *data, *settings, *where, *more])


def build(folder, **settings):
    config = make_config(
        None,
        random_seed=5,
        sequence_length=8,
        blend=([f"{folder}/books", f"{folder}/web"], [30.0, 70.0]),
        split="80,20,0",
        path_to_cache=f"{folder}/cache",
        tokenizer=tokenloom.load_tokenizer(folder / "tokenizer.json"),
        **settings,
    )
    return tokenloom.BlendedMegatronDatasetBuilder(tokenloom.GPTDataset, [50, 9, 0], lambda: True, config).build()


def test_a_run_finds_all_its_indices_prepared(folder, capsys):
    assert prepare(folder) == 0
    rows = rows_of(capsys.readouterr().out)
    assert rows[3:6] == [["path", f"{folder}/cache"], ["verified", "False"], ["sequence length", "8"]]
    assert ["train", "BlendedDataset", "50"] in rows
    assert ["valid", "BlendedDataset", "10"] in rows
    before = {path: path.stat().st_mtime_ns for path in (folder / "cache").iterdir()}
    plain, deferred = build(folder), build(folder, defer_npy_index_mmap=True)
    for mine, theirs in zip(plain, deferred, strict=True):
        if mine is not None:
            for position in range(len(mine)):
                assert np.array_equal(mine.sample(position)["tokens"], theirs.sample(position)["tokens"])
    assert {path: path.stat().st_mtime_ns for path in (folder / "cache").iterdir()} == before


def test_verifying_finds_a_flipped_entry(folder, capsys):
    assert prepare(folder, "--verify") == 0
    assert ["verified", "True"] in rows_of(capsys.readouterr().out)
    path = next((folder / "cache").glob("*-BlendedDataset-train-dataset_index.npy"))
    chosen = np.load(path)
    chosen[7] ^= 1
    np.save(path, chosen)
    next((folder / "cache").glob("*-BlendedDataset-train-identity.json")).unlink()  # as an entry of the reference
    assert prepare(folder, "--verify") == 1
    out = capsys.readouterr().out
    assert "\nthe dataset_index of the blend of 2 datasets (train) differs in 1 rows: expected " in out
    assert ["verified", "False"] in rows_of(out)


def test_counts_are_those_that_a_configuration_takes(folder, capsys):
    assert cli.main(["sequences-per-dataset", "--data-path", f"{folder}/books", f"{folder}/web.bin"]) == 0
    counts = json.loads(capsys.readouterr().out)
    assert counts == {f"{folder}/books": [40, 41], f"{folder}/web": [90, 91]}
    assert len(build(folder, sequences_per_dataset=counts)[0]) == 50
    counts[f"{folder}/web"] = [91, 92]
    with pytest.raises(tokenloom.DatasetFormatError, match=r"expected \(91, 92\) sequences and documents, found"):
        build(folder, sequences_per_dataset=counts)


def test_a_run_of_fill_in_the_middle_finds_its_indices_prepared(folder, capsys):
    policy = "best_fit"
    assert prepare(folder, "--dataset", "fim", "--verify", "--window-policy", policy) == 0
    assert ["verified", "True"] in rows_of(capsys.readouterr().out)
    config = make_config(
        None,
        kind=tokenloom.GPTFIMDatasetConfig,
        random_seed=5,
        sequence_length=8,
        blend=([f"{folder}/books", f"{folder}/web"], [30.0, 70.0]),
        split="80,20,0",
        path_to_cache=f"{folder}/cache",
        fast_cache_load=True,  # whatever is not there is an error
        defer_npy_index_mmap=True,
        tokenizer=tokenloom.load_tokenizer(folder / "tokenizer.json"),
        window_policy=policy,
        fim_rate=1.0,
        fim_spm_rate=0.5,
        fim_extra_tokens={"prefix": "w97", "middle": "w98", "suffix": 97},
    )
    train, _, _ = tokenloom.BlendedMegatronDatasetBuilder(
        tokenloom.GPTFIMDataset, [50, 9, 0], lambda: True, config
    ).build()
    assert all(train.sample(position)["tokens"][0] == 98 for position in range(len(train)))


def test_settings_that_decide_the_indices_are_named(folder, capsys):
    assert prepare(folder, "--set", "add_extra_token_to_sequence=false") == 0
    build(folder, fast_cache_load=True, defer_npy_index_mmap=True, add_extra_token_to_sequence=False)[0].sample(0)
    with pytest.raises(tokenloom.IndexCacheError, match="does not fit the data"):
        build(folder, fast_cache_load=True, defer_npy_index_mmap=True)[0].sample(0)


MASKED = {
    "bert": (tokenloom.BERTMaskedWordPieceDataset, tokenloom.BERTMaskedWordPieceDatasetConfig),
    "t5": (tokenloom.T5MaskedWordPieceDataset, tokenloom.T5MaskedWordPieceDatasetConfig),
}


@pytest.mark.parametrize(
    ("kind", "own"), [("bert", {"classification_head": False}), ("t5", {"sequence_length_decoder": 16})]
)
def test_a_masked_run_finds_its_indices_prepared(folder, capsys, kind, own):
    write_wordpieces(folder / "tokenizer.json")
    settings = {**{name: value for name, value in MASKING.items() if name != "random_seed"}, **own}
    more = [word for name, value in settings.items() for word in ("--set", f"{name}={json.dumps(value)}")]
    assert prepare(folder, "--dataset", kind, "--verify", *more) == 0
    assert ["verified", "True"] in rows_of(capsys.readouterr().out)
    dataset, config = MASKED[kind]
    train, _, _ = tokenloom.BlendedMegatronDatasetBuilder(
        dataset,
        [50, 9, 0],
        lambda: True,
        config(
            random_seed=5,
            sequence_length=8,
            blend=([f"{folder}/books", f"{folder}/web"], [30.0, 70.0]),
            split="80,20,0",
            path_to_cache=f"{folder}/cache",
            fast_cache_load=True,  # whatever is not there is an error
            tokenizer=tokenloom.load_tokenizer(folder / "tokenizer.json"),
            **settings,
        ),
    ).build()
    assert len(train.batch(range(50))["loss_mask"]) == 50


def write_wordpieces(path):
    """A tokenizer with everything that BERT and T5 ask for."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    special = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[BOS]", "[EOS]", *(f"<extra_id_{k}>" for k in range(20))]
    vocabulary = {f"w{number}": number for number in range(100)} | {
        token: 100 + number for number, token in enumerate(special)
    }
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w1"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(path))
