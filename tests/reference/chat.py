"""The slow readable twins of the kernels for conversations."""

import numpy as np


def trained_tokens(parts: list[tuple[int, int, int]], available: int, train_on: str) -> list[int]:
    """Returns which tokens of a conversation are trained; parts are (start, stop, kind), kind 0 is a prompt."""
    answers = [part for part in parts if part[2] != 0]
    chosen = {"answers": answers, "last_answer": answers[-1:], "everything": parts}[train_on]
    return sorted(k for start, stop, _ in chosen for k in range(start, stop) if 1 <= k < available)


def next_fit(slots: list[int], capacity: int, most: int | None = None) -> list[list[int]]:
    """Returns which items share a row."""
    rows: list[list[int]] = []
    filled = capacity
    for item, size in enumerate(slots):
        if not rows or filled + size > capacity or len(rows[-1]) == most:
            rows.append([])
            filled = 0
        rows[-1].append(item)
        filled += size
    return rows


def round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def sft_sample(
    conversations: list[tuple[list[int], list[tuple[int, int, int]]]],
    *,
    length: int,
    multiple: int,
    fill: int,
    train_on: str,
) -> dict[str, np.ndarray]:
    """Returns a sample of (tokens, parts), one token after the other."""
    tokens, labels, loss_mask, positions = [], [], [], []
    starts = []
    for ids, parts in conversations:
        starts.append(len(tokens))
        ids = ids[:length]
        trained = trained_tokens(parts, len(ids), train_on)
        for k in range(round_up(len(ids), multiple)):
            has_loss = k + 1 in trained
            tokens.append(ids[k] if k < len(ids) else fill)
            labels.append(ids[k + 1] if has_loss else -100)
            loss_mask.append(float(has_loss))
            positions.append(k)
    while len(tokens) < length:
        tokens.append(fill)
        labels.append(-100)
        loss_mask.append(0.0)
        positions.append(positions[-1] + 1)
    ends = [*starts[1:], length]
    return {
        "tokens": np.array(tokens, dtype=np.int64),
        "labels": np.array(labels, dtype=np.int64),
        "loss_mask": np.array(loss_mask, dtype=np.float32),
        "position_ids": np.array(positions, dtype=np.int64),
        "cu_seqlens": np.array(starts + [length] * (length + 1 - len(starts)), dtype=np.int32),
        "max_seqlen": np.array(max(end - start for start, end in zip(starts, ends, strict=True)), dtype=np.int32),
    }


def varlen_sample(
    ids: list[int], parts: list[tuple[int, int, int]], *, length: int, multiple: int, fill: int, train_on: str
) -> dict[str, np.ndarray]:
    """Returns the sample of one conversation, one token after the other."""
    ids = ids[: length + 1]
    trained = trained_tokens(parts, len(ids), train_on)
    original = len(ids) - 1
    padded = round_up(original, multiple)
    return {
        "tokens": np.array([ids[k] if k < original else fill for k in range(padded)], dtype=np.int64),
        "labels": np.array([ids[k + 1] if k + 1 in trained else -100 for k in range(padded)], dtype=np.int64),
        "loss_mask": np.array([float(k + 1 in trained) for k in range(padded)], dtype=np.float32),
        "position_ids": np.arange(padded, dtype=np.int64),
        "original_seq_len": np.array([original], dtype=np.int32),
        "padded_seq_len": np.array([padded], dtype=np.int32),
    }
