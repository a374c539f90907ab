import errno
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.indexed.columns import put_beside
from tests.indexed.pairs import INTEGER_DTYPES, corpora, pair_bytes, read_pair, write_pair
from tests.indexed.writing.pairs import CORPUS, part
from tests.support import few_examples

from tokenloom import IndexedDataset, build_catalogue, write_concatenated
from tokenloom.errors import ConfigError, DatasetFormatError, StorageError
from tokenloom.indexed.columns import read_columns
from tokenloom.indexed.roles import read_roles, role_bytes, roles_writer
from tokenloom.indexed.writing import concatenate


def files_of(folder):
    return {name: (folder / name).read_bytes() for name in os.listdir(folder)}


def test_kept_documents_keep_their_order(tmp_path, prefix):
    output = f"{tmp_path}/all"
    parts = [part(prefix, kept=[True, False, True, False]), part(prefix), part(prefix, kept=[False, True, False, True])]
    written = write_concatenated(parts, output)
    assert read_pair(output) == [CORPUS[0], CORPUS[2], *CORPUS, CORPUS[1], CORPUS[3]]
    assert written.path_prefix == output


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kept": [True] * 3}, r"`: must be bool\[4\], got bool\[3\]"),
        ({"documents": range(2, 5)}, r"documents range\(2, 5\) out of range: it has 4"),
        ({"documents": range(0, 4, 2)}, r"documents range\(0, 4, 2\) out of range: it has 4"),
    ],
)
def test_documents_that_are_not_there_are_refused(tmp_path, prefix, wrong, message):
    before = files_of(tmp_path)
    with pytest.raises(ConfigError, match=message):
        write_concatenated([part(prefix, **wrong)], f"{tmp_path}/all")
    assert files_of(tmp_path) == before


def test_verifying_finds_a_byte_that_was_copied_wrongly(tmp_path, prefix, monkeypatch):
    before = files_of(tmp_path)
    monkeypatch.setattr(concatenate, "_LONG_RUN_BYTES", 1)
    write = os.copy_file_range

    def badly(source, target, count, offset):
        done = write(source, target, count, offset)
        os.pwrite(target, b"\xff", 13)
        return done

    assert read_pair(write_concatenated([part(prefix)], f"{tmp_path}/sound", verify=True).path_prefix) == CORPUS
    for name in ("sound.bin", "sound.idx"):
        os.unlink(tmp_path / name)
    monkeypatch.setattr(os, "copy_file_range", badly)
    with pytest.raises(StorageError) as caught:
        write_concatenated([part(prefix)], f"{tmp_path}/all", verify=True)
    assert caught.value.message == f"`{tmp_path}/all.bin`: byte 13 differs from the inputs after copying"
    assert files_of(tmp_path) == before


@pytest.mark.parametrize("name", ["copy_file_range", "pwrite"])
def test_a_disk_that_fills_up_leaves_nothing_behind(tmp_path, prefix, monkeypatch, name):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = files_of(tmp_path)
    monkeypatch.setattr(concatenate, "_LONG_RUN_BYTES", 1)
    monkeypatch.setattr(os, name, full)
    with pytest.raises(StorageError, match="No space left on device") as caught:
        write_concatenated([part(prefix)] * 2, f"{tmp_path}/all")
    assert caught.value.hint == "free space on the disk, or write to another one"
    assert files_of(tmp_path) == before


@pytest.mark.parametrize("durable", [True, False])
def test_only_durable_pairs_wait_for_the_disk(tmp_path, prefix, monkeypatch, durable):
    calls = []
    monkeypatch.setattr(os, "fsync", calls.append)
    write_concatenated([part(prefix)], f"{tmp_path}/all", durable=durable)
    assert bool(calls) == durable
    assert read_pair(f"{tmp_path}/all") == CORPUS


def test_an_input_that_shrinks_meanwhile_is_named(tmp_path, prefix, monkeypatch):
    before, put_piece = set(os.listdir(tmp_path)), concatenate.put_piece

    def put(piece, target, **options):
        put_piece(piece, target, **options)
        os.truncate(f"{prefix}.bin", 4)

    monkeypatch.setattr(concatenate, "put_piece", put)
    with pytest.raises(DatasetFormatError, match=r"a\.bin`: expected 24 bytes .*, found 4"):
        write_concatenated([part(prefix)] * 2, f"{tmp_path}/all")
    assert set(os.listdir(tmp_path)) == before


@few_examples  # each makes many files durable
@given(data=st.data(), dtype=st.sampled_from([*INTEGER_DTYPES, np.float32, np.float64]), multimodal=st.booleans())
def test_any_selection_is_what_the_builder_writes(tmp_path_factory, data, dtype, multimodal):
    folder = tmp_path_factory.mktemp("selection")
    drawn = [data.draw(corpora(dtype if np.dtype(dtype).kind in "iu" else np.int16)) for _ in range(2)]
    prefixes = [
        write_pair(folder / f"{number}", corpus, dtype=dtype, multimodal=multimodal)
        for number, corpus in enumerate(drawn)
    ]
    parts, expected = [], []
    for number in data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=3)):
        corpus = drawn[number]
        kept = data.draw(st.none() | st.lists(st.booleans(), min_size=len(corpus), max_size=len(corpus)))
        start = data.draw(st.integers(0, len(corpus)))
        stop = data.draw(st.integers(start, len(corpus)))
        parts.append(part(prefixes[number], documents=range(start, stop), kept=kept))
        expected += [corpus[row] for row in range(start, stop) if kept is None or kept[row]]
    with pytest.MonkeyPatch.context() as patch:  # so that a few tokens are long runs, and many blocks
        patch.setattr(concatenate, "_LONG_RUN_BYTES", data.draw(st.sampled_from([1, 16, 1 << 20])))
        patch.setattr(concatenate, "_GATHERED_BYTES", data.draw(st.sampled_from([8, 1 << 20])))
        patch.setattr(concatenate, "_BLOCK_ROWS", data.draw(st.sampled_from([1, 3, 1 << 20])))
        write_concatenated(parts, f"{folder}/all", multimodal=multimodal, verify=data.draw(st.booleans()))
    whole = write_pair(folder / "whole", expected, dtype=dtype, multimodal=multimodal)
    assert pair_bytes(f"{folder}/all") == pair_bytes(whole)


def add_roles(prefix, *, tokenizer="ab" * 32):
    dataset = IndexedDataset(prefix)
    lengths = dataset.sequence_lengths.astype(np.int64)
    writer = roles_writer(prefix, tokenizer_sha256=tokenizer)
    stops = np.concatenate([np.arange(1, length + 1) for length in lengths]).astype(np.int32)
    writer.append(role_bytes(lengths, stops, ((stops - 1) % 3).astype(np.uint8), num_tokens=int(lengths.sum())))
    put_beside(prefix, "roles", writer.finish())


@pytest.mark.parametrize("write", ["merge", "catalogue"])
def test_roles_are_joined(tmp_path, write):
    prefixes = [write_pair(tmp_path / "a", [[[1, 2]], [[3]]]), write_pair(tmp_path / "b", [[[]], [[4, 5, 6]]])]
    for prefix in prefixes:
        add_roles(prefix)
    if write == "catalogue":
        joined = build_catalogue(prefixes, f"{tmp_path}/all")
    else:
        joined = write_concatenated([part(prefix) for prefix in prefixes], f"{tmp_path}/all")
    roles = read_roles(joined)
    assert [[(stop, kind.value) for _, stop, kind in roles.of(row)] for row in range(4)] == [
        [(1, 0), (2, 1)],
        [(1, 0)],
        [],
        [(1, 0), (2, 1), (3, 2)],
    ]
    assert read_columns(joined)["roles"].about == {"tokenizer": "ab" * 32}


def test_roles_of_other_tokenizers_are_not_joined(tmp_path, prefix):
    other = write_pair(tmp_path / "b", CORPUS)
    add_roles(prefix)
    add_roles(other, tokenizer="cd" * 32)
    with pytest.raises(
        ConfigError, match=rf"column `roles` is .* about .*abab.* in `{prefix}`, and .*'cdcd.* in `{other}`"
    ):
        write_concatenated([part(prefix), part(other)], f"{tmp_path}/all")
    assert not os.path.exists(f"{tmp_path}/all.idx")
