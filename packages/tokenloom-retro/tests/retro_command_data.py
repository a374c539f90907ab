"""A small project for commands: two data sets of words, samples of 32 tokens, built by the command itself."""

from __future__ import annotations

from pathlib import Path

from tests.preprocess.corpus import write_lines

from tokenloom import CorpusSettings, load_tokenizer, preprocess_corpus

NAMES = ("books", "web")
WORDS = ("sea", "wind", "rose", "over", "grey", "hills", "and", "stone", "walls", "while", "rain", "fell", "by", "dark")


def write_data(folder: Path) -> list[str]:
    """Writes two pairs, whose texts a byte is a token of; returns weights and prefixes."""
    for number, name in enumerate(NAMES):
        texts = [
            " ".join(WORDS[(7 * row + number + word * (row % 5 + 1)) % len(WORDS)] for word in range(12))
            for row in range(20)
        ]
        path = write_lines(folder / f"{name}.jsonl", [{"text": text} for text in texts])
        settings = CorpusSettings(append_eod=True)
        preprocess_corpus(path, folder / name, load_tokenizer("byte"), settings, num_processes=1, num_workers=1)
    return ["1", f"{folder}/books_text_document", "2", f"{folder}/web_text_document"]


def build_words(folder: Path, *more: object) -> list[object]:
    """Returns the words that build a project of what `write_data` wrote."""
    data = ["1", f"{folder}/books_text_document", "2", f"{folder}/web_text_document"]
    words = ["retro", "build", folder / "project", "--data", *data, "--tokenizer", "byte", "--sequence-length", 32]
    words += ["--chunk-length", 16, "--split", "80,20,0", "--train-samples", 12, "--valid-samples", 2]
    words += ["--index", "Flat", "--num-index-chunks", 20, "--num-neighbors", 3, "--embedder", "wordllama:64"]
    return [*words, *more]
