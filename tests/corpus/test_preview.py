from __future__ import annotations

from tests.preprocess.corpus import EOD, byte_level_json, make_sentencepiece, make_tokenizer

from tokenloom.preprocess.blocks import DocumentTokens
from tokenloom.preprocess.preview import DocumentPreview, preview_documents
from tokenloom.tokenizers.plain import ByteTokenizer


def test_documents_are_shown_as_they_will_be_stored():
    policy = DocumentTokens(bos=257, eod=256)
    long, short, empty = preview_documents(["0123456789", ["é", "", "f"], ""], ByteTokenizer(), document_tokens=policy)
    assert long == DocumentPreview(
        text="<bos>0123456789<eod>",
        first_ids=(257, 48, 49, 50, 51, 52, 53, 54),
        last_ids=(51, 52, 53, 54, 55, 56, 57, 256),
        num_tokens=12,
        num_sequences=1,
        num_text_bytes=10,
        is_doubled=False,
        is_exact=True,
    )
    assert long.tokens_per_byte == 1.2
    assert (short.text, short.num_tokens, short.num_sequences, short.num_text_bytes) == ("<bos>éf<eod>", 5, 2, 3)
    assert (empty.text, empty.num_tokens, empty.first_ids, empty.tokens_per_byte) == ("", 0, (), 0.0)


def test_doubled_tokens_and_lost_characters_are_told():
    tokenizer = make_tokenizer(byte_level_json())
    plain, doubled = preview_documents(["a", f"a{EOD}"], tokenizer, document_tokens=DocumentTokens(eod=0))
    assert (plain.is_doubled, doubled.is_doubled, doubled.text) == (False, True, f"a{EOD}{EOD}")
    exact, lossy = preview_documents(["two words", "two  words "], make_sentencepiece())
    assert (exact.is_exact, lossy.is_exact, lossy.text) == (True, False, "two words")
