"""A small project for tests of commands: two datasets of words, samples of 32 tokens."""

from __future__ import annotations

from pathlib import Path

from tests.preprocess.corpus import write_lines

from tokenloom import CorpusSettings, load_tokenizer, preprocess_corpus

NAMES = ("books", "web")
WORDS = ("sea", "wind", "rose", "over", "grey", "hills", "and", "stone", "walls", "while", "rain", "fell", "by", "dark")


def write_data(folder: Path) -> None:
    """Writes two pairs of byte tokens."""
    for number, name in enumerate(NAMES):
        texts = [
            " ".join(WORDS[(7 * row + number + word * (row % 5 + 1)) % len(WORDS)] for word in range(12))
            for row in range(20)
        ]
        path = write_lines(folder / f"{name}.jsonl", [{"text": text} for text in texts])
        settings = CorpusSettings(append_eod=True)
        preprocess_corpus(path, folder / name, load_tokenizer("byte"), settings, num_processes=1, num_workers=1)


def build_words(folder: Path, *more: object) -> list[object]:
    """Returns the arguments that build a project from the data of `write_data`."""
    data = ["1", f"{folder}/books_text_document", "2", f"{folder}/web_text_document"]
    words = ["retro", "build", folder / "project", "--data", *data, "--tokenizer", "byte", "--sequence-length", 32]
    words += ["--chunk-length", 16, "--split", "80,20,0", "--train-samples", 12, "--valid-samples", 2]
    words += ["--index", "Flat", "--num-index-chunks", 20, "--num-neighbors", 3, "--embedder", "wordllama:64"]
    return [*words, *more]
