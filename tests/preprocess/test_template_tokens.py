from __future__ import annotations

import json

import pytest
from tests.preprocess.corpus import EOD, byte_level_json, documents_of, make_tokenizer, write_lines

from tokenloom.errors import TokenizerError
from tokenloom.preprocess.blocks import TemplateTokens
from tokenloom.preprocess.settings import CorpusSettings
from tokenloom.preprocess.text import preprocess_corpus, preview_corpus
from tokenloom.tokenizers.plain import ByteTokenizer


def templated(*pieces: str) -> str:
    """Returns a tokenizer whose template is these pieces, `A` being the text."""
    whole = json.loads(byte_level_json())
    names = sorted({piece for piece in pieces if piece != "A"})
    first = max(whole["model"]["vocab"].values()) + 1
    ids = {name: first + number for number, name in enumerate(names)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    whole["added_tokens"] += [{"id": number, "content": name, **flags} for name, number in ids.items()]
    rows = [
        {"Sequence": {"id": "A", "type_id": 0}} if piece == "A" else {"SpecialToken": {"id": piece, "type_id": 0}}
        for piece in pieces
    ]
    pair = [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}]
    special = {name: {"id": name, "ids": [number], "tokens": [name]} for name, number in ids.items()}
    whole["post_processor"] = {"type": "TemplateProcessing", "single": rows, "pair": pair, "special_tokens": special}
    return json.dumps(whole)


@pytest.mark.parametrize(
    ("pieces", "sides"),
    [(("A",), (0, 0)), (("<b>", "A"), (1, 0)), (("A", "<e>"), (0, 1)), (("<b>", "<c>", "A", "<e>"), (2, 1))],
)
def test_template_of_a_file_is_found(pieces, sides):
    found = TemplateTokens.of(make_tokenizer(templated(*pieces)))
    assert (len(found.before), len(found.after)) == sides


def test_other_tokenizers_have_none_and_other_templates_are_refused():
    assert TemplateTokens.of(ByteTokenizer()) == TemplateTokens()
    assert TemplateTokens.of(make_tokenizer(byte_level_json())) == TemplateTokens()
    with pytest.raises(TokenizerError, match="do not stand before and behind texts"):
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
