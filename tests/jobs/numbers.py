import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenloom.errors import ConfigError
from tokenloom.preprocess.folder import JobFolder
from tokenloom.preprocess.sharded import Counts, Runner, RunShard, ShardedJob, do_and_assemble
from tokenloom.storage.atomic import publish_bytes


@dataclass(frozen=True)
class NumberShard:
    number: int
    key: str


@dataclass(frozen=True)
class NumberPlan(ShardedJob):
    """Squares numbers; the process of shard `dies_at` dies `deaths` times, once all earlier shards are done."""

    num_shards: int
    settings: str = "sum"
    folder: str = ""
    dies_at: int = -1
    deaths: int = 0
    wrong_at: int = -1

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
        return {"value": json.loads(data)["value"]}

    @contextmanager
    def worker(self, num_workers: int) -> Iterator[RunShard]:
        yield self.square

    def counts_of(self, report: dict[str, int], shard: NumberShard) -> Counts:
        return {"written": 1}

    def location(self, shard: NumberShard) -> str:
        return f"the number {shard.number}"

    def square(
        self, shard: NumberShard, part_prefix: str, *, progress: Callable[[Counts], None] | None = None
    ) -> dict[str, int]:
        if shard.number == self.wrong_at:
            raise ConfigError(f"the number {shard.number} cannot be squared", hint="leave it out")
        if shard.number == self.dies_at:
            noted = Path(self.folder) / "deaths"
            deaths = len(noted.read_text()) if noted.exists() else 0
            if deaths < self.deaths:
                from tests.support import wait_until  # imports much

                before = [Path(part_prefix).with_name(f"{one.key}.json") for one in self.shards[: shard.number]]
                wait_until(lambda: all(path.exists() for path in before), seconds=120)
                noted.write_text("x" * (deaths + 1))
                os.kill(os.getpid(), signal.SIGKILL)
        report = {"value": shard.number**2}
        publish_bytes(f"{part_prefix}.json", json.dumps(report).encode())
        return report


class NumberBook:
    def __init__(self) -> None:
        self.told: dict[int, dict[str, int]] = {}
        self.done: list[int] = []

    def update(self, number: int, counts: Counts, *, is_done: bool = False) -> None:
        self.told[number] = dict(counts)
        if is_done:
            self.done.append(number)


def sum_of(plan: NumberPlan, path: Path, run: Runner, *, book: NumberBook | None = None) -> int:
    folder, book = JobFolder(str(path), plan), book or NumberBook()

    def assemble(reports: list[dict[str, int]]) -> int:
        return sum(report["value"] for report in reports)

    with folder.joined():
        return do_and_assemble(plan, folder, book, run=run, damaged=list, assemble=assemble, pending=[])
