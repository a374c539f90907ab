"""Isolation of documents: twelve leaks are found and named, and sound models pass."""

import json

import isolation_models as models
import pytest
import torch
from tests.support import write_corpus
from torch import nn

from tokenloom import cli
from tokenloom.errors import ConfigError, ConformanceError
from tokenloom_check import check_isolation


@pytest.fixture(autouse=True)
def _one_thread():
    """Threads only slow down such small models."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def look(model, batch, **settings):
    return check_isolation(model, batch, raises=False, **settings)


def leaks_of(report):
    return {check.name: check.leak for check in report.checks if check.result == "leak"}


def results_of(report):
    return {check.name: check.result for check in report.checks}


@pytest.mark.parametrize("kind", models.LEAKING)
@pytest.mark.parametrize("num_seeds", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_leaks_are_found_at_their_modules(kind, num_seeds):
    check, module = models.LEAKING[kind]
    for seed in range(num_seeds):
        model, batch, documents = models.make(kind, seed)
        found = leaks_of(look(model, batch, documents=documents))
        assert check in found, f"seed {seed}: {found}"
        assert found[check].module == module, f"seed {seed}: {found[check]}"


@pytest.mark.parametrize("kind", models.SOUND)
@pytest.mark.parametrize(("num_seeds", "most"), [(3, 4), pytest.param(100, 16, marks=pytest.mark.slow)])
def test_sound_models_pass(kind, num_seeds, most):
    for seed in range(num_seeds):
        model, batch, documents = models.make(kind, seed)
        report = look(model, batch, documents=documents, max_documents=most)
        assert report.ok, f"seed {seed}: {report}"
        assert report.notes == ()


def test_text_of_a_leak():
    model, batch, _ = models.make(models.ConvOverEnds, 0)
    with pytest.raises(ConformanceError) as caught:
        check_isolation(model, batch, checks=["gradient", "change"])
    text = " ".join(str(caught.value).split())
    assert "ConvOverEnds: 8 documents of " in text
    assert " depends on document " in text
    assert "The leak begins in `blocks.1.mixer.conv`, the first module whose output differs." in text
    assert all(len(line) <= 80 for line in str(caught.value).splitlines())


class Changed(models.BlockMask):
    """A sound model whose logits are changed."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, tokens, position_ids, cu_seqlens):
        return self.change(super().forward(tokens, position_ids, cu_seqlens))


class WithLosses(models.BlockMask):
    def forward(self, labels, tokens, position_ids, cu_seqlens):
        logits = super().forward(tokens, position_ids, cu_seqlens)
        return nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")


def made(change):
    torch.manual_seed(0)
    return (change() if isinstance(change, type) else Changed(change)).eval(), models.make_batch(0)


def test_kinds_of_outputs():
    auxiliary = "outputs without a value per token were not checked: auxiliary []"
    for change, notes in (
        (lambda logits: (logits, None), ()),
        (lambda logits: {"logits": logits, "auxiliary": logits.mean()}, (auxiliary,)),
        (WithLosses, ()),
    ):
        report = look(*made(change), max_documents=4)
        assert (set(results_of(report).values()), report.notes) == ({"apart"}, notes), str(report)


def test_labels_independent_of_the_next_document():
    model, batch, _ = models.make(models.BlockMask, 0)
    starts = batch["position_ids"] == 0
    batch["tokens"] = torch.where(starts, 5, batch["tokens"])
    batch["labels"] = batch["tokens"].roll(-1, dims=1)
    batch["loss_mask"] = torch.ones_like(batch["loss_mask"])
    assert look(model, batch, checks=["labels"]).ok
    batch["labels"] = batch["tokens"].clone()
    batch["tokens"][0, 3:5] = 6
    assert look(model, batch, checks=["labels"]).ok


def test_outputs_without_gradient_are_checked_by_change():
    choose = made(lambda logits: logits.argmax(dim=2).float())
    report = look(*choose, checks=["gradient", "change"], max_documents=4)
    assert results_of(report) == {"gradient": "not run", "change": "apart"}
    assert "no gradient flows from the outputs of the model" in report.checks[0].words


def test_dropout_makes_a_note():
    model, batch = made(nn.Dropout(0.5))
    model.train()
    report = look(model, batch, max_documents=4)
    assert report.notes[0].endswith("dropout: all runs used the same seed; `model.eval()` turns dropout off")
    assert results_of(report) == dict.fromkeys(("gradient", "change", "tail", "labels"), "apart") | {"alone": "not run"}
    assert "call `model.eval()`" in report.checks[2].words
    assert model.training


def test_leaks_are_found_despite_unstable_discrete_choices():
    model, batch, _ = models.make(models.CapacityShared, 4)
    report = look(model, batch)
    assert report.notes[0].startswith("rounding changes discrete choices of the model, such as experts, at 2 of 35")
    assert set(leaks_of(report)) == {"change", "alone", "tail"}
    assert "No gradient flows between them" in report.problems[0]


def test_random_kernels_make_a_note():
    noise = torch.Generator().manual_seed(1)
    report = look(*made(lambda logits: logits + 1e-4 * torch.rand(logits.shape, generator=noise)), max_documents=4)
    assert report.ok
    assert "identical runs differ by up to " in report.notes[0]


def test_half_precision_has_a_measured_limit():
    model, batch, _ = models.make(models.BlockMask, 0)
    report = look(model.bfloat16(), batch, max_documents=4)
    assert report.ok, str(report)
    limits = {check.name: check.limit for check in report.checks}
    assert limits["change"] == 0
    assert 1e-3 < limits["alone"] < 1
    model, batch, _ = models.make(models.PositionsGoOn, 0)
    assert leaks_of(look(model.bfloat16(), batch))["alone"].module == "positions"


def test_sources_of_document_boundaries():
    model, batch, _ = models.make(models.BlockMask, 0)

    def logits(_, values):
        return model(values["tokens"], values["position_ids"], batch["cu_seqlens"])

    given = {name: value for name, value in batch.items() if name != "cu_seqlens"}
    assert look(model, batch, checks=["change"]).source == "cu_seqlens"
    assert look(model, given, call=logits, checks=["change"]).source == "position_ids"
    owner = models.documents_of(batch["cu_seqlens"], models.LENGTH)
    report = look(model, {name: value.numpy() for name, value in batch.items()}, documents=owner.numpy())
    assert (report.source, report.num_documents, report.num_padding, report.ok) == ("documents=", 10, 0, True)


def test_document_numbers_restart_in_each_row():
    model, batch, documents = models.make(models.EncoderDecoder, 0)
    other, _ = models.make_pairs(1)
    batch = {name: torch.cat([array, other[name]]) for name, array in batch.items()}
    documents = {name: torch.cat([array, array]) for name, array in documents.items()}
    batch["segments"] = documents["tokens"] = documents["tokens"].clamp(max=1)  # the last source has no target
    report = look(model, batch, documents=documents)
    assert (report.num_documents, report.ok) == (6, True), str(report)
    leak = leaks_of(look(models.make(models.SegmentsUnused, 0)[0], batch, documents=documents))["gradient"]
    assert (leak.module, leak.document // 3) == ("cross", leak.other // 3)


def test_a_flat_pack_without_padding():
    torch.manual_seed(0)
    model = models.Varlen()
    bounds = torch.tensor([0, 3, 4, 9, 16])
    batch = {"tokens": torch.arange(1, 17), "cu_seqlens": bounds, "max_seqlen": torch.tensor(7)}

    def logits(model, values):
        positions = torch.cat([torch.arange(each) for each in values["cu_seqlens"].diff()])
        return model(values["tokens"][None], positions[None], values["cu_seqlens"][None])[0]

    report = look(model, batch, call=logits)
    assert (report.num_documents, report.ok) == (4, True), str(report)
    assert results_of(report)["tail"] == "not run"


def test_labels_that_cross_a_boundary():
    model, batch, _ = models.make(models.BlockMask, 0)
    batch["loss_mask"] = torch.ones_like(batch["loss_mask"])
    batch["labels"] = batch["tokens"].roll(-1, dims=1)
    report = look(model, batch, checks=["labels"], documents=models.documents_of(batch["cu_seqlens"], models.LENGTH))
    assert "is a token of document" in report.problems[0]
    assert "`eod_mask_loss=True`" in report.problems[0]
    future = torch.stack([batch["labels"], batch["tokens"].roll(-2, dims=1)], dim=1)
    batch["labels"] = torch.where(batch["labels"] > 0, -100, -100)
    assert leaks_of(look(model, batch | {"labels_future": future}, checks=["labels"]))["labels"] is not None


def fails(model, batch, text, **settings):
    with pytest.raises(ConfigError) as caught:
        check_isolation(model, batch, **settings)
    assert text in str(caught.value)
    assert caught.value.hint


def test_invalid_batches_and_models_are_errors():
    model, batch, _ = models.make(models.BlockMask, 0)
    needs = "the batch needs integer `tokens` or `input_ids` [rows, positions] or [positions], got "
    fails(model, {"tokens": torch.rand(2, 4)}, f"{needs}tokens float32[2, 4]")
    fails(model, {"tokens": batch["tokens"]}, "the batch has no document boundaries: no `document_ids`, ")
    one = {"tokens": torch.arange(4), "cu_seqlens": torch.tensor([0, 4])}
    fails(model, one, "the batch has only one document of 4 tokens according to `cu_seqlens`")
    fails(model, batch, "`documents` must have the shape of `tokens`, int64[2, 24], got int64[3]", documents=[0, 1, 2])
    apart = torch.arange(2 * models.LENGTH).view(2, -1) % 2
    fails(model, batch, "the tokens of document 0 are not contiguous in `tokens`", documents=apart)
    fails(model, batch | {"cu_seqlens": torch.tensor([[0, 30], [0, 24]])}, "`cu_seqlens` must ascend to at most 24")
    fails(nn.Bilinear(2, 2, 2), batch, "the model takes input1, input2, but the batch has tokens, labels, ")
    fails(model, batch, "unknown check 'all'", checks=["all"])
    returns = "the model must return logits or losses per token, for tokens [2, 24], got output "
    fails(*made(lambda logits: logits.mean(dim=1)), f"{returns}[2, 32]")
    model.head.weight.data *= 1e5
    fails(model.half(), batch, "the model returns NaN or infinity for document 0, first at token 0 of row 0")


def test_the_fixture_and_a_note_about_rows_without_boundaries(isolation):
    model, batch, _ = models.make(models.NoDocumentMask, 0)
    positions = torch.arange(models.LENGTH).expand(2, -1)
    report = isolation(model, {"tokens": batch["tokens"], "position_ids": positions}, checks=["change"])
    note = "each row is one document according to `position_ids`: no boundary within a row was checked"
    assert report.notes == (note,)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_models_are_checked():
    model, batch, _ = models.make(models.ConvOverEnds, 0)
    report = look(torch.compile(model, backend="aot_eager"), batch, max_documents=3)
    assert {leak.module for leak in leaks_of(report).values()} == {"blocks.1.mixer.conv"}
    model, batch, _ = models.make(models.BlockMask, 0)
    assert look(torch.compile(model, backend="aot_eager"), batch, max_documents=3).ok


RANK_TOKENS = [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [11, 12, 13, 14, 15, 16, 17, 18, 19, 20]]
POSITIONS = [[0, 1, 2, 0, 1, 2, 3, 4, 0, 1], [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]]


class SharedAttention(nn.Module):
    """Attends from the tokens of this rank to all tokens; the mask is shifted by `off` tokens."""

    def __init__(self, off):
        super().__init__()
        torch.manual_seed(1)
        self.embed, self.project, self.off = nn.Embedding(32, 16), nn.Linear(16, 48), off

    def forward(self, tokens, documents, start):
        query, key, value = self.project(self.embed(tokens)).chunk(3, dim=2)
        key, value = gathered(key, documents.shape[1]), gathered(value, documents.shape[1])
        places = torch.arange(start, start + tokens.shape[1])
        mask = documents[:, (places - self.off).clamp(min=0), None] == documents[:, None, :]
        mask = mask & (places[:, None] >= torch.arange(documents.shape[1]))
        return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def gathered(part, length):
    """Concatenates the parts of all ranks; the last one may be shorter."""
    size = -(-length // torch.distributed.get_world_size())
    padded = nn.functional.pad(part.detach(), (0, 0, 0, size - part.shape[1]))
    parts = [torch.empty_like(padded) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(parts, padded)
    return torch.cat(parts, dim=1)[:, :length]


def gathered_logits(model, batch):
    tokens, length = batch["tokens"], batch["tokens"].shape[1]
    size = -(-length // torch.distributed.get_world_size())
    start = min(size * torch.distributed.get_rank(), length)
    documents = (batch["position_ids"] == 0).cumsum(1)
    return gathered(model(tokens[:, start : start + size], documents, start), length)


def check_on_rank(rank, folder, off):
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    batch = {"tokens": torch.tensor(RANK_TOKENS), "position_ids": torch.tensor(POSITIONS)}
    report = check_isolation(SharedAttention(off), batch, call=gathered_logits, raises=False)
    found = {each.name: (each.result, each.leak and [each.leak.row, each.leak.document]) for each in report.checks}
    (folder / f"{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("off", [0, 1])
def test_off_by_one_slices_are_found_on_all_ranks(tmp_path, off):
    torch.multiprocessing.spawn(check_on_rank, (tmp_path, off), nprocs=2)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first == second
    assert first["change"][0] == first["alone"][0] == ("leak" if off else "apart")
    assert first["gradient"] == ["not run", None]


def test_the_command(tmp_path, capsys, monkeypatch):
    write_corpus(
        tmp_path / "corpus", [[2 + (7 * row + at) % 29 for at in range(3 + row % 5)] + [1] for row in range(60)]
    )
    (tmp_path / "run.toml").write_text(
        'order = 1\nseed = 1\ntokenizer = "byte"\n[samples]\ninter_document_masking = true\neod_mask_loss = true\n'
        '[sources]\ncorpus = "corpus"\n[[stages]]\nsequence_length = 24\nsamples = 8\nweights = { corpus = 1 }\n'
    )
    model = f"{models.__file__}:"
    words = [str(tmp_path / "run.toml"), "--checks", "gradient", "change", "alone"]
    assert cli.main(["check-isolation", f"{model}BlockMask", *words]) == 0
    out = capsys.readouterr().out
    assert "BlockMask: " in out
    assert "(from cu_seqlens)" in out
    assert cli.main(["check-isolation", f"{model}NoDocumentMask", *words, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["checks"][0]["leak"]["module"] == "blocks.0.mixer"
    (tmp_path / "run.lock").unlink()
    text = (tmp_path / "run.toml").read_text().replace("inter_document_masking = true\neod_mask_loss = true\n", "")
    (tmp_path / "run.toml").write_text(text)
    assert cli.main(["check-isolation", f"{model}BlockMask", *words]) == 1
    assert "hint: set `inter_document_masking = true` in [samples] of run.toml" in capsys.readouterr().err
