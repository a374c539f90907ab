"""Fill in the middle: reversible texts, document boundaries, and random draws that depend only on the position."""

import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import support
from tests.datasets.everywhere import check_everywhere
from tests.datasets.fim import EOD, MIDDLE, PREFIX, SPLIT, SUFFIX, CharacterTokenizer
from tests.order.computed import InOrder
from tests.preprocess.corpus import byte_level_json, make_tokenizer
from tests.support import StandInTokenizer, equal_samples, make_dataset, write_corpus

from tokenloom.datasets.fim import GPTFIMDataset, GPTFIMDatasetConfig
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError, TokenizerError
from tokenloom.indexed.dataset import IndexedDataset

EXTRA_TOKENS = {"prefix": "<pre>", "middle": "<mid>", "suffix": "<suf>"}
TEXTS = ["def first(): return 1", "x", "", "class Second: pass", "while True: print('naïve')", "end"]


@pytest.fixture
def prefix(tmp_path):
    return write_corpus(tmp_path / "corpus", [[*map(ord, text), EOD] if text else [] for text in TEXTS])


def make_config(prefix, **changes):
    settings = {"random_seed": 1234, "sequence_length": 200, "split": "1", "tokenizer": CharacterTokenizer()}
    settings |= {"fim_rate": 1.0, "fim_spm_rate": 0.5, "fim_extra_tokens": EXTRA_TOKENS, "window_policy": "best_fit"}
    return support.make_config(prefix, kind=GPTFIMDatasetConfig, **(settings | changes))


def make_fim(prefix, *, num_samples=None, **changes):
    config = make_config(prefix, **changes)
    data = IndexedDataset(prefix, mmap=config.mmap_bin_files)
    return GPTFIMDataset(data, prefix, np.arange(len(data), dtype=np.int32), num_samples, Split.train, config)


def documents_in(tokens):
    """Splits a sample after its end-of-document tokens; trailing zeros count as one end."""
    tokens = tokens[: np.flatnonzero(tokens)[-1] + 2]
    return [part[part != EOD].tolist() for part in np.split(tokens, np.flatnonzero(tokens == EOD) + 1)[:-1]]


def undone(ids):
    """Returns (order, text) of one rearranged document."""
    first, middle = ids[0], ids.index(MIDDLE)
    assert first == PREFIX
    suffix = ids.index(SUFFIX)
    if suffix == 1:  # the prefix and the middle follow the middle token
        return "spm", ids[middle + 1 :] + ids[2:middle]
    return "psm", ids[1:suffix] + ids[middle + 1 :] + ids[suffix + 1 : middle]


@pytest.mark.parametrize(("spm_rate", "share", "mmap"), [(0.0, 0.7, True), (0.5, 0.35, False), (1.0, 0.0, True)])
def test_every_document_is_rearranged_and_can_be_undone(prefix, spm_rate, share, mmap):
    dataset = make_fim(prefix, fim_spm_rate=spm_rate, mmap_bin_files=mmap, num_samples=20)
    orders = []
    for k in range(20):
        tokens = dataset.sample(k)["tokens"]
        found = [undone(ids) for ids in documents_in(tokens)]
        orders += [order for order, _ in found]
        texts = ["".join(map(chr, ids)) for _, ids in found]
        assert texts == [TEXTS[document] for document in dataset.spans(k).documents]
    # With an empty prefix (three of ten of these texts) both orders are equal and count as "spm".
    assert abs(orders.count("psm") / len(orders) - share) <= 0.1


def test_boundaries_and_padding_follow_the_documents(prefix):
    dataset = make_fim(prefix, inter_document_masking=True)
    assert len(dataset) == 1
    sample, spans = dataset.sample(0), dataset.spans(0)
    ends = np.cumsum(spans.lengths + 3)
    assert sample["cu_seqlens"].tolist() == [0, *ends[:-1], *[200] * (201 - len(ends))]
    for start, stop in zip([0, *ends[:-1]], ends, strict=True):
        assert sample["tokens"][start] == PREFIX
        assert sample["tokens"][stop - 1] == EOD
        assert sample["position_ids"][start] == 0
    assert sample["loss_mask"].tolist() == [1.0] * (ends[-1] - 1) + [0.0] * (201 - ends[-1])
    assert not sample["tokens"][ends[-1] :].any()


@pytest.mark.parametrize("extra", [True, False])
def test_what_no_longer_fits_is_cut_off_at_the_end(prefix, extra):
    settings = {"window_policy": "concat", "inter_document_masking": True, "add_extra_token_to_sequence": extra}
    dataset = make_fim(prefix, sequence_length=24, **settings)
    for k in range(len(dataset)):
        sample = dataset.sample(k)
        assert sample["tokens"].shape == (24,)
        assert sample["tokens"][0] == PREFIX or dataset.spans(k).lengths[0] == 1
        assert sample["loss_mask"].tolist() == [1.0] * 23 + [float(extra)]
        starts = sample["cu_seqlens"][: int(np.argmax(sample["cu_seqlens"] == 24))]
        assert all(sample["tokens"][start - 1] == EOD for start in starts if start > 0)
        assert sample["tokens"][1:].tolist() == sample["labels"][:-1].tolist()


def test_texts_with_the_unwanted_prefix_are_left_alone(prefix):
    dataset = make_fim(prefix, fim_no_prefix="class")
    found = documents_in(dataset.sample(0)["tokens"])
    left = ["".join(map(chr, ids)) for ids in found if PREFIX not in ids]
    assert left == ["class Second: pass"]


def test_fragments_are_rearranged_by_themselves(tmp_path):
    files = ["import os", "import sys", "print()"]
    document = [token for text in files for token in (*map(ord, text), SPLIT)]
    document[-1] = EOD
    prefix = write_corpus(tmp_path / "repository", [document, [*map(ord, "alone"), EOD]])
    options = {"fim_split_sample": "<file>", "sequence_length": 100}
    sample = make_fim(prefix, fim_fragment_rate=1.0, **options).sample(0)
    found = documents_in(sample["tokens"])
    repository = max(found, key=len)
    assert repository.count(SPLIT) == 2
    cuts = np.flatnonzero(np.equal(repository, SPLIT))
    fragments = [part[part != SPLIT].tolist() for part in np.split(repository, cuts)]
    assert ["".join(map(chr, undone(part)[1])) for part in fragments] == files
    assert "".join(map(chr, undone(min(found, key=len))[1])) == "alone"
    untouched = make_fim(prefix, fim_fragment_rate=0.0, **options).sample(0)
    assert max(documents_in(untouched["tokens"]), key=len) == document[:-1]


@pytest.mark.parametrize(("policy", "masking"), [("concat", False), ("best_fit", True)])
def test_a_rate_of_zero_gives_the_samples_of_gpt(prefix, policy, masking):
    options = {"sequence_length": 16, "window_policy": policy, "inter_document_masking": masking}
    dataset = make_fim(prefix, fim_rate=0.0, num_samples=30, **options)
    plain = make_dataset(prefix, num_samples=30, random_seed=1234, tokenizer=CharacterTokenizer(), **options)
    assert equal_samples(dataset.batch(range(len(dataset))), plain.batch(range(len(plain))))
    # A rate just above 0 selects no document either, but runs the whole transformation.
    nearly = make_fim(prefix, fim_rate=1e-300, num_samples=30, **options)
    assert equal_samples(nearly.batch(range(len(nearly))), plain.batch(range(len(plain))))


def test_a_sample_follows_from_its_position_alone(prefix, tmp_path, rng):
    options = {"sequence_length": 40, "window_policy": "concat", "fim_rate": 0.7, "num_samples": 60}
    dataset = make_fim(prefix, path_to_cache=str(tmp_path / "cache"), **options)
    again = make_fim(prefix, path_to_cache=str(tmp_path / "cache"), defer_npy_index_mmap=True, **options)
    check_everywhere(dataset, rng.permutation(len(dataset)).tolist(), again)
    other = make_fim(prefix, random_seed=5, **options)
    assert any(not equal_samples(other.sample(k), dataset.sample(k)) for k in range(10))


@given(
    texts=st.lists(st.text(st.characters(codec="ascii", min_codepoint=32), max_size=40), min_size=1, max_size=6),
    length=st.integers(1, 60),
    extra=st.booleans(),
    rate=st.floats(0, 1),
)
def test_lengths_hold_for_any_texts(tmp_path_factory, texts, length, extra, rate):
    prefix = write_corpus(tmp_path_factory.mktemp("fim") / "corpus", [[*map(ord, text), EOD] for text in texts])
    settings = {"fim_rate": rate, "add_extra_token_to_sequence": extra, "inter_document_masking": True}
    dataset = make_fim(prefix, sequence_length=length, num_samples=10, path_to_cache=None, **settings)
    batch = dataset.batch(range(len(dataset)))
    assert batch["tokens"].shape == (len(dataset), length)
    starts = np.diff(batch["cu_seqlens"].astype(int), axis=1)
    assert (starts >= 0).all()
    assert (batch["max_seqlen"] == starts.max(axis=1)).all()


def test_a_real_tokenizer_gives_back_the_text(tmp_path):
    tokenizer = make_tokenizer(byte_level_json())
    texts = ["def first():\n    return 'naïve ✓'\n", "class Second:\n    ...\n"]
    ids = {"prefix": 1000, "middle": 1001, "suffix": 1002}
    tokenizer.vocab_size = 1003
    prefix = write_corpus(tmp_path / "corpus", [[*tokenizer.tokenize(text), tokenizer.eod] for text in texts])
    dataset = make_fim(prefix, tokenizer=tokenizer, fim_extra_tokens=ids, fim_spm_rate=0.0, num_samples=10)
    for k in range(10):
        tokens = dataset.sample(k)["tokens"].tolist()
        for document in dataset.spans(k).documents:
            end = tokens.index(tokenizer.eod)
            middle, suffix = tokens.index(1001), tokens.index(1002)
            parts = tokens[1:suffix], tokens[middle + 1 : end], tokens[suffix + 1 : middle]
            assert "".join(map(tokenizer.detokenize, parts)) == texts[document]
            tokens = tokens[end + 1 :]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fim_rate": None}, "`fim_rate`: must be in [0, 1], got None"),
        ({"fim_rate": float("nan")}, "`fim_rate`: must be in [0, 1], got nan"),
        ({"fim_split_sample": "<file>"}, "`fim_fragment_rate`: must be in [0, 1], got None"),
        (
            {"fim_extra_tokens": {"prefix": 1, "suffix": 2}},
            "`fim_extra_tokens`: no token for middle\nhint: add the sentinel tokens of the tokenizer",
        ),
        (
            {"tokenizer": StandInTokenizer()},
            "the tokenizer StandInTokenizer has no `tokenize`\n"
            "hint: pass a tokenizer that can detokenize and tokenize texts",
        ),
    ],
)
def test_wrong_settings_are_named(prefix, changes, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        make_config(prefix, **changes)


@pytest.mark.parametrize("token", ["<unknown>", 1100])
def test_a_token_that_the_tokenizer_lacks_is_named(prefix, token):
    with pytest.raises(TokenizerError, match=f"^the tokenizer has no token {token!r} for 'middle'\nhint: add it"):
        make_fim(prefix, fim_extra_tokens=EXTRA_TOKENS | {"middle": token})


@pytest.mark.parametrize(("window_policy", "mmap_bin_files"), [("concat", True), ("best_fit", False)])
def test_samples_of_a_computed_order_are_the_same_in_any_batch_and_thread(tmp_path, window_policy, mmap_bin_files):
    random = np.random.default_rng(5)
    corpora = [
        [[*map(ord, " ".join(random.choice(TEXTS, size=size))), EOD] for size in random.integers(0, 9, size=count)]
        for count in (60, 1, 30)
    ]
    config = make_config(None, split=None, window_policy=window_policy, mmap_bin_files=mmap_bin_files)
    packed = {"is_packed": window_policy == "best_fit"}
    source, again = (InOrder(GPTFIMDataset, tmp_path, corpora, config, **packed) for _ in range(2))
    windows = np.arange(source.num_windows)
    numbers = np.concatenate([windows, (3 << 40) + windows, ((1 << 22) - 1 << 40) + windows])
    whole = source.batch(numbers)
    assert (whole["tokens"] == MIDDLE).any(axis=1).mean() > 0.8
    orders = [np.random.default_rng(seed).permutation(len(numbers))[:20] for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        parts = pool.map(lambda rows: again.batch(numbers[rows]), orders)
        for order, part in zip(orders, parts, strict=True):
            assert equal_samples(part, {name: array[order] for name, array in whole.items()})
    for row in orders[0][:5].tolist():
        own = {name: array[row] for name, array in whole.items()}
        assert equal_samples(again.dataset.sample(int(numbers[row])), own)
