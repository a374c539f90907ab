"""Checks by the manifest of data, without reading tokens, that the data match the dataset class and the tokenizer.

If the manifest and the tokenizer both have a fingerprint, the fingerprints must be equal; else the vocabulary must
contain the largest id of the data. If both have an end-of-document id, these two ids must be equal, too.

Data of the wrong kind cause an error, or a warning with `allow_data_mismatch`. T5 and BERT datasets expect sentences,
and only warn of documents. Without a manifest, only images are recognized; runs also recognize conversations.
"""

from __future__ import annotations

import warnings
import weakref
from typing import Any, Literal

import numpy as np

from tokenloom.datasets.config import BlendedMegatronDatasetConfig, GPTDatasetConfig
from tokenloom.datasets.protocols import pair_of
from tokenloom.errors import (
    ConfigError,
    DataMismatchWarning,
    MissingEodWarning,
    TokenizerError,
    TokenizerMismatchWarning,
)
from tokenloom.indexed.columns import has_column
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.manifests import (
    ManifestHead,
    SpecialToken,
    fingerprint_of,
    identity_of,
    manifest_head_of,
    optional_attribute,
    optional_number,
)
from tokenloom.indexed.roles import NAME as ROLES

_WARNED: dict[int, set[str]] = {}
"""{id of a config: topics already warned about}; deleting a config removes its entry."""

Kind = Literal["documents", "sentences", "conversations", "images"]

_NAMES: dict[Kind, str] = {
    "documents": "whole documents",
    "sentences": "single sentences",
    "conversations": "conversations",
    "images": "text and images",
}
_READERS: dict[Kind, str] = {
    "documents": "read them with `GPTDataset`",
    "sentences": "read them with a BERT or T5 dataset, or tokenize without `split_sentences`",
    "conversations": "read them with `SFTDataset` or `VarlenDataset`",
    "images": "read them with `IndexedDataset(prefix, multimodal=True)`",
}
_READABLE: dict[Kind, tuple[Kind, ...]] = {
    "documents": ("documents",),
    "sentences": ("sentences",),
    "conversations": ("conversations", "documents"),
}


def kind_mismatch(pair: IndexedDataset, reads: Kind, *, reads_roles: bool = False) -> tuple[Kind, str] | None:
    """Returns (kind of the pair, message) if a class for data of the kind `reads` cannot read the pair; else None.

    Without a manifest, only images are recognized; with `reads_roles`, also conversations, by one more request.
    """
    head = None if pair.index.has_modes else manifest_head_of(pair)
    kind: Kind | None = "images" if pair.index.has_modes else None if head is None else _kind_by(head)
    if kind is None and reads_roles and has_column(pair, ROLES):
        kind = "conversations"
    if kind is None or kind in _READABLE[reads]:
        return None
    return kind, f"expected {_NAMES[reads]}, found {_NAMES[kind]}"


def check_kind(dataset: Any, config: BlendedMegatronDatasetConfig, *, name: str, reads: Kind) -> None:
    """Raises if a class for data of the kind `reads` cannot read a dataset; see the module docstring for warnings."""
    pair = pair_of(dataset)
    if pair is None or (found := kind_mismatch(pair, reads)) is None:
        return
    kind, words = found
    if not config.allow_data_mismatch and (reads, kind) != ("sentences", "documents"):
        hint = f"{_READERS[kind]}; or set `allow_data_mismatch=True` to read them anyway"
        raise ConfigError(f"{name}: {words}", hint=hint)
    _warn_once(config, f"{name}: {words}", DataMismatchWarning)


def check_eod(dataset: Any, config: GPTDatasetConfig, *, name: str) -> None:
    """Warns if settings need end-of-document tokens, but by the manifest the data have none, or another id."""
    settings = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss")
    names = " and ".join(f"`{setting}`" for setting in settings if getattr(config, setting))
    pair = pair_of(dataset)
    if not names or pair is None or (head := manifest_head_of(pair)) is None:
        return
    made_with, given = head.tokenizer.eod, optional_number(config.tokenizer, "eod")
    if made_with is not None and given in (None, made_with.id):
        return
    problem = "the data were made without `append_eod`"
    if made_with is not None:
        problem = f"documents end with id {made_with.id}, and the tokenizer's `eod` is {given}"
    _warn_once(config, f"{name}: {names} need end-of-document tokens, but {problem}", MissingEodWarning)


def _kind_by(head: ManifestHead) -> Kind | None:
    options = head.options
    if "image_key" in options:
        return "images"
    if "schema" in options:  # a chat template renders all others
        return {"text": "documents"}.get(str(options["schema"]), "conversations")  # type: ignore[return-value]
    split = options.get("split_sentences")
    return None if not isinstance(split, bool) else "sentences" if split else "documents"


def _warn_once(
    config: BlendedMegatronDatasetConfig, message: str, category: type[Warning], *, topic: str | None = None
) -> None:
    if (key := id(config)) not in _WARNED:
        _WARNED[key] = set()
        weakref.finalize(config, _WARNED.pop, key, None)
    if (topic or message) not in _WARNED[key]:
        _WARNED[key].add(topic or message)
        warnings.warn(message, category, stacklevel=5 if topic else 4)


def check_tokenizer(dataset: Any, config: BlendedMegatronDatasetConfig, *, name: str) -> None:
    """Raises (with `allow_tokenizer_mismatch`: warns) if the manifest shows that another tokenizer made the data."""
    pair = pair_of(dataset)
    if config.tokenizer is None or pair is None:
        return
    if (head := manifest_head_of(pair)) is None:
        _check_width(pair, config)
        return
    if (found := mismatch(head, config.tokenizer)) is None:
        return
    made_by = head.tokenizer.describe()
    if not config.allow_tokenizer_mismatch:
        hint = "pass the expected tokenizer, or tokenize the data again, or set `allow_tokenizer_mismatch=True`"
        raise TokenizerError(f"{name}: expected the tokenizer that made the data, {made_by}, found {found}", hint=hint)
    message = f"{name}: tokenized by {made_by}, read with {found}, as `allow_tokenizer_mismatch` is set"
    _warn_once(config, message, TokenizerMismatchWarning, topic=found)


def mismatch(head: ManifestHead, tokenizer: Any) -> str | None:
    """Returns a description of `tokenizer` if the manifest shows that another tokenizer made the data; else None."""
    made_by = head.tokenizer
    sha256, eod = fingerprint_of(tokenizer), optional_number(tokenizer, "eod")
    shown_eod = None if eod is None or made_by.eod is None else SpecialToken(id=eod)
    # Different fingerprints of tokenizers without a file prove nothing, see `HuggingFaceTokenizer`.
    is_of_file = optional_attribute(tokenizer, "knows_its_file") is not False
    if made_by.sha256 is not None and sha256 is not None and (sha256 == made_by.sha256 or is_of_file):
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
    vocab_size = optional_number(config.tokenizer, "vocab_size")
    if vocab_size is None or pair.dtype.kind not in "iu" or vocab_size - 1 <= np.iinfo(pair.dtype).max:
        return
    message = f"`{pair.path_prefix}`: the tokenizer's {vocab_size} ids do not fit into {pair.dtype} tokens"
    message += "; was another tokenizer used?"
    _warn_once(config, message, TokenizerMismatchWarning, topic=f"width {pair.dtype}")
