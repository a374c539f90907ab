from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.preprocess.corpus import EOD, byte_level_json, documents_of, make_tokenizer, write_lines
from tokenizers import Tokenizer, processors

from tokenloom.errors import MissingTokenError, TokenizerError
from tokenloom.preprocess.blocks import DocumentTokens, TemplateTokens
from tokenloom.preprocess.settings import CorpusSettings
from tokenloom.preprocess.text import preprocess_corpus, preview_corpus
from tokenloom.tokenizers.plain import ByteTokenizer, NullTokenizer

BEGIN, END = 90, 91
POLICIES = [DocumentTokens(), DocumentTokens(eod=END), DocumentTokens(bos=BEGIN), DocumentTokens(bos=BEGIN, eod=END)]


def add(policy: DocumentTokens, documents: list[list[list[int]]]) -> tuple[list[list[list[int]]], int]:
    """Adds the tokens to documents, which are lists of sequences that are not empty, by the arrays of a block."""
    rows = [row for document in documents for row in document]
    tokens = np.array([token for row in rows for token in row], dtype=np.uint16)
    ends = np.cumsum([len(document) for document in documents], dtype=np.int64)
    lengths = np.array([len(row) for row in rows], dtype=np.int32)
    before = (tokens.copy(), lengths.copy())
    made, new_lengths, num_doubled = policy.add(tokens, lengths, ends)
    assert (tokens == before[0]).all()
    assert (lengths == before[1]).all()
    assert (made.dtype, new_lengths.dtype) == (np.uint16, np.int32)
    cut = [row.tolist() for row in np.split(made, np.cumsum(new_lengths)[:-1])] if len(new_lengths) else []
    return [cut[stop - len(document) : stop] for document, stop in zip(documents, ends, strict=True)], num_doubled


def test_ids_come_from_the_tokenizer_and_doubled_ones_are_counted():
    documents = [[[BEGIN, 1]], [[2, END]], [[BEGIN], [END]], [[END, 3, BEGIN]], [[4]]]
    made, num_doubled = add(POLICIES[3], documents)
    assert num_doubled == 3
    assert made[:2] == [[[BEGIN, BEGIN, 1, END]], [[BEGIN, 2, END, END]]]
    assert add(POLICIES[1], documents)[1] == 2
    assert add(POLICIES[0], documents)[1] == 0
    assert DocumentTokens.of(ByteTokenizer()) == DocumentTokens()
    assert DocumentTokens.of(ByteTokenizer(), prepend_bos=True, append_eod=True) == DocumentTokens(bos=257, eod=256)
    with pytest.raises(MissingTokenError, match="tokenizer `null:5` has no configured or well-known token for `bos`"):
        DocumentTokens.of(NullTokenizer(5), prepend_bos=True)


@given(
    policy=st.sampled_from(POLICIES),
    documents=st.lists(st.lists(st.lists(st.sampled_from([1, 2, BEGIN, END]), min_size=1, max_size=4), max_size=3)),
)
def test_documents_are_those_made_one_by_one(policy: DocumentTokens, documents: list[list[list[int]]]):
    expected, num_doubled = [], 0
    for document in documents:
        rows = [list(row) for row in document]
        doubled = bool(rows) and (rows[0][0] == policy.bos or rows[-1][-1] == policy.eod)
        if rows and policy.bos is not None:
            rows[0].insert(0, policy.bos)
        if rows and policy.eod is not None:
            rows[-1].append(policy.eod)
        expected.append(rows)
        num_doubled += doubled
    assert add(policy, documents) == (expected, num_doubled)


def templated(*pieces: str) -> str:
    """Returns a tokenizer whose template is these pieces, `A` being the text."""
    backend = Tokenizer.from_str(byte_level_json())
    names = sorted({*pieces} - {"A"})
    backend.add_special_tokens(names)
    single = ["$A" if piece == "A" else piece for piece in pieces]
    special = [(name, backend.token_to_id(name)) for name in names]
    backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=special)
    return backend.to_str()


def test_template_of_a_file_is_found_and_others_are_refused():
    for pieces, sides in (("A", (0, 0)), ("<b> A", (1, 0)), ("A <e>", (0, 1)), ("<b> <c> A <e>", (2, 1))):
        found = TemplateTokens.of(make_tokenizer(templated(*pieces.split())))
        assert (len(found.before), len(found.after)) == sides
    assert TemplateTokens.of(ByteTokenizer()) == TemplateTokens()
    assert TemplateTokens.of(make_tokenizer(byte_level_json())) == TemplateTokens()
    with pytest.raises(TokenizerError, match="its template does not add the same special tokens"):
        TemplateTokens.of(make_tokenizer(templated("A", "<m>", "A")))


def test_documents_are_those_of_the_library(tmp_path):
    tokenizer = make_tokenizer(templated("<b>", "A", "<e>"))
    texts = ["hello wörld", "", "<b>spelled", f"x{EOD}"]
    path = write_lines(tmp_path / "in.jsonl", [{"text": text} for text in texts])
    settings = CorpusSettings(template_tokens=True, append_eod=True)
    summary = preprocess_corpus(path, tmp_path / "out", tokenizer, settings, num_processes=1, num_workers=1)
    expected = [[[*tokenizer.backend.encode(text).ids, tokenizer.eod]] for text in texts]
    assert documents_of(tmp_path / "out_text_document") == expected
    assert summary.engine.startswith("gigatoken (certificate ")
    shown = preview_corpus([path], tmp_path / "other", tokenizer, settings, count=1)
    assert shown.documents[0].num_tokens == len(expected[0][0])
    assert shown.documents[0].is_exact
