"""The table, the JSON, the page and the plot of `make bench`, on measurements that are made up; nothing is timed."""

import json
from pathlib import Path

from harness.child import SideError
from harness.environments import PEERS
from harness.measure import summarise, take_turns
from harness.page import results_page
from harness.results import ProfileResult, Results
from harness.row import LIMIT, OURS, SCALES, Row, Side
from rows.jobs import JOBS, all_rows
from rows.profiles import profiles

SIDES = Path(__file__).parents[2] / "benchmarks" / "sides"


def make_row():
    libraries = {"ours": OURS, "theirs": "grain", "gone": "litdata", "floor": LIMIT}
    sides = tuple(Side(name=name, library=library, script="floor.py") for name, library in libraries.items())
    texts = {"compares": "one with another", "fairness": "Same data.", "limit": "copying", "unit": "tokens"}
    settings = {"rounds": 3, "sides": sides, "prepare": lambda folder: None, "same": ("ours", "theirs")}
    return Row(job="loader", name="loading", **texts, **settings)


def outcome(work, seconds, digest="a", memory_bytes=2_000_000):
    return {"work": work, "seconds": seconds, "memory_bytes": memory_bytes, "digest": digest}


OUTCOMES = {
    "ours": [outcome(6e6, 2.0), outcome(4e6, 1.0), outcome(2e6, 1.0)],  # 3, 4 and 2 M tokens/s
    "theirs": [outcome(1e6, 1.0), outcome(2e6, 1.0), outcome(1.5e6, 1.0)],
    "floor": [outcome(6e6, 1.0)] * 3,
}
FAILURES = {"gone": "no such package"}


def test_summary_has_medians_ratios_and_shares_of_the_limit():
    result = summarise(make_row(), OUTCOMES, FAILURES)
    ours, theirs, gone, floor = result.sides
    assert [side.median for side in result.sides] == [3e6, 1.5e6, None, 6e6]
    assert ours.memory_bytes == 2_000_000
    assert gone.failure == "no such package"
    assert gone.values == ()
    assert result.times_better(theirs) == 2
    assert result.times_better(gone) is None
    assert (result.share_of_limit(ours), result.share_of_limit(theirs), result.share_of_limit(floor)) == (0.5, 0.25, 1)
    assert result.agreement == "equal"


def test_sides_take_turns_and_who_fails_is_out():
    calls = []

    def good():
        calls.append("good")
        return {}

    def bad():
        calls.append("bad")
        if calls.count("bad") == 2:
            raise SideError("broken")
        return {}

    failures = {}
    outcomes = take_turns({"good": good, "bad": bad}, 3, failures)
    assert calls == ["good", "bad", "good", "bad", "good"]
    assert failures == {"bad": "broken"}
    assert len(outcomes["good"]) == 3


def test_page_tells_what_is_compared_and_why_that_is_fair():
    machine = {"processor": "a processor", "cores": 2, "memory_bytes": 8 * 10**9, "system": "Linux", "python": "3.11"}
    results = Results(
        mode="quick",
        date="2026-01-02",
        seconds=120.0,
        machine=machine,
        libraries={"tokenloom": "0.1.0", "grain": "0.2.18"},
        rows=(summarise(make_row(), OUTCOMES, FAILURES),),
        profiles=(ProfileResult(name="a path", method="Made up", seconds=0.5, shares=(("one", 0.75), ("two", 0.25))),),
    )
    page = results_page(results)
    for text in ("*Compares* one with another.", "compared, and are equal. Same data.", "*Limit:* copying."):
        assert text in page
    assert "| loading | 3.00 M tokens/s | 1.50 M tokens/s (theirs) | 2.00x as fast | 50% |" in page
    assert "| gone | not measured: no such package |" in page
    assert "| one | 75.0% |" in page


def test_every_row_says_what_it_compares_and_why_that_is_fair():
    scale = SCALES["quick"]
    rows = all_rows(scale)
    assert {row.job for row in rows} == set(JOBS)
    assert len({row.name for row in rows}) == len(rows)
    for row in rows:
        assert row.compares, row.name
        assert row.fairness.endswith("."), row.name
        assert row.limit, row.name
        assert not row.limit.endswith("."), row.name
        assert row.unit or row.quantity != "rate", row.name
        assert sum(side.library == LIMIT for side in row.sides) == 1, row.name
        assert row.rounds >= 3, row.name
        for side in row.sides:
            assert (SIDES / side.script).is_file(), side
            assert side.environment is None or side.environment in PEERS, side
            json.dumps(side.arguments)
    for profile in profiles(scale):
        assert profile.method
        json.dumps(profile.arguments)
