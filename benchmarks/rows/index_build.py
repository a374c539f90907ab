"""Building the indices of a run."""

from __future__ import annotations

from pathlib import Path

from harness.row import LIMIT, OURS, Row, Scale, Side

from rows.data import drawn_lengths, write_lengths
from rows.fairness import NO_IMPORTS, WARM

MEAN_TOKENS, LENGTH = 400, 2048
PEER = "megatron-core"


def index_row(num_documents: int, epochs: int, rounds: int) -> Row:
    """Returns the row of one size."""
    name = f"{num_documents / 1e6:g} M documents x {epochs}"
    prefix = f"lengths-{num_documents}"
    num_tokens = int(drawn_lengths(num_documents, MEAN_TOKENS).sum(dtype="int64"))
    # Just under whole epochs, so that no final epoch is separate: the common case of a run of N epochs.
    num_samples = (epochs * num_tokens - 1) // LENGTH

    def side(library: str, title: str) -> Side:
        arguments = {"side": library, "prefix": prefix, "num_samples": num_samples, "work": num_documents * epochs}
        return Side(name=title, library=library, script="build_index.py", arguments=arguments, fresh=True)

    def prepare(folder: Path) -> None:
        if not (folder / f"{prefix}.idx").exists():
            write_lengths(folder / prefix, drawn_lengths(num_documents, MEAN_TOKENS))

    return Row(
        job="index",
        name=f"index build, {name}",
        compares="`GPTDataset` from nothing to its document, sample and shuffle index, written to the cache",
        fairness=f"Same lengths, seed and sequence length ({LENGTH}); the values of all three arrays are compared. "
        f"Each round is a new process. {NO_IMPORTS} {WARM} Both may use all cores. Memory is the growth of the peak, "
        "arrays included.",
        limit="writing the bytes of the finished arrays, held in memory, into new files: an index that is cached must "
        "at least be written",
        unit="documents",
        rounds=rounds,
        sides=(side(OURS, "GPTDataset"), side(PEER, "megatron GPTDataset"), side(LIMIT, "write the arrays")),
        prepare=prepare,
        same=("GPTDataset", "megatron GPTDataset"),
    )


def rows(scale: Scale) -> list[Row]:
    """Returns the rows of a mode; the large build runs three times at most."""
    return [index_row(count, epochs, min(scale.rounds, 3)) for count, epochs in scale.index_builds]
