"""`tokenloom replay`."""

from __future__ import annotations

import json
from itertools import islice

import pytest
from tests.cli.runs import run

from tokenloom import MegatronPretrainingSampler, Run, ThreadLoader
from tokenloom.loading.digest import RangeDigest


def read(path, stop, *, size=1):
    """Returns the text of what so many ranks have read up to a position."""
    dataset = Run.open(path).dataset()
    loaders = [ThreadLoader(dataset, MegatronPretrainingSampler(100, 0, 2, rank, size)) for rank in range(size)]
    for loader in loaders:
        assert len(list(islice(loader, stop // 2 // size))) == stop // 2 // size
    total = loaders[0].digest
    for loader in loaders[1:]:
        total += loader.digest
    name = Run.open(path).identity[:16]
    return str(RangeDigest(run=name, start=0, stop=stop, digest=total))


@pytest.mark.parametrize("size", [1, 2])
def test_what_any_number_of_ranks_has_read_is_expected(path, capsys, size):
    expected = read(path, 40, size=size)
    assert run(capsys, "replay", path, "--expect", expected) == (0, f"{expected}  as expected: 40 samples\n", "")
    words = ("--from-step", 0, "--to-step", 10, "--global-batch-size", 4, "--threads", 2)
    assert run(capsys, "replay", path, *words, "--expect", expected)[0] == 0
    assert run(capsys, "replay", path, *words) == (0, f"{expected}\n", "")


def test_another_digest_is_told(path, capsys):
    expected = read(path, 40)
    other = expected[:-1] + ("1" if expected[-1] == "0" else "0")
    status, out, _ = run(capsys, "replay", path, "--expect", other)
    assert (status, out) == (
        1,
        f"{expected}\nexpected sum {other[-32:]}: something else was read, or the data have changed since\n",
    )
    status, out, _ = run(capsys, "replay", path, "--expect", other, "--json")
    assert status == 1
    assert json.loads(out) == {
        "digest": expected, "run": expected[2:18], "start": 0, "stop": 40, "num_samples": 40,
        "expected": other[-32:], "matches": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--expect", f"1:0123456789abcdef:0-40:{'0' * 32}"), "found one of 0123456789abcdef"),
        (("--expect", "{}", "--to-position", 30), "expected the digest of positions 0-30, found one of 0-40"),
        (("--expect", "{}x"), "expected a digest of what was read"),
        (("--to-position", 101), "expected a range of the 100 positions"),
    ],
)
def test_what_cannot_be_compared_is_refused(path, capsys, words, message):
    expected = read(path, 40)
    status, out, err = run(capsys, "replay", path, *(str(word).replace("{}", expected) for word in words))
    assert (status, out) == (1, "")
    assert message in err
