"""Colours that people with any kind of colour vision tell apart, on light and on dark ground."""

from __future__ import annotations

PALETTE = (
    *("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442"),
    *("#9900FF", "#BBEE99", "#774422", "#9977FF", "#00FFDD"),
)
"""Colours of what is told apart on a picture, such as sources, in the order in which they are taken.

The first seven are those of Okabe and Ito; their eighth, black, is lost on dark ground. Of all that can be seen on both
grounds, each further one is the farthest from those before it, as the eye sees it that sees them least apart.
"""

OTHER = "#606060"
"""The colour of all that has none of its own, and of what is there to compare with."""


def colours(number: int) -> list[str]:
    """Returns so many colours: those of `PALETTE`, then `OTHER` for all that are left.

    Example:
        >>> colours(2)
        ['#0072B2', '#E69F00']
        >>> colours(13)[-1] == OTHER
        True
    """
    return [*PALETTE[:number], *[OTHER] * (number - len(PALETTE))]
