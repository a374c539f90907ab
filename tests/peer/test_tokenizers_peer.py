"""Tokenizers against megatron-core's: the same ids, sizes and roles, from the same models."""

import base64
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.preprocess.corpus import make_sentencepiece, sentencepiece_model, sources, tiktoken_file

from tokenloom.tokenizers.engines import hard_texts
from tokenloom.tokenizers.plain import ByteTokenizer, NullTokenizer
from tokenloom.tokenizers.tiktoken_ranks import TiktokenDescription, TiktokenTokenizer

peer = pytest.importorskip("megatron.core.tokenizers.text.libraries")

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore")]


@given(num_ids=st.integers(1, 2**31 - 2), data=st.data())
def test_null_tokenizer_is_the_peer_s(num_ids: int, data: st.DataObject):
    ids = data.draw(st.lists(st.integers(0, num_ids), min_size=1))
    ours, theirs = NullTokenizer(num_ids), peer.NullTokenizer(num_ids)
    if theirs.vocab_size != num_ids:  # newer versions count the end of a document among the ids
        assert (ours.vocab_size, ours.eod) == (theirs.vocab_size, theirs.eod)
    assert ours.tokenize(theirs.ids_to_text(ids)) == theirs.text_to_ids(ours.detokenize(ids)) == ids


@given(text=st.text())
def test_bytes_are_the_peer_s(text: str):
    assert ByteTokenizer().tokenize(text) == peer.ByteLevelTokenizer().text_to_ids(text)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_sentencepiece_is_the_peer_s(tmp_path: Path, kind: str):
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_model(kind))
    ours, theirs = make_sentencepiece(kind), peer.SentencePieceTokenizer(str(tmp_path / "tokenizer.model"))
    assert (ours.vocab_size, ours.bos) == (theirs.vocab_size, theirs.bos_id)
    assert (ours.eos, ours.pad) == (theirs.eos_id, theirs.pad_id)
    assert ours.inv_vocab == theirs.inv_vocab
    for text in [*hard_texts(ours), *sources()]:
        assert ours.tokenize(text) == theirs.text_to_ids(text)
        assert ours.detokenize(ours.tokenize(text)) == theirs.ids_to_text(ours.tokenize(text))


def test_tiktoken_is_the_peer_s(tmp_path: Path):
    # Theirs reads a JSON list in the order of the bytes, and puts the special tokens in front of the ranks.
    ranks = [(bytes([byte]), byte) for byte in range(256)]
    for line in tiktoken_file().splitlines()[256:]:
        token, _ = line.split()
        ranks.append((base64.b64decode(token), len(ranks)))
    rows = [{"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None} for token, rank in ranks]
    (tmp_path / "vocab.json").write_text(json.dumps(rows), encoding="utf-8")
    theirs = peer.TikTokenTokenizer(str(tmp_path / "vocab.json"), num_special_tokens=10, vocab_size=len(ranks) + 10)
    data = b"".join(base64.b64encode(token) + b" %d\n" % (rank + 10) for token, rank in ranks)
    specials = {token: number for number, token in enumerate(theirs.special_tokens)}
    description = TiktokenDescription(
        pattern=theirs.tokenizer._pat_str, special_tokens=specials, eod_token="</s>", bos_token="<s>"
    )
    ours = TiktokenTokenizer("x", data, description)
    assert (ours.vocab_size, ours.eod, ours.bos) == (theirs.vocab_size, theirs.eod, theirs.bos_id)
    for text in [*hard_texts(ours), *sources()]:
        assert ours.tokenize(text) == theirs.text_to_ids(text)
