"""Where the time of the main paths goes."""

from __future__ import annotations

import os
from pathlib import Path

from harness.row import Profile, Scale

from rows.data import TYPICAL_TOKENS, drawn_lengths, write_corpus, write_lengths, write_text
from rows.index_build import LENGTH

_SAMPLED = (
    "Which function of tokenloom each busy thread was in, looked at 500 times a second; time in native code and in "
    "libraries counts for the function that called them, threads that wait are left out"
)
_NESTED = "Each part measured with those before it, in turns; what it adds is its share"


def profiles(scale: Scale) -> list[Profile]:
    """Returns the paths of a mode."""
    length = scale.lengths[0]

    def corpus(folder: Path) -> None:
        write_corpus(folder / "corpus", scale.corpus_tokens)

    timed = {"length": length, "seconds": scale.seconds}
    return [
        Profile(
            name=f"one sample, S = {length}",
            method=_NESTED,
            arguments={"path": "samples", **timed},
            prepare=corpus,
        ),
        Profile(
            name=f"a batch of 8 through ThreadLoader, S = {length}",
            method=f"{_NESTED}. The loop only takes batches, so that filling them is all there is to wait for",
            arguments={"path": "loader", **timed},
            prepare=corpus,
        ),
        index_profile(*scale.index_builds[0]),
        text_profile(scale.text_megabytes[1]),
    ]


def index_profile(num_documents: int, epochs: int) -> Profile:
    """Returns the profile of one index build."""
    prefix = f"lengths-{num_documents}-{TYPICAL_TOKENS}"
    lengths = drawn_lengths(num_documents, TYPICAL_TOKENS)
    num_samples = (epochs * int(lengths.sum(dtype="int64")) - 1) // LENGTH
    return Profile(
        name=f"index build, {num_documents / 1e6:g} M documents x {epochs}",
        method=_SAMPLED,
        arguments={"path": "index", "prefix": prefix, "num_samples": num_samples},
        prepare=lambda folder: write_lengths(folder / prefix, lengths),
    )


def text_profile(megabytes: int) -> Profile:
    """Returns the profile of `tokenloom preprocess`."""
    workers = len(os.sched_getaffinity(0))
    return Profile(
        name=f"tokenloom preprocess, {megabytes} MB of text",
        method=f"{_SAMPLED}. All threads of the command; without its imports",
        arguments={"path": "preprocess", "megabytes": megabytes},
        prepare=lambda folder: write_text(folder, megabytes, workers),
    )
