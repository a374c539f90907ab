"""The special tokens that a tokenizer's own template puts around a text, such as `[CLS]` and `[SEP]`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tokenloom.tokenizers.huggingface import HuggingFaceTokenizer
from tokenloom.tokenizers.text_tokenizer import Encoded, TextTokenizer


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
