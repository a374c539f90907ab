"""Sources: found, locked as they are, held out, kept as they were, and compared with the lock."""

import dataclasses
import os
import shutil
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.datasets.conversations import ANSWER, PROMPT, conversation, write_conversations
from tests.indexed.manifest.manifests import SHA256, write_recorded
from tests.indexed.pairs import write_pair
from tests.run.data import settings_of, write_source, write_with_manifest
from tests.run.small_runs import make_lock, make_pair
from tests.support import StandInTokenizer

from tokenloom import IndexedDataset, build_catalogue
from tokenloom.errors import ConfigError, DatasetFormatError, DatasetNotFoundError, TokenizerError
from tokenloom.indexed.layout import column_path
from tokenloom.indexed.manifests import index_start_crc32, read_manifest
from tokenloom.kernels.walks import make_source_documents
from tokenloom.order.walk_order import source_key
from tokenloom.run.held_out import held_numbers, held_tokens, holds_blocks, num_blocks, with_holdout
from tokenloom.run.lock import BLOCK_DOCUMENTS, LockedPair
from tokenloom.run.sources import check_sources, find_pairs, lock_pair, lock_sources


def locked(folder, *sources, old=None, at=0, **options):
    return lock_sources(settings_of(folder, *sources), old=old, at=at, **options)


def test_a_pair_without_and_with_manifest(tmp_path):
    prefix = write_source(tmp_path / "web", 3, 0, 4)
    index = IndexedDataset(prefix).index
    assert lock_pair(prefix) == LockedPair(
        prefix=prefix, num_documents=3, num_tokens=7, dtype="uint16", idx_bytes=34 + 3 * 12 + 4 * 8,
        index_start_crc32=index_start_crc32(index.header, index.sequence_lengths),
    )  # fmt: skip
    prefix = write_with_manifest(tmp_path / "web", 3, 4)
    facts, pair = read_manifest(prefix).pair, lock_pair(prefix)
    assert (pair.tokens_crc32, pair.index_crc32, pair.fingerprint) == (facts.tokens.crc32, facts.index.crc32, SHA256)
    assert pair.index_start_crc32 == facts.index_start_crc32


def test_what_a_run_cannot_read(tmp_path):
    write_source(tmp_path / "float", 3, dtype=np.float32)
    with pytest.raises(ConfigError, match=r"`.*float\.bin`: token ids of a run must be integers, got float32"):
        lock_pair(f"{tmp_path}/float")
    write_pair(tmp_path / "images", [[[1], [2]]], multimodal=True)
    with pytest.raises(ConfigError, match=r"`.*images\.idx`: a run cannot read multimodal pairs"):
        lock_pair(f"{tmp_path}/images")
    write_source(tmp_path / "a", 0, 0)
    write_source(tmp_path / "b")
    with pytest.raises(ConfigError, match=r"source 'web' has no tokens in 2 pairs"):
        locked(tmp_path, 'web = ["a", "b"]')
    write_source(tmp_path / "short", 3, dtype=np.uint16)
    write_source(tmp_path / "long", 3, dtype=np.int32)
    with pytest.raises(ConfigError, match=r"source 'web' mixes two token dtypes: uint16 in .* and int32"):
        locked(tmp_path, 'web = ["short", "long"]')
    assert len(locked(tmp_path, 'web = "short"', 'code = "long"')) == 2


def test_growth_keeps_numbers_and_places(tmp_path):
    for name in ("web/b", "web/d", "code"):
        write_source(tmp_path / name, 3)
    sources = 'web = { data = "web/*", holdout = "20%" }', 'code = "code"'
    old = make_lock(*locked(tmp_path, *sources))
    for name in ("web/a", "web/c", "books"):
        write_source(tmp_path / name, 3)
    new = locked(tmp_path, 'books = "books"', sources[0], old=old, at=90)
    prefixes = {source.name: [os.path.basename(pair.prefix) for pair in source.pairs] for source in new}
    assert list(prefixes.items()) == [("web", ["b", "d", "a", "c"]), ("code", ["code"]), ("books", ["books"])]
    assert [pair.since for pair in new[0].pairs] == [0, 0, 90, 90]
    assert (new[0].pairs[:2], new[1], new[2].pairs[0].since) == (old.sources[0].pairs, old.sources[1], 90)


def test_a_source_that_is_not_named_any_more_is_not_looked_at(tmp_path):
    write_source(tmp_path / "web", 3)
    write_source(tmp_path / "code", 3)
    old = make_lock(*locked(tmp_path, 'web = "web"', 'code = "code"'))
    os.unlink(tmp_path / "web.bin")
    expected = (old.sources[0], dataclasses.replace(old.sources[1], max_passes=2))
    assert locked(tmp_path, 'code = { data = "code", max_passes = 2 }', old=old, at=5) == expected
    with pytest.raises(ConfigError, match=r"is in two sources, 'code' and 'program'"):
        locked(tmp_path, 'program = "code"', old=old, at=5)


def test_pairs_that_moved_are_found_by_name_and_content(tmp_path):
    for number, name in enumerate("ab"):
        write_source(tmp_path / "old" / name, 3 + number)
    old = make_lock(*locked(tmp_path, 'web = { data = "old/*", holdout = "20%" }'))
    shutil.move(tmp_path / "old", tmp_path / "new")
    write_source(tmp_path / "new" / "c", 3)
    (new,) = locked(tmp_path, 'web = { data = "new/*", holdout = "20%" }', old=old, at=5)
    assert [os.path.relpath(pair.prefix, tmp_path) for pair in new.pairs] == ["new/a", "new/b", "new/c"]
    assert [pair.since for pair in new.pairs] == [0, 0, 5]
    write_source(tmp_path / "new" / "a", 7)
    with pytest.raises(ConfigError, match=r"`.*old/a` is in the lock but not in `data`"):
        locked(tmp_path, 'web = { data = "new/*", holdout = "20%" }', old=old, at=5)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ((3, 4, 5), r"`.*web\.idx` changed after it was locked: expected documents: 2, found 3"),
        ((4, 3), r"`.*web\.idx` changed after it was locked: expected an index whose start has CRC-32 ........, found"),
    ],
)
def test_a_pair_that_was_rewritten(tmp_path, lengths, message):
    write_source(tmp_path / "web", 3, 4)
    old = make_lock(*locked(tmp_path, 'web = "web"'))
    os.unlink(tmp_path / "web.bin")
    os.unlink(tmp_path / "web.idx")
    write_source(tmp_path / "web", *lengths)
    with pytest.raises(DatasetFormatError, match=message):
        locked(tmp_path, 'web = "web"', old=old, at=5)


def test_a_pair_that_was_rewritten_with_documents_as_long(tmp_path):
    prefix = write_with_manifest(tmp_path / "web", 3, 4)
    old = make_lock(*locked(tmp_path, 'web = "web"'))
    for name in os.listdir(tmp_path):
        os.unlink(tmp_path / name)
    write_with_manifest(prefix, 3, 4, sha256=SHA256)
    assert locked(tmp_path, 'web = "web"', old=old, at=5) == old.sources
    crc32 = old.sources[0].pairs[0].tokens_crc32 ^ 1
    pair = dataclasses.replace(old.sources[0].pairs[0], tokens_crc32=crc32)
    old = make_lock(dataclasses.replace(old.sources[0], pairs=(pair,)))
    message = rf"`.*web\.bin` changed .*: expected tokens with CRC-32 {crc32:08x}, found"
    with pytest.raises(DatasetFormatError, match=message):
        locked(tmp_path, 'web = "web"', old=old, at=5)


def test_pairs_of_two_tokenizers(tmp_path):
    write_with_manifest(tmp_path / "a", 3)
    write_with_manifest(tmp_path / "b", 3, sha256="cd" * 32)
    write_source(tmp_path / "c", 3)
    with pytest.raises(TokenizerError, match=r"sources mix two tokenizers \(sha256\): .* `.*a` and .* `.*b`"):
        locked(tmp_path, 'web = "a"', 'code = ["c", "b"]')


def test_the_tokenizer_of_the_run(tmp_path):
    write_with_manifest(tmp_path / "a", 3)
    write_source(tmp_path / "b", 3)
    tokenizer = StandInTokenizer(pad=1)
    tokenizer.sha256 = SHA256
    locked(tmp_path, 'web = ["a", "b"]', tokenizer=tokenizer)
    tokenizer.sha256 = "cd" * 32
    with pytest.raises(TokenizerError, match=r"`.*a`: expected tokenizer StandIn.*, found word-level"):
        locked(tmp_path, 'web = ["a", "b"]', tokenizer=tokenizer)


def test_a_holdout_of_blocks_stays_one(tmp_path):
    write_source(tmp_path / "a", *(number % 3 for number in range(64 * BLOCK_DOCUMENTS + 1)))
    source = 'web = { data = "*", holdout = "50%" }'
    old = make_lock(*locked(tmp_path, source))
    (pair,) = old.sources[0].pairs
    assert (pair.held_blocks, pair.held_documents) == (33, 0)
    lengths = np.arange(64 * BLOCK_DOCUMENTS + 1) % 3
    blocks = held_numbers(pair, key=source_key(7, "web"), number=0)
    assert pair.held_tokens == lengths[np.isin(np.arange(len(lengths)) // BLOCK_DOCUMENTS, blocks)].sum()
    write_source(tmp_path / "b", *[2] * (BLOCK_DOCUMENTS + 1))
    (new,) = locked(tmp_path, source, old=old, at=9)
    assert (new.pairs[0], new.pairs[1].held_blocks, new.pairs[1].held_documents) == (pair, 1, 0)
    assert new.pairs[1].held_tokens in (2, 2048)


def test_a_holdout_is_not_changed(tmp_path):
    write_source(tmp_path / "a", *[1] * 10)
    old = make_lock(*locked(tmp_path, 'web = { data = "a", holdout = "20%" }'))
    for share, found in (('holdout = "30%"', 3), ("max_passes = 1", 0)):
        with pytest.raises(ConfigError, match=f"documents held out of `.*a`: number must stay 2, got {found}"):
            locked(tmp_path, f'web = {{ data = "a", {share} }}', old=old, at=5)
    assert locked(tmp_path, 'web = { data = "a", holdout = "30%" }')[0].pairs[0].held_documents == 3


@pytest.mark.parametrize("has_manifest", [True, False])
def test_sources_of_two_kinds_are_refused(tmp_path, has_manifest):
    write_source(tmp_path / "web", 30)
    roles = write_conversations(tmp_path / "chat", [conversation((PROMPT, [1, 2]), (ANSWER, [3, 4]))])
    if has_manifest:
        os.unlink(column_path(roles, "roles"))
        write_recorded(roles, [[[1, 2]]], options={"schema": "messages"})
    sources = 'web = "web"', 'chat = "chat"'
    with pytest.raises(ConfigError, match=r"chat`: expected whole documents, found conversations\nhint: put the pair"):
        locked(tmp_path, *sources)
    assert len(locked(tmp_path, *sources, allow_data_mismatch=True)) == 2
    settings = settings_of(tmp_path, *sources, dataset='"varlen"')
    assert len(lock_sources(settings, old=None, at=0)) == 2


def found(folder, data):
    settings = settings_of(folder, f"web = {data}")
    return [os.path.relpath(prefix, folder) for prefix in find_pairs(settings.sources[0], settings.folder)]


@pytest.fixture
def folder(tmp_path):
    for name in ("web/b", "web/a", "web/c", "more/a", ".hidden/a"):
        write_source(tmp_path / "data" / name, 3)
    (tmp_path / "data" / "web" / "notes.txt").write_text("no data")
    return tmp_path


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ('"data/web/a"', ["data/web/a"]),
        ('"data/web/a.bin"', ["data/web/a"]),
        ('"data/web/a.idx"', ["data/web/a"]),
        ('"data/web/*"', ["data/web/a", "data/web/b", "data/web/c"]),
        ('"data/web/[ac].idx"', ["data/web/a", "data/web/c"]),
        ('"data/*/a"', ["data/more/a", "data/web/a"]),
        ('"data/**/a"', ["data/more/a", "data/web/a"]),
        ('"data/web"', ["data/web/a", "data/web/b", "data/web/c"]),
        ('["data/web/c", "data/more/*", "data/web/a"]', ["data/web/c", "data/more/a", "data/web/a"]),
    ],
)
def test_pairs_in_the_order_of_data(folder, data, expected):
    assert found(folder, data) == expected


def test_a_catalogue_stands_for_its_pairs_in_its_order(folder):
    pairs = [f"{folder}/data/web/{name}" for name in "cab"]
    build_catalogue(pairs, f"{folder}/data/all")
    expected = ["data/web/c", "data/web/a", "data/web/b"]
    assert found(folder, '"data/all"') == found(folder, '"data/all.catalogue"') == expected
    assert found(folder, '"data/al*"') == expected


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ('"data/none/*"', "source 'web': '.*data/none/\\*' matches no pair"),
        ('"data/web/*.txt"', "source 'web': '.*' matches no pair"),
        ('["data/web/a", "data/web/../web/a"]', "once|twice"),
        ('["data/web/*", "data/web/a"]', "source 'web' has `.*data/web/a` twice"),
        ('["data/web/*", "data/all"]', "source 'web' has `.*data/web/c` twice"),
        ('["data/web/a", "data/link"]', "has `.*data/link` twice, also as `.*data/web/a`"),
    ],
)
def test_bad_data(folder, data, message):
    build_catalogue([f"{folder}/data/web/c"], f"{folder}/data/all")
    for suffix in (".bin", ".idx"):
        os.symlink(f"{folder}/data/web/a{suffix}", f"{folder}/data/link{suffix}")
    with pytest.raises((ConfigError, DatasetNotFoundError), match=message):
        found(folder, data)


@pytest.mark.parametrize("missing", [".bin", ".idx"])
@pytest.mark.parametrize("data", ['"data/web/*"', '"data/web"'])
def test_half_a_pair(folder, missing, data):
    os.unlink(f"{folder}/data/web/b{missing}")
    with pytest.raises(DatasetNotFoundError, match=rf"incomplete.*b\{missing}` is missing"):
        found(folder, data)


def test_objects_of_a_store(bucket, tmp_path):
    for name in ("web/0/b", "web/1/a", "web/a"):
        bucket.put_pair(write_source(tmp_path / name, 3), f"data/{name}")
    build_catalogue([bucket.url("data/web/1/a")], bucket.url("data/all"))

    def prefixes(entry):
        settings = settings_of(tmp_path, f'web = "{bucket.url(entry)}"')
        return [each.removeprefix(bucket.url("data/")) for each in find_pairs(settings.sources[0], settings.folder)]

    assert prefixes("data/web/a") == ["web/a"]
    assert prefixes("data/web/*") == prefixes("data/web/") == ["web/a"]
    assert prefixes("data/web/*/*") == ["web/0/b", "web/1/a"]
    assert prefixes("data/all") == prefixes("data/al*") == ["web/1/a"]
    with pytest.raises(DatasetNotFoundError, match="matches no pair"):
        prefixes("data/none/*")
    bucket.put("data/web/half.idx", b"")
    with pytest.raises(DatasetNotFoundError, match=r"an incomplete pair: `.*half\.bin` is missing"):
        prefixes("data/web/*")


@pytest.fixture
def lock(tmp_path):
    write_with_manifest(tmp_path / "web" / "a", 3, 4)
    write_with_manifest(tmp_path / "web" / "b", 5)
    write_source(tmp_path / "code", 6)
    return make_lock(*lock_sources(settings_of(tmp_path, 'web = "web/*"', 'code = "code"'), old=None, at=0))


def messages(lock, **options):
    return [problem.message for problem in check_sources(lock, **options) if not problem.is_unknown]


def flip(path, *, at):
    with open(path, "r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def test_other_tokens_are_found_by_reading_alone(lock, tmp_path):
    assert check_sources(lock, full=False) == []
    unknown = check_sources(lock, full=True)
    assert [each.path for each in unknown] == [f"{tmp_path}/code.bin", f"{tmp_path}/code.idx"]
    assert all(problem.is_unknown and "not checked" in problem.message for problem in unknown)
    flip(tmp_path / "web" / "a.bin", at=3)
    assert messages(lock, full=False) == []
    (message,) = messages(lock, full=True)
    assert message.startswith(f"`{tmp_path}/web/a.bin` changed after it was locked: expected bytes with CRC-32 ")


def test_every_pair_that_is_missing_or_changed_is_told(lock, tmp_path):
    os.unlink(tmp_path / "web" / "a.bin")
    os.truncate(tmp_path / "web" / "b.bin", 8)
    os.unlink(tmp_path / "code.bin")
    os.unlink(tmp_path / "code.idx")
    write_source(tmp_path / "code", 6, 7)
    problems = check_sources(lock, full=False)
    assert [problem.source for problem in problems] == ["web", "web", "code"]
    assert [problem.message.replace(f"{tmp_path}/", "") for problem in problems] == [
        "no file `web/a.bin`",
        "`web/b.bin`: expected 10 bytes (the end of sequence 0 in `web/b.idx`), found 8",
        "`code.idx` changed after it was locked: expected documents: 1, found 2",
    ]


def test_pairs_of_a_store(bucket, tmp_path):
    write_with_manifest(tmp_path / "web", 3, 4)
    bucket.put_pair(f"{tmp_path}/web", "web")
    bucket.put("web.manifest.json", (tmp_path / "web.manifest.json").read_bytes())
    lock = make_lock(*lock_sources(settings_of(tmp_path, f'web = "{bucket.url("web")}"'), old=None, at=0))
    assert check_sources(lock, full=True) == []
    flip(tmp_path / "web.bin", at=1)
    bucket.put("web.bin", (tmp_path / "web.bin").read_bytes())
    (message,) = messages(lock, full=True)
    assert message.startswith(f"`{bucket.url('web.bin')}` changed after it was locked: expected bytes with CRC-32 ")


# --- what is held out -----------------------------------------------------------------------------------------------
KEY = source_key(7, "web")


def pairs_of(*num_documents):
    return [make_pair(f"web-{number}", num_documents=count) for number, count in enumerate(num_documents)]


def test_blocks_are_held_out_where_they_are_many_and_numbers_rounded_over_all_pairs():
    assert not holds_blocks(pairs_of(31 * 10 * BLOCK_DOCUMENTS + 9 * BLOCK_DOCUMENTS), Fraction(1, 10))
    assert holds_blocks(pairs_of(31 * 10 * BLOCK_DOCUMENTS + 9 * BLOCK_DOCUMENTS + 1), Fraction(1, 10))
    chosen = with_holdout(pairs_of(3, 3, 3, 3), Fraction(1, 10), by_blocks=False)
    assert [pair.held_documents for pair in chosen] == [0, 1, 0, 0]
    pairs = pairs_of(BLOCK_DOCUMENTS, BLOCK_DOCUMENTS + 1, 5 * BLOCK_DOCUMENTS - 3)
    chosen = with_holdout(pairs, Fraction(1, 2), by_blocks=True)
    assert [(pair.held_blocks, pair.held_documents) for pair in chosen] == [(1, 0), (1, 0), (2, 0)]


def test_what_is_held_out_depends_on_seed_source_and_place():
    (pair,) = with_holdout(pairs_of(10_000), Fraction(1, 10), by_blocks=False)
    first = held_numbers(pair, key=KEY, number=0).tolist()
    for key, number in ((source_key(8, "web"), 0), (source_key(7, "code"), 0), (KEY, 1)):
        assert held_numbers(pair, key=key, number=number).tolist() != first
    assert held_numbers(pair, key=KEY, number=0).tolist() == first == sorted(set(first))


SHARES = st.fractions(0, Fraction(1, 2), max_denominator=10_000).filter(bool)


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=6), SHARES, st.booleans(), st.data())
def test_totals_are_right_and_growth_moves_nothing(counts, share, by_blocks, data):
    pairs = pairs_of(*counts)
    chosen = with_holdout(pairs, share, by_blocks=by_blocks)
    held = [pair.held_blocks if by_blocks else pair.held_documents for pair in chosen]
    units = [num_blocks(pair) if by_blocks else pair.num_documents for pair in pairs]
    assert abs(sum(held) - sum(units) * share) <= Fraction(1, 2)
    assert all(0 <= number <= unit for number, unit in zip(held, units, strict=True))
    cut = data.draw(st.integers(0, len(pairs)))
    before = with_holdout(pairs[:cut], share, by_blocks=by_blocks)
    assert before + with_holdout(pairs[cut:], share, by_blocks=by_blocks, after=before) == chosen
    number = data.draw(st.integers(0, len(pairs) - 1))
    found = held_numbers(chosen[number], key=KEY, number=number)
    assert len(np.unique(found)) == held[number]
    assert not len(found) or found[-1] < units[number]


@given(st.lists(st.integers(0, 9), max_size=3000), SHARES, st.booleans())
def test_readers_hold_out_the_same_documents(lengths, share, by_blocks):
    (pair,) = with_holdout(pairs_of(len(lengths)), share, by_blocks=by_blocks)
    held = held_tokens(pair, np.array(lengths, np.int32), key=KEY, number=0)
    for num_tokens, reads_held in ((sum(lengths) - held, False), (held, True)):
        section = (len(lengths), num_tokens, pair.held_blocks, pair.held_documents)
        make_source_documents([section], key=KEY, reads_held=reads_held).open(0, np.array(lengths, np.int32))
        if num_tokens:
            wrong = (len(lengths), num_tokens + 1, pair.held_blocks, pair.held_documents)
            documents = make_source_documents([wrong], key=KEY, reads_held=reads_held)
            with pytest.raises(IndexError):
                documents.open(0, np.array(lengths, np.int32))
