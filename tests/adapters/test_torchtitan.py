"""torchtitan: the loader of its configuration, and its checkpoints."""

from __future__ import annotations

import numpy as np
import pytest
from tests.adapters.frameworks import SEQUENCE_LENGTH, in_turns, samples_of
from tests.adapters.libraries import library

from tokenloom import MegatronPretrainingSampler, load
from tokenloom.adapters import torchtitan_loader

pytestmark = pytest.mark.slow

titan = library("torchtitan.components.dataloader")
SETTINGS = {"tokenizer": "null:64"}


@pytest.fixture
def path(tmp_path, rng):
    samples_of(tmp_path, rng)
    return str(tmp_path / "corpus")


def build(path, *, rank=0, size=1, seq_len=SEQUENCE_LENGTH, settings=()):
    config = torchtitan_loader().Config(dataset_path=path, settings={**SETTINGS, **dict(settings)})
    given = {"tokenizer": None, "local_batch_size": 2, "snapshot_every_n_steps": 1}
    return config.build(dp_world_size=size, dp_rank=rank, seq_len=seq_len, **given)


def inputs_of(batches):
    return [inputs["input"].tolist() for inputs, _ in batches]


def test_batches_have_labels_and_positions(path):
    settings = {"inter_document_masking": True, "eod_mask_loss": True, "sequence_length": SEQUENCE_LENGTH}
    dataset, loader = load(path, **SETTINGS, **settings), build(path, settings={"eod_mask_loss": True})
    assert isinstance(loader, titan.BaseDataLoader)
    assert torchtitan_loader().Config(dataset_path=path).to_dict()["dataset_path"] == path
    found = list(loader)
    positions = list(MegatronPretrainingSampler(len(dataset), 0, 2, 0, 1))
    assert len(found) == len(positions)
    for (inputs, labels), rows in zip(found, positions, strict=True):
        batch = dataset.batch(rows)
        assert inputs["input"].tolist() == batch["tokens"].tolist()
        assert inputs["positions"].tolist() == batch["position_ids"].tolist()
        assert labels.tolist() == np.where(batch["loss_mask"] == 0, -100, batch["labels"]).tolist()


def test_ranks_share_the_samples(path):
    whole = inputs_of(build(path))
    ranks = [inputs_of(build(path, rank=rank, size=2)) for rank in range(2)]
    assert in_turns(ranks) == whole[: 2 * len(ranks[0])]


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
