"""A job that knows no corpus: each shard writes a number into a file, and the sum of all is what it is for."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokenloom.errors import ConfigError, StorageError
from tokenloom.jobs.folder import JobFolder
from tokenloom.jobs.running import Runner, do_and_assemble
from tokenloom.storage.atomic import publish_bytes


@dataclass(frozen=True)
class NumberShard:
    """A number to be written."""

    number: int
    key: str


@dataclass(frozen=True)
class NumberCounts:
    """How many numbers were written."""

    written: int = 0


@dataclass(frozen=True)
class NumberPlan:
    """Shards of the numbers from 0; `dies_at` names one whose process dies the first `deaths` times.

    It dies when those before it are done: processes that die end the job, and what others are at is then lost.
    """

    num_shards: int
    settings: str = "sum"
    folder: str = ""
    dies_at: int = -1
    deaths: int = 0
    wrong_at: int = -1
    worker_timeout_seconds: float = 60.0
    reads_streams: bool = False

    @property
    def shards(self) -> Sequence[NumberShard]:
        return [NumberShard(number, f"{number:024x}") for number in range(self.num_shards)]

    @property
    def fingerprint(self) -> str:
        return f"{self.num_shards} {self.settings}"

    def description(self) -> dict[str, Any]:
        return {"what": self.settings}

    def input_keys(self) -> list[str]:
        return [str(self.num_shards)]

    def read_report(self, data: bytes, *, path: str) -> dict[str, int]:
        try:
            return {"value": json.loads(data)["value"]}
        except (ValueError, KeyError, TypeError) as error:
            message = f"`{path}` is no report"
            raise StorageError(message) from error


@dataclass(frozen=True)
class NumberWork:
    """What does the shards of a `NumberPlan`."""

    plan: NumberPlan

    def worker(self, num_workers: int) -> NumberWorker:
        return NumberWorker(self.plan)

    def counts(self, **numbers: int) -> NumberCounts:
        return NumberCounts(**numbers)

    def counts_of(self, report: dict[str, int], shard: NumberShard) -> NumberCounts:
        return NumberCounts(1)

    def whereabouts(self, shard: NumberShard) -> str:
        return f"the number {shard.number}"

    def records_at(self, journal_path: str) -> str:
        return ""

    def blame(self, journal_path: str, reason: str) -> str | None:
        return None


class NumberWorker:
    """Writes the square of the number of a shard."""

    def __init__(self, plan: NumberPlan) -> None:
        self._plan = plan

    def __enter__(self) -> NumberWorker:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(
        self, shard: NumberShard, part_prefix: str, *, progress: Callable[[NumberCounts], None] | None = None
    ) -> dict[str, int]:
        if shard.number == self._plan.wrong_at:
            message = f"the number {shard.number} cannot be squared"
            raise ConfigError(message, hint="leave it out")
        if shard.number == self._plan.dies_at:
            noted = Path(self._plan.folder) / "deaths"
            deaths = len(noted.read_text()) if noted.exists() else 0
            if deaths < self._plan.deaths:
                from tests.support import wait_until  # which imports much, and only who dies needs it

                before = [Path(part_prefix).with_name(f"{one.key}.json") for one in self._plan.shards[: shard.number]]
                wait_until(lambda: all(path.exists() for path in before), seconds=120)
                noted.write_text("x" * (deaths + 1))
                os.kill(os.getpid(), signal.SIGKILL)
        report = {"value": shard.number**2}
        publish_bytes(f"{part_prefix}_0.bin", str(report["value"]).encode())
        publish_bytes(f"{part_prefix}.json", json.dumps(report).encode())
        return report


class NumberBook:
    """Keeps what is told."""

    def __init__(self) -> None:
        self.told: dict[int, dict[str, int]] = {}
        self.done: list[int] = []

    def tell(self, number: int, counts: NumberCounts, *, is_done: bool = False) -> None:
        self.told[number] = asdict(counts)
        if is_done:
            self.done.append(number)


def sum_of(plan: NumberPlan, path: Path, run: Runner, *, book: NumberBook | None = None) -> int:
    """Does the job in a folder and returns the sum, read from the parts."""
    folder: JobFolder[NumberShard, dict[str, int]] = JobFolder(str(path), plan)

    def damaged() -> list[tuple[NumberShard, str]]:
        found = []
        for shard in plan.shards:
            report, part = folder.report(shard), Path(f"{folder.part_prefix(shard)}_0.bin")
            if report is None or not part.exists() or part.read_text() != str(report["value"]):
                found.append((shard, "its part is not what was written"))
        return found

    with folder.joined():
        _, total = do_and_assemble(
            NumberWork(plan),
            folder,
            book or NumberBook(),
            run=run,
            damaged=damaged,
            assemble=lambda reports: sum(report["value"] for report in reports),
            pending=[],
        )
    return total
