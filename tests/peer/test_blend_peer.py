"""Blends beside megatron-core's, for weights, corpora and settings drawn anew in each run."""

import numpy as np
import pytest
import torch
from tests.peer.conftest import assert_same, folder_bytes, rounds, times
from tests.support import StandInTokenizer, write_corpus

from tokenloom.blending.blended import BlendedDataset
from tokenloom.blending.dataset_builder import BlendedMegatronDatasetBuilder
from tokenloom.blending.spec import get_blend_from_list
from tokenloom.datasets.config import GPTDatasetConfig
from tokenloom.datasets.gpt import GPTDataset
from tokenloom.datasets.mock import MockGPTDataset
from tokenloom.datasets.splits import Split
from tokenloom.errors import ConfigError, OversampledError
from tokenloom.kernels.order import blending_counts, build_blending_indices

pytestmark = [pytest.mark.peer, pytest.mark.usefixtures("quiet", "process_group")]

pytest.importorskip("megatron.core")

from megatron.core.datasets import blended_dataset as peer_blended  # noqa: E402
from megatron.core.datasets import blended_megatron_dataset_builder as peer_builder  # noqa: E402
from megatron.core.datasets import gpt_dataset as peer_gpt  # noqa: E402
from megatron.core.datasets import helpers as peer_helpers  # noqa: E402
from megatron.core.datasets import utils as peer_utils  # noqa: E402

rng = rounds(2, 4)


# --- the order ----------------------------------------------------------------------------------------------------


def draw_weights(rng, number):
    """Returns normalised weights: smooth, repeated, equal, skewed over 12 decades, or some next to nothing."""
    kind = rng.integers(6)
    if kind == 0:
        weights = rng.dirichlet(np.ones(number)) + 1e-300
    elif kind == 1:
        weights = rng.choice([1.0, 2.0, 3.0, 1 / 3], size=number)
    elif kind == 2:
        weights = np.ones(number)
    elif kind == 3:
        weights = 10.0 ** rng.uniform(-12, 0, size=number)
    elif kind == 4:
        weights = rng.choice([5e-324, 1e-310, 0.0, 1.0], size=number)
        weights[int(rng.integers(number))] = 1.0
    else:
        weights = rng.integers(1, 50, size=number).astype(np.float64)
    return weights / weights.sum()


@pytest.mark.parametrize("most", [3, 12, 70, 400, 2000])
def test_the_order_by_weight_is_the_same(rng, most):
    for _ in range(3):
        number = int(rng.integers(1, most + 1))
        weights = draw_weights(rng, number)
        size = int(rng.integers(1, 20_000_000 // (number + 1000)))
        chosen, samples = build_blending_indices(weights, size=size)
        expected, expected_samples = np.zeros(size, dtype=np.int16), np.zeros(size, dtype=np.int64)
        peer_helpers.build_blending_indices(expected, expected_samples, weights, number, size, False)
        assert (chosen == expected).all()
        assert (samples == expected_samples).all()
        assert (blending_counts(weights, size) == np.bincount(expected, minlength=number)).all()


@pytest.mark.parametrize("most", [3, 12, 70, 400, 2000])
def test_the_order_that_uses_everything_up_is_the_same(rng, most):
    number = int(rng.integers(1, most + 1))
    sizes = rng.integers(1, int(rng.choice([2, 10, 30])), size=number)
    sizes[int(rng.integers(number))] += int(rng.choice([0, 3000]))
    size = int(sizes.sum())
    chosen, samples = build_blending_indices(sizes / float(size), size=size, sizes=sizes)
    expected, expected_samples = np.zeros(size, dtype=np.int16), np.zeros(size, dtype=np.int64)
    peer_helpers.build_exhaustive_blending_indices(expected, expected_samples, sizes, number)
    assert (chosen == expected).all()
    assert (samples == expected_samples).all()


# --- the builder --------------------------------------------------------------------------------------------------


def draw_prefixes(rng, folder, number):
    prefixes = []
    for name in range(number):
        lengths = rng.integers(1, 60, size=int(rng.integers(40, 150)))
        documents = [rng.integers(1, 1000, size=length) for length in lengths]
        prefixes.append(write_corpus(folder / f"p{name}", documents))
    return prefixes


def draw_settings(rng):
    return {
        "random_seed": int(rng.integers(2**32)),
        "sequence_length": int(rng.integers(2, 20)),
        "tokenizer": StandInTokenizer(vocab_size=1000),
        "reset_position_ids": bool(rng.integers(2)),
        "reset_attention_mask": bool(rng.integers(2)),
        "eod_mask_loss": bool(rng.integers(2)),
        "create_attention_mask": False,
        "mid_level_dataset_surplus": float(rng.choice([0.0, 0.005, 0.3])),
        "num_dataset_builder_threads": int(rng.choice([1, 3])),
    }


def draw_sizes(rng, *, with_weights):
    return [int(rng.integers(1, 400)) if with_weights or rng.random() < 0.6 else None for _ in Split]


def draw_share(rng, number):
    """Returns the weights of a blend, as a user would write them, or None."""
    if rng.random() < 0.4:
        return None
    return [float(weight) for weight in rng.dirichlet(np.ones(number)) * rng.choice([1, 100]) + 1e-3]


def build(settings, sizes, folder, *, cls=GPTDataset):
    config = GPTDatasetConfig(**settings, path_to_cache=f"{folder}")
    return BlendedMegatronDatasetBuilder(cls, list(sizes), lambda: True, config).build()


def build_peer(settings, sizes, folder, *, cls=peer_gpt.GPTDataset):
    config = peer_gpt.GPTDatasetConfig(**settings, path_to_cache=f"{folder}")
    return peer_builder.BlendedMegatronDatasetBuilder(cls, list(sizes), lambda: True, config).build()


def compare(datasets, peers, rng, *, most=6):
    """Compares the splits: which there are, their lengths, and samples; returns how many."""
    compared = 0
    for ours, theirs in zip(datasets, peers, strict=True):
        assert (ours is None) == (theirs is None)
        if isinstance(theirs, list):
            assert isinstance(ours, list)
            compared += compare(ours, theirs, rng)
        elif theirs is not None:
            assert type(ours).__name__ == type(theirs).__name__
            assert len(ours) == len(theirs)
            positions = rng.integers(len(theirs), size=most).tolist() if len(theirs) else []
            batch = ours.__getitems__(positions)
            for row, k in enumerate(positions):
                # The peer lets masks of one sample into others (MLM#1711).
                for part in getattr(theirs, "datasets", [theirs]):
                    part.masks_and_position_ids_are_cached = False
                expected = theirs[k]
                assert_same(ours[k], expected)
                assert torch.equal(batch[row]["tokens"], expected["tokens"])
                assert torch.equal(batch[row]["loss_mask"], expected["loss_mask"])
                compared += 1
    return compared


def compare_builds(settings, sizes, folder, rng):
    """Builds on both sides and compares all files and some samples; then each side uses what the other cached."""
    datasets = build(settings, sizes, folder / "ours")
    peers = build_peer(settings, sizes, folder / "theirs")
    assert folder_bytes(folder / "ours") == folder_bytes(folder / "theirs")
    assert compare(datasets, peers, rng)
    before = times(folder / "ours", folder / "theirs")
    from_peer = build(settings, sizes, folder / "theirs")
    from_ours = build_peer(settings, sizes, folder / "ours")
    assert times(folder / "ours", folder / "theirs") == before
    assert compare(from_peer, from_ours, rng, most=2)
    for flags in ({"defer_npy_index_mmap": True}, {"fast_cache_load": True}):
        assert compare(build(settings | flags, sizes, folder / "theirs"), peers, rng, most=2)


def test_one_split_for_all_is_the_same(tmp_path, rng):
    prefixes = draw_prefixes(rng, tmp_path, int(rng.integers(2, 6)))
    for number, weights in enumerate([None, draw_share(rng, len(prefixes))]):
        settings = draw_settings(rng) | {
            "blend": (prefixes, weights),
            "split": str(rng.choice(["60,25,15", "1,1,0", "1", "0.5, 0.3, 0.2"])),
        }
        sizes = draw_sizes(rng, with_weights=weights is not None)
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            compare_builds(settings, sizes, folder, rng)
        except OversampledError:
            with pytest.raises(IndexError):
                build_peer(settings, sizes, folder / "theirs")


def test_a_blend_per_split_is_the_same(tmp_path, rng):
    prefixes = draw_prefixes(rng, tmp_path, 5)
    blends = []
    for _ in Split:
        chosen = rng.permutation(prefixes)[: int(rng.integers(1, 6))].tolist()
        blends.append((chosen, draw_share(rng, len(chosen))))
    if rng.random() < 0.5:
        blends[int(rng.integers(3))] = None
    settings = draw_settings(rng) | {"blend_per_split": blends}
    sizes = [
        size if blend is None or blend[1] is None else int(rng.integers(1, 400))
        for size, blend in zip(draw_sizes(rng, with_weights=False), blends, strict=True)
    ]
    try:
        compare_builds(settings, sizes, tmp_path, rng)
    except OversampledError:
        with pytest.raises(IndexError):
            build_peer(settings, sizes, tmp_path / "theirs")


@pytest.mark.parametrize("full", [False, True])
def test_several_validation_sets_are_the_same(tmp_path, rng, full):
    prefixes = draw_prefixes(rng, tmp_path, 3)
    settings = draw_settings(rng) | {
        "blend_per_split": [(prefixes[:1], None), (prefixes, None), None],
        "multiple_validation_sets": True,
        "full_validation": full,
    }
    sizes = [50, None if full else int(rng.integers(1, 300)), None]
    compare_builds(settings, sizes, tmp_path, rng)


@pytest.mark.parametrize(("weights", "full"), [([3.0], False), ([3.0], True), (None, True)])
def test_one_prefix_is_the_same(tmp_path, rng, weights, full):
    """A size for valid is kept under full validation."""
    prefixes = draw_prefixes(rng, tmp_path, 1)
    settings = draw_settings(rng) | {"blend": (prefixes, weights), "split": "60,25,15", "full_validation": full}
    compare_builds(settings, [100, int(rng.integers(1, 300)), 10], tmp_path, rng)


def test_made_up_data_are_the_same(tmp_path, rng):
    settings = draw_settings(rng) | {"sequence_length": 1500}
    datasets = build(settings, [30, 7, None], tmp_path / "ours", cls=MockGPTDataset)
    peers = build_peer(settings, [30, 7, None], tmp_path / "theirs", cls=peer_gpt.MockGPTDataset)
    assert folder_bytes(tmp_path / "ours") == folder_bytes(tmp_path / "theirs")
    assert compare(datasets, peers, rng)


def test_what_one_refuses_the_other_refuses(tmp_path, rng):
    prefixes = draw_prefixes(rng, tmp_path, 3)
    settings = draw_settings(rng)

    def refused(ours, theirs, *, sizes=(100, 20, 10), **changes):
        with pytest.raises(ours):
            build(settings | changes, sizes, tmp_path / "ours")
        with pytest.raises(theirs):
            build_peer(settings | changes, sizes, tmp_path / "theirs")

    split = {"split": "60,25,15"}
    refused(ConfigError, AssertionError, blend=(prefixes, [1.0, 2.0, 3.0]), sizes=(None, 1, 1), **split)
    refused(ConfigError, AssertionError, blend=(prefixes, [1.0, 0.0, 3.0]), **split)
    refused(ConfigError, AssertionError, blend=(prefixes, [1.0, 2.0]), **split)
    several = {"blend_per_split": [(prefixes[:1], None), (prefixes, None), None], "multiple_validation_sets": True}
    refused(ConfigError, AssertionError, **several, full_validation=True, sizes=(50, 20, None))


def test_blends_of_datasets_at_hand_are_the_same(tmp_path, rng):
    """The class itself, with weights of both kinds and sizes that no builder would ask for."""
    prefixes = draw_prefixes(rng, tmp_path, 4)
    settings = draw_settings(rng) | {"split": "1"}
    ours, theirs = [], []
    for prefix in prefixes:
        one = settings | {"blend": ([prefix], None)}
        ours.append(build(one, [50, 0, 0], tmp_path / "ours")[0])
        theirs.append(build_peer(one, [50, 0, 0], tmp_path / "theirs")[0])
    counts = [int(rng.integers(1, len(dataset) + 1)) for dataset in ours]
    for weights, size in (
        (counts, None),
        ([2, 1, 1, 3], 60),
        (draw_weights(rng, 4).clip(1e-6).tolist(), int(rng.integers(1, 51))),
    ):
        one = settings | {"blend": (prefixes, None)}
        config = GPTDatasetConfig(**one, path_to_cache=f"{tmp_path}/ours")
        peer_config = peer_gpt.GPTDatasetConfig(**one, path_to_cache=f"{tmp_path}/theirs")
        blend = BlendedDataset(ours, weights, size, config)
        peer = peer_blended.BlendedDataset(theirs, weights, size, peer_config)
        assert blend.unique_description == peer.unique_description
        assert blend.dataset_index.dtype == peer.dataset_index.dtype
        assert (blend.dataset_index == peer.dataset_index).all()
        assert (blend.dataset_sample_index == peer.dataset_sample_index).all()
        compare([blend], [peer], rng)
    assert folder_bytes(tmp_path / "ours") == folder_bytes(tmp_path / "theirs")


# --- what users write ---------------------------------------------------------------------------------------------


def test_lists_are_read_the_same():
    for text in ("a", "a,b", "a,b,c", "30,a,70,b", "0.5, a ,5e-1,b ", "1,2,3", "a,2", " 1 ,a", "1,a,2,b,3,c"):
        entries = text.split(",")
        assert get_blend_from_list(entries) == peer_utils.get_blend_from_list(entries)
