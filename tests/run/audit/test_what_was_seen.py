"""A loop reads through every kind of change; what it saw is then found in the input files, and back."""

import gzip
import json
from collections import Counter, defaultdict
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.runs import run as command

from tokenloom.indexed.layout import column_path
from tokenloom.loading.sample_digests import ReadingDigest
from tokenloom.loading.thread_loader import ThreadLoader
from tokenloom.run.audit.source_origins import SourceOrigins
from tokenloom.run.run import Run
from tokenloom.samplers import MegatronPretrainingSampler
from tokenloom.tokenizers.load import load_tokenizer

LENGTH = 32
BATCH = 4
NUM_STEPS = 240
BLEND, GROWTH, DENIAL = 60, 120, 180
"""Steps at which the run changes."""

TOPOLOGIES = ((0, 2), (90, 4), (110, 1), (NUM_STEPS, 0))
"""Steps from which on there are so many ranks."""

RUN = f"""\
order = 1
seed = 20
tokenizer = "byte"
mixing_block = 16

[sources]
web = "data/web*_document"
code = "data/code_text_document"

[[stages]]
name = "main"
sequence_length = {LENGTH}
samples = {NUM_STEPS * BATCH}
weights = {{ web = 3, code = 1 }}
"""


class Loop:
    """Reads batches on some ranks in this process and logs what it sees, by source; the ranks share `state`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state: dict[str, Any] | None = None
        self.batches: dict[tuple[int, int], np.ndarray] = {}
        self.samples, self.slots, self.with_loss = Counter[int](), Counter[int](), Counter[int]()
        self.digest: ReadingDigest | None = None

    def run(self, first: int, stop: int, ranks: int) -> None:
        dataset = Run.open(self.path).dataset()
        loaders = []
        for rank in range(ranks):
            sampler = MegatronPretrainingSampler(len(dataset), 0, BATCH // ranks, rank, ranks)
            loader = ThreadLoader(dataset, sampler, num_threads=1 + rank % 2)
            if self.state is not None:
                loader.load_state_dict(self.state)
            loaders.append(loader)
        streams = [iter(loader) for loader in loaders]
        for step in range(first, stop):
            for rank, stream in enumerate(streams):
                self._log(step, rank, next(stream))
        states = [loader.state_dict() for loader in loaders]
        assert all(state == states[0] for state in states)
        self.state = states[0]
        for loader in loaders:
            self.digest = loader.digest if self.digest is None else self.digest + loader.digest
        for stream in streams:
            stream.close()

    def _log(self, step: int, rank: int, batch: dict[str, Any]) -> None:
        self.batches[step, rank] = np.concatenate([batch["tokens"].numpy(), batch["labels"].numpy()[:, -1:]], axis=1)
        for source, mask in zip(batch["dataset_id"].tolist(), batch["loss_mask"].numpy(), strict=True):
            self.samples[source] += 1
            self.slots[source] += len(mask)
            self.with_loss[source] += int(mask.sum())


def write_texts(rng: np.random.Generator, path: Path, count: int) -> None:
    """Writes JSON lines: most of them texts, some blank, some no JSON, in `.gz` where the name says so."""
    lines = []
    for kind in rng.random(count):
        words = rng.integers(0, 10**6, size=int(rng.integers(1, 9)))
        text = json.dumps({"text": " ".join(f"w{word}é" for word in words)})
        lines.append("" if kind < 0.05 else "no JSON at all" if kind < 0.08 else text)
    data = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def write_rows(rng: np.random.Generator, path: Path, count: int) -> None:
    """Writes a table of several row groups, some rows of which have no text."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    texts = [None if rng.random() < 0.04 else f"def f{number}(): return {number % 7}" for number in range(count)]
    parquet.write_table(arrow.table({"text": texts}), path, row_group_size=37)


def record_text(path: str, record: int) -> str:
    """Returns the text of a record, read from its file with nothing of ours."""
    if path.endswith(".parquet"):
        return str(pytest.importorskip("pyarrow.parquet").read_table(path)["text"][record - 1].as_py())
    data = Path(path).read_bytes()
    line = (gzip.decompress(data) if path.endswith(".gz") else data).split(b"\n")[record - 1]
    return str(json.loads(line)["text"])


def ranks_at(step: int) -> int:
    return next(ranks for (first, ranks), (stop, _) in pairwise(TOPOLOGIES) if first <= step < stop)


def test_what_a_run_saw_is_told_from_the_input_files_and_back(tmp_path, monkeypatch, capsys, rng):
    def tokenloom(*words: object) -> str:
        status, printed, said = command(capsys, *words)
        assert status == 0, said
        return printed

    def preprocess(target: str, *names: str) -> None:
        words = ("--tokenizer", "byte", "--append-eod", "--max-bad-records", "50%", "--document-hashes")
        tokenloom("preprocess", *names, "--output-prefix", target, *words)

    def trace(first: int, *more: object) -> list[dict[str, Any]]:
        size = BATCH // ranks_at(first)
        topology = ("--micro-batch-size", size, "--data-parallel-size", ranks_at(first))
        printed = tokenloom("trace", path, "--step", first, "--global-batch-size", BATCH, *topology, "--json", *more)
        return [json.loads(line) for line in printed.splitlines()]

    monkeypatch.chdir(tmp_path)
    (tmp_path / "crawl").mkdir()
    (tmp_path / "data").mkdir()
    write_texts(rng, tmp_path / "crawl/a.jsonl", 250)
    write_texts(rng, tmp_path / "crawl/b.jsonl.gz", 150)
    write_rows(rng, tmp_path / "crawl/code.parquet", 120)
    preprocess("data/web", "crawl/a.jsonl", "crawl/b.jsonl.gz")
    preprocess("data/code", "crawl/code.parquet")
    assert Path(column_path("data/web_text_document", "origins")).exists()
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    tokenloom("run", "lock", path)
    at = ("--global-batch-size", BATCH)

    # The run: every change at its step, and two other numbers of ranks in between.
    loop, tokenizer = Loop(path), load_tokenizer("byte")
    tokens_of = cache(lambda *record: [*tokenizer.tokenize(record_text(*record)), tokenizer.eod])
    marks = sorted({BLEND, GROWTH, DENIAL, *(first for first, _ in TOPOLOGIES)})
    for first, stop in pairwise(marks):
        if first == BLEND:
            tokenloom("run", "amend", path, "--at-step", first, *at, "--weights", "web=1,code=1")
        if first == GROWTH:
            write_texts(rng, tmp_path / "crawl/c.jsonl", 80)
            preprocess("data/web2", "crawl/c.jsonl")
            tokenloom("run", "amend", path, "--at-step", first, *at, "--grow")
        if first == DENIAL:
            denied_place = trace(DENIAL + 1)[0]
            name = f"{Path(denied_place['file']).name}:{denied_place['record']}"
            digest = Run.open(path).digest(DENIAL * BATCH)
            tokenloom("deny", path, "--record", name, "--from-step", first, *at, "--reason", "asked for")
            assert Run.open(path).digest(DENIAL * BATCH) == digest
        loop.run(first, stop, ranks_at(first))

    # Step -> rows: read again from the input files, they are what the loop logged.
    run = Run.open(path)
    origins = SourceOrigins(run.lock)
    table = list(run.trace(np.arange(NUM_STEPS * BATCH)).with_origins(origins).rows())
    by_position = defaultdict(list)
    for row in table:
        by_position[row["position"]].append(row)
    steps = [DENIAL + 1, *range(NUM_STEPS)]  # the first has what was denied
    num_denied = 0
    for step in steps:
        ranks = ranks_at(step)
        for rank in range(ranks):
            for number, logged in enumerate(loop.batches[step, rank].tolist()):
                position = step * BATCH + rank * (BATCH // ranks) + number
                read: list[int] = []
                for row in by_position[position]:
                    tokens = tokens_of(row["file"], row["record"])[row["start"] : row["start"] + row["length"]]
                    assert len(tokens) == row["length"]
                    if row["denied"]:
                        num_denied += 1
                        assert (row["file"], row["record"]) == (denied_place["file"], denied_place["record"])
                        tokens = logged[row["slot"] : row["slot"] + row["length"]]  # padding, checked below
                        assert len(set(tokens)) == 1
                    read += tokens
                assert read == logged, f"position {position}"
    assert all(not row["denied"] for row in table if row["position"] < DENIAL * BATCH)

    # The command says the same, with steps and ranks.
    for step in (DENIAL + 1, 30, 100):
        rows, size = trace(step), BATCH // ranks_at(step)
        assert [row["position"] for row in rows] == sorted(row["position"] for row in rows)
        for row in rows:
            assert (row["step"], row["rank"]) == (step, (row["position"] - step * BATCH) // size)
            (same,) = [each for each in by_position[row["position"]] if each["slot"] == row["slot"]]
            names = ("source", "pass", "document", "start", "length", "file", "record")
            assert [row[name] for name in names] == [same[name] for name in names]
        own = trace(step, "--rank", ranks_at(step) - 1)
        assert own == [row for row in rows if row["rank"] == ranks_at(step) - 1]

    # Row -> steps: everything is found back, from the document, its record, and the hash of its text.
    where = defaultdict(set)
    for row in table:
        where[row["source"], row["document"]].add((row["position"], row["pass"], row["start"], row["length"]))
    chosen = rng.permutation(len(where))[:150].tolist()
    names = list(where)
    for source, document in [names[number] for number in chosen]:
        found = run.when(f"{source}:{document}", stop=NUM_STEPS * BATCH).rows()
        places = {(row["position"], row["pass"], row["start"], row["length"]) for row in found}
        assert places == where[source, document]
    row = table[len(table) // 2]
    expected = {position for position, *_ in where[row["source"], row["document"]]}
    until = ("--until-step", NUM_STEPS, *at, "--json")
    for kind, name in (("document", "{source}:{document}".format(**row)), ("record", "{file}:{record}".format(**row))):
        lines = [json.loads(line) for line in tokenloom("when", path, f"--{kind}", name, *until).splitlines()]
        assert {line["position"] for line in lines} == expected
        assert all(line["step"] == line["position"] // BATCH for line in lines)
    (tmp_path / "text.txt").write_text(record_text(row["file"], row["record"]))
    lines = [json.loads(line) for line in tokenloom("when", path, "--text-file", "text.txt", *until).splitlines()]
    assert expected <= {line["position"] for line in lines}  # others may have the same text

    # Where the tokens went.
    told = json.loads(tokenloom("ledger", path, "--until-step", NUM_STEPS, *at, "--json"))
    assert told["balance"] == 0
    for number, row in enumerate(told["sources"]):
        counts = row["samples"], row["slots"]["with_loss"], row["slots"]["all"]
        assert counts == (loop.samples[number], loop.with_loss[number], loop.slots[number])
    assert sum(row["slots"]["denied"] for row in told["sources"])

    # This is what was read, on whatever ranks.
    assert num_denied
    ends = ("--from-step", 0, "--to-step", NUM_STEPS, *at)
    tokenloom("replay", path, *ends, "--expect", loop.digest.hexdigest())
