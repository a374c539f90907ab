"""BERT of Hugging Face: the mean of a text's last hidden states, as the reference takes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError, MissingExtraError
from tokenloom.numbers import checked_integer
from tokenloom.optional import is_installed, require

Float32s = NDArray[np.float32]
Int64s = NDArray[np.int64]


class BertEmbedder:
    """An encoder of Hugging Face; a text's vector is the mean over its tokens, without the special ones around them.

    Texts are padded to the longest of a batch, and torch rounds by shapes: equal lists of texts give equal bits on one
    machine and number of threads, other cuts may differ in the last ones. It computes on the CPU, unless
    torch's default device is another.

    Args:
        path: folder of model and tokenizer, or a name of Hugging Face, which `transformers` may download.
        max_length: tokens of a text that count, special ones included.
        batch_size: texts that pass through the model together.

    Raises:
        ConfigError: there is no such model; or a number is not positive.
        MissingExtraError: `transformers` is not installed.
    """

    def __init__(self, path: str, *, max_length: int = 256, batch_size: int = 128) -> None:
        self._max_length = checked_integer("max_length", max_length, at_least=3)
        self._batch_size = checked_integer("batch_size", batch_size, at_least=1)
        self._path = path
        if not is_installed("transformers"):
            message = "`transformers` is not installed"
            raise MissingExtraError(message, hint="run `pip install transformers 'tokenloom[torch]'`")
        transformers, self._torch = require("transformers", extra="torch"), require("torch", extra="torch")
        try:
            self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(path)
            self._model: Any = transformers.AutoModel.from_pretrained(path).eval()
        except (OSError, ValueError) as error:
            message = f"expected a model of `transformers` at {path!r}: {str(error).splitlines()[0]}"
            raise ConfigError(
                message, hint="the folder of one, with its tokenizer, or a name of Hugging Face"
            ) from error
        self.name: str = f"bert:{path}:{max_length}"
        self.dimension: int = int(self._model.config.hidden_size)

    def __repr__(self) -> str:
        return f"BertEmbedder({self._path!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _make, (self._path, self._max_length, self._batch_size)

    def embed(self, texts: Sequence[str], /) -> Float32s:
        """Returns the vectors of texts, float32[num_texts, dimension]; zero for a text without tokens."""
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for first in range(0, len(texts), self._batch_size):
            batch = list(texts[first : first + self._batch_size])
            inputs = self._tokenizer(
                batch, padding=True, truncation=True, max_length=self._max_length, return_tensors="pt"
            )
            with self._torch.inference_mode():
                states = self._model(**inputs).last_hidden_state.float().cpu().numpy()
            lengths = inputs["attention_mask"].sum(dim=1).tolist()
            for row, (length, state) in enumerate(zip(lengths, states, strict=True), first):
                if length > 2:  # the two special ones are no tokens of the text
                    vectors[row] = state[1 : length - 1].mean(axis=0)
        return vectors

    def count_tokens(self, texts: Sequence[str], /) -> Int64s:
        """Returns how many tokens each text has, int64[num_texts], special ones left out."""
        counts = np.zeros(len(texts), dtype=np.int64)
        if len(texts):
            counts[:] = [len(ids) for ids in self._tokenizer(list(texts), add_special_tokens=False)["input_ids"]]
        return counts


def _make(path: str, max_length: int, batch_size: int) -> BertEmbedder:
    return BertEmbedder(path, max_length=max_length, batch_size=batch_size)


def from_argument(argument: str) -> BertEmbedder:
    """Returns the embedder that `bert:PATH` names.

    Raises:
        ConfigError: there is no such model.
        MissingExtraError: `transformers` is not installed.
    """
    if not argument:
        message = "expected the folder or the name of a model after `bert:`, found none"
        raise ConfigError(message, hint="such as `bert:models/bert-base`")
    return BertEmbedder(argument)
