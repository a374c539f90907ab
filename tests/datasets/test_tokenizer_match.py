"""Which tokenizers may read data: the one that the manifest names, and those that cannot be known to be wrong."""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest
from tests.datasets.conversations import ANSWER, PROMPT, conversation, write_conversations
from tests.indexed.manifest.manifests import SHA256, make_manifest, make_tokenizer_identity, write_recorded
from tests.support import (
    MASKING,
    StandInTokenizer,
    StandInWordPieces,
    make_config,
    make_dataset,
    write_corpus,
    write_sentences,
)

from tokenloom import (
    AccessDeniedError,
    BERTMaskedWordPieceDataset,
    BERTMaskedWordPieceDatasetConfig,
    BlendedMegatronDatasetBuilder,
    DatasetFormatError,
    GPTDataset,
    IndexedDataset,
    ObjectStorageSettings,
    SFTDataset,
    SFTDatasetConfig,
    Split,
    T5MaskedWordPieceDataset,
    T5MaskedWordPieceDatasetConfig,
    TokenizerError,
    TokenizerMismatchWarning,
    VarlenDataset,
    VarlenDatasetConfig,
    verify_dataset,
)
from tokenloom.indexed.manifest import file as manifest_file
from tokenloom.indexed.manifest.contents import DocumentLedger
from tokenloom.indexed.manifest.file import manifest_path, read_manifest_head, write_manifest
from tokenloom.indexed.tally import PairTally

OTHER = "cd" * 32
CORPUS = [[[10, 11, 12], [13, 9]], [[14, 9]]]


def fingerprinted(tokenizer, sha256=SHA256):
    tokenizer.sha256 = sha256
    return tokenizer


def record(prefix, **changes):
    """Writes the manifest that a pair without one should have."""
    data = IndexedDataset(prefix)
    tally = PairTally(data.dtype)
    tally.add_tokens(data.bin_reader.read(0, data.bin_reader.num_bytes).data)
    tally.read_index(data.index_source())
    pair = tally.facts(data.index.header, data.sequence_lengths)
    ledger = DocumentLedger(num_read=pair.num_documents, num_kept=pair.num_documents)
    write_manifest(prefix, make_manifest(**{"pair": pair, "ledger": ledger} | changes))
    return prefix


@pytest.fixture
def prefix(tmp_path):
    return write_recorded(tmp_path / "corpus", CORPUS)


# --- what is compared ---------------------------------------------------------------------------------------------


def test_the_tokenizer_that_made_the_data_reads_them(prefix):
    assert len(make_dataset(prefix, tokenizer=fingerprinted(StandInTokenizer()))) == 1


def test_another_fingerprint_is_refused_with_both_named(prefix):
    with pytest.raises(TokenizerError) as caught:
        make_dataset(prefix, tokenizer=fingerprinted(StandInTokenizer(vocab_size=120), OTHER))
    assert caught.value.message == (
        f"`{prefix}`: expected the tokenizer that made the data, word-level `words/tokenizer.json` "
        "(sha256 abababababab…, 100 ids, eod 9), found StandInTokenizer (sha256 cdcdcdcdcdcd…, 120 ids, eod 9)"
    )
    assert caught.value.hint == (
        "use that one, or tokenize the data again; `allow_tokenizer_mismatch=True` reads them all the same"
    )


def test_a_fingerprint_among_the_identifiers_counts(prefix):
    tokenizer = StandInTokenizer()
    tokenizer.unique_identifiers["sha256"] = OTHER
    with pytest.raises(TokenizerError, match="expected the tokenizer that made the data"):
        make_dataset(prefix, tokenizer=tokenizer)
    tokenizer.unique_identifiers["sha256"] = SHA256
    make_dataset(prefix, tokenizer=tokenizer)


@pytest.mark.parametrize("tokenizer", [StandInTokenizer(eod=8), fingerprinted(StandInTokenizer(eod=8))])
def test_another_end_of_documents_is_refused(prefix, tokenizer):
    with pytest.raises(TokenizerError, match=r"eod 9\), found StandInTokenizer \(.*100 ids, eod 8\)"):
        make_dataset(prefix, tokenizer=tokenizer)


def test_without_a_fingerprint_all_ids_must_exist(prefix):
    make_dataset(prefix, tokenizer=StandInTokenizer(vocab_size=15))
    with pytest.raises(TokenizerError, match=r"found StandInTokenizer \(14 ids, eod 9\), which has no id 14"):
        make_dataset(prefix, tokenizer=StandInTokenizer(vocab_size=14))


class Peer:
    """A tokenizer as Megatron has them, told apart by a path; asking for a role that it lacks raises."""

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
        Peer(vocab_size=50_000, eod=9),
        Peer(vocab_size=None),
        Peer(vocab_size=np.int64(15), sha256=None),
        Peer(vocab_size=100, sha256="not a fingerprint"),
        Peer(vocab_size=100, sha256=b"bytes", path=7),
    ],
    ids=lambda tokenizer: ", ".join(f"{name}={value}" for name, value in vars(tokenizer).items())[-40:],
)
def test_what_cannot_be_known_to_be_wrong_is_accepted(prefix, tokenizer):
    assert len(make_dataset(prefix, tokenizer=tokenizer)) == 1


def test_data_without_an_end_of_documents_take_any(tmp_path):
    prefix = write_recorded(tmp_path / "corpus", CORPUS, tokenizer=make_tokenizer_identity(eod=None))
    make_dataset(prefix, tokenizer=fingerprinted(StandInTokenizer(eod=8)))


def test_data_of_a_tokenizer_without_a_fingerprint_are_compared_by_their_ids(tmp_path):
    unknown = make_tokenizer_identity(sha256=None)
    prefix = write_recorded(tmp_path / "corpus", CORPUS, tokenizer=unknown)
    make_dataset(prefix, tokenizer=fingerprinted(StandInTokenizer(), OTHER))
    with pytest.raises(TokenizerError, match="which has no id 14"):
        make_dataset(prefix, tokenizer=fingerprinted(StandInTokenizer(vocab_size=14), OTHER))


# --- without a manifest -------------------------------------------------------------------------------------------


def test_data_without_a_manifest_are_read_by_any_tokenizer(tmp_path):
    prefix = write_corpus(tmp_path / "corpus", [[1] * 10])
    for vocab_size in (2, 65_500, 65_536, None):
        make_dataset(prefix, tokenizer=fingerprinted(StandInTokenizer(vocab_size=vocab_size), OTHER))
    wide = write_corpus(tmp_path / "wide", [[1] * 10], dtype=np.int32)
    for vocab_size in (2, 200_000):
        make_dataset(wide, tokenizer=StandInTokenizer(vocab_size=vocab_size))


def test_ids_that_the_data_have_no_room_for_are_worth_a_warning_once(tmp_path):
    prefixes = [write_corpus(tmp_path / name, [[1] * 10]) for name in "ab"]
    config = make_config(None, tokenizer=StandInTokenizer(vocab_size=65_537), blend=(prefixes, None), split="1")
    with pytest.warns(TokenizerMismatchWarning) as caught:
        BlendedMegatronDatasetBuilder(GPTDataset, [None] * 3, lambda: True, config).build()
    assert [str(each.message) for each in caught] == [
        f"`{prefixes[0]}` holds uint16 tokens, in which the tokenizer's 65537 ids have no room; "
        "was it made with another tokenizer?"
    ]


# --- on purpose ---------------------------------------------------------------------------------------------------


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
        f"`{prefixes[0]}` and others were made with {wrong.describe()}, but are read with "
        "StandInTokenizer (sha256 abababababab…, 100 ids, eod 9), as allowed"
    ]
    assert sorted(os.listdir(tmp_path / "cache")) == files  # the same keys: nothing was built again
    assert [allowed.sample(k)["tokens"].tolist() for k in range(len(allowed))] == [
        right.sample(k)["tokens"].tolist() for k in range(len(right))
    ]


# --- every class --------------------------------------------------------------------------------------------------

PIECES = {"blend": None, "split": "1,0,0", "sequence_length": 12}
PLAIN = {"random_seed": 1, "split": "1,0,0", "sequence_length": 8}
CLASSES = {
    "gpt": (GPTDataset, lambda **settings: make_config(None, **{**settings, "split": "1,0,0"}), StandInTokenizer),
    "bert": (
        BERTMaskedWordPieceDataset,
        lambda **settings: BERTMaskedWordPieceDatasetConfig(**MASKING, **PIECES | settings, classification_head=False),
        StandInWordPieces,
    ),
    "t5": (
        T5MaskedWordPieceDataset,
        lambda **settings: T5MaskedWordPieceDatasetConfig(**MASKING, **PIECES | settings, sequence_length_decoder=20),
        StandInWordPieces,
    ),
    "sft": (SFTDataset, lambda **settings: SFTDatasetConfig(**PLAIN, **settings), lambda: StandInTokenizer(pad=7)),
    "varlen": (
        VarlenDataset,
        lambda **settings: VarlenDatasetConfig(**PLAIN, **settings),
        lambda: StandInTokenizer(pad=7),
    ),
}


@pytest.mark.parametrize("kind", CLASSES)
def test_every_class_refuses_and_may_be_told_not_to(tmp_path, kind):
    cls, make, tokenizer = CLASSES[kind]
    turns = conversation((PROMPT, [11, 12]), (ANSWER, [13, 9]))
    prefixes = [
        record(write_conversations(tmp_path / name, [turns] * 3, tokenizer_sha256=SHA256)) for name in ("a", "b")
    ]

    def build(sha256, **changes):
        config = make(
            tokenizer=fingerprinted(tokenizer(), sha256),
            blend=(prefixes, [1.0, 2.0]),
            path_to_cache=str(tmp_path / "cache"),
            **changes,
        )
        return BlendedMegatronDatasetBuilder(cls, [2, 0, 0], lambda: True, config).build()[0]

    with pytest.raises(TokenizerError, match=f"`{prefixes[0]}`: expected the tokenizer that made the data"):
        build(OTHER)
    assert not (tmp_path / "cache").exists()
    with pytest.warns(TokenizerMismatchWarning, match="as allowed"):
        assert build(OTHER, allow_tokenizer_mismatch=True) is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error", TokenizerMismatchWarning)
        assert build(SHA256) is not None


def test_the_last_of_a_blend_is_refused_before_the_first_is_built(tmp_path):
    prefixes = [write_recorded(tmp_path / name, CORPUS) for name in "abc"]
    record(prefixes[2], tokenizer=make_tokenizer_identity(sha256=OTHER))
    config = make_config(
        None,
        tokenizer=fingerprinted(StandInTokenizer()),
        blend=([f"{prefix}.bin" if prefix.endswith("c") else prefix for prefix in prefixes], None),
        split="1",
        path_to_cache=str(tmp_path / "cache"),
    )
    with pytest.raises(TokenizerError, match=r"c\.bin`: expected the tokenizer that made the data"):
        BlendedMegatronDatasetBuilder(GPTDataset, [None] * 3, lambda: True, config).build()
    assert not (tmp_path / "cache").exists()


def test_a_manifest_of_other_data_is_refused(tmp_path, prefix):
    other = write_recorded(tmp_path / "other", [[[1, 2]]])
    os.replace(manifest_path(other), manifest_path(prefix))
    with pytest.raises(DatasetFormatError, match="was written for another pair than the one that is there"):
        make_dataset(prefix)


def test_a_damaged_manifest_is_refused(prefix):
    os.truncate(manifest_path(prefix), 300)
    with pytest.raises(DatasetFormatError, match=r"corpus\.manifest\.json`: expected JSON"):
        make_dataset(prefix)


# --- what it costs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recorded", [True, False])
def test_a_start_opens_a_manifest_once_for_all_splits(tmp_path, monkeypatch, recorded):
    write = write_recorded if recorded else write_sentences
    prefixes = [write(tmp_path / name, CORPUS * 9) for name in "ab"]
    config = make_config(
        None, blend=(prefixes, None), split="1,1,1", path_to_cache=str(tmp_path / "cache"), sequence_length=2
    )

    def build():
        return BlendedMegatronDatasetBuilder(GPTDataset, [None] * 3, lambda: True, config).build()

    build()
    opened = []
    real_open = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest, **more: opened.append(path) or real_open(path, *rest, **more))
    assert len(build()) == 3
    assert [path for path in opened if str(path).endswith(".json")] == [manifest_path(prefix) for prefix in prefixes]


# --- object storage -----------------------------------------------------------------------------------------------

STORAGE = ObjectStorageSettings(timeout_seconds=10, deadline_seconds=60)


def put_pair(bucket, prefix):
    address = bucket.put_pair(prefix, "data/corpus")
    if os.path.exists(manifest_path(prefix)):
        with open(manifest_path(prefix), "rb") as stream:
            bucket.put("data/corpus.manifest.json", stream.read())
    return address


def open_remote(address, tokenizer):
    config = make_config(None, tokenizer=tokenizer, object_storage=STORAGE)
    data = IndexedDataset(address, object_storage=STORAGE)
    return GPTDataset(data, address, np.arange(len(data), dtype=np.int32), None, Split.train, config)


def num_requests(bucket, work):
    """Returns how many requests some work makes."""
    before = bucket.proxy.counts["GET"] + bucket.proxy.counts["HEAD"]
    work()
    return bucket.proxy.counts["GET"] + bucket.proxy.counts["HEAD"] - before


@pytest.mark.parametrize("recorded", [True, False])
def test_a_node_asks_object_storage_for_a_manifest_once(tmp_path, bucket, recorded):
    prefix = (write_recorded if recorded else write_sentences)(tmp_path / "corpus", CORPUS)
    address = put_pair(bucket, prefix)
    right = fingerprinted(StandInTokenizer())
    alone = num_requests(bucket, lambda: IndexedDataset(address, object_storage=STORAGE))
    warm = num_requests(bucket, lambda: IndexedDataset(address, object_storage=STORAGE))
    assert num_requests(bucket, lambda: open_remote(address, right)) == warm + (2 if recorded else 1)
    for _ in range(2):
        assert num_requests(bucket, lambda: open_remote(address, right)) == warm < alone
    if recorded:
        with pytest.raises(TokenizerError, match=r"`s3://.*/data/corpus`: expected the tokenizer that made the data"):
            open_remote(address, fingerprinted(StandInTokenizer(), OTHER))


def test_a_new_version_in_object_storage_has_its_own_manifest(tmp_path, bucket, prefix):
    address = put_pair(bucket, prefix)
    open_remote(address, fingerprinted(StandInTokenizer()))
    longer = write_recorded(tmp_path / "longer", [*CORPUS, *CORPUS], tokenizer=make_tokenizer_identity(sha256=OTHER))
    put_pair(bucket, longer)
    open_remote(address, fingerprinted(StandInTokenizer(), OTHER))
    with pytest.raises(TokenizerError):
        open_remote(address, fingerprinted(StandInTokenizer()))


def test_pairs_are_written_to_object_storage_with_their_manifest(bucket):
    address = write_recorded(bucket.url("out/corpus"), CORPUS)
    assert sorted(bucket.keys()) == [f"out/corpus.{end}" for end in ("bin", "idx", "manifest.json")]
    assert verify_dataset(address).problems == ()
    assert read_manifest_head(address).tokenizer == make_tokenizer_identity()
    write_sentences(address, CORPUS)  # by a writer that has nothing to record
    assert sorted(bucket.keys()) == [f"out/corpus.{end}" for end in ("bin", "idx")]


def denied(*_, **__):
    """Answers as a store does to those who may not list: what is missing is forbidden."""
    message = "access was denied"
    raise AccessDeniedError(message)


def test_a_store_that_denies_what_is_missing_has_no_manifest(tmp_path, bucket, monkeypatch, caplog):
    address = put_pair(bucket, write_sentences(tmp_path / "corpus", CORPUS))
    monkeypatch.setattr(manifest_file, "read_start", denied)
    with caplog.at_level("INFO"):
        assert len(open_remote(address, fingerprinted(StandInTokenizer()))) == 1
    assert f"no manifest of `{address}` to read: access is denied" in caplog.text
