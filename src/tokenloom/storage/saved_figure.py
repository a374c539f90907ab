"""Pictures as files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tokenloom.rendering.figures import picture_of
from tokenloom.storage.publishing import write_report

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def saved(figure: Figure, path: str | os.PathLike[str] | None, *, overwrite: bool) -> Figure:
    """Returns a figure; writes it first, whole, if a path is named.

    Args:
        figure: what to write.
        path: path of the file; its suffix says the format: .png, .svg or .pdf.
        overwrite: replace a file that shows something else.

    Raises:
        ConfigError: the suffix is another one.
        OutputExistsError: another file is there, and no `overwrite`.
    """
    if path is not None:
        write_report(os.fspath(path), picture_of(figure, path), overwrite=overwrite)
    return figure
