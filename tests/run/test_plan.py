"""What a run will have read: plans from its lock, histories before positions, and what a notebook shows of them."""

import os
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference.timeline import num_windows, run_through
from tests.rendering.cards import tables_of, tags_of
from tests.run.folders import MEGATRON_LENGTHS, make_megatron, make_run, opened
from tests.run.small_runs import Settings, lock, pair, random_locks, resolved_lock, segment, source, stage

from tokenloom.errors import ChangedFileError, ConfigError
from tokenloom.run.lock import LockedSource
from tokenloom.run.plan import closed_at, plan_of
from tokenloom.run.run import Run
from tokenloom.run.timeline import Timeline

WEB, CODE = source("web", 40), source("code", 10)


def finite(lock):
    """A lock whose last segment has an end."""
    last = lock.segments[-1]
    size = 60 if last.num_samples is None else last.num_samples
    return replace(lock, segments=(*lock.segments[:-1], replace(last, num_samples=size)))


def test_a_plan_of_one_stage():
    plan = plan_of(lock([WEB, CODE], [segment(0, 100, [3, 1])]))
    assert (plan.num_samples, plan.num_tokens) == (100, 1000)
    ((web, code),) = [each.readings for each in plan.segments]
    assert (web.source, web.weight, web.weights, web.num_samples, web.share) == ("web", 3, 4, 75, 0.75)
    assert (web.begun_before, web.begun_after, web.left_before, web.left_after) == (0, 2, 0, 5)
    assert (code.begun_before, code.begun_after, code.left_after, code.num_tokens) == (0, 3, 5, 250)
    assert (web.num_pass_ends, code.num_pass_ends) == (1, 2)
    assert [position // 40 for position in code.pass_ends] == [0, 1]
    assert [each.unseen_samples for each in plan.sources] == [(5,), (5,)]
    assert [each.difference for each in plan.sources] == [0, 0]


def test_tokens_behind_the_last_sample_of_a_walk_and_packs_as_slots():
    plan = plan_of(lock([LockedSource(name="web", pairs=(pair(47),))], [segment(0, 6, [1])]))
    (web,) = plan.sources
    assert (web.num_walks, web.offered_tokens, web.seen_tokens) == (2, 94, 60)
    assert (web.unseen_tokens, web.uncovered_tokens) == (20, 14)
    web = LockedSource(name="web", pairs=(pair(1000, packs=((10, 3),)),))
    (ledger,) = plan_of(lock([web], [segment(0, 4, [1])], windows="best_fit")).sources
    assert (ledger.offered_tokens, ledger.seen_tokens, ledger.unseen_tokens, ledger.uncovered_tokens) == (60, 40, 20, 0)


@pytest.mark.parametrize("follows", ["stop", "renormalise", "repeat"])
def test_a_cap_says_where_it_holds_and_what_follows(follows):
    sources = WEB, replace(CODE, max_passes=2)
    settings = Settings(stages=(stage(samples=99, weights={"web": 1, "code": 1}, on_exhausted=follows),))
    (cap,) = plan_of(resolved_lock(settings, sources)).caps
    assert (cap.source, cap.max_passes, cap.follows) == ("code", 2, follows)
    assert cap.position in (40, 41)
    (cap,) = plan_of(lock(sources, [segment(0, 9, [1, 1])])).caps
    assert (cap.position, cap.follows) == (None, None)


@given(random_locks())
def test_a_plan_counts_what_is_read(lock):
    lock = finite(lock)
    plan = plan_of(lock)
    found, streams = run_through(lock, plan.num_samples)
    counts = Counter(row[:2] for row in found)
    names = [each.name for each in lock.sources]
    for number, each in enumerate(plan.segments):
        assert sum(reading.num_samples for reading in each.readings) == each.num_samples
        for reading in each.readings:
            assert reading.num_samples == counts[number, names.index(reading.source)]
    for number, each in enumerate(plan.sources):
        stream = streams[number]
        seen = Counter(row[2] for row in found if row[1] == number)
        last = max((stream.walks[walk].pass_number for walk in seen), default=-1)
        begun = [(walk, one) for walk, one in enumerate(stream.walks) if one.pass_number <= last]
        whole = [one for _, one in begun if not one.first_token]
        assert (each.num_passes, each.num_walks, each.difference) == (last + 1, len(whole), 0)
        assert each.seen_tokens == sum(seen[walk] * one.sequence_length for walk, one in begun)
        if len(whole) < len(begun):  # of passes that several lengths share less is left than of each part
            continue
        windows = {
            walk: num_windows(lock, stream.source.pairs[one.first_pair : one.last_pair], one.sequence_length)
            for walk, one in begun
        }
        unseen = sum((windows[walk] - seen[walk]) * one.sequence_length for walk, one in begun)
        assert unseen == each.unseen_tokens


# --- histories ------------------------------------------------------------------------------------------------------
EIGHT, TWO = source("web", 8), source("code", 2)


def run_of(sources, segments, **settings) -> Run:
    return Run("run.toml", lock(sources, segments, **settings))


def planned_passes(made, position: int) -> list[Fraction]:
    passes = {each.name: Fraction(0) for each in made.sources}
    for planned in plan_of(closed_at(made, position)).segments if position else ():
        for reading in planned.readings:
            passes[reading.source] = reading.begun_after - Fraction(reading.left_after, reading.num_windows)
    return list(passes.values())


def test_samples_shares_and_passes_of_two_sources():
    history = run_of([EIGHT, TWO], [segment(0, 12, [2, 1])]).history([0, 3, 6, 12])
    assert history.sources == ("web", "code")
    assert history.samples.tolist() == [[0, 0], [2, 1], [4, 2], [8, 4]]
    assert history.passes.tolist() == [[0, 0], [0.25, 0.5], [0.5, 1], [1, 2]]
    np.testing.assert_allclose(history.shares, [[2 / 3, 1 / 3]] * 3)


def test_what_is_no_point_of_the_run_is_refused():
    run = run_of([EIGHT], [segment(0, 12, [1])])
    for positions, until in (([0, 13], None), (None, 13)):
        with pytest.raises(ConfigError, match="position 13 out of range: the run has 12 samples"):
            run.history(positions, until=until)
    for positions in ([3, 3], [0.5]):
        with pytest.raises(ConfigError, match="must be integers of at least 0, ascending without repeats"):
            run.history(positions)
    with pytest.raises(ConfigError, match="the run is endless, so its history needs an end"):
        run_of([EIGHT], [segment(0, None, [1])]).history()


@given(random_locks(), st.data())
def test_history_is_what_a_walk_through_the_run_comes_to(made, data):
    stop = made.segments[-1].start + (made.segments[-1].num_samples or 50)
    points = sorted(data.draw(st.sets(st.integers(0, stop), min_size=1, max_size=12)))
    history = Run("run.toml", made).history(points)
    read = Timeline(made).locate(np.arange(points[-1])).sources
    for row, point in enumerate(points):
        assert history.samples[row].tolist() == np.bincount(read[:point], minlength=len(made.sources)).tolist()
        assert history.passes[row].tolist() == pytest.approx([float(each) for each in planned_passes(made, point)])


@given(random_locks(), st.data())
def test_a_closed_run_reads_the_same_before_its_end(made, data):
    position = data.draw(st.integers(1, made.segments[-1].start + (made.segments[-1].num_samples or 50)))
    whole, closed = (Timeline(one).locate(np.arange(position)) for one in (made, closed_at(made, position)))
    assert np.array_equal(whole, closed)
    lengths = {one.sequence_length for one in made.segments}
    if len(lengths) == 1 and all(pair.since == 0 for one in made.sources for pair in one.pairs):
        counts = np.bincount(whole.sources, minlength=len(made.sources)).tolist()
        for one, count, passes in zip(made.sources, counts, planned_passes(made, position), strict=True):
            windows = sum(pair.num_tokens - pair.held_tokens for pair in one.pairs) - 1
            assert passes == Fraction(count, windows // max(lengths))


def test_samples_are_those_of_the_stored_order(tmp_path):
    run = opened(make_megatron(tmp_path))
    dataset = run.dataset()
    read = np.array([int(dataset.sample(position)["dataset_id"]) for position in range(300)])
    history = run.history([0, 1, 50, 300])
    for row, point in enumerate(history.positions.tolist()):
        assert history.samples[row].tolist() == np.bincount(read[:point], minlength=2).tolist()
    assert history.passes[-1, 0] == pytest.approx(history.samples[-1, 0] * 16 / sum(MEGATRON_LENGTHS["web"]))


def test_an_order_that_is_lost_meanwhile_is_not_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("tokenloom.order.cache._SMALL_BYTES", 0)  # arrays are mapped
    path = make_megatron(tmp_path)
    opened(path, path_to_cache=tmp_path / "cache").dataset()
    run = opened(path, path_to_cache=tmp_path / "cache")
    assert run.history([300]).samples.sum() == 300
    [array] = tmp_path.rglob("*-dataset_index.npy")
    os.truncate(array, 200)
    with pytest.raises(ChangedFileError, match="was truncated while it was mapped"):
        run.history([300])


# --- notebook cards -------------------------------------------------------------------------------------------------
def test_a_run_and_its_dataset_show_stages_and_sources_without_data(tmp_path):
    run = make_run(tmp_path)
    for path in tmp_path.glob("*.bin"):
        path.unlink()
    facts, stages, sources = tables_of(run._repr_html_())
    expected = {"identity": run.identity[:16], "samples": "600", "order": "1", "seed": "1234", "dataset": "gpt"}
    assert facts[1:] == list(map(list, expected.items()))
    assert stages == [["stage", "from position", "samples", "tokens"], ["stage 1", "0", "600", "16"]]
    assert [row[:3] for row in sources] == [["source", "pairs", "documents"], ["web", "2", "250"], ["code", "1", "140"]]
    assert tables_of(run.dataset()._repr_html_())[0][-1] == ["open pairs", "0"]
    endless = Run("run.toml", lock([source("web", 8)], [segment(0, None, [1])]))
    assert ["samples", "without end"] in tables_of(endless._repr_html_())[0]


def test_a_plan_shows_what_becomes_of_each_source():
    capped = source("code", 2, max_passes=2)
    plan = plan_of(lock([source("web", 8), capped], [segment(0, 12, [1, 1])]))
    facts, sources, caps = tables_of(plan._repr_html_())
    assert facts == [["samples", "12"], ["tokens", "120"]]
    assert [row[:4] for row in sources[1:]] == [["web", "1", "81", "60"], ["code", "3", "63", "60"]]
    assert caps[1][:2] == ["code", "2"]


def test_markup_in_names_is_text():
    name = '<script>alert("x")</script>&amp;'
    found = lock([source(name, 8)], [segment(0, 12, [1], stage=name)])
    plain = lock([source("a", 8)], [segment(0, 12, [1], stage="b")])
    assert tags_of(Run(name, found)._repr_html_()) == tags_of(Run("a", plain)._repr_html_())
    assert tags_of(plan_of(found)._repr_html_()) == tags_of(plan_of(plain)._repr_html_())
