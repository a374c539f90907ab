"""`megatron.training.datasets.sft_dataset`: samples of conversations in JSON lines, tokenized on access."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tokenloom.datasets.tensors import Sample
from tokenloom.datasets.tokenizer import fill_token_id
from tokenloom.errors import ConfigError, InputError
from tokenloom.megatron.core.datasets.gpt_dataset import GPTDatasetConfig
from tokenloom.megatron.core.datasets.indexed_dataset import IndexedDataset
from tokenloom.megatron.core.datasets.megatron_dataset import LowLevelDataset, MegatronDataset  # noqa: F401
from tokenloom.megatron.core.datasets.utils import Split  # noqa: F401
from tokenloom.megatron.training.datasets.utils import JsonRecords, load_json_arg

IGNORE_INDEX = -100
"""The label of a token without loss."""

Message = dict[str, Any]


class SFTLowLevelDataset:
    """The "messages" of each line in a JSON-lines file: a list such as [{"role": "user", "content": "…"}, …]."""

    def __init__(self, dataset_path: str) -> None:
        self.dataset: JsonRecords = JsonRecords(dataset_path)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, idx: int) -> list[Message]:
        """Returns the messages of a line; raises `InputError` if the line has no "messages"."""
        record = self.dataset[idx]
        if "messages" not in record:
            raise InputError(f"`{self.dataset.path}`: record {idx} has no `messages`, only keys {', '.join(record)}")
        messages: list[Message] = record["messages"]
        return messages


class SFTDataset(MegatronDataset):
    """A dataset with one sample per line, in file order: the conversations of the line, tokenized on access.

    A system message starts a new conversation. A sample is truncated or padded to S = `sequence_length` tokens; padding
    extends the last conversation. With context parallelism, each conversation is also padded to a multiple of
    2 × `context_parallel_size` tokens. A sample has tokens, labels and position_ids int64[S], loss_mask float32[S],
    cu_seqlens int32[S + 1] (starts of conversations, padded with S) and max_seqlen int32.

    The tokenizer must have the method `tokenize_conversation`, like Megatron's tokenizer for fine-tuning. Labels that
    equal the pad id have no loss. `tokenloom.SFTDataset` tokenizes once, shuffles, and packs conversations.

    Arguments are those of `MegatronDataset`. If `num_samples` is None, no line repeats; else lines repeat as needed.
    """

    config: GPTDatasetConfig

    @staticmethod
    def numel_low_level_dataset(low_level_dataset: Any) -> int:
        return len(low_level_dataset)

    @staticmethod
    def build_low_level_dataset(dataset_path: str, config: Any) -> Any:
        return SFTLowLevelDataset(dataset_path)

    def __len__(self) -> int:
        return len(self.indices) if self.num_samples is None else self.num_samples

    def _split_conversations(self, merged_conversations: Iterable[Message]) -> list[list[Message]]:
        """Splits the messages of a line into conversations; a system message starts a conversation."""
        conversations: list[list[Message]] = []
        for message in merged_conversations:
            if message["role"] == "system" or not conversations:
                conversations.append([])
            conversations[-1].append(message)
        return conversations

    def _calculate_padding_divisor(self) -> int:
        """Returns d: samples without a fixed length are padded to a multiple of d tokens."""
        config = self.config
        context = config.context_parallel_size or 1
        divisor = 2 * context if context > 1 or config.hybrid_context_parallel else 1
        if config.hybrid_context_parallel:
            divisor *= config.data_parallel_size
        return int(divisor * max(config.sequence_parallel_size, 1))

    def _low_level(self, idx: int) -> Any:
        return self.dataset[int(self.indices[idx % len(self.indices)])]

    def _mock_tokens(self, idx: int, *, longest: int) -> list[int]:
        """Returns a mock text and an end-of-text token; cuts more than `longest` tokens to `sequence_length` tokens."""
        tokenizer: Any = self.config.tokenizer
        tokens = [*self._low_level(idx).tolist(), tokenizer.eod]
        return tokens if len(tokens) <= longest else [*tokens[: self.config.sequence_length - 1], tokenizer.eod]

    def _tokenize(self, conversation: list[Message]) -> tuple[list[int], list[int]]:
        """Returns the tokens of a conversation and the target of each token: `IGNORE_INDEX` for tokens without loss."""
        tokenizer: Any = self.config.tokenizer
        if not hasattr(tokenizer, "tokenize_conversation"):
            hint = "use Megatron's tokenizer for fine-tuning, or `tokenloom.SFTDataset` with a Hugging Face tokenizer"
            raise ConfigError(f"tokenizer {type(tokenizer).__name__} has no `tokenize_conversation`", hint=hint)
        tokens, targets = tokenizer.tokenize_conversation(conversation, return_target=True, add_generation_prompt=False)
        return tokens.tolist(), targets.tolist()

    def _check_masks(self) -> None:
        for name in ("reset_position_ids", "create_attention_mask", "reset_attention_mask"):
            if getattr(self.config, name):
                raise ConfigError(f"`{name}`: must be False for conversations", hint="pass False and use `cu_seqlens`")

    def __getitem__(self, idx: int) -> Sample:
        self._check_masks()
        size, pad = self.config.sequence_length, fill_token_id(self.config.tokenizer)
        multiple = 2 * context if (context := self.config.context_parallel_size or 1) > 1 else 1
        tokens: list[int] = []
        targets: list[int] = []
        positions: list[int] = []
        ends: list[int] = []
        for conversation in self._split_conversations(self._low_level(idx)):
            own, own_targets = self._tokenize(conversation)
            padding = [pad] * (-(len(tokens) + len(own)) % multiple)
            tokens += own + padding
            targets += own_targets + padding
            positions += range(len(own) + len(padding))
            ends.append(min(len(tokens), size))
            if len(tokens) > size:
                break
        if not ends:
            raise InputError(f"`{self.dataset_path}`: sample {idx} has no conversation")
        if len(tokens) > size:
            tokens[size:], targets[size:] = [pad], [pad]
        missing = size + 1 - len(tokens)
        positions += range(positions[-1] + 1, positions[-1] + 1 + missing)
        ends[-1] = size
        boundaries = torch.tensor([0, *ends], dtype=torch.int32)
        cu_seqlens = torch.full((size + 1,), size, dtype=torch.int32)
        cu_seqlens[: len(boundaries)] = boundaries
        padding = [pad] * missing
        return {
            **sample_of(tokens + padding, targets + padding, without_loss=[pad, IGNORE_INDEX]),
            "position_ids": torch.tensor(positions[:size], dtype=torch.int64),
            "cu_seqlens": cu_seqlens,
            "max_seqlen": (boundaries[1:] - boundaries[:-1]).max(),
        }


class MockSFTLowLevelDataset:
    """Mock texts of random lengths; a text of length n is an array of n - 1 tokens, without the end-of-text token.

    Args:
        mode: "distribution": lengths are lognormal with `mean_seq_len` and `lognormal_sigma`, clipped to
            [`min_seq_len`, `max_seq_len`]; `type` must be "lognormal". "file": lengths are read from the CSV file at
            `path`, whose first line is skipped. "verification": like "distribution", but with tokens of the pair at
            `data_path`.
        kwargs: settings of the mode, and `format`: "thd" keeps sample lengths, "sbhd" pads to `sequence_length`.

    Raises:
        ConfigError: the mode or the distribution is unknown.
        KeyError: a setting of the mode is missing.
    """

    seed = 0
    size: int = 1_000_000

    def __init__(self, mode: str, **kwargs: Any) -> None:
        self.format: Any = kwargs.get("format", "thd")
        self.indexed_dataset: Any = None
        if mode == "verification":
            self.indexed_dataset = IndexedDataset(kwargs["data_path"])
            kwargs = {"min_seq_len": 100, "max_seq_len": 4096, "mean_seq_len": 2048, "lognormal_sigma": 1.1} | kwargs
        if mode == "file":
            self.sequence_lengths: NDArray[np.int64] = np.loadtxt(
                kwargs["path"], dtype=np.int64, skiprows=1, ndmin=1, delimiter=","
            ).ravel()
            self.size = len(self.sequence_lengths)
        elif mode == "verification" or (mode == "distribution" and kwargs.get("type") == "lognormal"):
            names = ("mean_seq_len", "lognormal_sigma", "min_seq_len", "max_seq_len")
            self.sequence_lengths = self.generate_lognormal_samples(self.size, *(kwargs[name] for name in names))
        else:
            known = "'file', 'verification', or 'distribution' with `type` 'lognormal'"
            raise ConfigError(f"`mode`: must be {known}, got {mode!r}")

    def generate_lognormal_samples(
        self, size: int, mean: float, sigma: float, min_seq_len: int, max_seq_len: int
    ) -> NDArray[np.int64]:
        """Returns clipped lognormal lengths, int64[size], drawn with the seed `seed`."""
        drawn = np.random.RandomState(self.seed).lognormal(np.log(mean) - sigma**2 / 2, sigma, size)
        return np.clip(drawn, min_seq_len, max_seq_len).astype(np.int64)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, idx: int) -> NDArray[np.int64]:
        """Returns the tokens of a text, int64[length - 1]: 1, 2, 3, …, or tokens of the pair at `data_path`."""
        length = int(self.sequence_lengths[idx % self.size]) - 1
        if self.indexed_dataset is None:
            return np.arange(1, length + 1, dtype=np.int64)
        parts: list[NDArray[Any]] = []
        while (missing := length - sum(map(len, parts))) > 0:
            parts.append(self.indexed_dataset[(idx + len(parts)) % len(self.indexed_dataset)][:missing])
        return np.concatenate(parts, dtype=np.int64)


class MockSFTDataset(SFTDataset):
    """A dataset of mock samples, each of one text; see `MockSFTLowLevelDataset` for lengths and padding."""

    @staticmethod
    def build_low_level_dataset(dataset_path: str | None, config: Any) -> MockSFTLowLevelDataset:
        """Returns the mock texts that `sft_mock_dataset_config_json` describes; ignores the path."""
        return mock_data(config.sft_mock_dataset_config_json, config.sequence_length)

    def __getitem__(self, idx: int) -> Sample:
        size, pad = self.config.sequence_length, fill_token_id(self.config.tokenizer)
        tokens = self._mock_tokens(idx, longest=size)
        if self.dataset.format == "sbhd":
            padded = [*tokens, *[pad] * (size + 1 - len(tokens))]
            return sample_of(padded, padded, without_loss=[pad])
        padded = [*tokens, *[pad] * (1 + -len(tokens) % self._calculate_padding_divisor())]
        sample = sample_of(padded, padded, without_loss=[pad])
        length = len(sample["tokens"])
        cu_seqlens = torch.tensor([0, length], dtype=torch.int32)
        return {**sample, "cu_seqlens": cu_seqlens, "max_seqlen": torch.tensor(length, dtype=torch.int32)}


def sample_of(tokens: list[int], targets: list[int], *, without_loss: list[int]) -> Sample:
    """Returns tensors of a sample: labels are `targets` shifted by one; labels in `without_loss` have loss mask 0."""
    labels = torch.tensor(targets[1:], dtype=torch.int64)
    return {
        "tokens": torch.tensor(tokens[:-1], dtype=torch.int64),
        "labels": labels,
        "loss_mask": (~torch.isin(labels, torch.tensor(without_loss))).float(),
        "position_ids": torch.arange(len(labels), dtype=torch.int64),
    }


def mock_data(settings: str | None, sequence_length: int) -> MockSFTLowLevelDataset:
    """Returns mock texts; `settings` is JSON or the path of a JSON file.

    If `settings` is None, lengths are in [`sequence_length` // 2, `sequence_length`].
    """
    default = {"mode": "distribution", "type": "lognormal", "lognormal_sigma": 1.1, "max_seq_len": sequence_length}
    default |= {"min_seq_len": sequence_length // 2, "mean_seq_len": sequence_length // 4 * 3}
    return MockSFTLowLevelDataset(**(default if settings is None else load_json_arg(settings)))
