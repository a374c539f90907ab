"""`megatron.core.datasets.megatron_tokenizer`: the base of users' tokenizers."""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from numpy.typing import NDArray

logger: logging.Logger = logging.getLogger(__name__)


def _refuse(tokenizer: object, name: str) -> NoReturn:
    raise NotImplementedError(f"{type(tokenizer).__name__} has no attribute or method {name!r}")


def _missing(name: str, role: str) -> Any:
    """Returns the property of a special token, for subclasses to override."""
    doc = f"The id that {role}; NotImplementedError without one."
    return property(lambda tokenizer: _refuse(tokenizer, name), doc=doc)


class MegatronLegacyTokenizer(ABC):
    """A tokenizer with the attributes that datasets use; a subclass defines those that it has.

    Args:
        tokenizer_paths: its files.
        tokenizer_options: its settings.

    Attributes:
        unique_identifiers: class, files and settings; part of the keys of caches.
        unique_description: the same as indented JSON.
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
        """Returns the ids of a text."""

    def detokenize(self, ids: NDArray[Any] | Sequence[int]) -> str:
        """Returns the text of ids; NotImplementedError without it."""
        _refuse(self, "detokenize")

    def offsets(self, ids: list[int], text: str) -> list[int]:
        """Returns the start of each id in the text; NotImplementedError without it."""
        _refuse(self, "offsets")

    @property
    @abstractmethod
    def vocab(self) -> Mapping[str, int]:
        """The id of each token."""

    @property
    @abstractmethod
    def inv_vocab(self) -> Mapping[int, str]:
        """The token of each id."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """The largest id plus 1."""

    cls: property = _missing("cls", "begins a BERT sample")
    sep: property = _missing("sep", "ends a segment of a BERT sample")
    pad: property = _missing("pad", "fills up samples")
    eod: property = _missing("eod", "ends a document")
    bos: property = _missing("bos", "begins a sequence")
    eos: property = _missing("eos", "ends a sequence")
    mask: property = _missing("mask", "stands in for a masked token")


MegatronTokenizer = MegatronLegacyTokenizer
"""Its name in older versions."""
