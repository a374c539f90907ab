"""The page of errors and warnings: what `tokenloom explain` prints of each."""

from __future__ import annotations

from docs_site.docstrings import table
from tokenloom.explanations import Explanation, explanations


def page() -> str:
    """Returns the page."""
    known = explanations()
    parts = [
        "# Troubleshooting",
        "Every error that tokenloom raises on purpose has a class, and says what was expected, what was found and "
        "where; the line `hint:` says what to do. `tokenloom explain NAME` prints what stands here.",
        table(("name", "means"), [(f"[`{name}`](#{name.lower()})", each.meaning) for name, each in known.items()]),
        *(_entry(each) for each in known.values()),
    ]
    return "\n\n".join(parts) + "\n"


def _entry(explanation: Explanation) -> str:
    caught = [f"Caught as {', '.join(f'`{base}`' for base in explanation.bases)}, too."] if explanation.bases else []
    paragraphs = [_emphasised(each) for each in explanation.paragraphs]
    return "\n\n".join([f"## {explanation.name}", *paragraphs, *caught])


def _emphasised(paragraph: str) -> str:
    title, colon, rest = paragraph.partition(": ")
    return f"**{title}**: {rest}" if colon and title in ("Usual causes", "What to do") else paragraph
