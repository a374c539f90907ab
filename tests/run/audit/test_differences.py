"""How two runs differ, against the samples of both, one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.run.small_runs import lock, pair, random_locks, segment, source

from tokenloom import ConfigError
from tokenloom.run.changes import differences
from tokenloom.run.lock import LockedDenial, LockedSource
from tokenloom.run.timeline import Timeline

WEB, CODE = source("web", 30), source("code", 10)
OLD = lock([WEB, CODE], [segment(0, 400, [3, 1])])
MOST = 100


def test_a_run_is_equal_to_itself():
    found = differences(OLD, OLD)
    assert found.are_equal
    assert (found.position, found.stop, found.ends, found.settings) == (None, 400, (400, 400), ())
    assert found.runs[0] == found.runs[1]
    assert [(each.common_tokens, each.tokens_before) for each in found.sources] == [(3000, 3000), (1000, 1000)]


def test_another_mixture_from_a_position_on():
    new = replace(OLD, segments=(segment(0, 200, [3, 1]), segment(200, 200, [1, 1], stage="more code")))
    found = differences(OLD, new)
    assert not found.are_equal
    assert (found.position, found.before.source, found.after.source) == (203, "web", "code")
    assert found.after.stage == "more code"
    [stages] = found.settings
    assert (stages.name, stages.before) == ("stages", "400 samples of 10 tokens from 0 on: web: 3, code: 1")
    assert stages.after == "200 samples of 10 tokens from 0 on: web: 3, code: 1"
    # 150 of 300 samples of web before 200, and 100 more in the second stage; of code 50 and 100
    assert [each.common_tokens for each in found.sources] == [2500, 1000]
    assert [each.tokens_after for each in found.sources] == [2500, 1500]
    assert differences(OLD, new, until=200).are_equal


def test_one_run_continues_another():
    longer = replace(OLD, segments=(*OLD.segments, segment(400, None, [1])))
    found = differences(OLD, longer)
    assert (found.position, found.before, found.after.position, found.reason) == (400, None, 400, None)
    assert found.ends == (400, None)
    assert differences(longer, OLD).before.position == 400
    assert differences(OLD, longer, until=400).are_equal
    assert differences(OLD, longer, until=401).position == 400
    with pytest.raises(ConfigError, match="expected a position up to 400, where the longer run ends, found 401"):
        differences(OLD, OLD, until=401)


def test_another_seed_has_no_sample_in_common_but_all_data():
    found = differences(OLD, replace(OLD, seed=2))
    assert found.position == 0
    assert [(each.name, each.before, each.after) for each in found.settings] == [("seed", "1", "2")]
    assert [each.common_tokens for each in found.sources] == [0, 0]
    assert [each.common_data for each in found.sources] == [301, 101]
    assert found.runs[0] != found.runs[1]


def test_changed_and_grown_data():
    changed = replace(WEB, pairs=(replace(WEB.pairs[0], tokens_crc32=5),))
    found = differences(OLD, replace(OLD, sources=(changed, CODE)))
    assert (found.position, found.sources[0].common_tokens, found.sources[0].common_data) == (0, 0, 0)
    [data] = found.settings
    assert (data.name, data.after) == ("data of web", f"{data.before} of other content, order or positions")
    grown = LockedSource(name="web", pairs=(*WEB.pairs, pair(101, since=100, name="new")))
    segments = (segment(0, 100, [3, 1]), segment(100, 300, [3, 1]))
    found = differences(replace(OLD, segments=segments), replace(OLD, sources=(grown, CODE), segments=segments))
    assert 100 <= found.position < 110
    assert [each.name for each in found.settings] == ["data of web"]
    assert found.settings[0].after == "2 pairs, 402 tokens"


def test_denied_documents():
    one, other = (replace(OLD, denials=(LockedDenial(start=50, documents=((0, (d,)),)),)) for d in (3, 4))
    found = differences(one, other)
    assert 50 <= found.position < 55
    [denied] = found.settings
    assert denied.name == "denied"
    assert denied.before != denied.after
    assert differences(one, other, until=50).are_equal


def samples(lock, stop):
    timeline = Timeline(lock)
    found = timeline.locate(np.arange(stop))
    rows = []
    for segment_number, which, walk, window in zip(
        found.segments.tolist(), found.sources.tolist(), found.walks.tolist(), found.windows.tolist(), strict=True
    ):
        walked = timeline.walk_of(which, walk)
        pairs = lock.sources[which].pairs[walked.first_pair : walked.last_pair]
        data = tuple((pair.num_tokens, pair.held_tokens) for pair in pairs)
        place = lock.sources[which].name, lock.segments[segment_number].sequence_length
        rows.append((*place, walked.first_pair, data, walk, window, walked.part))
    return rows


@given(random_locks(), st.data())
def test_differences_are_those_of_the_samples(old, data):
    last = old.segments[-1]
    end = last.start + (MOST if last.num_samples is None else last.num_samples)
    weights = tuple((number, data.draw(st.integers(1, 5))) for number, _ in last.weights)
    new = replace(old, segments=(*old.segments[:-1], replace(last, weights=weights)))
    if data.draw(st.booleans()):
        new = replace(new, mixing_block=data.draw(st.sampled_from([1, 8])))
    until = data.draw(st.integers(0, end))
    found = differences(old, new, until=until)
    ones, others = samples(old, until), samples(new, until)
    first = next((k for k in range(until) if ones[k] != others[k]), None)
    if found.before != found.after or first is not None:
        assert found.position == first
    common = set(ones) & set(others)
    for each in found.sources:
        assert each.common_tokens == sum(row[1] for row in common if row[0] == each.name)
        assert each.tokens_before == sum(row[1] for row in ones if row[0] == each.name)
        assert each.tokens_after == sum(row[1] for row in others if row[0] == each.name)
