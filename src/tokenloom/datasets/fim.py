"""Fill-in-the-middle datasets: GPT samples in which the middle of documents is moved to their end."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom._native import MappedSamples
from tokenloom.datasets.config import GPTDatasetConfig
from tokenloom.datasets.gpt import GPTDataset, Runs
from tokenloom.datasets.protocols import Int64s
from tokenloom.datasets.tokenizer import NO_TOKEN, token_ids
from tokenloom.errors import ConfigError, TokenizerError
from tokenloom.order.sample_random import Purpose, SampleRandom
from tokenloom.order.windows import SpanBatch

_SENTINELS = ("prefix", "middle", "suffix")
_OPTIONAL_TOKENS = ("pad", "eod")


@dataclass
class GPTFIMDatasetConfig(GPTDatasetConfig):
    """Settings of fill-in-the-middle datasets.

    Attributes:
        fim_rate: fraction of documents to rearrange, in [0, 1]. Required.
        fim_spm_rate: fraction of the rearranged documents that get the order suffix, prefix, middle; the rest get the
            order prefix, suffix, middle. In [0, 1]. Required.
        fim_extra_tokens: {name: token or id}: "prefix", "middle" and "suffix" are the sentinels that begin these parts.
            Required. An optional "eod" replaces the tokenizer's separator of documents. "pad" is ignored.
        fim_split_sample: token or id that splits a document into fragments, such as the files of a repository.
            `fim_rate` then selects documents, and `fim_fragment_rate` selects fragments of these documents.
        fim_fragment_rate: fraction of fragments to rearrange, in [0, 1]; required with `fim_split_sample`.
        fim_no_prefix: do not change texts that start with this string.

    The values of `columns` move with their tokens; sentinels, and tokens that the cuts changed, get padding values.
    """

    fim_rate: float | None = None
    fim_spm_rate: float | None = None
    fim_extra_tokens: Mapping[str, str | int] | None = None
    fim_split_sample: str | int | None = None
    fim_fragment_rate: float | None = None
    fim_no_prefix: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_rate("fim_rate", self.fim_rate)
        _check_rate("fim_spm_rate", self.fim_spm_rate)
        if self.fim_split_sample is not None or self.fim_fragment_rate is not None:
            _check_rate("fim_fragment_rate", self.fim_fragment_rate)
        tokens = self.fim_extra_tokens or {}
        if missing := [name for name in _SENTINELS if name not in tokens]:
            hint = "add the sentinel tokens of the tokenizer"
            raise ConfigError(f"`fim_extra_tokens`: no token for {', '.join(missing)}", hint=hint)
        if unknown := sorted(set(tokens) - {*_SENTINELS, *_OPTIONAL_TOKENS}):
            known = ", ".join((*_SENTINELS, *_OPTIONAL_TOKENS))
            raise ConfigError(f"`fim_extra_tokens`: unknown name {unknown[0]!r}", hint=f"known names: {known}")
        for method in ("tokenize", "detokenize"):
            if not callable(getattr(self.tokenizer, method, None)):
                message = f"the tokenizer {type(self.tokenizer).__name__} has no `{method}`"
                raise ConfigError(message, hint="pass a tokenizer that can detokenize and tokenize texts")


def _check_rate(name: str, rate: float | None) -> None:
    if rate is None or not 0 <= rate <= 1:
        raise ConfigError(f"`{name}`: must be in [0, 1], got {rate!r}")


class GPTFIMDataset(GPTDataset):
    """A dataset of GPT samples that moves the middle of random documents to their end.

    Each selected document (or its part in the sample) is detokenized and cut at two random characters. Its new tokens
    are `[prefix] prefix [suffix] suffix [middle] middle`, or `[prefix] [suffix] suffix [middle] prefix middle`. The
    end-of-document token stays last. A rearranged document has about three more tokens, which shifts later documents
    and their boundaries; the sample is then truncated or padded to `sequence_length` tokens.

    Random choices depend only on seed and position: sample k is the same in every process and resumed run. If
    `fim_rate` is 0, samples equal those of `GPTDataset`. `spans` returns the spans before documents are rearranged.

    Arguments and further errors are those of `GPTDataset`.

    Raises:
        TokenizerError: the tokenizer does not know a sentinel, or two sentinels have the same id.
    """

    config: GPTFIMDatasetConfig

    def _prepare_filling(self) -> None:
        super()._prepare_filling()
        config, tokenizer = self.config, self.config.tokenizer
        assert config.fim_extra_tokens is not None  # validated by the config
        self._fim_ids = token_ids(tokenizer, config.fim_extra_tokens)
        sentinels = [self._fim_ids[name] for name in _SENTINELS]
        if len(set(sentinels)) < len(sentinels):
            message = f"`fim_extra_tokens`: sentinels must have different ids, got {sentinels}"
            raise TokenizerError(message, hint="use tokens of the vocabulary: all unknown tokens may have the same id")
        self._fim_ids.setdefault("eod", tokenizer.eod if tokenizer else NO_TOKEN)
        self._split_id: int | None = None
        if config.fim_split_sample is not None:
            self._split_id = token_ids(tokenizer, {"split": config.fim_split_sample})["split"]

    @property
    def counts_need_tokens(self) -> bool:
        """Whether the loss mask depends on token ids, so that tokens must be read to count slots."""
        return bool(self.config.fim_rate) or super().counts_need_tokens

    def _mapped_samples(self) -> MappedSamples | None:
        return None if self.config.fim_rate else super()._mapped_samples()

    def _gather(self, rows: Int64s) -> Runs:
        stored = super()._gather(rows)
        if not self.config.fim_rate:
            return stored
        bounds = np.cumsum(np.abs(stored.run_lengths))[:-1]
        texts = np.column_stack([stored.tokens.astype(np.int64), np.arange(len(stored.tokens))])
        runs = np.split(texts, bounds) if len(stored.run_lengths) else []
        moved: list[Int64s] = []
        signs: list[int] = []
        moved_offsets = [0]
        for row, position in enumerate(rows.tolist()):
            own = slice(int(stored.row_offsets[row]), int(stored.row_offsets[row + 1]))
            is_text = (stored.run_lengths[own] >= 0).tolist()
            piece = self._rearrange_sample(position, runs[own], is_text)
            moved += piece
            signs += [1 if text else -1 for text in is_text[: len(piece)]]
            moved_offsets.append(len(moved))
        lengths = np.array([sign * len(run) for sign, run in zip(signs, moved, strict=True)], dtype=np.int64)
        offsets = np.array(moved_offsets, dtype=np.int64)
        tokens, places = np.concatenate([texts[:0], *moved]).T
        moved_runs = Runs(tokens, lengths, offsets, stored.spans)
        return moved_runs._replace(spans=_spans_of(places, moved_runs.bounds, stored.spans))

    def _rearrange_sample(self, position: int, runs: list[Int64s], is_text: list[bool]) -> list[Int64s]:
        # A row of a run is (token id, index among the stored tokens of the batch, or -1 for a new token).
        random = SampleRandom(self.config.random_seed, position, Purpose.FILL_IN_THE_MIDDLE)
        room = self.config.sequence_length + self._extra
        moved = []
        for run, text in zip(runs, is_text, strict=True):
            piece = (self._rearrange_document(run, random) if text else run)[:room]
            if len(run) and not len(piece):
                break
            moved.append(piece)
            room -= len(piece)
        return moved

    def _rearrange_document(self, text: Int64s, random: SampleRandom) -> Int64s:
        parts = []
        for part, separator in split_at(text, self._fim_ids["eod"]):
            parts += [self._rearrange_fragments(part, random), separator]
        return np.concatenate([text[:0], *parts])

    def _rearrange_fragments(self, text: Int64s, random: SampleRandom) -> Int64s:
        assert self.config.fim_rate is not None
        if not len(text):
            return text
        if self._split_id is None or not (text[:, 0] == self._split_id).any():
            return self._rearrange(text, self.config.fim_rate, random)
        if not random.chance(self.config.fim_rate):
            return text
        assert self.config.fim_fragment_rate is not None
        parts = []
        for part, separator in split_at(text, self._split_id):
            parts += [self._rearrange(part, self.config.fim_fragment_rate, random) if len(part) else part, separator]
        return np.concatenate(parts)

    def _rearrange(self, stored: Int64s, rate: float, random: SampleRandom) -> Int64s:
        if not random.chance(rate):
            return stored
        tokenizer: Any = self.config.tokenizer
        text: str = tokenizer.detokenize(stored[:, 0].tolist())
        if self.config.fim_no_prefix is not None and text.startswith(self.config.fim_no_prefix):
            return stored
        start, stop = sorted((random.below(len(text) + 1), random.below(len(text) + 1)))
        parts = (text[:start], text[start:stop], text[stop:])
        cut = [np.array(tokenizer.tokenize(part), dtype=np.int64) for part in parts]
        moved = [np.column_stack([tokens, np.full(len(tokens), -1)]) for tokens in cut]
        if self.config.columns:
            _restore_stored_rows(moved, stored, tokenizer.detokenize)
        prefix, middle, suffix = moved
        begin_prefix, begin_middle, begin_suffix = (np.array([[self._fim_ids[name], -1]]) for name in _SENTINELS)
        assert self.config.fim_spm_rate is not None
        if random.chance(self.config.fim_spm_rate):
            return np.concatenate([begin_prefix, begin_suffix, suffix, begin_middle, prefix, middle])
        return np.concatenate([begin_prefix, prefix, begin_suffix, suffix, begin_middle, middle])


def split_at(text: NDArray[Any], separator: int) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Splits tokens, or rows that begin with a token, at `separator`; yields (part, separator), finally (part, [])."""
    start = 0
    for stop in np.flatnonzero((text if text.ndim == 1 else text[:, 0]) == separator).tolist():
        yield text[start:stop], text[stop : stop + 1]
        start = stop + 1
    yield text[start:], text[:0]


def _restore_stored_rows(parts: Sequence[Int64s], stored: Int64s, detokenize: Callable[[list[int]], str]) -> None:
    """Replaces rows of `parts` (prefix, middle, suffix) by those of `stored`, for tokens that the cuts did not change.

    A row is (token, index of the stored token or -1). Tokens are compared from both ends of the text inwards. Tokens of
    `middle` are compared outwards from a token before which `parts` and `stored` have the same text.
    """
    prefix, middle, suffix = parts
    first = _num_equal(prefix, stored)
    prefix[:first] = stored[:first]
    last = _num_equal(suffix[::-1], stored[first:][::-1])
    rest = stored[first : len(stored) - last]
    suffix[len(suffix) - last :] = stored[len(stored) - last :]

    def shown(*parts: Int64s) -> str:
        return "".join(detokenize(part[:, 0].tolist()) for part in parts if len(part)).lstrip()

    center = len(middle) // 2
    for at in sorted(range(len(middle)), key=lambda at: abs(at - center))[:_TRIES]:
        text = shown(prefix[first:], middle[:at])
        place = bisect_left(range(len(rest)), len(text), key=lambda place: len(shown(rest[:place])))
        is_same = shown(rest[:place]) == text if text else at == 0 and first == len(prefix)
        if is_same and place < len(rest) and rest[place, 0] == middle[at, 0]:
            before = _num_equal(middle[:at][::-1], rest[:place][::-1])
            behind = _num_equal(middle[at:], rest[place:])
            middle[at - before : at + behind] = rest[place - before : place + behind]
            break


_TRIES = 8
"""Number of tokens of `middle` to try, center first: ends often change, and a token may be part of a character."""


def _num_equal(one: Int64s, other: Int64s) -> int:
    count = min(len(one), len(other))
    differ = np.flatnonzero(one[:count, 0] != other[:count, 0])
    return int(differ[0]) if len(differ) else count


def _spans_of(places: Int64s, bounds: Int64s, stored: SpanBatch) -> SpanBatch:
    """Returns the spans of rearranged tokens: token i is the stored token `places[i]` or, for -1, a new token."""
    documents, begins = (np.repeat(each, stored.lengths) for each in (stored.documents, stored.starts))
    offsets = begins + np.arange(len(begins)) - np.repeat(np.cumsum(stored.lengths) - stored.lengths, stored.lengths)
    is_known = places >= 0
    documents = np.where(is_known, documents[places], -1) if len(documents) else places
    starts = np.where(is_known, offsets[places], 0) if len(offsets) else np.zeros_like(places)
    begins_run = np.ones(len(places) + 1, dtype=np.bool_)
    begins_run[1:-1] = (np.diff(documents) != 0) | (np.diff(starts) != 1) & (documents[1:] >= 0)
    begins_run[bounds] = True
    runs = np.flatnonzero(begins_run)
    chosen = runs[:-1]
    return SpanBatch(documents[chosen], starts[chosen], np.diff(runs), np.searchsorted(runs, bounds))
