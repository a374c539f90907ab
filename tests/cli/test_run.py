"""`tokenloom run`, `ledger` and `replay`."""

from __future__ import annotations

import shutil
from itertools import islice

import pytest
from tests.cli.runs import RUN, lock_of, output, record, rows_of, run, write_run
from tests.run.data import write_source

from tokenloom import MegatronPretrainingSampler, ThreadLoader
from tokenloom.errors import CutShortWarning
from tokenloom.loading.digest import RangeDigest
from tokenloom.run.run import Run
from tokenloom.run.settings import read_run


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_run(tmp_path).unlink()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_blend_becomes_a_run_that_locks(folder, capsys):
    words = ("--data-path", "0.8", "data/web0", "0.2", "data/code", "--sequence-length", 16, "--samples", 50)
    status, out, err = run(capsys, "run", "init", *words)
    assert (status, out, err) == (0, "wrote run.toml: review it, then run `tokenloom run lock run.toml`\n", "")
    text = (folder / "run.toml").read_text()
    assert all(len(line) <= 80 for line in text.splitlines())
    assert text.endswith('name = "main"\nsequence_length = 16\nsamples = 50\nweights = { web0 = 0.8, code = 0.2 }\n')
    assert run(capsys, "run", "lock")[0] == 0


def test_arguments_of_megatron_are_taken_or_named(folder, capsys):
    (folder / "args.sh").write_text(
        "python pretrain_gpt.py --data-path 3 data/web0 1 data/code --seq-length 16 --train-iters 10 "
        "--global-batch-size 4 --seed 5 --split 99,1,0 --lr 1e-4 --bf16 --reset-position-ids\n"
    )
    status, _, err = run(capsys, "run", "init", "--args-file", "args.sh", "--seed", 6)
    assert status == 0
    assert err == (
        "ignored: --split: a run holds out documents per source: use `--holdout`\n"
        "ignored, not about data: --lr, --bf16\n"
    )
    settings = read_run("run.toml")
    assert (settings.seed, settings.stages[0].samples, settings.stages[0].sequence_length) == (6, 40, 16)
    assert settings.samples["reset_position_ids"] is True
    told = record(capsys, "run", "init", "--args-file", "args.sh", "--force")
    assert told["not_taken"] == [
        {"argument": "split", "reason": "a run holds out documents per source: use `--holdout`"}
    ]
    assert told["others"] == ["lr", "bf16"]


@pytest.fixture
def unlocked(tmp_path):
    return write_run(tmp_path)


def test_the_first_lock_says_what_is_locked(unlocked, capsys):
    assert output(capsys, "run", "lock", unlocked, "--dry-run").startswith("would write ")
    assert not unlocked.with_suffix(".lock").exists()
    out = output(capsys, "run", "lock", unlocked)
    assert out.startswith(f"wrote {unlocked.with_suffix('.lock')}: 2 sources, 2 pairs, 6,400 tokens; 100 samples\n")
    assert ["main", "0", "100", "16", "web 75%, code 25%"] in rows_of(out)
    lines = output(capsys, "run", "lock", unlocked).splitlines()
    assert lines[1:] == ["  nothing changed", "  no position moved"]


def test_new_pairs_and_the_first_position_that_moves_are_shown(path, capsys):
    before = digest(capsys, path, 40)
    write_source(str(path.parent / "data" / "web1"), *[16] * 100)
    out = output(capsys, "run", "lock", path, "--consumed-step", 4, "--global-batch-size", 10)
    assert ["web", str(path.parent / "data" / "web1"), "1,600", "40"] in rows_of(out)
    assert ["main", "0", "40", "16", "web 75%, code 25%"] in rows_of(out)
    assert f"  40 consumed positions are unchanged: digest {before[:16]}\n" in out
    assert [pair.since for pair in lock_of(path).sources[0].pairs] == [0, 40]


def test_json_tells_what_moved(path, capsys):
    path.write_text(RUN.replace("web = 3", "web = 2"))
    status, out, err = run(capsys, "run", "lock", path, "--json")
    assert (status, out) == (1, "")
    assert "pass `--consumed-samples N`" in err
    told = record(capsys, "run", "lock", path, "--consumed-samples", 0)
    assert told["written"] is True
    assert told["changes"]["new_segments"][0]["weights"] == {"web": 2, "code": 1}
    assert set(told["moved"]) == {"position", "before", "after"}
    assert told["consumed"] == 0


@pytest.mark.parametrize("is_absolute", [True, False])
def test_data_beside_the_folder_of_the_run(tmp_path, capsys, monkeypatch, is_absolute):
    write_run(tmp_path).unlink()
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "run.toml").write_text(RUN.replace("data/", "../data/"))
    monkeypatch.chdir(tmp_path)
    unlocked = folder / "run.toml" if is_absolute else "runs/run.toml"
    assert run(capsys, "run", "lock", unlocked)[0] == 0
    first = (folder / "run.lock").read_bytes()
    assert b'"prefix": "../data/web0"' in first
    assert str(tmp_path).encode() not in first
    monkeypatch.chdir(folder)
    for again in (unlocked if is_absolute else "run.toml", "../runs/run.toml"):
        status, out, _ = run(capsys, "run", "lock", again)
        assert (status, "nothing changed" in out, (folder / "run.lock").read_bytes()) == (0, True, first)


def test_absolute_data_keep_their_names(tmp_path, capsys):
    unlocked = write_run(tmp_path / "one", RUN.replace('"data/code"', f'"{tmp_path}/two/code"'))
    write_source(str(tmp_path / "two" / "code"), *[64] * 50)
    run(capsys, "run", "lock", unlocked)
    assert f'"prefix": "{tmp_path}/two/code"' in unlocked.with_suffix(".lock").read_text()
    assert "nothing changed" in run(capsys, "run", "lock", unlocked)[1]


def test_a_run_that_ends_early_says_so(unlocked, capsys):
    unlocked.write_text(RUN.replace('code = "data/code"', 'code = { data = "data/code", max_passes = 1 }') + LONGER)
    status, out, err = run(capsys, "run", "lock", unlocked)
    end = lock_of(unlocked).segments[-1].start + lock_of(unlocked).segments[-1].num_samples
    words = f"the run ends at position {end}, before its stages do: source 'code' reaches `max_passes` there"
    assert (status, err.startswith(f"warning: {words}")) == (1, True)
    with pytest.warns(CutShortWarning, match=words):
        Run.open(unlocked)
    with pytest.warns(CutShortWarning):
        status, out, _ = run(capsys, "run", "plan", unlocked)
    assert (status, out.endswith(f"end: position {end:,}, before the stages end\n")) == (1, True)
    unlocked.write_text(unlocked.read_text() + 'on_exhausted = "renormalise"\n')
    assert run(capsys, "run", "lock", unlocked, "--consumed-samples", 0)[::2] == (0, "")
    assert run(capsys, "run", "plan", unlocked)[0] == 0


LONGER = '[[stages]]\nname = "long"\nsequence_length = 32\nsamples = 900\nweights = { web = 1, code = 1 }\n'


def digest(capsys, path, position) -> str:
    return record(capsys, "run", "digest", path, "--position", position)["digest"]


def test_new_weights_from_a_step_on(path, capsys):
    before = digest(capsys, path, 40)
    words = ("--at-step", 4, "--global-batch-size", 10, "--weights", "web=1,code=1", "--stage-name", "even")
    out = output(capsys, "run", "amend", path, *words)
    assert path.read_text() == RUN.replace("samples = 100", "samples = 40") + (
        '\n[[stages]]\nname = "even"\nsequence_length = 16\nsamples = 60\nweights = { web = 1, code = 1 }\n'
    )
    assert "-samples = 100\n+samples = 40\n" in out
    assert ["even", "40", "60", "16", "web 50%, code 50%"] in rows_of(out)
    assert f"  40 earlier positions are unchanged: digest {before[:16]}\n" in out
    assert digest(capsys, path, 40) == before


def test_a_dry_run_changes_nothing(path, capsys):
    lock = path.with_suffix(".lock").read_bytes()
    told = record(capsys, "run", "amend", path, "--at-position", 41, "--weights", "code=1", "--dry-run")
    assert (told["written"], told["position"], told["consumed"]) == (False, 41, 0)
    assert "+samples = 41" in told["diff"]
    assert path.read_text() == RUN
    assert path.with_suffix(".lock").read_bytes() == lock


def test_sources_lengths_and_sizes(path, capsys):
    write_source(str(path.parent / "data" / "books"), *[100] * 20)
    words = ("--add-source", f"books={path.parent}/data/books", "--weights", "web=1,books=1", "--sequence-length", 32)
    out = output(capsys, "run", "amend", path, "--at-position", 50, *words, "--tokens", "1K")
    assert ["new sources", "books"] in rows_of(out)
    assert ["from 50", "50", "31", "32", "web 50%, books 50%"] in rows_of(out)
    assert [segment.sequence_length for segment in lock_of(path).segments] == [16, 32]


def test_data_grow_and_documents_are_denied(path, capsys):
    before = digest(capsys, path, 30)
    write_source(str(path.parent / "data" / "web1"), *[16] * 100)
    (path.parent / "takedown.txt").write_text("web:3\nweb:4\n")
    status, _, err = run(capsys, "run", "amend", path, "--at-position", 30, "--deny", path.parent / "takedown.txt")
    assert status == 1
    assert "`data` of source 'web' has a new pair, " in err
    words = ("--deny", path.parent / "takedown.txt", "--grow")
    out = output(capsys, "run", "amend", path, "--at-position", 30, *words)
    assert ["1,600", "30"] in [row[2:] for row in rows_of(out) if row[0] == "web"]
    assert ["denied", "2"] in rows_of(out)
    assert lock_of(path).denials[0].start == 30
    assert digest(capsys, path, 30) == before


@pytest.fixture
def capped(tmp_path, capsys):
    text = RUN.replace('code = "data/code"', 'code = { data = "data/code", max_passes = 1 }')
    capped = write_run(tmp_path, text.replace("samples = 100", 'samples = 1000\non_exhausted = "renormalise"'))
    run(capsys, "run", "lock", capped)
    return capped


def test_stages_passes_caps_and_what_stays_unseen(capped, capsys):
    out = output(capsys, "run", "plan", capped)
    head = f"{capped}: 2 sources, 1,000 samples, 16,000 tokens\nrun {Run.open(capped).identity}\n"
    assert out.startswith(f"{head}\nstage main from position 0\n")
    assert out.count("\nstage main from position ") == 2
    assert "cap: code reaches 1 pass at position 797:\n     the run continues with the other sources\n" in out
    rows = [line.split() for line in out.splitlines()]
    assert ["source", "passes", "tokens", "offered", "seen", "unseen", "cut", "off"] in rows
    assert ["web", "5", "15,200", "12,816", "2,304", "80"] in rows
    assert out.endswith("end: position 1,000\n")
    assert all(len(line) <= 80 for line in out.splitlines()[1:])


def test_steps_and_dates(capped, capsys):
    words = ("--global-batch-size", 10, "--tokens-per-second", 16, "--start", "2026-12-01")
    out = output(capsys, "run", "plan", capped, *words)
    assert "stage main from position 0 (step 0, 2026-12-01 00:00)" in out
    assert out.endswith("end: position 1,000 (step 100, 2026-12-01 00:16)\n")
    told = record(capsys, "run", "plan", capped, *words)
    assert told["end"] == {"position": 1000, "step": 100, "seconds": 1000.0, "date": "2026-12-01T00:16:40"}
    assert told["caps"][0]["step"] == 79
    assert "end: position 1,000 (after 16 min 40 s)\n" in output(capsys, "run", "plan", capped, *words[2:4])
    slow = ("--tokens-per-second", 1e-9, "--start", "2026-12-01")
    assert "is after the year 9999" in run(capsys, "run", "plan", capped, *slow)[2]


def test_an_amended_run_differs_from_its_older_lock(path, capsys):
    shutil.copy(path.with_suffix(".lock"), path.with_name("before.lock"))
    words = ("--at-step", 6, "--global-batch-size", 10, "--weights", "web=1,code=1")
    assert run(capsys, "run", "amend", path, *words)[0] == 0
    status, out, _ = run(capsys, "run", "diff", path.with_name("before.lock"), path)
    assert status == 1
    assert "the first 6" in out
    assert "100 samples of 16 tokens from 0 on: web: 3, code: 1" in out
    told = record(capsys, "run", "diff", path.with_name("before.lock"), path, "--until-position", 60)
    assert (told["position"], told["stop"]) == (None, 60)


def test_digest_is_of_a_position_or_step(path, capsys):
    digest, _, rest = output(capsys, "run", "digest", path, "--position", 30).partition("  ")
    assert len(digest) == 64
    assert rest == f"{path} before position 30\n"
    assert record(capsys, "run", "digest", path, "--at-step", 3, "--global-batch-size", 10)["digest"] == digest
    assert record(capsys, "run", "digest", path)["position"] == 100
    by_schedule = record(capsys, "run", "digest", path, "--at-step", 4, "--batch-size-schedule", "0:4 160:8")
    assert by_schedule["position"] == 4 * 3 + 8


def test_the_identity_of_a_run_stays_while_it_changes(path, capsys):
    identity = Run.open(path).identity
    assert output(capsys, "run", "id", path) == f"{identity}  {path}\n"
    assert output(capsys, "run", "id", path.with_name("run.lock")).startswith(identity)
    told = record(capsys, "run", "id", path)
    assert told == {"path": str(path), "run": identity, "position": None, "digest": None, "num_samples": 100}
    assert f"id={identity[:16]}" in repr(Run.open(path))
    for command in ("plan", "check"):
        assert ["run", identity] in [line.split() for line in output(capsys, "run", command, path).splitlines()]
        assert record(capsys, "run", command, path)["run"] == identity
    before = record(capsys, "run", "id", path, "--position", 60)["digest"]
    words = ("--at-step", 6, "--global-batch-size", 10, "--weights", "web=1,code=1")
    assert run(capsys, "run", "amend", path, *words)[0] == 0
    lines = output(capsys, "run", "id", path, "--position", 60).splitlines()
    assert lines == [f"{identity}  {path}", f"{before}  order before position 60"]


def test_check_finds_what_changed(tmp_path, capsys):
    path = write_run(tmp_path, manifests=True)
    run(capsys, "run", "lock", path)
    for words in ((), ("--full",)):
        rows = rows_of(output(capsys, "run", "check", path, *words))
        assert rows[1] == ["ok"]
        assert ["pairs", "2"] in rows
    data = path.parent / "data" / "code.bin"
    content = bytearray(data.read_bytes())
    content[100] ^= 1
    data.write_bytes(content)
    assert run(capsys, "run", "check", path)[0] == 0
    status, out, _ = run(capsys, "run", "check", path, "--full")
    assert (status, rows_of(out)[1]) == (1, ["1 problem"])
    assert "code.bin` changed after it was locked" in out
    problems = record(capsys, "run", "check", path, "--full", status=1)["problems"]
    assert [problem["source"] for problem in problems] == ["code"]


def test_check_says_what_has_no_checksum(path, capsys):
    out = output(capsys, "run", "check", path, "--full")
    assert (rows_of(out)[1], out.count("\nunknown: ")) == (["ok"], 4)


def test_stream_reads_from_a_position(path, capsys):
    pytest.importorskip("torch")
    words = ("--position", 40, "--micro-batch-size", 4, "--batches", 3)
    rows = rows_of(output(capsys, "run", "stream", path, *words))
    assert rows[1][0].endswith(" tokens/s")
    assert rows[3:7] == [["position", "40"], ["batches", "3"], ["samples", "12"], ["tokens", "192"]]
    assert [row[0] for row in rows[7:10]] == ["seconds", "wait seconds", "longest wait seconds"]
    told = record(capsys, "run", "stream", path, "--holdout", "--micro-batch-size", 2)
    assert (told["num_samples"], told["num_tokens"]) == (8, 8 * 16)
    status, _, err = run(capsys, "run", "stream", path, "--position", 97)
    assert status == 1
    assert "position 97 is followed by 3 samples, fewer than a batch of 8" in err


def test_rows_sums_and_balance(path, capsys):
    out = output(capsys, "ledger", path)
    ledger = Run.open(path).ledger()
    assert f"\nstage main, positions 0 to {ledger.position}\n" in out
    rows = [line.split() for line in out.splitlines()]
    assert ["source", "samples", "in", "with", "loss", "without", "never", "left"] in rows
    assert "\n  web: first token of a pass or text " in out
    assert ["tokens", "offered", f"{ledger.total.offered:,}"] in rows
    assert ["tokens", "with", "loss", f"{ledger.total.counts.with_loss:,}"] in rows
    assert out.endswith("\nbalance 0\n")
    assert all(len(line) <= 80 for line in out.splitlines()[1:])


def test_steps_positions_and_json(path, capsys):
    words = ("--until-step", 3, "--global-batch-size", 10)
    told = record(capsys, "ledger", path, *words)
    assert (told["position"], told["balance"], told["total"]["samples"]) == (30, 0, 30)
    assert [stage["stage"] for stage in told["stages"]] == ["main"]
    assert {source["source"] for source in told["sources"]} == {"web", "code"}
    assert told == record(capsys, "ledger", path, "--until-position", 30)


def read(path, stop, *, size=1):
    """Returns the digest of what `size` ranks read before position `stop`."""
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
        f"{expected}\nexpected sum {other[-32:]}: training read other samples, or the data has changed since\n",
    )
    assert record(capsys, "replay", path, "--expect", other, status=1) == {
        "digest": expected, "run": expected[2:18], "start": 0, "stop": 40, "num_samples": 40,
        "expected": other[-32:], "matches": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--expect", f"1:0123456789abcdef:0-40:{'0' * 32}"), "found one of 0123456789abcdef"),
        (("--expect", "{}", "--to-position", 30), "expected a digest of positions 0-30, found one of 0-40"),
        (("--expect", "{}x"), "is not a digest such as 1:RUN:START-STOP:"),
        (("--to-position", 101), "range 0-101 out of range: "),
    ],
)
def test_what_cannot_be_compared_is_refused(path, capsys, words, message):
    expected = read(path, 40)
    status, out, err = run(capsys, "replay", path, *(str(word).replace("{}", expected) for word in words))
    assert (status, out) == (1, "")
    assert message in err
