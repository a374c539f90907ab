import errno
import os
import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.indexed.columns import put_beside
from tests.indexed.manifest.manifests import write_recorded
from tests.indexed.origins import add_hashes, add_origins, files_of, hashes_beside, origins_beside, random_runs, runs_of
from tests.indexed.pairs import FIRST, INTEGERS, SECOND, corpora, pair_bytes, read_pair, write_pair, write_two_pairs
from tests.support import contents, few_examples

from tokenloom import IndexedDataset, IndexedDatasetBuilder, build_catalogue
from tokenloom.errors import ConfigError, DatasetFormatError, OutputExistsError, StorageError
from tokenloom.indexed.columns import add_column, open_column, read_columns, remove_column
from tokenloom.indexed.origins import Origins, read_origins
from tokenloom.indexed.roles import read_roles, role_bytes, roles_writer
from tokenloom.indexed.verify import verify_dataset
from tokenloom.indexed.writing import concatenate
from tokenloom.indexed.writing.concatenate import ConcatenatedPart, merge_datasets, write_concatenated

CORPUS = [[[1, 2], [3]], [], [[4]], [[], [5, 6]]]


@pytest.fixture
def prefix(tmp_path):
    return write_pair(tmp_path / "a", CORPUS)


def part(prefix, *, documents=None, kept=None):
    mask = None if kept is None else np.array(kept, dtype=np.bool_)
    return ConcatenatedPart(prefix=prefix, documents=documents, kept_documents=mask)


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
        ({"documents": range(2, 5)}, r"documents range\(2, 5\) out of range: there are 4 documents"),
        ({"documents": range(0, 4, 2)}, r"documents range\(0, 4, 2\) out of range: there are 4 documents"),
    ],
)
def test_documents_that_are_not_there_are_refused(tmp_path, prefix, wrong, message):
    before = contents(tmp_path)
    with pytest.raises(ConfigError, match=message):
        write_concatenated([part(prefix, **wrong)], f"{tmp_path}/all")
    assert contents(tmp_path) == before


def test_verifying_finds_a_byte_that_was_copied_wrongly(tmp_path, prefix, monkeypatch):
    before = contents(tmp_path)
    monkeypatch.setattr(concatenate, "_LONG_RUN_BYTES", 1)
    write = os.copy_file_range

    def badly(source, target, count, offset):
        done = write(source, target, count, offset)
        os.pwrite(target, b"\xff", 13)
        return done

    monkeypatch.setattr(os, "copy_file_range", badly)
    with pytest.raises(StorageError) as caught:
        write_concatenated([part(prefix)], f"{tmp_path}/all", verify=True)
    assert caught.value.message == f"`{tmp_path}/all.bin`: byte 13 differs from the inputs after copying"
    assert contents(tmp_path) == before
    monkeypatch.setattr(os, "copy_file_range", write)
    assert read_pair(write_concatenated([part(prefix)], f"{tmp_path}/all", verify=True).path_prefix) == CORPUS


@pytest.mark.parametrize("name", ["copy_file_range", "pwrite"])
def test_a_disk_that_fills_up_leaves_nothing_behind(tmp_path, prefix, monkeypatch, name):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = contents(tmp_path)
    monkeypatch.setattr(concatenate, "_LONG_RUN_BYTES", 1)
    monkeypatch.setattr(os, name, full)
    with pytest.raises(StorageError, match="No space left on device") as caught:
        write_concatenated([part(prefix)] * 2, f"{tmp_path}/all")
    assert caught.value.hint == "delete files on the disk, or write to another disk"
    assert contents(tmp_path) == before


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
@given(data=st.data(), dtype=st.sampled_from([*INTEGERS, np.float32, np.float64]), multimodal=st.booleans())
def test_any_selection_is_what_the_builder_writes(tmp_path_factory, data, dtype, multimodal):
    folder, options = tmp_path_factory.mktemp("selection"), {"dtype": dtype, "multimodal": multimodal}
    drawn = [data.draw(corpora(dtype if np.dtype(dtype).kind in "iu" else np.int16)) for _ in range(2)]
    prefixes = [write_pair(folder / f"{number}", corpus, **options) for number, corpus in enumerate(drawn)]
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
    assert pair_bytes(f"{folder}/all") == pair_bytes(write_pair(folder / "whole", expected, **options))


def add_roles(prefix, *, tokenizer="ab" * 32):
    lengths = IndexedDataset(prefix).sequence_lengths.astype(np.int64)
    writer = roles_writer(prefix, tokenizer_sha256=tokenizer)
    stops = np.concatenate([np.arange(1, length + 1) for length in lengths]).astype(np.int32)
    writer.append(role_bytes(lengths, stops, ((stops - 1) % 3).astype(np.uint8), num_tokens=int(lengths.sum())))
    put_beside(prefix, "roles", writer.finish())


@pytest.mark.parametrize("join", [merge_datasets, build_catalogue])
def test_roles_are_joined(tmp_path, join):
    prefixes = [write_pair(tmp_path / "a", [[[1, 2]], [[3]]]), write_pair(tmp_path / "b", [[[]], [[4, 5, 6]]])]
    for prefix in prefixes:
        add_roles(prefix)
    joined = join(prefixes, f"{tmp_path}/all")
    found = [[(stop, kind.value) for _, stop, kind in read_roles(joined).of(row)] for row in range(4)]
    assert found == [[(1, 0), (2, 1)], [(1, 0)], [], [(1, 0), (2, 1), (3, 2)]]
    assert read_columns(joined)["roles"].about == {"tokenizer": "ab" * 32}


def test_roles_of_other_tokenizers_are_not_joined(tmp_path, prefix):
    other = write_pair(tmp_path / "b", CORPUS)
    add_roles(prefix)
    add_roles(other, tokenizer="cd" * 32)
    message = rf"column `roles` is .* about .*abab.* in `{prefix}`, and .*'cdcd.* in `{other}`"
    with pytest.raises(ConfigError, match=message):
        merge_datasets([prefix, other], f"{tmp_path}/all")
    assert not os.path.exists(f"{tmp_path}/all.idx")


@pytest.fixture
def prefixes(tmp_path):
    return write_two_pairs(tmp_path)


def test_an_older_result_is_replaced(tmp_path, prefixes):
    write_pair(tmp_path / "all", [[[9]]])
    with pytest.raises(OutputExistsError, match=r"`.*all\.idx` exists already"):
        merge_datasets(prefixes, f"{tmp_path}/all")
    assert read_pair(f"{tmp_path}/all") == [[[9]]]
    assert read_pair(merge_datasets(prefixes, f"{tmp_path}/all", overwrite=True).path_prefix) == FIRST + SECOND


@pytest.mark.parametrize("name", ["a", "a.bin", "./a", "../{folder}/a"])
def test_the_output_must_not_be_an_input(tmp_path, prefixes, name):
    output = os.path.join(tmp_path, name.format(folder=tmp_path.name))
    with pytest.raises(ConfigError, match=r"`.*a` is also an input"):
        merge_datasets(prefixes, output)
    assert read_pair(prefixes[0]) == FIRST


def test_there_must_be_inputs_of_one_dtype_or_nothing_is_written(tmp_path, prefixes):
    with pytest.raises(ConfigError, match="`prefixes`: must name at least one dataset"):
        merge_datasets([], f"{tmp_path}/all")
    other = write_pair(tmp_path / "c", FIRST, dtype=np.uint16)
    with pytest.raises(ConfigError) as caught:
        merge_datasets([*prefixes, other], f"{tmp_path}/all")
    assert caught.value.message == f"expected one dtype, found int32 in `{prefixes[0]}`, uint16 in `{other}`"
    assert not any(name.startswith((".all", "all")) for name in os.listdir(tmp_path))


@few_examples
@given(data=st.data(), dtype=st.sampled_from(INTEGERS), multimodal=st.booleans())
def test_a_merge_of_splits_is_the_whole(tmp_path_factory, data, dtype, multimodal):
    folder, options = tmp_path_factory.mktemp("merge"), {"dtype": dtype, "multimodal": multimodal}
    corpus = data.draw(corpora(dtype))
    cuts = [0, *sorted(data.draw(st.lists(st.integers(0, len(corpus)), max_size=3))), len(corpus)]
    prefixes = [write_pair(folder / f"{start}-{stop}", corpus[start:stop], **options) for start, stop in pairwise(cuts)]
    merged = merge_datasets(prefixes, f"{folder}/merged", multimodal=multimodal)
    assert isinstance(merged, IndexedDataset)
    assert pair_bytes(f"{folder}/merged") == pair_bytes(write_pair(folder / "whole", corpus, **options))


JOINS = [merge_datasets, build_catalogue]


@pytest.fixture
def pairs(tmp_path):
    return [write_recorded(tmp_path / "a", [[[1, 2]], [], [[3]]]), write_recorded(tmp_path / "b", [[[4], [5, 6]]])]


@pytest.mark.parametrize("join", JOINS)
def test_origins_and_hashes_are_joined_and_not_known_of_pairs_without(tmp_path, pairs, join):
    add_origins(pairs[1])
    hashes = add_hashes(pairs[0])
    first, second = (f"{prefix}.jsonl" for prefix in pairs)
    output = join(pairs, f"{tmp_path}/some").path_prefix
    assert (origins_beside(output), hashes_beside(output)) == ([None, None, None, (second, 2)], None)
    assert verify_dataset(output).ok
    add_origins(pairs[0])
    hashes += add_hashes(pairs[1])
    output = join(pairs, f"{tmp_path}/all").path_prefix
    assert origins_beside(output) == [(first, 2), (first, 3), (first, 4), (second, 2)]
    assert hashes_beside(output) == hashes
    assert verify_dataset(output).ok


def test_what_lies_beside_a_pair_that_a_builder_appends_is_left_there(tmp_path, pairs, caplog):
    add_origins(pairs[0])
    add_hashes(pairs[0])
    with IndexedDatasetBuilder(f"{tmp_path}/all.bin", dtype=np.uint16) as builder:
        builder.add_index(pairs[0])
        builder.finalize(f"{tmp_path}/all.idx")
    assert (origins_beside(f"{tmp_path}/all"), hashes_beside(f"{tmp_path}/all")) == (None, None)
    expected = f"columns ['hashes', 'origins'] of `{pairs[0]}` are dropped; use `merge_datasets` to keep them"
    assert caplog.messages == [expected]


def test_what_is_kept_of_parts_is_as_with_lists(tmp_path, rng, monkeypatch):
    monkeypatch.setattr("tokenloom.indexed.writing.concatenate._ROWS_AT_ONCE", 50)
    monkeypatch.setattr("tokenloom.indexed.writing.concatenate._BLOCK_ROWS", 70)
    parts, origins, hashes, weights, qualities = [], [], [], [], []
    for name in "abc":
        count = int(rng.integers(1, 400))
        corpus = [[[1] * size for size in rng.integers(0, 9, rng.integers(0, 3))] for _ in range(count)]
        prefix = write_pair(tmp_path / name, corpus)
        ends = np.cumsum([0, *(sum(map(len, document)) for document in corpus)])
        weight = rng.random((int(ends[-1]), 2), dtype=np.float32)
        add_column(prefix, "weight", [weight], dtype=np.float32)
        rows = np.cumsum([0, *map(len, corpus)])
        quality = rng.integers(0, 99, int(rows[-1]))
        add_column(prefix, "quality", [quality], dtype=np.int16, kind="sequence")
        runs = np.concatenate([random_runs(rng, count, 2), runs_of([(0, 1, count)])])
        whole = Origins.from_runs(files_of("both.jsonl", f"{prefix}.jsonl"), [runs])
        cut = Origins.from_runs(whole.files, whole.pieces(range(count)))
        if name != "b":
            add_origins(prefix, cut)
        mine = add_hashes(prefix)
        documents = range(*sorted(rng.integers(0, count + 1, 2).tolist()))
        kept = (rng.random(count) < rng.random()).tolist()
        parts.append(part(prefix, documents=documents, kept=kept))
        chosen = [number for number in documents if kept[number]]
        beside = origins_beside(prefix) or [None] * count
        origins += [beside[number] for number in chosen]
        hashes += [mine[number] for number in chosen]
        weights += [each for number in chosen for each in weight[ends[number] : ends[number + 1]].tolist()]
        qualities += [each for number in chosen for each in quality[rows[number] : rows[number + 1]].tolist()]
    write_concatenated(parts, f"{tmp_path}/all")
    assert origins_beside(f"{tmp_path}/all") == origins
    assert hashes_beside(f"{tmp_path}/all") == hashes
    joined = IndexedDataset(f"{tmp_path}/all")
    assert open_column(joined, "weight").data.tolist() == weights
    assert open_column(joined, "quality").data.tolist() == qualities
    assert verify_dataset(joined.path_prefix).ok


@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "`{b}` has no column `w`, but `{a}` has one"),
        ({"dtype": "float32"}, "column `w` is uint8[] per token of tokens, padding 0 in `{a}`, and float32[]"),
        ({"of": "label"}, "per token of tokens, padding 0 in `{a}`, and uint8[] per token of label"),
    ],
)
def test_a_column_per_token_is_never_dropped_silently(tmp_path, pairs, join, options, message):
    for prefix, changes in zip(pairs, ({}, options), strict=True):
        if changes or prefix == pairs[0]:
            rows = np.zeros(IndexedDataset(prefix).num_tokens)
            add_column(prefix, "w", [rows], **{"dtype": "uint8", **changes})
    with pytest.raises(ConfigError, match=re.escape(message.format(a=pairs[0], b=pairs[1]))):
        join(pairs, f"{tmp_path}/all")
    assert not os.path.exists(f"{tmp_path}/all.idx")


@pytest.mark.parametrize("join", JOINS)
def test_a_result_of_other_origins_is_another_one(tmp_path, pairs, join):
    output = f"{tmp_path}/all"
    join(pairs, output)
    notices: list[str] = []
    join(pairs, output, notice=notices.append)
    assert len(notices) == 1
    add_origins(pairs[0])
    with pytest.raises(OutputExistsError):
        join(pairs, output)
    join(pairs, output, overwrite=True)
    assert read_origins(output).num_known == 3
    join(pairs, output, notice=notices.append)
    assert len(notices) == 2
    remove_column(pairs[0], "origins")
    join(pairs, output, overwrite=True)
    assert read_origins(output) is None
