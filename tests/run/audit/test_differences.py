"""How two runs differ, against the samples of both, one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.run.small_runs import lock, pair, segment, source

from tokenloom import ConfigError
from tokenloom.run.changes import differences
from tokenloom.run.lock import LockedDenial, LockedSource

WEB, CODE = source("web", 30), source("code", 10)
OLD = lock([WEB, CODE], [segment(0, 400, [3, 1])])
MOST = 100


def test_a_run_is_equal_to_itself():
    found = differences(OLD, OLD)
    assert found.are_equal
    assert (found.position, found.stop, found.ends, found.settings) == (None, 400, (400, 400), ())
    assert found.runs[0] == found.runs[1]
    assert [(each.common_data, each.data_before, each.data_after) for each in found.sources] == [(301,) * 3, (101,) * 3]


def test_another_mixture_from_a_position_on():
    new = replace(OLD, segments=(segment(0, 200, [3, 1]), segment(200, 200, [1, 1], stage="more code")))
    found = differences(OLD, new)
    assert not found.are_equal
    assert (found.position, found.before.source, found.after.source) == (200, "web", "web")
    assert found.after.stage == "more code"
    [stages] = found.settings
    assert (stages.name, stages.before) == ("stages", "400 samples of 10 tokens from 0 on: web: 3, code: 1")
    assert stages.after == "200 samples of 10 tokens from 0 on: web: 3, code: 1"
    assert differences(OLD, new, until=200).are_equal


def test_one_run_continues_another():
    longer = replace(OLD, segments=(*OLD.segments, segment(400, None, [1])))
    found = differences(OLD, longer)
    assert (found.position, found.before, found.after.position, found.reason) == (400, None, 400, None)
    assert found.ends == (400, None)
    assert differences(longer, OLD).before.position == 400
    assert differences(OLD, longer, until=400).are_equal
    assert differences(OLD, longer, until=401).position == 400
    with pytest.raises(ConfigError, match="position 401 out of range: the longer run has 400 samples"):
        differences(OLD, OLD, until=401)


def test_another_seed_has_all_data_in_common():
    found = differences(OLD, replace(OLD, seed=2))
    assert found.position == 0
    assert [(each.name, each.before, each.after) for each in found.settings] == [("seed", "1", "2")]
    assert [each.common_data for each in found.sources] == [301, 101]
    assert found.runs[0] != found.runs[1]


def test_changed_and_grown_data():
    changed = replace(WEB, pairs=(replace(WEB.pairs[0], tokens_crc32=5),))
    found = differences(OLD, replace(OLD, sources=(changed, CODE)))
    assert (found.position, found.sources[0].common_data) == (0, 0)
    [data] = found.settings
    assert (data.name, data.after) == ("data of web", f"{data.before} of other content, order or positions")
    grown = LockedSource(name="web", pairs=(*WEB.pairs, pair(101, since=100, name="new")))
    segments = (segment(0, 100, [3, 1]), segment(100, 300, [3, 1]))
    found = differences(replace(OLD, segments=segments), replace(OLD, sources=(grown, CODE), segments=segments))
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
