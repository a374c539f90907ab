"""SentencePiece models, loaded by the library `sentencepiece`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import chain, groupby
from typing import Any

import numpy as np

from tokenloom.errors import TokenizerError
from tokenloom.forks import cached_property
from tokenloom.optional import require
from tokenloom.tokenizers.kinds import TokenizerKind
from tokenloom.tokenizers.text_tokenizer import (
    Encoded,
    TokenRoles,
    failures,
    joined,
    require_known_ids,
    sentinel_ids,
    well_known_roles,
)


class SentencePieceTokenizer(TokenRoles):
    """A tokenizer of the library `sentencepiece`, without sampling; create it with `load_tokenizer`.

    A text is never encoded as a control symbol (`<s>`, `</s>`, `<pad>`): a spelled-out control symbol is ordinary text.
    A spelled-out user-defined symbol is encoded as its id. `data` is the content of the `.model` at `path`; `eod_token`
    and `bos_token` default to the model's `eos` and `bos`. Picklable and thread-safe.
    """

    kind = "sentencepiece"
    engine_name = "sentencepiece"

    def __init__(self, path: str, data: bytes, *, eod_token: str | None = None, bos_token: str | None = None) -> None:
        library, message = require("sentencepiece", extra="tokenizers"), f"`{path}` is not a SentencePiece model"
        if not data:  # the library would create a processor without a model
            raise TokenizerError(f"{message}: the file is empty")
        with failures(message, hint="give a `.model` file written by the SentencePiece trainer"):
            self.backend: Any = library.SentencePieceProcessor(model_proto=data)
        self.vocab_size: int = self.backend.get_piece_size()
        self.inv_vocab: dict[int, str] = {number: self.backend.id_to_piece(number) for number in range(self.vocab_size)}
        super().__init__(path, hashlib.sha256(data).hexdigest(), self._find_roles(path, eod_token, bos_token))
        self.additional_special_tokens_ids: list[int] = sentinel_ids(self.vocab)

    @property
    def vocab(self) -> dict[str, int]:
        """Ids by piece; built on each access."""
        return {piece: number for number, piece in self.inv_vocab.items()}

    def detokenize(self, ids: Sequence[int]) -> str:
        """Returns the text of ids, with spelled-out control symbols; decodes the ids between them separately."""
        runs = groupby(require_known_ids(self.path, ids, self.vocab_size), key=self._control_ids.__contains__)
        parts = (map(self.inv_vocab.__getitem__, run) if has else [self.backend.decode(list(run))] for has, run in runs)
        return "".join(chain.from_iterable(parts))

    def tokens_to_ids(self, tokens: Sequence[str]) -> list[int | None]:
        ids = [self.backend.piece_to_id(token) for token in tokens]
        return [number if self.inv_vocab[number] == token else None for token, number in zip(tokens, ids, strict=True)]

    def encode_texts(self, texts: Sequence[str]) -> Encoded:
        """Returns the ids of each text as int32; releases the GIL."""
        return joined(self.backend.encode(list(texts), num_threads=1, return_type="numpy"), np.int32)

    @cached_property
    def _control_ids(self) -> frozenset[int]:
        return frozenset(number for number in self.inv_vocab if self.backend.is_control(number))

    def _find_roles(self, path: str, eod_token: str | None, bos_token: str | None) -> dict[str, int]:
        ids = self.vocab
        own = {"eod": self.backend.eos_id(), "bos": self.backend.bos_id(), "pad": self.backend.pad_id()}
        roles = {role: number for role, number in own.items() if number >= 0}
        if "eod" in roles:
            roles["eos"] = roles["eod"]
        spelled = {text: role for role in ("pad", "cls", "sep", "mask") for text in (f"[{role.upper()}]", f"<{role}>")}
        usual = {role: ids[text] for text, role in spelled.items() if text in ids}  # the preferred spelling comes last
        found = well_known_roles(path, ids, eod=eod_token, bos=bos_token)
        named = {"eod": eod_token, "bos": bos_token}
        return usual | found | {role: number for role, number in roles.items() if not named.get(role)}


SENTENCEPIECE = TokenizerKind(
    called="a SentencePiece `.model`",
    suffixes=(".model",),
    load=lambda path, data, options: SentencePieceTokenizer(path, data, **options.roles),
)
