"""Documents and samples decoded, with the boundaries between documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tokenloom.datasets.conversations import ConversationSamples
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.shortcuts import OUTLINE, refuse_hook
from tokenloom.errors import ConfigError, DatasetFormatError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.images import IMAGE_MODE, TEXT_MODE, item_to_image
from tokenloom.indexed.token_source import SEQUENCES, gather_tokens


class Detokenizer(Protocol):
    """What turns ids into text."""

    def detokenize(self, ids: Any) -> str:
        """Returns the text of a list of ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A run of tokens of one sequence; most documents have one sequence.

    Attributes:
        document: number of the document.
        sequence: number of the sequence in its document.
        num_sequences: sequences of the document.
        start, stop: the run, in tokens from the sequence's start.
        num_tokens: tokens of the whole sequence.
        ids: the tokens of the run; none of an image.
        text: decoded, what the image is, or the ids in words where no tokenizer is given.
        trained: whether the tokens are labels with loss; None where the dataset does not tell part from part.
    """

    document: int
    sequence: int
    num_sequences: int
    start: int
    stop: int
    num_tokens: int
    ids: tuple[int, ...]
    text: str
    trained: bool | None = None

    def heading(self) -> str:
        """Returns one line that says what this is."""
        name = f"document {self.document}"
        if self.num_sequences > 1:
            name += f", sequence {self.sequence} of {self.num_sequences}"
        loss = {True: ", trained", False: ", not trained", None: ""}[self.trained]
        if (self.start, self.stop) == (0, self.num_tokens):
            return f"{name}, all {self.num_tokens} tokens{loss}"
        return f"{name}, tokens {self.start} to {self.stop - 1} of {self.num_tokens}{loss}"


def document_pieces(dataset: IndexedDataset, document: int, tokenizer: Detokenizer | None) -> list[Piece]:
    """Returns the sequences of a document, decoded.

    Raises:
        IndexError: there is no such document.
    """
    if not -dataset.num_documents <= document < dataset.num_documents:
        message = f"document {document} of `{dataset.path_prefix}` was asked for, but it has {dataset.num_documents}"
        raise IndexError(message)
    position = document % dataset.num_documents
    first, stop = (int(row) for row in dataset.document_indices[position : position + 2])
    pieces = []
    for row in range(first, stop):
        item = dataset[row]
        tokens, mode = item if dataset.multimodal else (item, TEXT_MODE)
        image = _image(tokens) if mode == IMAGE_MODE else None
        ids = [] if image is not None else tokens.tolist()
        pieces.append(
            Piece(
                document=position,
                sequence=row - first,
                num_sequences=stop - first,
                start=0,
                stop=len(tokens),
                num_tokens=len(tokens),
                ids=tuple(ids),
                text=decoded(ids, tokenizer) if image is None else f"[image of {len(image)} bytes]",
            )
        )
    return pieces


def sample_pieces(dataset: GPTDataset, sample: int, tokenizer: Detokenizer | None) -> list[Piece]:
    """Returns the runs of documents that a sample is made of, decoded, the extra token for the last label included.

    Raises:
        ConfigError: a class of a user's own changes what they become.
    """
    refuse_hook(dataset, OUTLINE, "showing its spans", hint="look at `dataset[k]`")
    spans = dataset.spans(sample)
    ids = gather_tokens(dataset.dataset, spans.documents, spans.starts, spans.lengths).tolist()
    lengths = dataset.dataset.sequence_lengths
    pieces = []
    done = 0
    for row, start, length in zip(spans.documents.tolist(), spans.starts.tolist(), spans.lengths.tolist(), strict=True):
        run = ids[done : done + length]
        done += length
        document, sequence, num_sequences = _place(dataset.dataset, row)
        pieces.append(
            Piece(
                document=document,
                sequence=sequence,
                num_sequences=num_sequences,
                start=start,
                stop=start + length,
                num_tokens=int(lengths[row]),
                ids=tuple(run),
                text=decoded(run, tokenizer),
            )
        )
    return pieces


def _image(item: NDArray[Any]) -> bytes | None:
    """Returns the image that a sequence holds, or None: what a mode means is up to whoever wrote the data."""
    try:
        return item_to_image(item)
    except DatasetFormatError:
        return None


def conversation_pieces(dataset: ConversationSamples, sample: int, tokenizer: Detokenizer | None) -> list[Piece]:
    """Returns the runs of conversations that a sample reads, decoded, cut where loss begins and ends.

    Raises:
        ConfigError: a class of a user's own changes what they become.
    """
    refuse_hook(dataset, OUTLINE, "showing its spans", hint="look at `dataset[k]`")
    spans = dataset.spans(sample)
    low_level = dataset.dataset
    ids = gather_tokens(low_level, spans.documents, spans.starts, spans.lengths, shortcut=SEQUENCES).tolist()
    pieces = []
    done = 0
    for row, length in zip(spans.documents.tolist(), spans.lengths.tolist(), strict=True):
        document, sequence, num_sequences = _place(low_level.pair, row)
        for start, stop, trained in dataset.trained_runs(row):
            run = ids[done + start : done + stop]
            pieces.append(
                Piece(
                    document=document,
                    sequence=sequence,
                    num_sequences=num_sequences,
                    start=start,
                    stop=stop,
                    num_tokens=int(low_level.sequence_lengths[row]),
                    ids=tuple(run),
                    text=decoded(run, tokenizer),
                    trained=trained,
                )
            )
        done += length
    return pieces


def _place(dataset: Any, row: int) -> tuple[int, int, int]:
    """Returns which document owns a row of the index, its number in it, and how many rows that document has."""
    if not isinstance(dataset, IndexedDataset):  # made-up data: a document is a row
        return row, 0, 1
    boundaries = dataset.document_indices
    document = int(np.searchsorted(boundaries, row, side="right")) - 1
    first, stop = (int(boundary) for boundary in boundaries[document : document + 2])
    return document, row - first, stop - first


def decoded(ids: Sequence[int], tokenizer: Detokenizer | None) -> str:
    """Returns the text of ids; without a tokenizer, the ids in words.

    Raises:
        ConfigError: the tokenizer cannot decode them.
    """
    if tokenizer is None:
        return " ".join(map(str, ids))
    try:
        return tokenizer.detokenize(list(ids))
    except (OverflowError, ValueError) as error:
        message = f"the tokenizer cannot decode these tokens: {error}"
        raise ConfigError(message, hint="was the data made with this tokenizer?") from error
