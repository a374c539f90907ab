"""Where documents of a run are read: what is found is what a look at every position finds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.run.changed_runs import changed_run
from tests.run.folders import HEAD, SOURCES, STAGE, chat_run, make_run, write_toml
from tests.run.megatrons import STAGE as MEGATRON_STAGE
from tests.run.megatrons import make, opened
from tests.run.small_runs import random_locks, tuples

from tokenloom.errors import ConfigError
from tokenloom.run.audit.trace import _walks_read
from tokenloom.run.held_out import are_held_out
from tokenloom.run.run import Run
from tokenloom.run.timeline import Timeline

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


@pytest.mark.parametrize(
    ("windows", "block"),
    [
        ("concat", 8),
        ("best_fit", 1024),
        pytest.param("concat", 1024, marks=pytest.mark.slow),
        pytest.param("best_fit", 8, marks=pytest.mark.slow),
    ],
)
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
        found = {
            number: alike
            for alike, numbers in _walks_read(timeline, source, start, stop).items()
            for number in np.concatenate(numbers).tolist()
        }
        for walk in np.unique(located.walks[located.sources == source]).tolist():
            assert found[walk] == replace(timeline.walk_of(source, walk), number=0, pass_number=0)


def test_a_run_is_asked_by_names(tmp_path):
    run = make_run(tmp_path)
    found = run.when("web:3", "code:5", "web:200", start=20, stop=400)
    expected = [*scanned(run, 0, [3, 200], start=20, stop=400), *scanned(run, 1, [5], start=20, stop=400)]
    assert rows_of(found) == sorted(expected, key=lambda row: (row[0], row[7]))
    assert len(run.when()) == 0
    assert len(run.occurrences({0: [3], 1: []})) == len(scanned(run, 0, [3]))
    with pytest.raises(ConfigError, match="did you mean `web`"):
        run.when("wab:3")


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


def test_documents_and_positions_that_there_are_not(tmp_path):
    run = make_run(tmp_path)
    for document in (250, -1):
        with pytest.raises(ConfigError, match=rf"document `web:{document}` out of range: the source has 250"):
            run.occurrences({0: [3, document]})
    with pytest.raises(ConfigError, match=r"start must be in \[0, 7\], got 8"):
        run.occurrences({0: [3]}, start=8, stop=7)
    assert len(run.occurrences({0: []})) == 0
    assert rows_of(run.occurrences({0: [3]}, stop=10**9)) == rows_of(run.occurrences({0: [3]}))


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


@pytest.mark.parametrize(
    ("sources", "stage"),
    [
        pytest.param('web = "web"\n', MEGATRON_STAGE.replace(", code = 0.3", ""), marks=pytest.mark.slow),
        (THREE, MEGATRON_STAGE),
    ],
)
def test_documents_are_found_where_they_stand(tmp_path, rng, sources, stage):
    run = opened(make(tmp_path, sources=sources, stage=stage))
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
