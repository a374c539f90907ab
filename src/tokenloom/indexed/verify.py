"""Checking a pair completely, which opening it does not: every row of the index, every token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.manifest.audit import ManifestAudit
from tokenloom.indexed.sidecars import sidecar_problems
from tokenloom.indexed.soundness import index_problems
from tokenloom.progress import also_told, task
from tokenloom.rendering.card import HasFacts
from tokenloom.storage.extents import ExtentSource

_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport(HasFacts):
    """What a complete check found.

    Attributes:
        num_tokens: tokens read.
        smallest_token, largest_token: extremes of all tokens; None for an empty dataset, floats for a float dtype.
        problems: one sentence per defect, with file, field, expected and found; empty if the pair is sound.
        has_manifest: whether there was a manifest to compare counts and checksums with.
        has_images: whether bytes of images are among the tokens, so that the extremes tell nothing of a vocabulary.
    """

    num_tokens: int
    smallest_token: int | float | None
    largest_token: int | float | None
    problems: tuple[str, ...]
    has_manifest: bool = False
    has_images: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing was wrong."""
        return not self.problems

    def facts(self) -> dict[str, Any]:
        """Returns what was found; see `HasFacts`."""
        return {
            "problems": [*self.problems],
            "sound": self.ok,
            "tokens read": self.num_tokens,
            "smallest token": self.smallest_token,
            "largest token": self.largest_token,
            "compared with a manifest": self.has_manifest,
        }


def verify_dataset(
    prefix: str,
    *,
    multimodal: bool = False,
    vocab_size: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> VerifyReport:
    """Reads the whole pair, and what lies beside it, and reports every kind of defect once, with the first row of it.

    Of a catalogue, all pairs that are missing or replaced are reported, and tokens are read only if there are none.
    One sequential pass over both files in bounded memory; what lies beside them is looked at as a whole. Counts and
    checksums are compared with those of a manifest. Opening errors are raised, not reported.

    Args:
        prefix: prefix of the pair.
        multimodal: whether it holds modes.
        vocab_size: tokens must be in [0, vocab_size); None for what a manifest says.
        progress: called with the bytes of tokens read since the last call.

    Raises:
        DatasetNotFoundError, DatasetFormatError: the pair cannot be opened at all.
        ChangedFileError: a file was truncated or overwritten while it was read.
    """
    dataset = IndexedDataset(prefix, multimodal=multimodal)
    tokens_path = dataset.tokens_path
    problems = list(index_problems(dataset))
    lost = list(dataset.byte_source.problems()) if isinstance(dataset.byte_source, ExtentSource) else []
    problems += lost
    audit = ManifestAudit(dataset)
    smallest: int | float | None = None
    largest: int | float | None = None
    itemsize = dataset.dtype.itemsize
    sections = [] if lost else list(dataset.sections)
    with task(f"verify {prefix}", unit="bytes", total=sum(each.num_bytes for each in sections)) as advance:
        tell = also_told(advance, progress)
        for section in sections:
            if odd := section.num_bytes % itemsize:
                found = f"found {section.num_bytes} bytes"
                problems.append(f"`{section.path}`: expected a whole number of {dataset.dtype} tokens, {found}")
            stop = section.start + section.num_bytes - odd
            for begin in range(section.start, stop, _BYTES):
                count = min(_BYTES, stop - begin)
                tokens = dataset.byte_source.read(begin, count).view(dataset.dtype)
                audit.add_tokens(tokens)
                low, high = tokens.min().item(), tokens.max().item()
                smallest = low if smallest is None else min(smallest, low)
                largest = high if largest is None else max(largest, high)
                dataset.check_tokens(begin, count)
                tell(count)
    problems += [] if lost else audit.problems()
    problems += sidecar_problems(dataset, audit.facts)
    vocab_size = audit.vocab_size if vocab_size is None else vocab_size
    if vocab_size is not None and smallest is not None and largest is not None:
        if largest >= vocab_size:
            problems.append(f"`{tokens_path}`: expected tokens below {vocab_size} (the vocabulary), found {largest}")
        if smallest < 0:
            problems.append(f"`{tokens_path}`: expected tokens from 0 on, found {smallest}")
    return VerifyReport(
        num_tokens=dataset.num_tokens,
        smallest_token=smallest,
        largest_token=largest,
        problems=tuple(problems),
        has_manifest=audit.has_manifest,
        has_images=dataset.index.arrays.has_modes,
    )
