"""How many packs of each length a pair makes: what the lock says of it where windows are packs."""

from __future__ import annotations

from collections.abc import Mapping

from tokenloom.datasets.conversations import ConversationSamples
from tokenloom.datasets.sft import SFTDataset
from tokenloom.datasets.varlen import VarlenDataset
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.kernels import count_packs_of
from tokenloom.order.computed_keys import source_key
from tokenloom.run.lock import LockedPair, LockedSource, RunLock
from tokenloom.run.progress import are_packs, extra_tokens
from tokenloom.run.sample_settings import config_of, most_in_pack
from tokenloom.run.settings import RunSettings
from tokenloom.run.sources import CountPacks
from tokenloom.storage.settings import ObjectStorageSettings

CONVERSATION_CLASSES: Mapping[str, type[ConversationSamples]] = {"sft": SFTDataset, "varlen": VarlenDataset}
"""The class of a kind of dataset whose samples are conversations, by its name in a run."""


def pack_counter(
    settings: RunSettings, *, old: RunLock | None = None, object_storage: ObjectStorageSettings | None = None
) -> CountPacks | None:
    """Returns what counts the packs of a pair, for `lock_sources`; None where windows are no packs.

    Packs are those of all stages of the settings and of all segments of the older lock. Of conversations they are
    samples with conversations in them, of `VarlenDataset` conversations.
    """
    if settings.order == "megatron" or not are_packs(settings):
        return None
    before = set() if old is None else {segment.sequence_length for segment in old.segments}
    lengths = sorted({stage.sequence_length for stage in settings.stages} | before)
    is_same = old is not None and _what_decides(old) == _what_decides(settings)

    def count(source: LockedSource, number: int) -> tuple[tuple[int, int], ...]:
        pair = source.pairs[number]
        known = dict(pair.packs) if is_same else {}
        missing = [length for length in lengths if length not in known]
        if missing:
            opened = IndexedDataset(pair.prefix, object_storage=object_storage)
            known |= {
                length: count_pair(opened, pair, settings, source=source.name, number=number, sequence_length=length)
                for length in missing
            }
        return tuple(sorted(known.items()))

    return count


def count_pair(
    opened: IndexedDataset,
    pair: LockedPair,
    settings: RunSettings | RunLock,
    *,
    source: str,
    number: int,
    sequence_length: int,
    reads_held: bool = False,
) -> int:
    """Returns how many packs a pair makes in a walk."""
    if kind := CONVERSATION_CLASSES.get(settings.dataset):
        lengths = kind.count_places(opened, config_of(settings.dataset, settings.samples, sequence_length))
        capacity, extra = (sequence_length if kind.shares_samples else 1), 0
    else:
        lengths, capacity, extra = opened.sequence_lengths, sequence_length, extra_tokens(settings)
    return count_packs_of(
        lengths,
        sequence_length=capacity,
        extra=extra,
        key=source_key(settings.seed, source),
        pair=number,
        held_blocks=pair.held_blocks,
        held_documents=pair.held_documents,
        reads_held=reads_held,
        most_pieces=most_in_pack(settings.dataset, settings.samples),
    )


def _what_decides(settings: RunSettings | RunLock) -> tuple[object, ...]:
    return settings.seed, settings.dataset, settings.windows, dict(settings.samples)
