"""Columns in samples: each value beside the token that it was stored with, whichever way samples are made and read."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.datasets.conversations import (
    ANSWER,
    PROMPT,
    conversation,
    make_sft,
    make_varlen,
    settings,
    write_conversations,
)
from tests.support import StandInTokenizer, make_config, make_dataset

from tokenloom import (
    ConcatenatedPart,
    IndexedDataset,
    IndexedDatasetBuilder,
    build_catalogue,
    merge_datasets,
    write_concatenated,
)
from tokenloom.blending.blended import BlendedDataset
from tokenloom.datasets.fim import GPTFIMDatasetConfig
from tokenloom.errors import ConfigError, TokenloomError
from tokenloom.indexed.columns import add_column

LENGTH = 16
PAD = 7


def write_places(prefix: str | Path, lengths: list[int], *, first: int = 100) -> str:
    """Writes a pair whose tokens are numbers in a row, with columns that hold the same numbers, and others."""
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


def check(batch: dict[str, Any], plain: dict[str, Any], *, is_full: bool = True) -> None:
    """Compares columns with the tokens beside them, and all else with the same samples without columns."""
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
        {"window_policy": "best_fit", "inter_document_masking": True},
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


def test_a_blend_has_the_columns_of_its_datasets(tmp_path, rng):
    prefixes = [
        write_places(tmp_path / name, lengths_of(rng), first=number) for name, number in (("a", 100), ("b", 9000))
    ]
    made = []
    for columns in (COLUMNS, ()):
        settings: dict[str, Any] = {"sequence_length": LENGTH, "columns": columns}
        datasets = [make_dataset(prefix, num_samples=60, in_memory=True, **settings) for prefix in prefixes]
        config = make_config(prefixes[0], **settings)
        made.append(BlendedDataset(datasets, [0.5, 0.5], 100, config))
    positions = rng.integers(0, 100, 30)
    check(made[0].batch(positions), made[1].batch(positions))


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
    with pytest.raises(ConfigError, match="expected a prefix of the blend in `loss_weights`, found 'c'"):
        make_config(prefixes[0], **settings, loss_weights={"c": 2})


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (("other",), r"`.*a` has no column `other`, which `columns` names\nhint: add it: `tokenloom column add"),
        (("wide",), "column `wide` has 40000 bytes per token, samples take 1 to 32768"),
        (("quality",), "column `quality` of `.*a` has a row per document, not per token"),
        ("place", "expected a list of columns, found the text 'place'\nhint: write columns=\\['place'\\]"),
        (("tokens",), "expected columns with names of their own, found 'tokens'"),
        (("place", "place"), "expected columns with names of their own, found 'place'"),
        (("a/b",), "expected a column name of letters"),
    ],
)
def test_columns_that_cannot_be_are_named(tmp_path, columns, message):
    prefix = write_places(tmp_path / "a", [20, 30])
    add_column(prefix, "wide", [np.zeros((50, 5000))], dtype=np.float64)
    add_column(prefix, "quality", [np.zeros(2)], dtype=np.float32, kind="document")
    with pytest.raises(ConfigError, match=message):
        make_dataset(prefix, in_memory=True, sequence_length=LENGTH, columns=columns)


def test_columns_of_two_dtypes_are_not_mixed(tmp_path):
    prefixes = [write_places(tmp_path / name, [60, 30]) for name in "ab"]
    add_column(prefixes[1], "place", [np.zeros(90)], dtype=np.uint32, overwrite=True)
    settings: dict[str, Any] = {"sequence_length": LENGTH, "columns": ("place",)}
    datasets = [make_dataset(prefix, num_samples=10, in_memory=True, **settings) for prefix in prefixes]
    blend = BlendedDataset(datasets, [0.5, 0.5], 10, make_config(prefixes[0], **settings))
    with pytest.raises(ConfigError, match="column `place` is uint32 here, and int32 in other data"):
        blend.batch(range(10))


def test_a_column_that_is_truncated_while_it_is_read_is_named(tmp_path):
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
    names = ("place", "next", "loss_weight")
    dataset = make_sft(prefix, quiet=True, columns=names, **changes)
    plain = make_sft(prefix, quiet=True, **changes)
    positions = range(len(dataset))
    batch, expected = dataset.batch(positions), plain.batch(positions)
    known, labelled = expected["tokens"] >= 100, expected["labels"] >= 100
    assert np.array_equal(batch["place"], np.where(known, expected["tokens"], -1))
    assert labelled.any()
    assert np.array_equal(batch["next"][labelled], expected["labels"][labelled])
    assert (batch["next"][~known] == -2).all()
    weights = np.where(labelled, expected["labels"] % 4 / 2, 0).astype(np.float32)
    assert np.array_equal(batch["loss_mask"], expected["loss_mask"] * weights)
    assert np.array_equal(dataset.sample(1)["place"], batch["place"][1])
    weighed = make_sft(prefix, quiet=True, loss_weights={prefix: 0.5}, **changes).batch(positions)
    assert np.array_equal(weighed["loss_mask"], expected["loss_mask"] / 2)
    assert dataset[1]["place"].numpy().tolist() == batch["place"][1].tolist()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda prefix: make_varlen(prefix, columns=("place",)),
            "expected no `columns` for samples of one",
        ),
        (
            lambda prefix: GPTFIMDatasetConfig(
                **settings(prefix, columns=("place",)), fim_rate=1.0, fim_spm_rate=0.0, fim_extra_tokens={}
            ),
            "expected no `columns` for documents that are rearranged, found place",
        ),
    ],
)
def test_what_cannot_carry_columns_refuses_them(tmp_path, make, message):
    prefix = write_conversations(tmp_path / "chat", [conversation((PROMPT, [100]), (ANSWER, [101]))])
    with pytest.raises(ConfigError, match=message):
        make(prefix)


@given(data=st.data())
def test_whatever_is_drawn_values_stand_beside_their_tokens(tmp_path_factory, data):
    draw, folder = data.draw, tmp_path_factory.mktemp("columns")
    corpora = draw(st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=20).filter(any), min_size=1, max_size=3))
    prefixes = [
        write_places(folder / str(number), each, first=100 + 10_000 * number) for number, each in enumerate(corpora)
    ]
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
    dataset, plain = (
        make_dataset(prefix, in_memory=True, num_samples=samples, columns=columns, **settings)
        for columns in (COLUMNS, ())
    )
    positions = draw(st.lists(st.integers(0, len(dataset) - 1), min_size=1, max_size=8)) if len(dataset) else []
    if positions:
        check(dataset.batch(positions), plain.batch(positions), is_full=False)
