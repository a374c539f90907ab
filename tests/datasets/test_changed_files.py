"""Training data modified during a run: every way to read samples raises an error that names the file."""

import glob
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.datasets.conversations import ANSWER, PROMPT, conversation, make_sft, write_conversations
from tests.support import forking_from, make_dataset, write_corpus

from tokenloom import BlendedDataset, MegatronPretrainingSampler, ThreadLoader, build_dataloader
from tokenloom.errors import ChangedFileError, TokenloomError
from tokenloom.order.policies import WindowOrder


def write(path, first: int = 1) -> str:
    return write_corpus(path, [np.arange(first, first + 900) % 1000 + first for _ in range(40)])


@pytest.fixture
def prefix(tmp_path):
    return write(tmp_path / "corpus")


def open_dataset(prefix, tmp_path, **changes):
    settings = {"sequence_length": 64, "path_to_cache": f"{tmp_path}/cache", "num_samples": 3000}
    return make_dataset(prefix, **settings | changes)


def sampler(dataset):
    return MegatronPretrainingSampler(len(dataset), 0, 8, 0, 1)


def one_blend(dataset):
    return BlendedDataset([dataset, dataset], [1.0, 1.0], 100, dataset.config)


WAYS = {
    "sample": lambda dataset: [dataset.sample(k) for k in range(len(dataset))],
    "item": lambda dataset: [dataset[k] for k in range(len(dataset))],
    "batch": lambda dataset: dataset.batch(range(len(dataset))),
    "batch into arrays": lambda dataset: dataset.batch(range(8), out=dataset.allocate_batch(8)),
    "spans": lambda dataset: dataset.span_batch(range(len(dataset))),
    "ThreadLoader": lambda dataset: list(ThreadLoader(dataset, sampler(dataset), num_threads=2)),
    "DataLoader": lambda dataset: list(build_dataloader(dataset, sampler(dataset))),
    "blend": lambda dataset: [one_blend(dataset)[k] for k in range(100)],
    "batch of a blend": lambda dataset: one_blend(dataset).batch(range(100)),
}


def file_of(tmp_path, prefix, what: str) -> str:
    """Returns the path of a file of the pair, or of a cached index."""
    [path] = [prefix + what] if what.startswith(".") else glob.glob(f"{tmp_path}/cache/*GPTDataset*{what}.npy")
    return path


@pytest.mark.parametrize(
    ("what", "way"),
    [
        *((".bin", way) for way in WAYS if way != "spans"),  # spans read no tokens
        *((".idx", way) for way in ("sample", "batch", "spans")),
        *(("sample_index", way) for way in ("sample", "batch", "spans", "blend")),
    ],
)
@pytest.mark.parametrize("left", [0, pytest.param(0.4, marks=pytest.mark.slow)])
def test_a_file_truncated_under_its_mapping_is_named(tmp_path, prefix, what, left, way):
    dataset = open_dataset(prefix, tmp_path)
    dataset.batch(range(8))
    path = file_of(tmp_path, prefix, what)
    os.truncate(path, int(os.path.getsize(path) * left))
    with pytest.raises(ChangedFileError, match=rf"`{path}` was truncated while it was mapped"):
        WAYS[way](dataset)


@pytest.mark.parametrize("what", [".idx", "shuffle_index"])
def test_without_mapped_tokens_the_index_is_looked_at_too(tmp_path, prefix, what):
    dataset = open_dataset(prefix, tmp_path, mmap_bin_files=False, sequence_length=4, num_samples=9000)
    dataset.batch(range(8))
    path = file_of(tmp_path, prefix, what)
    os.truncate(path, 10)
    for way in ("sample", "batch"):
        with pytest.raises(ChangedFileError, match=rf"`{path}` was truncated while it was mapped"):
            WAYS[way](dataset)


def replace_pair(prefix):
    other = write(f"{prefix}-other", first=3)
    for suffix in (".bin", ".idx"):
        os.replace(other + suffix, prefix + suffix)


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_survive_truncation_and_say_so(tmp_path, prefix, context):
    dataset = open_dataset(prefix, tmp_path)
    options = {"num_workers": 1, "prefetch_factor": 1, "multiprocessing_context": context}
    batches = iter(build_dataloader(dataset, sampler(dataset), **options))
    next(batches)
    os.truncate(f"{prefix}.bin", 100)
    with pytest.raises(ChangedFileError, match=rf"`{prefix}.bin` was truncated while it was mapped"):
        list(batches)


STARTS = [pytest.param(*case, marks=pytest.mark.slow) for case in (("spawn", True), ("forkserver", False))]


@pytest.mark.parametrize(("context", "mmap"), [("fork", True), ("fork", False), *STARTS])
def test_workers_never_read_a_pair_that_took_the_place(tmp_path, prefix, capfd, context, mmap):
    dataset = open_dataset(prefix, tmp_path, mmap_bin_files=mmap)
    expected = dataset.batch(range(8))["tokens"] if context == "fork" else None  # a forked worker keeps the mapping
    replace_pair(prefix)
    loader = build_dataloader(dataset, sampler(dataset), num_workers=1, multiprocessing_context=context)
    if expected is None:
        # torch reports only a dead worker; the worker prints the reason to its server's standard error
        with forking_from("torch"), pytest.raises((OSError, RuntimeError)):
            next(iter(loader))
        assert f"`{prefix}.bin` was replaced after it was opened" in capfd.readouterr().err
    else:
        assert (next(iter(loader))["tokens"].numpy() == expected).all()


@pytest.mark.parametrize("mmap", [True, False])
def test_a_pair_replaced_after_pickling_is_refused(tmp_path, prefix, mmap):
    state = pickle.dumps(open_dataset(prefix, tmp_path, mmap_bin_files=mmap))
    replace_pair(prefix)
    with pytest.raises(ChangedFileError, match=rf"`{prefix}.bin` was replaced after it was opened"):
        pickle.loads(state).batch(range(8))


def test_cached_indices_replaced_after_pickling_are_refused(tmp_path, prefix):
    dataset = open_dataset(prefix, tmp_path)
    dataset.batch(range(8))
    state = pickle.dumps(dataset)
    path = file_of(tmp_path, prefix, "shuffle_index")
    content = bytearray(Path(path).read_bytes())
    content[4097:4099] = b"\xff\x00"  # between the hashed pieces
    Path(f"{path}.new").write_bytes(content)
    os.replace(f"{path}.new", path)
    with pytest.raises(ChangedFileError, match=rf"`{path}` was replaced after it was opened"):
        pickle.loads(state).batch(range(8))


def test_indices_that_another_job_built_alike_are_the_same(tmp_path, prefix):
    dataset = open_dataset(prefix, tmp_path)
    expected = dataset.batch(range(8))
    state = pickle.dumps(dataset)
    for path in glob.glob(f"{tmp_path}/cache/*.npy"):
        shutil.copyfile(path, f"{path}.new")
        os.replace(f"{path}.new", path)
    assert (pickle.loads(state).batch(range(8))["tokens"] == expected["tokens"]).all()


def test_an_index_of_data_that_vanish_meanwhile_is_not_kept(tmp_path, prefix, monkeypatch):
    build = WindowOrder.build

    def truncate_first(self, *arguments):
        os.truncate(f"{prefix}.idx", 200)
        yield from build(self, *arguments)

    monkeypatch.setattr(WindowOrder, "build", truncate_first)
    with pytest.raises(TokenloomError, match=rf"`{prefix}.idx` was truncated while it was mapped"):
        open_dataset(prefix, tmp_path)
    assert not glob.glob(f"{tmp_path}/cache/*description.txt")


CONVERSATIONS = [conversation((PROMPT, [1, 2, 3]), (ANSWER, [4, 5, 6])) for _ in range(3000)]


@pytest.mark.parametrize("suffix", [".bin", ".idx", ".roles.npy"])
def test_conversations_name_a_truncated_file(tmp_path, suffix):
    prefix = write_conversations(tmp_path / "chat", CONVERSATIONS)
    dataset = make_sft(prefix)
    dataset.batch(range(4))
    os.truncate(prefix + suffix, 150)
    with pytest.raises(ChangedFileError, match=rf"`{prefix}\{suffix}` was truncated while it was mapped"):
        dataset.batch(range(len(dataset)))
    with pytest.raises(ChangedFileError):
        dataset.sample(0)


def test_other_roles_of_the_same_pair_are_refused_after_pickling(tmp_path):
    prefix = write_conversations(tmp_path / "chat", CONVERSATIONS)
    state = pickle.dumps(make_sft(prefix))
    kept = os.stat(f"{prefix}.roles.npy")
    content = bytearray(Path(f"{prefix}.roles.npy").read_bytes())
    content[-2:] = content[-2:][::-1]
    Path(f"{prefix}.roles.new").write_bytes(content)
    os.utime(f"{prefix}.roles.new", ns=(0, kept.st_mtime_ns))
    os.replace(f"{prefix}.roles.new", f"{prefix}.roles.npy")
    with pytest.raises(ChangedFileError, match=rf"`{prefix}.roles.npy` was replaced after it was opened"):
        pickle.loads(state)
