"""All views, by the name that they are asked for."""

from __future__ import annotations

from functools import partial

from tokenloom_look.explorer.application import View
from tokenloom_look.explorer.documents import document, documents
from tokenloom_look.explorer.jumps import jump
from tokenloom_look.explorer.looking import Looking
from tokenloom_look.explorer.overview import section, target
from tokenloom_look.explorer.positions import occurrences, position, positions
from tokenloom_look.explorer.searches import search
from tokenloom_look.explorer.watching import watch

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
    "watch": watch,
}


def views_of(looking: Looking) -> dict[str, View]:
    """Returns what answers `/api/NAME`, by name."""
    return {name: partial(view, looking) for name, view in _ASKED.items()}
