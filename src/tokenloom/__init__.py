"""tokenloom: the data pipeline that feeds large-language-model training.

Text becomes tokenised `.bin`/`.idx` files, and those become exactly the right batches on every rank. Importing this
package loads neither torch nor a tokenizer library; what needs them imports them when it is called.
"""

from tokenloom.blending.blended import BlendedDataset
from tokenloom.blending.builder import BlendedMegatronDatasetBuilder
from tokenloom.blending.plan import BuildPlan, plan_build
from tokenloom.blending.spec import get_blend_from_list, parse_blend
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
from tokenloom.distributed.collectives import measure_traffic
from tokenloom.errors import (
    AccessDeniedError,
    AmbiguousPadWarning,
    BuildError,
    CacheNotWrittenWarning,
    ConfigError,
    DatasetFormatError,
    DatasetNotFoundError,
    DivergenceError,
    DuplicateDataWarning,
    IgnoredSettingWarning,
    IndexCacheError,
    InputError,
    MissingExtraError,
    MissingObjectError,
    OversampledError,
    ReplacedObjectError,
    ShortDatasetWarning,
    StorageError,
    TokenizerError,
    TokenizerMismatchWarning,
    TokenloomError,
    TokenloomWarning,
    TokenRangeError,
    UnavailableError,
    UntrainableWarning,
)
from tokenloom.indexed.builder import IndexedDatasetBuilder
from tokenloom.indexed.catalogue_builder import build_catalogue
from tokenloom.indexed.concatenate import write_concatenated
from tokenloom.indexed.counts import sequence_counts
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import DType
from tokenloom.indexed.merge import merge_datasets
from tokenloom.indexed.selection import ConcatenatedPart
from tokenloom.indexed.statistics import DatasetStatistics
from tokenloom.indexed.verify import VerifyReport, verify_dataset
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
from tokenloom.preprocess.tokenizers import HuggingFaceTokenizer, TextTokenizer, load_tokenizer
from tokenloom.storage.settings import ObjectStorageSettings
from tokenloom.storage.statistics import SourceStatistics, storage_statistics

__all__ = [
    "AccessDeniedError",
    "AmbiguousPadWarning",
    "BERTMaskedWordPieceDataset",
    "BERTMaskedWordPieceDatasetConfig",
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
    "ChatLedger",
    "ChatSummary",
    "ConcatenatedPart",
    "ConfigError",
    "CostBalancedScheduler",
    "DType",
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
    "OversampledError",
    "PackPlan",
    "PackReport",
    "PackedSeqParams",
    "PackingConfig",
    "PolynomialCost",
    "ProcessGroups",
    "RampupPretrainingSampler",
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
    "VerifyReport",
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
    "preview_documents",
    "reroute_samples_to_dcp_ranks",
    "scheduler_map",
    "sequence_counts",
    "split_of",
    "storage_statistics",
    "verify_dataset",
    "wrap_data_iterator",
    "wrap_dataset",
    "write_concatenated",
]
