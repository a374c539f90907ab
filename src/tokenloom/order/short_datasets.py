"""The warning that data are too short for one sample: of each dataset, or once for all that are built together."""

from __future__ import annotations

import warnings
from contextvars import ContextVar, Token
from types import TracebackType

from tokenloom.callers import level_outside
from tokenloom.errors import ShortDatasetWarning

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


class ShortTogether:
    """Within it, all datasets that have no samples are one warning, at its end.

    Args:
        unless: the error after which nothing is said, because all is done again.
    """

    def __init__(self, *, unless: type[BaseException]) -> None:
        self._unless = unless
        self._texts: list[str] = []
        self._token: Token[list[str] | None] | None = None

    def __enter__(self) -> None:
        self._token = _gathered.set(self._texts)

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        assert self._token is not None
        _gathered.reset(self._token)
        if self._texts and not (kind is not None and issubclass(kind, self._unless)):
            warnings.warn(_together(self._texts), ShortDatasetWarning, stacklevel=level_outside())


def _together(texts: list[str]) -> str:
    if len(texts) == 1:
        return texts[0]
    more = len(texts) - _SHOWN
    named = [*texts[:_SHOWN], *([f"and {more:,} more"] if more > 0 else [])]
    return f"{len(texts):,} datasets have no samples: {'; '.join(named)}"
