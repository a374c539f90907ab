"""What stands at a position of a run, for programs: pieces of documents, with file and row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.inspect.token_texts import Detokenizer, decoded
from tokenloom.run.audit.trace import trace_dataset
from tokenloom.run.dataset import RunDataset


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPiece:
    """A piece of a document in a sample of a run.

    Attributes:
        document: number of the document in its source.
        prefix: the pair that it is in; empty for padding behind all documents.
        row: number of the document in the pair.
        start, stop: the piece, in tokens from the start of the document.
        num_tokens: tokens of the whole document.
        ids: the tokens; none of what is denied.
        text: decoded, or the ids in words where no tokenizer is given.
        is_denied: whether padding stands in its place, since the document is denied.
    """

    document: int
    prefix: str
    row: int
    start: int
    stop: int
    num_tokens: int
    ids: tuple[int, ...]
    text: str
    is_denied: bool = False


def run_pieces(dataset: RunDataset, position: int, tokenizer: Detokenizer | None) -> list[RunPiece]:
    """Returns the pieces of documents at a position, decoded, the extra token for the last label included.

    Raises:
        IndexError: the run has no such position.
        DatasetFormatError, DatasetNotFoundError: its data are not what was locked.
    """
    place = dataset.place(position)
    table = trace_dataset(dataset, [place.position])
    pairs, rows = table.pairs()
    opened: dict[int, IndexedDataset] = {}
    pieces = []
    for number, row, span in zip(pairs.tolist(), rows.tolist(), table.rows(), strict=True):
        prefix, start, length, is_denied = span["pair"], span["start"], span["length"], span["denied"]
        if number not in opened:
            opened[number] = IndexedDataset(prefix, mmap=False)
        ids = [] if is_denied else opened[number].get(row, start, length).tolist()
        pieces.append(
            RunPiece(
                document=span["document"],
                prefix=prefix,
                row=row,
                start=start,
                stop=start + length,
                num_tokens=int(opened[number].sequence_lengths[row]),
                ids=tuple(ids),
                text="" if is_denied else decoded(ids, tokenizer),
                is_denied=is_denied,
            )
        )
    if (missing := place.sequence_length - _num_tokens(pieces)) > 0:
        padding = RunPiece(document=-1, prefix="", row=-1, start=0, stop=missing, num_tokens=missing, ids=(), text="")
        pieces.append(padding)
    return pieces


def _num_tokens(pieces: Sequence[RunPiece]) -> int:
    return sum(piece.stop - piece.start for piece in pieces)
