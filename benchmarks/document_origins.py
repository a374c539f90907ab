"""The cost of origins and hashes of documents during tokenization, and their size.

Inputs are the text of `rows/preprocess.py`, a corpus with 1 % bad lines, and a corpus of short documents. Runs with and
without origins alternate in this process, after a warm-up. Ratios are given for CPU seconds, which depend little on
other load, and for elapsed seconds.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import common
from rows.data import write_text

from tokenloom import BadRecordBudget, CorpusSettings, load_tokenizer, preprocess_corpus

sys.path.insert(0, str(Path(__file__).parent / "sides"))
from texts import tokenizer_path, whole_path

WAYS = {"without": {"origins": False}, "origins": {}, "origins and hashes": {"document_hashes": True}}


def write_variants(folder: Path, megabytes: int) -> dict[str, Path]:
    """Writes the corpora; returns {description: path}."""
    write_text(folder, megabytes, 1)
    whole = Path(whole_path(str(folder), megabytes))
    bad, short = folder / "bad.jsonl", folder / "short.jsonl"
    with open(whole, "rb") as lines, open(bad, "wb") as target:
        for number, line in enumerate(lines):
            target.write(b"bad\n" if number % 100 == 57 else line)
    with open(short, "wb") as target:
        for number in range(megabytes * 10_000):
            target.write(b'{"text": "a document of a few words, number %d, and that is all that it says"}\n' % number)
    return {"source code": whole, "1 % of it bad": bad, "80 bytes each": short}


def run(path: Path, prefix: Path, tokenizer: str, **options: bool) -> tuple[float, float, int, int]:
    """Returns elapsed seconds, CPU seconds, number of documents, and bytes of origins."""
    settings = CorpusSettings(append_eod=True, bad_records=BadRecordBudget(most=None), **options)
    loaded = load_tokenizer(tokenizer)
    for old in prefix.parent.glob(f"{prefix.name}*"):
        os.unlink(old)
    started, began = time.perf_counter(), time.process_time()
    summary = preprocess_corpus(path, prefix, loaded, settings, num_processes=1)
    seconds, processors = time.perf_counter() - started, time.process_time() - began
    origins = Path(f"{prefix}_text_document.origins.npy")
    return seconds, processors, summary.num_documents, origins.stat().st_size if origins.exists() else 0


def main() -> None:
    """Prints a table for each corpus."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--folder", help="where inputs are kept (default: a temporary folder)")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.folder or temporary)
        for title, path in write_variants(folder, options.megabytes).items():
            found: dict[str, list[tuple[float, float, int, int]]] = {way: [] for way in WAYS}
            for number in range(options.rounds + 1):
                for way, chosen in WAYS.items():
                    result = run(path, folder / "out", tokenizer_path(str(folder)), **chosen)
                    found[way] += [result] if number else []
            medians = {
                way: [statistics.median(each[k] for each in runs) for k in range(2)] for way, runs in found.items()
            }
            rows = []
            for way, (seconds, processors) in medians.items():
                num_documents, num_bytes = found[way][0][2:]
                ratios = [
                    statistics.median(
                        mine[k] / other[k] for mine, other in zip(found[way], found["without"], strict=True)
                    )
                    for k in range(2)
                ]
                cells = [f"{seconds:.2f}", f"{processors:.2f}", f"{ratios[1]:.3f}", f"{ratios[0]:.3f}"]
                rows.append([way, *cells, f"{num_bytes / num_documents:.4f}"])
            columns = ("", "seconds", "of processors", "ratio of these", "of the clock", "bytes per document")
            heading = f"{title}: {path.stat().st_size / 1e6:.0f} MB, {num_documents:,} documents"
            common.print_rows(f"{heading} (medians of {options.rounds})", columns, rows)


if __name__ == "__main__":
    main()
