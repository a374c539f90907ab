"""The page of errors and warnings: what `tokenloom explain` prints of each."""

from __future__ import annotations

from pathlib import Path

from docs_site.docstrings import table
from tokenloom.explanations import Explanation, explanations

WRITTEN = Path(__file__).parents[1] / "docs" / "troubleshooting.md"
"""What the page begins with."""


def page() -> str:
    """Returns the page."""
    known = explanations()
    rows = [(f"[`{name}`](#{name.lower()})", each.meaning) for name, each in known.items()]
    entries = [_entry(each) for each in known.values()]
    return "\n\n".join([WRITTEN.read_text(encoding="utf-8").rstrip(), table(("name", "means"), rows), *entries]) + "\n"


def _entry(explanation: Explanation) -> str:
    caught = [f"Caught as {', '.join(f'`{base}`' for base in explanation.bases)}, too."] if explanation.bases else []
    paragraphs = [_emphasised(each) for each in explanation.paragraphs]
    return "\n\n".join([f"## {explanation.name}", *paragraphs, *caught])


def _emphasised(paragraph: str) -> str:
    title, colon, rest = paragraph.partition(": ")
    return f"**{title}**: {rest}" if colon and title in ("Usual causes", "What to do") else paragraph
