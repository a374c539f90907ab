"""What recipes have in common that make a single dataset of a single input, without choosing among its documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy import int8
from numpy.typing import NDArray

from tokenloom.corpus.recipe import Mask, PlannedDataset
from tokenloom.corpus.settings import BadRecordBudget
from tokenloom.indexed.manifest.contents import InputRecord
from tokenloom.inputs import InputFile, InputSlice
from tokenloom.inputs.cut import cut_inputs
from tokenloom.inputs.formats import FORMATS
from tokenloom.inputs.limits import ReadLimits, check_shard_bytes
from tokenloom.numbers import checked_number
from tokenloom.preprocess.selection import DocumentHashes
from tokenloom.setting_types import check_types


@dataclass(frozen=True, slots=True, kw_only=True)
class OnePairSettings:
    """What a job asks of settings, see `JobSettings`."""

    bad_records: BadRecordBudget
    shard_bytes: int
    record_timeout_seconds: float
    worker_timeout_seconds: float = 120.0
    origins: bool = True
    document_hashes: bool = False

    def __post_init__(self) -> None:
        """Checks the settings."""
        check_types(self)
        check_shard_bytes(self.shard_bytes)
        for name in ("record_timeout_seconds", "worker_timeout_seconds"):
            checked_number(name, getattr(self, name), above=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnePairRecipe:
    """The base of such recipes; see `Recipe` for its members.

    Attributes:
        settings: settings that the job asks for.
        limits: limits of what reading the input may take.
        inputs: what the manifest says of the input, as it was when the job was planned.
    """

    settings: OnePairSettings
    limits: ReadLimits
    inputs: tuple[InputRecord, ...]

    hashes_documents = False

    def groups(self, prefix: str, files: Sequence[InputFile]) -> list[tuple[str, Sequence[InputFile]]]:
        """Returns one output."""
        return [(prefix, files)]

    def datasets(self, prefix: str) -> Iterator[PlannedDataset]:
        """Yields one dataset, under the very prefix."""
        yield PlannedDataset(prefix=prefix)

    def cut(self, files: Sequence[InputFile]) -> Iterable[tuple[InputSlice, ...]]:
        """Returns the shards of some files."""
        return cut_inputs(files, shard_bytes=self.settings.shard_bytes)

    def recorded(self, _files: Sequence[InputFile]) -> tuple[InputRecord, ...]:
        """Returns what the manifest says of the input."""
        return self.inputs

    def unit(self, file: InputFile) -> str:
        """Returns what a record of a file is."""
        return FORMATS[file.format].unit

    def of_job(self) -> dict[str, Any]:
        """Returns what else processes must agree on."""
        return {"shard_bytes": self.settings.shard_bytes}

    def hash_options(self) -> dict[str, Any]:
        """Returns what is said of the hashes of documents, where they are asked for."""
        return {"document_hashes": True} if self.settings.document_hashes else {}

    def is_current(self, _slices: Sequence[InputSlice], _numbers: Mapping[str, int]) -> bool:
        """Returns that records lead to nothing else."""
        return True

    def select(self, hashes: Sequence[DocumentHashes]) -> tuple[Sequence[Mask | None], Sequence[NDArray[int8] | None]]:
        """Returns that all documents are kept."""
        none = [None] * len(hashes)
        return none, none
