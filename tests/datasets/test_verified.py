"""Verification of checksums in the background of a run."""

import multiprocessing
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from tests.indexed.manifest.manifests import write_recorded
from tests.support import make_config

from tokenloom import BlendedMegatronDatasetBuilder, GPTDataset
from tokenloom.datasets.base import verification_of
from tokenloom.errors import DatasetFormatError
from tokenloom.indexed import verify as verification_module
from tokenloom.tokenizers.plain import NullTokenizer

pytestmark = pytest.mark.filterwarnings("ignore::tokenloom.errors.TokenizerMismatchWarning")


@pytest.fixture(autouse=True)
def _fresh():
    """Stops and forgets all verifications after each test."""
    yield
    for each in verification_module._VERIFICATIONS.values():
        each._stop()
    verification_module._VERIFICATIONS.clear()


def built(prefixes, folder, **changes):
    settings = {"blend": (prefixes, None), "split": "1,0,0", "path_to_cache": None if folder is None else str(folder)}
    settings |= {"verify": "full", "allow_tokenizer_mismatch": True, "tokenizer": NullTokenizer(100)}
    config = make_config(None, sequence_length=16, **(settings | changes))
    return config, BlendedMegatronDatasetBuilder(GPTDataset, [8, None, None], lambda: True, config).build()[0]


def pair(path, seed=0):
    rng = np.random.default_rng(seed)
    write_recorded(path, [[rng.integers(0, 90, 40).tolist()] for _ in range(30)])
    return f"{path}"


def flip(path, offset=-20):
    with open(path, "r+b") as stream:
        stream.seek(offset, os.SEEK_END)
        byte = stream.read(1)
        stream.seek(offset, os.SEEK_END)
        stream.write(bytes([byte[0] ^ 1]))


def test_a_changed_token_is_named_by_the_next_sample(tmp_path):
    good, bad = pair(tmp_path / "good"), pair(tmp_path / "bad", 1)
    flip(f"{bad}.bin")
    config, dataset = built([good, bad], tmp_path / "cache")
    with pytest.raises(DatasetFormatError, match=r"bad\.bin`: expected \d+ bytes with CRC-32 [0-9a-f]{8}, as the man"):
        verification_of(config).wait(60)
    for ask in (lambda: dataset[0], lambda: dataset.datasets[0][0], lambda: dataset.datasets[0].batch([1])):
        with pytest.raises(DatasetFormatError, match=r"bad\.bin`: expected") as caught:
            ask()
        assert caught.value.hint == f"run `tokenloom verify {bad}`"


def test_quick_is_the_default_and_reads_no_token(tmp_path):
    bad = pair(tmp_path / "bad")
    flip(f"{bad}.bin")
    config, dataset = built([bad], tmp_path / "cache", verify="quick")
    assert verification_of(config) is None
    assert dataset[0]["tokens"].shape == (16,)
    assert not (tmp_path / "cache" / "verified").exists()


@pytest.mark.parametrize("folder", ["cache", None])
def test_the_second_start_reads_nothing(tmp_path, monkeypatch, folder):
    monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path / "own"))
    prefix = pair(tmp_path / "a")
    config, _ = built([prefix], folder and tmp_path / folder)
    assert verification_of(config).wait(60)
    verification_module._VERIFICATIONS.clear()
    calls = []
    monkeypatch.setattr(verification_module, "check_tokens", lambda *_, **__: calls.append(1))
    config, dataset = built([prefix], folder and tmp_path / folder)
    assert verification_of(config).wait(60)
    assert (calls, len(dataset[0]["tokens"])) == ([], 16)


@pytest.mark.parametrize("how", ["contents", "replaced"])
def test_other_files_are_read_again(tmp_path, how):
    prefix = pair(tmp_path / "a")
    config, _ = built([prefix], tmp_path / "cache")
    assert verification_of(config).wait(60)
    times = os.stat(f"{prefix}.bin")
    if how == "replaced":
        os.rename(f"{prefix}.bin", tmp_path / "old")
        (tmp_path / "a.bin").write_bytes((tmp_path / "old").read_bytes())
    flip(f"{prefix}.bin")
    if how != "contents":  # like a copy that preserves modification times
        os.utime(f"{prefix}.bin", ns=(times.st_atime_ns, times.st_mtime_ns))
    verification_module._VERIFICATIONS.clear()
    config, _ = built([prefix], tmp_path / "cache")
    with pytest.raises(DatasetFormatError, match=r"a\.bin`: expected"):
        verification_of(config).wait(60)


def _ask(dataset, answers):
    try:
        dataset[0]
    except DatasetFormatError as error:
        answers.put(error.message)
    else:
        answers.put("no error")


def test_forked_and_spawned_processes_learn_of_damage(tmp_path):
    prefix = pair(tmp_path / "a")
    flip(f"{prefix}.bin")
    config, dataset = built([prefix], tmp_path / "cache")
    with pytest.raises(DatasetFormatError):
        verification_of(config).wait(60)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    process = context.Process(target=_ask, args=(dataset, answers))
    process.start()
    assert "a.bin`: expected" in answers.get(timeout=60)
    process.join()
    script = (
        "import pickle, sys\ndataset = pickle.load(open(sys.argv[1], 'rb'))\n"
        "try:\n    dataset._verification.wait(60)\nexcept Exception as error:\n    print(error.message)\n"
    )
    (tmp_path / "dataset").write_bytes(pickle.dumps(dataset))
    command = [sys.executable, "-c", script, tmp_path / "dataset"]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert "a.bin`: expected" in run.stdout


@pytest.mark.slow
def test_only_one_process_reads_a_pair(tmp_path):
    prefix = pair(tmp_path / "a")
    script = """
import sys, logging
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
from tokenloom.indexed.verify import verification
each = verification(sys.argv[2])
each.add(sys.argv[1])
assert each.wait(60)
"""
    command = [sys.executable, "-c", script, prefix, f"{tmp_path}/cache/verified"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert sorted(said) == ["", "", "", f"verified `{prefix}`\n"]
