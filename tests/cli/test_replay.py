"""`tokenloom replay`."""

from __future__ import annotations

import json
from itertools import islice

import pytest
from tests.cli.runs import run, write_run

from tokenloom import MegatronPretrainingSampler, Run, ThreadLoader
from tokenloom.loading.batch_digest import RangeDigest
from tokenloom.loading.replay import digest_of_positions


@pytest.fixture
def path(tmp_path, capsys):
    path = write_run(tmp_path, manifests=True)
    assert run(capsys, "run", "lock", path)[0] == 0
    return path


def read(path, stop, *, size=1):
    """Returns the text of what so many ranks have read up to a position, and that of each of them."""
    dataset = Run.open(path).dataset()
    loaders = [ThreadLoader(dataset, MegatronPretrainingSampler(100, 0, 2, rank, size)) for rank in range(size)]
    for loader in loaders:
        assert len(list(islice(loader, stop // 2 // size))) == stop // 2 // size
    total = loaders[0].digest
    for loader in loaders[1:]:
        total += loader.digest
    name = Run.open(path).identity[:16]
    return str(RangeDigest(run=name, start=0, stop=stop, digest=total)), [loader.digest for loader in loaders]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_what_any_number_of_ranks_has_read_is_expected(path, capsys, size):
    expected, _ = read(path, 40, size=size)
    assert run(capsys, "replay", path, "--expect", expected) == (0, f"{expected}  as expected: 40 samples\n", "")
    words = ("--from-step", 0, "--to-step", 10, "--global-batch-size", 4, "--threads", 2)
    assert run(capsys, "replay", path, *words, "--expect", expected)[0] == 0
    assert run(capsys, "replay", path, *words) == (0, f"{expected}\n", "")
    assert run(capsys, "replay", path, *words, "--expect", expected[-32:])[0] == 0


def test_a_share_of_a_rank(path, capsys):
    _, ranks = read(path, 40, size=2)
    words = ("--to-position", 40, "--rank", 1, "--data-parallel-size", 2, "--micro-batch-size", 2)
    status, out, _ = run(capsys, "replay", path, *words)
    found = RangeDigest.parse(out.strip())
    assert (status, found.digest, str(found.share)) == (0, ranks[1], "1/2x2")
    assert run(capsys, "replay", path, "--expect", found)[0] == 0


def test_another_digest_is_told(path, capsys):
    expected, _ = read(path, 40)
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


def test_data_that_changed_are_noticed(path, capsys):
    expected, _ = read(path, 100)
    data = path.parent / "data" / "web0.bin"
    data.write_bytes(bytes(byte ^ 1 for byte in data.read_bytes()))
    assert run(capsys, "replay", path, "--expect", expected)[0] == 1


def test_checkpoints_of_a_file_up_to_the_first_that_differs(path, capsys, tmp_path):
    dataset, name = Run.open(path).dataset(), Run.open(path).identity[:16]
    lines = [
        str(RangeDigest(run=name, start=at, stop=at + 10, digest=digest_of_positions(dataset, range(at, at + 10))))
        for at in (0, 10, 20)
    ]
    file = tmp_path / "digests"
    file.write_text("\n".join(lines))
    status, out, _ = run(capsys, "replay", path, "--expect-file", file)
    assert (status, out.count("as expected")) == (0, 3)
    file.write_text("\n".join([lines[0], lines[1][:-3] + "abc", lines[2]]))
    status, out, _ = run(capsys, "replay", path, "--expect-file", file)
    assert (status, out.count("as expected"), f"{lines[1]}\nexpected sum" in out) == (1, 1, True)
    file.write_text("\n")
    assert "expected a digest per line" in run(capsys, "replay", path, "--expect-file", file)[2]
    assert "found no such file" in run(capsys, "replay", path, "--expect-file", tmp_path / "none")[2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--expect", f"1:0123456789abcdef:0-40:{'0' * 32}"), "found one of 0123456789abcdef"),
        (("--expect", "{}", "--to-position", 30), "expected the digest of positions 0-30, found one of 0-40"),
        (
            ("--expect", "{}", "--rank", 0, "--data-parallel-size", 2, "--micro-batch-size", 2),
            "expected the digest of the share 0/2x2 of a rank, found one of all ranks",
        ),
        (("--expect", "{}x"), "expected a digest of what was read"),
        (("--to-position", 101), "expected a range of the 100 positions"),
        (("--from-position", 20, "--to-position", 10), "expected a range of positions, found 20-10"),
    ],
)
def test_what_cannot_be_compared_is_refused(path, capsys, words, message):
    expected, _ = read(path, 40)
    status, out, err = run(capsys, "replay", path, *(str(word).replace("{}", expected) for word in words))
    assert (status, out) == (1, "")
    assert message in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--from-step", 1), "a step needs --global-batch-size or --batch-size-schedule"),
        (("--rank", 1), "--rank, --data-parallel-size and --micro-batch-size go together"),
        (("--rank", 2, "--data-parallel-size", 2, "--micro-batch-size", 1), "--rank has to be below"),
        (("--expect-file", "digests", "--to-position", 3), "--expect-file says itself which positions to read"),
    ],
)
def test_wrong_usage(path, capsys, words, message, monkeypatch):
    monkeypatch.chdir(path.parent)
    expected, _ = read(path, 40)
    (path.parent / "digests").write_text(expected)
    with pytest.raises(SystemExit) as ended:
        run(capsys, "replay", path, *words)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_run_without_an_end_needs_one(path, capsys):
    path.write_text(path.read_text().replace("samples = 100\n", ""))
    path.with_suffix(".lock").unlink()
    with pytest.raises(SystemExit):
        run(capsys, "replay", path)
    assert "a run without an end needs --to-position" in capsys.readouterr().err
    assert run(capsys, "replay", path, "--to-position", 200)[0] == 0
