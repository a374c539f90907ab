"""The engines of several threads: each has one of its own while it encodes, and those that have grown are replaced."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from tokenloom.machine import own_memory_bytes
from tokenloom.tokenizers.engine_checks import Engine, recheck
from tokenloom.tokenizers.engines import EngineChoice, ReferenceEngine
from tokenloom.tokenizers.failures import refusals, require_sound
from tokenloom.tokenizers.text_tokenizer import Encoded, TextTokenizer

# `gigatoken` remembers every distinct word it meets, some 70 bytes each: 500 MB of source code cost 20 MB, 45 MB of
# random words 330 MB. An engine is replaced (in 100 ms) when the process has grown by too much since there were none,
# and the engine has read enough to be a likely cause. What the process held before, such as all of Ray, does not count,
# nor do pages of files.
_GROWTH_BYTES = 64 << 20
_GROWTH_BYTES_PER_WORKER = 64 << 20
_RENEWAL_BYTES = 8 << 20


class EnginePool:
    """Encodes texts; safe from several threads.

    Args:
        tokenizer: names the ids.
        choice: the engine.
        num_workers: threads that will call; sets by how much memory may grow.
        memory_budget_bytes: memory of the process beyond which engines are replaced; None for what it has now, and room
            for the workers.
        renewal_bytes: text that an engine reads before it is replaced; None for what measured best.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        choice: EngineChoice,
        *,
        num_workers: int,
        memory_budget_bytes: int | None = None,
        renewal_bytes: int | None = None,
    ) -> None:
        self._truth = ReferenceEngine(tokenizer)
        self._vocab_size = tokenizer.vocab_size
        self._hint = f"use the engine `{tokenizer.engine_name}`"
        self._choice = choice
        self._idle: list[tuple[Engine, int]] = []  # with the bytes each has read
        self._budget = (
            own_memory_bytes() + _GROWTH_BYTES + _GROWTH_BYTES_PER_WORKER * num_workers
            if memory_budget_bytes is None
            else memory_budget_bytes
        )
        self._renewal_bytes = _RENEWAL_BYTES if renewal_bytes is None else renewal_bytes

    def encode(self, texts: Sequence[str], *, num_bytes: int, number: int) -> Encoded:
        """Returns the ids of texts.

        Args:
            texts: texts of one block.
            num_bytes: size of these texts in bytes, roughly.
            number: any; it selects the text that is compared with the tokenizer's own library.

        Raises:
            RefusedTextError: the engine fails on a text, or gives ids that there are not. It is not used again.
            TokenizerError: the engines disagree.
        """
        try:
            engine, done = self._idle.pop()
        except IndexError:
            engine, done = self._choice.create(), 0
        with refusals(f"`{engine.name}`"):
            encoded = engine.encode(texts)
        require_sound(encoded, num_texts=len(texts), vocab_size=self._vocab_size, hint=self._hint)
        if self._choice.must_agree:
            recheck(engine, self._truth, texts, encoded, choice=number)
        done += num_bytes
        if done < self._renewal_bytes or own_memory_bytes() < self._budget:
            self._idle.append((engine, done))
        else:
            del engine
            _return_freed_memory()
        return encoded


def _return_freed_memory() -> None:
    """Gives freed memory back to the system, which glibc does not do by itself for memory that threads allocated."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
