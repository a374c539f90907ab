"""The table, the JSON, the page and the plot of `make bench`, on measurements that are made up; nothing is timed."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest
from harness.child import Child, SideError, without_paths
from harness.environments import PEERS, REQUIREMENTS, versions
from harness.measure import agreement, summarise, take_turns
from harness.page import results_page
from harness.plot import plot_results, ratios
from harness.results import ProfileResult, Results, ResultsError, SideResult, read_results, write_results
from harness.row import LIMIT, OURS, SCALES, Row, Side
from harness.session import exit_status
from harness.tables import cells, format_times, format_value, text_profiles, text_table
from rows.jobs import JOBS, all_rows
from rows.profiles import profiles

SIDES = Path(__file__).parents[2] / "benchmarks" / "sides"


def make_row(**changes):
    sides = (
        Side(name="ours", library=OURS, script="floor.py"),
        Side(name="theirs", library="grain", script="floor.py"),
        Side(name="gone", library="litdata", script="floor.py"),
        Side(name="floor", library=LIMIT, script="floor.py"),
    )
    defaults = {
        "job": "loader",
        "name": "loading",
        "compares": "one with another",
        "fairness": "Same data.",
        "limit": "copying",
        "unit": "tokens",
        "rounds": 3,
        "sides": sides,
        "prepare": lambda folder: None,
        "same": ("ours", "theirs"),
    }
    return Row(**(defaults | changes))


def outcome(work, seconds, digest="a", memory_bytes=2_000_000):
    return {"work": work, "seconds": seconds, "memory_bytes": memory_bytes, "digest": digest}


OUTCOMES = {
    "ours": [outcome(6e6, 2.0), outcome(4e6, 1.0), outcome(2e6, 1.0)],  # 3, 4 and 2 M tokens/s
    "theirs": [outcome(1e6, 1.0), outcome(2e6, 1.0), outcome(1.5e6, 1.0)],
    "floor": [outcome(6e6, 1.0)] * 3,
}
FAILURES = {"gone": "no such package"}


def make_results(row_result=None):
    return Results(
        mode="quick",
        date="2026-01-02",
        seconds=120.0,
        machine={
            "processor": "a processor",
            "cores": 2,
            "memory_bytes": 8 * 10**9,
            "system": "Linux",
            "python": "3.11",
        },
        libraries={"tokenloom": "0.1.0", "grain": "0.2.18"},
        rows=(row_result or summarise(make_row(), OUTCOMES, FAILURES),),
        profiles=(ProfileResult(name="a path", method="Made up", seconds=0.5, shares=(("one", 0.75), ("two", 0.25))),),
    )


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


@pytest.mark.parametrize("quantity", ["seconds", "bytes"])
def test_less_is_better_for_seconds_and_bytes(quantity):
    outcomes = {"ours": [outcome(1, 2.0, memory_bytes=20)], "theirs": [outcome(1, 6.0, memory_bytes=60)]}
    outcomes["floor"] = [outcome(1, 1.0, memory_bytes=10)]
    result = summarise(make_row(quantity=quantity, unit=""), outcomes, FAILURES)
    assert result.times_better(result.sides[1]) == 3
    assert result.share_of_limit(result.ours) == 0.5


def test_a_ratio_is_what_the_side_tells():
    outcomes = {"ours": [{**outcome(1, 2.0), "ratio": 1.05}], "theirs": [{**outcome(1, 1.0), "ratio": 1.26}]}
    outcomes["floor"] = [{**outcome(1, 1.0), "ratio": 1.0}]
    result = summarise(make_row(quantity="ratio", unit="of the mean"), outcomes, FAILURES)
    assert result.times_better(result.sides[1]) == pytest.approx(1.2)
    assert cells(result, result.sides[1])[1:6] == [*["1.260 of the mean"] * 3, "1.20x as small", "79%"]


def test_what_an_interrupt_left_out_is_told(tmp_path):
    results = dataclasses.replace(make_results(), unmeasured=("merge", "profile of a path"))
    write_results(tmp_path / "results.json", results)
    assert read_results(tmp_path / "results.json") == results
    assert "\nInterrupted before: merge, profile of a path.\n" in results_page(results)
    assert "Interrupted" not in results_page(make_results())


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


def test_agreement_is_about_every_round_of_every_side_that_ran():
    same, other = [outcome(1, 1)], [outcome(1, 1, "b")]
    assert agreement(("one", "two"), {"one": same, "two": same}, {}) == "equal"
    assert agreement(("one", "two"), {"one": same, "two": same + other}, {}) == "different"
    assert agreement(("one", "two"), {"one": same}, {"two": "gone"}) == ""
    assert agreement(("one", "two"), {"one": [{"seconds": 1}], "two": [{"seconds": 1}]}, {}) == "different"


def test_a_row_refuses_what_it_cannot_measure():
    with pytest.raises(
        ValueError, match=r"expected `quantity` to be one of \('rate', 'seconds', 'bytes', 'ratio'\), found 'pace'"
    ):
        make_row(quantity="pace")
    with pytest.raises(ValueError, match="expected the first side of row 'loading' to be of tokenloom"):
        make_row(sides=make_row().sides[1:])
    with pytest.raises(ValueError, match="sides with names of their own"):
        make_row(sides=make_row().sides[:1] * 2)
    with pytest.raises(ValueError, match=r"digests of sides that it has not: \['nobody'\]"):
        make_row(same=("nobody",))


def test_table_names_every_side_and_says_why_one_is_missing():
    text = text_table(make_results().rows)
    lines = {line.split()[0]: line for line in text.splitlines() if line}
    assert "loading  [outputs equal]" in text
    assert " ".join(lines["ours"].split()) == "ours 3.00 M tokens/s 2.00 M tokens/s 4.00 M tokens/s 50% 2.00 MB"
    assert "2.00x as fast" in lines["theirs"]
    assert "not measured: no such package" in lines["gone"]
    assert "%" not in lines["floor"]
    assert "75.0%  one" in text_profiles(make_results().profiles)
    broken = ProfileResult(name="a path", method="Made up", seconds=0.0, shares=(), failure="broken")
    assert text_profiles([broken]) == "where the time goes: a path (not measured: broken)"


def test_numbers_have_three_digits_and_a_unit():
    assert format_value(12_345_678, "rate", "tokens") == "12.3 M tokens/s"
    assert format_value(999, "rate", "samples") == "999 samples/s"
    assert format_value(0.01234, "seconds", "") == "12.3 ms"
    assert format_value(2_500_000_000, "bytes", "") == "2.50 GB"
    assert format_times(0.5, "bytes") == "0.50x as small"


def test_json_comes_back_as_it_was_written(tmp_path):
    results = make_results()
    write_results(tmp_path / "results.json", results)
    assert read_results(tmp_path / "results.json") == results
    content = json.loads((tmp_path / "results.json").read_text())
    assert (content["schema"], content["version"]) == ("tokenloom-benchmarks", 1)


def test_another_version_of_the_json_is_refused(tmp_path):
    path = tmp_path / "results.json"
    write_results(path, make_results())
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(
        ResultsError, match=r"expected schema 'tokenloom-benchmarks', version 1, in `results.json`, found"
    ):
        read_results(path)


def test_page_tells_what_is_compared_and_why_that_is_fair():
    page = results_page(make_results())
    for text in (
        "*Compares* one with another.",
        "Outputs were compared, and are equal. Same data.",
        "*Limit:* copying.",
    ):
        assert text in page
    assert "| loading | 3.00 M tokens/s | 1.50 M tokens/s (theirs) | 2.00x as fast | 50% |" in page
    assert "| gone | not measured: no such package |" in page
    assert "| one | 75.0% |" in page


def test_page_of_a_run_in_which_ours_failed_says_so():
    row = summarise(
        make_row(), {name: rows for name, rows in OUTCOMES.items() if name != "ours"}, {"ours": "broken", **FAILURES}
    )
    assert "| loading | not measured |" in results_page(make_results(row))
    assert exit_status(make_results(row)) == 1
    assert exit_status(make_results()) == 0
    assert exit_status(make_results(dataclasses.replace(make_results().rows[0], agreement="different"))) == 1


def test_plot_has_a_bar_for_the_best_side_of_each_peer(tmp_path):
    pytest.importorskip("matplotlib")
    results = make_results()
    slower = SideResult(name="slower", library="grain", values=(1e6,), memory_bytes=None, failure="")
    row = dataclasses.replace(results.rows[0], sides=(*results.rows[0].sides, slower))
    results = dataclasses.replace(results, rows=(row,))
    assert ratios(results) == [("loading", "grain", 2.0)]
    for name in ("one.svg", "two.svg"):
        plot_results(results, tmp_path / name)
    assert (tmp_path / "one.svg").read_text() == (tmp_path / "two.svg").read_text()
    assert "loading" in (tmp_path / "one.svg").read_text()


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_every_row_says_what_it_compares_and_why_that_is_fair(scale):
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


def test_a_child_prepares_once_and_does_rounds_when_told(tmp_path):
    side = Side(name="floor", library=LIMIT, script="floor.py", arguments={"memory_bytes": 7})
    child = Child(side, tmp_path, Path(sys.executable))
    try:
        rounds = [child.run_round(), child.run_round()]
    finally:
        child.close()
    assert [found["memory_bytes"] for found in rounds] == [7, 7]
    assert all(found["seconds"] >= 0 for found in rounds)


def test_a_child_that_fails_tells_its_last_words_without_paths(tmp_path):
    side = Side(name="floor", library=LIMIT, script="floor.py", arguments={"unknown": 1})
    with pytest.raises(SideError, match="unexpected keyword argument 'unknown'"):
        Child(side, tmp_path, Path(sys.executable))
    assert without_paths(f"no file {tmp_path}/corpus.bin", [tmp_path]) == "no file …/corpus.bin"
    assert without_paths("no page http://example.org/a b", []) == "no page … b"


def test_environments_of_peers_are_pinned_to_the_last_package():
    for name in PEERS:
        pins = [line.split("==") for line in (REQUIREMENTS / f"{name}.txt").read_text().splitlines()]
        assert all(len(pin) == 2 for pin in pins), name
        # Any other version would bring gigabytes of CUDA packages.
        assert dict(pins).get("torch", "2.13.0") == "2.13.0", name
    assert f"grain=={versions(['grain'])['grain']}\n" in (REQUIREMENTS / "grain.txt").read_text()
