import gzip
import hashlib
import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import nupunkt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from tests.corpus.jobs import preprocess, preprocess_multimodal
from tests.preprocess.corpus import EOD, PAIR_SUFFIXES, byte_level_json, documents_of, make_tokenizer, write_lines
from tokenizers import Tokenizer, processors

from tokenloom import InputError, MissingObjectError
from tokenloom.errors import ConfigError, MissingTokenError, TokenizerError
from tokenloom.indexed.manifests import DocumentLedger, InputRecord, SpecialToken, read_manifest
from tokenloom.indexed.origins import read_origins
from tokenloom.indexed.verify import verify_dataset
from tokenloom.inputs.records import Texts
from tokenloom.preprocess.blocks import DocumentTokens, SentenceSplitter, TemplateTokens, split_texts
from tokenloom.preprocess.corpus import preprocess_corpus, preview_corpus
from tokenloom.preprocess.selection import first_occurrences, hash_documents, hash_of_text, split_of
from tokenloom.preprocess.settings import CorpusSettings
from tokenloom.tokenizers.plain import ByteTokenizer, NullTokenizer

BEGIN, END = 90, 91
POLICIES = [DocumentTokens(), DocumentTokens(eod=END), DocumentTokens(bos=BEGIN), DocumentTokens(bos=BEGIN, eod=END)]


def add(policy: DocumentTokens, documents: list[list[list[int]]]) -> tuple[list[list[list[int]]], int]:
    """Adds the tokens to documents, which are lists of sequences that are not empty, by the arrays of a block."""
    rows = [row for document in documents for row in document]
    tokens = np.array([token for row in rows for token in row], dtype=np.uint16)
    ends = np.cumsum([len(document) for document in documents], dtype=np.int64)
    lengths = np.array([len(row) for row in rows], dtype=np.int32)
    before = (tokens.copy(), lengths.copy())
    made, new_lengths, num_doubled = policy.add(tokens, lengths, ends)
    assert (tokens == before[0]).all()
    assert (lengths == before[1]).all()
    assert (made.dtype, new_lengths.dtype) == (np.uint16, np.int32)
    cut = [row.tolist() for row in np.split(made, np.cumsum(new_lengths)[:-1])] if len(new_lengths) else []
    return [cut[stop - len(document) : stop] for document, stop in zip(documents, ends, strict=True)], num_doubled


def test_ids_come_from_the_tokenizer_and_doubled_ones_are_counted():
    documents = [[[BEGIN, 1]], [[2, END]], [[BEGIN], [END]], [[END, 3, BEGIN]], [[4]]]
    made, num_doubled = add(POLICIES[3], documents)
    assert num_doubled == 3
    assert made[:2] == [[[BEGIN, BEGIN, 1, END]], [[BEGIN, 2, END, END]]]
    assert add(POLICIES[1], documents)[1] == 2
    assert add(POLICIES[0], documents)[1] == 0
    assert DocumentTokens.of(ByteTokenizer()) == DocumentTokens()
    assert DocumentTokens.of(ByteTokenizer(), prepend_bos=True, append_eod=True) == DocumentTokens(bos=257, eod=256)
    with pytest.raises(MissingTokenError, match="tokenizer `null:5` has no configured or well-known token for `bos`"):
        DocumentTokens.of(NullTokenizer(5), prepend_bos=True)


@given(
    policy=st.sampled_from(POLICIES),
    documents=st.lists(st.lists(st.lists(st.sampled_from([1, 2, BEGIN, END]), min_size=1, max_size=4), max_size=3)),
)
def test_documents_are_those_made_one_by_one(policy: DocumentTokens, documents: list[list[list[int]]]):
    expected, num_doubled = [], 0
    for document in documents:
        rows = [list(row) for row in document]
        doubled = bool(rows) and (rows[0][0] == policy.bos or rows[-1][-1] == policy.eod)
        if rows and policy.bos is not None:
            rows[0].insert(0, policy.bos)
        if rows and policy.eod is not None:
            rows[-1].append(policy.eod)
        expected.append(rows)
        num_doubled += doubled
    assert add(policy, documents) == (expected, num_doubled)


def templated(*pieces: str) -> str:
    """Returns a tokenizer whose template is these pieces, `A` being the text."""
    backend = Tokenizer.from_str(byte_level_json())
    names = sorted({*pieces} - {"A"})
    backend.add_special_tokens(names)
    single = ["$A" if piece == "A" else piece for piece in pieces]
    special = [(name, backend.token_to_id(name)) for name in names]
    backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=special)
    return backend.to_str()


def test_template_of_a_file_is_found_and_others_are_refused():
    for pieces, sides in (("A", (0, 0)), ("<b> A", (1, 0)), ("A <e>", (0, 1)), ("<b> <c> A <e>", (2, 1))):
        found = TemplateTokens.of(make_tokenizer(templated(*pieces.split())))
        assert (len(found.before), len(found.after)) == sides
    assert TemplateTokens.of(ByteTokenizer()) == TemplateTokens()
    assert TemplateTokens.of(make_tokenizer(byte_level_json())) == TemplateTokens()
    with pytest.raises(TokenizerError, match="its post-processor does not add the same special tokens"):
        TemplateTokens.of(make_tokenizer(templated("A", "<m>", "A")))


def test_documents_are_those_of_the_library(tmp_path):
    tokenizer = make_tokenizer(templated("<b>", "A", "<e>"))
    texts = ["hello wörld", "", "<b>spelled", f"x{EOD}"]
    path = write_lines(tmp_path / "in.jsonl", [{"text": text} for text in texts])
    settings = CorpusSettings(template_tokens=True, append_eod=True)
    summary = preprocess_corpus(path, tmp_path / "out", tokenizer, settings, num_processes=1, num_workers=1)
    expected = [[[*tokenizer.backend.encode(text).ids, tokenizer.eod]] for text in texts]
    assert documents_of(tmp_path / "out_text_document") == expected
    assert summary.engine.startswith("gigatoken (certificate ")
    shown = preview_corpus([path], tmp_path / "other", tokenizer, settings, count=1)
    assert shown.documents[0].num_tokens == len(expected[0][0])
    assert shown.documents[0].is_exact


TEXT = ' He met Dr. Smith at 3.15 p.m. on Monday.\n\nWas it late?  No! "Not at all."\tEnd without a stop\n'
SENTENCES = ["He met Dr. Smith at 3.15 p.m. on Monday.", "Was it late?", "No!", '"Not at all."', "End without a stop"]

word = st.sampled_from(
    ["Dr.", "p.m.", "Yes.", "no", "It", "e.g.", "3.14", "U.S.", '"Why?"', "(Ok.)", "...", "!", "x.)"]
)
spaces = st.sampled_from([" ", "  ", "\n", "\n\n", "\t", "\u00a0", "\u2028", ""])
prose = st.lists(st.one_of(word, spaces, st.text(max_size=8)), max_size=40).map("".join)


def test_white_space_stays_behind_its_sentence_and_words_without_end_are_split_at_their_ends():
    kept = SentenceSplitter(keep_newlines=True).split(TEXT)
    assert [sentence.strip() for sentence in kept] == SENTENCES
    assert kept[:3] == [" He met Dr. Smith at 3.15 p.m. on Monday.\n\n", "Was it late?  ", "No! "]
    assert kept[-1] == "End without a stop\n"
    long = "x.)" * 100_000  # the library alone would take minutes
    text = f"Before. {long} after it. {'y' * 5000}. Next."
    kept = SentenceSplitter(keep_newlines=True).split(text)
    assert "".join(kept) == text
    assert [sentence[:10] for sentence in kept] == ["Before. ", "x.)x.)x.)x", "yyyyyyyyyy", "Next."]


@given(text=prose)
def test_kept_sentences_are_the_text_and_plain_ones_those_of_the_library(text: str):
    kept = SentenceSplitter(keep_newlines=True).split(text)
    assert "".join(kept) == text
    assert "" not in kept
    plain = SentenceSplitter().split(text)
    assert plain == [sentence.strip() for sentence in kept if sentence.strip()]
    assert plain == [each.strip() for each in nupunkt.sent_tokenize(text) if each.strip()]


@pytest.mark.parametrize(
    ("texts", "ends", "expected", "expected_ends"),
    [
        (["Rain falls. Snow melts.", "", "E."], None, ["Rain falls.", "Snow melts.", "E."], [2, 2, 3]),
        (["Fog came. Go.", "e", "", "F."], [0, 2, 3, 4, 4], ["Fog came.", "Go.", "e", "F."], [0, 3, 3, 4, 4]),
        ([], None, [], []),
    ],
)
def test_texts_of_documents_are_split_one_by_one(texts, ends, expected, expected_ends):
    ends = None if ends is None else np.array(ends, dtype=np.int64)
    split = split_texts(Texts(texts=texts, document_ends=ends), SentenceSplitter())
    assert (split.texts, split.document_ends.tolist()) == (expected, expected_ends)


hash_rows = st_numpy.arrays(np.uint64, st.tuples(st.integers(0, 30), st.just(2)))
few = st.sampled_from([0, 1, 2**63, 2**64 - 1])
few_hashes = st_numpy.arrays(np.uint64, st.tuples(st.integers(0, 12), st.just(2)), elements=few)


def documents(*rows: list[str]) -> Texts:
    ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
    return Texts(texts=[text for row in rows for text in row], document_ends=ends)


def test_hash_is_that_of_framed_texts_and_boundaries_matter():
    frames = [(2, b""), (1, b"a"), (3, "é\0".encode()), (0, b"")]
    framed = b"".join(number.to_bytes(8, "little") + data for number, data in frames)
    [found] = hash_documents([documents(["a", "é\0"]), documents([])], 1)
    assert found.astype("<u8").tobytes() == hashlib.blake2b(framed, digest_size=16).digest()
    cut = [["ab"], ["a", "b"], ["", "ab"], ["ab", ""], ["a\0b"], [], [""]]
    hashes = hash_documents([documents(*cut)], len(cut))
    assert (hashes.dtype, hashes.shape) == (np.uint64, (7, 2))
    assert len(np.unique(hashes, axis=0)) == 7
    keys = hash_documents([documents(["a"], [], ["a"]), documents([], ["a"], ["a"])], 3)
    assert len(np.unique(keys, axis=0)) == 3


def slow_split(row: list[int], seed: int, shares: list[float]) -> int:
    def mixed(number: int) -> int:
        number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        number = (number ^ number >> 27) * 0x94D049BB133111EB % 2**64
        return number ^ number >> 31

    number = mixed(row[0] ^ mixed(seed) ^ row[1])
    exact = [Fraction(share) for share in shares]
    for index in range(len(shares)):
        if number < sum(exact[: index + 1]) / sum(exact) * 2**64 // 1:
            return index
    raise AssertionError


@given(
    hashes=hash_rows,
    seed=st.integers(0, 2**64 - 1),
    shares=st.lists(st.sampled_from([0, 0.1, 1 / 3, 1, 7, 1e-300, 1e300]), min_size=1, max_size=5).filter(any),
)
def test_bounds_are_exact(hashes: np.ndarray, seed: int, shares: list[float]):
    expected = [slow_split(row, seed, shares) for row in hashes.tolist()]
    assert split_of(hashes, seed=seed, shares=shares).tolist() == expected


@pytest.mark.parametrize("shares", [[], [0, 0], [-1, 2], [float("nan")], [1] * 128])
def test_shares_that_are_none_are_refused(shares: list):
    with pytest.raises(ConfigError, match="`shares`: must be 1 to 127 numbers >= 0, not all 0, got"):
        split_of(np.empty((0, 2), dtype=np.uint64), seed=1, shares=shares)


@given(shards=st.lists(few_hashes, max_size=4), memory_bytes=st.sampled_from([192, 700, 2000, 1 << 20]))
def test_first_occurrences_are_those_seen_first(shards: list[np.ndarray], memory_bytes: int):
    masks = first_occurrences(shards, memory_bytes=memory_bytes)
    assert all(mask.dtype == np.bool_ for mask in masks)
    rows = [tuple(row) for shard in shards for row in shard.tolist()]
    expected = [row not in rows[:number] for number, row in enumerate(rows)]
    assert [is_first for mask in masks for is_first in mask.tolist()] == expected
    assert [len(mask) for mask in masks] == [len(shard) for shard in shards]


@given(st.text(max_size=20))
def test_a_text_is_found_by_the_hash_of_its_document(text: str):
    [found] = hash_documents([Texts(texts=[text.encode("utf-8", "replace").decode()])], 1)
    assert (hash_of_text(text) == found).all()
    assert (hash_of_text(text.encode("utf-8", "replace")) == found).all()
    assert (hash_of_text(text + "\n") != found).any()


def test_json_lines_are_accounted_for(tmp_path: Path, words):
    lines = [{"a": "alpha beta", "b": "beta"}, b"", b"bad", {"a": "", "b": ["alpha", "alpha"]}]
    path = write_lines(tmp_path / "in.jsonl", lines)
    preprocess(path, tmp_path / "out", words, keys=["a", "b"], append_eod=True, skip_bad_records=True)
    for key, num_tokens, largest in (("a", 3, 3), ("b", 5, 3)):
        prefix = f"{tmp_path}/out_{key}_document"
        manifest = read_manifest(prefix)
        assert manifest.ledger == DocumentLedger(num_read=4, num_kept=2, num_rejected=1, num_blank=1)
        assert (manifest.pair.num_documents, manifest.pair.num_tokens) == (2, num_tokens)
        assert manifest.pair.largest_token == largest
        assert (manifest.options["key"], manifest.options["append_eod"]) == (key, True)
        num_bytes, version = path.stat().st_size, str(path.stat().st_mtime_ns)
        assert manifest.inputs == (InputRecord(path=str(path), num_bytes=num_bytes, version=version),)
        assert manifest.tokenizer.sha256 == words.sha256
        assert manifest.tokenizer.path == "memory/tokenizer.json"
        assert manifest.tokenizer.vocab_size == 4
        assert (manifest.tokenizer.bos, manifest.tokenizer.eod) == (None, SpecialToken(id=1, text="</s>"))
        assert manifest.engine == "tokenizers"
        report = verify_dataset(prefix)
        assert (report.problems, report.has_manifest) == ((), True)


@pytest.mark.parametrize("from_folder", [True, False])
def test_pairs_of_text_and_image_are_accounted_for(tmp_path: Path, words, from_folder):
    folder = tmp_path / "pairs"
    folder.mkdir()
    for name, text in (("cat", "alpha"), ("dog", "alpha beta")):
        (folder / f"{name}.jpg").write_bytes(b"\xff" * 9)
        (folder / f"{name}.txt").write_text(text)
    lines = write_lines(tmp_path / "in.jsonl", [{"text": "alpha beta", "image": "pairs/cat.jpg"}, b"bad"])
    path = folder if from_folder else lines
    preprocess_multimodal(path, tmp_path / "out", words, append_eod=True, skip_bad_lines=True)
    manifest = read_manifest(f"{tmp_path}/out")
    assert manifest.pair.largest_token == 3  # of the texts: images are no tokens
    expected = DocumentLedger(num_read=2, num_kept=2) if from_folder else None
    assert manifest.ledger == (expected or DocumentLedger(num_read=2, num_kept=1, num_rejected=1))
    (record,) = manifest.inputs
    assert (record.path, record.num_bytes) == (str(path), 2 * 9 + 15 if from_folder else lines.stat().st_size)
    for multimodal in (True, False):
        assert verify_dataset(f"{tmp_path}/out", multimodal=multimodal).problems == ()


@pytest.fixture
def lines() -> bytes:
    texts = (f"document {number} " * (number % 7) for number in range(500))
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


def test_the_result_is_that_of_local_files(bucket, lines, tmp_path):
    tokenizer = make_tokenizer(byte_level_json())
    (tmp_path / "text.jsonl").write_bytes(lines)
    local = preprocess(tmp_path / "text.jsonl", tmp_path / "out", tokenizer, append_eod=True)
    source = bucket.put("text", gzip.compress(lines))
    seen = []
    options = {"append_eod": True, "input_format": "jsonl", "progress": seen.append}
    summary = preprocess(source, bucket.url("out"), tokenizer, **options)
    assert [each.num_tokens for each in summary.datasets] == [each.num_tokens for each in local.datasets]
    assert seen[-1].total == len(gzip.compress(lines)) == seen[-1].counts["num_file_bytes"]
    assert bucket.keys() == [*(f"out_text_document.{suffix}" for suffix in PAIR_SUFFIXES), "text"]
    for suffix in (".bin", ".idx"):
        assert bucket.get(f"out_text_document{suffix}") == (tmp_path / f"out_text_document{suffix}").read_bytes()
    origins = read_origins(bucket.url("out_text_document"))
    assert origins is not None
    assert [file.path for file in origins.files] == [source]
    assert origins.locate(np.arange(origins.num_documents))[1].tolist() == list(range(1, origins.num_documents + 1))


def test_what_fails_writes_nothing(bucket, lines):
    tokenizer = make_tokenizer(byte_level_json())
    source = bucket.put("text", lines + b"no JSON\n")
    with pytest.raises(InputError, match=rf"`{source}` line 501"):
        preprocess(source, bucket.url("out"), tokenizer, input_format="jsonl")
    assert bucket.keys() == ["text"]
    with pytest.raises(MissingObjectError):
        preprocess(bucket.url("none"), bucket.url("out"), tokenizer, input_format="jsonl")
    summary = preprocess(source, bucket.url("out"), tokenizer, skip_bad_records=True, input_format="jsonl")
    assert json.loads(bucket.get("out.rejected.jsonl"))["line"] == 501
    assert summary.rejected_paths == (bucket.url("out.rejected.jsonl"),)
