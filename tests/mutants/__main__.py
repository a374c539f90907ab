"""`python -m tests.mutants`: plants faults one at a time, and reports the faults that no test catches."""

import argparse
import itertools
import json
import os
import queue
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict

from tests.mutants.faults import ROOT, Fault, draw_faults, find_in_native, find_in_room
from tests.mutants.trial import Outcome, Suite, TrialError, Workspace

ROOMS = ("order", "indexed", "datasets", "blending", "run", "loading", "packing", "native")
OTHER_ROOMS = ("kernels", "distributed", "storage")
RESULTS = ROOT / "build" / "mutants" / "results.jsonl"

Result = tuple[Fault, Outcome]


def main() -> int:
    arguments = _parse_arguments()
    try:
        if arguments.only:
            drawn = _draw_by_id(arguments.only)
        else:
            seed = arguments.seed
            drawn = {room: draw_faults(_find_faults(room), room=room, seed=seed) for room in arguments.rooms}
    except KeyError as error:
        print(f"no fault {error} in this tree", file=sys.stderr)
        return 2
    if arguments.list:
        for faults in drawn.values():
            for fault in itertools.islice(faults, arguments.count):
                print(fault.id, *(f"    {line}" for line in fault.diff), sep="\n")
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # restore the copies and kill the tests first
    suite = Suite()
    results: list[Result] = []
    status = 0
    try:
        for result in _try_all(drawn, arguments.count, suite, num_jobs=arguments.jobs):
            results.append(result)
            _show(*result)
            _record(*result, seed=arguments.seed)
    except (TrialError, KeyboardInterrupt) as error:
        print(f"stopped: {error}", file=sys.stderr)
        status = 2
    print("", *_report(results, suite), sep="\n")
    return status


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    rooms = [*ROOMS, *OTHER_ROOMS]
    parser.add_argument("--rooms", nargs="+", choices=rooms, default=ROOMS, help=f"{', '.join(ROOMS)} by default")
    parser.add_argument("--count", type=int, default=16, help="faults per room")
    parser.add_argument("--seed", type=int, default=1, help="seed for choosing the faults")
    parser.add_argument("--only", nargs="+", metavar="ID", help="plant these faults, even if listed as equivalent")
    parser.add_argument("--jobs", type=int, default=2, help="faults tested in parallel, each in a copy of the package")
    parser.add_argument("--list", action="store_true", help="print the faults without running tests")
    return parser.parse_args()


def _find_faults(room: str) -> list[Fault]:
    return find_in_native() if room == "native" else find_in_room(room)


def _draw_by_id(names: list[str]) -> dict[str, Iterator[Fault]]:
    rooms = dict.fromkeys(name.split("/")[0] for name in names)
    found = {fault.id: fault for room in rooms for fault in _find_faults(room)}
    return {room: iter([found[name] for name in names if name.split("/")[0] == room]) for room in rooms}


def _try_all(drawn: dict[str, Iterator[Fault]], count: int, suite: Suite, *, num_jobs: int) -> Iterator[Result]:
    idle: queue.SimpleQueue[Workspace] = queue.SimpleQueue()

    def make_workspace(number: int) -> None:
        idle.put(Workspace(number, suite, num_compilers=max(1, (os.cpu_count() or 1) // num_jobs)))

    def use_workspace(work: Callable[[Workspace], Outcome | None]) -> Outcome | None:
        workspace = idle.get()
        try:
            return work(workspace)
        finally:
            idle.put(workspace)

    with ThreadPoolExecutor(num_jobs) as executor:
        pending: dict[Future[Outcome], Fault] = {}

        def submit(room: str) -> None:
            if (fault := next(drawn[room], None)) is not None:
                pending[executor.submit(use_workspace, lambda workspace: workspace.try_fault(fault))] = fault

        try:
            list(executor.map(make_workspace, range(num_jobs)))
            list(executor.map(lambda room: use_workspace(lambda workspace: workspace.check_baseline(room)), drawn))
            for room in drawn:
                for _ in range(count):
                    submit(room)
            while pending:
                for future in wait(pending, return_when=FIRST_COMPLETED).done:
                    fault, outcome = pending.pop(future), future.result()
                    if outcome.verdict == "unbuildable":
                        submit(fault.room)
                    yield fault, outcome
        except BaseException:
            suite.stop.set()
            executor.shutdown(wait=False, cancel_futures=True)
            raise


def _show(fault: Fault, outcome: Outcome) -> None:
    words = {
        "caught": f"caught by {outcome.test or 'the import'}, which {outcome.how}",
        "survived": "survived",
        "undecided": f"undecided: {outcome.test} {outcome.how}",
        "unbuildable": "does not compile",
    }
    print(f"{fault.id}: {words[outcome.verdict]}, {outcome.seconds:.0f} s", flush=True)


def _record(fault: Fault, outcome: Outcome, *, seed: int) -> None:
    row = {"id": fault.id, "room": fault.room, "kind": fault.kind, **asdict(outcome), "diff": fault.diff}
    row |= {"seed": seed, "time": time.strftime("%Y-%m-%dT%H:%M:%S")}
    with RESULTS.open("a") as file:
        file.write(json.dumps(row) + "\n")


def _report(results: list[Result], suite: Suite) -> Iterator[str]:
    counted = [result for result in results if result[1].verdict != "unbuildable"]
    for title in ("room", "kind"):
        rows = ((getattr(fault, title), outcome) for fault, outcome in counted)
        yield from _table(title, sorted(rows, key=lambda row: row[0]))
        yield ""
    if suite.deselected:
        yield f"\nDeselected tests, which also fail without a fault: {', '.join(sorted(set(suite.deselected)))}"
    for fault, outcome in sorted(counted, key=lambda result: (result[0].file, result[0].point[1:])):
        if outcome.verdict != "caught":
            yield f"\n{outcome.verdict}: `{fault.file}`, line {fault.line}\n"
            yield from ("```diff", *fault.diff, "```")
            yield f"    .venv/bin/python -m tests.mutants --only {fault.id}"


def _table(title: str, outcomes: list[tuple[str, Outcome]]) -> Iterator[str]:
    yield f"| {title} | planted | caught | by its own tests | undecided | share caught |"
    yield "|---|--:|--:|--:|--:|--:|"
    for name in [*dict.fromkeys(name for name, _ in outcomes), "all"]:
        chosen = [outcome for each, outcome in outcomes if name in (each, "all")]
        caught = [outcome for outcome in chosen if outcome.verdict == "caught"]
        num_early = sum(outcome.phase == 1 for outcome in caught)
        num_undecided = sum(outcome.verdict == "undecided" for outcome in chosen)
        share = f"{len(caught) / len(chosen):.0%}" if chosen else ""
        yield f"| {name} | {len(chosen)} | {len(caught)} | {num_early} | {num_undecided} | {share} |"


if __name__ == "__main__":
    sys.exit(main())
