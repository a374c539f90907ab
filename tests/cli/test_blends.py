"""`tokenloom plan`, `prepare-cache`, `sequences-per-dataset` and `stream`."""

import json
import sys

import numpy as np
import pytest
from tests.cli.runs import output, rows_of, run
from tests.preprocess.corpus import byte_level_json
from tests.support import MASKING, write_corpus

import tokenloom
from tokenloom import BlendedMegatronDatasetConfig, cli, plan_build
from tokenloom.megatron import args as megatron_args


@pytest.fixture
def prefixes(tmp_path):
    return [write_corpus(tmp_path / name, [[1] * 10] * count) for name, count in (("a", 10), ("b", 30))]


def planned(capsys, *arguments):
    return run(capsys, "plan", "--sequence-length", 4, *arguments)


def test_tables_show_the_plan(capsys, prefixes):
    words = ("--data-path", 1, prefixes[0], 3, prefixes[1], "--split", "1", "--train-samples", 60)
    status, out, err = planned(capsys, *words)
    assert (status, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert ["train", "(weighted)"] in lines
    assert lines[3:6] == [["sequence", "length", "4"], ["train", "tokens", "400"], ["train", "samples", "60"]]
    rows = {line[0]: line[1:] for line in lines if line}
    assert rows[prefixes[0]] == ["100", "1", "25.00%", "15", "0.6", "24"]
    assert rows[prefixes[1]] == ["300", "3", "75.00%", "45", "0.6", "74"]
    assert "valid" not in out


def test_json_is_the_plan(capsys, prefixes):
    arguments = ["--data-path", 1, prefixes[0], 3, prefixes[1], "--split", "8,2,0", "--train-samples", 60]
    status, out, err = planned(capsys, *arguments, "--valid-samples", 9, "--json")
    assert (status, err) == (0, "")
    report = json.loads(out)
    config = BlendedMegatronDatasetConfig(random_seed=0, sequence_length=4, blend=(prefixes, [1.0, 3.0]), split="8,2,0")
    plan = plan_build(config, [60, 9, None])
    assert (report["surplus"], report["splits"][2]) == (None, None)
    for found, expected in zip(report["splits"][:2], plan.splits, strict=False):
        assert (found["split"], found["num_samples"]) == (expected.split.name, expected.num_samples)
        owed = [each["num_samples_owed"] for each in found["datasets"]]
        assert owed == [each.num_samples_owed for each in expected.datasets]


def test_full_validation_and_a_size_for_valid_exclude_each_other(capsys, prefixes):
    words = ("--split", "8,2,0", "--full-validation", "--valid-samples", 9)
    status, _, err = planned(capsys, "--data-path", *prefixes, *words)
    error = "error: --full-validation excludes --valid-samples, got --valid-samples 9\n"
    assert (status, error in err) == (1, True)


def test_a_dataset_that_runs_short_is_reported_with_the_remedy(capsys, tmp_path):
    # One sample is meant for each of three datasets, and each has one; the blend takes two of the first.
    prefixes = [write_corpus(tmp_path / name, [[1] * 5]) for name in "abc"]
    arguments = ["--data-path", 7, prefixes[0], 2, prefixes[1], 1, prefixes[2], "--split", "1", "--train-samples", 1]
    status, out, err = planned(capsys, *arguments, "--mid-level-dataset-surplus", 0)
    assert status == 1
    assert [line.split()[-1] for line in out.splitlines() if prefixes[0] in line] == ["short"]
    assert err == (
        f"problem: train needs 2 samples of `{prefixes[0]}`, which has 1\n"
        "hint: set `--extend-short-datasets` to build more epochs, or set at least `--mid-level-dataset-surplus "
        "0.5`, or lower the weight of the dataset\n"
    )
    assert planned(capsys, *arguments, "--mid-level-dataset-surplus", "0.5")[0] == 0
    assert planned(capsys, *arguments, "--mid-level-dataset-surplus", 0, "--extend-short-datasets")[0] == 0


def write_documents(prefix, count):
    write_corpus(prefix, [[number % 60 + 1] * (number % 11 + 2) for number in range(count)])


@pytest.fixture
def folder(tmp_path):
    write_words(tmp_path / "tokenizer.json", "<|endoftext|>")
    write_documents(tmp_path / "books", 40)
    write_documents(tmp_path / "web", 90)
    return tmp_path


def write_words(path, *special):
    """Writes a tokenizer of a hundred words, numbered from `len(special)` on."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = [*special, *(f"w{number}" for number in range(99))]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w1"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([*special])
    tokenizer.save(str(path))


FROM_CACHE = {"fast_cache_load": True, "defer_npy_index_mmap": True}  # a missing index is an error
TRAINED = "--data-path books --split 80,20,0 --seed 5 --tokenizer-type NullTokenizer --vocab-size 99 --seq-length 8"


def prepare(folder, *more):
    data = ["--data-path", "30", f"{folder}/books", "70", f"{folder}/web", "--split", "80,20,0"]
    settings = ["--sequence-length", "8", "--train-samples", "50", "--valid-samples", "9", "--test-samples", "0"]
    where = ["--path-to-cache", f"{folder}/cache", "--tokenizer", f"{folder}/tokenizer.json", "--seed", "5"]
    return cli.main(["prepare-cache", *data, *settings, *where, *more])


def build(folder, dataset=tokenloom.GPTDataset, config_class=tokenloom.GPTDatasetConfig, **settings):
    where = {"blend": ([f"{folder}/books", f"{folder}/web"], [30.0, 70.0]), "split": "80,20,0"}
    where |= {"random_seed": 5, "sequence_length": 8, "path_to_cache": f"{folder}/cache"}
    if config_class in (tokenloom.GPTDatasetConfig, tokenloom.GPTFIMDatasetConfig):
        where |= dict.fromkeys(("reset_position_ids", "reset_attention_mask", "eod_mask_loss"), False)
    config = config_class(**where, tokenizer=tokenloom.load_tokenizer(folder / "tokenizer.json"), **settings)
    return tokenloom.BlendedMegatronDatasetBuilder(dataset, [50, 9, 0], lambda: True, config).build()


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
    counts = json.loads(output(capsys, "sequences-per-dataset", "--data-path", f"{folder}/books", f"{folder}/web.bin"))
    assert counts == {f"{folder}/books": [40, 41], f"{folder}/web": [90, 91]}
    assert len(build(folder, sequences_per_dataset=counts)[0]) == 50
    counts[f"{folder}/web"] = [91, 92]
    with pytest.raises(tokenloom.DatasetFormatError, match=r"expected \(91, 92\) sequences and boundaries, found"):
        build(folder, sequences_per_dataset=counts)


def test_a_run_of_fill_in_the_middle_finds_its_indices_prepared(folder, capsys):
    assert prepare(folder, "--dataset", "fim", "--verify", "--window-policy", "best_fit") == 0
    assert ["verified", "True"] in rows_of(capsys.readouterr().out)
    fim = {"fim_rate": 1.0, "fim_spm_rate": 0.5, "fim_extra_tokens": {"prefix": "w97", "middle": "w98", "suffix": 97}}
    kinds = tokenloom.GPTFIMDataset, tokenloom.GPTFIMDatasetConfig
    train, _, _ = build(folder, *kinds, window_policy="best_fit", **fim, **FROM_CACHE)
    assert all(train.sample(position)["tokens"][0] == 98 for position in range(len(train)))


def test_settings_that_decide_the_indices_are_named(folder, capsys):
    assert prepare(folder, "--set", "add_extra_token_to_sequence=false") == 0
    build(folder, **FROM_CACHE, add_extra_token_to_sequence=False)[0].sample(0)
    with pytest.raises(tokenloom.IndexCacheError, match="does not match the data"):
        build(folder, **FROM_CACHE)[0].sample(0)


@pytest.mark.parametrize(
    ("kind", "own"), [("bert", {"classification_head": False}), ("t5", {"sequence_length_decoder": 16})]
)
def test_a_masked_run_finds_its_indices_prepared(folder, capsys, kind, own):
    name = f"{kind.upper()}MaskedWordPieceDataset"
    dataset, config_class = getattr(tokenloom, name), getattr(tokenloom, f"{name}Config")
    special = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[BOS]", "[EOS]", *(f"<extra_id_{k}>" for k in range(20))]
    write_words(folder / "tokenizer.json", *special)
    settings = {name: value for name, value in MASKING.items() if name != "random_seed"} | own
    more = [word for name, value in settings.items() for word in ("--set", f"{name}={json.dumps(value)}")]
    assert prepare(folder, "--dataset", kind, "--verify", *more) == 0
    assert ["verified", "True"] in rows_of(capsys.readouterr().out)
    train, _, _ = build(folder, dataset, config_class, fast_cache_load=True, **settings)
    assert len(train.batch(range(50))["loss_mask"]) == 50


@pytest.fixture
def books(tmp_path, monkeypatch):
    """The working directory with a pair `books` and its counts; Megatron is not importable."""
    write_documents(tmp_path / "books", 40)
    (tmp_path / "counts.json").write_text(json.dumps({"books": [40, 41]}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(megatron_args, "_is_importable", lambda name: False)
    return tmp_path


SMALL = "--micro-batch-size 1 --train-samples 9 --eval-interval 3"


def trainer(line, cache):
    return cli.main(["prepare-cache", *TRAINED.split(), *line.split(), "--data-cache-path", cache])


def cached(books, cache):
    return sorted(path.name for path in (books / cache).iterdir())


def test_the_trainers_counts_give_the_same_indices_as_sizes(books, capsys):
    counts = "--train-iters 10 --eval-iters 2 --eval-interval 5 --micro-batch-size 1 --prepare-cache-world-size 2"
    more = "--num-dataset-builder-threads 2 --per-dataset-sequences-path counts.json --no-mmap-bin-files"
    flags = "--reset-position-ids --eod-mask-loss --dataloader-fast-cache-load --num-workers 4"
    assert trainer(f"{counts} {more} {flags}", "one") == 0
    notes = capsys.readouterr().err.splitlines()
    assert [note.split()[0] for note in notes] == [word for word in flags.split() if word.startswith("--")]
    assert trainer("--train-samples 20 --valid-samples 12 --test-samples 0", "two") == 0
    assert cached(books, "one") == cached(books, "two") != []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--train-iters 10 --eval-interval 5 --valid-samples 1", "--valid-samples and --train-iters both"),
        ("--train-iters 10 --global-batch-size 2", "no --eval-interval given"),
        ("--train-iters 10 --eval-interval 5", "--micro-batch-size"),
        ("--mock-data", "--mock-data has no indices to build"),
        ("--phase-transition-iterations 3 --global-batch-size 2 --train-iters 9 --eval-interval 3", "--train-samples"),
        (f"--step-batch-size-schedule 50:2 {SMALL}", "the consumed samples of sizes[0]: must be in [0, 1), got 6"),
    ],
)
def test_what_cannot_be_meant_is_said(books, capsys, line, words):
    assert trainer(line, "cache") == 1
    assert words in capsys.readouterr().err


def test_phases_are_counted_one_by_one(books, capsys):
    counts = "--train-samples 30 --global-batch-size 2 --eval-interval 5 --eval-iters 1"
    assert trainer(f"{counts} --phase-transition-iterations 5,9 --iteration 6", "a") == 0
    assert trainer("--train-samples 8 --valid-samples 8 --test-samples 2", "b") == 0
    assert cached(books, "a") == cached(books, "b")


@pytest.mark.slow
@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")
def test_megatrons_own_tokenizer_names_the_indices(books, monkeypatch, capsys):
    monkeypatch.undo()
    monkeypatch.chdir(books)
    assert trainer("--train-samples 8 --valid-samples 0 --test-samples 0", "cache") == 0
    described = [json.loads(path.read_text()) for path in (books / "cache").glob("*-description.txt")]
    assert {one["tokenizer"]["class"].startswith("megatron.core.tokenizers.") for one in described} == {True}
    assert "megatron.core" in sys.modules


@pytest.fixture
def streamed(tmp_path, capsys):
    """Streams samples of 64 tokens; returns the words of each line of output."""
    (tmp_path / "tokenizer.json").write_text(byte_level_json(), encoding="utf-8")

    def stream(*options: str) -> list[list[str]]:
        common = ("--tokenizer", tmp_path, "--sequence-length", 64, "--split", "1,0,0")
        status, out, _ = run(capsys, "stream", *common, "--path-to-cache", tmp_path / "indices", *options)
        assert status == 0
        return [line.split() for line in out.splitlines() if line.strip()]

    return stream


@pytest.fixture
def corpus(tmp_path, rng):
    return write_corpus(tmp_path / "corpus", [rng.integers(0, 900, size=100) for _ in range(60)])


def test_local_data_have_a_speed_and_no_sources(streamed, corpus):
    lines = streamed("--data-path", corpus)
    assert lines[0][-1] == "tokens/s"
    assert lines[2:6] == [["position", "0"], ["batches", "11"], ["samples", "88"], ["tokens", "5,632"]]
    assert lines[-1] == ["storage", "none"]


@pytest.mark.slow
def test_remote_data_have_a_table(bucket, streamed, corpus):
    url = bucket.put_pair(corpus, "data/corpus")
    lines = streamed("--data-path", url, "--batches", "5", "--concurrency", "4")
    assert lines[3] == ["batches", "5"]
    names = "source bytes used bytes fetched requests hits waits wait seconds retries ratio"
    assert names.split() in lines
    row = lines[-1]
    assert (row[0], row[7]) == (f"{url}.bin", "0")
