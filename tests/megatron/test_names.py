"""Every name of Megatron's data modules, in all versions, exists here with the same parameters."""

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

NOT_ABOUT_DATA = {"log_single_rank", "safe_numpy_load", "maybe_msc", "MultiStorageClientFeature"}
"""Names that Megatron's data modules import from other modules."""

_STEPS = "_gid_to_src_rank get_global_seqlens get_global_id_seqlens reroute_samples_to_hdp_ranks unpack_batch"
_MASKED = "MaskedWordPieceDataset._build_sample_index MaskedWordPieceDataset._create_masked_lm_predictions"
_S3_CLIENT = "close download_file get_object head_object upload_file"
_MISSING = {
    "core.datasets.blended_megatron_dataset_builder": {
        "_get_size_per_split_per_dataset": "private: `blending.quota` computes sizes"
    },
    "core.datasets.data_schedule": {
        **{f"HybridCPDataLoaderWrapper.{name}": "a step of `__next__`" for name in _STEPS.split()},
        "_get_global_seqlens_and_ids": "private; exported by `data_schedule_utils`",
    },
    "core.datasets.data_schedule_utils": {"_pack_sequences": "private: `packing` makes packs"},
    "core.datasets.indexed_dataset": {
        "_IndexWriter._sequence_pointers": "computed for all sequences at once",
        "_S3BinReader._extract_from_cache": "the storage room caches ranges",
    },
    "core.datasets.object_storage_utils": {
        **dict.fromkeys(("_is_msc_path", "_is_s3_path", "_remove_msc_prefix", "_remove_s3_prefix"), "private"),
        **dict.fromkeys(("_s3_download_file", "_s3_object_exists"), "private: there is no boto3 client"),
        **{f"S3Client.{name}": "there is no boto3 client" for name in _S3_CLIENT.split()},
    },
    "core.datasets.bert_dataset": {"BERTMaskedWordPieceDataset._get_token_mask": "kernels mask sentences"},
    "core.datasets.masked_dataset": {
        **dict.fromkeys(_MASKED.split(), "kernels choose and mask sentences"),
        "MaskedWordPieceDataset._get_token_mask": "kernels mask sentences",
    },
    "core.datasets.t5_dataset": {
        "T5MaskedWordPieceDataset._get_token_mask": "kernels mask sentences",
        "T5MaskedWordPieceDataset._build_b1ss_attention_mask": "`config_attention_mask` returns it",
    },
    "training.datasets.varlen_dataset": {"_ensure_str_content": "private"},
    "training.datasets.data_samplers": {
        "HybridCPMegatronPretrainingSampler.get_start_end_idx_global_batch": "`get_start_end_idx` is the hook"
    },
}
"""The missing names by module, each with the reason."""

MISSING_NAMES = {f"megatron.{module}.{name}" for module, names in _MISSING.items() for name in names}

NO_FUNCTIONS = {"class", "value", "import", "property"}

MISSING = object()


def find(module: Any, path: str) -> Any:
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


def mismatch(value: Any, expected: str) -> str | None:
    """Returns why a function cannot be called like Megatron's; None if it can."""
    try:
        parameters = list(inspect.signature(value).parameters.values())
    except (TypeError, ValueError):
        return None
    parameters = [parameter for parameter in parameters if parameter.name not in ("self", "cls")]
    if "*" in expected:
        return None
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    takes_more = any(parameter.kind in variadic for parameter in parameters)
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
    required = {each.name for each in parameters if each.default is each.empty and each.kind not in variadic}
    more = sorted(required - {name.partition("=")[0] for name in wanted})
    return f"requires {more} too" if more else None


def faults() -> dict[str, str]:
    found = {}
    for reference, names in TABLE.items():
        ours = import_module(OURS[reference])
        for name, (kind, versions) in names.items():
            if name in NOT_ABOUT_DATA or (kind == "import" and name not in KNOWN):
                continue
            member = name.rpartition(".")[2]
            if member.startswith("__") and member not in ("__init__", "__getitem__", "__call__"):
                continue  # Python calls those, by position
            value = find(ours, name)
            where = f"{reference}.{name}"
            if value is MISSING:
                found[where] = f"missing ({kind}; {versions})"
            elif kind not in NO_FUNCTIONS and callable(value) and (reason := mismatch(value, kind)):
                found[where] = reason
    return found


KNOWN = {name for names in TABLE.values() for name, (kind, _) in names.items() if kind != "import"}


def test_every_module_of_megatron_exists():
    assert [name for name, ours in OURS.items() if util.find_spec(ours) is None] == []
    assert {"megatron", "megatron.core", "megatron.legacy.data"} < PACKAGES


def test_every_name_exists_and_is_called_alike():
    found = faults()
    assert {name: fault for name, fault in found.items() if name not in MISSING_NAMES} == {}
    assert set(found) >= MISSING_NAMES, "remove names that exist by now"
