"""Things to look at."""

from pathlib import Path

import numpy as np

from tokenloom import IndexedDatasetBuilder, Run, TextTokenizer, load_tokenizer

TEXTS = ("hello wörld", "漢字 and more", "xyz" * 9)


def byte_tokenizer() -> TextTokenizer:
    return load_tokenizer("byte")


def write_pair(prefix: Path, texts: tuple[str, ...] = TEXTS) -> str:
    tokenizer = byte_tokenizer()
    with IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16) as builder:
        for text in texts:
            ids = [*tokenizer.tokenize(text), tokenizer.eod]
            builder.add_document(ids, [len(ids)])
        builder.finalize(f"{prefix}.idx")
    return str(prefix)


def write_run(folder: Path, *, locked: bool = True) -> str:
    write_pair(folder / "web")
    path = folder / "run.toml"
    path.write_text(
        "order = 1\nseed = 3\n[sources]\nweb = 'web'\n"
        "[[stages]]\nsequence_length = 8\nsamples = 4\nweights = { web = 1 }\n"
    )
    if locked:
        Run.open(path)
    return str(path)
