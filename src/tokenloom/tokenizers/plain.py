"""Tokenizers without a file or library: UTF-8 bytes as ids, and texts that are lists of ids."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import ConfigError, RefusedTextError, TokenizerError
from tokenloom.tokenizers.kinds import TokenizerKind, TokenizerOptions
from tokenloom.tokenizers.text_tokenizer import (
    Encoded,
    TokenRoles,
    joined,
    require_known_ids,
    shortened,
    well_known_roles,
)

_LARGEST_NULL_VOCABULARY = 2**31 - 1  # ids are stored as int32
_MOST_DIGITS = len(str(_LARGEST_NULL_VOCABULARY))
_NOT_AN_ID = re.compile(rf"[^0-9 \t\r\n]+|[0-9]{{{_MOST_DIGITS + 1},}}")


class ByteTokenizer(TokenRoles):
    """A tokenizer whose ids 0 to 255 are the UTF-8 bytes of a text; eod is 256, bos 257, pad 258.

    No text is encoded as a special token, so decoding the ids of a text returns this text. (The reference's byte-level
    tokenizer uses the byte ids 0 and 1 as eod and pad.) Picklable and thread-safe.

    Args:
        eod_token, bos_token: special tokens to use as `eod` and as `bos`; each must be `<eod>`, `<bos>` or `<pad>`.

    >>> ByteTokenizer().tokenize("né")
    [110, 195, 169]
    """

    kind = "byte"
    engine_name = "numpy"
    vocab_size = 259
    _IDS = MappingProxyType({"<eod>": 256, "<bos>": 257, "<pad>": 258})

    def __init__(self, *, eod_token: str | None = None, bos_token: str | None = None) -> None:
        fingerprint = hashlib.sha256(b"bytes, eod 256, bos 257, pad 258").hexdigest()
        roles = well_known_roles("byte", self._IDS, eod=eod_token or "<eod>", bos=bos_token or "<bos>")
        super().__init__("byte", fingerprint, roles)

    def detokenize(self, ids: Sequence[int]) -> str:
        spellings = {number: token.encode() for token, number in self._IDS.items()}
        numbers = require_known_ids(self.path, ids, self.vocab_size)
        return b"".join(spellings.get(number) or bytes([number]) for number in numbers).decode(errors="replace")

    def tokens_to_ids(self, tokens: Sequence[str]) -> list[int | None]:
        """Returns the id of each special token or ASCII character; None for other tokens."""
        return [self._IDS.get(token, ord(token) if len(token) == 1 and token.isascii() else None) for token in tokens]

    def encode_texts(self, texts: Sequence[str]) -> Encoded:
        """Returns the ids of each text as uint8."""
        rows = [text.encode() for text in texts]
        return Encoded(np.frombuffer(b"".join(rows), dtype=np.uint8), np.array(list(map(len, rows)), dtype=np.int64))


class NullTokenizer(TokenRoles):
    """A tokenizer for texts that are lists of ids: decimal integers separated by ASCII white space.

    Use it for benchmarks and for ids from other programs. As in the reference, `null:N` has the text ids 0 to N - 1
    and the `eod` id N, so that `vocab_size` is N + 1; a text may contain the id N, too. Picklable and thread-safe.

    Args:
        num_ids: the number N of text ids, in [1, 2³¹ - 1).

    >>> NullTokenizer(50).tokenize("7 0 49"), NullTokenizer(50).eod
    ([7, 0, 49], 50)
    """

    kind = "null"
    engine_name = "numpy"

    def __init__(self, num_ids: int) -> None:
        if not 1 <= num_ids < _LARGEST_NULL_VOCABULARY:
            raise TokenizerError(f"`null:N`: N must be in [1, {_LARGEST_NULL_VOCABULARY}), got {num_ids}")
        self.vocab_size: int = num_ids + 1
        fingerprint = hashlib.sha256(f"integers below {num_ids}, eod {num_ids}".encode()).hexdigest()
        super().__init__(f"null:{num_ids}", fingerprint, {"eod": num_ids})

    def detokenize(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, require_known_ids(self.path, ids, self.vocab_size)))

    def tokens_to_ids(self, tokens: Sequence[str]) -> list[int | None]:
        are_ids = [token.isascii() and token.isdigit() and len(token) <= _MOST_DIGITS for token in tokens]
        numbers = [int(token) if is_id else self.vocab_size for token, is_id in zip(tokens, are_ids, strict=True)]
        return [number if number < self.vocab_size else None for number in numbers]

    def encode_texts(self, texts: Sequence[str]) -> Encoded:
        """Returns the ids of each text as int64."""
        return joined(list(map(self._ids, texts)), np.int64)

    def _ids(self, text: str) -> NDArray[np.int64]:
        wrong = _NOT_AN_ID.search(text)
        is_empty = wrong is not None or not text.strip()
        ids: NDArray[np.int64] = np.fromstring("" if is_empty else text, dtype=np.int64, sep=" ")
        if wrong is not None or (len(ids) and ids.max() >= self.vocab_size):
            found = shortened(str(ids.max()) if wrong is None else wrong[0], 40)
            message = f"{found!r} is not an integer in [0, {self.vocab_size})"
            raise RefusedTextError(message, hint=f"`{self.path}` needs texts that are lists of ids, such as '17 4 0'")
        return ids


def _load_null(path: str, _data: bytes, options: TokenizerOptions) -> NullTokenizer:
    num_ids = int(path.partition(":")[2])
    if options.eod_token is not None or options.bos_token is not None:
        message = f"`eod_token` and `bos_token`: not supported by {path!r}, whose tokens have no spelling"
        raise ConfigError(message, hint=f"omit both: the eod of {path!r} is {num_ids}, and there is no bos")
    return NullTokenizer(num_ids)


BYTE = TokenizerKind(
    called="`byte`", specification="byte", load=lambda _path, _data, options: ByteTokenizer(**options.roles)
)
NULL = TokenizerKind(called="`null:N` (N is the number of ids)", specification="null:[0-9]+", load=_load_null)
