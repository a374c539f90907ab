"""Whether data are of the kind that a class reads, as far as index and manifest tell without reading a token.

What is certainly wrong is an error: images, conversations or single sentences as documents of a GPT dataset, images or
conversations as sentences, images or sentences as conversations. `allow_data_mismatch` makes it a warning. Documents as
sentences are doubtful, since T5 and BERT without a classification head make samples of them: that is a warning only.
Of data without a manifest, images alone are found out, by the modes in the index.
"""

from __future__ import annotations

import warnings
from typing import Any, Literal

from tokenloom.datasets.config import BlendedMegatronDatasetConfig, GPTDatasetConfig
from tokenloom.datasets.protocols import pair_of
from tokenloom.datasets.said_once import is_new
from tokenloom.datasets.tokenizer import TokenizerLike
from tokenloom.errors import ConfigError, DataMismatchWarning, MissingEodWarning
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.manifests import ManifestHead, manifest_head_of, optional_number
from tokenloom.indexed.roles import has_roles

Kind = Literal["documents", "sentences", "conversations", "images"]

_NAMES: dict[Kind, str] = {
    "documents": "whole documents",
    "sentences": "single sentences",
    "conversations": "conversations",
    "images": "text and images",
}
_READERS: dict[Kind, str] = {
    "documents": "`GPTDataset` reads them",
    "sentences": "BERT and T5 datasets read them; for others, tokenize without `split_sentences`",
    "conversations": "`SFTDataset` and `VarlenDataset` read them",
    "images": "read them with `IndexedDataset(prefix, multimodal=True)`",
}
_READABLE: dict[Kind, tuple[Kind, ...]] = {
    "documents": ("documents",),
    "sentences": ("sentences",),
    "conversations": ("conversations", "documents"),
}


def kind_of(pair: IndexedDataset) -> Kind | None:
    """Returns what the sequences of a pair are; None where nothing tells.

    Raises:
        DatasetFormatError: the manifest is damaged, or belongs to other data.
    """
    if pair.index.arrays.has_modes:
        return "images"
    head = manifest_head_of(pair)
    return None if head is None else _kind_by(head)


def misread(pair: IndexedDataset, reads: Kind, *, reads_roles: bool = False) -> tuple[Kind, str] | None:
    """Returns what a pair holds where that is not what is read, with words for it; None where nothing tells.

    Args:
        pair: the pair.
        reads: what its sequences are taken for.
        reads_roles: whether to look for roles beside a pair without a manifest, which costs a system call or request.

    Raises:
        DatasetFormatError: see `kind_of`.
    """
    kind = kind_of(pair) or ("conversations" if reads_roles and has_roles(pair) else None)
    if kind is None or kind in _READABLE[reads]:
        return None
    return kind, f"expected {_NAMES[reads]}, found {_NAMES[kind]}"


def check_kind(dataset: Any, config: BlendedMegatronDatasetConfig, *, name: str, reads: Kind) -> None:
    """Checks that a low-level dataset is of a kind that a class reads; costs no system call after `check_tokenizer`.

    Args:
        dataset: what a `MegatronDataset` takes; one without a pair is not looked at.
        config: the settings.
        name: name of the dataset, for messages.
        reads: what the class takes sequences for.

    Raises:
        ConfigError: the data are of another kind, and the settings do not allow that.
    """
    pair = pair_of(dataset)
    if pair is None or (found := misread(pair, reads)) is None:
        return
    kind, words = found
    message = f"{name}: {words}"
    if not config.allow_data_mismatch and (reads, kind) != ("sentences", "documents"):
        hint = f"{_READERS[kind]}; `allow_data_mismatch=True` reads them all the same"
        raise ConfigError(message, hint=hint)
    _warn_once(config, message, DataMismatchWarning)


def check_eod(dataset: Any, config: GPTDatasetConfig, *, name: str) -> None:
    """Warns where settings look for an end-of-document token that the data do not have, as their manifest says.

    Args:
        dataset: the dataset, as for `check_kind`.
        config: the settings.
        name: name of the dataset, for the warning.
    """
    wanted = [
        setting
        for setting in ("reset_position_ids", "reset_attention_mask", "eod_mask_loss")
        if getattr(config, setting)
    ]
    pair = pair_of(dataset)
    if not wanted or pair is None or (head := manifest_head_of(pair)) is None:
        return
    if (problem := _eod_problem(head, config.tokenizer)) is not None:
        settings = " and ".join(f"`{setting}`" for setting in wanted)
        message = f"{name}: {settings} need the tokenizer's end-of-document token, but {problem}"
        _warn_once(config, message, MissingEodWarning)


def _kind_by(head: ManifestHead) -> Kind | None:
    options = head.options
    if "image_key" in options:
        return "images"
    if "schema" in options:  # what is not the text of a schema "text" is rendered by a template
        return {"text": "documents"}.get(str(options["schema"]), "conversations")  # type: ignore[return-value]
    split = options.get("split_sentences")
    return None if not isinstance(split, bool) else "sentences" if split else "documents"


def _eod_problem(head: ManifestHead, tokenizer: TokenizerLike | None) -> str | None:
    made_with, given = head.tokenizer.eod, optional_number(tokenizer, "eod")
    if made_with is None:
        return "no document ends with one: the data were made without `append_eod`"
    if given is not None and given != made_with.id:
        return f"documents end with {made_with.id}, and the tokenizer's is {given}"
    return None


def _warn_once(config: BlendedMegatronDatasetConfig, message: str, category: type[Warning]) -> None:
    if is_new(config, message):
        warnings.warn(message, category, stacklevel=4)
