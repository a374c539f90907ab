from __future__ import annotations

from tests.preprocess.corpus import EOD, byte_level_json, make_sentencepiece, make_tokenizer, write_lines

from tokenloom.preprocess.settings import CorpusSettings
from tokenloom.preprocess.text import DocumentPreview, preview_corpus
from tokenloom.tokenizers.plain import ByteTokenizer


def shown(folder, tokenizer, texts, **settings) -> tuple[DocumentPreview, ...]:
    path = write_lines(folder / "in.jsonl", [b"bad", *({"text": text} for text in texts), {"text": "more"}])
    found = preview_corpus([path], folder / "out", tokenizer, CorpusSettings(**settings), count=len(texts))
    assert [bad.line for bad in found.bad_lines] == [1]
    assert [each.name for each in folder.iterdir()] == ["in.jsonl"]
    return found.documents


def test_documents_are_shown_as_they_will_be_stored(tmp_path):
    texts = ["0123456789", ["é", "", "f"], ""]
    long, short, empty = shown(tmp_path, ByteTokenizer(), texts, prepend_bos=True, append_eod=True)
    assert long == DocumentPreview(
        path=str(tmp_path / "in.jsonl"),
        key="text",
        text="<bos>0123456789<eod>",
        first_ids=(257, 48, 49, 50, 51, 52, 53, 54),
        last_ids=(51, 52, 53, 54, 55, 56, 57, 256),
        num_tokens=12,
        num_sequences=1,
        num_text_bytes=10,
        is_doubled=False,
        is_exact=True,
    )
    assert (short.text, short.num_tokens, short.num_sequences, short.num_text_bytes) == ("<bos>éf<eod>", 5, 2, 3)
    assert (empty.text, empty.num_tokens, empty.first_ids) == ("", 0, ())


def test_doubled_tokens_and_lost_characters_are_told(tmp_path):
    tokenizer = make_tokenizer(byte_level_json())
    plain, doubled = shown(tmp_path, tokenizer, ["a", f"a{EOD}"], append_eod=True)
    assert (plain.is_doubled, doubled.is_doubled, doubled.text) == (False, True, f"a{EOD}{EOD}")
    exact, lossy = shown(tmp_path, make_sentencepiece(), ["two words", "two  words "])
    assert (exact.is_exact, lossy.is_exact, lossy.text) == (True, False, "two words")
