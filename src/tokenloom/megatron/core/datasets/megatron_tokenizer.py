"""`megatron.core.datasets.megatron_tokenizer`: the base class of custom tokenizers."""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from numpy.typing import NDArray

logger: logging.Logger = logging.getLogger(__name__)


def _raise_missing(tokenizer: object, name: str) -> NoReturn:
    raise NotImplementedError(f"{type(tokenizer).__name__} has no attribute or method {name!r}")


def _special_token(name: str, role: str) -> Any:
    """Returns a property that raises `NotImplementedError`, for subclasses to override."""
    doc = f"The id of the token that {role}; raises `NotImplementedError` if not overridden."
    return property(lambda tokenizer: _raise_missing(tokenizer, name), doc=doc)


class MegatronLegacyTokenizer(ABC):
    """The abstract base class of tokenizers; subclasses override the special tokens and methods that they support.

    Args:
        tokenizer_paths: paths of the tokenizer's files.
        tokenizer_options: settings of the tokenizer, by name.

    Attributes:
        unique_identifiers: class name, paths and settings; part of the cache keys of datasets.
        unique_description: `unique_identifiers` as indented JSON.
    """

    def __init__(self, *tokenizer_paths: str, **tokenizer_options: Any) -> None:
        self.unique_identifiers: OrderedDict[str, Any] = OrderedDict()
        self.unique_identifiers["class"] = type(self).__name__
        self.unique_identifiers["tokenizer_path"] = list(tokenizer_paths)
        self.unique_identifiers.update((name, str(value)) for name, value in tokenizer_options.items())
        self.unique_description: str = json.dumps(self.unique_identifiers, indent=4)
        super().__init__()

    @abstractmethod
    def tokenize(self, text: str) -> NDArray[Any] | list[int]:
        """Returns the token ids of a text."""

    def detokenize(self, ids: NDArray[Any] | Sequence[int]) -> str:
        """Returns the text of token ids; raises `NotImplementedError` if not overridden."""
        _raise_missing(self, "detokenize")

    def offsets(self, ids: list[int], text: str) -> list[int]:
        """Returns the character offset of each token in the text; raises `NotImplementedError` if not overridden."""
        _raise_missing(self, "offsets")

    @property
    @abstractmethod
    def vocab(self) -> Mapping[str, int]:
        """A mapping from token to id."""

    @property
    @abstractmethod
    def inv_vocab(self) -> Mapping[int, str]:
        """A mapping from id to token."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """The largest token id plus 1."""

    cls: property = _special_token("cls", "starts a BERT sample")
    sep: property = _special_token("sep", "ends a segment of a BERT sample")
    pad: property = _special_token("pad", "pads samples")
    eod: property = _special_token("eod", "ends a document")
    bos: property = _special_token("bos", "starts a sequence")
    eos: property = _special_token("eos", "ends a sequence")
    mask: property = _special_token("mask", "replaces a masked token")


MegatronTokenizer = MegatronLegacyTokenizer
"""The name of the class in older Megatron versions."""
