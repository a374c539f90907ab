"""tokenloom: the data pipeline that feeds large-language-model training.

Text becomes tokenized `.bin`/`.idx` files, and those become exactly the right batches on every rank. What most programs
need is here; the rest lies in namespaces, named after what it is about:

- `tokenloom.preprocessing`, `tokenloom.tokenizers`: text and conversations into datasets
- `tokenloom.indexed`: `.bin`/`.idx` pairs, read, written, merged, checked
- `tokenloom.datasets`, `tokenloom.blending`, `tokenloom.order`: samples by number, of one dataset or many
- `tokenloom.run`: all data of a training run as one dataset, which may change while it runs
- `tokenloom.samplers`, `tokenloom.loading`: which samples a rank takes, and batches of them
- `tokenloom.packing`, `tokenloom.distributed`: packs of variable lengths, balanced over ranks; what ranks do together
- `tokenloom.storage`: object stores
- `tokenloom.adapters`: what other frameworks take as a loader, a dataset or a source
- `tokenloom.errors`: every error and warning
- `tokenloom.testing`: checks of datasets, orders and stores of your own

A public name loads its module when it is first asked for: a process pays for what it uses, and importing this package
loads neither NumPy nor torch.
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

if TYPE_CHECKING:  # namespaces, where only `import tokenloom` is written; after the names, of which some are called so
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

    # Some names at the top come from modules that are called so, too; and that is what checkers would see.
    __all__ += ["datasets", "run"]

_NAMESPACES = (
    "adapters",
    "blending",
    "datasets",
    "distributed",
    "errors",
    "indexed",
    "loading",
    "order",
    "packing",
    "preprocessing",
    "run",
    "samplers",
    "storage",
    "testing",
    "tokenizers",
)
"""Where public names are found; each is found here too, since once all stood here."""

if not TYPE_CHECKING:  # with it, type checkers would take any name

    def __getattr__(name: str) -> Any:
        value = _find(name)
        globals()[name] = value  # the next time it is found without asking here
        return value


def _find(name: str) -> Any:
    if name in _NAMESPACES:
        return import_module(f"{__name__}.{name}")
    is_module = PathFinder.find_spec(f"{__name__}.{name}", __path__) is not None  # `from tokenloom import kernels`
    if not name.startswith("_") and not is_module:
        for namespace in _NAMESPACES:
            module = import_module(f"{__name__}.{namespace}")
            if name in getattr(module, "__all__", vars(module)):
                return getattr(module, name)
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)


def __dir__() -> list[str]:
    return sorted({*__all__, *_NAMESPACES, *(name for name in globals() if name.startswith("__"))})
