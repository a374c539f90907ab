"""The order of a blend as arrays: equal to the reference's, or mixed within blocks."""

from __future__ import annotations

from tests.support import make_config, write_corpus

from tokenloom import BlendedMegatronDatasetBuilder, GPTDataset
from tokenloom.blending.array_order import ArrayBlendOrder
from tokenloom.order import ArrayStore


def arrays(weights, size, **more):
    order = ArrayBlendOrder(
        [range(size)] * len(weights),
        [str(weight) for weight in weights],
        [weight / sum(weights) for weight in weights],
        size,
        split="train",
        store=ArrayStore(cache=None, description="", name="a blend"),
        **more,
    )
    return order.arrays["dataset_index"], order.arrays["dataset_sample_index"]


def test_each_block_holds_what_it_held_at_other_places():
    numbers, samples = arrays([3, 2, 1], 1000)
    mixed_numbers, mixed_samples = arrays([3, 2, 1], 1000, mixing_block=64, seed=5)
    for start in range(0, 1000, 64):
        part = slice(start, start + 64)
        before = sorted(zip(numbers[part].tolist(), samples[part].tolist(), strict=True))
        after = sorted(zip(mixed_numbers[part].tolist(), mixed_samples[part].tolist(), strict=True))
        assert after == before
    assert (mixed_numbers != numbers).mean() > 0.3


def test_it_is_a_function_of_seed_and_block():
    first = arrays([1, 1], 256, mixing_block=64, seed=5)
    longer = arrays([1, 1], 512, mixing_block=64, seed=5)
    assert [each[:256].tolist() for each in longer] == [each.tolist() for each in first]
    assert first[0].tolist() != arrays([1, 1], 256, mixing_block=64, seed=6)[0].tolist()
    assert first[0][:16].tolist() == [1, 0, 0, 1, 1, 1, 0, 1, 1, 0, 1, 0, 1, 0, 0, 1]  # must not change


def test_the_setting_has_a_cache_of_its_own_and_changes_no_dataset(tmp_path, rng):
    prefixes = [write_corpus(tmp_path / name, [rng.integers(0, 90, size=400)]) for name in ("a", "b")]
    blends = {}
    for block in (1, 32):
        changes = {"blend": (prefixes, [1.0, 1.0]), "split": "1,0,0", "path_to_cache": str(tmp_path / "cache")}
        config = make_config(None, **changes, mixing_block=block)
        blends[block] = BlendedMegatronDatasetBuilder(GPTDataset, [160, None, None], lambda: True, config).build()[0]
    assert blends[1].unique_description_hash != blends[32].unique_description_hash
    assert "mixing_block" not in blends[1].unique_description
    for facts in (
        lambda blend: [each.unique_description for each in blend.datasets],
        lambda blend: sorted(blend.batch(range(160))["tokens"].tolist()),
    ):
        assert facts(blends[1]) == facts(blends[32])
