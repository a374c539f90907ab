"""What the commands of `tokenloom run` share: words for a run."""

from __future__ import annotations

from tests.run.small_runs import lock, segment, source

from tokenloom.cli.run_common import shares_of, stage_of


def test_stages_are_called_so():
    assert (stage_of("main"), stage_of("stage 2")) == ("stage main", "stage 2")


def test_shares_are_those_of_the_largest():
    one = lock([source(f"s{number}", 9) for number in range(6)], [segment(0, 9, [1, 2, 3, 4, 5, 5])])
    assert shares_of(one, one.segments[0]) == "    s4 25%, s5 25%, s3 20%, 3 others 30%"
