"""What becomes of a few documents, to be looked at before a long run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokenloom.preprocess.document_tokens import DocumentTokens, TemplateTokens
from tokenloom.preprocess.sentences import SentenceSplitter
from tokenloom.tokenizers.text_tokenizer import TextTokenizer

_SHOWN_IDS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentPreview:
    """A document as it will be stored.

    Attributes:
        text: decoded from the ids, special tokens spelled out; of several sequences, one after the other.
        first_ids, last_ids: first and last ids, at most eight of each.
        num_tokens: those added included.
        num_sequences: number of sequences that have tokens.
        num_text_bytes: size of the original in bytes, as UTF-8.
        is_doubled: whether it begins or ends with two of the tokens added, one of them spelled out in its own text.
        is_exact: whether the ids spell the original text; where not, the tokenizer normalises, or lacks characters.
    """

    text: str
    first_ids: tuple[int, ...]
    last_ids: tuple[int, ...]
    num_tokens: int
    num_sequences: int
    num_text_bytes: int
    is_doubled: bool
    is_exact: bool

    @property
    def tokens_per_byte(self) -> float:
        """Tokens for each byte of the original; 0 for an empty text."""
        return self.num_tokens / self.num_text_bytes if self.num_text_bytes else 0.0


def preview_documents(
    documents: Sequence[str | Sequence[str]],
    tokenizer: TextTokenizer,
    *,
    document_tokens: DocumentTokens | None = None,
    template_tokens: TemplateTokens | None = None,
    splitter: SentenceSplitter | None = None,
) -> list[DocumentPreview]:
    """Returns what becomes of documents, each a text or a list of texts; by the tokenizer's own library.

    Args:
        documents: few: all that is made of them is returned.
        tokenizer: names the ids.
        document_tokens: added to each; None for none.
        template_tokens: put around each text before that; None for none.
        splitter: cuts texts into sentences; None leaves them whole.

    Raises:
        TokenizerError: the tokenizer refuses a text.

    Example:
        >>> from tokenloom.tokenizers.plain import ByteTokenizer
        >>> [shown] = preview_documents(["hi"], ByteTokenizer(), document_tokens=DocumentTokens(eod=256))
        >>> shown.text, shown.first_ids, shown.num_tokens
        ('hi<eod>', (104, 105, 256), 3)
    """
    policy = DocumentTokens() if document_tokens is None else document_tokens
    template = TemplateTokens() if template_tokens is None else template_tokens
    return [_preview(document, tokenizer, policy, template, splitter) for document in documents]


def _preview(
    document: str | Sequence[str],
    tokenizer: TextTokenizer,
    policy: DocumentTokens,
    template: TemplateTokens,
    splitter: SentenceSplitter | None,
) -> DocumentPreview:
    originals = [document] if isinstance(document, str) else list(document)
    texts = originals if splitter is None else [part for text in originals for part in splitter.split(text)]
    encoded = tokenizer.encode_texts(texts)
    framed = template.add(encoded)
    lengths = framed.lengths[framed.lengths > 0].astype(np.int32)
    tokens, lengths, num_doubled = policy.add(
        framed.tokens.astype(np.int64), lengths, np.array([len(lengths)], dtype=np.int64)
    )
    ids = tokens.tolist()
    rows = [row.tolist() for row in np.split(tokens, np.cumsum(lengths)[:-1])]
    plain = [row.tolist() for row in np.split(encoded.tokens, np.cumsum(encoded.lengths)[:-1])]
    return DocumentPreview(
        text="".join(map(tokenizer.detokenize, rows)),
        first_ids=tuple(ids[:_SHOWN_IDS]),
        last_ids=tuple(ids[-_SHOWN_IDS:]),
        num_tokens=len(ids),
        num_sequences=len(lengths),
        num_text_bytes=sum(len(text.encode()) for text in originals),
        is_doubled=num_doubled > 0,
        is_exact=all(tokenizer.detokenize(row) == text for row, text in zip(plain, texts, strict=bool(texts))),
    )
