"""`megatron.training.datasets.varlen_dataset`: a conversation or text per sample, of its own length."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from tokenloom.datasets.tensors import Sample
from tokenloom.datasets.tokenizer import fill_token_id
from tokenloom.errors import ConfigError, InputError
from tokenloom.megatron.training.datasets.sft_dataset import (
    IGNORE_INDEX,
    Message,
    MockSFTLowLevelDataset,
    SFTDataset,
    mock_data,
    sample_of,
)
from tokenloom.megatron.training.datasets.utils import JsonRecords, ParquetRecords, hub_records
from tokenloom.preprocess.schemas import detect_schema

_INSTRUCTION_FIELDS = ("instruction", "prompt", "query", "question")
_OUTPUT_FIELDS = ("output", "response", "completion", "answer")
_EXTRA_INPUT_FIELDS = ("input", "context")
_SHAREGPT_ROLE_MAP = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "model", "chatgpt", "bing", "bard"), "assistant"),
    "system": "system",
    **dict.fromkeys(("tool", "function", "observation"), "tool"),
}

Record = Mapping[str, Any]
Converter = Callable[[Record], Any]

MockVarlenLowLevelDataset = MockSFTLowLevelDataset


# --- records as conversations -----------------------------------------------------------------------------------------


def _looks_like_hf_id(path: str | None) -> bool:
    """Whether a path is "owner/name" of the Hugging Face Hub, and no file."""
    return bool(path and "/" in path and not path.startswith(("/", "./", "../")) and not os.path.exists(path))


def _text(value: Any, where: str) -> str:
    """Returns a text; None is an empty one."""
    if value is None:
        return ""
    if not isinstance(value, str):
        message = f"{where} must be a string, got {type(value).__name__}"
        raise InputError(message, hint="only text is supported, no images or other parts")
    return value


def _first_present(sample: Record, fields: Iterable[str]) -> str | None:
    """Returns the first non-empty text of some fields."""
    return next((text for name in fields if (text := _text(sample.get(name), f"`{name}`"))), None)


def _with_system(messages: list[Message]) -> list[Message]:
    """Returns messages that begin with a system message, an empty one if necessary."""
    if messages and messages[0]["role"] == "system":
        return messages
    return [{"role": "system", "content": ""}, *messages]


def _alpaca_to_messages(sample: Record) -> list[Message]:
    """Returns the conversation of an instruction, an optional input, and an answer."""
    instruction, extra, output = (
        _first_present(sample, fields) or "" for fields in (_INSTRUCTION_FIELDS, _EXTRA_INPUT_FIELDS, _OUTPUT_FIELDS)
    )
    asked = f"{instruction}\n\n{extra}" if extra else instruction
    return _with_system([{"role": "user", "content": asked}, {"role": "assistant", "content": output}])


def _sharegpt_to_messages(sample: Record) -> list[Message]:
    """Returns the conversation under "conversations"; unknown roles become users."""
    messages = []
    for turn in sample.get("conversations") or []:
        role = _SHAREGPT_ROLE_MAP.get((turn.get("from") or "").lower(), "user")
        messages.append({"role": role, "content": _text(turn.get("value"), f"the content of a turn of {role}")})
    return _with_system(messages)


def _messages_passthrough(sample: Record) -> list[Message]:
    """Returns the conversation under "messages": roles and texts only."""
    messages = []
    for message in sample.get("messages") or []:
        role = message.get("role") or "user"
        messages.append({"role": role, "content": _text(message.get("content"), f"the content of a turn of {role}")})
    return _with_system(messages) if messages else messages


def _raw_text_loader(sample: Record) -> str:
    """Returns the plain text under "text"."""
    return _text(sample.get("text"), "`text`")


_CONVERTERS: dict[str, tuple[Converter, str]] = {
    "messages": (_messages_passthrough, "openai-messages"),
    "sharegpt": (_sharegpt_to_messages, "sharegpt"),
    "alpaca": (_alpaca_to_messages, "alpaca"),
    "text": (_raw_text_loader, "pretrain-text"),
}


def _select_converter(column_names: Sequence[str]) -> tuple[Converter, str]:
    """Returns the converter of records with these columns, and the name of their schema."""
    try:
        return _CONVERTERS[detect_schema(column_names)]
    except ConfigError as error:
        message = f"cannot infer schema from the columns {', '.join(sorted(column_names))}"
        raise InputError(message, hint=error.message) from error


class VarlenLowLevelDataset:
    """Conversations or texts of a file of JSON lines or Parquet, or of "owner/name" of the Hub."""

    def __init__(self, dataset_path: str) -> None:
        if _looks_like_hf_id(dataset_path):
            self.dataset: Any = hub_records(dataset_path)
        elif dataset_path.endswith(".parquet"):
            self.dataset = ParquetRecords(dataset_path)
        else:
            self.dataset = JsonRecords(dataset_path)
        self._converter, self._schema_name = _select_converter(self.dataset.column_names)

    @property
    def schema_name(self) -> str:
        """The schema: "openai-messages", "sharegpt", "alpaca" or "pretrain-text"."""
        return self._schema_name

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, idx: int) -> Any:
        """Returns the messages of a conversation, or a text."""
        return self._converter(self.dataset[int(idx)])


# --- samples ----------------------------------------------------------------------------------------------------------


class VarlenDataset(SFTDataset):
    """Samples of one conversation or text each, padded for context parallelism, in the order of the file.

    A sample of n tokens, the last an end of text, has tokens, labels, position_ids int64[P], loss_mask float32[P],
    original_seq_len int32[1] (n - 1) and padded_seq_len int32[1] (P). Texts are cut to `sequence_length` with an end of
    text. With `varlen_sbhd_validation` all are padded to that, without lengths. `tokenloom.VarlenDataset` tokenizes
    once, shuffles, and knows lengths without reading.

    Args and errors are those of `SFTDataset`.
    """

    @staticmethod
    def build_low_level_dataset(dataset_path: str, config: Any) -> Any:
        """Opens a file of conversations or texts."""
        return VarlenLowLevelDataset(dataset_path)

    def _tokens_and_targets(self, idx: int) -> tuple[list[int], list[int]]:
        """Returns the tokens and targets of a sample as `_tokenize` does, cut to the length of a sample."""
        tokenizer: Any = self.config.tokenizer
        item = self._low_level(idx)
        if isinstance(item, str):
            tokens = list(tokenizer.tokenize(item))
            targets = list(tokens)
        else:
            tokens, targets = self._tokenize(item)
        longest, end = self.config.sequence_length + 1, tokenizer.eod
        if len(tokens) > longest or tokens[-1:] != [end]:
            kept = min(len(tokens), longest - 1)
            tokens, targets = [*tokens[:kept], end], [*targets[:kept], end]
        if len(tokens) == 1:
            tokens, targets = [end, end], [end, end]  # an input and a label
        return tokens, targets

    def __getitem__(self, idx: int) -> Sample:
        """Returns a sample as torch tensors."""
        self._check_masks()
        tokens, targets = self._tokens_and_targets(idx)
        length, pad = len(tokens) - 1, fill_token_id(self.config.tokenizer)
        padded_to_whole = self.config.varlen_sbhd_validation
        multiple = self._calculate_padding_divisor()
        slots = self.config.sequence_length if padded_to_whole else -(-length // multiple) * multiple
        filling = [pad] * (slots - length)
        sample = sample_of([*tokens, *filling], [*targets, *filling], without_loss=[IGNORE_INDEX])
        sample["loss_mask"][length:] = 0.0
        if padded_to_whole:
            return sample
        return {
            **sample,
            "original_seq_len": torch.tensor([length], dtype=torch.int32),
            "padded_seq_len": torch.tensor([slots], dtype=torch.int32),
        }


class MockVarlenDataset(VarlenDataset):
    """Samples of mock texts in the form of `VarlenDataset`."""

    @staticmethod
    def build_low_level_dataset(dataset_path: str | None, config: Any) -> MockSFTLowLevelDataset:
        """Returns the texts of `varlen_mock_dataset_config_json`; the path has no effect."""
        return mock_data(config.varlen_mock_dataset_config_json, config.sequence_length)

    def _tokens_and_targets(self, idx: int) -> tuple[list[int], list[int]]:
        if self.config.varlen_sbhd_validation:
            raise ConfigError("`varlen_sbhd_validation` is for real data")
        tokenizer: Any = self.config.tokenizer
        size = self.config.sequence_length
        tokens = [*self._low_level(idx).tolist(), tokenizer.eod]
        if len(tokens) > size + 1:
            tokens = [*tokens[: size - 1], tokenizer.eod]
        return tokens, list(tokens)
