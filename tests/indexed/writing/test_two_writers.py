import multiprocessing
import threading
import traceback
from itertools import count

import numpy as np
import pytest
from tests.preprocess.corpus import write_lines

from tokenloom import IndexedDataset, build_catalogue, merge_datasets, verify_dataset
from tokenloom.errors import ChangedFileError, ConfigError, OutputBusyError, OutputExistsError, TokenloomError
from tokenloom.indexed.dataset import DatasetFiles
from tokenloom.indexed.writing.builder import IndexedDatasetBuilder
from tokenloom.preprocess.corpus import preprocess_corpus
from tokenloom.tokenizers.load import load_tokenizer

TOKENIZER = load_tokenizer("byte")
REFUSALS = (OutputBusyError, OutputExistsError)
NUM_DOCUMENTS, LENGTH = 64, 64


def token_of(dataset):
    """Returns the token of a pair, having read all of it; fails if it is a mixture."""
    token = len(dataset[0]) - LENGTH
    for row in range(NUM_DOCUMENTS):
        found = dataset[row]
        assert len(found) == LENGTH + token * (-1) ** row, "the index is a mixture"
        assert (found == token).all(), f"tokens {set(found.tolist())} under the index of {token}"
    return token


def read_on(prefix, stop, begun, results, mmap):
    """Opens and reads a pair until told to stop; puts how often it could, how often it was told, and what is wrong."""
    num_read = num_told = 0
    wrong = ""
    while not stop.is_set() and not wrong:
        try:
            dataset = IndexedDataset(str(prefix), mmap=mmap)
            token = token_of(dataset)
            again = token_of(dataset)
            assert token == again
            if not num_read:
                begun.release()
            num_read += 1
        except TokenloomError:
            num_told += 1
        except BaseException:  # noqa: BLE001 - told below
            wrong = traceback.format_exc()
            begun.release()
    results.put((num_read, num_told, wrong))


def build(prefix, token, *, overwrite=True):
    """Writes a pair of nothing but a token, whose lengths tell the token too; always of as many bytes."""
    with IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16, overwrite=overwrite, durable=False) as builder:
        for row in range(NUM_DOCUMENTS):
            length = LENGTH + token * (-1) ** row
            builder.add_document(np.full(length, token, dtype=np.uint16), [length])
        builder.finalize(f"{prefix}.idx")


def _merge(folder, kind):
    return lambda: merge_datasets([str(folder / f"{kind}{k}") for k in "ab"], str(folder / "out" / "x_text_document"))


def _catalogue(folder, kind):
    return lambda: build_catalogue([str(folder / f"{kind}{k}") for k in "ab"], str(folder / "out" / "x_text_document"))


def _preprocess(folder, kind):
    return lambda: preprocess_corpus(folder / f"{kind}.jsonl", folder / "out" / "x", TOKENIZER, num_processes=1)


def _builder(folder, kind):
    return lambda: build(folder / "out" / "x_text_document", int(kind), overwrite=False)


PAIRS = {
    "merge and merge": (_merge, _merge),
    "merge and preprocess": (_merge, _preprocess),
    "preprocess and preprocess": (_preprocess, _preprocess),
    "builder and builder": (_builder, _builder),
    "catalogue and merge": (_catalogue, _merge),
    "catalogue and catalogue": (_catalogue, _catalogue),
}


def _ends(works, *, how):
    context = multiprocessing.get_context("fork")
    barrier = (context if how == "processes" else threading).Barrier(len(works))
    ends = context.SimpleQueue()

    def run(number):
        barrier.wait()
        try:
            works[number]()
            ends.put((number, ""))
        except REFUSALS as error:
            ends.put((number, type(error).__name__))
        except ConfigError as error:  # of jobs that share a folder, and of a catalogue over a pair
            ends.put((number, "refused" if "job" in str(error) or "cannot replace it" in str(error) else str(error)))
        except BaseException:  # noqa: BLE001 - told below
            ends.put((number, traceback.format_exc()))

    kind = context.Process if how == "processes" else threading.Thread
    workers = [kind(target=run, args=(number,)) for number in range(len(works))]
    for worker in workers:
        worker.start()
    found = dict(ends.get() for _ in works)
    for worker in workers:
        worker.join()
    return [found[number] for number in range(len(works))]


def _visible(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name[0] != "."}


@pytest.mark.parametrize(
    ("pair", "how", "num_rounds"),
    [
        ("merge and preprocess", "processes", 2),
        ("builder and builder", "threads", 2),
        ("catalogue and merge", "processes", 2),
        *(pytest.param(pair, how, 6, marks=pytest.mark.slow) for pair in PAIRS for how in ("processes", "threads")),
    ],
)
def test_two_writers_leave_the_output_of_one(tmp_path, pair, how, num_rounds):
    for kind in "12":
        for name in "ab":
            build(tmp_path / f"{kind}{name}", int(kind))
        write_lines(tmp_path / f"{kind}.jsonl", [{"text": kind * 30}] * 40)
    expected = []
    for kind, work in zip("12", PAIRS[pair], strict=True):
        out = tmp_path / "out"
        out.mkdir()
        work(tmp_path, kind)()
        expected.append(_visible(out))
        out.rename(tmp_path / f"expected{kind}")
    assert expected[0] != expected[1]
    for _ in range(num_rounds):
        out = tmp_path / "out"
        out.mkdir()
        ends = _ends([work(tmp_path, kind) for kind, work in zip("12", PAIRS[pair], strict=True)], how=how)
        assert set(ends) <= {"", "refused", *(error.__name__ for error in REFUSALS)}, ends
        assert ends.count("") == 1, ends
        found = _visible(out)
        assert found == expected[ends.index("")], ends
        assert verify_dataset(str(out / "x_text_document")).ok
        for path in sorted(out.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        out.rmdir()


@pytest.mark.parametrize(
    ("method", "mmap", "num_replacements"),
    [
        ("fork", True, 12),
        ("thread", False, 12),
        *(pytest.param(how, mmap, 60, marks=pytest.mark.slow) for how in ("thread", "fork") for mmap in (True, False)),
        pytest.param("spawn", True, 60, marks=pytest.mark.slow),
    ],
)
def test_readers_of_what_is_replaced_see_one_side(tmp_path, method, mmap, num_replacements):
    prefix = tmp_path / "x"
    build(prefix, 1)
    context = multiprocessing.get_context("fork" if method == "thread" else method)
    stop, begun, results = context.Event(), context.Semaphore(0), context.SimpleQueue()
    kind = threading.Thread if method == "thread" else context.Process
    given = prefix, stop, begun, results, mmap
    readers = [kind(target=read_on, args=given) for _ in range(1 if method == "spawn" else 2)]
    for reader in readers:
        reader.start()
    waiting = len(readers)
    try:
        for number in count():
            build(prefix, 1 + number % 9)
            waiting -= waiting and begun.acquire(block=False)
            if number >= num_replacements and not waiting:
                break
    finally:
        stop.set()
        found = [results.get() for _ in readers]
        for reader in readers:
            reader.join()
    assert not any(wrong for _, _, wrong in found), found
    assert all(num_read for num_read, _, _ in found), found


def test_a_catalogue_that_is_replaced_as_it_is_opened_is_no_mixture(tmp_path, monkeypatch):
    for number in (1, 2):
        build(tmp_path / f"{number}", number)
    prefix = str(tmp_path / "all")
    build_catalogue([str(tmp_path / "1")], prefix)
    calls: list[int] = []
    index_file = DatasetFiles.index_file

    def replaced_before(self):
        if not calls:
            calls.append(1)
            build_catalogue([str(tmp_path / "2")], prefix, overwrite=True)
        return index_file(self)

    monkeypatch.setattr(DatasetFiles, "index_file", replaced_before)
    with pytest.raises(ChangedFileError, match=r"all\.catalogue` was replaced after it was opened"):
        IndexedDataset(prefix)
    assert token_of(IndexedDataset(prefix)) == 2


def test_one_writer_may_spell_its_files_in_two_ways(tmp_path):
    build(tmp_path / "x", 1)
    with IndexedDatasetBuilder(f"{tmp_path}//x.bin", dtype=np.uint16) as builder:
        builder.add_document([7], [1])
        builder.finalize(tmp_path / "x.idx")
    assert IndexedDataset(str(tmp_path / "x"))[0].tolist() == [7]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.bin", "x.idx"]
