"""Best-fit packing, one piece at a time, over a plain list of rows."""

from collections.abc import Sequence


def cut(length: int, *, sequence_length: int, extra: int) -> list[tuple[int, int]]:
    """Returns (start, length) of the pieces of a document: what is read from each start until no label is left."""
    pieces, start = [], 0
    while start == 0 or start + extra < length:
        taken = min(sequence_length + extra, length - start)
        if taken > 0:
            pieces.append((start, taken))
        start += sequence_length
    return pieces


def pack(
    lengths: Sequence[int], documents: Sequence[int], *, sequence_length: int, extra: int, most: int | None = None
) -> list[list[tuple[int, int, int]]]:
    """Returns rows of (document, start, length): longest piece first, each into the fullest row that still holds it,
    unless that has the most pieces.

    Of rows equally full, the one that has been so for longest takes it. Full pieces of long documents have rows of
    their own, before all others.
    """
    capacity = sequence_length + extra
    full, rest = [], []
    for document in documents:
        pieces = cut(lengths[document], sequence_length=sequence_length, extra=extra)
        for start, taken in pieces:
            (full if start + sequence_length + extra <= lengths[document] else rest).append((document, start, taken))
    rows: list[list[tuple[int, int, int]]] = []
    room: list[int] = []
    since: list[int] = []
    for time, piece in enumerate(sorted(rest, key=lambda piece: -piece[2])):
        fitting = [row for row in range(len(rows)) if room[row] >= piece[2] and len(rows[row]) != most]
        if fitting:
            row = min(fitting, key=lambda row: (room[row], since[row]))
        else:
            row = len(rows)
            rows.append([])
            room.append(capacity)
            since.append(time)
        rows[row].append(piece)
        room[row] -= piece[2]
        since[row] = time
    return [[piece] for piece in full] + rows
