"""Columns in samples: each value stays with its token in every kind of sample and every way to read samples."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.datasets.conversations import ANSWER, PROMPT, conversation, make_sft, make_varlen, write_conversations
from tests.datasets.fim import CharacterTokenizer
from tests.indexed.pairs import write_pair
from tests.preprocess.corpus import byte_level_json, make_tokenizer
from tests.support import StandInTokenizer, equal_samples, make_config, make_dataset, write_corpus

from tokenloom import (
    ConcatenatedPart,
    IndexedDataset,
    IndexedDatasetBuilder,
    build_catalogue,
    merge_datasets,
    write_concatenated,
)
from tokenloom.blending.blended import BlendedDataset
from tokenloom.datasets.fim import GPTFIMDataset, GPTFIMDatasetConfig
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError, TokenloomError
from tokenloom.indexed.columns import add_column, remove_column

LENGTH = 16
PAD = 7


def write_places(prefix: str | Path, lengths: list[int], *, first: int = 100) -> str:
    """Writes a pair of consecutive token ids, with columns computed from the same ids."""
    count = sum(lengths)
    tokens = np.arange(first, first + count, dtype=np.int32)
    with IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.int32) as builder:
        builder.append_block(tokens, np.array(lengths, dtype=np.int32))
        builder.finalize(f"{prefix}.idx")
    add_column(prefix, "place", [tokens], dtype=np.int32, padding=-1)
    add_column(prefix, "next", [tokens], dtype=np.float64, of="label", padding=-2)
    add_column(prefix, "both", [np.column_stack([tokens, -tokens, tokens % 5])], dtype=np.int64)
    add_column(prefix, "loss_weight", [(tokens % 4 / 2)], dtype=np.float16, of="label", padding=3)
    return str(prefix)


def lengths_of(rng: np.random.Generator, count: int = 40) -> list[int]:
    return [int(length) for length in rng.choice([0, 1, 2, 5, 16, 17, 40], count)]


COLUMNS = ("place", "next", "both", "loss_weight")
PACKS = {"window_policy": "best_fit", "inter_document_masking": True}


def check(batch: dict[str, Any], plain: dict[str, Any], *, is_full: bool = True) -> None:
    """Checks columns against their tokens, and all other arrays against samples without columns."""
    known = plain["tokens"] >= 100
    labelled = plain["labels"] >= 100
    assert known.any() or not is_full
    assert np.array_equal(batch["place"], np.where(known, plain["tokens"], -1))
    assert np.array_equal(batch["next"], np.where(labelled, plain["labels"], -2))
    assert np.array_equal(batch["both"][..., 0], np.where(known, plain["tokens"], 0))
    assert np.array_equal(batch["both"][..., 1], -batch["both"][..., 0])
    assert np.array_equal(batch["both"][..., 2], batch["both"][..., 0] % 5)
    weights = np.where(labelled, plain["labels"] % 4 / 2, 3)
    assert np.array_equal(batch["loss_weight"], weights)
    assert np.array_equal(batch["loss_mask"], plain["loss_mask"] * weights.astype(np.float32))
    for name in plain.keys() - {"loss_mask"}:
        assert np.array_equal(batch[name], plain[name]), name


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"add_extra_token_to_sequence": False},
        PACKS,
        {"attention": "block_mask", "attention_block_size": 4},
        {"eod_mask_loss": True, "reset_position_ids": True, "reset_attention_mask": True},
    ],
)
@pytest.mark.parametrize("of", ["pair", "catalogue"])
def test_values_stand_beside_their_tokens(tmp_path, rng, mmap, changes, of):
    prefix = write_places(tmp_path / "a", lengths_of(rng))
    if of == "catalogue":
        other = write_places(tmp_path / "b", lengths_of(rng), first=5000)
        prefix = build_catalogue([prefix, other], f"{tmp_path}/all").path_prefix
    settings = {"sequence_length": LENGTH, "mmap_bin_files": mmap, "tokenizer": StandInTokenizer(pad=PAD), **changes}
    dataset = make_dataset(prefix, in_memory=True, columns=COLUMNS, **settings)
    plain = make_dataset(prefix, in_memory=True, **settings)
    positions = rng.integers(0, len(dataset), 20)
    check(dataset.batch(positions), plain.batch(positions))
    out = dataset.allocate_batch(30)
    rows = rng.permutation(30)[:20]
    dataset.fill_rows(positions, out, rows)
    check({name: array[rows] for name, array in out.items()}, plain.batch(positions))
    check(dataset.sample(3), plain.sample(3))
    check({name: array.numpy() for name, array in dataset[3].items()}, plain.sample(3))
    check(pickle.loads(pickle.dumps(dataset)).batch(positions), plain.batch(positions))


def test_losses_of_a_dataset_of_a_blend_count_as_much_as_is_said(tmp_path, rng):
    prefixes = [write_places(tmp_path / name, lengths_of(rng)) for name in "ab"]
    settings: dict[str, Any] = {"sequence_length": LENGTH}
    weighed, plain = (
        BlendedDataset(
            [make_dataset(prefix, num_samples=60, in_memory=True, **settings, **more) for prefix in prefixes],
            [0.5, 0.5],
            100,
            make_config(None, blend=(prefixes, None), split="1,0,0", **settings, **more),
        ).batch(range(100))
        for more in ({"loss_weights": {prefixes[1]: 3}}, {})
    )
    weights = np.array([1, 3], dtype=np.float32)[plain["dataset_id"]][:, None]
    assert np.array_equal(weighed["loss_mask"], plain["loss_mask"] * weights)
    with pytest.raises(ConfigError, match="`loss_weights`: no prefix 'c' in the blend"):
        make_config(prefixes[0], **settings, loss_weights={"c": 2})


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (("other",), r"`.*a` has no column `other`\nhint: add it with `tokenloom column add"),
        (("wide",), "column `wide`: must have 1 to 32768 bytes per token, got 40000"),
        ({"other": "needed"}, "must be a number, got 'needed'"),
        ({"other": 1, "place": "required", "bits": 0.5}, "value of `bits` in `columns`: 0.5 does not fit uint8"),
        ("place", "`columns`: must be a list, got 'place'\nhint: write columns=\\['place'\\]"),
        (("tokens",), "`columns`: the name 'tokens' is already in use"),
        (("place", "place"), "`columns`: the name 'place' is already in use"),
        (("a/b",), "must be a letter, .* got 'a/b'"),
    ],
)
def test_columns_that_cannot_be_are_named(tmp_path, columns, message):
    prefix = write_places(tmp_path / "a", [20, 30])
    add_column(prefix, "wide", [np.zeros((50, 5000))], dtype=np.float64)
    add_column(prefix, "bits", [np.zeros(50)], dtype=np.uint8)
    with pytest.raises(ConfigError, match=message):
        make_dataset(prefix, in_memory=True, sequence_length=LENGTH, columns=columns)


KINDS = ("quality", "part", "source")


def write_kinds(prefix: str | Path, rng: np.random.Generator, *, count: int, per_document: int) -> np.ndarray:
    """Writes a pair whose tokens encode their sequence, with columns of both kinds; returns its lengths."""
    lengths = rng.choice([0, 1, 3, 20, 40], count * per_document)
    parts = np.split(np.repeat(100 + np.arange(len(lengths)), lengths), np.cumsum(lengths)[:-1])
    write_pair(prefix, [parts[at : at + per_document] for at in range(0, len(parts), per_document)])
    add_column(prefix, "part", 100 + np.arange(len(lengths)), dtype=np.int16, kind="sequence", padding=-1)
    documents = 100 + np.arange(count)
    add_column(prefix, "quality", documents / 2, dtype=np.float64, kind="document", of="label", padding=-2)
    add_column(prefix, "source", np.column_stack([documents] * 3), dtype=np.uint8, kind="document")
    return lengths


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("windows", [{}, PACKS])
@pytest.mark.parametrize("per_document", [1, 2, 3])
def test_tokens_have_the_values_of_their_document_and_sequence(tmp_path, rng, per_document, windows, mmap):
    prefix = str(tmp_path / "a")
    write_kinds(prefix, rng, count=30, per_document=per_document)
    settings = {"sequence_length": LENGTH, "mmap_bin_files": mmap, **windows}
    dataset = make_dataset(prefix, in_memory=True, columns=KINDS, **settings)
    batch = dataset.batch(range(len(dataset)))
    for side, name, padding, value in (
        ("tokens", "part", -1, lambda tokens: tokens),
        ("labels", "quality", -2, lambda tokens: (100 + (tokens - 100) // per_document) / 2),
        ("tokens", "source", 0, lambda tokens: 100 + (tokens - 100) // per_document),
    ):
        tokens, found = batch[side], batch[name]
        found = found if found.ndim == 2 else found[..., 1]
        assert np.array_equal(found, np.where(tokens >= 100, value(tokens), padding)), name


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_data_without_a_column_have_what_stands_for_it(tmp_path, rng, order):
    firsts = {"a": 100, "b": 10_000}
    prefixes = {name: write_places(tmp_path / name, lengths_of(rng), first=firsts[name]) for name in firsts}
    for name in COLUMNS:
        remove_column(prefixes["b"], name)
    columns = {"place": 5, "both": -1, "loss_weight": 0.5, "next": 2, "none": 1.5}
    settings: dict[str, Any] = {"sequence_length": LENGTH, "blend": ([prefixes[name] for name in order], None)}
    made = []
    for chosen in (columns, ()):
        config = make_config(None, split="1,0,0", columns=chosen, **settings)
        pairs = [(prefixes[name], IndexedDataset(prefixes[name])) for name in order]
        parts = [GPTDataset(pair, prefix, np.arange(len(pair)), 60, Split.train, config) for prefix, pair in pairs]
        made.append(BlendedDataset(parts, [0.5, 0.5], 100, config).batch(range(100)))
    with pytest.raises(ConfigError, match=r"`.*b` has no column `next`.*\n.*or set a default: columns="):
        make_dataset(prefixes["b"], sequence_length=LENGTH, columns={**columns, "next": "required"})
    batch, plain = made
    assert {name: batch[name].dtype.name for name in columns} == {
        "place": "int32", "both": "int64", "loss_weight": "float16", "next": "float64", "none": "float32"
    }  # fmt: skip
    lacks = plain["tokens"].max(axis=1) >= 10_000
    known, labelled = plain["tokens"] >= 100, plain["labels"] >= 100
    assert 20 < lacks.sum() < 80
    assert np.array_equal(batch["place"], np.where(known, np.where(lacks[:, None], 5, plain["tokens"]), -1))
    assert np.array_equal(batch["next"], np.where(labelled, np.where(lacks[:, None], 2, plain["labels"]), -2))
    assert (batch["both"][lacks] == np.where(known[lacks], -1, 0)[..., None]).all()
    assert (batch["none"] == np.where(known, 1.5, 0)).all()
    assert np.array_equal(batch["loss_mask"][lacks], plain["loss_mask"][lacks] / 2)


def test_columns_of_two_dtypes_and_truncated_ones_are_named(tmp_path):
    prefixes = [write_places(tmp_path / name, [60, 30]) for name in "ab"]
    add_column(prefixes[1], "place", [np.zeros(90)], dtype=np.uint32, overwrite=True)
    settings: dict[str, Any] = {"sequence_length": LENGTH, "columns": ("place",)}
    datasets = [make_dataset(prefix, num_samples=10, in_memory=True, **settings) for prefix in prefixes]
    blend = BlendedDataset(datasets, [0.5, 0.5], 10, make_config(prefixes[0], **settings))
    with pytest.raises(ConfigError, match="column `place`: pairs of the blend have different dtypes, uint32 and int32"):
        blend.batch(range(10))
    prefix = write_places(tmp_path / "a", [2000] * 20)
    dataset = make_dataset(prefix, in_memory=True, sequence_length=LENGTH, columns=("place",))
    dataset.batch(range(3))
    with open(f"{prefix}.place.npy", "r+b") as stream:
        stream.truncate(200)
    with pytest.raises(TokenloomError, match=r"a\.place\.npy` was truncated while it was mapped"):
        dataset.batch(range(len(dataset)))
    assert IndexedDataset(prefix).num_tokens == 40_000


@pytest.mark.parametrize("changes", [{}, {"context_parallel_size": 2}, {"train_on": "everything"}])
def test_conversations_have_values_beside_their_tokens(tmp_path, rng, changes):
    talks, first = [], 100
    for _ in range(40):
        sizes = rng.integers(1, 6, 2).tolist()
        tokens = range(first, first + sum(sizes))
        talks.append(conversation((PROMPT, [*tokens[: sizes[0]]]), (ANSWER, [*tokens[sizes[0] :]])))
        first += sum(sizes)
    prefix = write_conversations(tmp_path / "chat", talks)
    places = np.arange(100, first)
    add_column(prefix, "place", [places], dtype=np.int32, padding=-1)
    add_column(prefix, "next", [places], dtype=np.float64, of="label", padding=-2)
    add_column(prefix, "loss_weight", [places % 4 / 2], dtype=np.float16, of="label")
    lengths = IndexedDataset(prefix).sequence_lengths
    add_column(prefix, "talk", np.arange(40), dtype=np.int8, kind="document", padding=-1)
    columns = {**dict.fromkeys(("place", "next", "loss_weight", "talk"), "required"), "none": 3}
    dataset = make_sft(prefix, quiet=True, columns=columns, **changes)
    plain = make_sft(prefix, quiet=True, **changes)
    positions = range(len(dataset))
    batch, expected = dataset.batch(positions), plain.batch(positions)
    known, labelled = expected["tokens"] >= 100, expected["labels"] >= 100
    assert np.array_equal(batch["place"], np.where(known, expected["tokens"], -1))
    talks_of = np.repeat(np.arange(40), lengths)[np.maximum(expected["tokens"] - 100, 0)]
    assert np.array_equal(batch["talk"], np.where(known, talks_of, -1))
    assert np.array_equal(batch["none"], np.where(known, 3, 0))
    assert labelled.any()
    assert np.array_equal(batch["next"][labelled], expected["labels"][labelled])
    assert (batch["next"][~known] == -2).all()
    weights = np.where(labelled, expected["labels"] % 4 / 2, 0).astype(np.float32)
    assert np.array_equal(batch["loss_mask"], expected["loss_mask"] * weights)
    assert np.array_equal(dataset.sample(1)["place"], batch["place"][1])
    weighed = make_sft(prefix, quiet=True, loss_weights={prefix: 0.5}, **changes).batch(positions)
    assert np.array_equal(weighed["loss_mask"], expected["loss_mask"] / 2)
    assert dataset[1]["place"].numpy().tolist() == batch["place"][1].tolist()


def write_numbered(prefix: str | Path, documents: list[list[int]]) -> tuple[str, np.ndarray]:
    """Writes a pair with columns that number its tokens and its labels; returns the prefix and the tokens."""
    write_corpus(prefix, documents)
    tokens = np.concatenate(documents)
    numbers = np.arange(len(tokens))
    add_column(prefix, "number", [numbers], dtype=np.int32, padding=-1)
    add_column(prefix, "next", [numbers], dtype=np.int64, of="label", padding=-2)
    return str(prefix), tokens


FIM: dict[str, Any] = {
    "fim_rate": 0.8, "fim_spm_rate": 0.5, "kind": GPTFIMDatasetConfig, "random_seed": 1234, "split": "1",
    "columns": ("number", "next"),
}  # fmt: skip
TEXTS = ["def first(): return 'naïve ✓ 🙂'", "x", "class Second:\n    pass\n" * 9, "one two  three    four " * 4, "é"]


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("windows", [{"window_policy": "best_fit"}, {}, {"add_extra_token_to_sequence": False}])
@pytest.mark.parametrize("letters", [True, False])
def test_values_follow_tokens_that_are_rearranged(tmp_path, rng, letters, windows, mmap):
    tokenizer: Any = CharacterTokenizer() if letters else make_tokenizer(byte_level_json())
    last = 10_100 if letters else 1000
    tokenizer.vocab_size = last + 3
    special = {"prefix": last, "middle": last + 1, "suffix": last + 2}
    texts = [*TEXTS, *(" ".join(rng.choice(TEXTS, 6)) for _ in range(20))]
    texts = [text.replace("🙂", "x") if letters else text for text in texts]
    prefix, stored = write_numbered(tmp_path / "corpus", [[*tokenizer.tokenize(each), tokenizer.eod] for each in texts])
    changes = {"sequence_length": 300, "tokenizer": tokenizer, "fim_extra_tokens": special, "mmap_bin_files": mmap}
    config = make_config(prefix, **FIM, **changes, **windows)
    data = IndexedDataset(prefix, mmap=mmap)
    dataset = GPTFIMDataset(data, prefix, np.arange(len(data), dtype=np.int32), 30, Split.train, config)
    batch = dataset.batch(range(len(dataset)))
    number, tokens = batch["number"], batch["tokens"]
    known = number >= 0
    assert np.array_equal(tokens[known], stored[number[known]])
    assert not np.isin(tokens[known], [*special.values()]).any()
    assert np.array_equal(batch["next"][:, :-1], np.where(number[:, 1:] < 0, -2, number[:, 1:]))
    labelled = batch["next"] >= 0
    assert np.array_equal(batch["labels"][labelled], stored[batch["next"][labelled]])
    lengths = data.sequence_lengths
    firsts = np.cumsum(lengths) - lengths
    for row in range(len(dataset)):
        spans, own = dataset.spans(row), number[row][known[row]]
        pieces = zip(spans.documents, spans.starts, spans.lengths, strict=True)
        read = [firsts[each] + np.arange(start, start + length) for each, start, length in pieces]
        counts = np.bincount(np.concatenate(read), minlength=len(stored))
        assert (np.bincount(own, minlength=len(stored)) <= counts).all()
    real = ~np.isin(tokens, [*special.values()]) & (np.arange(300) < (batch["loss_mask"].sum(axis=1) + 1)[:, None])
    made_anew = np.count_nonzero(real & ~known)
    assert made_anew == 0 if letters else 0 < made_anew < 0.1 * real.sum()
    assert equal_samples(dataset.sample(7), {name: array[7] for name, array in batch.items()})


def test_samples_for_a_scheduler_have_weights_in_their_loss_mask(tmp_path):
    prefix = write_conversations(tmp_path / "chat", [conversation((PROMPT, [100]), (ANSWER, [101, 102]))] * 3)
    add_column(prefix, "loss_weight", np.tile([8, 0.5, 0.25], 3), dtype=np.float16, of="label")
    weighed, plain = (make_varlen(prefix, columns=columns).sample(0) for columns in (("loss_weight",), ()))
    assert plain["loss_mask"][:2].tolist() == [1, 1]
    assert weighed["loss_mask"][:2].tolist() == [0.5, 0.25]
    assert weighed.keys() == plain.keys()
    with pytest.raises(ConfigError, match=r"`columns`: not supported for samples of one conversation, got \['place'\]"):
        make_varlen(prefix, columns=("place", "loss_weight"))


@given(data=st.data())
def test_whatever_is_drawn_values_stand_beside_their_tokens(tmp_path_factory, data):
    draw, folder = data.draw, tmp_path_factory.mktemp("columns")
    corpora = draw(st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=20).filter(any), min_size=1, max_size=3))
    prefixes = [write_places(folder / f"{k}", each, first=100 + 10_000 * k) for k, each in enumerate(corpora)]
    way = draw(st.sampled_from(["pair", "catalogue", "merge", "kept"]))
    prefix = prefixes[0]
    if way == "catalogue":
        prefix = build_catalogue(prefixes, f"{folder}/all").path_prefix
    elif way == "merge":
        prefix = merge_datasets(prefixes, f"{folder}/all").path_prefix
    elif way == "kept":
        masks = [draw(st.lists(st.booleans(), min_size=len(each), max_size=len(each))) for each in corpora]
        chosen = zip(prefixes, masks, strict=True)
        parts = [ConcatenatedPart(prefix=each, kept_documents=np.array(mask, dtype=bool)) for each, mask in chosen]
        prefix = write_concatenated(parts, f"{folder}/all").path_prefix
    if not IndexedDataset(prefix).num_tokens:
        return
    packs = draw(st.booleans())
    settings: dict[str, Any] = {
        "sequence_length": draw(st.integers(1, 20)),
        "mmap_bin_files": draw(st.booleans()),
        "add_extra_token_to_sequence": draw(st.booleans()),
        "window_policy": "best_fit" if packs else "concat",
        "inter_document_masking": packs or draw(st.booleans()),
        "random_seed": draw(st.integers(0, 99)),
    }
    samples = draw(st.integers(1, 30))
    settings |= {"num_samples": samples, "in_memory": True}
    dataset, plain = (make_dataset(prefix, columns=columns, **settings) for columns in (COLUMNS, ()))
    positions = draw(st.lists(st.integers(0, len(dataset) - 1), min_size=1, max_size=8)) if len(dataset) else []
    if positions:
        check(dataset.batch(positions), plain.batch(positions), is_full=False)
