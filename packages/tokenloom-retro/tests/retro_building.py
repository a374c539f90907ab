"""Small projects for tests: letters as tokens, an embedder that counts them, two datasets, settings, commands."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from tests.preprocess.corpus import write_lines
from tests.support import write_corpus

from tokenloom import CorpusSettings, load_tokenizer, preprocess_corpus
from tokenloom_retro.build import build_retro
from tokenloom_retro.embedders import ChunkMaker
from tokenloom_retro.output import OutputManifest
from tokenloom_retro.project import RetroProject
from tokenloom_retro.settings import RetroBuildSettings

EOD = 0
DIMENSION = 16


class LetterTokenizer:
    """Token i is letter i; token 0 ends a document."""

    sha256 = hashlib.sha256(b"letters").hexdigest()
    unique_identifiers: ClassVar = {"class": "letters"}
    vocab_size = 27
    eod = EOD

    def detokenize(self, ids: Sequence[int]) -> str:
        return "".join(" abcdefghijklmnopqrstuvwxyz"[token] for token in ids)


class LetterEmbedder:
    """Counts letters; the letter z is no token."""

    name = "letters"
    dimension = DIMENSION

    def embed(self, texts: Sequence[str], /) -> np.ndarray:
        vectors = np.zeros((len(texts), DIMENSION), dtype=np.float32)
        for row, text in enumerate(texts):
            for place, letter in enumerate(text.replace("z", "")):
                vectors[row, ord(letter) % DIMENSION] += 1 + place / 100
        return vectors

    def count_tokens(self, texts: Sequence[str], /) -> np.ndarray:
        return np.array([len(text.replace("z", "")) for text in texts], dtype=np.int64)


def maker(chunk_length: int = 4) -> ChunkMaker:
    return ChunkMaker(LetterTokenizer(), LetterEmbedder(), EOD, chunk_length)


def letters(text: str, *, ends: bool = True) -> list[int]:
    return [ord(letter) - ord("a") + 1 for letter in text] + ([EOD] if ends else [])


def project_of(folder: Path, **corpora: Sequence[Sequence[int]]) -> RetroProject:
    """Returns a project that only has pairs."""
    project = RetroProject(folder)
    for prefix, documents in corpora.items():
        path = Path(project.data_prefix(prefix))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_corpus(path, documents, dtype=np.uint16)
    return project


PREFIXES = ("books", "web")

SETTINGS = RetroBuildSettings(
    data=((1.0, "books"), (2.0, "web")),
    sequence_length=8,
    sizes=(20, 3, None),
    split="80,20,0",
    chunk_length=4,
    index="Flat",
    num_index_chunks=10,
    num_neighbors=2,
    num_searched=50,
    block_size=16,
    document_block_size=7,
)


def project(folder: Path, rng: np.random.Generator, *, num_documents: int = 30) -> RetroProject:
    """Returns a project that only has data."""
    corpora = {
        name: [[*rng.integers(1, 26, rng.integers(4, 25)).tolist(), EOD] for _ in range(num_documents)]
        for name in PREFIXES
    }
    return project_of(folder, **corpora)


def build(made: RetroProject, settings: RetroBuildSettings = SETTINGS, **options: Any) -> dict[str, OutputManifest]:
    who = {"tokenizer": LetterTokenizer(), "embedder": LetterEmbedder()}
    return build_retro(made.folder, settings, **(who | options))


def copy_of(made: RetroProject, folder: Path) -> RetroProject:
    """Returns another project with the same data."""
    other = RetroProject(folder)
    for path in Path(made.data_folder).rglob("*.*"):
        target = Path(other.data_folder) / path.relative_to(made.data_folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    return other


def outputs_of(made: RetroProject) -> dict[str, bytes]:
    """Returns all output files by path, with neighbor folders named by their split."""
    found = {}
    for folder in (made.database_folder, made.index_folder("", ""), made.query_folder):
        for path in Path(folder).rglob("*"):
            if path.is_file() and path.suffix != ".json":
                parts = [part.split("_")[0] if len(part) > 32 else part for part in path.relative_to(made.folder).parts]
                found["/".join(parts)] = path.read_bytes()
    return found


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
