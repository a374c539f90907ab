"""Batches for a training loop: tokens per second, and the memory of loading."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from harness.row import LIMIT, OURS, Row, Scale, Side

from rows.data import TYPICAL_TOKENS, write_corpus
from rows.fairness import NO_IMPORTS, PROCESSES, WARM

BATCH = 8
PEER = "megatron-core"
SAMPLE_BYTES_PER_TOKEN = 8 + 8 + 4 + 8  # tokens, labels, loss mask, position ids
BATCHES_AHEAD = 3  # of each worker: two that are ready, torch's default, and the one in use
STREAMING_PEERS = {"mosaicml-streaming": "load_mosaic.py", "litdata": "load_litdata.py", "grain": "load_grain.py"}
STREAMING_FAIRNESS = (
    "mosaicml-streaming and litdata read the corpus converted to their own format, grain windows of the mapped "
    "corpus; they cut it in file order, without its documents, and make tokens and labels only (int64, as ours), "
    "while tokenloom and megatron-core also make loss mask and position ids and put windows together from shuffled "
    "documents. Rows of the first batch are looked up in the corpus."
)


def gpt_side(name: str, library: str, way: str, workers: int, length: int, seconds: float) -> Side:
    """Returns a side that reads the file pair."""
    arguments = {"side": library, "way": way, "workers": workers, "length": length, "seconds": seconds}
    return Side(name=name, library=library, script="load_gpt.py", arguments=arguments)


def streaming_sides(length: int, seconds: float, *, shuffle: bool, workers: tuple[int, ...]) -> Iterator[Side]:
    """Yields the sides of peers with their own formats."""
    for library, script in STREAMING_PEERS.items():
        for count in workers:
            arguments = {"shuffle": shuffle, "workers": count, "length": length, "seconds": seconds}
            name = f"{library}, {count} workers"
            yield Side(name=name, library=library, script=script, arguments=arguments, environment=library)


def copy_side(length: int, seconds: float) -> Side:
    """Returns the limit: copying the bytes of our batch."""
    arguments = {"side": OURS, "way": "copy", "settings": {}, "length": length, "seconds": seconds}
    return Side(name="memcpy", library=LIMIT, script="fetch.py", arguments={**arguments, "count_tokens": True})


def shuffled_row(length: int, num_tokens: int, rounds: int, seconds: float, mean_tokens: int = TYPICAL_TOKENS) -> Row:
    """Returns the row of shuffled loading; peers without documents take part at one document length only."""
    streaming = tuple(streaming_sides(length, seconds, shuffle=True, workers=(0, 2)))
    ways = (
        gpt_side("ThreadLoader", OURS, "ThreadLoader", 0, length, seconds),
        gpt_side("ThreadLoader, reuse_after=1", OURS, "ring", 0, length, seconds),
        gpt_side("build_dataloader, 0 workers", OURS, "dataloader", 0, length, seconds),
        gpt_side("build_dataloader, 2 workers", OURS, "dataloader", 2, length, seconds),
        gpt_side("megatron, 0 workers", PEER, "peer", 0, length, seconds),
        gpt_side("megatron, 2 workers", PEER, "peer", 2, length, seconds),
    )
    return Row(
        job="loader",
        name=f"loader, shuffled, S = {length}, documents of {mean_tokens}",
        part=f"mean-{mean_tokens}",
        compares=f"shuffled batches of {BATCH} samples as a training loop takes them; the consumer adds up one row "
        f"of each; documents of {mean_tokens} tokens in the mean",
        fairness=f"Same tokens, sequence length and batch size; {WARM.lower()[:-1]}, starting workers and the first "
        f"batch are not counted. {NO_IMPORTS} {PROCESSES} megatron-core runs in torch's DataLoader, and its first "
        f"batch is compared with ours. {STREAMING_FAIRNESS} Memory is what loading adds to all processes, without "
        "pages of files.",
        limit="copying the bytes of the same batches (tokens, labels, loss mask, position ids) into arrays that "
        "exist, in one thread",
        unit="tokens",
        rounds=rounds,
        sides=(*ways, *(streaming if mean_tokens == TYPICAL_TOKENS else ()), copy_side(length, seconds)),
        prepare=lambda folder: write_corpus(Path(folder) / "corpus", num_tokens, mean_tokens),
        same=tuple(way.name for way in ways),
    )


def sequential_row(length: int, num_tokens: int, rounds: int, seconds: float) -> Row:
    """Returns the row of reading in file order, the best case of peers with their own formats."""
    return Row(
        job="loader",
        name=f"loader, peers in file order, S = {length}",
        part=f"mean-{TYPICAL_TOKENS}",
        compares=f"batches of {BATCH} samples; peers read in file order, tokenloom stays shuffled, as its datasets "
        f"always are",
        fairness=f"As shuffled loading, but without shuffling for the peers: it favours them. {STREAMING_FAIRNESS}",
        limit="copying the bytes of the same batches into arrays that exist, in one thread",
        unit="tokens",
        rounds=rounds,
        sides=(
            gpt_side("ThreadLoader", OURS, "ThreadLoader", 0, length, seconds),
            *streaming_sides(length, seconds, shuffle=False, workers=(0,)),
            copy_side(length, seconds),
        ),
        prepare=lambda folder: write_corpus(Path(folder) / "corpus", num_tokens),
    )


def memory_row(length: int, num_tokens: int, rounds: int, seconds: float) -> Row:
    """Returns the row of the additional memory of a background reader."""
    floor = BATCHES_AHEAD * BATCH * length * SAMPLE_BYTES_PER_TOKEN
    ways = (
        gpt_side("ThreadLoader", OURS, "ThreadLoader", 0, length, seconds),
        gpt_side("build_dataloader, 2 workers", OURS, "dataloader", 2, length, seconds),
        gpt_side("megatron, 2 workers", PEER, "peer", 2, length, seconds),
    )
    return Row(
        job="memory",
        name=f"memory of reading ahead, S = {length}",
        part=f"mean-{TYPICAL_TOKENS}",
        compares="what loading in the background adds to the memory of all processes together: one thread, or two "
        "workers",
        fairness="The difference between before the loader was made and while it runs, summed over all processes: "
        "memory "
        "that is shared counts once, pages of files do not count. " + STREAMING_FAIRNESS,
        limit=f"computed: the bytes of {BATCHES_AHEAD} batches, two ready and one in use",
        quantity="bytes",
        rounds=rounds,
        sides=(
            *ways,
            *streaming_sides(length, seconds, shuffle=True, workers=(2,)),
            Side(name="three batches", library=LIMIT, script="floor.py", arguments={"memory_bytes": floor}),
        ),
        prepare=lambda folder: write_corpus(Path(folder) / "corpus", num_tokens),
    )


def rows(scale: Scale) -> list[Row]:
    """Returns the rows of a mode."""
    sizes = (scale.corpus_tokens, min(scale.rounds, 3), scale.seconds)
    cases = [(length, TYPICAL_TOKENS) for length in scale.lengths]
    cases += [(scale.lengths[0], mean) for mean in scale.mean_tokens if mean != TYPICAL_TOKENS]
    shuffled = [shuffled_row(length, *sizes, mean) for length, mean in cases]
    return [*shuffled, sequential_row(scale.lengths[0], *sizes), memory_row(scale.lengths[0], *sizes)]
