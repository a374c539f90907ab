from __future__ import annotations

import json
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.preprocess.corpus import byte_level_json, make_tokenizer

from tokenloom.errors import ConfigError, TokenizerError
from tokenloom.inputs.formats.jsonl import JsonLineBlock
from tokenloom.inputs.left_out import joined_left_out
from tokenloom.inputs.parsing import ParsedBlock, Texts
from tokenloom.preprocess.blocks import BlockTokenizer
from tokenloom.preprocess.document_tokens import DocumentTokens
from tokenloom.preprocess.refusals import Isolating
from tokenloom.preprocess.selection import hash_documents, hash_of_text
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


def test_texts_are_hashed_under_each_key():
    lines = b'{"a": "x", "b": "y"}\n{"a": "z", "b": ["x", "y"]}\n'
    block = block_work(keys=("a", "b"), hash_texts=True)([JsonLineBlock(path="lines", data=lines, first_record=1)])
    first, second = (column.hashes for column in block.columns)
    assert block.hashes is None
    assert first is not None
    assert second is not None
    assert np.array_equal(first, [hash_of_text("x"), hash_of_text("z")])
    texts = Texts(texts=["y", "x", "y"], document_ends=np.array([1, 3], dtype=np.int64))
    assert np.array_equal(second, hash_documents([texts], 2))


def test_the_texts_of_one_key_are_hashed_once():
    work = block_work(hash_documents=True, hash_texts=True)
    block = work([JsonLineBlock(path="lines", data=b'{"text": "x"}\n', first_record=1)])
    assert block.columns[0].hashes is block.hashes


class Refusing(ByteTokenizer):
    """Takes bytes for ids, but no text with an `r`."""

    def encode_texts(self, texts: Any) -> Any:
        if any("r" in text for text in texts):
            raise RecursionError
        return super().encode_texts(texts)


@given(
    st.lists(
        st.tuples(st.sampled_from([b"", b" \t", b"bad", b"[]", b'{"text": ["x"]}', "a", "b", "r"]), st.integers(0, 3)),
        min_size=1,
        max_size=40,
    )
)
def test_all_records_but_those_left_out_are_documents_in_their_order(records: list[tuple[bytes | str, int]]):
    lines = [json.dumps({"text": line}).encode() if isinstance(line, str) else line for line, _ in records]
    cuts = np.cumsum([cut == 0 for _, cut in records]).tolist()
    numbered = list(zip(cuts, lines, strict=True))
    blocks = [
        JsonLineBlock(path="lines", data=b"".join(line + b"\n" for _, line in group), first_record=1)
        for _, group in groupby(numbered, key=lambda each: each[0])
    ]
    tokenizer = Refusing()
    choice = choose_engine("auto", tokenizer, [])
    work = BlockTokenizer(tokenizer, choice, keys=("text",), dtype=np.dtype(np.uint16), num_workers=1)
    made = Isolating(work, work.rejected)(blocks)
    runs = joined_left_out((block.left_out, block.num_records) for block in made)
    found = [number for first, count in runs.tolist() for number in range(first, first + count)]
    is_good = [line.startswith(b"{") and b"r" not in line for line in lines]
    assert found == [number for number, good in enumerate(is_good) if not good]
    texts = [text for block in made if block.num_documents for text in sequences(block)]
    expected = [json.loads(line)["text"] for line, good in zip(lines, is_good, strict=True) if good]
    assert texts == [[text[0]] for text in expected]
