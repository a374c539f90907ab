"""Runs that change while they run: what was read stays, or the change is refused; and how two runs differ."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference.timeline import run_through
from tests.run.small_runs import (
    LENGTHS,
    Settings,
    lock,
    pair,
    random_sources,
    resolved_lock,
    segment,
    source,
    stage,
    tuples,
)
from tests.support import flat

from tokenloom import ConfigError
from tokenloom.run.changes import check_past, differences, first_moved, lock_changes
from tokenloom.run.digest import content_of, order_digest, run_identity
from tokenloom.run.lock import LockedDenial, LockedSource, RunLock
from tokenloom.run.source_progress import Walk
from tokenloom.run.timeline import Timeline

MOST = 60
"""Positions of an endless stage that tests look at."""


def end_of(lock: RunLock) -> int:
    last = lock.segments[-1]
    return last.start + (MOST if last.num_samples is None else last.num_samples)


def what_is_read(lock: RunLock, stop: int) -> list[tuple]:
    """All that is known of the sample at each position, found one by one by the twin."""
    found, streams = run_through(lock, stop)
    rows = []
    for position, (number, which, walk, window) in enumerate(found):
        walked = streams[which].walks[walk]
        data = [content_of(pair) for pair in lock.sources[which].pairs[walked.first_pair : walked.last_pair]]
        denials = [denial.documents for denial in lock.denials if denial.start <= position]
        denied = sorted(flat(documents for of, documents in flat(denials) if of == which))
        place = lock.sources[which].name, lock.segments[number].sequence_length, walk, window
        settings = lock.order, lock.seed, lock.documents, lock.windows, lock.dataset, dict(lock.samples)
        rows.append((settings, place, walked.first_pair, data, denied))
    return rows


def walks_of(lock: RunLock, stop: int) -> list[Walk]:
    """The walks of the first positions."""
    timeline = Timeline(lock)
    found = timeline.locate(np.arange(stop))
    return [timeline.walk_of(*of) for of in sorted({*tuples(found.sources, found.walks)})]


def shares_of(draw, names: list[str]) -> dict[str, int]:
    weights = {name: draw(st.integers(0, 5)) for name in names}
    return weights if any(weights.values()) else dict.fromkeys(names, 1)


def random_stage(draw, name: str, names: list[str]):
    weights = {name: weight for name, weight in shares_of(draw, names).items() if weight}
    size = draw(st.sampled_from(["samples", "passes"]))
    given = {"samples": draw(st.integers(1, 50)), "weights": weights}
    if size == "passes":
        given = {"passes": {name: draw(st.sampled_from(["0.5", 1, 2])) for name in weights}}
    ends = draw(st.sampled_from(["stop", "renormalise", "repeat"]))
    return stage(name, length=draw(st.sampled_from(LENGTHS)), on_exhausted=ends, **given)


def sized(one, start: int, lock: RunLock, size: int | None):
    """A stage with a number of samples instead of what it said; its weights stay what they were."""
    if one.passes is not None:
        found = max((each.weights for each in lock.segments if each.stage == one.name), key=len)
        weights = tuple((lock.sources[number].name, weight) for number, weight in found)
        one = replace(one, passes=None, weights=weights)
    return replace(one, samples=size, tokens=None)


@st.composite
def runs(draw) -> tuple[Settings, tuple[LockedSource, ...]]:
    sources = draw(random_sources([]))
    sources = tuple(replace(each, max_passes=draw(st.none() | st.integers(1, 4))) for each in sources)
    names = [each.name for each in sources]
    stages = [random_stage(draw, f"stage {number}", names) for number in range(draw(st.integers(1, 3)))]
    if draw(st.booleans()) and stages[-1].passes is None:
        stages[-1] = replace(stages[-1], samples=None)
    block = draw(st.sampled_from([1, 2, 8, 16, 40]))
    return Settings(stages=tuple(stages), mixing_block=block, seed=draw(st.integers(0, 2**40))), sources


def position_in_stage(lock: RunLock, consumed: int) -> tuple[str, int] | None:
    """The stage that was read last, and its start."""
    begun = [each for each in lock.segments if each.start < consumed]
    if not begun:
        return None
    return begun[-1].stage, min(each.start for each in begun if each.stage == begun[-1].stage)


CHANGES = ("longer", "shorter", "endless", "weights", "stage", "source", "grow", "cap", "deny", "nothing", "drop")


def changed(draw, settings: Settings, sources, old: RunLock, consumed: int, count: int):
    """A permitted change, from what was consumed on: settings, sources and denials."""
    stages, denials = list(settings.stages), old.denials
    current = position_in_stage(old, consumed)
    number = next((place for place, each in enumerate(stages) if current and each.name == current[0]), 0)
    start = current[1] if current else 0
    kind = draw(st.sampled_from(CHANGES))
    names = [each.name for each in sources]
    if kind in ("longer", "shorter", "endless", "weights"):
        known = [each for each in old.segments if each.stage == stages[number].name]
        if (known and known[-1].num_samples is not None) or kind in ("shorter", "weights"):
            least = max(1, consumed - start)
            more = {"longer": draw(st.integers(0, 80)), "shorter": draw(st.integers(0, 9))}
            size = least + more.get(kind, 0)
            stages[number] = sized(stages[number], start, old, None if kind == "endless" else size)
        later = [random_stage(draw, f"changed {count}", names)] if kind == "weights" else []
        stages = stages[: number + 1] + later if kind in ("endless", "weights") else stages
    elif kind == "drop":
        stages = stages[: number + 1]
    elif kind in ("stage", "source"):
        if kind == "source":
            one = LockedSource(name=f"added {count}", pairs=(pair(draw(st.integers(11, 90)), since=consumed),))
            sources = (*sources, one)
            names.append(sources[-1].name)
        if stages[-1].is_endless:
            stages[-1] = replace(stages[-1], samples=max(1, consumed - start) + draw(st.integers(0, 30)))
        stages.append(random_stage(draw, f"changed {count}", names))
    elif kind in ("grow", "cap"):
        which = draw(st.integers(0, len(sources) - 1))
        one = sources[which]
        if kind == "cap":
            one = replace(one, max_passes=draw(st.none() | st.integers(1, 5)))
        else:
            one = replace(one, pairs=(*one.pairs, pair(draw(st.integers(0, 120)), since=consumed, name=f"new {count}")))
        sources = (*sources[:which], one, *sources[which + 1 :])
    elif kind == "deny":
        denials = (*denials, LockedDenial(start=consumed, documents=((0, (count,)),)))
    return kind, replace(settings, stages=tuple(stages)), sources, denials


@given(runs(), st.data())
def test_no_permitted_change_moves_what_was_read(run, data):
    settings, sources = run
    lock, consumed, identity = resolved_lock(settings, sources), 0, None
    for count in range(4):
        if not lock.segments:
            return  # caps that let nothing be read
        consumed = data.draw(st.integers(consumed, max(consumed, min(end_of(lock), consumed + 70))), label="consumed")
        later = data.draw(st.integers(consumed, max(consumed, end_of(lock))), label="later")
        assert resolved_lock(settings, sources, lock, later, denials=lock.denials).segments == lock.segments
        kind, settings, sources, denials = changed(data.draw, settings, sources, lock, consumed, count)
        changed_lock = resolved_lock(settings, sources, lock, consumed, denials=denials)
        if consumed:
            assert what_is_read(changed_lock, consumed) == what_is_read(lock, consumed), kind
            assert walks_of(changed_lock, consumed) == walks_of(lock, consumed), kind
            assert order_digest(changed_lock, consumed) == order_digest(lock, consumed), kind
            identity = identity or run_identity(lock)
            assert run_identity(changed_lock) == identity
            check_past(lock, changed_lock, consumed)
        lock = changed_lock
    if lock.segments:
        stop = end_of(lock)
        assert tuples(*Timeline(lock).locate(np.arange(stop))) == run_through(lock, stop)[0]


def test_a_cap_that_held_back_a_source_may_go_again():
    stages = (
        stage("short", length=5, samples=10, weights={"a": 3, "b": 4}),
        stage("middle", length=7, samples=32, weights={"a": 4, "b": 1}),
        stage("long", samples=38, weights={"a": 1, "b": 2}, on_exhausted="renormalise"),
    )
    a, b = (LockedSource(name=name, pairs=(pair(size),)) for name, size in (("a", 142), ("b", 36)))
    settings = Settings(stages=stages)
    first = resolved_lock(settings, (a, b))
    capped = resolved_lock(settings, (replace(a, max_passes=1), b), first, 77)
    assert dict(capped.segments[-1].weights).keys() == {1}
    freed = resolved_lock(settings, (a, b), capped, 78)
    assert order_digest(freed, 78) == order_digest(capped, 78)
    assert dict(freed.segments[-1].weights).keys() == {0, 1}


BREAKS = ("seed", "weights", "length", "block", "checksum", "tokens", "deny", "size", "documents", "name", "sooner")


def broken(draw, settings: Settings, sources, old: RunLock):
    """A change of anything, with no regard to what was read."""
    facts = {}
    stages = list(settings.stages)
    number = draw(st.integers(0, len(stages) - 1))
    kind = draw(st.sampled_from(BREAKS))
    names = [each.name for each in sources]
    which = draw(st.integers(0, len(sources) - 1))
    place = draw(st.integers(0, len(sources[which].pairs) - 1))
    one = sources[which]
    if kind in ("checksum", "tokens", "name", "sooner"):
        pairs = list(one.pairs)
        if kind == "name":

            def renamed(shares):
                return shares and tuple(("renamed" if name == one.name else name, share) for name, share in shares)

            stages = [replace(each, weights=renamed(each.weights), passes=renamed(each.passes)) for each in stages]
            one = replace(one, name="renamed")
        elif kind == "sooner":
            one = replace(one, pairs=(*pairs, pair(50, since=draw(st.integers(0, 40)))))
        else:
            change = {"tokens_crc32": 12345} if kind == "checksum" else {"num_tokens": pairs[place].num_tokens + 10}
            pairs[place] = replace(pairs[place], **change)
            one = replace(one, pairs=tuple(pairs))
        sources = (*sources[:which], one, *sources[which + 1 :])
    elif kind == "seed":
        settings = replace(settings, seed=settings.seed + 1)
    elif kind == "block":
        settings = replace(settings, mixing_block=draw(st.sampled_from([1, 2, 8, 16])))
    elif kind == "documents":
        facts["documents"] = "file"
    elif kind == "deny":
        facts["denials"] = (LockedDenial(start=draw(st.integers(0, 50)), documents=((which, (1,)),)),)
    elif kind == "length":
        stages[number] = replace(stages[number], sequence_length=8)
    else:
        stages[number] = random_stage(draw, stages[number].name, names)
    return kind, replace(settings, stages=tuple(stages)), sources, facts


@given(runs(), st.data())
def test_what_moves_the_past_is_refused_from_the_first_position_on(run, data):
    settings, sources = run
    old = resolved_lock(settings, sources)
    if not old.segments:
        return
    consumed = data.draw(st.integers(1, end_of(old)))
    kind, settings, sources, facts = broken(data.draw, settings, sources, old)
    new = resolved_lock(settings, sources, old, consumed, **facts)
    if not new.segments:
        return
    before, after = what_is_read(old, consumed), what_is_read(new, min(consumed, end_of(new)))
    found = first_moved(old, new, consumed)
    if found is None:
        assert before == after, kind
        assert order_digest(old, consumed) == order_digest(new, consumed)
        return
    assert before[: found.position] == after[: found.position], kind
    if found.position:
        assert order_digest(old, found.position) == order_digest(new, found.position)
    if found.position < new.end:
        assert order_digest(old, found.position + 1) != order_digest(new, found.position + 1)
    with pytest.raises(ConfigError, match=rf"position {found.position} is before position {consumed} and must"):
        check_past(old, new, consumed)


WEB, CODE = source("web", 40), source("code", 30)
DENIED = LockedDenial(start=13, documents=((0, (5,)),))
TWO = (segment(0, 9, [0, 1]), segment(9, 20, [1, 1]))


@pytest.mark.parametrize(
    ("change", "position", "words"),
    [
        ({"seed": 2}, 0, "a sample with seed 1 would become one with seed 2"),
        (
            {"segments": (TWO[0], segment(9, 20, [100, 101]))},
            9,
            '"20 samples of 10 tokens, from position 9 (web: 1, code: 1)", mixed in blocks of 1 would become '
            'a sample of the segment "20 samples of 10 tokens, from position 9 (web: 100, code: 101)", mixed in blocks',
        ),
        ({"segments": (TWO[0], segment(9, 3, [1, 1]))}, 12, "would become the end of the run"),
        ({"denials": (DENIED,)}, 13, "with other data or other denied documents"),
        ({"sources": (replace(WEB, pairs=(pair(400),)), CODE)}, 9, "with other data or other"),
    ],
    ids=["seed", "weights", "end", "denial", "data"],
)
def test_the_first_position_and_what_decides_it_are_told(change, position, words):
    old = lock([WEB, CODE], TWO)
    new = replace(old, **change)
    with pytest.raises(ConfigError) as caught:
        check_past(old, new, 20)
    assert caught.value.message.startswith(f"position {position} is before position 20 and must not change: a sample ")
    assert words in caught.value.message
    assert "tokenloom run amend" in caught.value.hint
    assert first_moved(old, new, position) is None


def test_more_than_the_run_has_cannot_have_been_read():
    old = lock([WEB, CODE], [segment(0, 20, [1, 1])])
    with pytest.raises(ConfigError, match="position 21 out of range: the run has 20 samples"):
        first_moved(old, old, 21)


def test_sources_pairs_segments_and_denials_are_told_and_numbers_of_sources_do_not_matter():
    old = lock([source("web", 5), source("gone", 5)], [segment(0, 10, [1])])
    denials = (LockedDenial(start=4, documents=((0, (1, 2)),)),)
    segments = [segment(0, 4, [1]), segment(4, 6, [1, 1])]
    new = lock([source("web", 5, 7, since=(0, 4)), source("code", 3)], segments, seed=2, denials=denials)
    changes = lock_changes(old, new)
    new_data = [(data.name, [(pair.num_tokens, pair.since) for pair in data.pairs]) for data in changes.new_data]
    assert new_data == [("web", [(71, 4)]), ("code", [(31, 0)])]
    assert changes.new_sources == ("code",)
    assert changes.gone == ("gone",)
    assert (changes.new_segments, changes.num_denied) == (new.segments, 2)
    earlier = replace(new, denials=(LockedDenial(start=3, documents=((0, (1,)),)), *new.denials))
    assert lock_changes(new, earlier).num_denied == 1
    assert changes.others == ("seed",)
    one = lock([source("web", 5), source("code", 5)], [segment(0, 10, [2, 1])])
    other = lock([source("code", 5), source("web", 5)], [segment(0, 10, [1, 2])])
    assert not lock_changes(one, one)
    assert not lock_changes(one, other)


# --- how two runs differ --------------------------------------------------------------------------------------------
MUCH, LITTLE = source("web", 30), source("code", 10)
OLD = lock([MUCH, LITTLE], [segment(0, 400, [3, 1])])


def test_a_run_is_equal_to_itself_and_another_seed_has_all_data_in_common():
    found = differences(OLD, OLD)
    assert found.are_equal
    assert (found.position, found.stop, found.ends, found.settings) == (None, 400, (400, 400), ())
    assert found.runs[0] == found.runs[1]
    assert [(each.common_data, each.data_before, each.data_after) for each in found.sources] == [(301,) * 3, (101,) * 3]
    found = differences(OLD, replace(OLD, seed=2))
    assert found.position == 0
    assert [(each.name, each.before, each.after) for each in found.settings] == [("seed", "1", "2")]
    assert [each.common_data for each in found.sources] == [301, 101]
    assert found.runs[0] != found.runs[1]


def test_another_mixture_from_a_position_on_and_a_run_that_continues_another():
    new = replace(OLD, segments=(segment(0, 200, [3, 1]), segment(200, 200, [1, 1], stage="more code")))
    found = differences(OLD, new)
    assert not found.are_equal
    assert (found.position, found.before.source, found.after.source) == (200, "web", "web")
    assert found.after.stage == "more code"
    [stages] = found.settings
    assert (stages.name, stages.before) == ("stages", "400 samples of 10 tokens, from position 0 (web: 3, code: 1)")
    assert stages.after == "200 samples of 10 tokens, from position 0 (web: 3, code: 1)"
    assert differences(OLD, new, until=200).are_equal
    longer = replace(OLD, segments=(*OLD.segments, segment(400, None, [1])))
    found = differences(OLD, longer)
    assert (found.position, found.before, found.after.position, found.reason) == (400, None, 400, None)
    assert found.ends == (400, None)
    assert differences(longer, OLD).before.position == 400
    assert differences(OLD, longer, until=400).are_equal
    assert differences(OLD, longer, until=401).position == 400
    with pytest.raises(ConfigError, match="position 401 out of range: the longer run has 400 samples"):
        differences(OLD, OLD, until=401)


def test_changed_and_grown_data():
    changed = replace(MUCH, pairs=(replace(MUCH.pairs[0], tokens_crc32=5),))
    found = differences(OLD, replace(OLD, sources=(changed, LITTLE)))
    assert (found.position, found.sources[0].common_data) == (0, 0)
    [data] = found.settings
    assert (data.name, data.after) == ("data of web", f"{data.before}, with other content, order or positions")
    grown = LockedSource(name="web", pairs=(*MUCH.pairs, pair(101, since=100, name="new")))
    segments = (segment(0, 100, [3, 1]), segment(100, 300, [3, 1]))
    found = differences(replace(OLD, segments=segments), replace(OLD, sources=(grown, LITTLE), segments=segments))
    assert found.position == 100
    assert [each.name for each in found.settings] == ["data of web"]
    assert found.settings[0].after == "2 pairs, 402 tokens"


def test_denied_documents():
    one, other = (replace(OLD, denials=(LockedDenial(start=50, documents=((0, (d,)),)),)) for d in (3, 4))
    found = differences(one, other)
    assert found.position == 50
    [denied] = found.settings
    assert denied.name == "denied"
    assert denied.before != denied.after
    assert differences(one, other, until=50).are_equal
