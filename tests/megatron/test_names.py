"""Every name of the reference's data modules is there, over its versions, with its parameters."""

from __future__ import annotations

import dataclasses
import inspect
import json
from importlib import import_module, util
from pathlib import Path
from typing import Any

from tokenloom.megatron.installation import OURS, PACKAGES

TABLE: dict[str, dict[str, tuple[str, str]]] = json.loads(
    (Path(__file__).parents[1] / "golden" / "megatron_names.json").read_text()
)

ELSEWHERE = {"log_single_rank", "safe_numpy_load", "maybe_msc", "MultiStorageClientFeature"}
"""What a module imports that is not about data."""

_DATASETS = "megatron.core.datasets"
NOT_OURS = {
    f"{_DATASETS}.blended_megatron_dataset_builder._get_size_per_split_per_dataset": "private: `blending.quota`",
    **dict.fromkeys(
        (
            f"{_DATASETS}.data_schedule.HybridCPDataLoaderWrapper.{name}"
            for name in (
                *("_gid_to_src_rank", "get_global_seqlens", "get_global_id_seqlens", "reroute_samples_to_hdp_ranks"),
                "unpack_batch",
            )
        ),
        "steps of `__next__`, which are functions of `data_schedule_utils`",
    ),
    f"{_DATASETS}.data_schedule._get_global_seqlens_and_ids": "private, and there as `data_schedule_utils` has it",
    f"{_DATASETS}.data_schedule_utils._pack_sequences": "private: packs are made by `packing`",
    f"{_DATASETS}.indexed_dataset._IndexWriter._sequence_pointers": "computed for all sequences at once",
    f"{_DATASETS}.indexed_dataset._S3BinReader._extract_from_cache": "ranges are kept by the storage room",
    **dict.fromkeys(
        (
            f"{_DATASETS}.object_storage_utils.{name}"
            for name in ("_is_msc_path", "_is_s3_path", "_remove_msc_prefix", "_remove_s3_prefix")
        ),
        "private, and one line each",
    ),
    **dict.fromkeys(
        (
            f"{_DATASETS}.object_storage_utils.{name}"
            for name in (
                *("_s3_download_file", "_s3_object_exists", "S3Client.close", "S3Client.download_file"),
                *("S3Client.get_object", "S3Client.head_object", "S3Client.upload_file"),
            )
        ),
        "stores are read without a client of boto3",
    ),
    **dict.fromkeys(
        (
            f"{_DATASETS}.bert_dataset.BERTMaskedWordPieceDataset._get_token_mask",
            f"{_DATASETS}.masked_dataset.MaskedWordPieceDataset._build_sample_index",
            f"{_DATASETS}.masked_dataset.MaskedWordPieceDataset._create_masked_lm_predictions",
            f"{_DATASETS}.masked_dataset.MaskedWordPieceDataset._get_token_mask",
            f"{_DATASETS}.t5_dataset.T5MaskedWordPieceDataset._get_token_mask",
        ),
        "kernels choose sentences, and mask them",
    ),
    f"{_DATASETS}.t5_dataset.T5MaskedWordPieceDataset._build_b1ss_attention_mask": "`config_attention_mask` gives it",
    "megatron.training.datasets.varlen_dataset._ensure_str_content": "private, and one line",
    "megatron.training.datasets.data_samplers.HybridCPMegatronPretrainingSampler.get_start_end_idx_global_batch": (
        "`get_start_end_idx` is asked"
    ),
}
"""What is not there, with the reason."""

NO_FUNCTIONS = {"class", "value", "import", "property"}

MISSING = object()


def find(module: Any, path: str) -> Any:
    """Returns what a path such as "GPTDataset.__len__" stands for in a module; MISSING if it is not there."""
    value = module
    for part in path.split("."):
        fields = {field.name for field in dataclasses.fields(value)} if dataclasses.is_dataclass(value) else set()
        if part not in fields and part not in getattr(value, "__annotations__", {}):
            value = getattr(value, part, MISSING)
        elif isinstance(value, type):
            value = None
        else:
            value = getattr(value, part, MISSING)
        if value is MISSING:
            return MISSING
    return value


def refused(value: Any, expected: str) -> str | None:
    """Returns why a function cannot be called as the reference's; None if it can."""
    try:
        parameters = list(inspect.signature(value).parameters.values())
    except (TypeError, ValueError):
        return None
    parameters = [parameter for parameter in parameters if parameter.name not in ("self", "cls")]
    if "*" in expected:
        return None
    takes_more = {parameter.kind for parameter in parameters} & {
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.VAR_KEYWORD,
    }
    wanted = [name for name in expected.split(", ") if name and not name.startswith("*")]
    for number, name in enumerate(wanted):
        name, has_default, _ = name.partition("=")
        found = next((parameter for parameter in parameters if parameter.name == name), None)
        if found is None:
            if not takes_more:
                return f"no parameter `{name}`"
        elif has_default and found.default is inspect.Parameter.empty:
            return f"`{name}` has no default"
        elif found.kind is not inspect.Parameter.KEYWORD_ONLY and parameters.index(found) != number:
            return f"`{name}` stands at place {parameters.index(found)}, not {number}"
    needed = {
        parameter.name
        for parameter in parameters
        if parameter.default is inspect.Parameter.empty
        and parameter.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    }
    more = sorted(needed - {name.partition("=")[0] for name in wanted})
    return f"asks for {more} too" if more else None


def faults() -> dict[str, str]:
    found = {}
    for reference, names in TABLE.items():
        ours = import_module(OURS[reference])
        for name, (kind, versions) in names.items():
            if name in ELSEWHERE or (kind == "import" and name not in KNOWN):
                continue
            member = name.rpartition(".")[2]
            if member.startswith("__") and member not in ("__init__", "__getitem__", "__call__"):
                continue  # Python calls those, by position
            value = find(ours, name)
            where = f"{reference}.{name}"
            if value is MISSING:
                found[where] = f"missing ({kind}; {versions})"
            elif kind not in NO_FUNCTIONS and callable(value) and (reason := refused(value, kind)):
                found[where] = reason
    return found


KNOWN = {name for names in TABLE.values() for name, (kind, _) in names.items() if kind != "import"}


def test_every_module_of_the_reference_has_one_of_ours():
    assert [name for name, ours in OURS.items() if util.find_spec(ours) is None] == []
    assert {"megatron", "megatron.core", "megatron.legacy.data"} < PACKAGES


def test_every_name_is_there_and_is_called_alike():
    assert {name: fault for name, fault in faults().items() if name not in NOT_OURS} == {}
    assert set(NOT_OURS) <= set(faults()), "what is there by now needs no reason"
