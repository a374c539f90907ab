"""Kills writers of datasets, or makes their calls fail, at random; then checks all datasets that open.

    python -m tests.kill_loop --kills 1000 --faults 1000

Each run forks this process, which has imported everything and started no thread. It writes new datasets, or replaces
older ones of the same or another size. It dies at a random time or at a random call that changes names, writes, syncs
or locks; or one such call fails, or all calls after it fail, or a file size limit applies.

After each run: a dataset that opens is entirely old or entirely new, and `verify` finds no problem. An older dataset
still exists (after a failure: immediately, under its names). The same command again writes the right bytes and leaves
no hidden files but locks. Foreign files with similar names are untouched.
"""

import argparse
import errno
import json
import logging
import os
import random
import resource
import secrets
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus.jobs import preprocess_chat, preprocess_multimodal
from tests.faults import arm_all
from tests.preprocess.corpus import make_tokenizer, word_level_json
from tests.support import StandInTokenizer, make_dataset, small_shards
from tokenloom import IndexedDataset, build_catalogue, merge_datasets, verify_dataset, write_concatenated
from tokenloom.errors import OutputExistsError
from tokenloom.indexed.prefixes import sequence_counts
from tokenloom.indexed.writing.builder import IndexedDatasetBuilder
from tokenloom.indexed.writing.concatenate import ConcatenatedPart
from tokenloom.preprocess.corpus import preprocess_corpus
from tokenloom.preprocess.settings import BadRecordBudget, CorpusSettings
from tokenloom.storage.atomic import PendingFile
from tokenloom.tokenizers.load import load_tokenizer

KINDS = ("new", "same", "other")
"""Kinds of inputs: of the killed run, other inputs with the same number of bytes, and inputs of another size."""

_NUM_ROWS = 300
_BYTES = load_tokenizer("byte")
_WORDS = make_tokenizer(word_level_json())

Work = Callable[[Path, Path, bool], object]
"""(output folder, input folder, whether to replace existing outputs)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A writer; `older` writes the outputs that it replaces, if not `work` with other inputs."""

    work: Work
    older: Work | None = None
    multimodal: bool = False
    replaces: bool = True
    is_cache: bool = False  # its files are independent: each is right or missing


def make_inputs(folder: Path, kind: str) -> None:
    folder.mkdir()
    shift = KINDS.index(kind)
    num_rows = _NUM_ROWS + (170 if kind == "other" else 0)
    for name, offset in (("a", 0), ("b", 1000)):
        lines = []
        for row in range(num_rows):
            number = offset + 5000 + shift * 2000 + row // 2
            lines.append({"text": f"text {number:06d} " + "alpha beta " * (row % 5), "more": f"more {number:06d}"})
        if kind != "other":
            lines.insert(num_rows // 2, {"wrong": f"{shift}"})
        _write_lines(folder / f"{name}.jsonl", lines)
    talks = [
        {"messages": [{"role": "user", "content": "alpha"}, {"role": "assistant", "content": _words(row, shift)}]}
        for row in range(num_rows)
    ]
    _write_lines(folder / "chat.jsonl", talks if kind == "other" else [*talks, {"messages": shift}])
    (folder / "image.jpg").write_bytes(bytes([shift]) * 900)
    pairs = [{"text": f"{shift} {row}", "image": "image.jpg"} for row in range(num_rows // 20)]
    _write_lines(folder / "images.jsonl", pairs if kind == "other" else [*pairs, {"text": "none"}])
    for name in ("a", "b"):
        preprocess_corpus([folder / f"{name}.jsonl"], folder / name, _BYTES, _settings(), num_processes=1)
    preprocess_chat(folder / "chat.jsonl", folder / "chat", _WORDS, chat_template="chatml", skip_bad_lines=True)


def _words(row: int, shift: int) -> str:
    return " ".join(("alpha", "beta")[(row + shift >> bit) % 2] for bit in range(8))


def _write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _settings(**changes: Any) -> CorpusSettings:
    with small_shards():
        return CorpusSettings(bad_records=BadRecordBudget(most=None), append_eod=False, **changes)


def _pairs(inputs: Path) -> list[str]:
    return [str(inputs / f"{name}_text_document") for name in ("a", "b")]


def _builder(out: Path, inputs: Path, overwrite: bool) -> None:
    with IndexedDatasetBuilder(out / "corpus.bin", dtype=np.uint16, overwrite=overwrite) as builder:
        for line in (inputs / "a.jsonl").read_text().splitlines():
            builder.add_document(list(line.encode()), [len(line)])
        builder.finalize(out / "corpus.idx")


def _corpus(*names: str, **changes: Any) -> Work:
    def work(out: Path, inputs: Path, overwrite: bool) -> None:
        paths, options = [inputs / f"{name}.jsonl" for name in names], {"num_processes": 1, "num_workers": 1}
        preprocess_corpus(paths, out / "corpus", _BYTES, _settings(**changes), **options, overwrite=overwrite)

    return work


def _merge(**options: Any) -> Work:
    def work(out: Path, inputs: Path, overwrite: bool) -> None:
        merge_datasets(_pairs(inputs), str(out / "corpus"), overwrite=overwrite, **options)

    return work


def _merge_roles(out: Path, inputs: Path, overwrite: bool) -> None:
    merge_datasets([str(inputs / "chat")] * 2, str(out / "corpus"), overwrite=overwrite, verify=True)


def _select(out: Path, inputs: Path, overwrite: bool) -> None:
    def part(prefix: str) -> ConcatenatedPart:
        num_documents = sequence_counts([prefix])[prefix][1] - 1
        return ConcatenatedPart(prefix=prefix, kept_documents=np.arange(num_documents) % 3 > 0)

    write_concatenated([part(prefix) for prefix in _pairs(inputs)], str(out / "corpus"), overwrite=overwrite)


def _catalogue(out: Path, inputs: Path, overwrite: bool) -> None:
    build_catalogue(_pairs(inputs), str(out / "corpus"), overwrite=overwrite)


def _chat(out: Path, inputs: Path, overwrite: bool, name: str = "corpus") -> None:
    options = {"chat_template": "chatml", "skip_bad_lines": True, "num_workers": 1}
    preprocess_chat(inputs / "chat.jsonl", out / name, _WORDS, **options, overwrite=overwrite)


def _multimodal(out: Path, inputs: Path, overwrite: bool) -> None:
    path = inputs / "images.jsonl"
    preprocess_multimodal(path, out / "corpus", _BYTES, skip_bad_lines=True, num_workers=1, overwrite=overwrite)


def _cache(out: Path, inputs: Path, overwrite: bool) -> None:
    settings = {"tokenizer": StandInTokenizer(vocab_size=300), "allow_tokenizer_mismatch": True}
    dataset = make_dataset(_pairs(inputs)[0], num_samples=4000, sequence_length=8, path_to_cache=str(out), **settings)
    assert len(dataset.shuffle_index) >= 4000  # opens the index


def _counts(out: Path, inputs: Path, overwrite: bool) -> None:
    text = json.dumps(sequence_counts(_pairs(inputs)))  # like the command
    with PendingFile(out / "counts.json") as file:
        file.write(text.encode())


CASES: dict[str, Case] = {
    "builder": Case(work=_builder),
    "merge": Case(work=_merge()),
    "merge, not durable": Case(work=_merge(durable=False)),
    "merge with roles, compared": Case(work=_merge_roles),
    "merge over a catalogue": Case(work=_merge(), older=_catalogue),
    "documents of pairs": Case(work=_select),
    "catalogue": Case(work=_catalogue),
    "corpus, linked part": Case(work=_corpus("a")),
    "corpus, copied parts": Case(work=_corpus("a", "b", shard_bytes=6000)),
    "corpus, splits and keys": Case(
        work=_corpus("a", "b", keys=("text", "more"), shares={"train": 0.5, "valid": 0.3, "test": 0.2})
    ),
    "corpus, no duplicates": Case(work=_corpus("a", "b", drop_duplicates=True)),
    "corpus, a pair per file": Case(work=_corpus("a", "b", one_pair_per_file=True)),
    "corpus over chat": Case(work=_corpus("a"), older=partial(_chat, name="corpus_text_document")),
    "chat": Case(work=_chat),
    "multimodal": Case(work=_multimodal, multimodal=True),
    "index cache": Case(work=_cache, replaces=False, is_cache=True),
    "sequences per dataset": Case(work=_counts, is_cache=True),
}


Files = dict[str, bytes]

OLD = ("none", "same", "other")
FAULTS = ("EIO", "ENOSPC", "all ENOSPC", "limit", "interrupt")
_FOREIGN = (
    "{}.job.removed/mine.txt",
    ".{}.idx.old",
    ".{}.idx.1234abcd.kept",
    "{}.bin.tmp",
    ".{}.x.tmp",
    "{}_notes.txt",
)


@dataclass(slots=True)
class Loop:
    folder: Path
    rng: random.Random
    may_die_at_any_time: bool = True
    results: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    _known: dict[tuple[str, str], Files] = field(default_factory=dict)
    _costs: dict[tuple[str, str], tuple[float, int]] = field(default_factory=dict)

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def run(self, name: str, old: str, fault: str) -> bool:
        case = CASES[name]
        before = {} if old == "none" else self._made(name, case, old)
        after = self._made(name, case, "new")
        seconds, num_calls = self._cost(name, case, old, before)
        self._set_up(before)
        foreign = _add_foreign(self.out)

        def work() -> None:
            case.work(self.out, self.folder / "new", old != "none")

        if fault == "kill":
            at_call = not self.may_die_at_any_time or self.rng.random() < 0.6
            at = self.rng.randrange(num_calls + 1) if at_call else self.rng.random() * seconds * 1.1
        else:
            at = self.rng.randrange(max(map(len, after.values())) if fault == "limit" else num_calls)
        what = f"{name}, old: {old}, {fault} at {at}"
        status = _killed(work, at, self.folder) if fault == "kill" else _failed(work, fault, at, self.folder)
        if fault != "kill":
            self._check_failure(what, case, before, after, status=status)
        self.results[name, fault, {0: "ended", 1: "failed"}.get(status, "killed")] += 1
        self._told(what, lambda: _check(case, self.out, before, after, work, foreign))
        return status != 0

    def _made(self, name: str, case: Case, kind: str) -> Files:
        if (name, kind) not in self._known:
            self._set_up({})
            work = case.work if kind == "new" or case.older is None else case.older
            _forked(lambda: work(self.out, self.folder / kind, False))
            self._known[name, kind] = _files(self.out)
        return self._known[name, kind]

    def _cost(self, name: str, case: Case, old: str, before: Files) -> tuple[float, int]:
        if (name, old) not in self._costs:
            self._set_up(before)
            count = self.folder / "count"

            def work() -> None:
                counted = arm_all(str(self.folder), 1 << 60, lambda: None)
                case.work(self.out, self.folder / "new", bool(before))
                count.write_text(str(counted()))

            started = time.monotonic()
            _forked(work)
            self._costs[name, old] = time.monotonic() - started, int(count.read_text())
        return self._costs[name, old]

    def _set_up(self, before: Files) -> None:
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir()
        for name, data in before.items():
            path = self.out / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def _check_failure(self, what: str, case: Case, before: Files, after: Files, *, status: int) -> None:
        found = _named(_files(self.out), before, after)
        if status == 0 and found != after:
            self._problem(f"{what}: exit 0, but not the right files: {_difference(found, after)}")
        elif status not in (0, 1):
            self._problem(f"{what}: ended by {status}")
        elif status == 1 and not case.is_cache and found not in (before, after):
            self._problem(f"{what}: failed, and the old files are not there: {_difference(found, before)}")

    def _told(self, what: str, check: Callable[[], None]) -> None:
        problem = self.folder / "problem"
        problem.unlink(missing_ok=True)

        def checked() -> None:
            try:
                check()
            except BaseException:
                problem.write_text(traceback.format_exc())
                raise

        if _fork_to_end(checked) != 0:
            text = problem.read_text() if problem.exists() else "died"
            self._problem(f"{what}: {text}")

    def _problem(self, text: str) -> None:
        print(f"FAILED {text}", flush=True)
        self.problems.append(text)


def _check(case: Case, out: Path, before: Files, after: Files, work: Callable[[], None], foreign: Files) -> None:
    """Checks in a fork the files that a run left, then the files that the same work writes."""
    found = _named(_files(out), before, after)
    if case.is_cache:
        for name, data in found.items():
            assert data in (before.get(name), after.get(name)), f"{name} is neither old nor new"
        assert set(before) <= set(found), "something old is lost"
    else:
        for name in found:
            if name.endswith(".idx"):  # readers that ignore the journal find files of one dataset
                group = _group(found, name)
                assert group in (_group(before, name), _group(after, name)), f"a mixture opens: {sorted(group)}"
        for name in {**before, **after}:
            if name.endswith(".idx") and IndexedDataset.exists(str(out / name[: -len(".idx")])):
                prefix = str(out / name[: -len(".idx")])
                report = verify_dataset(prefix, multimodal=case.multimodal)
                assert report.ok, report.problems
        found = _named(_files(out), before, after)
        if before:
            assert found in (before, after), f"neither old nor new: {_difference(found, before)}"
        else:
            for name in after:
                if name.endswith(".idx") and (group := _group(found, name)):
                    assert group == _group(after, name), f"not as it should be: {sorted(group)}"
    try:
        work()
    except OutputExistsError:  # the output is complete, and the writer may not replace it
        assert found == after
    files = _files(out)
    assert _named(files, before, after) == after, f"after the same again: {_difference(files, after)}"
    hidden = {name: len(data) for name, data in files.items() if name not in after and name not in foreign}
    hidden = {name: size for name, size in hidden.items() if not name.endswith((".idx.lock", ".tmp"))}
    if not case.is_cache:
        assert not hidden, f"left behind: {hidden}"
    assert max(hidden.values(), default=0) <= 4096, f"left behind: {hidden}"
    assert {name: files.get(name) for name in foreign} == foreign, "foreign files were touched"


def _group(files: Files, idx: str) -> Files:
    prefix = idx[: -len("idx")]
    return {name: data for name, data in files.items() if name.startswith(prefix)}


def _files(folder: Path) -> Files:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _named(files: Files, *known: Files) -> Files:
    return {name: data for name, data in files.items() if any(name in each for each in known)}


def _difference(found: Files, expected: Files) -> str:
    words = [f"no {name}" for name in expected if name not in found]
    words += [f"{name} beside" for name in found if name not in expected]
    return ", ".join(words + [f"{name} differs" for name in found if found[name] != expected.get(name, found[name])])


def _add_foreign(out: Path) -> Files:
    foreign = {pattern.format("corpus"): b"mine" for pattern in _FOREIGN}
    for name, data in foreign.items():
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_bytes(data)
    return foreign


def _fork(work: Callable[[], object]) -> int:
    if process := os.fork():
        return process
    os.setpgid(0, 0)
    try:
        logging.disable()
        work()
    except BaseException:  # noqa: BLE001 - the parent sees the code
        if os.environ.get("KILL_LOOP_TELLS"):
            traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _fork_to_end(work: Callable[[], object]) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(_fork(work), 0)[1])


def _forked(work: Callable[[], object]) -> None:
    def told() -> None:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            raise

    assert _fork_to_end(told) == 0, "the work failed by itself"


def _killed(work: Callable[[], None], at: float, folder: Path) -> int:
    """Kills the work at call `at` (int) or after `at` seconds (float); returns its exit code."""
    if isinstance(at, int):

        def armed() -> None:
            arm_all(str(folder), at, lambda: os.kill(os.getpid(), signal.SIGKILL))
            work()

        return _fork_to_end(armed)
    process = _fork(work)
    deadline = time.monotonic() + at
    while time.monotonic() < deadline:
        if os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            break
        time.sleep(min(0.001, at))
    os.kill(process, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def _failed(work: Callable[[], None], fault: str, at: int, folder: Path) -> int:
    kind = errno.EIO if fault == "EIO" else errno.ENOSPC

    def fail() -> None:
        if fault == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
            return
        raise OSError(kind, os.strerror(kind))

    def armed() -> None:
        if fault == "limit":
            resource.setrlimit(resource.RLIMIT_FSIZE, (at, at))
        else:
            arm_all(str(folder), at, fail, lasting=fault.startswith("all"))
        work()

    return _fork_to_end(armed)


def run_loop(
    folder: Path,
    *,
    kills: int,
    faults: int,
    seed: int,
    names: list[str],
    minutes: float = 1e9,
    may_die_at_any_time: bool = True,
) -> Loop:
    loop = Loop(folder, random.Random(seed), may_die_at_any_time)
    for kind in KINDS:
        _forked(lambda kind=kind: make_inputs(folder / kind, kind))  # type: ignore[misc]
    kinds = [(name, old) for name in names for old in OLD if old == "none" or CASES[name].replaces]
    loop.rng.shuffle(kinds)
    deadline = time.monotonic() + 60 * minutes
    for number in range(max(kills, faults)):
        if time.monotonic() > deadline:
            break
        if number < kills:
            while not loop.run(*kinds[number % len(kinds)], "kill"):
                pass
        if number < faults:
            loop.run(*kinds[number % len(kinds)], loop.rng.choice(FAULTS))
    return loop


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--faults", type=int, default=0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    parser.add_argument("--minutes", type=float, default=1e9, help="time limit")
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        settings = {name: getattr(options, name) for name in ("kills", "faults", "seed", "minutes")}
        loop = run_loop(Path(folder), names=options.cases, **settings)
    for name in options.cases:
        ends = Counter[str]()
        for (case, fault, end), number in loop.results.items():
            if case == name:
                ends[f"{fault}, {end}"] += number
        print(f"{name}: {', '.join(f'{number} {end}' for end, number in sorted(ends.items()))}")
    minutes = (time.monotonic() - started) / 60
    print(f"{sum(loop.results.values())} runs, {len(loop.problems)} problems, {minutes:.1f} minutes")
    return 1 if loop.problems else 0


if __name__ == "__main__":
    sys.exit(main())
