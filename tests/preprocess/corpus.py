import base64
import functools
import io
import json
import os
import sysconfig
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.indexed.pairs import pair_bytes, read_pair
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tokenloom.indexed.writing.builder import IndexedDatasetBuilder
from tokenloom.tokenizers.huggingface import HuggingFaceTokenizer
from tokenloom.tokenizers.plain import ByteTokenizer, NullTokenizer
from tokenloom.tokenizers.sentencepiece_model import SentencePieceTokenizer
from tokenloom.tokenizers.text_tokenizer import TextTokenizer
from tokenloom.tokenizers.tiktoken_ranks import TiktokenDescription, TiktokenTokenizer

EOD = "<|endoftext|>"

documents_of = read_pair
PAIR_SUFFIXES = ("bin", "columns.json", "idx", "manifest.json", "origins.npy")
"""What preprocessing writes for a pair, in the order of the names."""


@functools.cache
def sources() -> list[str]:
    stdlib = Path(sysconfig.get_path("stdlib"))
    return [(stdlib / name).read_text("utf-8") for name in ("ast.py", "heapq.py", "inspect.py", "textwrap.py")]


@functools.cache
def byte_level_json() -> str:
    """Returns a `tokenizer.json` of 1000 tokens, trained on sources of the standard library."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1000,
        special_tokens=[EOD, "<|pad|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(sources(), trainer)
    return backend.to_str()


def word_level_json() -> str:
    """Returns a `tokenizer.json` that `gigatoken` does not support, and that makes nothing of white space."""
    vocabulary = {"[UNK]": 0, "</s>": 1, "alpha": 2, "beta": 3}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(["</s>"])
    return backend.to_str()


def mistaken_json() -> str:
    """Returns a `tokenizer.json` that `gigatoken` loads and gets wrong, as of 0.10."""
    backend = Tokenizer.from_str(byte_level_json())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)
    return backend.to_str()


def make_tokenizer(data: str, **options: Any) -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer("memory/tokenizer.json", data.encode(), **options)


@pytest.fixture(scope="module")
def words() -> HuggingFaceTokenizer:
    return make_tokenizer(word_level_json())


@pytest.fixture(scope="module")
def tokenizer() -> HuggingFaceTokenizer:
    return make_tokenizer(byte_level_json())


@functools.cache
def sentencepiece_model(model_type: str = "bpe") -> bytes:
    """Returns a SentencePiece model of 600 pieces, with byte fallback and some special tokens, trained on sources."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for source in sources() for line in source.splitlines() if line.strip()]),
        model_writer=model,
        model_type=model_type,
        vocab_size=600,
        byte_fallback=True,
        pad_id=3,
        control_symbols=["<cls>"],
        user_defined_symbols=["<|user|>", "<extra_id_1>", "<extra_id_0>"],
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


@functools.cache
def tiktoken_file() -> bytes:
    """Returns a rank file of 1000 tokens: the bytes, backwards, and the merges of the byte-level tokenizer."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}
    ranks = {bytes([255 - rank]): rank for rank in range(256)}
    for left, right in json.loads(byte_level_json())["model"]["merges"]:
        ranks.setdefault(bytes(letters[letter] for letter in left + right), len(ranks))
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())


def write_gpt2(folder: Path) -> tuple[str, str]:
    """Writes the byte-level tokenizer as `vocab.json` and `merges.txt`."""
    model = json.loads(byte_level_json())["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]), encoding="utf-8")
    rows = ["#version: 0.2", *(" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]), ""]
    (folder / "merges.txt").write_text("\n".join(rows), encoding="utf-8")
    return str(folder / "vocab.json"), str(folder / "merges.txt")


TIKTOKEN_SPECIALS = {EOD: 1000, "<|end|>": 1003, "<|endof|>": 1001}


def make_sentencepiece(model_type: str = "bpe", **options: Any) -> SentencePieceTokenizer:
    return SentencePieceTokenizer("memory/tokenizer.model", sentencepiece_model(model_type), **options)


def make_tiktoken(**changes: Any) -> TiktokenTokenizer:
    description = TiktokenDescription(**{"pattern": "cl100k", "special_tokens": TIKTOKEN_SPECIALS, **changes})
    return TiktokenTokenizer("memory/ranks.tiktoken", tiktoken_file(), description)


@functools.cache
def tokenizer_of(kind: str) -> TextTokenizer:
    """Returns a tokenizer of a kind, made once; `unigram` is the other kind of SentencePiece."""
    makers: dict[str, Callable[[], TextTokenizer]] = {
        "huggingface": lambda: make_tokenizer(byte_level_json()),
        "sentencepiece": make_sentencepiece,
        "unigram": lambda: make_sentencepiece("unigram"),
        "tiktoken": make_tiktoken,
        "byte": ByteTokenizer,
        "null": lambda: NullTokenizer(5000),
    }
    return makers[kind]()


def write_lines(path: Path, lines: Iterable[object]) -> Path:
    """Writes each object as a line of JSON; bytes as they are."""
    data = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"".join(line + b"\n" for line in data))
    return path


def build_by_hand(
    prefix: Path, tokenizer: TextTokenizer, documents: Iterable[str | list[str]], *, eod: int | None
) -> tuple[bytes, bytes]:
    """Writes what preprocessing must write, one document at a time as the reference does; returns both files."""
    dtype = np.uint16 if tokenizer.vocab_size < 65500 else np.int32
    with IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype) as builder:
        for document in documents:
            sentences = [document] if isinstance(document, str) else document
            rows = [row for row in map(tokenizer.tokenize, sentences) if row]
            if rows and eod is not None:
                rows[-1].append(eod)
            builder.add_document([token for row in rows for token in row], [len(row) for row in rows])
        builder.finalize(f"{prefix}.idx")
    return pair_bytes(prefix)


def leftovers(folder: Path, *inputs: Path) -> list[str]:
    """Returns the names of the files in a folder other than the inputs, hidden ones included."""
    return sorted(set(os.listdir(folder)) - {path.name for path in inputs})
