"""Extraction of texts from JSON lines, some of them unusual, compared with `orjson`: CPU time of one thread."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator

import orjson

from tokenloom.inputs.formats.jsonl import JsonLineBlock
from tokenloom.inputs.records import parse_block

BLOCK_BYTES = 4 << 20
UNUSUAL = (
    rb'{"text": "\ud800 alone"}',
    b'{"text": ["two.", "sentences."]}',
    b'{"text": "not", "x": NaN}',
    b'{"t\\u0065xt": "key"}',
)


def texts(kind: str, characters: int, generator: random.Random) -> str:
    """Returns a text: prose, source code with many escapes, or Cyrillic that consists of escapes."""
    words = {
        "prose": "the quick brown fox jumps over a lazy dog ",
        "code": 'def f(number):\n    return self.values[number] + "a"\n',
        "cyrillic": "съешь же ещё этих мягких французских булок ",
    }[kind]
    start = generator.randrange(len(words))
    return (words[start:] + words * (characters // len(words)))[:characters]


def block(kind: str, characters: int, share: float) -> JsonLineBlock:
    """Returns lines, a share of which is unusual."""
    generator, size, lines = random.Random(1), 0, []
    while size < BLOCK_BYTES:
        value = {"id": len(lines), "text": texts(kind, characters, generator), "meta": {"score": 0.5, "tags": ["a"]}}
        line = generator.choice(UNUSUAL) if generator.random() < share else json.dumps(value).encode()
        lines.append(line)
        size += len(line) + 1
    return JsonLineBlock(path="lines", first_record=1, data=b"\n".join([*lines, b""]))


def by_orjson(lines: JsonLineBlock) -> list[object]:
    found = []
    for line in lines.lines():
        try:
            found.append(orjson.loads(line).get("text"))
        except ValueError:
            found.append(None)
    return found


def rates(lines: JsonLineBlock, rounds: int) -> Iterator[float]:
    """Yields median GB per CPU second of each side; sides alternate."""
    sides: tuple[Callable[[], object], ...] = (lambda: parse_block(lines, ["text"]), lambda: by_orjson(lines))
    seconds: list[list[float]] = [[], []]
    for _ in range(rounds):
        for side, took in zip(sides, seconds, strict=True):
            began = time.thread_time()
            side()
            took.append(time.thread_time() - began)
    return (len(lines.data) / statistics.median(took) / 1e9 for took in seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shares", type=float, nargs="+", default=[0, 0.001, 0.01, 0.1], help="of unusual lines")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    print(f"{'texts':20}{'unusual':>10}{'tokenloom':>12}{'orjson':>12}  GB/s in a thread")
    for kind, characters in (("code", 6000), ("prose", 6000), ("cyrillic", 2000), ("prose", 100)):
        for share in options.shares:
            ours, theirs = rates(block(kind, characters, share), options.rounds)
            print(f"{f'{kind}, {characters}':20}{share:>10.1%}{ours:>12.2f}{theirs:>12.2f}")


if __name__ == "__main__":
    main()
