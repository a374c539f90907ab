"""The warning that data are too short for one sample: of each dataset, or once for all that are built together."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tokenloom.errors import ShortDatasetWarning
from tokenloom.overrides import level_outside

_SHOWN = 4

_gathered: ContextVar[list[str] | None] = ContextVar("gathered", default=None)


def warn_of_short(text: str) -> None:
    """Warns that a dataset has no samples, or lets the build that is under way say so at its end.

    Args:
        text: names the dataset, and says why.
    """
    gathered = _gathered.get()
    if gathered is None:
        warnings.warn(text, ShortDatasetWarning, stacklevel=level_outside())
    else:
        gathered.append(text)


@contextmanager
def short_together(*, unless: type[BaseException]) -> Iterator[None]:
    """Within it, all datasets that have no samples are one warning, at its end.

    Args:
        unless: the error after which nothing is said, because all is done again.
    """
    texts: list[str] = []
    token = _gathered.set(texts)
    try:
        yield
    except unless:
        texts.clear()
        raise
    finally:
        _gathered.reset(token)
        if texts:
            shown = [*texts[:_SHOWN], *([f"and {len(texts) - _SHOWN:,} more"] if len(texts) > _SHOWN else [])]
            message = f"{len(texts):,} datasets have no samples: {'; '.join(shown)}" if len(texts) > 1 else texts[0]
            warnings.warn(message, ShortDatasetWarning, stacklevel=level_outside())
