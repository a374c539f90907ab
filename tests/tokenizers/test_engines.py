from __future__ import annotations

import functools
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.preprocess.corpus import (
    TIKTOKEN_SPECIALS,
    byte_level_json,
    make_sentencepiece,
    make_tiktoken,
    make_tokenizer,
    mistaken_json,
    sources,
    word_level_json,
)
from tests.tokenizers.engines import TEXTS
from tokenizers import Tokenizer, models

from tokenloom.errors import ConfigError, TokenizerError
from tokenloom.tokenizers import light_awkward
from tokenloom.tokenizers.engine_checks import require_equal
from tokenloom.tokenizers.engines import (
    GigatokenEngine,
    ReferenceEngine,
    choose_engine,
    max_record_bytes,
    one_thread_per_call,
)
from tokenloom.tokenizers.plain import ByteTokenizer, NullTokenizer
from tokenloom.tokenizers.text_tokenizer import TextTokenizer


@pytest.mark.parametrize("engine", [ReferenceEngine, GigatokenEngine])
def test_engine_gives_the_ids_of_the_tokenizer(engine: type):
    tokenizer = make_tokenizer(byte_level_json())
    encoded = engine(tokenizer).encode(TEXTS)
    expected = [tokenizer.tokenize(text) for text in TEXTS]
    assert encoded.lengths.tolist() == [len(row) for row in expected]
    assert encoded.tokens.tolist() == [token for row in expected for token in row]


@pytest.mark.parametrize("engine", [ReferenceEngine, GigatokenEngine])
def test_engine_takes_no_texts_at_all(engine: type):
    encoded = engine(make_tokenizer(byte_level_json())).encode([])
    assert (len(encoded.tokens), len(encoded.lengths)) == (0, 0)


@given(texts=st.lists(st.text(max_size=60), max_size=6))
def test_engines_agree(texts: list[str]):
    tokenizer = make_tokenizer(byte_level_json())
    require_equal(GigatokenEngine(tokenizer), ReferenceEngine(tokenizer), texts)


def test_auto_takes_the_fast_engine_and_says_what_was_checked():
    choice = choose_engine("auto", make_tokenizer(byte_level_json()), TEXTS)
    assert (choice.name, choice.create().name, choice.create().name) == ("gigatoken",) * 3
    assert choice.reason.startswith("same ids as `tokenizers` for ")
    assert choice.must_agree


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (word_level_json(), 'does not support tokenizer .*: Unsupported model type "WordLevel"'),
        (mistaken_json(), "`gigatoken` and `tokenizers` give different ids for"),
    ],
)
def test_auto_takes_the_truth_and_says_why(data: str, reason: str):
    tokenizer = make_tokenizer(data)
    choice = choose_engine("auto", tokenizer, ["alpha beta"])
    assert (choice.name, choice.must_agree, choice.fell_back) == ("tokenizers", False, True)
    with pytest.raises(TokenizerError, match=reason) as caught:
        choose_engine("gigatoken", tokenizer, ["alpha beta"])
    assert caught.value.message == choice.reason
    assert caught.value.hint == "use the engine `tokenizers`"


def test_auto_distrusts_the_sentencepiece_side():
    vocabulary = {"a": 0, "<unk>": 1, **{f"<0x{byte:02X}>": 2 + byte for byte in range(256)}}
    backend = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    choice = choose_engine("auto", make_tokenizer(backend.to_str()), [])
    assert (choice.name, "SentencePiece" in choice.reason) == ("tokenizers", True)


def test_tokenizers_can_be_asked_for():
    choice = choose_engine("tokenizers", make_tokenizer(byte_level_json()), TEXTS)
    assert (choice.name, choice.reason) == ("tokenizers", "asked for")


def test_unknown_engine_is_refused():
    with pytest.raises(ConfigError, match=r"expected an engine out of auto, gigatoken, tokenizers, .*, got 'fast'"):
        choose_engine("fast", make_tokenizer(byte_level_json()), [])


def test_random_merges_are_refused():
    backend = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")], dropout=0.5))
    with pytest.raises(TokenizerError, match=r"drops merges at random \(dropout 0\.5\)"):
        choose_engine("tokenizers", make_tokenizer(backend.to_str()), [])


def test_parallelism_of_tokenizers_is_the_users_to_decide(monkeypatch: pytest.MonkeyPatch):
    variable = "TOKENIZERS_PARALLELISM"
    monkeypatch.delenv(variable, raising=False)
    with one_thread_per_call():
        assert os.environ[variable] == "false"
    assert variable not in os.environ
    monkeypatch.setenv(variable, "true")
    with one_thread_per_call():
        assert os.environ[variable] == "true"
    assert os.environ[variable] == "true"


@pytest.mark.parametrize("pattern", ["r50k", "cl100k", "o200k"])
def test_rank_files_take_the_fast_engine(pattern: str):
    tokenizer = make_tiktoken(pattern=pattern)
    choice = choose_engine("auto", tokenizer, [*TEXTS, *sources()])
    assert (choice.name, choice.must_agree, choice.fell_back) == ("gigatoken", True, False)
    assert choice.reason.startswith("same ids as `tiktoken` for ")
    texts = [*TEXTS, "<|end|><|endof|> <|endoftext|>", *sources()]
    require_equal(choice.create(), ReferenceEngine(tokenizer), texts)


@pytest.mark.parametrize("pattern", ["r50k", "cl100k", "o200k"])
@given(parts=st.lists(st.one_of(st.text(max_size=30), st.sampled_from(sorted(TIKTOKEN_SPECIALS))), max_size=6))
def test_engines_of_rank_files_agree(pattern: str, parts: list[str]):
    fast, truth = engines_of(pattern)
    require_equal(fast, truth, ["".join(parts), *parts])


@functools.cache
def engines_of(pattern: str) -> tuple[GigatokenEngine, ReferenceEngine]:
    tokenizer = make_tiktoken(pattern=pattern)
    return GigatokenEngine(tokenizer), ReferenceEngine(tokenizer)


def test_pattern_that_the_fast_engine_does_not_know():
    tokenizer = make_tiktoken(pattern=r"\p{N}|\P{N}+")
    choice = choose_engine("auto", tokenizer, TEXTS)
    assert (choice.name, choice.fell_back) == ("tiktoken", True)
    assert choice.reason.endswith(r"it does not know the pattern '\\p{N}|\\P{N}+'")
    with pytest.raises(TokenizerError, match=r"`gigatoken` does not support .*\nhint: use the engine `tiktoken`"):
        choose_engine("gigatoken", tokenizer, TEXTS)


@pytest.mark.parametrize(
    ("tokenizer", "name"),
    [(make_sentencepiece(), "sentencepiece"), (ByteTokenizer(), "numpy"), (NullTokenizer(9), "numpy")],
    ids=["sentencepiece", "byte", "null"],
)
def test_kinds_of_one_engine(tokenizer: TextTokenizer, name: str):
    choice = choose_engine("auto", tokenizer, TEXTS)
    assert (choice.name, choice.create().name, choice.must_agree, choice.fell_back) == (name, name, False, False)
    assert choice.reason == f"the only exact engine for tokenizers of the kind {tokenizer.kind!r}"
    assert choose_engine(name, tokenizer, []).reason == "asked for"
    with pytest.raises(
        TokenizerError, match=f"not exact for tokenizers of the kind '{tokenizer.kind}'\nhint: .*`{name}`"
    ):
        choose_engine("gigatoken", tokenizer, TEXTS)
    with pytest.raises(
        ConfigError, match=f"the engine 'tokenizers' does not take .*\nhint: expected auto, gigatoken or {name}"
    ):
        choose_engine("tokenizers", tokenizer, [])


def test_memory_sets_the_longest_record():
    slow = choose_engine("tokenizers", make_tokenizer(byte_level_json()), [])
    fast = choose_engine("gigatoken", make_tokenizer(byte_level_json()), [])
    assert max_record_bytes(slow, 1 << 30) == (1 << 30) // 250
    assert max_record_bytes(fast, 1 << 30) == (1 << 30) // 20
    assert max_record_bytes(fast, 0) == 1
    assert fast.block_bytes > slow.block_bytes


_WITHOUT_LIBRARY = """
import sys
import numpy as np
from tests.preprocess.corpus import byte_level_json, make_tokenizer
from tests.tokenizers.engines import TEXTS
from tokenloom.inputs.utf8_texts import Utf8Texts
from tokenloom.tokenizers import light_awkward
from tokenloom.tokenizers.engines import GigatokenEngine, ReferenceEngine

tokenizer = make_tokenizer(byte_level_json())
offsets = np.cumsum([0, *(len(text.encode()) for text in TEXTS)])
in_buffer = Utf8Texts(content=np.frombuffer("".join(TEXTS).encode(), dtype=np.uint8), offsets=offsets)
expected = ReferenceEngine(tokenizer).encode(TEXTS)
if sys.argv[1] == "asks for more":
    del light_awkward.num

def check(engine):
    for texts in (TEXTS, in_buffer):
        found = engine.encode(texts)
        assert found.tokens.tolist() == expected.tokens.tolist()
        assert found.lengths.tolist() == expected.lengths.tolist()

with light_awkward.standing_in():
    assert light_awkward.stands_in()
    engine = GigatokenEngine(tokenizer)
    check(engine)
    assert light_awkward.stands_in() == (sys.argv[1] == "fits")
    with light_awkward.standing_in():
        pass
    check(engine)
assert not light_awkward.stands_in()
assert (sys.argv[1] == "fits") == ("awkward" not in sys.modules)
check(engine)
assert hasattr(sys.modules["awkward"], "from_iter")
"""


@pytest.mark.parametrize("case", ["fits", "asks for more"])
def test_ids_are_the_same_without_the_library_of_arrays(case: str):
    subprocess.run([sys.executable, "-c", _WITHOUT_LIBRARY, case], check=True, timeout=120)


_IMPORTED_BY_OTHERS = """
import sys
from tokenloom.tokenizers import light_awkward

with light_awkward.standing_in():
    import awkward
    assert awkward is light_awkward
    if sys.argv[1] == "a name":
        assert awkward.from_iter([[1, 2], [3]]).to_list() == [[1, 2], [3]]
    else:
        import awkward.contents
        from awkward.operations import from_iter
        assert isinstance(from_iter([[1]]).layout, awkward.contents.ListOffsetArray)
    assert not light_awkward.stands_in()
    import awkward as library
    assert library is not light_awkward
    pairs = awkward.Array([[1, 2], [3]])
    assert isinstance(pairs, library.Array)
    assert awkward.num(pairs, axis=1).to_list() == [2, 1]
    assert awkward.to_numpy(awkward.flatten(awkward.without_parameters(pairs))).tolist() == [1, 2, 3]
assert sys.modules["awkward"] is library
"""


@pytest.mark.parametrize("case", ["a name", "a module"])
def test_whoever_else_imports_the_library_finds_it(case: str):
    pytest.importorskip("awkward")
    subprocess.run([sys.executable, "-c", _IMPORTED_BY_OTHERS, case], check=True, timeout=120)


def test_nothing_stands_in_for_a_library_that_is_there():
    awkward = pytest.importorskip("awkward")
    with light_awkward.standing_in():
        assert sys.modules["awkward"] is awkward
