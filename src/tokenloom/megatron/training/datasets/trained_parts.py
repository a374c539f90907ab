"""Which parts of answers have loss: thoughts and calls of tools may be left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.megatron.core.datasets.gpt_dataset import GPTDatasetConfig


@dataclass
class SFTDatasetConfig(GPTDatasetConfig):
    """What may be said of the loss of conversations beyond the settings of GPT datasets.

    Attributes:
        train_on_assistant_responses_only: loss where the tokenizer gives a target; without it, everywhere.
        train_on_thinking_traces: loss on thoughts of the assistant.
        train_on_tool_calls: loss on its calls of tools.
        thinking_delimiters: what a thought begins and ends with; both count as part of it, as the next two do.
        tool_call_delimiters: what a call begins and ends with.
    """

    train_on_assistant_responses_only: bool = True
    train_on_thinking_traces: bool = True
    train_on_tool_calls: bool = True
    thinking_delimiters: tuple[str, str] = ("<think>", "</think>")
    tool_call_delimiters: tuple[str, str] = ("<tool_call>", "</tool_call>")


class PartFinder:
    """Finds the tokens of conversations that are to have no loss.

    Args:
        delimiters: the ids that a part begins with, and those that it ends with, of each kind of part.
        trains_everything: whether prompts have loss.
    """

    def __init__(self, delimiters: list[tuple[list[int], list[int]]], *, trains_everything: bool) -> None:
        self.trains_everything = trains_everything
        self._delimiters = delimiters

    def targets(self, tokens: NDArray[Any], targets: NDArray[Any], *, ignored: int) -> NDArray[Any]:
        """Returns the targets of a conversation, `ignored` where there is no loss.

        Args:
            tokens: integers[length], the conversation.
            targets: integers[length], as the tokenizer gives them.
            ignored: the target of a token without loss.
        """
        chosen = np.array(tokens if self.trains_everything else targets)
        for begin, end in self._delimiters:
            for start, stop in self._parts(np.asarray(tokens), chosen != ignored, begin, end):
                chosen[start:stop] = ignored
        return chosen

    def _parts(
        self, tokens: NDArray[Any], has_loss: NDArray[np.bool_], begin: list[int], end: list[int]
    ) -> list[tuple[int, int]]:
        """Returns the parts that begin where there is loss, delimiters included; one without an end goes to the end."""
        starts, ends = _places(tokens, begin), _places(tokens, end)
        found: list[tuple[int, int]] = []
        for start in starts[has_loss[starts]].tolist():
            if found and start < found[-1][1]:
                continue
            later = ends[ends >= start + len(begin)]
            found.append((start, int(later[0]) + len(end) if len(later) else len(tokens)))
        return found


def part_finder(config: Any) -> PartFinder | None:
    """Returns what a configuration says of the loss; None where the tokenizer has the last word.

    Raises:
        ConfigError: the tokenizer gives no tokens for a delimiter.
    """
    if not isinstance(config, SFTDatasetConfig):
        return None
    kinds = [(config.train_on_thinking_traces, config.thinking_delimiters, "thinking_delimiters")]
    kinds.append((config.train_on_tool_calls, config.tool_call_delimiters, "tool_call_delimiters"))
    delimiters = [
        (_ids(config.tokenizer, begin, name), _ids(config.tokenizer, end, name))
        for is_trained, (begin, end), name in kinds
        if not is_trained
    ]
    if not delimiters and config.train_on_assistant_responses_only:
        return None
    return PartFinder(delimiters, trains_everything=not config.train_on_assistant_responses_only)


def _ids(tokenizer: Any, text: str, name: str) -> list[int]:
    """Returns the tokens of a delimiter, without those that a tokenizer puts around every text."""
    ids, around = list(tokenizer.tokenize(text)), list(tokenizer.tokenize(""))
    while around and ids and ids[0] == around[0]:
        del ids[0], around[0]
    while around and ids and ids[-1] == around[-1]:
        del ids[-1], around[-1]
    if not ids:
        message = f"expected tokens of {text!r} in `{name}`, found none"
        raise ConfigError(message, hint="name what the chat template writes")
    return ids


def _places(tokens: NDArray[Any], wanted: list[int]) -> NDArray[np.int64]:
    """Returns where a sequence of tokens stands: int64[count]."""
    if len(tokens) < len(wanted):
        return np.empty(0, dtype=np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(tokens, len(wanted))
    return np.flatnonzero((windows == np.array(wanted)).all(axis=1))
