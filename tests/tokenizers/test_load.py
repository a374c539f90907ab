import base64
import hashlib
import json
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken
from tests.preprocess.corpus import (
    EOD,
    TIKTOKEN_SPECIALS,
    byte_level_json,
    documents_of,
    sentencepiece_model,
    tiktoken_file,
    write_gpt2,
    write_lines,
)
from tests.support import StandInTokenizer
from tokenizers import Tokenizer

from tokenloom import load
from tokenloom.errors import ConfigError, TokenizerError
from tokenloom.indexed.manifests import SpecialToken, TokenizerIdentity, identity_of
from tokenloom.megatron.installation import reference_version
from tokenloom.preprocess.corpus import preprocess_corpus
from tokenloom.preprocess.settings import CorpusSettings
from tokenloom.tokenizers.kinds import KINDS, TokenizerKind, TokenizerOptions
from tokenloom.tokenizers.load import as_tokenizer, load_tokenizer, local_file, recorded_tokenizer
from tokenloom.tokenizers.reference_types import TYPES, ReferenceTokenizerOptions, load_reference_tokenizer
from tokenloom.tokenizers.text_tokenizer import Encoded, TokenRoles, joined, require_known_ids, well_known_roles
from tokenloom.tokenizers.tiktoken_ranks import REFERENCE_PATTERNS, TiktokenTokenizer

FILES = {"tokenizer.model": sentencepiece_model, "ranks.tiktoken": tiktoken_file}
FILES["tokenizer.json"] = lambda: byte_level_json().encode()
DESCRIPTION = b'{"pattern": "cl100k", "special_tokens": {"<|endoftext|>": 1000}}'


def write(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).write_bytes(DESCRIPTION if name.endswith(".tiktoken.json") else FILES[name]())
    return folder


def test_folder_with_one_tokenizer_is_enough(tmp_path: Path):
    with pytest.raises(TokenizerError, match=r"cannot read tokenizer `.*tokenizer\.json`: No such file"):
        load_tokenizer(tmp_path)
    assert load_tokenizer(write(tmp_path, "ranks.tiktoken", "ranks.tiktoken.json")).kind == "tiktoken"
    write(tmp_path, "tokenizer.model")
    with pytest.raises(TokenizerError, match=r"several tokenizers: ranks\.tiktoken, tokenizer\.model\nhint: pass"):
        load_tokenizer(tmp_path)
    assert load_tokenizer(tmp_path / "tokenizer.model").kind == "sentencepiece"
    assert load_tokenizer(write(tmp_path, "tokenizer.json")).kind == "huggingface"


def test_rank_file_needs_a_pattern_and_options_come_before_the_description(tmp_path: Path):
    path = write(tmp_path, "ranks.tiktoken") / "ranks.tiktoken"
    with pytest.raises(TokenizerError, match=r"ranks\.tiktoken` needs a `pattern`\nhint: .*ranks\.tiktoken\.json`"):
        load_tokenizer(path)
    assert load_tokenizer(path, pattern="r50k").special_tokens == {}
    write(tmp_path, "ranks.tiktoken.json")
    described = load_tokenizer(path)
    assert (described.eod, described.special_tokens) == (1000, {EOD: 1000})
    tokenizer = load_tokenizer(path, pattern="r50k", special_tokens=TIKTOKEN_SPECIALS, eod_token="<|end|>")
    assert (tokenizer.eod, tokenizer.vocab_size) == (1003, 1004)
    assert tokenizer.sha256 not in (described.sha256, load_tokenizer(path, pattern="r50k").sha256)


@pytest.mark.parametrize("name", FILES)
def test_tokens_are_named(tmp_path: Path, name: str):
    write(tmp_path, name, "ranks.tiktoken.json")
    token = "</s>" if name == "tokenizer.model" else EOD
    tokenizer = load_tokenizer(tmp_path / name, eod_token=token, bos_token=token)
    assert tokenizer.eod == tokenizer.bos == tokenizer.tokens_to_ids([token])[0]
    for role in ("eod_token", "bos_token"):
        with pytest.raises(TokenizerError, match="has no token '<absent>'"):
            load_tokenizer(tmp_path / name, **{role: "<absent>"})


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("byte", {"kind": "bytes"}, "`kind`: must be one of auto, huggingface, .*, wordpiece, got 'bytes'"),
        ("x", {"kind": "byte"}, "a tokenizer of kind 'byte' must be `byte`, got 'x'"),
        ("null", {"kind": "null"}, "a tokenizer of kind 'null' must be `null:N` .*, got 'null'"),
        (
            "null:5",
            {"eod_token": "4"},
            r"`eod_token` and `bos_token`: not .* 'null:5'.*\nhint: .* eod of 'null:5' is 5",
        ),
        ("byte", {"pattern": "r50k"}, "`pattern` and `special_tokens`: not supported by `byte`, .*'byte'"),
        ("null:5", {"special_tokens": {}}, "`pattern` and `special_tokens`: not supported by `null:5`"),
    ],
)
def test_options_that_do_not_belong_are_refused(spec: str, options: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        load_tokenizer(spec, **options)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def keep(hub, name):
    """Writes a model into the cache like `huggingface_hub`."""
    path = hub / f"models--{name.replace('/', '--')}" / "snapshots" / "abc" / "tokenizer.json"
    path.parent.mkdir(parents=True)
    path.write_text(byte_level_json())
    (path.parents[2] / "refs").mkdir()
    (path.parents[2] / "refs" / "main").write_text("abc")
    return str(path)


@pytest.mark.parametrize("name", ["gpt2", "meta-llama/Llama-3.1-8B"])
def test_a_model_is_found_by_its_name(hub, name):
    path = keep(hub, name)
    assert local_file(name) == load_tokenizer(name).path == path
    others = ("other/gpt2", "../gpt2", "gpt2/", "/gpt2", "a/b/c", "", "gpt 2", "tokenizer.json")
    assert {local_file(other) for other in others} == {None}


def test_rank_files_of_tiktoken_are_found_and_a_name_that_is_not_there_is_said(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    assert local_file("cl100k_base") is None
    path = tmp_path / "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"  # as the library calls it
    path.write_bytes(b"IQ== 0\n")
    assert local_file("cl100k_base") == str(path)
    assert local_file("cl100k") is None
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer("gpt2")
    assert caught.value.message == "cannot read tokenizer `gpt2`: No such file or directory"
    words = "the local caches of `huggingface_hub` and `tiktoken` contain no tokenizer of that name"
    assert caught.value.hint.endswith(words)


@pytest.fixture
def made_by(tmp_path) -> TokenizerIdentity:
    path = tmp_path / "tokenizer.json"
    path.write_text(byte_level_json())
    tokenizer = load_tokenizer(path)
    return identity_of(tokenizer, eod=SpecialToken(id=tokenizer.eod, text="<|endoftext|>"))


@pytest.mark.parametrize("prefix", ["text/corpus", "corpus", "{folder}/data/text/corpus"])
@pytest.mark.parametrize("path", ["tokenizer.json", "/gone/tokenizer.json", "/gone/project/models/tokenizer.json"])
def test_the_tokenizer_of_a_manifest_is_found_from_any_folder_above_the_data(
    made_by, tmp_path, monkeypatch, path, prefix
):
    (tmp_path / "data" / "text").mkdir(parents=True)
    (tmp_path / "models").mkdir()
    if "models" in path:
        (tmp_path / "tokenizer.json").rename(tmp_path / "models" / "tokenizer.json")
    monkeypatch.chdir(tmp_path / "data")
    moved, prefix = replace(made_by, path=path), prefix.format(folder=tmp_path)
    assert recorded_tokenizer(moved, prefix=prefix).sha256 == made_by.sha256
    (tmp_path / "data" / "tokenizer.json").write_text(byte_level_json() + "\n")  # another one does not hide it
    assert recorded_tokenizer(moved, prefix=prefix).sha256 == made_by.sha256


def test_a_changed_or_missing_tokenizer_of_a_manifest_is_an_error(made_by, tmp_path):
    (tmp_path / "tokenizer.json").write_text(byte_level_json() + "\n")
    with pytest.raises(TokenizerError, match=r"has changed: it is not the tokenizer that made `corpus`"):
        recorded_tokenizer(made_by, prefix="corpus")
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(TokenizerError, match=r"cannot read tokenizer `.*tokenizer\.json`: No such file"):
        recorded_tokenizer(made_by, prefix="corpus")
    nameless = TokenizerIdentity(kind="Mine", sha256=None, path=None, vocab_size=9)
    with pytest.raises(TokenizerError, match="the manifest of `corpus` does not record the path"):
        recorded_tokenizer(nameless, prefix="corpus")


TEXT = "def main():\n    return '漢字'"


class PreTrainedTokenizerFast:
    __module__ = "transformers.tokenization_utils_tokenizers"

    def __init__(self, backend: Any, *, name_or_path: str = "") -> None:
        self.backend_tokenizer = backend
        self.name_or_path = name_or_path
        self.special_tokens_map = {"eos_token": EOD, "pad_token": "<|pad|>"}
        self.chat_template = "{{ messages }}"


@pytest.fixture
def json_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    Tokenizer.from_str(byte_level_json()).save(str(path))
    return path


def test_a_tokenizer_of_the_library_is_that_of_the_file_it_writes(json_file):
    expected = load_tokenizer(json_file)
    backend = Tokenizer.from_file(str(json_file))
    backend.enable_truncation(2)
    found = load_tokenizer(backend, eod_token="<|pad|>")
    assert found.tokenize(TEXT) == expected.tokenize(TEXT)
    assert (found.path, found.eod) == ("<Tokenizer>", expected.tokenize("<|pad|>")[0])
    assert load_tokenizer(Tokenizer.from_file(str(json_file))).sha256 == expected.sha256
    assert pickle.loads(pickle.dumps(found)).tokenize(TEXT) == expected.tokenize(TEXT)


def test_a_slow_tokenizer_is_refused_and_a_fast_one_brings_its_special_tokens(json_file, tmp_path):
    slow = type("PreTrainedTokenizer", (), {"__module__": "transformers.tokenization_python"})
    message = "PreTrainedTokenizer is a slow tokenizer of .*, without a `tokenizer.json`\nhint: load the fast tokenizer"
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(slow())
    found = load_tokenizer(PreTrainedTokenizerFast(Tokenizer.from_file(str(json_file))))
    assert found.special_tokens_dict == {"eos_token": 0, "pad_token": 1}
    assert (found.eod, found.pad, found.path) == (0, 1, "<PreTrainedTokenizerFast>")
    assert found.config["chat_template"] == "{{ messages }}"
    path = tmp_path / "tokenizer.json"
    path.write_text(byte_level_json())  # on one line, unlike the library
    expected = load_tokenizer(tmp_path)
    found = load_tokenizer(PreTrainedTokenizerFast(Tokenizer.from_file(str(path)), name_or_path=str(tmp_path)))
    assert (found.path, found.sha256, found.knows_its_file) == (str(path), expected.sha256, True)
    changed = Tokenizer.from_file(str(path))
    changed.add_tokens(["brandnew"])
    other = load_tokenizer(PreTrainedTokenizerFast(changed, name_or_path=str(tmp_path)))
    assert (other.path, other.sha256 == expected.sha256, other.knows_its_file) == (str(tmp_path), False, False)


def test_an_encoding_of_tiktoken_is_that_of_its_file(tmp_path):
    path = tmp_path / "ours.tiktoken"
    path.write_bytes(tiktoken_file())
    expected = load_tokenizer(path, pattern="cl100k", special_tokens={EOD: 5000})
    ranks = {"mergeable_ranks": expected.backend._mergeable_ranks, "special_tokens": {EOD: 5000}}
    encoding = tiktoken.Encoding("ours", pat_str=expected.pattern, **ranks)
    found = load_tokenizer(encoding)
    assert (found.path, found.sha256, found.eod) == ("ours", expected.sha256, 5000)
    assert found.tokenize(TEXT) == expected.tokenize(TEXT)


def test_one_of_ours_is_returned_as_it_is_and_settings_take_all_of_them(json_file):
    tokenizer = load_tokenizer(json_file)
    assert load_tokenizer(tokenizer) is tokenizer
    assert load_tokenizer(plain := load_tokenizer("byte")) is plain
    with pytest.raises(ConfigError, match="`eod_token`: has no effect on a loaded tokenizer, got 'x'"):
        load_tokenizer(tokenizer, eod_token="x")
    stand_in = StandInTokenizer()
    assert (as_tokenizer(None), as_tokenizer(stand_in)) == (None, stand_in)
    of_path = {as_tokenizer(each).sha256 for each in (str(json_file), json_file, json_file.parent)}
    assert of_path == {as_tokenizer(Tokenizer.from_file(str(json_file))).sha256}


def test_an_object_reads_what_its_file_has_made(json_file, tmp_path):
    (tmp_path / "corpus.jsonl").write_text('{"text": "def main"}\n' * 20)
    json_file.write_text(byte_level_json())  # which is not what the library writes, so fingerprints differ
    preprocess_corpus(tmp_path / "corpus.jsonl", tmp_path / "corpus", load_tokenizer(json_file), num_processes=1)
    prefix = str(tmp_path / "corpus_text_document")
    backend = Tokenizer.from_file(str(json_file))
    assert len(load(prefix, sequence_length=8, tokenizer=backend)) > 0
    few = Tokenizer.from_str(byte_level_json())
    few.add_special_tokens(["x"])
    assert len(load(prefix, sequence_length=8, tokenizer=few)) > 0
    narrow = load_tokenizer("null:40")
    with pytest.raises(TokenizerError, match="expected the tokenizer that made the data"):
        load(prefix, sequence_length=8, tokenizer=narrow)


@pytest.mark.parametrize("given", [5, 1.5, True, b"x", ["tokenizer.json"], {}, StandInTokenizer])
def test_what_is_no_tokenizer_is_refused(given):
    with pytest.raises(ConfigError) as caught:
        as_tokenizer(given)
    assert caught.value.message == f"`tokenizer`: must be a tokenizer, got {given!r}"
    with pytest.raises(ConfigError, match='hint: give a path, a name such as "gpt2", or an object of `tokenizers`'):
        load_tokenizer(given)


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


def test_a_kind_is_added_by_one_object(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    kind = TokenizerKind(called="a `.words`", suffixes=(".words",), load=WordTokenizer)
    monkeypatch.setitem(KINDS, "words", kind)
    folder = tmp_path
    (folder / "list.words").write_text("to be or not <eos>")
    tokenizer = load_tokenizer(folder)
    assert (tokenizer.kind, tokenizer.vocab_size, tokenizer.eod) == ("words", 5, 4)
    write_lines(folder / "in.jsonl", [{"text": "to be or not to be"}, {"text": "be"}])
    settings = CorpusSettings(append_eod=True)
    summary = preprocess_corpus([folder / "in.jsonl"], folder / "out", tokenizer, settings, num_processes=1)
    assert documents_of(folder / "out_text_document") == [[[0, 1, 2, 3, 0, 1, 4]], [[1, 4]]]
    assert summary.engine == "words"
    message = r"a `\.tiktoken`, .*, a `vocab\.txt` or a `\.words`, or of a folder with one"
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(folder / "absent")
    with pytest.raises(ConfigError, match=r"`special_tokens`: not supported by .* of kind 'words'"):
        load_tokenizer(folder / "list.words", pattern="r50k")
    assert load_tokenizer(folder / "list.words", kind="words", eod_token="not").eod == 3


PEER_TEXTS = ["Hello  world's\n\nÄpfel 12", "", " a", "naïve 中文 x</s>y"]


@pytest.fixture
def reference_files(tmp_path: Path) -> dict[str, str]:
    tokens = [bytes([number]) for number in range(256)] + [b"He", b"llo", b"lo", b"Hello", "中".encode()[:2]]
    rows = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": token.decode(errors="replace")}
        for rank, token in enumerate(tokens)
    ]
    contents = {
        "tokenizer.json": byte_level_json().encode(),
        "words.model": sentencepiece_model(),
        "tokens.json": json.dumps(rows).encode(),
        "vocab.txt": "\n".join([*("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), "a", "##b", "É"]).encode(),
        "bad.json": b'[{"rank": 1}]',
        "unranked.json": json.dumps(rows[1:]).encode(),
    }
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    vocabulary, merges = write_gpt2(tmp_path)
    return {"vocab.json": vocabulary, "merges.txt": merges} | {name: str(tmp_path / name) for name in contents}


def options(name, **more):
    return ReferenceTokenizerOptions(tokenizer_type=name, **more)


def test_types_are_loaded_from_their_files(reference_files):
    gpt2 = {"vocab_file": reference_files["vocab.json"], "merge_file": reference_files["merges.txt"]}
    pieces = {"vocab_file": reference_files["vocab.txt"]}
    tokens = {"tokenizer_model": reference_files["tokens.json"], "vocab_size": 270, "tiktoken_num_special_tokens": 9}
    cases = [
        ("GPT2BPETokenizer", gpt2, 1000, 0),
        ("GPT2BPE", gpt2 | {"special_tokens": ("<x>",)}, 1001, 0),
        ("HuggingFaceTokenizer", {"tokenizer_model": reference_files["tokenizer.json"]}, 1000, 0),
        ("SentencePieceTokenizer", {"tokenizer_model": reference_files["words.model"]}, None, 2),
        ("GPTSentencePieceTokenizer", {"tokenizer_model": reference_files["words.model"]}, None, 2),
        ("Llama2Tokenizer", {"tokenizer_model": reference_files["words.model"]}, None, 2),
        ("TikTokenizer", tokens, 270, 2),
        ("BertWordPieceLowerCase", pieces, 8, 3),
        ("BertWordPieceCase", pieces, 108, 3),
        ("NullTokenizer", {"vocab_size": 50}, 50, 49),
    ]
    assert {name for name, *_ in cases} == {*TYPES}
    for name, more, vocab_size, eod in cases:
        tokenizer = load_reference_tokenizer(options(name, **more))
        assert tokenizer.vocab_size == vocab_size or vocab_size is None, name
        assert tokenizer.eod == eod, name
    assert load_reference_tokenizer(options("BertWordPieceCase", **pieces)).tokenize("É<extra_id_1>") == [7, 9]
    assert load_reference_tokenizer(options("BertWordPieceLowerCase", **pieces)).tokenize("Ab") == [5, 6]


def test_null_has_the_end_of_either_version_and_arguments_of_both_are_read():
    given = options("NullTokenizer", vocab_size=50)
    newer, older = (load_reference_tokenizer(given, null_has_own_eod=own) for own in (False, True))
    assert (newer.vocab_size, newer.eod, older.vocab_size, older.eod) == (50, 49, 51, 50)
    with pytest.raises(ConfigError, match="must be the last id, 49, got 3"):
        load_reference_tokenizer(options("NullTokenizer", vocab_size=50, null_tokenizer_eod_id=3))
    newer = {"tokenizer_type": "X", "special_tokens": ["a"], "tiktoken_pattern": None, "other": 1}
    older = {"tokenizer_type": "X", "tokenizer_special_tokens": ["a"], "tiktoken_num_special_tokens": 1000}
    expected = options("X", special_tokens=("a",))
    assert ReferenceTokenizerOptions.of(newer) == ReferenceTokenizerOptions.of(older) == expected
    kept = {"tokenizer_type": "X", "tokenizer_sentencepiece_ignore_extra_whitespaces": False}
    assert not ReferenceTokenizerOptions.of(kept).sentencepiece_ignores_white_space


@pytest.mark.parametrize(
    ("name", "more", "words"),
    [
        ("T5Tokenizer", {}, "must be one of GPT2BPETokenizer, GPT2BPE"),
        ("SFTTokenizer", {}, "cannot preprocess text"),
        ("GPT2BPETokenizer", {"vocab_file": "a"}, "--tokenizer-type GPT2BPETokenizer needs --merge-file"),
        ("GPT2BPE", {}, "needs --vocab-file and --merge-file"),
        ("HuggingFaceTokenizer", {"tokenizer_model": "a", "vocab_file": "b"}, "does not read --vocab-file"),
        ("Llama2Tokenizer", {"tokenizer_model": "a", "special_tokens": ("b",)}, "cannot be added"),
        ("SentencePieceTokenizer", {"tokenizer_model": "a", "sentencepiece_ignores_white_space": False}, "white space"),
        ("NullTokenizer", {}, "needs --vocab-size"),
        ("NullTokenizer", {"vocab_size": 5, "tokenizer_model": "a"}, "does not read --tokenizer-model"),
        ("TikTokenizer", {"tokenizer_model": "a", "tiktoken_pattern": "v3"}, "v1 or v2"),
        ("TikTokenizer", {"tokenizer_model": "a", "special_tokens": ("<unk>",)}, "missing: <s>, </s>"),
        ("TikTokenizer", {"tokenizer_model": "a", "tiktoken_num_special_tokens": 3}, "=3, .*=131072, got 7 tokens"),
    ],
)
def test_wrong_options_of_the_reference(name, more, words):
    with pytest.raises(ConfigError, match=words):
        load_reference_tokenizer(options(name, **more))


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("bad.json", "is not a list of tokens"),
        ("unranked.json", "ranks are not 0"),
        ("tokens.json", "has 261 tokens, expected at least 130072"),
        ("vocab.txt", "is not a list"),
    ],
)
def test_lists_for_tiktoken_that_are_none_are_refused(reference_files, file, words):
    with pytest.raises(TokenizerError, match=words):
        load_reference_tokenizer(options("TikTokenizer", tokenizer_model=reference_files[file]))


@pytest.mark.slow
@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("pattern", ["v1", "v2"])
def test_tiktoken_gives_the_references_ids(reference_files, pattern):
    from megatron.core.tokenizers.text.libraries.tiktoken_tokenizer import TikTokenTokenizer

    theirs = TikTokenTokenizer(reference_files["tokens.json"], num_special_tokens=9, pattern=pattern, vocab_size=265)
    more = {"tiktoken_pattern": pattern, "tiktoken_num_special_tokens": 9, "vocab_size": 265}
    ours = load_reference_tokenizer(options("TikTokenizer", tokenizer_model=reference_files["tokens.json"], **more))
    assert isinstance(ours, TiktokenTokenizer)
    assert ours.pattern == REFERENCE_PATTERNS[pattern]
    assert [ours.tokenize(text) for text in PEER_TEXTS] == [list(theirs.text_to_ids(text)) for text in PEER_TEXTS]
    assert (ours.vocab_size, ours.eod, ours.bos, ours.pad) == (265, theirs.eod, theirs.bos_id, theirs.pad_id)


@pytest.mark.slow
@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")
def test_other_types_give_the_references_ids(reference_files):
    from megatron.core.tokenizers.text.libraries.null_tokenizer import NullTokenizer
    from megatron.core.tokenizers.text.libraries.sentencepiece_tokenizer import SentencePieceTokenizer

    theirs = SentencePieceTokenizer(reference_files["words.model"])
    ours = load_reference_tokenizer(options("SentencePieceTokenizer", tokenizer_model=reference_files["words.model"]))
    assert [ours.tokenize(text) for text in PEER_TEXTS] == [theirs.text_to_ids(text) for text in PEER_TEXTS]
    assert (ours.vocab_size, ours.eod) == (theirs.vocab_size, theirs.eos_id)
    is_old = reference_version() < (0, 17)
    null = load_reference_tokenizer(options("NullTokenizer", vocab_size=50), null_has_own_eod=is_old)
    their_null = NullTokenizer(50)
    assert null.tokenize("1 49") == their_null.text_to_ids("1 49")
    assert (null.vocab_size, null.eod) == (their_null.vocab_size, their_null.eod)
