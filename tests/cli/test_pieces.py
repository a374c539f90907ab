"""Pieces as text."""

from __future__ import annotations

from dataclasses import dataclass

from tokenloom.cli.pieces import print_pieces


@dataclass
class Shown:
    text: str

    def heading(self) -> str:
        return "a piece"


def test_pieces_stand_under_headings_and_cannot_drive_a_terminal(capsys):
    print_pieces([Shown("one\x1b[2J"), Shown("0123456789")], most_characters=8)
    assert (
        capsys.readouterr().out == "──── a piece ────\none\\x1b[2J\n──── a piece ────\n0123\n[… 2 characters …]\n6789\n"
    )
