"""torchtitan: its loader from its configuration, its loss, its checkpoints."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.adapters.frameworks import SEQUENCE_LENGTH, samples_of
from tests.adapters.libraries import library

from tokenloom import ConfigError, MegatronPretrainingSampler, load
from tokenloom.adapters import torchtitan_loader

titan = library("torchtitan.components.dataloader")
SETTINGS = {"tokenizer": "null:64"}


@pytest.fixture
def path(tmp_path, rng):
    samples_of(tmp_path, rng)
    return str(tmp_path / "corpus")


def build(path, *, rank=0, size=1, seq_len=SEQUENCE_LENGTH, settings=(), **changes):
    config = torchtitan_loader().Config(dataset_path=path, settings={**SETTINGS, **dict(settings)}, **changes)
    return config.build(
        dp_world_size=size,
        dp_rank=rank,
        tokenizer=None,
        seq_len=seq_len,
        local_batch_size=2,
        snapshot_every_n_steps=1,
    )


def ours(path, **settings):
    return load(path, sequence_length=SEQUENCE_LENGTH, **{**SETTINGS, "inter_document_masking": True, **settings})


def inputs_of(batches):
    return [inputs["input"].tolist() for inputs, _ in batches]


def test_its_configuration_builds_a_loader_of_torchtitans(path):
    loader = build(path)
    assert isinstance(loader, titan.BaseDataLoader)
    inputs, labels = next(iter(loader))
    assert inputs["input"].shape == inputs["positions"].shape == labels.shape == (2, SEQUENCE_LENGTH)
    assert torchtitan_loader().Config(dataset_path=path).to_dict()["dataset_path"] == path


def test_its_settings_can_be_given_on_torchtitans_command_line(path):
    tyro = library("tyro")
    config = torchtitan_loader().Config(dataset_path=path, settings=SETTINGS)
    found = tyro.cli(type(config), default=config, args=["--num-threads", "2", "--part", "valid"])
    assert found == replace(config, num_threads=2, part="valid")


def test_batches_are_ours_with_labels_and_positions(path):
    dataset = ours(path, eod_mask_loss=True)
    found = list(build(path, settings={"eod_mask_loss": True}))
    positions = list(MegatronPretrainingSampler(len(dataset), 0, 2, 0, 1))
    assert len(found) == len(positions)
    for (inputs, labels), rows in zip(found, positions, strict=True):
        batch = dataset.batch(rows)
        assert inputs["input"].tolist() == batch["tokens"].tolist()
        assert inputs["positions"].tolist() == batch["position_ids"].tolist()
        assert labels.tolist() == np.where(batch["loss_mask"] == 0, -100, batch["labels"]).tolist()


def test_its_loss_is_that_over_our_labels(path):
    loss = library("torchtitan.components.loss")
    dataset = ours(path, eod_mask_loss=True)
    _, labels = next(iter(build(path, settings={"eod_mask_loss": True})))
    logits = torch.randn(*labels.shape, 64, generator=torch.Generator().manual_seed(0))
    batch = {name: torch.from_numpy(array) for name, array in dataset.batch([0, 1]).items()}
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="none")
    found = loss.cross_entropy_loss(logits, labels)
    torch.testing.assert_close(found, (losses * batch["loss_mask"].flatten()).sum())


def test_ranks_share_the_samples(path):
    whole = inputs_of(build(path))
    found = [inputs_of(build(path, rank=rank, size=2)) for rank in range(2)]
    assert [batch for pair in zip(*found, strict=True) for batch in pair] == whole[: 2 * len(found[0])]


def test_a_distributed_checkpoint_resumes_every_rank(path, tmp_path):
    checkpoint = library("torch.distributed.checkpoint")
    whole = [inputs_of(build(path, rank=rank, size=2)) for rank in range(2)]
    first = build(path, rank=0, size=2)
    batches = iter(first)
    next(batches), next(batches), next(batches)
    checkpoint.save({"dataloader": first}, checkpoint_id=tmp_path / "checkpoint", no_dist=True)
    for rank in range(2):
        resumed = build(path, rank=rank, size=2)
        checkpoint.load({"dataloader": resumed}, checkpoint_id=tmp_path / "checkpoint", no_dist=True)
        assert inputs_of(resumed) == whole[rank][3:]


def test_validation_begins_anew(path):
    loader = build(path, infinite=True)
    batches = iter(loader)
    once = inputs_of(build(path))
    assert inputs_of(next(batches) for _ in range(2 * len(once))) == once * 2


def test_without_a_state_it_begins_at_the_start(path):
    loader = build(path)
    loader.load_state_dict({})
    assert inputs_of(loader) == inputs_of(build(path))


def test_parts_of_a_split_are_read_apart(path):
    settings = {"split": "80,20,0"}
    train, valid = (build(path, settings=settings, part=part).loader.dataset for part in ("train", "valid"))
    assert [len(train), len(valid)] == [len(dataset) for dataset in ours(path, split="80,20,0")[:2]]
    with pytest.raises(ConfigError, match=r"expected samples of 16 tokens for test, .* found no data for it"):
        build(path, settings=settings, part="test")


def test_data_must_be_named(tmp_path):
    with pytest.raises(ConfigError, match="expected `dataset_path` in the configuration of the loader, found none"):
        build(None)
