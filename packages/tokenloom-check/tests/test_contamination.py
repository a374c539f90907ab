"""Benchmark passages in tokenized data: planted in many forms, and compared with naive sets of words."""

import json
import multiprocessing
import time
import unicodedata
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.preprocess.corpus import byte_level_json, make_sentencepiece, make_tiktoken, make_tokenizer
from tests.reference.ngrams import hits_of, ngrams_of
from tests.reference.ngrams import words_of as plain_words_of
from tests.support import write_corpus

import tokenloom
from tokenloom import IndexedDataset, IndexedDatasetBuilder, cli, load_tokenizer
from tokenloom.errors import ConfigError
from tokenloom.indexed import add_column, open_column, read_columns
from tokenloom.inputs.utf8_texts import utf8_texts
from tokenloom.kernels.ngrams import BytesTable, NgramIndex, words_of
from tokenloom.run.locking import lock_run
from tokenloom.run.run import Run
from tokenloom_check import contamination
from tokenloom_check.contamination import find_contamination, read_benchmarks

PASSAGE = (
    "When Zoë's café re-opened, twelve naïve customers waited outside; "
    "nobody had told them that the door opens inwards."
)
BYTES = load_tokenizer("byte")


def write_pair(prefix, texts, tokenizer=BYTES):
    return write_corpus(prefix, [tokenizer.tokenize(text) for text in texts])


def write_items(path, items, field="text"):
    path.write_text("".join(json.dumps({field: item}) + "\n" for item in items))
    return str(path)


def search(tmp_path, items, documents, tokenizer=BYTES, **options):
    benchmarks = read_benchmarks([write_items(tmp_path / "items.jsonl", items)], **options)
    prefix = write_pair(tmp_path / "data", documents, tokenizer)
    return find_contamination(benchmarks, {"web": (prefix,)}, tokenizer)


def pairs_of(found):
    return sorted(set(zip(found.passages.items.tolist(), found.passages.documents.tolist(), strict=True)))


FORMS = {
    "verbatim": PASSAGE,
    "upper case": PASSAGE.upper(),
    "without punctuation": "".join(letter for letter in PASSAGE if letter not in ",.;'").replace("-", " "),
    "wrapped": PASSAGE.replace(" ", "\n    # "),
    "decomposed": unicodedata.normalize("NFD", PASSAGE),
    "full width": "".join(chr(ord(c) + 0xFEE0) if c.isascii() and c.isalnum() else c for c in PASSAGE),
    "typographic": PASSAGE.replace("'", "\u2019").replace(" ", "\u00a0"),
    "invisible": PASSAGE.replace("customers", "cus\u00adtom\u200bers"),
    "marked up": PASSAGE.replace("naïve", "**naïve**").replace("café", "<b>café</b>").replace("<b>", "_"),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_passage_is_found_in_any_form(tmp_path, form):
    document = f"Before: {FORMS[form].replace('</b>', '_')} Behind it."
    found = search(tmp_path, [PASSAGE, "something else " * 20], ["before it " * 30, document])
    assert (pairs_of(found), found.coverage.tolist()) == ([(0, 1)], [1.0, 0.0])
    [row] = found.passages.longest().tolist()
    data = document.encode()[int(found.passages.starts[row]) : int(found.passages.stops[row])].decode()
    assert words_of(data) == words_of(PASSAGE)


def test_other_texts_are_not_found(tmp_path):
    words = PASSAGE.split()
    documents = [
        " ".join(words[:9]),
        " ".join(words[9:]),  # the rest, in a document of its own
        " ".join([*words[:8], "many", *words[8:16], "more", *words[16:]]),
        " ".join(words[3:14]),
        PASSAGE.replace("told", "to ld").replace("twelve", "elve"),
        "x" + PASSAGE[:70],
    ]
    assert len(words_of(" ".join(words[3:14]))) == 12
    assert pairs_of(search(tmp_path, [PASSAGE], documents)) == []


def test_text_without_spaces_is_searched_by_characters(tmp_path):
    item = "今天的天气非常好\uff0c我们一起去公园散步吧。"
    plain = item.replace("\uff0c", " ").replace("。", "")
    documents = [f"前面{item}后面", plain, item[:12], item.replace("我们", "他们")]
    found = search(tmp_path, [item, "ภาษาไทยไม่มีช่องว่าง"], [*documents, "ภาษาไทยไม่มีช่องว่างระหว่างคำ"])
    assert pairs_of(found) == [(0, 0), (0, 1), (1, 4)]


def test_short_items_are_searched_as_a_whole(tmp_path):
    items = ["The capital of France is Paris", "yes", "of France is Paris now", "Paris is nice"]
    found = search(tmp_path, items, ["the capital of france is PARIS now", "of France is Paris", "yes"])
    assert pairs_of(found) == [(0, 0), (2, 0)]
    assert found.benchmarks.num_grams.tolist() == [1, 0, 1, 0]
    assert found.coverage.tolist() == [1.0, 0.0, 1.0, 0.0]


def test_coverage_is_the_share_of_n_grams(tmp_path):
    item = " ".join(f"w{number}" for number in range(20))  # 8 n-grams
    documents = [" ".join(item.split()[:14]), " ".join(item.split()[1:15]), " ".join(item.split()[1:14])]
    found = search(tmp_path, [item, item], documents)
    assert found.coverage.tolist() == [3 / 8, 3 / 8]
    assert [found.passages.num_grams[row] for row in found.passages.longest()] == [2, 2, 1] * 2


TOKENIZERS = {
    "huggingface": lambda: make_tokenizer(byte_level_json()),
    "tiktoken": make_tiktoken,
    "sentencepiece": make_sentencepiece,
}


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_tokenizers_of_all_kinds(tmp_path, kind):
    tokenizer = TOKENIZERS[kind]()
    document = f"Some code before it. {PASSAGE} And some behind."
    found = search(tmp_path, [PASSAGE], ["nothing", document], tokenizer)
    assert pairs_of(found) == [(0, 1)]
    passage = found.passage(int(found.passages.longest()[0]))
    text = passage["of_document"]
    assert passage["of_item"] == PASSAGE.rstrip(".")
    assert words_of(PASSAGE) == words_of(text)
    assert len(text) < len(PASSAGE) + 4


@pytest.mark.parametrize("kind", ["huggingface", "sentencepiece"])
def test_no_passage_goes_over_a_special_token(tmp_path, kind):
    tokenizer = TOKENIZERS[kind]()
    first, second = (tokenizer.tokenize(part) for part in PASSAGE.split("waited"))
    middle = tokenizer.tokenize("waited")
    documents = [[*first, tokenizer.eod, *middle, *second], [*first, *middle, *second, tokenizer.eod, *first]]
    benchmarks = read_benchmarks([write_items(tmp_path / "items.jsonl", [PASSAGE])])
    prefix = write_corpus(tmp_path / "data", documents)
    found = find_contamination(benchmarks, {"web": (prefix,)}, tokenizer)
    assert pairs_of(found) == [(0, 1)]


def of_parts(monkeypatch, tmp_path, documents):
    """Returns benchmarks, and data of many parts."""
    monkeypatch.setattr(contamination, "_BLOCK_TOKENS", 500)
    monkeypatch.setattr(contamination, "_OVERLAP_TOKENS", 200)
    monkeypatch.setattr(contamination, "_BLOCKS_PER_PART", 2)
    monkeypatch.setattr(contamination, "_POLL_SECONDS", 0.01)
    benchmarks = read_benchmarks([write_items(tmp_path / "items.jsonl", [PASSAGE])])
    sources = {"web": (write_pair(tmp_path / "data", documents),), "code": (write_pair(tmp_path / "code", [PASSAGE]),)}
    return benchmarks, sources


def test_processes_share_a_search_and_a_killed_one_goes_on(tmp_path, monkeypatch):
    documents = [f"{'before it ' * (number % 7 * 40)}{PASSAGE if number % 3 == 0 else 'x'}" for number in range(60)]
    benchmarks, sources = of_parts(monkeypatch, tmp_path, documents)
    expected = find_contamination(benchmarks, sources, BYTES)
    search, folder, slow = contamination._search, str(tmp_path / "parts"), multiprocessing.get_context("fork").Process

    def slowly(*arguments):
        time.sleep(0.02)
        return search(*arguments)

    monkeypatch.setattr(contamination, "_search", slowly)
    killed = slow(target=find_contamination, args=(benchmarks, sources, BYTES), kwargs={"folder": folder})
    killed.start()
    while len(list(tmp_path.glob("parts/*/*.npy"))) < 3:
        time.sleep(0.001)
    killed.kill()
    killed.join()
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("parts/*/*.npy")}
    other = slow(target=find_contamination, args=(benchmarks, sources, BYTES), kwargs={"folder": folder})
    other.start()
    found = find_contamination(benchmarks, sources, BYTES, folder=folder)
    other.join()
    assert other.exitcode == 0
    assert found.num_tokens == expected.num_tokens
    for mine, theirs in zip(found.passages, expected.passages, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert kept.items() <= {path: path.stat().st_mtime_ns for path in tmp_path.glob("parts/*/*.npy")}.items()
    monkeypatch.setattr(contamination, "_search", lambda *_: 1 / 0)
    again = find_contamination(benchmarks, sources, BYTES, folder=folder)
    np.testing.assert_array_equal(again.coverage, expected.coverage)


def test_another_search_keeps_parts_of_its_own(tmp_path, monkeypatch):
    benchmarks, sources = of_parts(monkeypatch, tmp_path, [PASSAGE] * 9)
    folder = str(tmp_path / "parts")
    find_contamination(benchmarks, sources, BYTES, folder=folder)
    write_pair(tmp_path / "data", ["nothing of it"])
    assert find_contamination(benchmarks, sources, BYTES, folder=folder).passages.sources.tolist() == [1]
    others = read_benchmarks([str(tmp_path / "items.jsonl")], words=12)
    assert find_contamination(others, sources, BYTES, folder=folder).benchmarks is others
    assert len(list((tmp_path / "parts").iterdir())) == 3


def test_tokens_of_another_tokenizer_are_refused(tmp_path):
    write_pair(tmp_path / "data", [PASSAGE * 20], make_tokenizer(byte_level_json()))
    benchmarks = read_benchmarks([write_items(tmp_path / "items.jsonl", [PASSAGE])])
    with pytest.raises(ConfigError, match=r"data` has token \d+, but `byte` has 259 tokens"):
        find_contamination(benchmarks, {"web": (str(tmp_path / "data"),)}, BYTES)


def naive_words(text: str) -> list[str]:
    """An independent definition of words, on the whole text."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    spaced = " "
    for letter in folded:
        if unicodedata.category(letter) == "Cf" or letter in "'\u2018\u2019\u02bc":
            continue
        is_mark = unicodedata.category(letter)[0] == "M"
        if not letter.isalnum() and not is_mark:
            spaced += " "
        elif any(first <= ord(letter) <= last for first, last in ALONE):
            spaced += f" {letter} "
        elif not is_mark or spaced[-1] != " ":
            spaced += letter
    return spaced.split()


ALONE = [(0xE00, 0xEFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3005, 0x3007), (0x3040, 0x312F), (0x31A0, 0x31BF)]
ALONE += [(0x31F0, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x323AF)]


def naive_grams(text: str, size: int, least: int) -> list[tuple[str, ...]]:
    words = naive_words(text)
    if len(words) < size:
        return [tuple(words)] if len(words) >= least else []
    return [tuple(words[first : first + size]) for first in range(len(words) - size + 1)]


def ngram_index(texts, length=50, least=1):
    encoded = utf8_texts(texts)
    return NgramIndex(encoded.content, encoded.offsets, length=length, least=least)


def numbers_of(texts):
    """Returns the n-gram number of each text, equal where their words are."""
    index = ngram_index(texts)
    return [index.grams[first:last].tolist() for first, last in pairwise(index.gram_offsets.tolist())]


def test_words_of_all_code_points():
    points = [*range(0x80, 0x3500), *range(0xA000, 0xAD00), *range(0xD700, 0xD800), *range(0xF900, 0x11000)]
    points += [*range(0x1D000, 0x1F200), *range(0x2F800, 0x2FA20), *range(0xE0000, 0xE0200)]
    texts = [form.format(chr(point)) for point in points for form in ("a{}b", "{}", "e{}\u0301")]
    found = numbers_of([*texts, *(" ".join(naive_words(text)) for text in texts)])
    wrong = [text for text, ours, naive in zip(texts, found, found[len(texts) :], strict=False) if ours != naive]
    assert [ascii(text) for text in wrong] == []


LETTERS = st.one_of(
    st.characters(exclude_categories=("Cs",)), st.sampled_from("aAé' \n-.ßİ中がガ゛ｶﾞ각ᄀ각e\u0301\u0345क़्")
)


@given(st.lists(st.text(LETTERS, max_size=12), min_size=1, max_size=8))
def test_words_match_a_naive_split(texts):
    found = numbers_of([*texts, *(" ".join(naive_words(text)) for text in texts)])
    assert found[: len(texts)] == found[len(texts) :]


WORDS = st.sampled_from(["a", "b", "A!", "c'c", "CC", "é", "E\u0301", "中", "中中", "d-a", "\n", "ﬁ", "fi"])
TEXTS = st.lists(st.lists(WORDS, max_size=30).map(" ".join), min_size=1, max_size=5)


@given(items=TEXTS, documents=TEXTS, size=st.integers(2, 6), least=st.integers(1, 2), cut=st.booleans())
def test_results_match_naive_sets_of_words(items, documents, size, least, cut, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    documents = [document or " " for document in documents]
    with pytest.MonkeyPatch.context() as patch:
        if cut:
            patch.setattr(contamination, "_BLOCK_TOKENS", 40)
            patch.setattr(contamination, "_OVERLAP_TOKENS", 80)
        found = search(folder, items, documents, words=size, least_words=least)
    item_rows = [naive_grams(item, size, least) for item in items]
    of_documents = [naive_words(document) for document in documents]

    def stands(gram, words):
        return any(tuple(words[first : first + len(gram)]) == gram for first in range(len(words)))

    expected, shares = [], []
    for item, grams in enumerate(item_rows):
        found_in = [{number for number, words in enumerate(of_documents) if stands(gram, words)} for gram in grams]
        expected += [(item, document) for document in sorted(set().union(*found_in))]
        shares.append(sum(map(bool, found_in)) / max(1, len(grams)))
    assert pairs_of(found) == expected
    assert found.coverage.tolist() == pytest.approx(shares)


TOKENS = [*map(chr, range(128)), "a b ", "a long token of text"]
TOKEN_TABLE = BytesTable([b"\xff" if letter == "|" else letter.encode() for letter in TOKENS])


def tokens_of(document):
    return [TOKENS.index(letter) for letter in document]


PLAIN_TEXTS = st.lists(st.text(st.sampled_from("abA '-."), max_size=30), min_size=1, max_size=4)
DOCUMENTS = st.lists(st.lists(st.sampled_from([*"abA '-.|", "a b "]), max_size=40), min_size=1, max_size=4)


@given(PLAIN_TEXTS, DOCUMENTS, st.integers(1, 5), st.integers(1, 5))
def test_hits_match_lists_of_words(texts, documents, length, least):
    least = min(least, length)
    index = ngram_index(texts, length, least)
    numbers = {}
    for text, (first, last) in zip(texts, pairwise(index.gram_offsets.tolist()), strict=True):
        ngrams = ngrams_of(text, length, least)
        numbers |= dict(zip(index.grams[first:last].tolist(), ngrams, strict=True))
    assert len(set(numbers.values())) == len(numbers) == index.num_grams
    ends = np.cumsum([len(document) for document in documents])
    tokens = np.array([token for document in documents for token in tokens_of(document)], dtype=np.uint32)
    hits = index.search(tokens, ends, TOKEN_TABLE)
    for number, document in enumerate(documents):
        own = hits[hits[:, 0] == number]
        found = {(word, numbers[gram]) for _, word, _, _, gram in own.tolist()}
        assert found == hits_of("".join(document), set(numbers.values()))
        assert len(found) == len(own)
        for _, _, start, stop, gram in own.tolist():
            said = plain_words_of("".join(document[start:stop]))
            assert " ".join(numbers[gram]) in " ".join(said)


def test_tokens_longer_than_a_copy_and_words_longer_than_a_hash():
    index = ngram_index(["A long token of text, and averyverylongwordindeed"], 7, 1)
    document = ["a long token of text", *" and averyverylongwordindeed"]
    tokens = np.array(tokens_of(document), dtype=np.uint32)
    assert index.search(tokens, np.array([len(tokens)]), TOKEN_TABLE).tolist() == [[0, 7, 0, len(tokens), 0]]


def test_words_cut_at_a_block_end_do_not_match():
    index = ngram_index(["b c d"], 3, 1)
    tokens = np.array(tokens_of("b c d e"), dtype=np.uint32)
    ends = np.array([len(tokens)])
    assert len(index.search(tokens, ends, TOKEN_TABLE)) == 1
    assert len(index.search(tokens, ends, TOKEN_TABLE, cut=(True, False))) == 0
    assert len(index.search(tokens[:5], ends - 2, TOKEN_TABLE, cut=(False, True))) == 0
    assert len(index.search(tokens[:6], ends - 1, TOKEN_TABLE, cut=(False, True))) == 1


RUN = """\
order = 1
seed = 1
tokenizer = "byte"

[sources]
web = "web"
code = "code"

[[stages]]
sequence_length = 64
samples = 400
weights = { web = 3, code = 1 }
"""


@pytest.fixture
def folder(tmp_path):
    filler = [f"document {number} says nothing of interest to anybody. " * 6 for number in range(60)]
    write_pair(tmp_path / "web", [*filler[:30], f"It began. {PASSAGE} It ended.", *filler[30:]])
    write_pair(tmp_path / "code", filler[:20])
    (tmp_path / "run.toml").write_text(RUN)
    write_items(tmp_path / "exam.jsonl", ["an easy one", PASSAGE], field="question")
    write_items(tmp_path / "clean.jsonl", [" ".join(f"word{number}" for number in range(20))], field="question")
    return tmp_path


def run(capsys, folder, *words):
    words = [str(word).replace("F/", f"{folder}/") for word in words]
    status = cli.main(["contamination", *words, "--field", "question"])
    return status, *capsys.readouterr()


def test_a_run_names_the_steps_that_read_a_benchmark(capsys, folder):
    sizes = ("--global-batch-size", 8, "--save-interval", 2)
    files = ("F/exam.jsonl", "F/clean.jsonl", "--run", "F/run.toml")
    status, out, err = run(capsys, folder, *files, *sizes)
    assert (status, err) == (1, "")
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "clean.jsonl: clean, no step reads any passage" in out
    cli.main(["when", f"{folder}/run.toml", "--tokens", PASSAGE, "--global-batch-size", "8", "--json"])
    read = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    first = read[0]["step"]
    assert f"exam.jsonl: clean up to step {first:,}; 1 item read from there on" in out
    assert f"last clean checkpoint: step {first - first % 2:,}" in out or first < 2
    _, out, _ = run(capsys, folder, *files, *sizes, "--json")
    found = json.loads(out)
    assert found["items"][0]["first_position"] == read[0]["position"]
    assert found["items"][0]["num_positions"] == len({row["position"] for row in read})
    assert [row["first_step"] for row in found["benchmarks"]] == [first, None]
    assert [row["too_short"] for row in found["benchmarks"]] == [1, 0]
    _, out, _ = run(capsys, folder, *files, *sizes, "--until-position", read[0]["position"])
    assert f"exam.jsonl: clean, no step reads any passage before position {read[0]['position']:,}" in out


def test_deny_list_and_parquet_output(capsys, folder):
    parquet = pytest.importorskip("pyarrow.parquet")
    written = ("--deny", "F/denied.txt", "--output", "F/found.parquet")
    status, _, _ = run(capsys, folder, "F/exam.jsonl", "--run", "F/run.toml", *written)
    assert status == 1
    assert (folder / "denied.txt").read_text() == "web:30\n"
    [row] = parquet.read_table(folder / "found.parquet").to_pylist()
    assert (row["record"], row["source"], row["document"], row["coverage"]) == (2, "web", 30, 1.0)
    assert row["of_item"] == row["of_document"] == PASSAGE.rstrip(".")
    words = ["--documents-file", f"{folder}/denied.txt", "--from-position", "0", "--dry-run"]
    assert cli.main(["deny", f"{folder}/run.toml", *words]) == 0
    assert "web:30" in capsys.readouterr().out


def test_data_without_a_run(capsys, folder):
    def search_data(benchmark, *words):
        return run(capsys, folder, f"F/{benchmark}.jsonl", "--tokenizer", "byte", "--data", *words)

    status, out, _ = search_data("exam", "F/web", "F/code")
    assert status == 1
    assert "exam.jsonl:2  100% of 7 n-grams, 1 document" in out
    assert "  item                 When Zoë's café re-opened" in out
    assert search_data("exam", "F/code")[0] == 0
    status, _, err = search_data("exam", "F/code", "--field", "answer")
    assert status == 1
    assert "exam.jsonl` line 1: no key 'answer'; found 'question'\nhint: pass the fields" in err
    with IndexedDatasetBuilder(f"{folder}/cut.bin", dtype=np.int32) as builder:
        builder.add_document(BYTES.tokenize(PASSAGE), [40, len(BYTES.tokenize(PASSAGE)) - 40])
        builder.finalize(f"{folder}/cut.idx")
    status, _, err = search_data("exam", "F/cut")
    assert (status, "1 pair with documents of several sequences" in err) == (0, True)
    (folder / "none.jsonl").write_text("\n")
    status, _, err = search_data("none", "F/code")
    assert (status, "none.jsonl` has no items" in err) == (1, True)


def weights_of(prefix):
    return open_column(IndexedDataset(str(prefix)), "loss_weight").data


def test_the_weight_of_the_tokens_of_passages_is_0(tmp_path):
    found = search(
        tmp_path, ["a b c", "b c d", "x y z"], ["a b c d e", "nothing", "z! x y z x y z"], words=3, least_words=3
    )
    assert contamination.write_masks(found) == 7 + 5 + 5
    assert weights_of(tmp_path / "data").tolist() == [*[0] * 7, 1, 1, *[1] * 7, *[1] * 3, *[0] * 5, 1, *[0] * 5]
    facts = read_columns(IndexedDataset(str(tmp_path / "data")))["loss_weight"]
    assert (facts.dtype, facts.kind, facts.of, facts.padding) == ("uint8", "token", "label", 0)


def test_existing_weights_are_kept_outside_passages(tmp_path, monkeypatch):
    monkeypatch.setattr(contamination, "_BLOCK_TOKENS", 4)
    documents = ["a b c d e", "nothing"]
    prefix = write_pair(tmp_path / "data", documents)
    own = np.linspace(0.5, 4, num=16, dtype=np.float16)
    for column in ({"of": "token"}, {"kind": "document"}):
        rows = own if "of" in column else own[:2]
        add_column(prefix, "loss_weight", rows, dtype="float16", overwrite=True, **column)
        with pytest.raises(ConfigError, match="expected a number per label in column `loss_weight` of"):
            contamination.check_no_other_weights({"web": (prefix,)})
    add_column(prefix, "loss_weight", own, dtype="float16", of="label", overwrite=True, padding=2)
    benchmarks = read_benchmarks([write_items(tmp_path / "items.jsonl", ["b c d"])], words=3, least_words=3)
    contamination.check_no_other_weights({"web": (prefix,)})
    for _ in range(2):
        contamination.write_masks(find_contamination(benchmarks, {"web": (prefix,)}, BYTES))
        assert weights_of(prefix).tolist() == [*own[:2], *[0] * 5, *own[7:]]
    facts = read_columns(IndexedDataset(prefix))["loss_weight"]
    assert (facts.dtype, facts.padding) == ("float16", 2)


COLUMNS = '\n[samples]\ncolumns = ["loss_weight"]\n'


def test_a_run_does_not_train_on_passages(capsys, folder):
    ones = np.full(IndexedDataset(f"{folder}/code").num_tokens, 1)
    add_column(folder / "code", "loss_weight", ones, dtype="uint8", of="label")
    words = ("F/exam.jsonl", "--run", "F/run.toml", "--mask", "--parts", "F/parts")
    status, out, _ = run(capsys, folder, *words)
    size = len(PASSAGE.rstrip(".").encode())
    assert status == 1
    assert f"\n{size} tokens masked: " in out
    kept = {path: path.stat().st_mtime_ns for path in folder.glob("*.npy")}
    assert json.loads(run(capsys, folder, *words, "--json")[1])["num_masked"] == size
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*.npy")} == kept != {}
    (folder / "run.toml").write_text(RUN + COLUMNS)
    lock_run(str(folder / "run.toml"), consumed=0)
    opened = Run.open(str(folder / "run.toml"))
    samples, row = tokenloom.load(str(folder / "run.toml")), IndexedDataset(f"{folder}/web")[30].tolist()
    spans = [row for row in opened.occurrences({0: [30]}, stop=400).rows() if row["length"] > 1]
    assert spans
    start = bytes(row).index(PASSAGE[:10].encode())
    for span in spans:
        sample = samples[span["position"]]
        for place in range(span["slot"], min(span["slot"] + span["length"], 64) - 1):
            label = span["start"] + place - span["slot"] + 1  # as a token of the document
            assert sample["loss_mask"][place] == (not start <= label < start + size), (span, place)


def test_one_of_several_processes_masks_the_data(capsys, folder):
    words = ("F/exam.jsonl", "--data", "F/web", "F/code", "--tokenizer", "byte", "--mask", "--parts", "F/parts")
    fork = multiprocessing.get_context("fork")
    others = [fork.Process(target=run, args=(capsys, folder, *words)) for _ in range(3)]
    for other in others:
        other.start()
    for other in others:
        other.join()
        assert other.exitcode == 0
    assert (weights_of(folder / "web") == 0).sum() == len(PASSAGE.rstrip(".").encode())
    assert weights_of(folder / "code").all()


def test_wrong_usage_exits_with_2(capsys, folder):
    for words, message in (
        (("--tokenizer", "byte"), "give either --data or --run"),
        (("--data", "F/web", "--words", 7), "--words must be in [8, 50], got 7"),
        (("--data", "F/web", "--deny", "x"), "--deny and --save-interval need --run"),
    ):
        with pytest.raises(SystemExit) as stopped:
            run(capsys, folder, "F/exam.jsonl", *words)
        assert stopped.value.code == 2
        assert message in capsys.readouterr().err
