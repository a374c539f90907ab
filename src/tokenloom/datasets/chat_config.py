"""Configuration classes of conversation datasets."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from tokenloom.datasets.columns import LOSS_WEIGHT
from tokenloom.datasets.config import GPTDatasetConfig
from tokenloom.errors import ConfigError
from tokenloom.numbers import checked_integer
from tokenloom.preprocess.schemas import Schema

TrainOn = Literal["answers", "last_answer", "everything"]
LongPolicy = Literal["truncate", "drop", "error"]
UntrainablePolicy = Literal["drop", "keep", "error"]

TRAIN_ON: tuple[TrainOn, ...] = get_args(TrainOn)


@dataclass
class SFTDatasetConfig(GPTDatasetConfig):
    """Settings of conversation datasets, which also accept a `GPTDatasetConfig` and add the defaults of this class.

    Attributes:
        reset_position_ids, reset_attention_mask, eod_mask_loss, create_attention_mask: must be False; boundaries come
            from the `.idx` file, and loss from the roles of tokens.
        train_on: tokens with loss: all "answers" of the assistant, only its "last_answer", or "everything". Plain text
            always has loss everywhere.
        long_conversations: "truncate" conversations longer than a sample, "drop" them, or raise an "error".
        untrainable_conversations: "drop" conversations without a token to train on (for example if the prompt is longer
            than a sample), "keep" them, or raise an "error". The mean loss of a sample without loss tokens is NaN.
        most_conversations: maximum number of conversations in a sample; None for no limit. Many tiny conversations make
            steps slow.
        attention_prefix: in each conversation, let all tokens before the first token with loss attend to each other, as
            in a prefix language model; needs `attention="block_mask"`. Adds `seen_stop` int32[S] to samples: token i
            attends to the tokens of its conversation before slot `seen_stop[i]`.
        chat_template: chat template for raw input files, see `find_chat_template`.
        schema: record schema of raw input files, see `preprocess_chat`.
        skip_bad_lines: skip invalid records of raw input files instead of raising.
    """

    reset_position_ids: bool | None = False
    reset_attention_mask: bool | None = False
    eod_mask_loss: bool | None = False
    create_attention_mask: bool = False
    train_on: TrainOn = "answers"
    long_conversations: LongPolicy = "truncate"
    untrainable_conversations: UntrainablePolicy = "drop"
    most_conversations: int | None = None
    attention_prefix: bool = False
    chat_template: str | None = None
    schema: Schema | None = None
    skip_bad_lines: bool = False

    @property
    def slot_multiple(self) -> int:
        """Each conversation is padded to a multiple of this number of slots, by the reference's rule.

        This is the product of: 2 × `context_parallel_size`, if this size is above 1 or `hybrid_context_parallel` is
        set; `data_parallel_size`, if `hybrid_context_parallel` is set; `sequence_parallel_size`, if this is above 0.
        """
        context = self.context_parallel_size or 1
        multiple = 2 * context if context > 1 or self.hybrid_context_parallel else 1
        if self.hybrid_context_parallel:
            multiple *= self.data_parallel_size
        return multiple * max(self.sequence_parallel_size, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "create_attention_mask"):
            if getattr(self, name):
                hint = "remove it: boundaries come from the `.idx` file, loss from roles"
                raise ConfigError(f"`{name}`: must be False for conversations, got True", hint=hint)
        if self.sequence_length % (multiple := self.slot_multiple):
            message = f"`sequence_length`: must be a multiple of {multiple}, got {self.sequence_length}"
            raise ConfigError(message, hint="round it up, or change the size of context or sequence parallelism")
        if self.most_conversations is not None:
            checked_integer("most_conversations", self.most_conversations, at_least=1)
        if self.attention_prefix:
            if self.attention != "block_mask":
                raise ConfigError(f'`attention_prefix`: needs `attention="block_mask"`, got {self.attention!r}')
            if self.attention_window is not None:
                raise ConfigError("`attention_prefix` and `attention_window` exclude each other, got both")
        if self.window_policy != "concat":
            message = f"`window_policy`: cannot be set for conversations, got {self.window_policy!r}"
            raise ConfigError(message, hint="remove it: conversations are never divided into windows")


@dataclass
class VarlenDatasetConfig(SFTDatasetConfig):
    """Settings of `VarlenDataset` and `MockVarlenDataset`.

    Attributes:
        mock_dataset_config: lengths of mock data: {"mode": "distribution", "type": "lognormal", "min_seq_len": …,
            "max_seq_len": …, "mean_seq_len": …, "lognormal_sigma": …}, or {"mode": "file", "path": path of a file with
            a header line, then one length per line}. None draws lognormal lengths with a mean of 3/4 of
            `sequence_length`, and clips them to [sequence_length / 2, sequence_length].
    """

    mock_dataset_config: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        others = [name for name in self.columns if name != LOSS_WEIGHT]
        for name, found, hint in (
            ("attention", self.attention, "call `block_mask_arrays` on the packs of the packing scheduler"),
            ("most_conversations", self.most_conversations, "set `max_num_seqs` of the packing scheduler"),
            ("columns", others or None, f"use `{LOSS_WEIGHT}` only: packing schedulers drop other columns"),
        ):
            if found is not None:
                raise ConfigError(f"`{name}`: not supported for samples of one conversation, got {found!r}", hint=hint)


def as_chat_config(config: Any, kind: type[SFTDatasetConfig] = SFTDatasetConfig) -> Any:
    """Returns a config as a conversation config of class `kind`, with defaults for missing settings."""
    if isinstance(config, kind):
        return config
    settings = {field.name: getattr(config, field.name) for field in fields(config) if field.init}
    if settings.get("blend_per_split") is None and settings.get("blend") is None:
        settings["split"] = None  # the split of mock data is computed
    known = {field.name for field in fields(kind)}
    return kind(**{name: value for name, value in settings.items() if name in known})
