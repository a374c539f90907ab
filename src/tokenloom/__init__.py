"""tokenloom: a data pipeline for training large language models.

It tokenizes text into `.bin`/`.idx` files, and loads the batches of each rank from these files. The most common names
are listed in `__all__`; each public name is in one of these namespaces:

- `tokenloom.preprocessing`, `tokenloom.tokenizers`: turn text and conversations into datasets
- `tokenloom.indexed`: read, write, merge and check `.bin`/`.idx` pairs
- `tokenloom.datasets`, `tokenloom.blending`, `tokenloom.order`: the samples of one dataset or of a blend, by index
- `tokenloom.run`: all data of a training run as one dataset; the run can be amended during training
- `tokenloom.samplers`, `tokenloom.loading`: assign samples to ranks and load batches
- `tokenloom.packing`, `tokenloom.distributed`: pack samples of variable length; synchronize ranks
- `tokenloom.storage`: object stores
- `tokenloom.adapters`: loaders, datasets and sources for other frameworks
- `tokenloom.errors`: all errors and warnings
- `tokenloom.testing`: check your own datasets, orders and stores

The module of a public name is imported on first use of the name; `import tokenloom` imports neither NumPy nor torch.
"""

from importlib import import_module
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any

from tokenloom.supported import check_native, check_python

__version__ = "0.2.0"

check_python()
check_native(__version__)

if TYPE_CHECKING:
    from tokenloom.adapters import *
    from tokenloom.blending import *
    from tokenloom.datasets import *
    from tokenloom.distributed import *
    from tokenloom.errors import *
    from tokenloom.indexed import *
    from tokenloom.loading import *
    from tokenloom.order import *
    from tokenloom.packing import *
    from tokenloom.preprocessing import *
    from tokenloom.run import *
    from tokenloom.samplers import *
    from tokenloom.storage import *
    from tokenloom.testing import *
    from tokenloom.tokenizers import *

__all__ = [
    "BERTMaskedWordPieceDataset",
    "BERTMaskedWordPieceDatasetConfig",
    "BlendedDataset",
    "BlendedMegatronDatasetBuilder",
    "BlockShuffle",
    "ConcatenatedPart",
    "CorpusSettings",
    "GPTDataset",
    "GPTDatasetConfig",
    "GPTFIMDataset",
    "GPTFIMDatasetConfig",
    "IndexedDataset",
    "IndexedDatasetBuilder",
    "MegatronDataset",
    "MegatronPretrainingRandomSampler",
    "MegatronPretrainingSampler",
    "ObjectStorageSettings",
    "PackedSeqParams",
    "PackingConfig",
    "ProcessGroups",
    "Run",
    "SFTDataset",
    "SFTDatasetConfig",
    "Split",
    "T5MaskedWordPieceDataset",
    "T5MaskedWordPieceDatasetConfig",
    "ThreadLoader",
    "TokenloomError",
    "VarlenDataset",
    "VarlenDatasetConfig",
    "build_catalogue",
    "build_dataloader",
    "get_batch_on_this_rank_for_sequence_packing",
    "load",
    "load_tokenizer",
    "loader_statistics",
    "merge_datasets",
    "parse_blend",
    "preprocess_chat",
    "preprocess_corpus",
    "verify_dataset",
    "wrap_data_iterator",
    "wrap_dataset",
    "write_concatenated",
]

if TYPE_CHECKING:  # after the names above, because some namespaces have the same name as a function
    from tokenloom import adapters as adapters
    from tokenloom import blending as blending
    from tokenloom import datasets as datasets
    from tokenloom import distributed as distributed
    from tokenloom import errors as errors
    from tokenloom import indexed as indexed
    from tokenloom import loading as loading
    from tokenloom import order as order
    from tokenloom import packing as packing
    from tokenloom import preprocessing as preprocessing
    from tokenloom import run as run
    from tokenloom import samplers as samplers
    from tokenloom import storage as storage
    from tokenloom import testing as testing
    from tokenloom import tokenizers as tokenizers

    # Otherwise type checkers would mistake these names for modules of the same name.
    __all__ += ["datasets", "run"]

_NAMESPACES = (
    *("adapters", "blending", "datasets", "distributed", "errors", "indexed", "loading", "order", "packing"),
    *("preprocessing", "run", "samplers", "storage", "testing", "tokenizers"),
)
"""Namespaces whose public names are also attributes of `tokenloom`."""

if not TYPE_CHECKING:  # with `__getattr__`, type checkers would accept any name

    def __getattr__(name: str) -> Any:
        value = globals()[name] = _find(name)
        return value


def _find(name: str) -> Any:
    if name in _NAMESPACES:
        return import_module(f"{__name__}.{name}")
    is_module = PathFinder.find_spec(f"{__name__}.{name}", __path__) is not None  # for `from tokenloom import kernels`
    if not name.startswith("_") and not is_module:
        for namespace in _NAMESPACES:
            module = import_module(f"{__name__}.{namespace}")
            if name in getattr(module, "__all__", vars(module)):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_NAMESPACES, *(name for name in globals() if name.startswith("__"))})
