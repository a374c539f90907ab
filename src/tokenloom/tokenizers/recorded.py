"""The tokenizer that a manifest names, where it can still be found."""

from __future__ import annotations

import os
from pathlib import Path

from tokenloom.errors import MissingExtraError, TokenizerError
from tokenloom.indexed.manifests import TokenizerIdentity
from tokenloom.storage.addresses import is_remote
from tokenloom.tokenizers.load import load_tokenizer
from tokenloom.tokenizers.text_tokenizer import TextTokenizer


def recorded_tokenizer(made_by: TokenizerIdentity, *, prefix: str) -> TextTokenizer:
    """Returns the tokenizer that made data, by its fingerprint: where the manifest says, beside the data or above.

    Args:
        made_by: what the manifest says.
        prefix: prefix of the data.

    Raises:
        TokenizerError: the manifest names no file, there is none, or what is there is another tokenizer.
        MissingExtraError: its library is not installed.
    """
    if made_by.path is None:
        message = f"the manifest of `{prefix}` names no file of its tokenizer"
        raise TokenizerError(message)
    failed: TokenizerError | None = None
    for path in _places(made_by.path, prefix):
        try:
            found = load_tokenizer(path, eod_token=None if made_by.eod is None else made_by.eod.text)
        except MissingExtraError:
            raise
        except TokenizerError as error:
            failed = failed or error
            continue
        if found.sha256 == made_by.sha256:
            return found
        message = f"`{path}` is not the tokenizer of the manifest of `{prefix}` any more"
        failed = TokenizerError(message)
    assert failed is not None
    raise failed


def _places(path: str, prefix: str) -> list[str]:
    """Returns where the file of a tokenizer may be.

    Where it was, or moved together with the data: its whole path, or the last parts of it, seen from the folder of the
    data or one above.
    """
    if is_remote(prefix) or is_remote(path):
        return [path]
    folder = Path(os.path.abspath(prefix)).parent
    parts = Path(path).parts
    tails = [os.path.join(*parts[first:]) for first in range(len(parts))]
    found = (each / tail for each in (folder, *folder.parents) for tail in tails)
    return list(dict.fromkeys([path, *(str(each) for each in found if each.exists())]))
