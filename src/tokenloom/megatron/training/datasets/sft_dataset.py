"""`megatron.training.datasets.sft_dataset`: conversations of JSON lines, tokenized on access."""

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
    """The "messages" of each line of a file of JSON lines: a list such as [{"role": "user", "content": "…"}, …].

    Each system message begins a conversation.
    """

    def __init__(self, dataset_path: str) -> None:
        self.dataset: JsonRecords = JsonRecords(dataset_path)

    def __len__(self) -> int:
        """The number of lines."""
        return len(self.dataset)

    def __getitem__(self, idx: int) -> list[Message]:
        """Returns the messages of a line; an `InputError` without them."""
        record = self.dataset[idx]
        if "messages" not in record:
            raise InputError(f"`{self.dataset.path}`: record {idx} has no `messages`, only {', '.join(record)}")
        messages: list[Message] = record["messages"]
        return messages


class SFTDataset(MegatronDataset):
    """Samples of `sequence_length` positions with the conversations of one line each, in the order of the file.

    A sample is cut at its end, or padded as part of its last conversation. With context parallelism conversations are
    padded to a multiple of twice its size. A sample has tokens, labels, position_ids int64[S], loss_mask float32[S],
    cu_seqlens int32[S + 1] (starts of conversations, padded with S) and max_seqlen, an int32.

    The tokenizer needs `tokenize_conversation`, as the reference's for fine-tuning. A label that is the pad id has no
    loss. `tokenloom.SFTDataset` tokenizes once, shuffles, packs samples and masks by position.

    Args are those of `MegatronDataset`: `num_samples` repeats lines; None for one sample per line.
    """

    config: GPTDatasetConfig

    @staticmethod
    def numel_low_level_dataset(low_level_dataset: Any) -> int:
        """Returns the number of lines."""
        return len(low_level_dataset)

    @staticmethod
    def build_low_level_dataset(dataset_path: str, config: Any) -> Any:
        """Opens a file of conversations."""
        return SFTLowLevelDataset(dataset_path)

    def __len__(self) -> int:
        """The number of samples."""
        return len(self.indices) if self.num_samples is None else self.num_samples

    def _split_conversations(self, merged_conversations: Iterable[Message]) -> list[list[Message]]:
        """Returns the conversations of a line, split at system messages."""
        conversations: list[list[Message]] = []
        for message in merged_conversations:
            if message["role"] == "system" or not conversations:
                conversations.append([])
            conversations[-1].append(message)
        return conversations

    def _calculate_padding_divisor(self) -> int:
        """Returns the divisor of the length of a sample of varying length."""
        config = self.config
        context = config.context_parallel_size or 1
        divisor = 2 * context if context > 1 or config.hybrid_context_parallel else 1
        if config.hybrid_context_parallel:
            divisor *= config.data_parallel_size
        return int(divisor * max(config.sequence_parallel_size, 1))

    def _low_level(self, idx: int) -> Any:
        """Returns the low-level item of a sample."""
        return self.dataset[int(self.indices[idx % len(self.indices)])]

    def _tokenize(self, conversation: list[Message]) -> tuple[list[int], list[int]]:
        """Returns the tokens of a conversation, and its targets: `IGNORE_INDEX` for tokens without loss."""
        tokenizer: Any = self.config.tokenizer
        if not hasattr(tokenizer, "tokenize_conversation"):
            hint = "use the reference's for fine-tuning, or `tokenloom.SFTDataset` with a Hugging Face tokenizer"
            raise ConfigError(f"tokenizer {type(tokenizer).__name__} has no `tokenize_conversation`", hint=hint)
        tokens, targets = tokenizer.tokenize_conversation(conversation, return_target=True, add_generation_prompt=False)
        return tokens.tolist(), targets.tolist()

    def _check_masks(self) -> None:
        for name in ("reset_position_ids", "create_attention_mask", "reset_attention_mask"):
            if getattr(self.config, name):
                raise ConfigError(f"`{name}`: must be False for conversations", hint="use `cu_seqlens`")

    def __getitem__(self, idx: int) -> Sample:
        """Returns a sample as torch tensors."""
        self._check_masks()
        size, pad = self.config.sequence_length, fill_token_id(self.config.tokenizer)
        multiple = 2 * context if (context := self.config.context_parallel_size or 1) > 1 else 1
        tokens: list[int] = []
        targets: list[int] = []
        positions: list[int] = []
        ends: list[int] = []
        for conversation in self._split_conversations(self._low_level(idx)):
            own, own_targets = self._tokenize(conversation)
            filling = [pad] * (-(len(tokens) + len(own)) % multiple)
            tokens += own + filling
            targets += own_targets + filling
            positions += range(len(own) + len(filling))  # padding counts on
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
        filling = [pad] * missing
        return {
            **sample_of([*tokens, *filling], [*targets, *filling], without_loss=[pad, IGNORE_INDEX]),
            "position_ids": torch.tensor(positions[:size], dtype=torch.int64),
            "cu_seqlens": cu_seqlens,
            "max_seqlen": (boundaries[1:] - boundaries[:-1]).max(),
        }


class MockSFTLowLevelDataset:
    """Mock texts with lengths of a distribution, less a token for the end of text.

    Args:
        mode: "distribution" for clipped lognormal lengths (`type` "lognormal", `min_seq_len`, `max_seq_len`,
            `mean_seq_len`, `lognormal_sigma`); "file" for lengths in a file at `path`, after a heading; "verification"
            for tokens of the pair at `data_path`, with lengths as of "distribution".
        kwargs: settings of the mode; `format` "thd" for samples of their own length, "sbhd" for padded ones.

    Raises:
        ConfigError, KeyError: the mode or distribution is unknown; a setting is missing.
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
            raise ConfigError(f"mode {mode!r}: must be 'file', 'verification' or a lognormal 'distribution'")

    def generate_lognormal_samples(
        self, size: int, mean: float, sigma: float, min_seq_len: int, max_seq_len: int
    ) -> NDArray[np.int64]:
        """Returns lengths, int64[size], from a fixed seed."""
        drawn = np.random.RandomState(self.seed).lognormal(np.log(mean) - sigma**2 / 2, sigma, size)
        return np.clip(drawn, min_seq_len, max_seq_len).astype(np.int64)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, idx: int) -> NDArray[np.int64]:
        """Returns a text, int64[length - 1]: 1, 2, 3, …, or tokens of the pair."""
        length = int(self.sequence_lengths[idx % self.size]) - 1
        if self.indexed_dataset is None:
            return np.arange(1, length + 1, dtype=np.int64)
        parts: list[NDArray[Any]] = []
        while (missing := length - sum(map(len, parts))) > 0:
            parts.append(self.indexed_dataset[(idx + len(parts)) % len(self.indexed_dataset)][:missing])
        return np.concatenate(parts, dtype=np.int64)


class MockSFTDataset(SFTDataset):
    """Samples of one mock text each, of its own length, or padded with `format` "sbhd"."""

    @staticmethod
    def build_low_level_dataset(dataset_path: str | None, config: Any) -> MockSFTLowLevelDataset:
        """Returns the texts of `sft_mock_dataset_config_json`; the path has no effect."""
        return mock_data(config.sft_mock_dataset_config_json, config.sequence_length)

    def __getitem__(self, idx: int) -> Sample:
        """Returns a sample as torch tensors."""
        tokenizer: Any = self.config.tokenizer
        size, pad = self.config.sequence_length, fill_token_id(tokenizer)
        tokens = [*self._low_level(idx).tolist(), tokenizer.eod]
        if len(tokens) > size:
            tokens = [*tokens[: size - 1], tokenizer.eod]
        if self.dataset.format == "sbhd":
            padded = [*tokens, *[pad] * (size + 1 - len(tokens))]
            return sample_of(padded, padded, without_loss=[pad])
        padded = [*tokens, *[pad] * (1 + -len(tokens) % self._calculate_padding_divisor())]
        sample = sample_of(padded, padded, without_loss=[pad])
        length = len(sample["tokens"])
        cu_seqlens = torch.tensor([0, length], dtype=torch.int32)
        return {**sample, "cu_seqlens": cu_seqlens, "max_seqlen": torch.tensor(length, dtype=torch.int32)}


def sample_of(tokens: list[int], targets: list[int], *, without_loss: list[int]) -> Sample:
    """Returns the sample of a text; labels are the next targets, and some ids have no loss."""
    labels = torch.tensor(targets[1:], dtype=torch.int64)
    return {
        "tokens": torch.tensor(tokens[:-1], dtype=torch.int64),
        "labels": labels,
        "loss_mask": (~torch.isin(labels, torch.tensor(without_loss))).float(),
        "position_ids": torch.arange(len(labels), dtype=torch.int64),
    }


def mock_data(settings: str | None, sequence_length: int) -> MockSFTLowLevelDataset:
    """Returns mock texts of JSON settings, or of the path of a file; None for half a sample to a whole."""
    usual = {"mode": "distribution", "type": "lognormal", "lognormal_sigma": 1.1, "max_seq_len": sequence_length}
    usual |= {"min_seq_len": sequence_length // 2, "mean_seq_len": sequence_length // 4 * 3}
    return MockSFTLowLevelDataset(**(usual if settings is None else load_json_arg(settings)))
