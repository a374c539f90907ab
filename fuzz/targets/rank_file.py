"""Rank files of tiktoken with their descriptions: refused, or texts survive encoding and decoding."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from contextlib import suppress

from fuzz.inputs import Bytes, Scratch, join
from tokenloom.errors import TokenloomError
from tokenloom.tokenizers.tiktoken_ranks import TiktokenTokenizer, read_description

_SCRATCH = Scratch()
_PATH = str(_SCRATCH.path / "ranks.tiktoken")
_ALL_BYTES = b"".join(b"%s %d\n" % (base64.b64encode(bytes([byte])), byte) for byte in range(256))
_TEXT = "Hello  world, 123 times!\n\tçé 漢字 <|endoftext|>"


def check(data: bytes) -> None:
    """Data: whether the ranks of all bytes come first, the description, the ranks."""
    source = Bytes(data)
    is_complete = source.flag()
    _SCRATCH.remove("ranks.tiktoken.json")
    _SCRATCH.write("ranks.tiktoken.json", source.part())
    ranks = source.rest()
    ranks = _ALL_BYTES + ranks if is_complete else ranks
    with suppress(TokenloomError):
        description = read_description(_PATH, ranks)
        if description is None:
            return
        tokenizer = TiktokenTokenizer(_PATH, ranks, description)
        ids = tokenizer.tokenize(_TEXT)
        assert all(0 <= number < tokenizer.vocab_size for number in ids)
        tokenizer.detokenize(ids)


def seeds() -> Iterable[bytes]:
    words = b"IHQ= 256\ndGg= 257\n" + base64.b64encode(b" the") + b" 258\n"
    yield b"\1" + join(b'{"pattern": "cl100k", "special_tokens": {"<|endoftext|>": 300}}', words)
    yield b"\0" + join(b'{"pattern": "gpt2", "eod_token": "x"}', words)
