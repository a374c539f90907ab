"""What is read where: spans are the tokens of samples, and documents and records are found where they are read."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.indexed import columns
from tests.run.data import write_lines_origins
from tests.run.folders import (
    HEAD,
    MEGATRON_STAGE,
    SOURCES,
    STAGE,
    changed_run,
    chat_run,
    make_megatron,
    make_run,
    opened,
    write_data,
    write_pair,
    write_toml,
)
from tests.run.small_runs import make_lock, make_pair, random_locks, tuples
from tests.support import CharacterTokenizer, StandInTokenizer, make_dataset, write_corpus, write_sentences

from tokenloom.blending.blended import BlendedDataset
from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.origins import RUNS, OriginFile
from tokenloom.inspect.texts import span_tokens
from tokenloom.order.block_shuffle import BlockShuffle
from tokenloom.run.audit.source_origins import SourceOrigins, resolve_names
from tokenloom.run.audit.trace import PairRows, _walks_read, trace_dataset
from tokenloom.run.held_out import are_held_out
from tokenloom.run.lock import LockedSource
from tokenloom.run.locking import lock_run
from tokenloom.run.run import Run
from tokenloom.run.settings import parse_name, record_name
from tokenloom.run.timeline import Timeline

LONG = '[[stages]]\nname = "long"\nsequence_length = 48\nsamples = 80\nweights = { web = 1, code = 1 }\n'
BEST_FIT = HEAD + 'windows = "best_fit"\n[samples]\ninter_document_masking = true\n'
MEGATRON = 'order = "megatron"\nseed = 1234\n'


def assert_tells_the_tokens(table, dataset, positions, **reading) -> None:
    """Compares traced tokens with those of samples, at their slots; all other places are padding."""
    assert list(dict.fromkeys(table.positions.tolist())) == list(dict.fromkeys(positions))
    tokens = span_tokens(table, **reading)
    for position in positions:
        sample = dataset.sample(position)
        read = np.array([*sample["tokens"].tolist(), int(sample["labels"][-1])])
        filled = 0
        for row in np.flatnonzero(table.positions == position).tolist():
            slot, length = int(table.slots[row]), int(table.lengths[row])
            filled = slot + length
            if table.denied[row]:
                assert not sample["loss_mask"][slot : slot + length - 1].any()
                assert len(tokens[row]) == 0
            else:
                assert read[slot:filled].tolist() == tokens[row].tolist()
        assert not sample["loss_mask"][filled:].any()


def test_tokens_of_a_run(tmp_path, rng):
    run = make_run(tmp_path, STAGE + LONG)
    dataset = run.dataset()
    positions = rng.integers(0, 680, size=60).tolist()
    positions = list(dict.fromkeys([*positions, 599, 600]))
    table = run.trace(positions)
    assert_tells_the_tokens(table, dataset, positions)
    places = {position: dataset.place(position) for position in positions}
    for row in table.rows():
        place = places[row["position"]]
        assert (row["source"], row["stage"], row["pass"]) == (place.source, place.stage, place.pass_number)
        assert (row["walk"], row["window"], row["run"]) == (place.walk, place.window, run.identity)
    chosen = [positions[3], positions[0], positions[3]]
    counts = [int((table.positions == position).sum()) for position in chosen]
    assert run.trace(chosen).positions.tolist() == np.repeat(chosen, counts).tolist()


def test_sources_that_grow_and_documents_that_are_denied(tmp_path):
    run = make_run(tmp_path)
    before = run.trace(range(200))
    write_pair(tmp_path / "web-9", 60, first=10**6, seed=3)
    denied = '[[denied]]\ndocuments = ["web:3", "web:4", "web:5", "web:130", "web:260", "code:0"]\nfrom = 300\n'
    lock_run(write_toml(tmp_path, STAGE + denied), consumed=200)
    run = Run.open(tmp_path / "run.toml")
    table = run.trace(range(600))
    assert_tells_the_tokens(table, run.dataset(), range(600))
    assert list(table.take(table.positions < 200).rows()) == [row | {"run": run.identity} for row in before.rows()]
    gone = table.take(table.denied)
    assert (table.documents >= 0).all()
    assert int(gone.positions.min()) >= 300
    assert {row["pair"].rpartition("/")[2] for row in table.rows()} == {"web-0", "web-1", "web-9", "code"}
    listed = {("web", number) for number in (3, 4, 5, 130, 260)} | {("code", 0)}
    assert {(row["source"], row["document"]) for row in gone.rows()} <= listed
    passes = [run.dataset().place(k).pass_number for k in table.positions.tolist()]
    assert table.passes.tolist() == passes


def test_packs_of_a_run(tmp_path):
    run = make_run(tmp_path, STAGE.replace("16", "48") + LONG.replace("48", "32"), head=BEST_FIT)
    assert_tells_the_tokens(run.trace(range(590, 650)), run.dataset(), range(590, 650))


def test_fill_in_the_middle_is_traced_before_it_is_rearranged(tmp_path):
    fim = "[samples]\nfim_rate = 0.9\nfim_spm_rate = 0.5\n"
    fim += "fim_extra_tokens = { prefix = 50001, middle = 50002, suffix = 50003 }\n"
    (tmp_path / "plain").mkdir()
    write_data(tmp_path)
    run = Run.open(write_toml(tmp_path, head=HEAD + 'dataset = "fim"\n' + fim), tokenizer=CharacterTokenizer())
    plain = make_run(tmp_path / "plain")
    table = run.trace(range(50))
    assert_tells_the_tokens(table, plain.dataset(), range(50))
    assert (run.dataset().batch(range(50))["tokens"] == 50002).any()


def test_what_is_held_out(tmp_path):
    write_data(tmp_path)
    sources = '[sources]\nweb = { data = "web-*", holdout = "10%" }\ncode = "code"\n'
    run = Run.open(write_toml(tmp_path, sources=sources))
    held = run.holdout()
    table = trace_dataset(held, range(len(held)))
    assert_tells_the_tokens(table, held, range(len(held)))
    trained = run.trace(range(600))
    assert not {*tuples(table.sources, table.documents)} & {*tuples(trained.sources, trained.documents)}


def assert_tells_conversations(table, dataset, positions) -> None:
    """Compares traced tokens with those of rows of conversations, whose inputs begin at their slots."""
    tokens = span_tokens(table)
    for position in positions:
        sample = dataset.sample(position)
        rows = np.flatnonzero(table.positions == position).tolist()
        assert rows
        for row in rows:
            slot, inputs = int(table.slots[row]), tokens[row].tolist()
            found = sample["tokens"][slot : slot + len(inputs)].tolist()
            assert found == inputs[: len(found)]
            assert len(found) >= len(inputs) - 1
            assert sample["position_ids"][slot] == 0


@pytest.mark.parametrize(("kind", "head"), [("sft", HEAD), ("varlen", MEGATRON)], ids=["computed", "megatron"])
def test_conversations_of_a_run(tmp_path, kind, head):
    samples = "[samples]\ncontext_parallel_size = 2\n" if kind == "sft" else ""
    run = chat_run(tmp_path, kind, head=head, samples=samples)
    assert_tells_conversations(run.trace(range(0, 600, 5)), run.dataset(), range(0, 600, 5))


def test_a_run_in_the_order_of_the_reference(tmp_path):
    write_data(tmp_path)
    path = write_toml(tmp_path, head=MEGATRON)
    run = Run.open(path, tokenizer=StandInTokenizer(), path_to_cache=tmp_path / "cache")
    dataset = run.dataset()
    assert isinstance(dataset, BlendedDataset)
    positions = range(0, 600, 7)
    table = run.trace(positions)
    assert_tells_the_tokens(table, dataset, positions)
    rows = list(table.rows())
    assert {row["source"] for row in rows} == {"web", "code"}
    second = [row for row in rows if row["pair"].endswith("web-1")]
    assert second
    assert all(row["document"] == row["row"] + 120 for row in second)
    assert {(row["walk"], row["stage"], row["run"]) for row in rows} == {(None, "stage 1", run.identity)}
    assert max(row["pass"] for row in rows) > 0


BLOCKS = BlockShuffle(block_bytes=40, window_blocks=2)
POLICIES = {"packs": {"window_policy": "best_fit"}, "blocks": {"block_shuffle": BLOCKS}}
DOCUMENTS = [[10 * number + token for token in range(1 + number % 7)] for number in range(1, 41)]


@pytest.mark.parametrize("settings", POLICIES.values(), ids=POLICIES)
def test_datasets_without_a_run(tmp_path, settings):
    prefix = write_corpus(tmp_path / "corpus", DOCUMENTS)
    dataset = make_dataset(prefix, num_samples=100, sequence_length=8, **settings)
    table = trace_dataset(dataset, range(len(dataset)))
    tokens = span_tokens(table)
    for position, spans in enumerate(map(dataset.spans, range(len(dataset)))):
        rows = np.flatnonzero(table.positions == position)
        assert table.documents[rows].tolist() == spans.documents.tolist()
        assert table.slots[rows].tolist() == spans.boundaries[:-1].tolist()
        read = np.concatenate([tokens[row] for row in rows]).tolist()
        assert read[:8] == dataset.sample(position)["tokens"][: len(read)].tolist()
    row = next(table.rows())
    assert (row["source"], row["pair"], row["stage"], row["run"]) == (prefix, prefix, None, None)


# --- occurrences ----------------------------------------------------------------------------------------------------
Row = tuple[int, ...]


def scanned(run: Run, source: int, documents, *, start: int = 0, stop: int | None = None) -> list[Row]:
    """Returns the rows of documents among all that is traced."""
    last = run.num_samples if stop is None else stop
    table = run.trace(np.arange(start, last))
    return rows_of(table.take((table.sources == source) & np.isin(table.documents, list(documents))))


def rows_of(table) -> list[Row]:
    """Returns position, document, start, length, whether denied, walk, pass, slot, segment of each row."""
    names = ("positions", "documents", "starts", "lengths", "denied", "walks", "passes", "slots", "segments")
    return tuples(*(getattr(table, name) for name in names))


SLOW = [pytest.param(*each, marks=pytest.mark.slow) for each in (("concat", 1024), ("best_fit", 8))]


@pytest.mark.parametrize(("windows", "block"), [("concat", 8), ("best_fit", 1024), *SLOW])
def test_what_is_found_is_what_a_look_at_every_position_finds(tmp_path, rng, windows, block):
    head = HEAD + f'windows = "{windows}"\nmixing_block = {block}\n'
    run = changed_run(tmp_path, rng, head=head)
    for source, locked in enumerate(run.lock.sources):
        everything = range(sum(pair.num_documents for pair in locked.pairs))
        expected = scanned(run, source, everything)
        assert rows_of(run.occurrences({source: everything})) == expected
        for document in rng.choice(len(everything), size=6).tolist():
            table = run.occurrences({source: [document]})
            assert rows_of(table) == [row for row in expected if row[1] == document]
        first, last = sorted(rng.integers(0, run.num_samples, size=2).tolist())
        inside = [row for row in expected if first <= row[0] < last]
        assert rows_of(run.occurrences({source: everything}, start=first, stop=last)) == inside
    assert rows_of(run.occurrences({0: [5, 3, 5]})) == scanned(run, 0, [3, 5])
    dataset, everything = run.dataset(), run.occurrences({0: range(250)})
    for position in rng.choice(run.num_samples, size=20).tolist():  # as the samples themselves have it
        spans = dataset.spans(position) if dataset.place(position).source == "web" else None
        here = everything.take(everything.positions == position)
        documents = [] if spans is None else [d if d >= 0 else -1 - d for d in spans.documents.tolist()]
        assert here.documents.tolist() == [document for document in documents if document < 250]


@given(random_locks(), st.data())
def test_all_walks_of_positions_are_searched_as_they_are_cut(made, data):
    timeline = Timeline(made)
    end = made.segments[-1].start + (made.segments[-1].num_samples or 90)
    start = data.draw(st.integers(0, end - 1))
    stop = data.draw(st.integers(start + 1, end))
    located = timeline.locate(np.arange(start, stop))
    for source in range(len(made.sources)):
        searched = _walks_read(timeline, source, start, stop)
        found = {number: alike for alike, numbers in searched.items() for number in np.concatenate(numbers).tolist()}
        for walk in np.unique(located.walks[located.sources == source]).tolist():
            assert found[walk] == replace(timeline.walk_of(source, walk), number=0, pass_number=0)


@pytest.mark.parametrize("kind", ["sft", "varlen"])
def test_conversations(tmp_path, kind):
    run = chat_run(tmp_path, kind)
    for source, count in ((0, 130), (1, 60)):
        expected = scanned(run, source, range(count))
        assert rows_of(run.occurrences({source: range(count)})) == expected
        assert {row[2] for row in expected} == {0}


def test_an_endless_run_is_searched_up_to_somewhere(tmp_path):
    run = make_run(tmp_path, STAGE.replace("samples = 600\n", ""))
    with pytest.raises(ConfigError, match="the run is endless, so an end is needed"):
        run.occurrences({0: [3]})
    assert rows_of(run.occurrences({0: [3]}, stop=700)) == scanned(run, 0, [3], stop=700)
    late = run.occurrences({0: [3]}, start=10**7, stop=10**7 + 900)
    assert len(late)
    assert rows_of(late) == scanned(run, 0, [3], start=10**7, stop=10**7 + 900)
    with pytest.raises(ConfigError, match=r"source 'web' would be read .* the maximum is 2\*\*22"):
        run.occurrences({0: [3]}, stop=10**12)


def test_what_is_held_out_is_never_read(tmp_path):
    run = make_run(tmp_path, sources=SOURCES.replace('"web-*"', '{ data = "web-*", holdout = "20%" }'))
    held = are_held_out(run.lock, 0, np.arange(250))
    assert held.sum() == 50
    assert not len(run.occurrences({0: np.flatnonzero(held)}))
    found = run.occurrences({0: range(250)})
    assert set(found.documents.tolist()) == set(np.flatnonzero(~held).tolist())
    read = {d for k in range(len(run.holdout("web"))) for d in run.holdout("web").spans(k).documents.tolist()}
    assert read <= set(np.flatnonzero(held).tolist())


def test_a_run_is_asked_by_names_for_documents_and_positions_that_there_are(tmp_path):
    run = make_run(tmp_path)
    for document in (250, -1):
        with pytest.raises(ConfigError, match=rf"document `web:{document}` out of range: the source has 250"):
            run.occurrences({0: [3, document]})
    with pytest.raises(ConfigError, match=r"start must be in \[0, 7\], got 8"):
        run.occurrences({0: [3]}, start=8, stop=7)
    assert len(run.occurrences({0: []})) == 0
    assert rows_of(run.occurrences({0: [3]}, stop=10**9)) == rows_of(run.occurrences({0: [3]}))
    found = run.when("web:3", "code:5", "web:200", start=20, stop=400)
    expected = [*scanned(run, 0, [3, 200], start=20, stop=400), *scanned(run, 1, [5], start=20, stop=400)]
    assert rows_of(found) == sorted(expected, key=lambda row: (row[0], row[7]))
    assert (len(run.when()), len(run.occurrences({0: [3], 1: []}))) == (0, len(scanned(run, 0, [3])))
    with pytest.raises(ConfigError, match="did you mean `web`"):
        run.when("wab:3")


def test_a_denial_marks_what_comes_after_it(tmp_path):
    make_run(tmp_path)
    denied = '[[denied]]\ndocuments = ["web:3"]\nfrom = 300\n[[denied]]\ndocuments = ["web:3"]\nfrom = 500\n'
    (tmp_path / "run.lock").unlink()
    run = Run.open(write_toml(tmp_path, STAGE + denied))
    table = run.occurrences({0: [3]})
    assert (table.denied == (table.positions >= 300)).all()
    assert table.denied.any()
    assert rows_of(table) == scanned(run, 0, [3])


THREE = 'web = ["web", "news"]\ncode = "code"\n'


ONE = pytest.param('web = "web"\n', MEGATRON_STAGE.replace(", code = 0.3", ""), marks=pytest.mark.slow)


@pytest.mark.parametrize(("sources", "stage"), [ONE, (THREE, MEGATRON_STAGE)])
def test_documents_are_found_where_they_stand(tmp_path, rng, sources, stage):
    run = opened(make_megatron(tmp_path, sources=sources, stage=stage))
    dataset = run.dataset()
    everything = run.trace(np.arange(len(dataset)))
    for source, locked in enumerate(run.lock.sources):
        count = sum(pair.num_documents for pair in locked.pairs)
        own = everything.take(everything.sources == source)
        assert rows_of(run.occurrences({source: range(count)})) == rows_of(own)
        for documents in ([0], [count - 1], rng.choice(count, size=5).tolist()):
            expected = own.take(np.isin(own.documents, documents))
            assert rows_of(run.occurrences({source: documents})) == rows_of(expected)
            late = expected.take((expected.positions >= 20) & (expected.positions < 70))
            assert rows_of(run.occurrences({source: documents}, start=20, stop=70)) == rows_of(late)


# --- records of documents, and documents by their names -------------------------------------------------------------
A = OriginFile(path="data/crawl/0007.jsonl", num_bytes=100, version="5", unit="line", num_records=20)
B = OriginFile(path="data/books/0007.jsonl", num_bytes=100, unit="line")
C = OriginFile(path="s3://bucket/table.parquet", num_bytes=100, unit="row", num_records=9)


def put_origins(prefix: str, files, runs) -> None:
    """Writes origins beside a pair."""
    columns.put_origins(prefix, files, [np.array(runs, dtype=RUNS)])


def source_of(name: str, *prefixes: str) -> LockedSource:
    counts = [len(IndexedDataset(prefix)) for prefix in prefixes]
    pairs = (make_pair(prefix, num_documents=count) for prefix, count in zip(prefixes, counts, strict=True))
    return LockedSource(name=name, pairs=tuple(pairs))


@pytest.fixture
def prefixes(tmp_path) -> list[str]:
    """Three pairs of four documents: of A and B, of B alone, without origins."""
    found = [write_corpus(tmp_path / name, [[1, 2]] * 4) for name in ("one", "two", "three")]
    put_origins(found[0], [A, B], [(0, 3, 2), (-1, 0, 1), (1, 8, 1)])
    put_origins(found[1], [C, B], [(1, 9, 1), (0, 2, 3)])
    return found


def test_documents_are_found_in_files_that_are_there(prefixes):
    origins = SourceOrigins(make_lock(source_of("web", *prefixes)))
    files, records = origins.locate(0, np.array([11, 7, 0, 1, 2, 3, 4]))
    names = [origins.file_names[file] if file >= 0 else None for file in files]
    assert names == [None, C.path, A.path, A.path, None, B.path, B.path]
    assert records.tolist() == [0, 4, 3, 4, 0, 8, 9]
    assert (files.dtype, records.dtype) == (np.int32, np.int64)
    assert (origins.files, origins.missing) == ([A, B, C], [prefixes[2]])
    with pytest.raises(ConfigError, match=r"2 input files end with '0007.jsonl'"):
        origins.documents_of("0007.jsonl", 1)
    with pytest.raises(ConfigError, match=r"(?s)'007.jsonl' is not one of the 3 input files.*data/books/0007.jsonl"):
        origins.documents_of("007.jsonl", 1)
    for record in (0, 21):
        with pytest.raises(ConfigError, match=rf"record {record} of `.*0007.jsonl` out of range: records are 1 to 20"):
            origins.documents_of(A.path, record)
    assert origins.documents_of(B.path, 10**9) == []  # nobody knows how many it has


def test_records_are_found_in_documents(prefixes):
    origins = SourceOrigins(make_lock(source_of("code", prefixes[2]), source_of("web", *prefixes[:2])))
    assert origins.documents_of("crawl/0007.jsonl", 4) == [(1, 1)]
    assert origins.documents_of("./crawl/0007.jsonl", 5) == []
    assert origins.documents_of("data/books/0007.jsonl", 8) == [(1, 3)]
    assert origins.documents_of("books/0007.jsonl", 9) == [(1, 4)]
    assert (origins.documents_of("table.parquet", 4), origins.missing) == ([(1, 7)], [prefixes[2]])


def test_sequences_of_documents_have_the_record_of_these(tmp_path):
    prefix = write_sentences(tmp_path / "sentences", [[[1], [2], [3]], [], [[4], [5]]])
    put_origins(prefix, [A], [(0, 1, 3)])
    origins = SourceOrigins(PairRows.of([[("other", 10), (prefix, 5)]]))
    assert origins.locate(0, np.arange(10, 15))[1].tolist() == [1, 1, 1, 3, 3]
    origins = SourceOrigins(PairRows.of([[(prefix, 5)]]))
    assert origins.documents_of("0007.jsonl", 1) == [(0, 0), (0, 1), (0, 2)]
    assert origins.documents_of("0007.jsonl", 2) == []
    assert origins.documents_of("0007.jsonl", 3) == [(0, 3), (0, 4)]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("web:0", ("web", 0)), (" web:12345\n", ("web", 12345)), ("a:b:7", ("a:b", 7)), ("web:007", ("web", 7)),
        ("crawl/0007.jsonl:88", ("crawl/0007.jsonl", 88)), ("s3://b/x.parquet:1", ("s3://b/x.parquet", 1)),
    ],
)  # fmt: skip
def test_names(text, name):
    assert parse_name(text, ["web", "a:b"]) == name


@pytest.mark.parametrize(
    "text", ["", "web", "web:", ":1", "web:-1", "web:1.0", "web:1_0", "web:\u0661", f"web:{9**40}", "a/b.jsonl"]
)
def test_what_is_no_name(text):
    with pytest.raises(ConfigError, match=r"document name must be like `web:12345` or `crawl/0007\.jsonl:88`, got "):
        parse_name(text, ["web"])


def test_a_typing_error():
    with pytest.raises(ConfigError, match=r"(?s)'wbe:1': the run has no source 'wbe'.*did you mean `web`"):
        parse_name("wbe:1", ["web"])
    with pytest.raises(ConfigError, match=r"(?s)'lines:1'.*for an input file, write `./lines:1`"):
        parse_name("lines:1", ["web"])


@pytest.fixture
def sources(tmp_path):
    """Source `web` of ten documents without origins, `code` of six: lines 1, 2, 3, 5, 5, 6 of a file of seven."""
    web, code = (write_corpus(tmp_path / name, [[1, 2]] * count) for name, count in (("web", 10), ("code", 6)))
    write_lines_origins(code, [(0, 1, 3), (0, 5, 1), (0, 5, 2)], path="/data/raw/code.jsonl", num_records=7)
    return [source_of("web", web), source_of("raw/code.jsonl", code)]


def test_records_are_the_documents_made_of_them_and_a_source_comes_before_a_file(sources):
    found = resolve_names([("code.jsonl", 2), ("web", 9), ("data/raw/code.jsonl", 5)], sources)
    assert found.by_source == ((0, (9,)), (1, (1, 3, 4)))
    assert found.of_records == {(1, 1), (1, 3), (1, 4)}
    assert found.empty_records == ()
    empty = resolve_names([("code.jsonl", 4), ("code.jsonl", 7)], sources).empty_records
    assert empty == ("code.jsonl:4", "code.jsonl:7")
    assert resolve_names([], sources).by_source == ()
    assert resolve_names([("raw/code.jsonl", 1)], sources).by_source == ((1, (1,)),)
    assert resolve_names([("./raw/code.jsonl", 1)], sources).by_source == ((1, (0,)),)
    names = [source.name for source in sources]
    assert record_name("raw/code.jsonl:1", names) == "./raw/code.jsonl:1"
    assert record_name("lines:7", names) == "./lines:7"
    assert record_name(" /raw/code.jsonl:1", names) == "/raw/code.jsonl:1"


@pytest.mark.parametrize(
    ("name", "number", "message"),
    [
        ("web", 10, "document `web:10` out of range: the source has 10"),
        ("code.jsonl", 8, "`code.jsonl:8`: record 8 of `/data/raw/code.jsonl` out of range: records are 1 to 7"),
        ("other.jsonl", 1, "`other.jsonl:1`: 'other.jsonl' is not one of the 1 input files"),
    ],
)
def test_what_is_not_there(sources, name, number, message):
    with pytest.raises(ConfigError, match=message):
        resolve_names([(name, number)], sources)
    with pytest.raises(ConfigError, match=r"(?s)none of 1 pairs records them.*PREFIX.origins.npy"):
        resolve_names([("other.jsonl", 1)], sources[:1])
