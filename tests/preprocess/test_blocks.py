from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.preprocess.corpus import byte_level_json, make_tokenizer

from tokenloom.errors import ConfigError, TokenizerError
from tokenloom.inputs.formats.jsonl import JsonLineBlock
from tokenloom.inputs.parsing import ParsedBlock, Texts
from tokenloom.preprocess.blocks import BlockTokenizer
from tokenloom.preprocess.document_tokens import DocumentTokens
from tokenloom.preprocess.selection import hash_documents
from tokenloom.preprocess.sentences import SentenceSplitter
from tokenloom.tokenizers.engines import EngineChoice, choose_engine
from tokenloom.tokenizers.plain import ByteTokenizer
from tokenloom.tokenizers.text_tokenizer import Encoded


def block_work(
    *, keys: tuple[str, ...] = ("text",), choice: EngineChoice | None = None, **options: Any
) -> BlockTokenizer:
    tokenizer = ByteTokenizer()
    choice = choose_engine("auto", tokenizer, []) if choice is None else choice
    return BlockTokenizer(tokenizer, choice, keys=keys, dtype=np.dtype(np.uint16), num_workers=1, **options)


def sequences(block: Any, key: int = 0) -> list[list[str]]:
    """Returns the sequences of each document as text, special tokens spelled out."""
    column = block.columns[key]
    rows = np.split(column.tokens, np.cumsum(column.lengths))[: len(column.lengths)]
    texts = [ByteTokenizer().detokenize(row.tolist()) for row in rows]
    starts = [0, *column.document_ends[:-1]]
    return [texts[start:stop] for start, stop in zip(starts, column.document_ends, strict=True)]


def test_policy_splitter_and_hashes_of_lines():
    lines = b'{"text": "One. Two."}\n{"text": ["Three. Four", ""]}\n{"text": " "}\n\nbad\n'
    tokenize = block_work(
        document_tokens=DocumentTokens(bos=257, eod=256), splitter=SentenceSplitter(), hash_documents=True
    )
    block = tokenize([JsonLineBlock(path="lines", data=lines, first_record=1)])
    assert sequences(block) == [["<bos>One.", "Two.<eod>"], ["<bos>Three.", "Four<eod>"], []]
    assert (block.num_documents, block.num_blank_lines, len(block.bad_lines), block.num_doubled) == (3, 1, 1, 0)
    texts = Texts(texts=["One. Two.", "Three. Four", "", " "], document_ends=np.array([1, 3, 4], dtype=np.int64))
    assert block.hashes is not None
    assert (block.hashes == hash_documents([texts], 3)).all()


def test_hashes_are_made_only_when_asked_for():
    assert block_work()([JsonLineBlock(path="lines", data=b'{"text": "a"}\n', first_record=1)]).hashes is None


def test_parsed_documents_need_no_lines():
    parsed = ParsedBlock(columns=(Texts(texts=["a", "b"]), Texts(texts=["", "c"])), num_documents=2)
    block = block_work(keys=("x", "y"), document_tokens=DocumentTokens(eod=256)).tokenize(parsed, num_bytes=3, number=7)
    assert (sequences(block), sequences(block, 1)) == ([["a<eod>"], ["b<eod>"]], [[], ["c<eod>"]])


def test_doubled_tokens_are_counted_under_each_key():
    tokenizer = make_tokenizer(byte_level_json())
    tokenize = BlockTokenizer(
        tokenizer,
        choose_engine("auto", tokenizer, []),
        keys=("a", "b"),
        dtype=np.dtype(np.uint16),
        document_tokens=DocumentTokens(eod=tokenizer.eod),
        num_workers=1,
    )
    data = b'{"a": "x<|endoftext|>", "b": "<|endoftext|>"}\n{"a": "x", "b": "<|endoftext|>x"}\n'
    block = tokenize([JsonLineBlock(path="lines", data=data, first_record=1)])
    assert block.num_doubled == 2
    assert block.columns[0].tokens.tolist()[-1] == tokenizer.eod
    assert block.columns[1].tokens.tolist()[:2] == [0, 0]


@pytest.mark.parametrize("number", [259, -1])
def test_ids_outside_the_vocabulary_are_refused(number: int):
    class Wrong:
        name = "wrong"

        def encode(self, texts: list[str]) -> Encoded:
            return Encoded(np.array([1, number]), np.array([2], dtype=np.int64))

    choice = EngineChoice(name="wrong", reason="", bytes_per_text_byte=1, create=Wrong, must_agree=False)
    with pytest.raises(TokenizerError, match=f"token id {number}, but the vocabulary has 259\nhint: .*`numpy`"):
        block_work(choice=choice)([JsonLineBlock(path="lines", data=b'{"text": "a"}\n', first_record=1)])


def test_tokens_to_add_are_of_the_vocabulary():
    with pytest.raises(ConfigError, match="expected an id below 259 to add to documents, got 300"):
        block_work(document_tokens=DocumentTokens(bos=300))
