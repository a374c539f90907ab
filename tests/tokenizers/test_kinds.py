from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.preprocess.corpus import documents_of, write_lines

from tokenloom.errors import ConfigError, TokenizerError
from tokenloom.preprocess.settings import CorpusSettings
from tokenloom.preprocess.text import preprocess_corpus
from tokenloom.tokenizers.kinds import KINDS, TokenizerKind, TokenizerOptions
from tokenloom.tokenizers.load import load_tokenizer
from tokenloom.tokenizers.text_tokenizer import Encoded, TokenRoles, joined, require_known_ids, well_known_roles


class WordTokenizer(TokenRoles):
    kind = "words"
    engine_name = "words"

    def __init__(self, path: str, data: bytes, options: TokenizerOptions) -> None:
        self.words = data.decode().split()
        self.vocab_size = len(self.words)
        self.ids = {word: number for number, word in enumerate(self.words)}
        roles = well_known_roles(path, self.ids, eod=options.eod_token, bos=options.bos_token)
        super().__init__(path, hashlib.sha256(data).hexdigest(), roles)

    def tokenize(self, text: str) -> list[int]:
        return [self.ids[word] for word in text.split()]

    def detokenize(self, ids: Sequence[int]) -> str:
        return " ".join(self.words[number] for number in require_known_ids(self.path, ids, self.vocab_size))

    def tokens_to_ids(self, tokens: Sequence[str]) -> list[int | None]:
        return [self.ids.get(token) for token in tokens]

    def encode_texts(self, texts: Sequence[str]) -> Encoded:
        return joined([np.array(self.tokenize(text), dtype=np.int64) for text in texts], np.int64)


WORDS = TokenizerKind(called="a `.words`", suffixes=(".words",), load=WordTokenizer)


def test_a_kind_is_added_by_one_object(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setitem(KINDS, "words", WORDS)
    folder = tmp_path
    (folder / "list.words").write_text("to be or not <eos>")
    tokenizer = load_tokenizer(folder)
    assert (tokenizer.kind, tokenizer.vocab_size, tokenizer.eod) == ("words", 5, 4)
    write_lines(folder / "in.jsonl", [{"text": "to be or not to be"}, {"text": "be"}])
    settings = CorpusSettings(append_eod=True)
    summary = preprocess_corpus([folder / "in.jsonl"], folder / "out", tokenizer, settings, num_processes=1)
    assert documents_of(folder / "out_text_document") == [[[0, 1, 2, 3, 0, 1, 4]], [[1, 4]]]
    assert summary.engine == "words"
    with pytest.raises(
        TokenizerError, match=r"a `\.tiktoken`, .*, a `vocab\.txt` or a `\.words`, or of a folder with one"
    ):
        load_tokenizer(folder / "absent")
    with pytest.raises(ConfigError, match=r"`special_tokens`: not supported by .* of kind 'words'"):
        load_tokenizer(folder / "list.words", pattern="r50k")
    assert load_tokenizer(folder / "list.words", kind="words", eod_token="not").eod == 3
