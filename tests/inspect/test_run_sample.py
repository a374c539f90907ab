"""What stands at a position of a run."""

from __future__ import annotations

from tests.cli.runs import RUN, write_run

from tokenloom.inspect.run_sample import run_pieces
from tokenloom.run.run import Run


def test_pieces_name_pair_and_row(tmp_path):
    path = write_run(tmp_path)
    dataset = Run.open(path).dataset()
    for position in range(0, 100, 7):
        pieces = run_pieces(dataset, position, None)
        assert sum(piece.stop - piece.start for piece in pieces) == 17
        source = dataset.place(position).source
        for piece in pieces:
            assert piece.prefix == f"{tmp_path}/data/{'web0' if source == 'web' else 'code'}"
            assert piece.document == piece.row
            assert set(piece.ids) == {piece.row}
            assert piece.text == " ".join(map(str, piece.ids))


def test_of_what_is_denied_no_token_is_told(tmp_path):
    pieces = all_pieces(write_run(tmp_path / "before"))
    chosen = next(piece.document for piece in pieces if piece.prefix.endswith("code"))
    pieces = all_pieces(write_run(tmp_path / "after", RUN + f'\n[[denied]]\ndocuments = ["code:{chosen}"]\n'))
    denied = [piece for piece in pieces if piece.prefix.endswith("code") and piece.document == chosen]
    assert denied
    assert [piece for piece in pieces if piece.is_denied] == denied
    assert {(piece.ids, piece.text) for piece in denied} == {((), "")}


def all_pieces(path):
    dataset = Run.open(path).dataset()
    return [piece for position in range(100) for piece in run_pieces(dataset, position, None)]
