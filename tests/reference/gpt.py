"""The rules of GPT samples: how many epochs and windows, and what a sample holds. One token at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Epochs:
    """How many passes, how many windows they hold, and how many of those are complete before a separate last pass."""

    num_epochs: int
    num_samples: int
    num_samples_sans_final_epoch: int
    separate_final_epoch: bool


def count_epochs(
    tokens_per_epoch: int, num_samples: int | None, *, sequence_length: int, extra: int, keep_partial: bool
) -> Epochs:
    """Adds epoch after epoch until there are tokens enough for the samples."""
    num_epochs, tokens = 1, tokens_per_epoch
    while num_samples and tokens < num_samples * sequence_length + extra:
        num_epochs += 1
        tokens += tokens_per_epoch
    total = count_windows(tokens, sequence_length=sequence_length, extra=extra, keep_partial=keep_partial)
    if num_epochs == 1 or num_samples is None:
        return Epochs(num_epochs, total, total, False)
    before_final = (tokens - tokens_per_epoch - extra) // sequence_length
    per_epoch = (tokens_per_epoch - extra) // sequence_length
    separate = num_samples - before_final < int(0.80 * per_epoch)
    return Epochs(num_epochs, total, before_final if separate else total, separate)


def count_windows(num_tokens: int, *, sequence_length: int, extra: int, keep_partial: bool) -> int:
    """Cuts windows off the stream until no complete one is left; then perhaps a partial one."""
    count, left = 0, num_tokens
    while left >= sequence_length + extra:
        count += 1
        left -= sequence_length
    return count + 1 if keep_partial and left > extra else count


def make_sample(
    parts: Sequence[Sequence[int]],
    *,
    sequence_length: int,
    extra: int,
    pad: int = -1,
    eod: int = -1,
    reset_position_ids: bool = False,
    reset_attention_mask: bool = False,
    eod_mask_loss: bool = False,
    create_attention_mask: bool = False,
    inter_document_masking: bool = False,
    folds_last_token: bool = False,
) -> dict[str, Any]:
    """Returns a sample as nested lists.

    Args:
        parts: the tokens of each document in the sample, the extra token included, empty documents too.
        sequence_length: tokens of the sample.
        extra: tokens read beyond them, for the last label.
        pad: the id that fills up what the parts leave.
        eod: the end-of-document id.
        reset_position_ids, reset_attention_mask, eod_mask_loss, create_attention_mask, inter_document_masking: as in
            the configuration.
        folds_last_token: whether a document that begins with the last token has no place of its own, as in windows.
    """
    text = [token for part in parts for token in part]
    text += [pad] * (sequence_length + extra - len(text))
    tokens = text[:sequence_length]
    labels = text[1:] if extra else [*text[1:], pad]
    loss_mask = [0.0 if label == pad else 1.0 for label in labels]
    if eod_mask_loss:
        loss_mask = [0.0 if token == eod else loss for token, loss in zip(tokens, loss_mask, strict=True)]

    after_eod = [0]  # where a new document begins, as far as the tokens tell
    after_eod += [i + 1 for i, token in enumerate(tokens) if token == eod and i + 1 < sequence_length]
    between_parts = [0]
    documents = parts[:-1] if folds_last_token and extra and len(parts[-1]) == 1 else parts
    for part in documents[:-1]:
        between_parts.append(between_parts[-1] + len(part))
    between_parts = [start for start in between_parts if start < sequence_length]

    if inter_document_masking:
        starts = between_parts
    else:
        starts = after_eod if reset_position_ids else [0]
    sample = {
        "tokens": [0 if token == pad else token for token in tokens],
        "labels": [0 if label == pad else label for label in labels],
        "loss_mask": loss_mask,
        "position_ids": [i - max(start for start in starts if start <= i) for i in range(sequence_length)],
    }
    if inter_document_masking:
        # Every empty document repeats a boundary; only if there is no room for so many, they count once.
        starts = between_parts if len(between_parts) <= sequence_length else sorted(set(between_parts))
        ends = [*starts[1:], sequence_length]
        sample["cu_seqlens"] = starts + [sequence_length] * (sequence_length + 1 - len(starts))
        sample["max_seqlen"] = max(end - start for start, end in zip(starts, ends, strict=True))
    elif create_attention_mask:
        starts = after_eod if reset_attention_mask else [0]
        begin = [max(start for start in starts if start <= i) for i in range(sequence_length)]
        sample["attention_mask"] = [
            [[not begin[row] <= column <= row for column in range(sequence_length)] for row in range(sequence_length)]
        ]
    return sample
