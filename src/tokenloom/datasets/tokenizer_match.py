"""Whether data were made with the tokenizer that is to read them, as far as can be known without reading a token.

A manifest beside the data names the tokenizer that made them. Fingerprints are compared where both sides have one.
Other tokenizers, such as Megatron's, which are told apart by a path, must have all ids that occur, and end documents
with the same one. What cannot be known to be wrong is accepted.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np

from tokenloom.datasets.config import BlendedMegatronDatasetConfig
from tokenloom.datasets.protocols import pair_of
from tokenloom.datasets.said_once import is_new
from tokenloom.errors import TokenizerError, TokenizerMismatchWarning
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import prefix_of
from tokenloom.indexed.manifests import (
    ManifestHead,
    SpecialToken,
    fingerprint_of,
    identity_of,
    manifest_head_of,
    optional_attribute,
    optional_number,
    read_manifest_head,
)
from tokenloom.indexed.roles import SequenceRoles
from tokenloom.storage.addresses import is_remote


def check_tokenizer(dataset: Any, config: BlendedMegatronDatasetConfig, *, name: str) -> None:
    """Checks that a configuration has the tokenizer that made a low-level dataset.

    Costs one open and one read per pair, or an open that fails; nothing when it is asked again.

    Args:
        dataset: what a `MegatronDataset` takes; one without a pair is not looked at.
        config: the settings.
        name: name of the dataset, for messages.

    Raises:
        TokenizerError: another tokenizer made the data, and the settings do not allow that.
        DatasetFormatError: the manifest is damaged, or belongs to other data.
    """
    pair = pair_of(dataset)
    if config.tokenizer is None or pair is None:
        return
    if (head := manifest_head_of(pair)) is None:
        _check_width(pair, config)
        return
    if (found := mismatch(head, config.tokenizer)) is None:
        return
    if not config.allow_tokenizer_mismatch:
        raise _refusal(head, found, name)
    made_by = head.tokenizer.describe()
    _warn_once(config, f"{name} and others were made with {made_by}, but are read with {found}, as allowed", found)


def check_tokenizer_ahead(
    prefixes: Iterable[str | None], config: BlendedMegatronDatasetConfig
) -> dict[str, ManifestHead | None]:
    """Looks at the manifests of all pairs of a blend before the first of them is built.

    Those in object storage, where looking takes long, are left to `check_tokenizer`.

    Returns:
        What was read, by prefix, for `remember_head`.

    Raises:
        TokenizerError: another tokenizer made one of them, and the settings do not allow that.
        DatasetFormatError: a manifest is damaged.
    """
    heads: dict[str, ManifestHead | None] = {}
    if config.tokenizer is None:
        return heads
    for prefix in prefixes:
        if prefix is None or is_remote(prefix):
            continue
        pair = prefix_of(prefix)
        head = heads[pair] = read_manifest_head(pair)
        if head is not None and not config.allow_tokenizer_mismatch and (found := mismatch(head, config.tokenizer)):
            raise _refusal(head, found, f"`{prefix}`")
    return heads


def remember_head(dataset: Any, heads: Mapping[str, ManifestHead | None]) -> None:
    """Lets a low-level dataset know what was read of its manifest already, so that it is not opened again."""
    pair = pair_of(dataset)
    if pair is not None and pair.path_prefix in heads:
        pair.manifest_head = heads[pair.path_prefix]


def _refusal(head: ManifestHead, found: str, name: str) -> TokenizerError:
    message = f"{name}: expected the tokenizer that made the data, {head.tokenizer.describe()}, found {found}"
    hint = "use that one, or tokenize the data again; `allow_tokenizer_mismatch=True` reads them all the same"
    return TokenizerError(message, hint=hint)


def mismatch(head: ManifestHead, tokenizer: Any) -> str | None:
    """Returns a phrase for a tokenizer that cannot be the one that made the data; None for one that can be."""
    made_by = head.tokenizer
    sha256, eod = fingerprint_of(tokenizer), optional_number(tokenizer, "eod")
    shown_eod = None if eod is None or made_by.eod is None else SpecialToken(id=eod)
    if made_by.sha256 is not None and sha256 is not None and (sha256 == made_by.sha256 or _knows_its_file(tokenizer)):
        if sha256 != made_by.sha256:
            return identity_of(tokenizer, eod=shown_eod).describe()
    elif head.largest_token is not None:
        vocab_size = optional_number(tokenizer, "vocab_size")
        if vocab_size is not None and head.largest_token >= vocab_size:
            return f"{identity_of(tokenizer, eod=shown_eod).describe()}, which has no id {head.largest_token}"
    if made_by.eod is not None and eod is not None and eod != made_by.eod.id:
        return identity_of(tokenizer, eod=shown_eod).describe()
    return None


def _knows_its_file(tokenizer: Any) -> bool:
    """Whether its fingerprint is that of a file; of an object another one says nothing, see `HuggingFaceTokenizer`."""
    return optional_attribute(tokenizer, "knows_its_file") is not False


def _check_width(pair: IndexedDataset, config: BlendedMegatronDatasetConfig) -> None:
    """Warns of tokens in which the largest ids of the tokenizer cannot be stored; legal, but hardly meant."""
    vocab_size = optional_number(config.tokenizer, "vocab_size")
    if vocab_size is None or pair.dtype.kind not in "iu" or vocab_size - 1 <= _largest(pair.dtype):
        return
    message = (
        f"`{pair.path_prefix}` holds {pair.dtype} tokens, in which the tokenizer's {vocab_size} ids have no room; "
        "was it made with another tokenizer?"
    )
    _warn_once(config, message, f"width {pair.dtype}")


def _warn_once(config: BlendedMegatronDatasetConfig, message: str, topic: str) -> None:
    if is_new(config, topic):
        warnings.warn(message, TokenizerMismatchWarning, stacklevel=5)


@cache
def _largest(dtype: np.dtype[Any]) -> int:
    return int(np.iinfo(dtype).max)


def check_roles_tokenizer(roles: SequenceRoles, config: BlendedMegatronDatasetConfig, *, name: str) -> None:
    """Compares the tokenizer of conversations with what their roles say, for data without a manifest.

    Raises:
        TokenizerError: it is another one.
    """
    made_by, given = roles.tokenizer_sha256, getattr(config.tokenizer, "sha256", None)
    if made_by is None or given is None or made_by == given or config.allow_tokenizer_mismatch:
        return
    if not _knows_its_file(config.tokenizer):
        return
    message = f"{name} was made with another tokenizer: expected {made_by[:12]}…, found {given[:12]}…"
    raise TokenizerError(message, hint="tokenize the conversations again, or use that tokenizer")
