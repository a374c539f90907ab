"""The settings of datasets of conversations, checked where they are held."""

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
    """Settings of datasets of conversations; a `GPTDatasetConfig` will do for the defaults.

    Attributes:
        reset_position_ids, reset_attention_mask, eod_mask_loss, create_attention_mask: must be False; boundaries and
            loss come from the index.
        train_on: tokens with loss: answers of the assistant, its last one, or everything. Plain text always has loss.
        long_conversations: those longer than a sample are cut at its end, dropped, or an error.
        untrainable_conversations: those without a token to train on (a prompt longer than a sample, for example) are
            dropped, kept, or an error. A sample of nothing else makes a mean of no losses, which is NaN.
        most_conversations: most conversations of a sample, since many tiny ones make steps slow; None for any number.
        attention_prefix: whether the tokens of a conversation up to the first one with loss see each other, as in a
            prefix language model; needs `attention="block_mask"`. Samples then hold `seen_stop` int32[S]: token i sees
            tokens before `seen_stop[i]`.
        chat_template: template for input that is not tokenized yet, see `find_chat_template`.
        schema: likewise, see `preprocess_chat`.
        skip_bad_lines: likewise.
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
        """The slots of a conversation are a multiple of this: the reference's rule.

        2 × context parallel size if that is above 1 (× data parallel size with hybrid context parallelism), times the
        sequence parallel size if that is above 0.
        """
        context = self.context_parallel_size or 1
        multiple = 2 * context if context > 1 or self.hybrid_context_parallel else 1
        if self.hybrid_context_parallel:
            multiple *= self.data_parallel_size
        return multiple * max(self.sequence_parallel_size, 1)

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        for name in ("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "create_attention_mask"):
            if getattr(self, name):
                hint = "boundaries and loss come from the index, not from tokens"
                raise ConfigError(f"`{name}`: must be False for conversations, got True", hint=hint)
        if self.sequence_length % (multiple := self.slot_multiple):
            message = f"`sequence_length`: must be a multiple of {multiple}, got {self.sequence_length}"
            raise ConfigError(message, hint="context and sequence parallelism need that of every conversation")
        if self.most_conversations is not None:
            checked_integer("most_conversations", self.most_conversations, at_least=1)
        if self.attention_prefix:
            if self.attention != "block_mask":
                raise ConfigError(f'`attention_prefix`: needs `attention="block_mask"`, got {self.attention!r}')
            if self.attention_window is not None:
                raise ConfigError("`attention_prefix` and `attention_window` exclude each other, got both")
        if self.window_policy != "concat":
            message = f"`window_policy`: conversations are packed whole, got {self.window_policy!r}"
            raise ConfigError(message, hint="leave it out")


@dataclass
class VarlenDatasetConfig(SFTDatasetConfig):
    """Settings of `VarlenDataset` and `MockVarlenDataset`.

    Attributes:
        mock_dataset_config: settings of mock data: {"mode": "distribution", "type": "lognormal", "min_seq_len": …,
            "max_seq_len": …, "mean_seq_len": …, "lognormal_sigma": …}, or {"mode": "file", "path": a file with a
            heading and one length per line}. None: between half a sample and a whole one, three quarters in the mean.
    """

    mock_dataset_config: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        others = [name for name in self.columns if name != LOSS_WEIGHT]
        for name, found, hint in (
            ("attention", self.attention, "a packing scheduler says where they begin; see `block_mask_arrays`"),
            ("most_conversations", self.most_conversations, "a packing scheduler limits them: `max_num_seqs`"),
            ("columns", others or None, f"a packing scheduler carries none; but for {LOSS_WEIGHT}, in the loss mask"),
        ):
            if found is not None:
                raise ConfigError(f"`{name}`: not for samples of one conversation, got {found!r}", hint=hint)


def as_chat_config(config: Any, kind: type[SFTDatasetConfig] = SFTDatasetConfig) -> Any:
    """Returns settings of conversations: the config itself, or its settings with defaults for the rest."""
    if isinstance(config, kind):
        return config
    settings = {field.name: getattr(config, field.name) for field in fields(config) if field.init}
    if settings.get("blend_per_split") is None and settings.get("blend") is None:
        settings["split"] = None  # of mock data, and computed
    known = {field.name for field in fields(kind)}
    return kind(**{name: value for name, value in settings.items() if name in known})
