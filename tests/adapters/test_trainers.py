"""Lightning, torchtitan, transformers, accelerate, the Trainer: data of all ranks, loss, documents alone, resuming."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.adapters.frameworks import (
    SEQUENCE_LENGTH,
    VOCAB_SIZE,
    expected_tokens,
    in_order,
    in_turns,
    library,
    samples_of,
    tokens_of,
)
from torch.nn import functional

from tokenloom import MegatronPretrainingSampler, ThreadLoader, build_dataloader, load
from tokenloom.adapters import PrefixCollator, TransformersCollator, lightning_data_module, torchtitan_loader

pytestmark = pytest.mark.slow

lightning = library("lightning.pytorch")
titan = library("torchtitan.components.dataloader")
transformers = library("transformers")

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


def test_ranks_of_torchtitan(path):
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


ROWS = [0, 1, 2]
SEPARATE = {
    "boundaries": {"inter_document_masking": True},
    "packs": {"inter_document_masking": True, "window_policy": "best_fit"},
    "dense mask": {"reset_position_ids": True, "reset_attention_mask": True, "create_attention_mask": True},
}
TOGETHER = {"plain": {}, "loss without ends": {"eod_mask_loss": True}, "causal mask": {"create_attention_mask": True}}


def llama(attention: str = "sdpa") -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 4 * SEQUENCE_LENGTH}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = transformers.LlamaConfig(vocab_size=VOCAB_SIZE, attn_implementation=attention, **sizes, **heads)
    return transformers.LlamaForCausalLM(config).eval()


def gpt2(attention: str = "sdpa") -> Any:
    torch.manual_seed(0)
    sizes = {"n_positions": SEQUENCE_LENGTH, "n_embd": 32, "n_layer": 2, "n_head": 2}
    tokens = {"vocab_size": VOCAB_SIZE, "bos_token_id": 0, "eos_token_id": 9}
    config = transformers.GPT2Config(**sizes, **tokens, attn_implementation=attention)
    return transformers.GPT2LMHeadModel(config).eval()


def mean_loss(logits: torch.Tensor, batch: dict[str, Any]) -> torch.Tensor:
    labels, mask = torch.from_numpy(batch["labels"]).flatten(), torch.from_numpy(batch["loss_mask"]).flatten()
    losses = functional.cross_entropy(logits.reshape(-1, VOCAB_SIZE).float(), labels, reduction="none")
    return (losses * mask).sum() / mask.sum()


def logits_of_documents_alone(model: Any, batch: dict[str, Any]) -> torch.Tensor:
    """Returns the logits of each document, computed alone."""
    rows = []
    for tokens, positions in zip(batch["tokens"], batch["position_ids"], strict=True):
        starts = np.flatnonzero(positions == 0)
        pieces = np.split(tokens, starts[1:])
        rows.append(torch.cat([model(input_ids=torch.from_numpy(piece[None])).logits[0] for piece in pieces]))
    return torch.stack(rows)


@pytest.mark.parametrize(("make_model", "attention"), [(llama, "sdpa"), (llama, "eager"), (gpt2, "sdpa")])
@pytest.mark.parametrize("name", [*TOGETHER, *SEPARATE])
def test_loss_and_separation_of_documents(tmp_path, rng, make_model, attention, name):
    dataset, model = samples_of(tmp_path, rng, **(TOGETHER | SEPARATE)[name]), make_model(attention)
    batch = dataset.batch(ROWS)
    with torch.no_grad():
        outputs = model(**TransformersCollator(model)(dataset.__getitems__(ROWS)))
        torch.testing.assert_close(outputs.loss, mean_loss(outputs.logits, batch))
        if name in SEPARATE:
            torch.testing.assert_close(outputs.logits, logits_of_documents_alone(model, batch))


def attention_by_boundaries(module, query, key, value, attention_mask, scaling, cu_seq_lens_q, max_length_q, **_):
    """Computes what flash attention computes for one row: causal attention within each document."""
    assert query.shape[0] == 1
    assert attention_mask is None
    assert int(cu_seq_lens_q.diff().max()) == max_length_q
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    pieces = [
        functional.scaled_dot_product_attention(
            query[:, :, start:stop], key[:, :, start:stop], value[:, :, start:stop], is_causal=True, scale=scaling
        )
        for start, stop in zip(cu_seq_lens_q[:-1].tolist(), cu_seq_lens_q[1:].tolist(), strict=True)
    ]
    return torch.cat(pieces, dim=2).transpose(1, 2).contiguous(), None


@pytest.mark.parametrize("changes", [SEPARATE["boundaries"], SEPARATE["packs"]])
def test_one_row_has_boundaries(tmp_path, rng, changes):
    transformers.AttentionInterface.register("by_boundaries", attention_by_boundaries)
    dataset, model = samples_of(tmp_path, rng, **changes), llama("by_boundaries")
    batch = TransformersCollator(model, one_row=True)(dataset.__getitems__(ROWS))
    assert batch["input_ids"].shape == (1, len(ROWS) * SEQUENCE_LENGTH)
    assert batch["cu_seq_lens_q"].dtype == torch.int32
    with torch.no_grad():
        outputs = model(**batch)
        expected = logits_of_documents_alone(llama(), dataset.batch(ROWS))
    torch.testing.assert_close(outputs.logits.reshape(expected.shape), expected)
    torch.testing.assert_close(outputs.loss, mean_loss(expected, dataset.batch(ROWS)))


def test_labels_are_shifted_back(tmp_path, rng):
    dataset = samples_of(tmp_path, rng, eod_mask_loss=True)
    ours, found = dataset.batch(ROWS), TransformersCollator()(dataset.__getitems__(ROWS))
    with_loss = np.where(ours["loss_mask"] == 0, -100, ours["labels"])
    assert found["shift_labels"].tolist() == with_loss.tolist()
    assert found["labels"][:, 1:].tolist() == with_loss[:, :-1].tolist()
    assert found["labels"][:, 0].tolist() == [-100] * len(ROWS)
    assert found["input_ids"].tolist() == ours["tokens"].tolist()


def test_samples_and_batches_are_collated_alike(tmp_path, rng):
    dataset, collator = samples_of(tmp_path, rng, inter_document_masking=True), TransformersCollator()
    [batch] = ThreadLoader(dataset, [ROWS], integer_dtype=np.int32)
    ways = [collator(dataset.__getitems__(ROWS)), collator([dataset[row] for row in ROWS]), collator(batch)]
    for found in ways[1:]:
        assert list(found) == list(ways[0])
        assert all(torch.equal(found[name], ways[0][name]) for name in found if torch.is_tensor(found[name]))
    assert {found["shift_labels"].dtype for found in ways} == {torch.int64}


def arguments(folder: Path, **settings: Any) -> Any:
    quiet = {"disable_tqdm": True, "report_to": "none", "use_cpu": True, "dataloader_pin_memory": False}
    return transformers.TrainingArguments(str(folder), remove_unused_columns=False, **quiet, **settings)


def train(folder: Path, dataset: Any, resume_from: Path | None = None) -> tuple[Any, list[Any]]:
    """Trains for five steps of two batches each; returns the model, and the tokens of all batches."""
    model, seen = llama().train(), []
    record = lambda module, args, kwargs: seen.append(kwargs["input_ids"].tolist())  # noqa: E731
    model.register_forward_pre_hook(record, with_kwargs=True)
    sizes = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "max_steps": 5, "save_steps": 2}
    settings = arguments(folder, train_sampling_strategy="sequential", **sizes)
    trainer = transformers.Trainer(model, settings, train_dataset=dataset, data_collator=TransformersCollator(model))
    trainer.train(resume_from_checkpoint=None if resume_from is None else str(resume_from))
    return trainer.model, seen


def test_the_trainer_reads_in_order_and_resumes(tmp_path, rng):
    dataset = samples_of(tmp_path, rng, inter_document_masking=True)
    whole, seen = train(tmp_path / "whole", dataset)
    assert seen == [[dataset[2 * step + row]["tokens"].tolist() for row in range(2)] for step in range(10)]
    resumed, later = train(tmp_path / "again", dataset, tmp_path / "whole" / "checkpoint-2")
    assert later == seen[4:]
    for mine, theirs in zip(resumed.parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_accelerate_prepares_and_resumes_both_loaders(tmp_path, rng):
    accelerator = library("accelerate").Accelerator(cpu=True)
    dataset = samples_of(tmp_path, rng)
    expected = expected_tokens(dataset, in_order())
    for make in (ThreadLoader, build_dataloader):
        loader = accelerator.prepare(make(dataset, in_order()))
        assert tokens_of(loader) == expected
        assert tokens_of(accelerator.skip_first_batches(loader, 4)) == expected[4:]


TURNS = [
    {"input_ids": [5, 6, 7, 8], "labels": [-100, -100, 7, 8]},
    {"input_ids": [5, 6, 7, 8, 1, 2, 3], "labels": [-100, -100, -100, -100, -100, 2, 3]},
    {"input_ids": [5, 6, 9], "labels": [-100, -100, 9]},
]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_shared_prefixes_keep_loss_and_gradient(attention):
    model = llama(attention)
    collator = PrefixCollator(model, pad_to=8)
    batch = collator(TURNS)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8, 1, 2, 3, 9]]
    labels = batch.pop("labels")
    loss = collator.loss(model(**batch), labels)
    loss.backward()
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    alone = []
    for turn in TURNS:
        logits = model(input_ids=torch.tensor([turn["input_ids"]])).logits[0, :-1]
        wanted = torch.tensor(turn["labels"][1:])
        alone.append(functional.cross_entropy(logits, wanted, reduction="sum", ignore_index=-100))
    expected = sum(alone) / sum(label >= 0 for turn in TURNS for label in turn["labels"])
    torch.testing.assert_close(loss, expected)
    expected.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=1e-5)


def test_the_trainer_uses_the_loss_of_shared_prefixes(tmp_path):
    model = llama()
    collator = PrefixCollator(model)
    given = {"train_dataset": TURNS, "data_collator": collator, "compute_loss_func": collator.loss}
    trainer = transformers.Trainer(model, arguments(tmp_path, per_device_train_batch_size=3, max_steps=2), **given)
    assert trainer.train().training_loss > 0
