"""Lightning: loaders of the trainer's ranks, and a checkpoint in the middle of an epoch."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from tests.adapters.frameworks import expected_tokens, samples_of, tokens_of
from tests.adapters.libraries import library

from tokenloom.adapters import lightning_data_module

pytestmark = pytest.mark.slow

lightning = library("lightning.pytorch")
BATCH_SIZE = 4


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Linear(1, 1)
        self.trained, self.validated, self.tested = [], [], []

    def training_step(self, batch, number):
        self.trained.append(batch["tokens"].tolist())
        return self.weight(batch["tokens"].float().mean().reshape(1, 1) / 100).sum()

    def validation_step(self, batch, number):
        self.validated.append(batch["tokens"].tolist())

    def test_step(self, batch, number):
        self.tested.append(batch["tokens"].tolist())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def make_trainer(folder, **settings):
    saving = lightning.callbacks.ModelCheckpoint(dirpath=folder, every_n_train_steps=3, save_top_k=-1)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(accelerator="cpu", devices=1, callbacks=[saving], **quiet, **settings)


def test_training_resumes_within_an_epoch(tmp_path, rng):
    dataset = samples_of(tmp_path, rng)
    whole, resumed = Model(), Model()
    make_trainer(tmp_path, max_epochs=2).fit(whole, lightning_data_module(dataset, batch_size=BATCH_SIZE))
    assert whole.trained == expected_tokens(dataset) * 2
    data = lightning_data_module(dataset, batch_size=BATCH_SIZE)
    make_trainer(tmp_path, max_epochs=2).fit(resumed, data, ckpt_path=tmp_path / "epoch=0-step=6.ckpt")
    assert resumed.trained == whole.trained[6:]
    assert torch.equal(resumed.weight.weight, whole.weight.weight)


def test_each_stage_has_its_data(tmp_path, rng):
    datasets = []
    for name in ("train", "valid", "test"):
        (tmp_path / name).mkdir()
        datasets.append(samples_of(tmp_path / name, rng))
    model, calls = Model(), []
    data = lightning_data_module(lambda: calls.append(1) or datasets, batch_size=BATCH_SIZE)
    trainer = make_trainer(tmp_path, max_epochs=1, num_sanity_val_steps=0)
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    assert [model.trained, model.validated, model.tested] == [expected_tokens(dataset) for dataset in datasets]
    assert calls == [1]


def test_one_state_resumes_all_ranks(tmp_path, rng):
    dataset = samples_of(tmp_path, rng)
    data = lightning_data_module(dataset, batch_size=BATCH_SIZE)
    loaders = []
    for rank in range(2):
        data.trainer = SimpleNamespace(distributed_sampler_kwargs={"num_replicas": 2, "rank": rank})
        loaders.append(data.train_dataloader())
    whole = [tokens_of(loader) for loader in loaders]
    batches = iter(loaders[0])
    next(batches)
    state = loaders[0].state_dict()  # Lightning saves no other
    for loader, seen in zip(loaders, whole, strict=True):
        loader.load_state_dict(state)
        assert tokens_of(loader) == seen[1:]
