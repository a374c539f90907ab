"""Runs of conversations on disk."""

from __future__ import annotations

import numpy as np
from tests.datasets.conversations import ANSWER, PROMPT, conversation, write_conversations
from tests.run.folders import HEAD, STAGE, write_toml
from tests.support import StandInTokenizer

from tokenloom.run.run import Run


def talks(folder, name: str, count: int, first: int) -> None:
    random = np.random.default_rng(first)

    def turn(longest: int) -> list[int]:
        return random.integers(first, first + 1000, size=random.integers(1, longest)).tolist()

    write_conversations(folder / name, [conversation((PROMPT, turn(6)), (ANSWER, turn(9))) for _ in range(count)])


def chat_run(folder, kind: str, stages: str = STAGE) -> Run:
    for number, (name, count) in enumerate((("web-0", 90), ("web-1", 40), ("code", 60))):
        talks(folder, name, count, 1000 * (number + 1))
    write_toml(folder, stages, head=HEAD + f'dataset = "{kind}"\n')
    return Run.open(folder / "run.toml", tokenizer=StandInTokenizer(pad=7))
