"""Texts made of parts into ids, and where in the ids each part ends.

A text is encoded as a whole, so that its ids are those of the text, and a token belongs to the part in which it ends.
The fast engine says nothing of positions. With a byte-level tokenizer none is needed: its tokens spell the bytes of the
text, so their lengths in the vocabulary add up to positions. Where they do not add up to the whole text (a tokenizer
that normalises, say), the block is encoded by `tokenizers`, which does tell; the result is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.storage.json_files import parse_json
from tokenloom.tokenizers.engine_pool import EnginePool
from tokenloom.tokenizers.engines import EngineChoice
from tokenloom.tokenizers.failures import refusals, require_sound
from tokenloom.tokenizers.huggingface import HuggingFaceTokenizer
from tokenloom.tokenizers.text_tokenizer import Encoded


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedParts:
    """The ids of some texts.

    Attributes:
        tokens: integers[sum(lengths)], of all texts back to back.
        lengths: int64[num_texts].
        part_stops: int64[num_parts], the tokens of its text that end by the end of each part.
    """

    tokens: NDArray[Any]
    lengths: NDArray[np.int64]
    part_stops: NDArray[np.int64]


class SpanEncoder:
    """Encodes texts that are made of parts; safe from several threads.

    Args:
        tokenizer: names the ids.
        choice: the engine.
        num_workers: threads that will call.
    """

    def __init__(self, tokenizer: HuggingFaceTokenizer, choice: EngineChoice, *, num_workers: int) -> None:
        self._vocab_size = tokenizer.vocab_size
        self._with_offsets = tokenizer.with_whole_offsets()
        self._token_bytes = None if choice.name == tokenizer.engine_name else token_bytes(tokenizer)
        self._engines = EnginePool(tokenizer, choice, num_workers=num_workers)

    def encode(self, texts: Sequence[Sequence[str]], *, number: int) -> EncodedParts:
        """Returns the ids of texts, each given as its parts.

        Args:
            texts: texts of one block.
            number: any; it selects the text by which a fast engine is checked.

        Raises:
            RefusedTextError: the tokenizer fails on a text.
            TokenizerError: the engines disagree.
        """
        if self._token_bytes is not None and (found := self._by_bytes(texts, self._token_bytes, number)) is not None:
            return found
        return self._by_offsets(texts)

    def _by_bytes(
        self, texts: Sequence[Sequence[str]], lengths_in_bytes: NDArray[np.int64], number: int
    ) -> EncodedParts | None:
        """Returns the ids by the engine chosen, or None where its tokens do not spell the bytes of the texts."""
        part_bytes = np.array([len(part.encode()) for parts in texts for part in parts], dtype=np.int64)
        part_ends = np.cumsum(part_bytes)
        counts = np.array([len(parts) for parts in texts], dtype=np.int64)
        text_ends = np.concatenate([np.zeros(1, dtype=np.int64), part_ends])[np.cumsum(counts)]
        encoded = self._engines.encode(
            ["".join(parts) for parts in texts], num_bytes=int(part_bytes.sum()), number=number
        )
        token_ends = np.cumsum(lengths_in_bytes[encoded.tokens])
        stops = np.cumsum(encoded.lengths)
        if not np.array_equal(np.concatenate([np.zeros(1, dtype=np.int64), token_ends])[stops], text_ends):
            return None
        part_stops = np.searchsorted(token_ends, part_ends, side="right") - np.repeat(stops - encoded.lengths, counts)
        return EncodedParts(tokens=encoded.tokens, lengths=encoded.lengths, part_stops=part_stops)

    def _by_offsets(self, texts: Sequence[Sequence[str]]) -> EncodedParts:
        with refusals("`tokenizers`"):
            encodings = self._with_offsets.encode_batch(["".join(parts) for parts in texts], add_special_tokens=False)
        tokens: list[NDArray[Any]] = [np.empty(0, dtype=np.uint32)]
        part_stops: list[NDArray[Any]] = [np.empty(0, dtype=np.int64)]
        for parts, encoding in zip(texts, encodings, strict=True):
            tokens.append(np.array(encoding.ids, dtype=np.uint32))
            ends = np.array([end for _, end in encoding.offsets], dtype=np.int64)
            part_stops.append(np.searchsorted(ends, list(accumulate(map(len, parts))), side="right"))
        encoded = Encoded(np.concatenate(tokens), np.array([len(row) for row in tokens[1:]], dtype=np.int64))
        require_sound(encoded, num_texts=len(texts), vocab_size=self._vocab_size)
        return EncodedParts(
            tokens=encoded.tokens,
            lengths=encoded.lengths,
            part_stops=np.concatenate(part_stops),
        )


def token_bytes(tokenizer: HuggingFaceTokenizer) -> NDArray[np.int64] | None:
    """Returns the bytes of text that each token of a byte-level tokenizer spells, int64[vocab_size], or None."""
    if (parse_json(tokenizer.data, most_bytes=len(tokenizer.data)).get("decoder") or {}).get("type") != "ByteLevel":
        return None
    lengths = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    for token, number in tokenizer.backend.get_vocab(with_added_tokens=False).items():
        lengths[number] = len(token)  # one character stands for each byte
    for number, added in tokenizer.backend.get_added_tokens_decoder().items():
        lengths[number] = len(added.content.encode())
    return lengths
