"""The kind of data and the tokenizer that each dataset class expects, checked against the manifest."""

import os
import warnings

import numpy as np
import pytest
from tests.datasets.conversations import ANSWER, PROMPT, conversation, write_conversations
from tests.datasets.masked import make_dataset as make_masked
from tests.indexed.manifest.manifests import (
    SHA256,
    make_manifest,
    make_tokenizer_identity,
    write_manifest,
    write_recorded,
)
from tests.support import MASKING, StandInTokenizer, StandInWordPieces, make_config, make_dataset, write_corpus

from tokenloom import (
    BlendedMegatronDatasetBuilder,
    ConfigError,
    DataMismatchWarning,
    GPTDataset,
    IndexedDataset,
    IndexedDatasetBuilder,
    MissingEodWarning,
    SFTDataset,
    SFTDatasetConfig,
    T5MaskedWordPieceDataset,
    T5MaskedWordPieceDatasetConfig,
    TokenizerError,
    TokenizerMismatchWarning,
)
from tokenloom.indexed.manifests import DocumentLedger, manifest_path, pair_facts

CORPUS = [[[10, 11, 12], [13, 9]], [[14, 9]]]
CHAT = {"schema": "messages", "chat_template": {"name": "default", "sha256": "ab"}}
KINDS = {
    "single sentences": {"split_sentences": True},
    "conversations": CHAT,
    "text and images": {"text_key": None, "image_key": None, "pad_length": None},
}


@pytest.fixture
def images(tmp_path):
    with IndexedDatasetBuilder(f"{tmp_path / 'images'}.bin", dtype=np.int32, multimodal=True) as builder:
        builder.add_item(np.array([1, 2], dtype=np.int32), 0)
        builder.add_item(np.array([3, 1, 2], dtype=np.int32), 1)
        builder.end_document()
        builder.finalize(f"{tmp_path / 'images'}.idx")
    return str(tmp_path / "images")


@pytest.mark.parametrize(("kind", "options"), KINDS.items())
def test_other_data_are_no_documents(tmp_path, kind, options):
    prefix = write_recorded(tmp_path / "corpus", CORPUS, options=options)
    message = f"^`{prefix}`: expected whole documents, found {kind}\nhint: .*set `allow_data_mismatch=True`"
    with pytest.raises(ConfigError, match=message):
        make_dataset(prefix)
    with pytest.warns(DataMismatchWarning, match=f"expected whole documents, found {kind}"):
        make_dataset(prefix, allow_data_mismatch=True)


@pytest.mark.parametrize("options", [{}, {"split_sentences": False}, {"split_sentences": {"several": [True, False]}}])
def test_documents_and_what_cannot_be_told_are_read(tmp_path, options):
    assert len(make_dataset(write_recorded(tmp_path / "corpus", CORPUS, options=options)))


@pytest.mark.parametrize(("options", "error"), [(CHAT, ConfigError), ({"split_sentences": False}, DataMismatchWarning)])
def test_other_data_are_no_sentences(tmp_path, options, error):
    prefix = write_recorded(tmp_path / "corpus", CORPUS, options=options)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataMismatchWarning)
        with pytest.raises(error, match="expected single sentences, found "):
            make_masked("t5", prefix, allow_tokenizer_mismatch=True)


@pytest.mark.parametrize("setting", ["reset_position_ids", "eod_mask_loss"])
def test_settings_that_look_for_eod_warn_where_there_is_none(tmp_path, setting):
    prefix = write_recorded(tmp_path / "corpus", CORPUS, tokenizer=make_tokenizer_identity(eod=None))
    message = f"^`{prefix}`: `{setting}` need end-of-document tokens, but the data were made without"
    with pytest.warns(MissingEodWarning, match=message):
        dataset = make_dataset(prefix, **{setting: True})
    assert len(make_dataset(prefix)) == len(dataset)


OTHER = "cd" * 32


def fingerprinted(tokenizer, sha256=SHA256):
    tokenizer.sha256 = sha256
    return tokenizer


def record(prefix, **changes):
    """Writes a manifest for a pair without one."""
    data = IndexedDataset(prefix)
    pair = pair_facts(data)
    ledger = DocumentLedger(num_read=pair.num_documents, num_kept=pair.num_documents)
    write_manifest(prefix, make_manifest(**{"pair": pair, "ledger": ledger} | changes))
    return prefix


@pytest.fixture
def prefix(tmp_path):
    return write_recorded(tmp_path / "corpus", CORPUS)


def test_the_tokenizer_that_made_the_data_reads_them_and_another_is_refused_with_both_named(prefix):
    assert len(make_dataset(prefix, tokenizer=fingerprinted(StandInTokenizer()))) == 1
    with pytest.raises(TokenizerError) as caught:
        make_dataset(prefix, tokenizer=fingerprinted(StandInTokenizer(vocab_size=120), OTHER))
    assert caught.value.message == (
        f"`{prefix}`: expected the tokenizer that made the data, word-level `words/tokenizer.json` "
        "(sha256 abababababab…, 100 ids, eod 9), found StandInTokenizer (sha256 cdcdcdcdcdcd…, 120 ids, eod 9)"
    )
    hint = "pass the expected tokenizer, or tokenize the data again, or set `allow_tokenizer_mismatch=True`"
    assert caught.value.hint == hint


@pytest.mark.parametrize("tokenizer", [StandInTokenizer(eod=8), fingerprinted(StandInTokenizer(eod=8))])
def test_another_end_of_documents_is_refused(prefix, tokenizer):
    with pytest.raises(TokenizerError, match=r"eod 9\), found StandInTokenizer \(.*100 ids, eod 8\)"):
        make_dataset(prefix, tokenizer=tokenizer)


def test_without_a_fingerprint_all_ids_must_exist(prefix):
    make_dataset(prefix, tokenizer=StandInTokenizer(vocab_size=15))
    with pytest.raises(TokenizerError, match=r"found StandInTokenizer \(14 ids, eod 9\), which has no id 14"):
        make_dataset(prefix, tokenizer=StandInTokenizer(vocab_size=14))


class Peer:
    """A Megatron tokenizer, identified by its path; missing special ids raise."""

    def __init__(self, **attributes):
        self.unique_identifiers = {"class": "peer", "tokenizer_path": ["somewhere"]}
        for name, value in attributes.items():
            setattr(self, name, value)

    def __getattr__(self, name):
        raise NotImplementedError(name)


@pytest.mark.parametrize(
    "tokenizer",
    [
        Peer(vocab_size=100),
        Peer(vocab_size=None),
        Peer(vocab_size=np.int64(15), sha256=None),
        Peer(vocab_size=100, sha256=b"bytes", path=7),
    ],
    ids=lambda tokenizer: ", ".join(f"{name}={value}" for name, value in vars(tokenizer).items())[-40:],
)
def test_what_cannot_be_known_to_be_wrong_is_accepted(prefix, tokenizer):
    assert len(make_dataset(prefix, tokenizer=tokenizer)) == 1


def test_ids_that_the_data_have_no_room_for_are_worth_a_warning_once(tmp_path):
    prefixes = [write_corpus(tmp_path / name, [[1] * 10]) for name in "ab"]
    config = make_config(None, tokenizer=StandInTokenizer(vocab_size=65_537), blend=(prefixes, None), split="1")
    with pytest.warns(TokenizerMismatchWarning) as caught:
        BlendedMegatronDatasetBuilder(GPTDataset, [None] * 3, lambda: True, config).build()
    (said,) = (str(each.message) for each in caught)
    assert (
        said == f"`{prefixes[0]}`: the tokenizer's 65537 ids do not fit into uint16 tokens; was another tokenizer used?"
    )


def test_another_tokenizer_may_be_allowed_and_changes_nothing(tmp_path):
    prefixes = [write_recorded(tmp_path / name, CORPUS) for name in ("a", "b")]

    def build(**changes):
        config = make_config(None, blend=(prefixes, None), split="1", path_to_cache=str(tmp_path / "cache"), **changes)
        return BlendedMegatronDatasetBuilder(GPTDataset, [None] * 3, lambda: True, config).build()[0]

    right = build(tokenizer=StandInTokenizer())
    files = sorted(os.listdir(tmp_path / "cache"))
    wrong = make_tokenizer_identity(sha256=OTHER)
    for prefix in prefixes:
        os.unlink(manifest_path(prefix))
        record(prefix, tokenizer=wrong)
    tokenizer = fingerprinted(StandInTokenizer())
    with pytest.raises(TokenizerError):
        build(tokenizer=tokenizer)
    with pytest.warns(TokenizerMismatchWarning) as caught:
        allowed = build(tokenizer=tokenizer, allow_tokenizer_mismatch=True)
    assert [str(each.message) for each in caught] == [
        f"`{prefixes[0]}`: tokenized by {wrong.describe()}, read with "
        "StandInTokenizer (sha256 abababababab…, 100 ids, eod 9), as `allow_tokenizer_mismatch` is set"
    ]
    assert sorted(os.listdir(tmp_path / "cache")) == files  # the same cache keys: no index was rebuilt
    found, expected = ([each.sample(k)["tokens"].tolist() for k in range(len(each))] for each in (allowed, right))
    assert found == expected


PIECES = {"blend": None, "split": "1,0,0", "sequence_length": 12}
PLAIN = {"random_seed": 1, "split": "1,0,0", "sequence_length": 8}
CLASSES = {
    "gpt": (GPTDataset, lambda **settings: make_config(None, **{**settings, "split": "1,0,0"}), StandInTokenizer),
    "t5": (
        T5MaskedWordPieceDataset,
        lambda **settings: T5MaskedWordPieceDatasetConfig(**MASKING, **PIECES | settings, sequence_length_decoder=20),
        StandInWordPieces,
    ),
    "sft": (SFTDataset, lambda **settings: SFTDatasetConfig(**PLAIN, **settings), lambda: StandInTokenizer(pad=7)),
}


@pytest.mark.parametrize("kind", CLASSES)
def test_every_class_refuses_and_may_be_told_not_to(tmp_path, kind):
    cls, make, tokenizer = CLASSES[kind]
    turns = conversation((PROMPT, [11, 12]), (ANSWER, [13, 9]))
    prefixes = [write_conversations(tmp_path / name, [turns] * 3, tokenizer_sha256=SHA256) for name in ("a", "b")]
    for prefix in prefixes:
        record(prefix)

    def build(sha256, **changes):
        settings = {"blend": (prefixes, [1.0, 2.0]), "path_to_cache": str(tmp_path / "cache")}
        config = make(tokenizer=fingerprinted(tokenizer(), sha256), **settings, **changes)
        return BlendedMegatronDatasetBuilder(cls, [2, 0, 0], lambda: True, config).build()[0]

    with pytest.raises(TokenizerError, match=f"`{prefixes[0]}`: expected the tokenizer that made the data"):
        build(OTHER)
    assert not (tmp_path / "cache").exists()
    with pytest.warns(TokenizerMismatchWarning, match="as `allow_tokenizer_mismatch` is set"):
        assert build(OTHER, allow_tokenizer_mismatch=True) is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error", TokenizerMismatchWarning)
        assert build(SHA256) is not None
