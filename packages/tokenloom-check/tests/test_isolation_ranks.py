"""Isolation with context parallelism: each rank checks the whole batch, with a gathering `call`."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

TOKENS = [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [11, 12, 13, 14, 15, 16, 17, 18, 19, 20]]
POSITIONS = [[0, 1, 2, 0, 1, 2, 3, 4, 0, 1], [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]]


class SharedAttention(torch.nn.Module):
    """Attends from the tokens of this rank to all tokens; the mask is shifted by `off` tokens."""

    def __init__(self, off):
        super().__init__()
        torch.manual_seed(1)
        self.embed, self.project, self.off = torch.nn.Embedding(32, 16), torch.nn.Linear(16, 48), off

    def forward(self, tokens, documents, start):
        query, key, value = self.project(self.embed(tokens)).chunk(3, dim=2)
        key, value = gathered(key, documents.shape[1]), gathered(value, documents.shape[1])
        places = torch.arange(start, start + tokens.shape[1])
        mask = documents[:, (places - self.off).clamp(min=0), None] == documents[:, None, :]
        mask = mask & (places[:, None] >= torch.arange(documents.shape[1]))
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def gathered(part, length):
    """Concatenates the parts of all ranks; the last one may be shorter."""
    size = -(-length // torch.distributed.get_world_size())
    padded = torch.nn.functional.pad(part.detach(), (0, 0, 0, size - part.shape[1]))
    parts = [torch.empty_like(padded) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(parts, padded)
    return torch.cat(parts, dim=1)[:, :length]


def call(model, batch):
    tokens, length = batch["tokens"], batch["tokens"].shape[1]
    size = -(-length // torch.distributed.get_world_size())
    start = min(size * torch.distributed.get_rank(), length)
    documents = (batch["position_ids"] == 0).cumsum(1)
    return gathered(model(tokens[:, start : start + size], documents, start), length)


def check(rank, folder, off):
    from tokenloom_check import check_isolation

    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    batch = {"tokens": torch.tensor(TOKENS), "position_ids": torch.tensor(POSITIONS)}
    report = check_isolation(SharedAttention(off), batch, call=call, raises=False)
    found = {each.name: (each.result, each.leak and [each.leak.row, each.leak.document]) for each in report.checks}
    (folder / f"{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("off", [0, 1])
def test_off_by_one_slices_are_found_on_all_ranks(tmp_path, off):
    torch.multiprocessing.spawn(check, (tmp_path, off), nprocs=2)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first == second
    assert first["change"][0] == first["alone"][0] == ("leak" if off else "apart")
    assert first["gradient"] == ["not run", None]
