"""Which record of which input file each document of a job's datasets was made of.

A part knows which records of its shard gave no document; all others gave one each, in their order. How many records
each slice has is in the reports, so that those of a file can be numbered from its beginning.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tokenloom.corpus.part_files import DonePart, part_hashes, part_left_out
from tokenloom.corpus.plan import PlannedOutput
from tokenloom.corpus.recipe import PlannedDataset, Recipe
from tokenloom.errors import StorageError
from tokenloom.indexed.document_hashes import write_document_hashes
from tokenloom.indexed.manifest.contents import Manifest, PairFacts
from tokenloom.indexed.origins import OriginFile, OriginRuns, write_runs
from tokenloom.indexed.writing.outputs import AnyPending
from tokenloom.inputs.formats import FORMATS
from tokenloom.inputs.left_out import documents_between
from tokenloom.preprocess.selection import DocumentHashes


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentOrigins:
    """The origins of all documents of an output, duplicates included.

    Attributes:
        files: the input files, as the manifest names them.
        parts: all parts, in order.
        slices: of each part: the number of the file of each slice, and the records of that file before the slice.
    """

    files: tuple[OriginFile, ...]
    parts: Sequence[DonePart]
    slices: Sequence[Sequence[tuple[int, int]]]

    @classmethod
    def of(cls, recipe: Recipe, output: PlannedOutput, parts: Sequence[DonePart]) -> DocumentOrigins:
        """Returns those of an output, from the reports of its parts."""
        recorded = recipe.recorded(output.files)
        units = {file.path: recipe.unit or FORMATS[file.format].unit for file in output.files}
        numbers = {record.path: number for number, record in enumerate(recorded)}
        num_records: dict[int, int] = defaultdict(int)
        slices: list[list[tuple[int, int]]] = []
        for part in parts:
            slices.append([])
            for slice_, num_rows in zip(part.shard.slices, part.report.slice_rows, strict=True):
                number = numbers[slice_.file.path]
                slices[-1].append((number, num_records[number]))
                num_records[number] += num_rows
        files = [
            OriginFile(
                path=record.path,
                num_bytes=record.num_bytes,
                version=record.version or None,
                unit=units[record.path],
                num_records=num_records[number],
            )
            for number, record in enumerate(recorded)
        ]
        return cls(files=tuple(files), parts=parts, slices=slices)

    def runs(self, split: int | None) -> Iterator[OriginRuns]:
        """Yields the origins of the documents that a dataset takes, part by part."""
        for part, slices in zip(self.parts, self.slices, strict=True):
            runs = _runs_of(part, slices)
            mask = part.chosen(split)
            yield runs if mask is None else runs.select(mask)


class BesidePair:
    """The origins and the hashes of a dataset, written when its manifest is made, which tells their checksums.

    Args:
        planned: the dataset.
        parts: parts that it takes documents of, in order.
        origins: origins of all documents of these; None to write none.
        has_hashes: whether to write the hashes of its documents.

    Attributes:
        origins_file, hashes_file: the files, without names yet; None before the manifest is made, and where there is
            none to be.
    """

    def __init__(
        self,
        planned: PlannedDataset,
        parts: Sequence[DonePart],
        *,
        origins: DocumentOrigins | None,
        has_hashes: bool,
    ) -> None:
        self._planned = planned
        self._parts = parts
        self._origins = origins
        self._has_hashes = has_hashes
        self.origins_file: AnyPending | None = None
        self.hashes_file: AnyPending | None = None

    def manifest(self, make: Callable[[PairFacts], Manifest], pair: PairFacts) -> Manifest:
        """Writes the files, and returns the manifest.

        Args:
            make: makes the manifest from what the pair holds.
            pair: what the pair holds, without these files.
        """
        self.discard()  # of an attempt before
        prefix, start = self._planned.prefix, pair.index_start_crc32
        if self._origins is not None:
            runs = self._origins.runs(self._planned.split_number)
            files = self._origins.files
            self.origins_file, checksum = write_runs(prefix, files, runs, index_start_crc32=start)
            pair = replace(pair, origins=checksum)
        if self._has_hashes:
            self.hashes_file, checksum = write_document_hashes(prefix, self._hashes(), index_start_crc32=start)
            pair = replace(pair, hashes=checksum)
        return make(pair)

    def discard(self) -> None:
        """Gives up what was written; harmless when repeated."""
        for file in (self.origins_file, self.hashes_file):
            if file is not None:
                file.discard()

    def _hashes(self) -> Iterator[DocumentHashes]:
        for part in self._parts:
            hashes = part_hashes(part.prefix, self._planned.column)
            mask = part.chosen(self._planned.split_number)
            yield hashes if mask is None else hashes[mask]


def _runs_of(part: DonePart, slices: Sequence[tuple[int, int]]) -> OriginRuns:
    """Returns the origins of all documents of a part.

    Raises:
        StorageError: the report and the files of the part do not fit together.
    """
    left_out = part_left_out(part.prefix, part.report)
    files = [np.empty(0, dtype=np.int32)]
    firsts, counts = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    start = 0
    for (number, num_before), num_rows in zip(slices, part.report.slice_rows, strict=True):
        runs = documents_between(left_out, start, start + num_rows)
        files.append(np.full(len(runs), number, dtype=np.int32))
        firsts.append(runs[:, 0] - start + num_before + 1)
        counts.append(runs[:, 1])
        start += num_rows
    found = OriginRuns(
        file_numbers=np.concatenate(files),
        first_records=np.concatenate(firsts),
        num_documents=np.concatenate(counts),
    )
    if (num_documents := int(found.num_documents.sum())) != part.report.num_documents:
        message = f"`{part.prefix}`: expected {part.report.num_documents} documents of its records, "
        message += f"found {num_documents} of {start}"
        raise StorageError(message, hint="its input format counts records wrongly; leave the origins out")
    return found
