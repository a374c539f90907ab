"""Faults: small changes of one source file, and a random choice of the possible ones."""

from __future__ import annotations

import ast
import difflib
import random
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

Point = tuple[str, int, int, str]
"""Kind, start and stop of the characters to replace, replacement."""


@dataclass(frozen=True, slots=True)
class Fault:
    room: str
    file: str
    source: str
    point: Point
    number: int = 1

    @property
    def kind(self) -> str:
        return self.point[0]

    @property
    def line(self) -> int:
        return line_of(self.source, self.point)

    @property
    def changed(self) -> str:
        _, start, stop, replacement = self.point
        return self.source[:start] + replacement + self.source[stop:]

    @property
    def id(self) -> str:
        """Name for the command line, such as `order/keys.py:12:off-by-one`."""
        number = f":{self.number}" if self.number > 1 else ""
        return f"{self.file.removeprefix('src/tokenloom/')}:{self.line}:{self.kind}{number}"

    @property
    def diff(self) -> list[str]:
        lines = difflib.ndiff(self.source.splitlines(), self.changed.splitlines())
        return [line for line in lines if line[0] in "-+"]

    def is_program(self) -> bool:
        try:
            return self.room == "native" or ast.dump(ast.parse(self.changed)) != ast.dump(ast.parse(self.source))
        except SyntaxError:
            return False


def line_of(source: str, point: Point) -> int:
    return source.count("\n", 0, point[1]) + 1


def make_faults(room: str, path: Path, points: Iterable[Point]) -> Iterator[Fault]:
    source = path.read_text()
    numbers: Counter[tuple[str, int]] = Counter()
    for point in sorted(set(points), key=lambda point: point[1:]):
        key = point[0], line_of(source, point)
        numbers[key] += 1
        yield Fault(room, str(path.relative_to(ROOT)), source, point, numbers[key])


def draw_faults(faults: Iterable[Fault], *, room: str, seed: int) -> Iterator[Fault]:
    """Yields the faults of a room in random order: kinds in turn, files with fewer faults first."""
    rows = tomllib.loads(Path(__file__).with_name("equivalent.toml").read_text()).get("fault", [])
    equivalent = {(row["file"], row["kind"], row["line"]) for row in rows}
    by_kind: dict[str, list[Fault]] = {}
    for fault in faults:
        if (fault.file, fault.kind, fault.source.splitlines()[fault.line - 1].strip()) not in equivalent:
            by_kind.setdefault(fault.kind, []).append(fault)
    rng = random.Random(f"{seed} {room}")
    for kind in sorted(by_kind):
        rng.shuffle(by_kind[kind])
    num_drawn: Counter[str] = Counter()
    while any(by_kind.values()):
        for left in by_kind.values():
            if left:
                left.remove(fault := min(left, key=lambda fault: num_drawn[fault.file]))  # the first of equals
                if fault.is_program():
                    num_drawn[fault.file] += 1
                    yield fault
