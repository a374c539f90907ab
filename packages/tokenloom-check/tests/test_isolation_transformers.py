"""Verifies the table of the guide: which models of transformers isolate documents, and with which arguments."""

import re
from pathlib import Path

import isolation_models as models
import pytest
import torch

from tokenloom_check import check_isolation

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "are-my-documents-apart.md"

SMALL = {
    "vocab_size": 32, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "use_cache": False,
}  # fmt: skip
MAMBA = {"vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 2, "use_cache": False}
KINDS = {
    "Llama": SMALL,
    "Qwen2": SMALL,
    "Mamba": MAMBA,
    "Mamba2": MAMBA | {"num_heads": 4, "head_dim": 16, "n_groups": 1, "state_size": 8, "chunk_size": 8},
}

ARGUMENTS = {
    "none": lambda batch: {},
    "`position_ids`": lambda batch: {"position_ids": batch["position_ids"]},
    "`position_ids`, `attention_mask` of ones": lambda batch: {
        "position_ids": batch["position_ids"],
        "attention_mask": torch.ones_like(batch["tokens"]),
    },
    "`position_ids`, block-diagonal bool mask": lambda batch: {
        "position_ids": batch["position_ids"],
        "attention_mask": block_mask(batch),
    },
    "`position_ids`, block-diagonal float mask": lambda batch: {
        "position_ids": batch["position_ids"],
        "attention_mask": torch.where(block_mask(batch), 0.0, -torch.inf),
    },
    "`seq_idx`": lambda batch: {"seq_idx": models.documents_of(batch["cu_seqlens"], batch["tokens"].shape[1]).int()},
}
OF_ATTENTION = [*ARGUMENTS][:5]
CASES = [
    *[("Llama", attention, arguments) for attention in ("eager", "sdpa") for arguments in OF_ATTENTION],
    *[("Qwen2", attention, arguments) for attention in ("eager", "sdpa") for arguments in OF_ATTENTION],
    *[(kind, "", arguments) for kind in ("Mamba", "Mamba2") for arguments in ("none", "`seq_idx`")],
]


def block_mask(batch):
    return models.document_mask(models.documents_of(batch["cu_seqlens"], batch["tokens"].shape[1]))


def result_of(kind, attention, arguments):
    """Returns "yes", or "no" with the module that the first failed check names."""
    transformers = pytest.importorskip("transformers")
    given = {"attn_implementation": attention} if attention else {}
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**KINDS[kind], **given))

    def logits(model, values):
        return model(input_ids=values["tokens"], **ARGUMENTS[arguments](values)).logits

    report = check_isolation(model.eval(), models.make_batch(0), call=logits, raises=False, max_documents=4)
    leaks = [check for check in report.checks if check.result == "leak"]
    return f"no: `{leaks[0].leak.module}`" if leaks else "yes"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_table_of_the_guide():
    rows = [f"| {' | '.join([*case, result_of(*case)])} |" for case in CASES]
    text = GUIDE.read_text()
    assert [row for row in rows if row not in text] == []
    assert len(rows) == len(re.findall(r"^\| (?:Llama|Qwen2|Mamba2?) \|", text, re.MULTILINE))
