"""`tokenloom run`, `ledger`, `replay`, `trace`, `when` and `deny`."""

import math
import os
import re
import shlex
import shutil
from itertools import islice
from operator import itemgetter
from pathlib import Path

import numpy as np
import pytest
from tests.cli.runs import RUN, lock_of, objects, output, record, rows_of, run, write_run
from tests.indexed.columns import put_hashes, put_origins
from tests.run.data import write_lines_origins, write_source

from tokenloom import MegatronPretrainingSampler, ThreadLoader
from tokenloom.cli import reading
from tokenloom.errors import CutShortWarning
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.origins import RUNS, OriginFile
from tokenloom.inputs.records import Texts
from tokenloom.loading.losses import LossRecorder, span_losses
from tokenloom.loading.sample_digests import RangeDigest
from tokenloom.preprocess.selection import hash_documents
from tokenloom.run.run import Run
from tokenloom.run.settings import read_run


@pytest.fixture
def path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Returns `run.toml` of a locked run."""
    path = write_run(tmp_path)
    assert run(capsys, "run", "lock", path)[0] == 0
    return path


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
    reason = "a run holds out documents per source: use `--holdout`"
    assert err == f"ignored: --split: {reason}\nignored, not about data: --lr, --bf16\n"
    settings = read_run("run.toml")
    assert (settings.seed, settings.stages[0].samples, settings.stages[0].sequence_length) == (6, 40, 16)
    assert settings.samples["reset_position_ids"] is True
    told = record(capsys, "run", "init", "--args-file", "args.sh", "--force")
    reason = "a run holds out documents per source: use `--holdout`"
    assert told["not_taken"] == [{"argument": "split", "reason": reason}]
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
    assert (status, out, "pass `--consumed-samples N`" in err) == (1, "", True)
    told = record(capsys, "run", "lock", path, "--consumed-samples", 0)
    assert told["changes"]["new_segments"][0]["weights"] == {"web": 2, "code": 1}
    assert (told["written"], told["consumed"]) == (True, 0)
    assert set(told["moved"]) == {"position", "before", "after"}


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


LONGER = '[[stages]]\nname = "long"\nsequence_length = 32\nsamples = 900\nweights = { web = 1, code = 1 }\n'


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


def digest(capsys, path, position) -> str:
    return record(capsys, "run", "digest", path, "--position", position)["digest"]


def test_new_weights_from_a_step_on(path, capsys):
    before = digest(capsys, path, 40)
    words = ("--at-step", 4, "--global-batch-size", 10, "--weights", "web=1,code=1", "--stage-name", "even")
    out = output(capsys, "run", "amend", path, *words)
    more = '\n[[stages]]\nname = "even"\nsequence_length = 16\nsamples = 60\nweights = { web = 1, code = 1 }\n'
    assert path.read_text() == RUN.replace("samples = 100", "samples = 40") + more
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
    assert (status, "`data` of source 'web' has a new pair, " in err) == (1, True)
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
    assert (status, "the first 6" in out) == (1, True)
    assert "100 samples of 16 tokens, from position 0 (web: 3, code: 1)" in out
    told = record(capsys, "run", "diff", path.with_name("before.lock"), path, "--until-position", 60)
    assert (told["position"], told["stop"]) == (None, 60)


def test_digest_is_of_a_position_or_step(path, capsys):
    digest, _, rest = output(capsys, "run", "digest", path, "--position", 30).partition("  ")
    assert (len(digest), rest) == (64, f"{path} before position 30\n")
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


def test_check_finds_what_changed_and_what_has_no_checksum(path, tmp_path, capsys):
    out = output(capsys, "run", "check", path, "--full")
    assert (rows_of(out)[1], out.count("\nunknown: ")) == (["ok"], 4)
    path = write_run(tmp_path / "with_manifests", manifests=True)
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
    assert (status, "from position 97 on, 3 samples are left, fewer than a batch of 8" in err) == (1, True)


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
    told = record(capsys, "ledger", path, "--until-step", 3, "--global-batch-size", 10)
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
    reason = f"expected sum {other[-32:]}: training read other samples, or the data has changed since"
    assert (status, out) == (1, f"{expected}\n{reason}\n")
    assert record(capsys, "replay", path, "--expect", other, status=1) == {
        "digest": expected, "run": expected[2:18], "start": 0, "stop": 40, "num_samples": 40,
        "expected": other[-32:], "matches": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--expect", f"1:0123456789abcdef:0-40:{'0' * 32}"), "found a digest of run 0123456789abcdef"),
        (("--expect", "{}", "--to-position", 30), "expected a digest of positions 0-30, found positions 0-40"),
        (("--expect", "{}x"), "is not a digest such as 1:RUN:START-STOP:"),
        (("--to-position", 101), "positions 0-101 out of range: "),
    ],
)
def test_what_cannot_be_compared_is_refused(path, capsys, words, message):
    expected = read(path, 40)
    status, out, err = run(capsys, "replay", path, *(str(word).replace("{}", expected) for word in words))
    assert (status, out, message in err) == (1, "", True)


def test_a_position_is_shown_with_the_documents_that_it_is_made_of(path, capsys):
    place = Run.open(path).dataset().place(7)
    first, second, *rest = output(capsys, "show", "--run", path, "--position", 7).splitlines()
    assert first == "position 7 of the run"
    assert second.startswith(f"source {place.source}, pass 0, window {place.window}, stage main, tokens 17, ")
    headings = [line for line in rest if line.startswith("── ")]
    assert headings
    assert all(f" of {place.source}, " in heading for heading in headings)


def test_denied_documents_are_marked(path, capsys):
    dataset = Run.open(path).dataset()
    position = next(position for position in range(10, 100) if dataset.place(position).source == "code")
    document = int(dataset.spans(position).documents[0])
    (path.parent / "deny").write_text(f"code:{document}\n")
    run(capsys, "run", "amend", path, "--at-position", 10, "--deny", path.parent / "deny")
    out = output(capsys, "show", "--run", path, "--position", position)
    assert f"── document {document} of code, " in out
    assert ", denied: padding ──" in out
    assert re.search(r"^\[denied: padding x \d+\]$", out, re.MULTILINE)


NAMES = ("position", "step", "rank", "micro_batch", "source", "pass", "document", "start", "length", "file", "record")
NAMES += ("slot", "denied", "stage", "walk", "window", "pair", "row", "run")
GLOBAL = ("--global-batch-size", 8)
DEALT = (*GLOBAL, "--micro-batch-size", 2, "--data-parallel-size", 2)


@pytest.fixture
def with_lines(tmp_path, capsys):
    """A run whose source `code` has origins: two documents per line of a file, `web` none."""
    path = write_run(tmp_path)
    lines = tmp_path / "raw" / "code" / "lines.jsonl"
    lines.parent.mkdir(parents=True)
    lines.write_text("".join(f'{{"text": "line {number}"}}\n' for number in range(1, 52)))
    facts = {"num_bytes": lines.stat().st_size, "version": str(lines.stat().st_mtime_ns), "num_records": 51}
    file = OriginFile(path=str(lines), unit="line", **facts)
    put_origins(str(tmp_path / "data" / "code"), [file], [np.array([(0, 2, 50)], dtype=RUNS)])
    run(capsys, "run", "lock", path)
    return path


def test_a_step_as_ranks_read_it(with_lines, capsys):
    rows = objects(capsys, "trace", with_lines, "--step", 3, *DEALT)
    assert tuple(rows[0]) == NAMES
    assert {(row["step"], row["run"], row["stage"]) for row in rows} == {(3, Run.open(with_lines).identity, "main")}
    for rank in range(2):
        batches = list(MegatronPretrainingSampler(100, 24, 2, rank, 2))[:2]
        for number, batch in enumerate(batches):
            positions = {row["position"] for row in rows if (row["rank"], row["micro_batch"]) == (rank, number)}
            assert positions == set(batch)
        mine = [row for row in rows if row["rank"] == rank]
        assert objects(capsys, "trace", with_lines, "--step", 3, *DEALT, "--rank", rank) == mine


def test_positions_and_ranges_of_them(with_lines, capsys):
    rows = objects(capsys, "trace", with_lines, "--position", "7,20:22", "--sample", 3)
    assert list(dict.fromkeys(row["position"] for row in rows)) == [7, 20, 21, 3]
    assert {(row["step"], row["rank"]) for row in rows} == {(None, None)}
    plain = [row for k in (7, 20, 21, 3) for row in Run.open(with_lines).trace([k]).rows()]
    assert [row | {"file": None, "record": None} for row in rows] == plain
    tokens = Run.open(with_lines).dataset().sample(20)["tokens"]
    assert sum(row["length"] for row in rows if row["position"] == 20) == len(tokens) + 1
    dealt = objects(capsys, "trace", with_lines, "--position", 20, "--batch-size-schedule", "0:8 160:4")
    assert dealt[0]["step"] == 1 + 1 + (20 - 16) // 4  # 8, 8 as 160 tokens are 10 samples, then 4
    rows = objects(capsys, "trace", with_lines, "--position", "20:30")
    expected = [row | {"step": row["position"] // 5} for row in rows]
    assert objects(capsys, "trace", with_lines, "--step", "4:6", "--global-batch-size", 5) == expected


def test_files_and_records(with_lines, capsys):
    rows = objects(capsys, "trace", with_lines, "--position", "0:100")
    code = [row for row in rows if row["source"] == "code"]
    assert code
    assert all(row["record"] == row["document"] + 2 for row in code)
    assert {os.path.basename(row["file"]) for row in code} == {"lines.jsonl"}
    web = [row for row in rows if row["source"] == "web"]
    assert {(row["file"], row["record"]) for row in web} == {(None, None)}
    status, out, err = run(capsys, "trace", with_lines, "--position", "0:100")
    assert (status, err.count("\n")) == (0, 1)
    assert err.startswith("input files are unknown for 1 pair without origins (`")
    assert "`tokenloom preprocess`, which writes PREFIX.origins.npy" in err
    lines = out.splitlines()
    assert lines[0] == f"run {Run.open(with_lines).identity}"
    assert lines[1].startswith("stage ")
    assert lines[3].split()[-4:] == ["start", "length", "document", "origin"]
    shown = [line for line in lines if "lines.jsonl:" in line]
    assert len(shown) == len(code)
    assert len(lines) == 6 + len(rows)


def test_texts_and_records_read_again(with_lines, capsys):
    rows = objects(capsys, "trace", with_lines, "--position", "0:20", "--text", "--from-input")
    for row in rows:
        tokens = IndexedDataset(row["pair"]).get(row["row"], row["start"], row["length"])
        assert row["text"] == " ".join(map(str, tokens))  # the run names no tokenizer
        known = row["source"] == "code"
        assert row["input"] == (f'{{"text": "line {row["record"]}"}}' if known else None)
    _, out, _ = run(capsys, "trace", with_lines, "--position", 0, "--text")
    assert re.search(r"\n(web|code):\d+ text \| \d+ ", out)


@pytest.fixture
def recorded(tmp_path, capsys):
    """A run whose source `code` has origins, without lines 1 and 52 of the file, and hashes of its texts."""
    path = write_run(tmp_path, RUN.replace("samples = 100", "samples = 900"))
    prefix = str(tmp_path / "data" / "code")
    write_lines_origins(prefix, [(0, 2, 50)], path="/raw/code/0007.jsonl", num_records=52)
    put_hashes(prefix, hash_documents([Texts(texts=[f"text {number}" for number in range(50)])], 50))
    run(capsys, "run", "lock", path)
    return path


spot = itemgetter("position", "pass", "document", "start", "length", "walk", "window")


def traced(path, document: int, source: str = "code") -> list[tuple]:
    rows = Run.open(path).trace(np.arange(900)).rows()
    return [spot(row) for row in rows if (row["source"], row["document"]) == (source, document)]


def test_a_document_of_a_source(recorded, capsys):
    rows = objects(capsys, "when", recorded, "--document", "code:7", *DEALT)
    assert [spot(row) for row in rows] == traced(recorded, 7)
    assert rows
    assert {(row["source"], row["record"], row["file"]) for row in rows} == {("code", 9, "/raw/code/0007.jsonl")}
    assert [row["step"] for row in rows] == [row["position"] // 8 for row in rows]
    assert [row["rank"] for row in rows] == [row["position"] % 4 // 2 for row in rows]
    unknown = {(row["match"], row["num_matched"], row["seen"], row["denied"]) for row in rows}
    assert unknown == {(None, None, None, False)}
    several = objects(capsys, "when", recorded, "--document", "code:7", "--document", "web:3", "--document", "code:8")
    expected = [*traced(recorded, 7), *traced(recorded, 8), *traced(recorded, 3, "web")]
    assert [spot(row) for row in several] == sorted(expected, key=lambda spot: spot[0])


def test_a_record_and_a_text(recorded, tmp_path, capsys):
    (tmp_path / "text").write_text("text 7\n")
    named = (("--record", "code/0007.jsonl:9"), ("--document", "0007.jsonl:9"), ("--text-file", tmp_path / "text"))
    for words in named:
        assert [spot(row) for row in objects(capsys, "when", recorded, *words)] == traced(recorded, 7)
    status, out, err = run(capsys, "when", recorded, "--record", "0007.jsonl:1")
    assert (status, "never read" in out) == (0, True)
    assert "0007.jsonl:1 has no document in this run: the record was blank, bad, a duplicate, or is part of" in err
    assert "without origins" in err  # `web` may contain that record


def test_tokens_and_the_spans_that_hold_them(recorded, capsys):
    everything = objects(capsys, "when", recorded, "--document", "code:7")
    rows = objects(capsys, "when", recorded, "--ids", ",".join(["7"] * 60), "--until-position", 900)
    code = [row for row in rows if row["source"] == "code"]  # sixty-four of them, so five places
    assert {(row["match"], row["num_matched"]) for row in code} == {(start, 60) for start in range(5)}
    for row in code:
        assert row["start"] < row["match"] + 60
        assert row["match"] < row["start"] + row["length"]
    assert {spot(row) for row in code} <= {spot(row) for row in everything}
    assert not [row for row in rows if row["source"] == "web"]  # thirty-two tokens each


def test_what_was_seen_and_what_is_denied(recorded, tmp_path, capsys):
    run(capsys, "run", "lock", recorded, "--consumed-samples", 300)
    recorded.write_text(recorded.read_text() + '[[denied]]\ndocuments = ["code:7"]\nfrom = 600\n')
    run(capsys, "run", "lock", recorded, "--consumed-samples", 300)
    assert lock_of(recorded).consumed == 300
    rows = objects(capsys, "when", recorded, "--document", "code:7")
    assert {(row["seen"], row["position"] < 300) for row in rows} == {(True, True), (False, False)}
    assert all(row["denied"] == (row["position"] >= 600) for row in rows)
    lines = output(capsys, "when", recorded, "--document", "code:7", *DEALT).splitlines()
    assert lines[0].startswith("run ")
    assert lines[1] == "1 document"
    expected = ["denied" if row["denied"] else "seen" if row["seen"] else "come" for row in rows]
    assert [line.rsplit(None, 1)[1] for line in lines[-2 - len(rows) : -2]] == expected
    assert lines[-1] == f"{len(rows)} spans"
    assert max(map(len, lines[1:])) <= 80


def test_denials_as_lines(recorded, capsys):
    words = ("--document", "web:3", "--record", "0007.jsonl:9", "--reason", 'asked for in "May"')
    words += ("--from-step", 30, "--global-batch-size", 10, "--since-start")
    status, out, err = run(capsys, "deny", recorded, *words)
    assert status == 0
    assert err.startswith("copies of these records may still be read: input files are unknown for ")
    lines = out.splitlines()
    assert '+documents = ["0007.jsonl:9", "web:3"]' in lines
    assert "+from = 300" in lines
    assert '+reason = "asked for in \\"May\\""' in lines
    rows = {cells[0]: cells[1] for line in lines if len(cells := re.split(r"  +", line.strip())) == 2}
    assert (rows["position"], rows["documents"]) == ("300", "web:3, code:7")
    opened = Run.open(recorded)
    changed = opened.when("web:3", "code:7", start=300)
    assert changed.denied.all()
    assert rows["positions"] == str(len(np.unique(changed.positions)))
    assert rows["tokens"] == f"{changed.lengths.sum():,}"
    assert rows["digest before"] == rows["digest after"] == opened.digest(300)
    assert "spans that become padding:" in lines
    assert "spans read before the denial:" in lines
    assert lines[-1] == "nothing else moves"


def test_denials_as_json(recorded, capsys):
    words = ("--document", "web:3", "--document", "web:4", "--from-position", 300)
    told = record(capsys, "deny", recorded, *words, "--dry-run")
    assert list(told) == [
        "path", "written", "position", "reason", "documents", "already_denied", "held_out", "no_document",
        "unknown_pairs", "listed_until", "num_positions", "num_tokens", "changed", "seen", "digest",
        "order_without_denials", "diff",
    ]  # fmt: skip
    assert (told["written"], told["position"], told["reason"], told["listed_until"]) == (False, 300, None, 900)
    assert (told["documents"], told["already_denied"], told["seen"]) == (["web:3", "web:4"], [], None)
    assert told["digest"]["before"] == told["digest"]["after"] == Run.open(recorded).digest(300)
    assert told["order_without_denials"]["before"] == told["order_without_denials"]["after"]
    assert {row["document"] for row in told["changed"]} == {3, 4}
    assert told["num_tokens"] == sum(row["length"] for row in told["changed"])
    assert told["num_positions"] == len({row["position"] for row in told["changed"]})
    told = record(capsys, "deny", recorded, *words, *DEALT, "--since-start", "--until-step", 50)
    assert (told["written"], told["listed_until"]) == (True, 400)
    assert {row["step"] == row["position"] // 8 for row in told["changed"] + told["seen"]} == {True}
    assert max(row["position"] for row in told["seen"]) < 300 <= min(row["position"] for row in told["changed"])
    assert all(row["rank"] is not None for row in told["seen"])


def record_losses(folder, positions, losses, *, name="losses"):
    with LossRecorder(folder / name) as recorder:
        recorder.append(positions, losses)


def test_documents_by_their_share_of_a_step(path, tmp_path, capsys):
    record_losses(tmp_path, range(24, 32), [[1.0] * 4] * 6 + [[100.0, 1.0, 1.0, 1.0]] * 2)
    spans = list(Run.open(path).trace(range(24, 32)).rows())
    by_document: dict[tuple, float] = {}
    for span in spans:
        key = span["source"], span["document"]
        by_document[key] = by_document.get(key, 0) + (100 if span["position"] >= 30 and not span["slot"] else 1)
    rows = objects(capsys, "trace", path, "--step", 3, *GLOBAL, "--worst", 3)
    assert [row["loss"] for row in rows] == sorted(by_document.values(), reverse=True)[:3]
    total = sum(by_document.values())
    for row in rows:
        assert row["loss"] == by_document[row["source"], row["document"]]
        assert row["share"] == row["loss"] / total
        assert row["loss_of"] == "document"
        own = [span for span in spans if (span["source"], span["document"]) == (row["source"], row["document"])]
        assert row["positions"] == [span["position"] for span in own]
        assert row["length"] == sum(span["length"] for span in own)
        assert len(row["text"].split()) == own[0]["length"]  # ids: the run names no tokenizer
    assert len(objects(capsys, "trace", path, "--step", 3, *GLOBAL, "--worst", 100)) == len(by_document)


def test_a_table_and_a_command_to_type(path, tmp_path, capsys):
    record_losses(tmp_path, [24, 25, 26], [3.0, math.nan, 1234.5], name="other")
    words = ("--losses", tmp_path / "other", *GLOBAL, "--worst", 4)
    out = output(capsys, "trace", path, "--step", 3, *words)
    lines = out.splitlines()
    assert lines[:2] == [f"run {Run.open(path).identity}", "8 positions, 5 without a recorded loss; loss nan"]
    rows = rows_of(out)
    place = rows.index(["document", "share", "loss", "per token", "tokens", "samples", "origin"])
    assert re.fullmatch(r"(web|code):\d+ ~- nan nan \d+ 1", " ".join(rows[place + 2][:-1]))
    assert any(line.startswith(f"{rows[place + 2][0]} text | ") for line in lines)
    assert "~ estimate: the loss of the sample, divided among its documents in proportion to their tokens" in lines
    command = shlex.split(out[out.index("tokenloom deny") :].replace("\\\n", ""))
    assert command[:6] == ["tokenloom", "deny", str(path), "--from-step", "3", "--global-batch-size"]
    assert len(command) == 7 + 2 * 4
    assert "nothing else moves" in output(capsys, *command[1:])
    after = objects(capsys, "trace", path, "--position", "24:27", "--worst", 100, "--losses", tmp_path / "other")
    denied = {command[place + 1] for place, word in enumerate(command) if word == "--document"}
    assert not denied & {f"{row['source']}:{row['document']}" for row in after}


def test_a_command_begins_behind_what_is_consumed(path, tmp_path, capsys):
    record_losses(tmp_path, range(8), [1.0] * 8)
    run(capsys, "run", "lock", path, "--consumed-samples", 30)
    for words, expected in (
        (("--step", 0, *GLOBAL), "--from-step 4 --global-batch-size 8 "),
        (("--step", 0, "--batch-size-schedule", "0:8 160:4"), "--from-step 6 --batch-size-schedule '0:8 160:4' "),
        (("--position", "0:8"), "--from-position 30 "),
    ):
        out = output(capsys, "trace", path, *words, "--worst", 1)
        assert f"  tokenloom deny {path} {expected}" in out.replace("\\\n   ", "")


def test_when_shows_the_losses_of_reads(path, tmp_path, capsys):
    (span,) = list(Run.open(path).trace([24]).rows())[:1]
    name = f"{span['source']}:{span['document']}"
    assert "loss" not in output(capsys, "when", path, "--document", name)
    record_losses(tmp_path, [24], [[2.0 * span["length"]]])
    out = output(capsys, "when", path, "--document", name)
    (heading,) = [line for line in out.splitlines() if line.rstrip().endswith(" loss")]
    rows = [line for line in out.splitlines() if line.lstrip().startswith("24 ")]
    assert rows[0].rstrip()[heading.index("loss") :].strip() == "2"
    reads = objects(capsys, "when", path, "--document", name)
    found = {row["position"]: (row["loss"], row["loss_of"]) for row in reads}
    assert found.pop(24) == (2.0 * span["length"], "document")
    assert set(found.values()) <= {(None, None)}


def test_when_reads_losses_once_and_shows_high_ones_in_colour(path, tmp_path, capsys, monkeypatch):
    spans = list(Run.open(path).trace(range(40)).rows())
    record_losses(tmp_path, range(40), [{24: 4 * 17, 25: 2 * 17}.get(position, 17) for position in range(40)])
    calls = []
    monkeypatch.setattr(reading, "span_losses", lambda *words: calls.append(words) or span_losses(*words))
    monkeypatch.setattr(reading, "_CHUNK_DOCUMENTS", 1)
    monkeypatch.setenv("FORCE_COLOR", "1")
    names = [word for span in spans for word in ("--document", f"{span['source']}:{span['document']}")]
    _, out, _ = run(capsys, "when", path, *names)
    assert len(calls) == 1
    lines = {words[0]: line for line in out.splitlines() if (words := line.split())[:1] > ["23"]}
    assert re.search(r"\x1b\[1;31m *~4\x1b\[0m", lines["24"])
    assert re.search(r"\x1b\[33m *~2\x1b\[0m", lines["25"])
    assert lines["26"].split()[-1] == "~1"


def test_what_goes_wrong_is_said(path, tmp_path, capsys):
    status, _, err = run(capsys, "trace", path, "--position", 3, "--worst", 5)
    assert (status, f"no folder `losses` beside `{path}`" in err) == (1, True)
    record_losses(tmp_path, [3], [1.0])
    (file,) = (tmp_path / "losses").iterdir()
    file.write_bytes(file.read_bytes()[:-3])
    status, out, err = run(capsys, "trace", path, "--position", 3, "--worst", 5)
    assert (status, out.splitlines()[1]) == (0, "1 position, 1 without a recorded loss; loss 0")
    assert f"`{file}`: the last record is incomplete, and is ignored" in err
