"""A tokenizer whose tokens depend on what stands around them."""

import re

WORDS = ["in", "ing", "the", " the", " cat", " cats", " sat", "s", " on", "the mat", " m", "at", "ha", " ha", ". "]


class Greedy:
    """Takes the longest word that fits, or a byte: what stands around a text changes the tokens at its ends."""

    vocab_size = 256 + len(WORDS)

    def __init__(self) -> None:
        self._pattern = re.compile("|".join(map(re.escape, sorted(WORDS, key=len, reverse=True))) + "|.", re.S)

    def tokenize(self, text: str) -> list[int]:
        ids: list[int] = []
        for piece in self._pattern.findall(text):
            ids += [256 + WORDS.index(piece)] if piece in WORDS else list(piece.encode())
        return ids

    def detokenize(self, ids: list[int]) -> str:
        parts = [WORDS[number - 256].encode() if number > 255 else bytes([number]) for number in ids]
        return b"".join(parts).decode(errors="replace")
