"""Which file may have been meant by a name that is not there."""

from __future__ import annotations

import difflib
import os

from tokenloom.errors import ConfigError, StorageError
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.resolve import names_in


def did_you_mean(path: str, *, suffix: str = "") -> str | None:
    """Returns a question for the file that may have been meant; None where nothing is near.

    A name is near that begins with what was given, or that differs by a typing error.

    Args:
        path: a path that is not there.
        suffix: what names of files must end with, and the question leaves out.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> open(f"{folder}/corpus_text_document.idx", "w").close()
        >>> did_you_mean(f"{folder}/corpus", suffix=".idx").replace(folder, "data")
        'did you mean `data/corpus_text_document`?'
    """
    folder, name = os.path.split(path)
    try:
        found = names_in(folder or ".")
    except (StorageError, ConfigError):  # no such folder, or no permission to list it
        is_absent = folder and not is_remote(folder) and not os.path.lexists(folder)
        return f"there is no folder `{folder}`" if is_absent else None
    names = [each.removesuffix(suffix) for each in found if each.endswith(suffix) and not each.startswith(".")]
    begun = [each for each in names if name and each.startswith(name)]
    near = begun[:1] or difflib.get_close_matches(name, [each for each in names if each != name], n=1)
    return f"did you mean `{os.path.join(folder, near[0])}`?" if near else None
