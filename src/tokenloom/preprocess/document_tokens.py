"""The one policy of special tokens: what stands at the beginning and at the end of each document."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError
from tokenloom.kernels import insert_items
from tokenloom.tokenizers.huggingface import HuggingFaceTokenizer
from tokenloom.tokenizers.text_tokenizer import Encoded, TextTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentTokens:
    """What is added to each document that has tokens; a document without any stays without.

    Attributes:
        bos: the id in front of the first token, or None for none.
        eod: the id behind the last token, or None for none.
    """

    bos: int | None = None
    eod: int | None = None

    def __post_init__(self) -> None:
        for name, number in (("bos", self.bos), ("eod", self.eod)):
            if number is not None and number < 0:
                message = f"expected an id of at least 0 for `{name}`, got {number!r}"
                raise ConfigError(message)

    @classmethod
    def of(cls, tokenizer: TextTokenizer, *, prepend_bos: bool = False, append_eod: bool = False) -> Self:
        """Returns the policy with the ids of a tokenizer.

        Raises:
            MissingTokenError: it does not have one of them.
        """
        return cls(bos=tokenizer.bos if prepend_bos else None, eod=tokenizer.eod if append_eod else None)

    @property
    def num_added(self) -> int:
        """Tokens added to each document that has any."""
        return (self.bos is not None) + (self.eod is not None)

    def add(
        self, tokens: NDArray[Any], lengths: NDArray[np.int32], document_ends: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[np.int32], int]:
        """Returns the tokens with those added, the new lengths, and how many documents now begin or end with two.

        A document gets two where its own text spells the token out. Nothing is taken away: what the text says stays.

        Args:
            tokens: tokens of all sequences, back to back; ids as they will be stored.
            lengths: int32[num_sequences], tokens per sequence, none of them 0.
            document_ends: int64[num_documents], the number of sequences before each document's end.
        """
        if not self.num_added:
            return tokens, lengths, 0
        begins = np.concatenate([np.zeros(1, dtype=np.int64), document_ends[:-1]])
        used = document_ends > begins[: len(document_ends)]
        first, last = begins[: len(document_ends)][used], document_ends[used] - 1
        stops = np.cumsum(lengths, dtype=np.int64)
        places = np.stack([stops[first] - lengths[first], stops[last]], axis=1)
        doubled = np.zeros(len(first), dtype=bool)
        lengths = lengths.copy()
        if self.bos is not None:
            doubled |= tokens[places[:, 0]] == self.bos
            lengths[first] += 1
        if self.eod is not None:
            doubled |= tokens[places[:, 1] - 1] == self.eod
            lengths[last] += 1
        ids = [self.bos, self.eod]
        wanted = [number is not None for number in ids]
        # At one place the end of a document comes before the beginning of the next, as it does in this order.
        values = np.tile(np.array([number for number in ids if number is not None], dtype=tokens.dtype), len(first))
        return insert_items(tokens, places[:, wanted].ravel(), values), lengths, int(doubled.sum())


@dataclass(frozen=True, slots=True)
class TemplateTokens:
    """What stands around each text, an empty one too.

    Attributes:
        before: ids in front of the first token.
        after: ids behind the last one.
    """

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @classmethod
    def of(cls, tokenizer: TextTokenizer) -> TemplateTokens:
        """Returns those of a tokenizer; none where it has no template.

        Raises:
            TokenizerError: its template puts them elsewhere.
        """
        return cls(*tokenizer.template()) if isinstance(tokenizer, HuggingFaceTokenizer) else cls()

    def add(self, encoded: Encoded) -> Encoded:
        """Returns the ids of texts with these around each."""
        num_before, num_added = len(self.before), len(self.before) + len(self.after)
        if not num_added:
            return encoded
        lengths = encoded.lengths + num_added
        stops = np.cumsum(lengths)
        tokens = np.empty(int(lengths.sum()), dtype=encoded.tokens.dtype)
        is_added = np.zeros(len(tokens), dtype=bool)
        for place, number in enumerate(self.before):
            tokens[stops - lengths + place] = number
            is_added[stops - lengths + place] = True
        for place, number in enumerate(self.after):
            tokens[stops - (num_added - num_before) + place] = number
            is_added[stops - (num_added - num_before) + place] = True
        tokens[~is_added] = encoded.tokens
        return replace(encoded, tokens=tokens, lengths=lengths)
