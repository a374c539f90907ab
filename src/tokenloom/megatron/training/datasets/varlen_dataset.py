"""`megatron.training.datasets.varlen_dataset`: samples of any length, each with one conversation or text."""

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
from tokenloom.megatron.training.datasets.utils import JsonRecords, ParquetRecords
from tokenloom.optional import require
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
    """Returns whether a path has the form "owner/name" of the Hugging Face Hub and is not a local file."""
    return bool(path and "/" in path and not path.startswith(("/", "./", "../")) and not os.path.exists(path))


def _text(value: Any, where: str) -> str:
    """Validates that a value is a string; returns "" for None."""
    if value is None:
        return ""
    if not isinstance(value, str):
        message = f"{where}: must be a string, got {type(value).__name__}"
        raise InputError(message, hint="convert the content to text; images and other parts are not supported")
    return value


def _first_present(sample: Record, fields: Iterable[str]) -> str | None:
    """Returns the first non-empty text in the given fields."""
    return next((text for name in fields if (text := _text(sample.get(name), f"`{name}`"))), None)


def _with_system(messages: list[Message]) -> list[Message]:
    """Prepends an empty system message, unless the first message is a system message."""
    if messages and messages[0]["role"] == "system":
        return messages
    return [{"role": "system", "content": ""}, *messages]


def _alpaca_to_messages(sample: Record) -> list[Message]:
    """Converts a record with an instruction, an optional input and an answer to a conversation."""
    instruction, extra, output = (
        _first_present(sample, fields) or "" for fields in (_INSTRUCTION_FIELDS, _EXTRA_INPUT_FIELDS, _OUTPUT_FIELDS)
    )
    prompt = f"{instruction}\n\n{extra}" if extra else instruction
    return _with_system([{"role": "user", "content": prompt}, {"role": "assistant", "content": output}])


def _sharegpt_to_messages(sample: Record) -> list[Message]:
    """Converts a record with "conversations" to a conversation; unknown roles become "user"."""
    messages = []
    for turn in sample.get("conversations") or []:
        role = _SHAREGPT_ROLE_MAP.get((turn.get("from") or "").lower(), "user")
        messages.append({"role": role, "content": _text(turn.get("value"), f"content of a {role} message")})
    return _with_system(messages)


def _messages_passthrough(sample: Record) -> list[Message]:
    """Returns the "messages" of a record, but only the role and the content of each message."""
    messages = []
    for message in sample.get("messages") or []:
        role = message.get("role") or "user"
        messages.append({"role": role, "content": _text(message.get("content"), f"content of a {role} message")})
    return _with_system(messages) if messages else messages


def _raw_text_loader(sample: Record) -> str:
    return _text(sample.get("text"), "`text`")


_CONVERTERS: dict[str, tuple[Converter, str]] = {
    "messages": (_messages_passthrough, "openai-messages"),
    "sharegpt": (_sharegpt_to_messages, "sharegpt"),
    "alpaca": (_alpaca_to_messages, "alpaca"),
    "text": (_raw_text_loader, "pretrain-text"),
}


def _select_converter(column_names: Sequence[str]) -> tuple[Converter, str]:
    """Returns the converter for records with these columns, and the name of the schema."""
    try:
        return _CONVERTERS[detect_schema(column_names)]
    except ConfigError as error:
        message = f"cannot infer schema from the columns {', '.join(sorted(column_names))}"
        raise InputError(message, hint=error.message) from error


class VarlenLowLevelDataset:
    """The conversations or texts in a JSON-lines or Parquet file, or in the Hugging Face dataset "owner/name"."""

    def __init__(self, dataset_path: str) -> None:
        if _looks_like_hf_id(dataset_path):
            self.dataset: Any = require("datasets", extra="hf").load_dataset(dataset_path, split="train")
        elif dataset_path.endswith(".parquet"):
            self.dataset = ParquetRecords(dataset_path)
        else:
            self.dataset = JsonRecords(dataset_path)
        self._converter, self._schema_name = _select_converter(self.dataset.column_names)

    @property
    def schema_name(self) -> str:
        """The schema of the records: "openai-messages", "sharegpt", "alpaca" or "pretrain-text"."""
        return self._schema_name

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, idx: int) -> Any:
        """Returns the messages of a conversation; if the schema is "pretrain-text", returns the text."""
        return self._converter(self.dataset[int(idx)])


# --- samples ----------------------------------------------------------------------------------------------------------


class VarlenDataset(SFTDataset):
    """A dataset with one conversation or text per sample, in file order, tokenized on access.

    A text of n tokens, including an end-of-text token, becomes a sample with tokens, labels and position_ids int64[P],
    loss_mask float32[P], original_seq_len int32[1] = n - 1 and padded_seq_len int32[1] = P. P is n - 1, rounded up
    to a multiple that the parallel sizes require. Texts of more than `sequence_length` + 1 tokens are truncated. With
    `varlen_sbhd_validation`, all samples are padded to `sequence_length` and have neither `original_seq_len` nor
    `padded_seq_len`.

    Arguments and errors are those of `SFTDataset`. `tokenloom.VarlenDataset` tokenizes once, shuffles, and returns
    lengths without reading samples.
    """

    @staticmethod
    def build_low_level_dataset(dataset_path: str, config: Any) -> Any:
        return VarlenLowLevelDataset(dataset_path)

    def _tokens_and_targets(self, idx: int) -> tuple[list[int], list[int]]:
        """Returns the tokens of a sample and the target of each token; at most `sequence_length` + 1 entries each."""
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
            tokens, targets = [end, end], [end, end]  # one input and one label
        return tokens, targets

    def __getitem__(self, idx: int) -> Sample:
        self._check_masks()
        tokens, targets = self._tokens_and_targets(idx)
        length, is_fixed = len(tokens) - 1, self.config.varlen_sbhd_validation
        multiple = self._calculate_padding_divisor()
        padded_length = self.config.sequence_length if is_fixed else -(-length // multiple) * multiple
        padding = [fill_token_id(self.config.tokenizer)] * (padded_length - length)
        sample = sample_of(tokens + padding, targets + padding, without_loss=[IGNORE_INDEX])
        sample["loss_mask"][length:] = 0.0
        if is_fixed:
            return sample
        lengths = {"original_seq_len": length, "padded_seq_len": padded_length}
        return sample | {name: torch.tensor([value], dtype=torch.int32) for name, value in lengths.items()}


class MockVarlenDataset(VarlenDataset):
    """A dataset of mock samples like those of `VarlenDataset`."""

    @staticmethod
    def build_low_level_dataset(dataset_path: str | None, config: Any) -> MockSFTLowLevelDataset:
        """Returns the mock texts that `varlen_mock_dataset_config_json` describes; ignores the path."""
        return mock_data(config.varlen_mock_dataset_config_json, config.sequence_length)

    def _tokens_and_targets(self, idx: int) -> tuple[list[int], list[int]]:
        if self.config.varlen_sbhd_validation:
            raise ConfigError("`varlen_sbhd_validation`: must be False for mock data, got True")
        tokens = self._mock_tokens(idx, longest=self.config.sequence_length + 1)
        return tokens, list(tokens)
