"""Texts into sentences, for data sets of which a sample is made of whole sentences (BERT, T5).

By `nupunkt`, which brings its model of English along, so that nothing is downloaded. It is pure Python: 10 to 20 MB/s
in one thread, and threads do not make it faster, only processes do.
"""

from __future__ import annotations

import re
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from tokenloom.inputs.parsing import Texts
from tokenloom.optional import require
from tokenloom.tokenizers.failures import refusals

# A run of this many characters without white space is no prose. `nupunkt` looks ahead from each full stop in it to its
# end: 30 kB of "x.)" take it half a second, 60 kB two. It is shown the ends of such a run.
_LONGEST_WORD = 1000
_SHOWN_OF_LONG_WORDS = 200
_LONG_WORD = re.compile(rf"\S{{{_LONGEST_WORD + 1},}}")


class SentenceSplitter:
    """Splits texts into sentences; safe from several threads; picklable.

    Args:
        keep_newlines: whether the white space behind a sentence belongs to it, as with the reference's option of that
            name, so that the sentences put together are the text; else each sentence stands without any around it.

    Raises:
        MissingExtraError: `nupunkt` is not installed.

    Example:
        >>> SentenceSplitter().split("It rains. Dr. Who stays in.")
        ['It rains.', 'Dr. Who stays in.']
        >>> SentenceSplitter(keep_newlines=True).split("It rains.\\n\\nHe stays in.")
        ['It rains.\\n\\n', 'He stays in.']
    """

    def __init__(self, *, keep_newlines: bool = False) -> None:
        self.keep_newlines = keep_newlines
        # Not `sentence_spans`, which also ends sentences at blank lines: it takes three times as long, and the
        # reference's splitter does not. The model is shared by all who load it.
        self._model: Any = require("nupunkt", extra="sentences").load("default")

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(SentenceSplitter, keep_newlines=self.keep_newlines), ()

    def split(self, text: str) -> list[str]:
        """Returns the sentences of a text; none if it has nothing but white space, which only `keep_newlines` keeps."""
        spans = list(self._model.span_tokenize(_without_long_words(text)))
        if not self.keep_newlines:
            return [sentence for start, stop in spans if (sentence := text[start:stop].strip())]
        starts = [0, *(start for start, _ in spans[1:]), len(text)]
        return [text[start:stop] for start, stop in pairwise(starts) if start < stop]


def split_texts(texts: Texts, splitter: SentenceSplitter) -> Texts:
    """Returns the sentences of documents; a document of several texts has the sentences of each of them in turn.

    Raises:
        RefusedTextError: the splitter fails on a text.
    """
    with refusals("the splitter of sentences"):
        rows = [splitter.split(text) for text in texts.texts]
    ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
    if texts.document_ends is not None:
        ends = np.concatenate([np.zeros(1, dtype=np.int64), ends])[texts.document_ends]
    return Texts(texts=[sentence for row in rows for sentence in row], document_ends=ends)


def _without_long_words(text: str) -> str:
    """Returns a text of the same length in which the inside of very long words holds nothing that ends a sentence."""
    if len(text) <= _LONGEST_WORD or max(map(len, text.split()), default=0) <= _LONGEST_WORD:
        return text
    return _LONG_WORD.sub(_masked, text)


def _masked(match: re.Match[str]) -> str:
    word = match[0]
    return word[:_SHOWN_OF_LONG_WORDS] + "x" * (len(word) - 2 * _SHOWN_OF_LONG_WORDS) + word[-_SHOWN_OF_LONG_WORDS:]
