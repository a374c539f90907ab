import json
import os
import shutil
import subprocess
import sys
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.faults import dies_at
from tests.indexed.pairs import FIRST, INTEGERS, SECOND, corpora, pair_bytes, read_pair, write_pair, write_two_pairs
from tests.support import equal_samples, few_examples, make_config, make_dataset, random_documents, write_corpus

from tokenloom import BlendedMegatronDatasetBuilder, GPTDataset, IndexedDataset, IndexedDatasetBuilder, parse_blend
from tokenloom.errors import ChangedFileError, ConfigError, DatasetFormatError, StorageError
from tokenloom.indexed.dataset import dataset_identity
from tokenloom.indexed.joined import JoinedPairs, PairToJoin
from tokenloom.indexed.prefixes import expand_prefixes, prefixes_in, sequence_counts
from tokenloom.indexed.verify import verify_dataset
from tokenloom.indexed.writing.concatenate import build_catalogue, merge_datasets

PAGE = 65536


@pytest.fixture
def prefixes(tmp_path):
    return write_two_pairs(tmp_path)


@pytest.fixture
def catalogue(tmp_path, prefixes):
    return build_catalogue(prefixes, f"{tmp_path}/all").path_prefix


@pytest.fixture
def corpus(tmp_path, rng):
    folder = tmp_path / "corpus"
    folder.mkdir()
    documents = [[*random_documents(rng, count=8, longest=30, vocab_size=90), [number, 89]] for number in range(12)]
    pairs = [write_corpus(folder / f"{number:02}", each) for number, each in enumerate(documents)]
    build_catalogue(pairs, f"{folder}/catalogue")
    merge_datasets(pairs, f"{folder}/merged")
    return pairs, f"{folder}/catalogue", f"{folder}/merged"


def test_the_file_is_as_documented(tmp_path, prefixes, catalogue):
    content = json.loads(Path(f"{catalogue}.catalogue").read_text())
    parts = content.pop("parts")
    assert content == {"format": "tokenloom catalogue", "version": 1, "alignment": 65536}
    assert [len(part.pop("sample")) for part in parts] == [64, 64]
    times = [os.stat(f"{prefix}.bin").st_mtime_ns for prefix in prefixes]
    a = {"prefix": "a", "num_bytes": 12, "num_sequences": 2, "num_documents": 2, "modified_ns": times[0]}
    assert parts == [a, a | {"prefix": "b", "num_sequences": 3, "modified_ns": times[1]}]
    index = IndexedDataset(catalogue).index
    assert index.sequence_pointers.tolist() == [0, 8, PAGE, PAGE + 4, PAGE + 4]
    assert not os.path.exists(f"{catalogue}.bin")


@pytest.mark.parametrize("mmap", [True, False])
def test_counts_leave_the_gaps_out_and_slices_cross_from_pair_to_pair(catalogue, mmap):
    dataset = IndexedDataset(catalogue, mmap=mmap)
    assert (len(dataset), dataset.num_documents, dataset.num_tokens) == (5, 4, 6)
    assert (dataset.statistics().num_bytes, dataset.count_tokens(range(1, 3))) == (24, 2)
    assert sequence_counts([catalogue])[catalogue] == [5, 5]
    report = verify_dataset(catalogue, vocab_size=7)
    assert (report.ok, report.largest_token) == (True, 6)
    assert [tokens.tolist() for tokens in dataset[0:5]] == [[1, 2], [3], [4], [], [5, 6]]
    assert [tokens.tolist() for tokens in dataset[1:3]] == [[3], [4]]
    assert dataset[3:3] == []


def test_a_catalogue_of_catalogues_names_their_pairs(tmp_path, prefixes, catalogue):
    (tmp_path / "below").mkdir()
    nested = build_catalogue([prefixes[1], catalogue], f"{tmp_path}/below/nested")
    assert read_pair(nested.path_prefix) == SECOND + FIRST + SECOND
    assert [section.prefix for section in nested.sections] == [prefixes[1], *prefixes]


def test_a_catalogue_merges_into_what_its_pairs_merge_into(tmp_path, prefixes, catalogue):
    merge_datasets([*prefixes, prefixes[0]], f"{tmp_path}/expected")
    merge_datasets([catalogue, prefixes[0]], f"{tmp_path}/merged")
    with IndexedDatasetBuilder(f"{tmp_path}/added.bin") as builder:
        builder.add_index(catalogue)
        builder.add_index(prefixes[0])
        builder.finalize(f"{tmp_path}/added.idx")
    for target in ("merged", "added"):
        assert pair_bytes(f"{tmp_path}/{target}") == pair_bytes(f"{tmp_path}/expected")


def test_a_folder_can_be_moved_with_its_catalogue(tmp_path):
    (tmp_path / "here/pairs").mkdir(parents=True)
    pair = write_pair(tmp_path / "here/pairs/a", FIRST)
    away = write_pair(tmp_path / "b", SECOND)
    build_catalogue([pair, away], f"{tmp_path}/here/all")
    shutil.move(tmp_path / "here", tmp_path / "there")
    assert read_pair(f"{tmp_path}/there/all") == FIRST + SECOND
    shutil.copytree(tmp_path / "there", tmp_path / "copied", copy_function=shutil.copyfile)
    assert read_pair(f"{tmp_path}/copied/all") == FIRST + SECOND


def test_a_catalogue_never_takes_the_place_of_a_pair(tmp_path, prefixes):
    with pytest.raises(ConfigError, match=rf"`{tmp_path}/a` is also an input"):
        build_catalogue(prefixes, prefixes[0])
    with pytest.raises(ConfigError, match=rf"the pair `{tmp_path}/a\.bin` exists; a catalogue cannot replace it"):
        build_catalogue(prefixes[1:], prefixes[0])
    assert read_pair(prefixes[0]) == FIRST


def catalogue_bytes(**members):
    start = {"format": "tokenloom catalogue", "version": 1, "alignment": 65536, "parts": []}
    return json.dumps({name: value for name, value in (start | members).items() if value is not None}).encode()


def of_part(num_bytes):
    return catalogue_bytes(parts=[{"prefix": "a", "num_bytes": num_bytes, "num_sequences": 5, "num_documents": 4}])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected JSON, found 0 bytes that are not JSON"),
        (catalogue_bytes(format="other"), "expected an object whose `format` is 'tokenloom catalogue'"),
        (catalogue_bytes(version=2), "expected version 1, found 2"),
        (catalogue_bytes(parts=[{}]), "expected `parts"),
        (catalogue_bytes(parts=None), "expected `parts`, found no such member"),
        (catalogue_bytes(), "5 sequences and 4 documents, as `.*all.idx` has, found 0 sequences and 0 documents"),
        (of_part(-1), r"must be in \[0, 2\*\*62\)"),
        (of_part(24), r"`.*all\.catalogue`: expected 65548 bytes \(the end of sequence 4"),
    ],
)
def test_a_damaged_catalogue_is_named(catalogue, content, message):
    Path(f"{catalogue}.catalogue").write_bytes(content)
    with pytest.raises(DatasetFormatError, match=message):
        IndexedDataset(catalogue)


@pytest.mark.parametrize("mmap", [True, False])
def test_pairs_that_are_not_what_they_were_are_named_when_they_are_read(tmp_path, prefixes, catalogue, mmap):
    def named():
        return [problem.split("`")[1] for problem in verify_dataset(catalogue).problems]

    first, second = (f"{prefix}.bin" for prefix in prefixes)
    write_pair(prefixes[1], [[[7, 7, 7]], []])
    with pytest.raises(StorageError, match=r"b\.bin` is not the file that `.*all\.catalogue` was written for"):
        IndexedDataset(catalogue, mmap=mmap)[2]
    assert named() == [second]
    os.unlink(first)
    assert named() == [first, second]
    with pytest.raises(StorageError, match=r"cannot open `.*a\.bin`: No such file or directory"):
        IndexedDataset(catalogue, mmap=mmap)[0]
    with pytest.raises(StorageError):
        merge_datasets([catalogue], f"{tmp_path}/merged")
    assert not os.path.exists(f"{tmp_path}/merged.bin")


def test_a_moved_pointer_is_found(catalogue):
    with open(f"{catalogue}.idx", "r+b") as file:
        file.seek(34 + 4 * 5 + 8 * 2)
        file.write((12).to_bytes(8, "little"))
    expected = f"`{catalogue}.idx`: expected pointer {PAGE} (the start of its pair), found 12 for sequence 2"
    assert verify_dataset(catalogue).problems == (expected,)


def test_samples_are_those_of_the_merge(corpus):
    _, catalogue, merged = corpus
    options = {"reset_attention_mask": True, "reset_position_ids": True, "create_attention_mask": True}
    expected = make_dataset(merged, num_samples=90, **options)
    for mmap in (True, False):
        found = make_dataset(catalogue, num_samples=90, mmap_bin_files=mmap, **options)
        assert len(found) == len(expected)
        assert all(equal_samples(found[number], expected[number]) for number in range(0, len(expected), 7))
        assert equal_samples(found.batch(range(60)), expected.batch(range(60)))


def test_a_blend_takes_a_catalogue_as_it_takes_a_pair(corpus):
    _, catalogue, merged = corpus

    def build(prefix):
        config = make_config(None, blend=parse_blend([prefix])["blend"], split="8,1,1")
        return BlendedMegatronDatasetBuilder(GPTDataset, [40, 5, 5], lambda: True, config).build()

    for found, expected in zip(build(catalogue), build(merged), strict=True):
        assert all(equal_samples(found[number], expected[number]) for number in range(len(expected)))


def test_the_index_cache_notices_other_pairs(corpus):
    pairs, catalogue, _ = corpus
    before = dataset_identity(IndexedDataset(catalogue))
    assert dataset_identity(IndexedDataset(catalogue)) == before
    make_dataset(catalogue, num_samples=20)[0]
    tokens = np.fromfile(f"{pairs[3]}.bin", dtype=np.uint16)
    (tokens + 1).tofile(f"{pairs[3]}.bin")
    os.utime(f"{pairs[3]}.bin", ns=(1, 1))
    with pytest.raises(StorageError, match=r"03\.bin` is not the file"):
        make_dataset(catalogue, num_samples=20)[0]
    build_catalogue(pairs, catalogue, overwrite=True)
    after = dataset_identity(IndexedDataset(catalogue))
    assert {key for key in before if before[key] != after[key]} == {"pairs"}


def test_blocks_never_hold_sequences_of_two_pairs(catalogue):
    dataset = IndexedDataset(catalogue)
    assert dataset.block_starts(1 << 20).tolist() == [0, PAGE]
    assert dataset.block_numbers(np.arange(5), 1 << 20).tolist() == [0, 0, 1, 1, 1]
    assert dataset.block_starts(8).tolist() == [0, 8, PAGE]


def test_pairs_and_their_catalogue_in_one_folder_are_not_counted_twice(tmp_path, prefixes, catalogue):
    for take in (prefixes_in, lambda folder: expand_prefixes([f"{folder}/*"]), lambda folder: parse_blend([folder])):
        with pytest.raises(ConfigError) as caught:
            take(str(tmp_path))
        assert "pairs and the catalogue `" in caught.value.message
        assert caught.value.hint == "pass either the catalogue or the pairs"
    (tmp_path / "catalogues").mkdir()
    alone = build_catalogue(prefixes, f"{tmp_path}/catalogues/alone").path_prefix
    assert prefixes_in(f"{tmp_path}/catalogues") == [alone]
    assert parse_blend([f"{tmp_path}/catalogues"])["blend"] == ([alone], None)
    assert expand_prefixes([f"{tmp_path}/[ab]", f"{tmp_path}/catalogues", catalogue]) == [*prefixes, alone, catalogue]


_THREE_THOUSAND = """
import sys
from tokenloom import GPTDataset, IndexedDataset, build_catalogue
prefix = sys.argv[1]
dataset = build_catalogue([prefix] * 3000, sys.argv[2])
for mmap in (True, False):
    dataset = IndexedDataset(sys.argv[2], mmap=mmap)
    print(sum(int(dataset[row][0]) for row in range(0, len(dataset), 2)), len(dataset))
"""


@pytest.mark.slow
def test_thousands_of_pairs_hold_no_descriptors(tmp_path):
    prefix = write_pair(tmp_path / "a", [[[1, 2], [3]]])
    command = ["bash", "-c", 'ulimit -n 256 && exec "$@"', "bash", sys.executable, "-c", _THREE_THOUSAND]
    done = subprocess.run([*command, prefix, f"{tmp_path}/all"], capture_output=True, text=True, check=True)
    assert done.stdout == "3000 6000\n" * 2


@few_examples  # each makes many files durable
@given(data=st.data(), dtype=st.sampled_from([*INTEGERS, np.float32]), multimodal=st.booleans())
def test_any_catalogue_is_its_pairs_merged(tmp_path_factory, data, dtype, multimodal):
    folder = tmp_path_factory.mktemp("catalogue")
    kind = dtype if np.dtype(dtype).kind in "iu" else np.int16
    drawn = [data.draw(corpora(kind)) for _ in range(data.draw(st.integers(1, 3)))]
    options = {"dtype": dtype, "multimodal": multimodal}
    pairs = [write_pair(folder / f"{number}", corpus, **options) for number, corpus in enumerate(drawn)]
    whole = [document for corpus in drawn for document in corpus]
    catalogue = build_catalogue(pairs, f"{folder}/all", multimodal=multimodal)
    assert verify_dataset(f"{folder}/all", multimodal=multimodal).ok
    assert read_pair(f"{folder}/all") == read_pair(f"{folder}/all", mmap=False) == whole
    assert catalogue.num_tokens == sum(len(sequence) for document in whole for sequence in document)
    merged = merge_datasets(pairs, f"{folder}/merged", multimodal=multimodal)
    rows = np.array(data.draw(st.lists(st.integers(0, len(merged) - 1), max_size=9)) if len(merged) else [], np.int64)
    lengths = merged.sequence_lengths[rows].astype(np.int64)
    for mmap in (True, False):
        dataset = IndexedDataset(f"{folder}/all", multimodal, mmap)
        assert np.array_equal(dataset.gather(rows, rows * 0, lengths), merged.gather(rows, rows * 0, lengths))
    merge_datasets([f"{folder}/all"], f"{folder}/again", multimodal=multimodal)
    assert pair_bytes(f"{folder}/again") == pair_bytes(f"{folder}/merged")


def test_the_first_reader_after_a_death_finds_the_old_or_the_new_one(tmp_path):
    small, large = (write_pair(tmp_path / name, [[[number]]]) for number, name in enumerate("ab"))
    prefix = str(tmp_path / "out" / "all")

    def write():
        build_catalogue([small, large], prefix, overwrite=True)

    for number in count(18):  # from where files change their names
        build_catalogue([small], prefix, overwrite=number > 18)
        died = dies_at(tmp_path / "out", number, write, every=True)
        assert [tokens.tolist() for tokens in IndexedDataset(prefix)] in ([[0]], [[0], [1]])
        if not died:
            break
    assert number > 28


CORPORA = [[[1, 2, 3], [4]], [[5, 6]], [[7], [], [8, 9, 10, 11]]]


def joined(folder, *, mmap=True, check=lambda pair: None):
    pairs = [
        PairToJoin(prefix=write_corpus(folder / f"p{number}", corpus), num_sequences=len(corpus), check=check)
        for number, corpus in enumerate(CORPORA)
    ]
    dtype = IndexedDataset(pairs[0].prefix).dtype
    return JoinedPairs(pairs, dtype=dtype, mmap=mmap)


@pytest.mark.parametrize("mmap", [True, False])
def test_sequences_are_numbered_through_and_what_is_asked_for_is_opened(tmp_path, mmap):
    pairs = joined(tmp_path, mmap=mmap)
    everything = [sequence for corpus in CORPORA for sequence in corpus]
    assert (len(pairs), pairs.num_open, pairs.sections is not None) == (len(everything), 0, mmap)
    assert (pairs[2].tolist(), pairs.num_open) == ([5, 6], 1)
    assert [pairs[number].tolist() for number in range(len(pairs))] == everything
    assert pairs.num_open == 3
    assert pairs.get(5, offset=1, length=2).tolist() == [9, 10]
    with pytest.raises(IndexError, match="sequence 6 out of range: there are 6"):
        pairs[6]
    sequences, starts, lengths = (np.array(column) for column in ([5, 0, 2, 0, 5], [2, 0, 1, 1, 0], [2, 2, 1, 2, 1]))
    assert pairs.gather(sequences, starts, lengths).tolist() == [10, 11, 1, 2, 6, 2, 3, 8]
    assert pairs.gather(sequences[:0], starts[:0], lengths[:0]).tolist() == []


def test_a_pair_is_checked_when_it_is_opened(tmp_path):
    def refuse(pair):
        message = "another one"
        raise ChangedFileError(message)

    pairs = joined(tmp_path, check=refuse)
    for _ in range(2):
        with pytest.raises(ChangedFileError, match="another one"):
            pairs[0]
    assert pairs.num_open == 0
