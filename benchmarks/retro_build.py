"""A RETRO project from start to end: seconds and chunks of each task, the shares of embedder and faiss, peak memory.

Everything runs in one process with one thread of ours, but the embedder's tokenizer uses all cores. The data are source
files of the standard library with shuffled lines. Shares are of the CPU time of a task.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
from rows.data import write_text

from tokenloom import CorpusSettings, load_tokenizer, preprocess_corpus
from tokenloom_retro import RetroBuildSettings, VectorIndex, as_embedder, build_retro, linked_data
from tokenloom_retro.project import RetroProject

TASKS = ("db-build", "index-build", "query-neighbors")
CHUNK_LENGTH = 64


class Clock:
    """Adds up the CPU time of calls that run one at a time."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a function so that its CPU time is counted."""

        def timed(*arguments: Any, **named: Any) -> Any:
            began = time.process_time()
            try:
                return function(*arguments, **named)
            finally:
                self.seconds += time.process_time() - began

        return timed


class TimedEmbedder:
    """An embedder whose CPU time is counted."""

    def __init__(self, name: str, clock: Clock) -> None:
        inner = as_embedder(name)
        self.name, self.dimension = inner.name, inner.dimension
        self.embed, self.count_tokens = clock.around(inner.embed), clock.around(inner.count_tokens)


class TimedFaiss:
    """A faiss index whose training, encoding, adding and searching is counted."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def __enter__(self) -> None:
        from tokenloom_retro import vector_index

        make, train = vector_index.by_pieces, VectorIndex.train
        clock = self._clock
        self._before = make, train

        def by_pieces(work: Callable[[slice], None], count: int, num_threads: int) -> None:
            make(clock.around(work), count, num_threads)

        vector_index.by_pieces = by_pieces
        VectorIndex.train = classmethod(lambda cls, *args, **named: clock.around(train)(*args, **named))  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        from tokenloom_retro import vector_index

        vector_index.by_pieces, VectorIndex.train = self._before  # type: ignore[method-assign]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=220, help="text; a chunk is about 220 bytes of it")
    parser.add_argument("--samples", type=int, default=1000, help="samples of 2,048 tokens that get neighbors")
    parser.add_argument("--index", default="IVF1024,Flat")
    parser.add_argument("--index-chunks", type=int, default=100_000, help="chunks that the index is trained on")
    parser.add_argument("--nprobe", type=int, default=16)
    parser.add_argument("--folder", type=Path, help="keeps text and tokens here, to be used again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = options.folder or Path(name)
        write_text(folder, options.megabytes, 1)
        tokenizer = load_tokenizer(str(folder / "tokenizer.json"))
        prefix = folder / f"tokens-{options.megabytes}"
        if not Path(f"{prefix}_text_document.idx").exists():
            preprocess_corpus(
                folder / f"text-{options.megabytes}.jsonl", prefix, tokenizer, CorpusSettings(append_eod=True)
            )
        project = RetroProject(Path(name) / "project")
        embedding, faiss = Clock(), Clock()
        settings = RetroBuildSettings(
            data=linked_data(project, [f"{prefix}_text_document"]),
            sequence_length=2048,
            sizes=(options.samples, None, None),
            index=options.index,
            num_index_chunks=options.index_chunks,
            nprobe=options.nprobe,
        )
        rows = []
        with TimedFaiss(faiss):
            for number, task in enumerate(TASKS):
                before = time.perf_counter(), time.process_time(), embedding.seconds, faiss.seconds
                made = build_retro(
                    project.folder,
                    settings,
                    tokenizer=tokenizer,
                    embedder=TimedEmbedder("wordllama", embedding),
                    tasks=TASKS[number : number + 1],
                    num_processes=1,
                    num_workers=1,
                )
                seconds, processor = time.perf_counter() - before[0], time.process_time() - before[1]
                chunks = (
                    options.samples * 2048 // CHUNK_LENGTH
                    if task == "query-neighbors"
                    else made["db-build"].counts["num_chunks"]
                )
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
                rows.append(
                    (
                        task,
                        f"{chunks:,}",
                        f"{seconds:.1f}",
                        f"{chunks / seconds:,.0f}",
                        f"{processor:.1f}",
                        f"{(embedding.seconds - before[2]) / processor:.0%}",
                        f"{(faiss.seconds - before[3]) / processor:.0%}",
                        f"{peak:.2f}",
                    )
                )
        common.print_rows(
            f"{settings.index}, nprobe {options.nprobe}, {options.megabytes} MB of text",
            ("task", "chunks", "s", "chunks/s", "processor s", "embedder", "faiss", "peak GB"),
            rows,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
