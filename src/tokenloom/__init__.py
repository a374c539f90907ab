"""tokenloom: the data pipeline that feeds large-language-model training.

Text becomes tokenised `.bin`/`.idx` files, and those become exactly the right batches on every rank. Importing this
package loads neither torch nor a tokenizer library; what needs them imports them when it is called.

A public name loads its module when it is first asked for: a process pays for what it uses.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenloom.blending.blended import BlendedDataset
    from tokenloom.blending.builder import BlendedMegatronDatasetBuilder
    from tokenloom.blending.plan import BuildPlan, plan_build
    from tokenloom.blending.spec import get_blend_from_list, parse_blend
    from tokenloom.corpus.preview import preview_corpus
    from tokenloom.corpus.progress import CorpusProgress
    from tokenloom.corpus.ray_runner import RayRunner
    from tokenloom.corpus.run import preprocess_corpus
    from tokenloom.corpus.settings import BadRecordBudget, CorpusSettings
    from tokenloom.corpus.summary import CorpusSummary
    from tokenloom.corpus.tuning import find_optimal_workers
    from tokenloom.datasets.base import MegatronDataset
    from tokenloom.datasets.bert import BERTMaskedWordPieceDataset, BERTMaskedWordPieceDatasetConfig
    from tokenloom.datasets.chat_config import SFTDatasetConfig, VarlenDatasetConfig
    from tokenloom.datasets.chat_data import SFTLowLevelDataset
    from tokenloom.datasets.config import BlendedMegatronDatasetConfig, GPTDatasetConfig
    from tokenloom.datasets.fim import GPTFIMDataset, GPTFIMDatasetConfig
    from tokenloom.datasets.gpt import GPTDataset
    from tokenloom.datasets.ledger import ChatLedger
    from tokenloom.datasets.masked import MaskedWordPieceDataset, MaskedWordPieceDatasetConfig
    from tokenloom.datasets.mock import MockGPTDataset, MockGPTLowLevelDataset
    from tokenloom.datasets.multimodal import MockMultimodalDataset, MultimodalDatasetConfig
    from tokenloom.datasets.sft import SFTDataset
    from tokenloom.datasets.splits import Split
    from tokenloom.datasets.t5 import T5MaskedWordPieceDataset, T5MaskedWordPieceDatasetConfig
    from tokenloom.datasets.tensors import SampleBatch
    from tokenloom.datasets.varlen import MockVarlenDataset, MockVarlenLowLevelDataset, VarlenDataset
    from tokenloom.datasets.verified import verification_of
    from tokenloom.distributed.collectives import measure_traffic
    from tokenloom.distributed.silence import set_rank_silence_seconds
    from tokenloom.errors import (
        AccessDeniedError,
        AmbiguousPadWarning,
        BuildError,
        CacheNotWrittenWarning,
        ChangedFileError,
        ConfigError,
        DataMismatchWarning,
        DatasetFormatError,
        DatasetNotFoundError,
        DivergenceError,
        DuplicateDataWarning,
        IgnoredSettingWarning,
        IndexCacheError,
        InputError,
        MissingEodWarning,
        MissingExtraError,
        MissingObjectError,
        OutputBusyError,
        OutputExistsError,
        OversampledError,
        RefusedTextError,
        ReplacedObjectError,
        ShortDatasetWarning,
        StorageError,
        StuckRecordError,
        TokenizerError,
        TokenizerMismatchWarning,
        TokenloomError,
        TokenloomWarning,
        TokenRangeError,
        UnavailableError,
        UntrainableWarning,
        WorkerError,
    )
    from tokenloom.indexed.counts import sequence_counts
    from tokenloom.indexed.dataset import IndexedDataset
    from tokenloom.indexed.layout import DType
    from tokenloom.indexed.statistics import DatasetStatistics
    from tokenloom.indexed.verification import Verification
    from tokenloom.indexed.verify import VerifyReport, verify_dataset
    from tokenloom.indexed.writing.builder import IndexedDatasetBuilder
    from tokenloom.indexed.writing.catalogue_builder import build_catalogue
    from tokenloom.indexed.writing.concatenate import write_concatenated
    from tokenloom.indexed.writing.kept_documents import ConcatenatedPart
    from tokenloom.indexed.writing.merge import merge_datasets
    from tokenloom.inputs.find import find_inputs
    from tokenloom.loading.digest import check_same_batches
    from tokenloom.loading.loader import build_dataloader
    from tokenloom.loading.rampup import BatchSizeRampup, RampupPretrainingSampler
    from tokenloom.loading.random_sampler import MegatronPretrainingRandomSampler
    from tokenloom.loading.read_ahead import loader_statistics
    from tokenloom.loading.samplers import (
        HybridCPMegatronPretrainingSampler,
        MegatronFullValidationSampler,
        MegatronPretrainingSampler,
    )
    from tokenloom.loading.thread_loader import DataWait, ThreadLoader
    from tokenloom.order.block_shuffle import BlockShuffle, Mixing
    from tokenloom.order.packs import BestFitReport, best_fit_report
    from tokenloom.order.sentences import build_blocks_mapping, build_mapping
    from tokenloom.order.windows import Spans
    from tokenloom.packing.batch import build_packed_microbatches, get_batch_on_this_rank_for_sequence_packing
    from tokenloom.packing.config import PackingConfig
    from tokenloom.packing.context_parallel import PackedSeqParams, context_parallel_indices
    from tokenloom.packing.cost import PolynomialCost
    from tokenloom.packing.exchange import (
        GlobalBatch,
        broadcast_scalars,
        broadcast_tensor,
        broadcast_to_pp_group,
        create_data_iterator,
        get_batch_and_global_seqlens,
        reroute_samples_to_dcp_ranks,
        wrap_data_iterator,
    )
    from tokenloom.packing.groups import ProcessGroups
    from tokenloom.packing.known_lengths import SizedDataset, wrap_dataset
    from tokenloom.packing.plan import PackPlan
    from tokenloom.packing.plot import plot_pack_report
    from tokenloom.packing.report import PackReport, pack_report
    from tokenloom.packing.schedulers import (
        BasePackingScheduler,
        CostBalancedScheduler,
        DpBalancedScheduler,
        HybridCostBalancedScheduler,
        scheduler_map,
    )
    from tokenloom.preprocess.chat import ChatSummary, preprocess_chat
    from tokenloom.preprocess.document_tokens import DocumentTokens
    from tokenloom.preprocess.preview import DocumentPreview, preview_documents
    from tokenloom.preprocess.selection import first_occurrences, split_of
    from tokenloom.preprocess.sentences import SentenceSplitter
    from tokenloom.preprocess.template_limits import RenderLimits
    from tokenloom.storage.settings import ObjectStorageSettings
    from tokenloom.storage.statistics import SourceStatistics, storage_statistics
    from tokenloom.tokenizers.huggingface import HuggingFaceTokenizer
    from tokenloom.tokenizers.load import load_tokenizer
    from tokenloom.tokenizers.text_tokenizer import TextTokenizer

__all__ = [
    "AccessDeniedError",
    "AmbiguousPadWarning",
    "BERTMaskedWordPieceDataset",
    "BERTMaskedWordPieceDatasetConfig",
    "BadRecordBudget",
    "BasePackingScheduler",
    "BatchSizeRampup",
    "BestFitReport",
    "BlendedDataset",
    "BlendedMegatronDatasetBuilder",
    "BlendedMegatronDatasetConfig",
    "BlockShuffle",
    "BuildError",
    "BuildPlan",
    "CacheNotWrittenWarning",
    "ChangedFileError",
    "ChatLedger",
    "ChatSummary",
    "ConcatenatedPart",
    "ConfigError",
    "CorpusProgress",
    "CorpusSettings",
    "CorpusSummary",
    "CostBalancedScheduler",
    "DType",
    "DataMismatchWarning",
    "DataWait",
    "DatasetFormatError",
    "DatasetNotFoundError",
    "DatasetStatistics",
    "DivergenceError",
    "DocumentPreview",
    "DocumentTokens",
    "DpBalancedScheduler",
    "DuplicateDataWarning",
    "GPTDataset",
    "GPTDatasetConfig",
    "GPTFIMDataset",
    "GPTFIMDatasetConfig",
    "GlobalBatch",
    "HuggingFaceTokenizer",
    "HybridCPMegatronPretrainingSampler",
    "HybridCostBalancedScheduler",
    "IgnoredSettingWarning",
    "IndexCacheError",
    "IndexedDataset",
    "IndexedDatasetBuilder",
    "InputError",
    "MaskedWordPieceDataset",
    "MaskedWordPieceDatasetConfig",
    "MegatronDataset",
    "MegatronFullValidationSampler",
    "MegatronPretrainingRandomSampler",
    "MegatronPretrainingSampler",
    "MissingEodWarning",
    "MissingExtraError",
    "MissingObjectError",
    "Mixing",
    "MockGPTDataset",
    "MockGPTLowLevelDataset",
    "MockMultimodalDataset",
    "MockVarlenDataset",
    "MockVarlenLowLevelDataset",
    "MultimodalDatasetConfig",
    "ObjectStorageSettings",
    "OutputBusyError",
    "OutputExistsError",
    "OversampledError",
    "PackPlan",
    "PackReport",
    "PackedSeqParams",
    "PackingConfig",
    "PolynomialCost",
    "ProcessGroups",
    "RampupPretrainingSampler",
    "RayRunner",
    "RefusedTextError",
    "RenderLimits",
    "ReplacedObjectError",
    "SFTDataset",
    "SFTDatasetConfig",
    "SFTLowLevelDataset",
    "SampleBatch",
    "SentenceSplitter",
    "ShortDatasetWarning",
    "SizedDataset",
    "SourceStatistics",
    "Spans",
    "Split",
    "StorageError",
    "StuckRecordError",
    "T5MaskedWordPieceDataset",
    "T5MaskedWordPieceDatasetConfig",
    "TextTokenizer",
    "ThreadLoader",
    "TokenRangeError",
    "TokenizerError",
    "TokenizerMismatchWarning",
    "TokenloomError",
    "TokenloomWarning",
    "UnavailableError",
    "UntrainableWarning",
    "VarlenDataset",
    "VarlenDatasetConfig",
    "Verification",
    "VerifyReport",
    "WorkerError",
    "best_fit_report",
    "broadcast_scalars",
    "broadcast_tensor",
    "broadcast_to_pp_group",
    "build_blocks_mapping",
    "build_catalogue",
    "build_dataloader",
    "build_mapping",
    "build_packed_microbatches",
    "check_same_batches",
    "context_parallel_indices",
    "create_data_iterator",
    "find_inputs",
    "find_optimal_workers",
    "first_occurrences",
    "get_batch_and_global_seqlens",
    "get_batch_on_this_rank_for_sequence_packing",
    "get_blend_from_list",
    "load_tokenizer",
    "loader_statistics",
    "measure_traffic",
    "merge_datasets",
    "pack_report",
    "parse_blend",
    "plan_build",
    "plot_pack_report",
    "preprocess_chat",
    "preprocess_corpus",
    "preview_corpus",
    "preview_documents",
    "reroute_samples_to_dcp_ranks",
    "scheduler_map",
    "sequence_counts",
    "set_rank_silence_seconds",
    "split_of",
    "storage_statistics",
    "verification_of",
    "verify_dataset",
    "wrap_data_iterator",
    "wrap_dataset",
    "write_concatenated",
]

_HOMES = {
    "AccessDeniedError": "errors",
    "AmbiguousPadWarning": "errors",
    "BERTMaskedWordPieceDataset": "datasets.bert",
    "BERTMaskedWordPieceDatasetConfig": "datasets.bert",
    "BadRecordBudget": "corpus.settings",
    "BasePackingScheduler": "packing.schedulers",
    "BatchSizeRampup": "loading.rampup",
    "BestFitReport": "order.packs",
    "BlendedDataset": "blending.blended",
    "BlendedMegatronDatasetBuilder": "blending.builder",
    "BlendedMegatronDatasetConfig": "datasets.config",
    "BlockShuffle": "order.block_shuffle",
    "BuildError": "errors",
    "BuildPlan": "blending.plan",
    "CacheNotWrittenWarning": "errors",
    "ChangedFileError": "errors",
    "ChatLedger": "datasets.ledger",
    "ChatSummary": "preprocess.chat",
    "ConcatenatedPart": "indexed.writing.kept_documents",
    "ConfigError": "errors",
    "CorpusProgress": "corpus.progress",
    "CorpusSettings": "corpus.settings",
    "CorpusSummary": "corpus.summary",
    "CostBalancedScheduler": "packing.schedulers",
    "DType": "indexed.layout",
    "DataWait": "loading.thread_loader",
    "DatasetFormatError": "errors",
    "DatasetNotFoundError": "errors",
    "DatasetStatistics": "indexed.statistics",
    "DivergenceError": "errors",
    "DocumentPreview": "preprocess.preview",
    "DocumentTokens": "preprocess.document_tokens",
    "DpBalancedScheduler": "packing.schedulers",
    "DataMismatchWarning": "errors",
    "DuplicateDataWarning": "errors",
    "GPTDataset": "datasets.gpt",
    "GPTDatasetConfig": "datasets.config",
    "GPTFIMDataset": "datasets.fim",
    "GPTFIMDatasetConfig": "datasets.fim",
    "GlobalBatch": "packing.exchange",
    "HuggingFaceTokenizer": "tokenizers.huggingface",
    "HybridCPMegatronPretrainingSampler": "loading.samplers",
    "HybridCostBalancedScheduler": "packing.schedulers",
    "IgnoredSettingWarning": "errors",
    "IndexCacheError": "errors",
    "IndexedDataset": "indexed.dataset",
    "IndexedDatasetBuilder": "indexed.writing.builder",
    "InputError": "errors",
    "MaskedWordPieceDataset": "datasets.masked",
    "MaskedWordPieceDatasetConfig": "datasets.masked",
    "MegatronDataset": "datasets.base",
    "MegatronFullValidationSampler": "loading.samplers",
    "MegatronPretrainingRandomSampler": "loading.random_sampler",
    "MegatronPretrainingSampler": "loading.samplers",
    "MissingEodWarning": "errors",
    "MissingExtraError": "errors",
    "MissingObjectError": "errors",
    "Mixing": "order.block_shuffle",
    "MockGPTDataset": "datasets.mock",
    "MockGPTLowLevelDataset": "datasets.mock",
    "MockMultimodalDataset": "datasets.multimodal",
    "MockVarlenDataset": "datasets.varlen",
    "MockVarlenLowLevelDataset": "datasets.varlen",
    "MultimodalDatasetConfig": "datasets.multimodal",
    "ObjectStorageSettings": "storage.settings",
    "OutputBusyError": "errors",
    "OutputExistsError": "errors",
    "OversampledError": "errors",
    "PackPlan": "packing.plan",
    "PackReport": "packing.report",
    "PackedSeqParams": "packing.context_parallel",
    "PackingConfig": "packing.config",
    "PolynomialCost": "packing.cost",
    "ProcessGroups": "packing.groups",
    "RampupPretrainingSampler": "loading.rampup",
    "RayRunner": "corpus.ray_runner",
    "RefusedTextError": "errors",
    "RenderLimits": "preprocess.template_limits",
    "ReplacedObjectError": "errors",
    "SFTDataset": "datasets.sft",
    "SFTDatasetConfig": "datasets.chat_config",
    "SFTLowLevelDataset": "datasets.chat_data",
    "SampleBatch": "datasets.tensors",
    "SentenceSplitter": "preprocess.sentences",
    "ShortDatasetWarning": "errors",
    "SizedDataset": "packing.known_lengths",
    "SourceStatistics": "storage.statistics",
    "Spans": "order.windows",
    "Split": "datasets.splits",
    "StorageError": "errors",
    "StuckRecordError": "errors",
    "T5MaskedWordPieceDataset": "datasets.t5",
    "T5MaskedWordPieceDatasetConfig": "datasets.t5",
    "TextTokenizer": "tokenizers.text_tokenizer",
    "ThreadLoader": "loading.thread_loader",
    "TokenRangeError": "errors",
    "TokenizerError": "errors",
    "TokenizerMismatchWarning": "errors",
    "TokenloomError": "errors",
    "TokenloomWarning": "errors",
    "UnavailableError": "errors",
    "UntrainableWarning": "errors",
    "VarlenDataset": "datasets.varlen",
    "VarlenDatasetConfig": "datasets.chat_config",
    "Verification": "indexed.verification",
    "VerifyReport": "indexed.verify",
    "WorkerError": "errors",
    "best_fit_report": "order.packs",
    "broadcast_scalars": "packing.exchange",
    "broadcast_tensor": "packing.exchange",
    "broadcast_to_pp_group": "packing.exchange",
    "build_blocks_mapping": "order.sentences",
    "build_catalogue": "indexed.writing.catalogue_builder",
    "build_dataloader": "loading.loader",
    "build_mapping": "order.sentences",
    "build_packed_microbatches": "packing.batch",
    "check_same_batches": "loading.digest",
    "context_parallel_indices": "packing.context_parallel",
    "create_data_iterator": "packing.exchange",
    "find_inputs": "inputs.find",
    "find_optimal_workers": "corpus.tuning",
    "first_occurrences": "preprocess.selection",
    "get_batch_and_global_seqlens": "packing.exchange",
    "get_batch_on_this_rank_for_sequence_packing": "packing.batch",
    "get_blend_from_list": "blending.spec",
    "load_tokenizer": "tokenizers.load",
    "loader_statistics": "loading.read_ahead",
    "measure_traffic": "distributed.collectives",
    "merge_datasets": "indexed.writing.merge",
    "pack_report": "packing.report",
    "parse_blend": "blending.spec",
    "plan_build": "blending.plan",
    "plot_pack_report": "packing.plot",
    "preprocess_chat": "preprocess.chat",
    "preprocess_corpus": "corpus.run",
    "preview_corpus": "corpus.preview",
    "preview_documents": "preprocess.preview",
    "reroute_samples_to_dcp_ranks": "packing.exchange",
    "scheduler_map": "packing.schedulers",
    "sequence_counts": "indexed.counts",
    "set_rank_silence_seconds": "distributed.silence",
    "split_of": "preprocess.selection",
    "storage_statistics": "storage.statistics",
    "verification_of": "datasets.verified",
    "verify_dataset": "indexed.verify",
    "wrap_data_iterator": "packing.exchange",
    "wrap_dataset": "packing.known_lengths",
    "write_concatenated": "indexed.writing.concatenate",
}
"""The module of each public name, below `tokenloom`; the imports above say the same to type checkers."""


def __getattr__(name: str) -> Any:
    if (home := _HOMES.get(name)) is None:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value  # the next time it is found without asking here
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
