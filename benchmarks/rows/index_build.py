"""Building the indices of a run."""

from __future__ import annotations

from pathlib import Path

from harness.row import LIMIT, OURS, Row, Scale, Side

from rows.data import TYPICAL_TOKENS, drawn_lengths, write_lengths
from rows.fairness import WARM

LENGTH, ROUNDS = 2048, 3
PEER = "megatron-core"


def index_row(num_documents: int, epochs: int, mean_tokens: int, rounds: int) -> Row:
    """Returns the row of one size."""
    count = f"{num_documents / 1e6:g} M" if num_documents >= 10**6 else f"{num_documents}"
    name = f"{count} documents of {mean_tokens} x {epochs}"
    prefix = f"lengths-{num_documents}-{mean_tokens}"
    num_tokens = int(drawn_lengths(num_documents, mean_tokens).sum(dtype="int64"))
    # Just under whole epochs, so that no final epoch is separate: the common case of a run of N epochs.
    num_samples = (epochs * num_tokens - 1) // LENGTH

    def side(library: str, title: str) -> Side:
        arguments = {"side": library, "prefix": prefix, "num_samples": num_samples, "work": num_documents * epochs}
        return Side(name=title, library=library, script="build_index.py", arguments=arguments, fresh=True)

    def prepare(folder: Path) -> None:
        if not (folder / f"{prefix}.idx").exists():
            write_lengths(folder / prefix, drawn_lengths(num_documents, mean_tokens))

    return Row(
        job="index",
        name=f"index build, {name}",
        compares="`BlendedMegatronDatasetBuilder.build` of one prefix: opening the pair, counting its tokens, and the "
        f"document, sample and shuffle index, written to the cache; {mean_tokens} tokens per document in the mean",
        fairness=f"Same lengths, seed and sequence length ({LENGTH}); the values of all three arrays are compared. "
        f"Each round is a new process. Imports are not counted. {WARM} Both may use all cores. Memory is the growth of "
        "the peak, arrays included.",
        limit="writing the bytes of the finished arrays, held in memory, into new files: an index that is cached must "
        "at least be written",
        unit="documents",
        rounds=rounds,
        sides=(side(OURS, "tokenloom"), side(PEER, "megatron"), side(LIMIT, "write the arrays")),
        prepare=prepare,
        same=("tokenloom", "megatron"),
    )


def rows(scale: Scale) -> list[Row]:
    """Returns the rows of a mode."""
    cases = [(*build, mean) for build in scale.index_builds for mean in scale.mean_tokens]
    cases += [(*build, TYPICAL_TOKENS) for build in scale.more_index_builds]
    return [index_row(*case, rounds=ROUNDS) for case in cases]
