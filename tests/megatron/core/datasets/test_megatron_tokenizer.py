"""`tokenloom.megatron.core.datasets.megatron_tokenizer`."""

from __future__ import annotations

import pytest

from tokenloom.megatron.core.datasets import megatron_tokenizer as ours

WRITTEN = {"tokenize": lambda self, text: [1], "vocab": {}, "inv_vocab": {}, "vocab_size": 2}


@pytest.mark.peer
def test_a_custom_tokenizer_is_described_as_in_megatron():
    theirs = pytest.importorskip("megatron.core.datasets.megatron_tokenizer")
    made = [
        type("Mine", (module.MegatronLegacyTokenizer,), WRITTEN)("a.json", "b.txt", extra=3, none=None)
        for module in (theirs, ours)
    ]
    assert made[0].unique_identifiers == made[1].unique_identifiers
    assert made[0].unique_description == made[1].unique_description
    names = [name for name in dir(theirs.MegatronLegacyTokenizer) if not name.startswith("_")]
    assert [name for name in dir(ours.MegatronTokenizer) if not name.startswith("_")] == names
    for name in ("cls", "sep", "pad", "eod", "bos", "eos", "mask"):
        for each in made:
            with pytest.raises(NotImplementedError, match=f"Mine has no attribute.*'{name}'"):
                getattr(each, name)


def test_missing_methods_raise():
    with pytest.raises(TypeError, match="abstract"):
        ours.MegatronLegacyTokenizer()
    mine = type("Mine", (ours.MegatronLegacyTokenizer,), WRITTEN)()
    with pytest.raises(NotImplementedError, match="Mine has no attribute or method 'detokenize'"):
        mine.detokenize([1])
