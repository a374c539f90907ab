"""tokenloom: the data pipeline that feeds large-language-model training."""

from tokenloom.indexed.builder import IndexedDatasetBuilder
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import DType

__all__ = ["DType", "IndexedDataset", "IndexedDatasetBuilder"]
