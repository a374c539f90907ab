"""All views, by the name that they are asked for."""

from __future__ import annotations

from functools import partial

from tokenloom.explorer.application import View
from tokenloom.explorer.comparing import compare, compared_positions
from tokenloom.explorer.documents import document, documents
from tokenloom.explorer.jumps import jump
from tokenloom.explorer.looking import Looking
from tokenloom.explorer.overview import section, target
from tokenloom.explorer.positions import occurrences, position, positions
from tokenloom.explorer.searches import search
from tokenloom.explorer.watching import watch

_ASKED = {
    "target": target,
    "section": section,
    "documents": documents,
    "document": document,
    "positions": positions,
    "position": position,
    "occurrences": occurrences,
    "jump": jump,
    "search": search,
    "compare": compare,
    "compare/positions": compared_positions,
    "watch": watch,
}


def views_of(looking: Looking) -> dict[str, View]:
    """Returns what answers `/api/NAME`, by name."""
    return {name: partial(view, looking) for name, view in _ASKED.items()}
