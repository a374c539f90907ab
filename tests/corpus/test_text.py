import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from tests.corpus.jobs import corpus_of, preprocess
from tests.indexed.pairs import pair_bytes
from tests.inputs.corpora import COMPRESSIONS, documents, json_lines, parse_slices, write_arrow, write_parquet
from tests.preprocess.corpus import (
    EOD,
    PAIR_SUFFIXES,
    build_by_hand,
    byte_level_json,
    documents_of,
    leftovers,
    make_sentencepiece,
    sources,
    tokenizer_of,
    write_lines,
)

from tokenloom.errors import InputError, OutputExistsError, StorageError, TokenloomError
from tokenloom.indexed.manifests import read_manifest
from tokenloom.indexed.verify import verify_dataset
from tokenloom.inputs.find import cut_inputs, find_inputs
from tokenloom.preprocess.corpus import DocumentPreview, preview_corpus
from tokenloom.preprocess.settings import CorpusSettings
from tokenloom.tokenizers.load import recorded_tokenizer
from tokenloom.tokenizers.plain import ByteTokenizer, NullTokenizer


def test_literal_documents_become_literal_tokens(tmp_path: Path, words):
    lines = [{"text": "alpha"}, {"text": ""}, {"text": ["alpha", "", "beta beta", " "]}, {"text": []}, {"text": "beta"}]
    preprocess(write_lines(tmp_path / "in.jsonl", lines), tmp_path / "out", words, append_eod=True)
    assert documents_of(tmp_path / "out_text_document") == [[[2, 1]], [], [[2], [3, 3, 1]], [], [[3, 1]]]
    path = write_lines(tmp_path / "in.jsonl", [{"text": "alpha beta"}, {"text": "beta"}, {"text": "gamma alpha"}])
    summary = preprocess(path, tmp_path / "out", words, overwrite=True)
    assert documents_of(tmp_path / "out_text_document") == [[[2, 3]], [[3]], [[0, 2]]]
    assert leftovers(tmp_path, path) == [f"out_text_document.{suffix}" for suffix in PAIR_SUFFIXES]
    assert (summary.num_documents, summary.num_tokens, summary.num_rejected, summary.num_blank_lines) == (3, 5, 0, 0)
    assert (summary.dtype, summary.engine, summary.rejected_paths) == ("uint16", "tokenizers", ())
    assert "Unsupported model type" in summary.engine_reason
    assert summary.num_text_bytes == path.stat().st_size
    [output] = summary.datasets
    assert (output.key, output.prefix) == ("text", str(tmp_path / "out_text_document"))
    assert (output.num_sequences, output.num_bytes) == (3, 10)


DOCUMENT = st.one_of(
    st.text(max_size=80),
    st.sampled_from(["", " ", EOD, "a" * 300, "def f():\n    pass\n"]),
    st.lists(st.text(max_size=20), max_size=4),
)


OPTIONS = {"shard_bytes": st.sampled_from([20, 300, 1 << 20]), "num_workers": st.integers(1, 4)}
OPTIONS |= {"block_bytes": st.integers(1, 400), "append_eod": st.booleans()}
OPTIONS |= {"engine": st.sampled_from(["auto", "gigatoken", "tokenizers"])}


@given(st.lists(DOCUMENT, min_size=1, max_size=30), st.integers(1, 4), st.fixed_dictionaries(OPTIONS))
def test_bytes_are_those_of_the_builder_whatever_the_files_shards_workers_and_blocks(
    tmp_path_factory, tokenizer, documents, num_files, options
):
    folder = tmp_path_factory.mktemp("property")
    paths = corpus_of(folder, documents, num_files=num_files)
    summary = preprocess(paths, folder / "out", tokenizer, **options)
    expected = build_by_hand(
        folder / "hand", tokenizer, documents, eod=tokenizer.eod if options["append_eod"] else None
    )
    assert pair_bytes(folder / "out_text_document") == expected
    assert summary.num_documents == len(documents)
    assert summary.num_tokens * 2 == len(expected[0])
    assert verify_dataset(str(folder / "out_text_document"), vocab_size=tokenizer.vocab_size).ok


@pytest.mark.slow
@pytest.mark.peer
def test_bytes_are_those_of_the_reference_builder(tmp_path: Path, tokenizer, rng: np.random.Generator):
    reference = pytest.importorskip("megatron.core.datasets.indexed_dataset")
    import torch

    alphabet = ["word ", "  ", "\n", "é", "中", EOD, "x" * 40, "def "]
    documents = ["".join(rng.choice(alphabet, rng.integers(0, 30))) for _ in range(500)]
    path = write_lines(tmp_path / "in.jsonl", [{"text": document} for document in documents])
    preprocess(path, tmp_path / "out", tokenizer, append_eod=True, num_workers=2, block_bytes=1000)
    builder = reference.IndexedDatasetBuilder(str(tmp_path / "peer.bin"), dtype=np.uint16)
    for document in documents:
        ids = tokenizer.tokenize(document)
        row = [*ids, tokenizer.eod] if ids else []
        builder.add_document(torch.tensor(row, dtype=torch.int64), [len(row)] if row else [])
    builder.finalize(str(tmp_path / "peer.idx"))
    assert pair_bytes(tmp_path / "out_text_document") == pair_bytes(tmp_path / "peer")


GOOD = {"text": "alpha"}
BAD_LINES = [
    (b"not json", "not JSON: Expecting value at column 1"),
    (b"[1]", "expected a JSON object, found an array"),
    (b'{"other": 1}', "no key 'text'; found 'other'"),
    (b'{"text": 3}', "expected a string or an array of strings under 'text', found a number"),
    (b'{"text": null}', "expected a string or an array of strings under 'text', found null"),
    (b'{"text": "caf\xe9"}', "not UTF-8: value 0xe9 at byte 14"),
    (rb'{"text": ["fine", "\udfff"]}', "'text' is not valid Unicode: lone surrogate U+DFFF at character 1"),
]


@pytest.mark.parametrize("block_bytes", [10, 100_000])
def test_the_first_bad_line_stops_the_run_and_skipped_lines_are_set_aside(tmp_path: Path, words, block_bytes: int):
    path = write_lines(tmp_path / "in.jsonl", [*[GOOD] * 100, b"", BAD_LINES[0][0], GOOD, *[b"worse"] * 100])
    with pytest.raises(InputError) as caught:
        preprocess(path, tmp_path / "out", words, block_bytes=block_bytes, num_workers=4)
    assert caught.value.message == f"`{path}` line 102: {BAD_LINES[0][1]}"
    assert "`bad_records`" in str(caught.value.hint)
    assert leftovers(tmp_path, path) == []
    path = write_lines(tmp_path / "in.jsonl", [GOOD, b"", *(line for line, _ in BAD_LINES), {"text": "beta"}])
    summary = preprocess(path, tmp_path / "out", words, skip_bad_records=True, block_bytes=block_bytes)
    assert documents_of(tmp_path / "out_text_document") == [[[2]], [[3]]]
    assert (summary.num_documents, summary.num_blank_lines, summary.num_rejected) == (2, 1, len(BAD_LINES))
    assert summary.rejected_paths == (str(tmp_path / "out.rejected.jsonl"),)
    records = [json.loads(line) for line in Path(*summary.rejected_paths).read_text("utf-8").splitlines()]
    expected = [(str(path), number, reason) for number, (_, reason) in enumerate(BAD_LINES, 3)]
    assert [(record["file"], record["line"], record["reason"]) for record in records] == expected
    texts = [record["text"].encode() if "text" in record else base64.b64decode(record["base64"]) for record in records]
    assert texts == [line for line, _ in BAD_LINES]


def test_file_without_documents_is_an_error(tmp_path: Path, words):
    first_bad = "1 blank lines, 1 bad records; the first is `.*` line 1: not JSON"
    cases = [([], "0 blank lines, 0 bad"), ([b"", b"", b"  "], "3 blank lines, 0 bad"), ([b"bad", b""], first_bad)]
    for lines, message in cases:
        path = write_lines(tmp_path / "in.jsonl", lines)
        with pytest.raises(InputError, match=f"no documents found: {message}"):
            preprocess(path, tmp_path / "out", words, skip_bad_records=True)
        assert leftovers(tmp_path, path) == []


def test_failed_run_leaves_the_earlier_dataset_alone(tmp_path: Path, words):
    path = write_lines(tmp_path / "in.jsonl", [GOOD])
    preprocess(path, tmp_path / "out", words)
    before = pair_bytes(tmp_path / "out_text_document")
    write_lines(path, [{"text": "beta"}, b"bad"])
    for overwrite, message in ((False, r"`.*out_text_document\.idx` exists"), (True, "line 2: not JSON")):
        with pytest.raises((OutputExistsError, InputError), match=message):
            preprocess(path, tmp_path / "out", words, overwrite=overwrite)
        assert pair_bytes(tmp_path / "out_text_document") == before


def test_outputs_appear_together_or_not_at_all(tmp_path: Path, words):
    path = write_lines(tmp_path / "in.jsonl", [{"a": "alpha", "b": "beta"}])
    (tmp_path / "out_b_document.bin").mkdir()  # the second dataset cannot be published
    with pytest.raises(OutputExistsError, match="out_b_document"):
        preprocess(path, tmp_path / "out", words, keys=["a", "b"])
    with pytest.raises(StorageError, match=r"out_b_document\.bin`: it is a folder"):
        preprocess(path, tmp_path / "out", words, keys=["a", "b"], overwrite=True)
    assert leftovers(tmp_path, path) == ["out.job", "out_b_document.bin"]
    (tmp_path / "out_b_document.bin").rmdir()
    assert preprocess(path, tmp_path / "out", words, keys=["a", "b"]).num_shards_reused == 1


def test_a_missing_input_is_an_error_and_a_missing_folder_is_made(tmp_path: Path, words):
    with pytest.raises(StorageError, match=r"cannot open `.*nowhere\.jsonl`: No such file"):
        preprocess(tmp_path / "nowhere.jsonl", tmp_path / "out", words)
    path = write_lines(tmp_path / "in.jsonl", [GOOD])
    with pytest.raises(StorageError, match=r"cannot make the folder of `.*in\.jsonl/out`: "):
        preprocess(path, path / "out", words)
    assert leftovers(tmp_path, path) == []
    preprocess(path, tmp_path / "new" / "folder" / "out", words)
    assert (tmp_path / "new" / "folder" / "out_text_document.idx").exists()


def test_slow_engine_is_announced_at_once_unless_asked_for(tmp_path: Path, words, tokenizer, caplog):
    path = write_lines(tmp_path / "in.jsonl", [GOOD])
    preprocess(path, tmp_path / "out", tokenizer)
    preprocess(path, tmp_path / "out", words, engine="tokenizers", overwrite=True)
    assert caplog.messages == []
    preprocess(path, tmp_path / "other", words)
    [message] = caplog.messages
    assert message.startswith("tokenizing with the slow engine `tokenizers`: `gigatoken` does not support tokenizer")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keys": []}, r"`keys`: must be distinct, at least one, got \(\)"),
        ({"keys": ["a", "a"]}, "`keys`: must be distinct"),
        *(({name: 0}, name) for name in ("num_workers", "block_bytes")),
        ({"engine": "quick"}, "`engine`.* 'auto', 'gigatoken', 'tokenizers', .* 'quick'"),
        ({"prepend_bos": True}, "has no configured or well-known token for `bos`"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, words, options: dict, message: str):
    path = write_lines(tmp_path / "in.jsonl", [GOOD])
    with pytest.raises(TokenloomError, match=message):
        preprocess(path, tmp_path / "out", words, **options)
    assert leftovers(tmp_path, path) == []


@pytest.mark.parametrize("kind", ["sentencepiece", "tiktoken", "byte", "null"])
def test_every_kind_of_tokenizer_writes_its_ids(tmp_path: Path, kind: str):
    tokenizer = NullTokenizer(70_000) if kind == "null" else tokenizer_of(kind)
    texts: list[str | list[str]] = ["def f(): pass", "", "naïve 中文\x00 <|endoftext|>", ["a", " ", "b?"], *sources()]
    if tokenizer.kind == "null":
        texts = ["7 0 70000", "", [" ", "65536"], " ".join(map(str, range(3000)))]
    path = write_lines(tmp_path / "in.jsonl", [{"text": text} for text in texts])
    expected = build_by_hand(tmp_path / "hand", tokenizer, texts, eod=tokenizer.eod)
    for workers, block_bytes in ((1, None), (2, 1000)):
        options = {"append_eod": True, "num_workers": workers, "block_bytes": block_bytes, "restart": True}
        summary = preprocess(path, tmp_path / "out", tokenizer, **options)
        assert pair_bytes(tmp_path / "out_text_document") == expected
        assert summary.engine.split()[0] == ("gigatoken" if tokenizer.kind == "tiktoken" else tokenizer.engine_name)
        assert summary.dtype == ("int32" if tokenizer.kind == "null" else "uint16")
    if tokenizer.kind == "tiktoken":
        preprocess(path, tmp_path / "out", tokenizer, append_eod=True, engine="tiktoken", overwrite=True)
        assert pair_bytes(tmp_path / "out_text_document") == expected


@pytest.mark.parametrize("keep_newlines", [False, True])
def test_sentences_are_sequences(tmp_path: Path, keep_newlines: bool):
    texts = ["Rain falls.\nSnow melts. ", ["Sun shines. Wind blows.", "Fog"], " "]
    path = write_lines(tmp_path / "in.jsonl", [{"text": text} for text in texts])
    options = {"append_eod": True, "split_sentences": True, "keep_newlines": keep_newlines}
    summary = preprocess(path, tmp_path / "out", ByteTokenizer(), **options)
    assert leftovers(tmp_path, path) == [f"out_text_sentence.{suffix}" for suffix in PAIR_SUFFIXES]
    found = [[*map(ByteTokenizer().detokenize, rows)] for rows in documents_of(summary.datasets[0].prefix)]
    kept = [["Rain falls.\n", "Snow melts. <eod>"], ["Sun shines. ", "Wind blows.", "Fog<eod>"], [" <eod>"]]
    stripped = [["Rain falls.", "Snow melts.<eod>"], ["Sun shines.", "Wind blows.", "Fog<eod>"], []]
    assert found == (kept if keep_newlines else stripped)


class OwnTokenizer(ByteTokenizer):
    def __reduce__(self) -> Any:
        return OwnTokenizer, ()

    def encode_texts(self, texts):
        return super().encode_texts(texts)


def test_a_tokenizer_of_a_users_own_works_in_several_processes(tmp_path: Path):
    path = write_lines(tmp_path / "in.jsonl", [{"text": f"text number {number}"} for number in range(200)])
    preprocess(path, tmp_path / "own", OwnTokenizer(), shard_bytes=3000, num_processes=2)
    preprocess(path, tmp_path / "ours", ByteTokenizer(), shard_bytes=1000)
    assert pair_bytes(tmp_path / "own_text_document") == pair_bytes(tmp_path / "ours_text_document")


def test_the_longest_record_does_not_depend_on_the_memory(tmp_path: Path):
    path = write_lines(tmp_path / "in.jsonl", [{"text": "a" * size} for size in (10, 1 << 20, (16 << 20) + 1)])
    for memory_bytes in (64 << 20, 8 << 30):
        with pytest.raises(InputError, match=r"longer than 16777216 bytes"):
            preprocess(path, tmp_path / "out", ByteTokenizer(), memory_bytes=memory_bytes, restart=True)
    summary = preprocess(path, tmp_path / "out", ByteTokenizer(), max_record_bytes=20 << 20, restart=True)
    assert (summary.num_documents, summary.num_rejected) == (3, 0)


@pytest.mark.parametrize("name", ["tokenizer.json", ".", "models/../tokenizer.json"])
def test_a_manifest_names_its_tokenizer_wherever_it_is_read(tmp_path: Path, monkeypatch, name: str):
    for folder in ("day", "day/models", "data", "other"):
        (tmp_path / folder).mkdir()
    (tmp_path / "day" / "tokenizer.json").write_text(byte_level_json())
    write_lines(tmp_path / "day" / "in.jsonl", [GOOD])
    monkeypatch.chdir(tmp_path / "day")
    preprocess("in.jsonl", "../data/out", name)
    monkeypatch.chdir(tmp_path / "other")
    manifest = read_manifest("../data/out_text_document")
    assert manifest is not None
    assert manifest.tokenizer.path == str(tmp_path / "day" / "tokenizer.json")
    found = recorded_tokenizer(manifest.tokenizer, prefix="../data/out_text_document")
    assert found.sha256 == manifest.tokenizer.sha256
    (tmp_path / "other" / "byte").write_text("no tokenizer")
    preprocess(tmp_path / "day" / "in.jsonl", tmp_path / "out", "byte")
    assert read_manifest(str(tmp_path / "out_text_document")).tokenizer.path == "byte"


def previewed(folder, tokenizer, texts, **settings) -> tuple[DocumentPreview, ...]:
    path = write_lines(folder / "in.jsonl", [b"bad", *({"text": text} for text in texts), {"text": "more"}])
    found = preview_corpus([path], folder / "out", tokenizer, CorpusSettings(**settings), count=len(texts))
    assert [bad.line for bad in found.bad_lines] == [1]
    assert [each.name for each in folder.iterdir()] == ["in.jsonl"]
    return found.documents


def test_documents_are_shown_as_they_will_be_stored(tmp_path):
    texts = ["0123456789", ["é", "", "f"], ""]
    long, short, empty = previewed(tmp_path, ByteTokenizer(), texts, prepend_bos=True, append_eod=True)
    shown = {"path": str(tmp_path / "in.jsonl"), "key": "text", "text": "<bos>0123456789<eod>"}
    shown |= {"first_ids": (257, *range(48, 55)), "last_ids": (*range(51, 58), 256), "num_tokens": 12}
    shown |= {"num_sequences": 1, "num_text_bytes": 10, "is_doubled": False, "is_exact": True}
    assert long == DocumentPreview(**shown)
    assert (short.text, short.num_tokens, short.num_sequences, short.num_text_bytes) == ("<bos>éf<eod>", 5, 2, 3)
    assert (empty.text, empty.num_tokens, empty.first_ids) == ("", 0, ())


def test_doubled_tokens_and_lost_characters_are_told(tmp_path, tokenizer):
    plain, doubled = previewed(tmp_path, tokenizer, ["a", f"a{EOD}"], append_eod=True)
    assert (plain.is_doubled, doubled.is_doubled, doubled.text) == (False, True, f"a{EOD}{EOD}")
    exact, lossy = previewed(tmp_path, make_sentencepiece(), ["two words", "two  words "])
    assert (exact.is_exact, lossy.is_exact, lossy.text) == (True, False, "two words")


def test_truncated_input_leaves_nothing(tmp_path: Path, tokenizer, rng: np.random.Generator):
    rows = rng.integers(0, 1 << 60, (2000, 8)).tolist()
    compressed = zstandard.ZstdCompressor().compress(b"".join(b'{"text": "%a"}\n' % row for row in rows))
    path = tmp_path / "in.jsonl.zst"
    path.write_bytes(compressed[: len(compressed) * 3 // 4])
    with pytest.raises(InputError, match="data ends too early"):
        preprocess(path, tmp_path / "out", tokenizer, num_workers=2, block_bytes=5000)
    assert leftovers(tmp_path, path) == []


TEXTS = [f"document {row} " + "def f(x):\t return é中 " * (row % 9) + EOD * (row % 2) for row in range(400)]
TEXTS[7] = "x" * 5000
ROWS = [{"id": number, "text": text, "meta": {"text": text}} for number, text in enumerate(TEXTS)]


def write_corpus(folder: Path, name: str) -> Path:
    path = folder / name
    if name == "saved":
        datasets = pytest.importorskip("datasets")
        datasets.disable_progress_bars()
        datasets.Dataset.from_list(ROWS).save_to_disk(path)
        [file] = find_inputs([str(path)]).files
        return Path(file.path)
    if name.endswith(".parquet"):
        return write_parquet(path, ROWS, row_group_size=90)
    if ".arrow" in name:
        return write_arrow(path, ROWS, batch_rows=70, stream=name.endswith("s"))
    suffix = path.suffix if path.suffix in COMPRESSIONS else ""
    rows = ["text,id", *(f'"{text}",7' for text in TEXTS)]
    lines = {".txt": TEXTS, ".csv": rows}.get(Path(name.removesuffix(suffix)).suffix)
    path.write_bytes(COMPRESSIONS[suffix](json_lines(ROWS) if lines is None else "\n".join([*lines, ""]).encode()))
    return path


CASES = [(name, "text") for name in ("a.jsonl.zst", "a.txt", "a.txt.gz", "a.arrow", "a.arrows", "a.csv", "a.csv.gz")]
CASES += [("a.jsonl", "meta.text"), ("a.parquet", "meta.text")]
CASES += [pytest.param(f"a.jsonl.{codec}", "text", marks=pytest.mark.slow) for codec in ("gz", "bz2", "xz")]
CASES += [pytest.param("saved", "text", marks=pytest.mark.slow)]


@pytest.mark.parametrize(("name", "key"), CASES)
def test_every_format_comes_to_the_same_bytes(tmp_path: Path, tokenizer, name: str, key: str):
    options = {"append_eod": True, "num_workers": 2, "block_bytes": 3000}
    preprocess(write_corpus(tmp_path, "a.jsonl"), tmp_path / "lines", tokenizer, **options)
    path = write_corpus(tmp_path, name)
    chosen = "text-lines" if ".txt" in name else None
    summary = preprocess(path, tmp_path / "other", tokenizer, input_format=chosen, keys=[key], **options)
    assert summary.num_documents == len(TEXTS)
    assert pair_bytes(tmp_path / f"other_{key}_document") == pair_bytes(tmp_path / "lines_text_document")


def test_files_of_text_are_the_same_documents(tmp_path: Path):
    for number, text in enumerate(TEXTS):
        (tmp_path / f"{number:04}.txt").write_text(text, encoding="utf-8")
    shards = cut_inputs(find_inputs([str(tmp_path)], input_format="text-files").files, shard_bytes=2000)
    assert 1 < len(shards) < len(TEXTS)
    slices = [slice_ for shard in shards for slice_ in shard]
    assert documents(parse_slices(slices, block_bytes=100)) == [[text] for text in TEXTS]


def test_bad_rows_are_named_and_set_aside_like_lines(tmp_path: Path, tokenizer):
    write_parquet(tmp_path / "a.parquet", [{"text": "a"}, {"text": None}, {"text": "b"}])
    with pytest.raises(InputError) as caught:
        preprocess(tmp_path / "a.parquet", tmp_path / "out", tokenizer, input_format="parquet")
    reason = "expected a string or an array of strings under 'text', found null"
    assert caught.value.message == f"`{tmp_path}/a.parquet` row 2: {reason}"
    assert caught.value.hint.startswith("correct the row, or set `bad_records` to write bad rows")
    options = {"input_format": "parquet", "skip_bad_records": True}
    summary = preprocess(tmp_path / "a.parquet", tmp_path / "out", tokenizer, **options)
    assert (summary.num_documents, summary.num_rejected) == (2, 1)
    record = f'{{"file": "{tmp_path}/a.parquet", "row": 2, "reason": "{reason}", "text": "{{\\"text\\": null}}"}}\n'
    assert (tmp_path / "out.rejected.jsonl").read_text() == record


def test_a_bad_file_of_text_is_named_and_set_aside_by_its_path(tmp_path: Path, tokenizer):
    path = tmp_path / "a.txt"
    path.write_bytes(b"caf\xe9")
    with pytest.raises(InputError) as caught:
        preprocess(path, tmp_path / "out", tokenizer, input_format="text-files")
    assert caught.value.message == f"`{path}`: not UTF-8: value 0xe9 at byte 4"
    with pytest.raises(InputError, match=r"no documents found: .* 1 bad records; the first is `.*a\.txt`: not UTF-8"):
        preprocess(path, tmp_path / "out", tokenizer, input_format="text-files", skip_bad_records=True)
