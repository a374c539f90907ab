"""Whether data were made with the tokenizer that is to read them, as far as can be known without reading a token.

A manifest beside the data names the tokenizer that made them. Fingerprints are compared where both sides have one.
Other tokenizers, such as Megatron's, which are told apart by a path, must have all ids that occur, and end documents
with the same one. What cannot be known to be wrong is accepted.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from tokenloom.datasets.config import BlendedMegatronDatasetConfig
from tokenloom.errors import TokenizerError, TokenizerMismatchWarning
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.manifest_check import manifest_head_of
from tokenloom.indexed.manifest_file import ManifestHead
from tokenloom.indexed.tokenizer_identity import SpecialToken, fingerprint_of, identity_of, optional_number


def check_tokenizer(dataset: Any, config: BlendedMegatronDatasetConfig, *, name: str) -> None:
    """Checks that a configuration has the tokenizer that made a low-level dataset.

    Costs one open and one read per pair, or an open that fails; nothing when it is asked again.

    Args:
        dataset: of the kind that a `MegatronDataset` takes; one without a pair is not looked at.
        config: the settings.
        name: of the dataset, for messages.

    Raises:
        TokenizerError: another tokenizer made the data, and the settings do not allow that.
        DatasetFormatError: the manifest is damaged, or belongs to other data.
    """
    pair = getattr(dataset, "pair", dataset)
    if config.tokenizer is None or not isinstance(pair, IndexedDataset):
        return
    if (head := manifest_head_of(pair)) is None:
        _check_width(pair, config)
        return
    if (found := mismatch(head, config.tokenizer)) is None:
        return
    made_by = head.tokenizer.describe()
    if config.allow_tokenizer_mismatch:
        _warn_once(config, f"{name} and others were made with {made_by}, but are read with {found}, as allowed", found)
        return
    message = f"{name}: expected the tokenizer that made the data, {made_by}, found {found}"
    hint = "use that one, or tokenise the data again; `allow_tokenizer_mismatch=True` reads them all the same"
    raise TokenizerError(message, hint=hint)


def mismatch(head: ManifestHead, tokenizer: Any) -> str | None:
    """Returns a phrase for a tokenizer that cannot be the one that made the data; None for one that can be."""
    made_by = head.tokenizer
    sha256, eod = fingerprint_of(tokenizer), optional_number(tokenizer, "eod")
    shown_eod = None if eod is None or made_by.eod is None else SpecialToken(id=eod)
    if made_by.sha256 is not None and sha256 is not None:
        if sha256 != made_by.sha256:
            return identity_of(tokenizer, eod=shown_eod).describe()
    elif head.largest_token is not None:
        vocab_size = optional_number(tokenizer, "vocab_size")
        if vocab_size is not None and head.largest_token >= vocab_size:
            return f"{identity_of(tokenizer, eod=shown_eod).describe()}, which has no id {head.largest_token}"
    if made_by.eod is not None and eod is not None and eod != made_by.eod.id:
        return identity_of(tokenizer, eod=shown_eod).describe()
    return None


def _check_width(pair: IndexedDataset, config: BlendedMegatronDatasetConfig) -> None:
    """Warns of tokens in which the largest ids of the tokenizer cannot be stored; legal, but hardly meant."""
    vocab_size = optional_number(config.tokenizer, "vocab_size")
    if vocab_size is None or pair.dtype.kind not in "iu" or vocab_size - 1 <= np.iinfo(pair.dtype).max:
        return
    message = (
        f"`{pair.path_prefix}` holds {pair.dtype} tokens, in which the tokenizer's {vocab_size} ids have no room; "
        "was it made with another tokenizer?"
    )
    _warn_once(config, message, f"width {pair.dtype}")


def _warn_once(config: BlendedMegatronDatasetConfig, message: str, topic: str) -> None:
    if topic not in config.tokenizer_warnings:
        config.tokenizer_warnings.add(topic)
        warnings.warn(message, TokenizerMismatchWarning, stacklevel=5)
