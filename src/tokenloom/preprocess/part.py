"""The part of a shard in its job's folder: the report, which is written last, and the files before it.

Files are not flushed to the disk one by one: after a loss of power the checksums tell which must be done again.
"""

from __future__ import annotations

import base64
import json
import os
import time
import zlib
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from tokenloom.errors import StorageError, TokenloomError
from tokenloom.indexed.checksums import pair_facts
from tokenloom.indexed.columns import ColumnWriter
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import bin_path, idx_path
from tokenloom.indexed.manifests import DocumentLedger, Manifest, PairFacts, manifest_of
from tokenloom.indexed.roles import NAME, read_roles, roles_writer
from tokenloom.indexed.verify import check_columns
from tokenloom.indexed.writing.builder import IndexedDatasetBuilder
from tokenloom.inputs.lines import count_lines_before
from tokenloom.inputs.records import BadLine, LeftOut, joined_left_out
from tokenloom.machine import boot_id
from tokenloom.preprocess.blocks import TokenizedBlock, json_line, rejected_path
from tokenloom.preprocess.sharded import Counts
from tokenloom.storage.atomic import PendingFile, publish_bytes
from tokenloom.storage.json_files import Crc32, UnusableJsonError, from_versioned, parse_json, versioned_members_of
from tokenloom.storage.local import map_file

if TYPE_CHECKING:
    from tokenloom.preprocess.folder import JobFolder
    from tokenloom.preprocess.plan import JobPlan, PlannedShard

_VERSION = 2
_COUNTED = ("num_documents", "num_blank_lines", "num_rejected", "num_text_bytes", "num_tokens")
ALLOW_MORE = "allow more and run the same command again, or correct the input"

RECORDS = "records"
"""Array of the records that gave no document, numbered over all slices of the shard from 0; not there without any."""

HASHES = "hashes"
"""Array of the hashes of documents; of those of the texts under one key, with `_` and its number behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardReport:
    """What came out of a shard.

    Attributes:
        key: key of the shard.
        slice_rows: records in each of its slices, blank lines and bad records included.
        num_documents: number of documents in each pair, those without tokens included.
        num_blank_lines: lines of nothing but white space.
        num_rejected: bad records set aside.
        num_text_bytes: read, after decompression.
        num_tokens: number of tokens under all keys.
        arrays: checksums of the arrays that lie beside the pairs, by name.
        engine, engine_reason: what tokenized, and why.
        seconds: the shard took.
        boot_id: boot id of the machine that did it, see `damaged_parts`.
        numbers: further ones of the recipe, by name.
    """

    key: str
    slice_rows: tuple[int, ...]
    num_documents: int
    num_blank_lines: int
    num_rejected: int
    num_text_bytes: int
    num_tokens: int
    arrays: Mapping[str, Crc32]
    engine: str
    engine_reason: str
    seconds: float
    boot_id: str
    numbers: Mapping[str, int]

    @property
    def counts(self) -> Counts:
        """What was done, by name."""
        return {name: getattr(self, name) for name in _COUNTED}

    def to_json(self) -> bytes:
        """Returns the report as a file holds it."""
        return json.dumps(versioned_members_of(self, _VERSION), indent=1).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes, *, path: str) -> ShardReport:
        """Returns the report in a file."""
        try:
            return from_versioned(cls, parse_json(data), _VERSION)
        except UnusableJsonError as error:
            message = f"`{path}` is not the report of a shard: {str(error).removeprefix(': ')}"
            raise StorageError(message, hint="remove it; the shard is then done again") from error


def part_pair(part_prefix: str, column: int) -> str:
    """Returns the prefix of the pair of a key, by its number, in a part."""
    return f"{part_prefix}_{column}"


def part_array(part_prefix: str, name: str, dtype: type[np.generic]) -> NDArray[Any]:
    """Returns an array of a part, mapped without a descriptor: dtype[n, 2]."""
    return map_file(f"{part_prefix}.{name}").view(dtype).reshape(-1, 2)


@dataclass(slots=True)
class PartWriter:
    """Writes the files of a part, and in the end its report: a part without one is as if it were not there.

    Args:
        plan: plan of the job.
        shard: shard that becomes the part.
        prefix: what the names of its files begin with.

    Attributes:
        counts: what was done so far, by name; whoever reads sets `num_text_bytes`.
    """

    plan: JobPlan
    shard: PlannedShard
    prefix: str
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTED, 0))
    largest_token: int = -1
    numbers: Counter[str] = field(default_factory=Counter)
    _left_out: list[tuple[LeftOut, int]] = field(default_factory=list)
    _arrays: dict[str, list[NDArray[Any]]] = field(default_factory=dict)
    _builders: list[IndexedDatasetBuilder] = field(default_factory=list)
    _roles: list[ColumnWriter] = field(default_factory=list)
    _rejected: PendingFile | None = None
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        recipe = self.plan.recipe
        if recipe.hashes_documents:
            self._arrays[HASHES] = []
        with ExitStack() as stack:  # undoes what was opened if one fails
            for number in range(len(self.plan.columns)):
                path = bin_path(part_pair(self.prefix, number))
                builder = IndexedDatasetBuilder(
                    path, recipe.dtype, recipe.is_multimodal, checksums=True, durable=False, exclusive=False
                )
                self._builders.append(stack.enter_context(builder))
                if recipe.settings.document_hashes:
                    self._arrays[f"{HASHES}_{number}"] = []
                if recipe.has_roles:
                    sha256 = recipe.tokenizer.sha256
                    writer = roles_writer(part_pair(self.prefix, number), tokenizer_sha256=sha256, durable=False)
                    stack.callback(writer.discard)
                    self._roles.append(writer)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def write(self, block: TokenizedBlock) -> None:
        """Appends the documents of a block, and sets its bad records aside."""
        for number, (builder, column) in enumerate(zip(self._builders, block.columns, strict=True)):
            builder.append_block(column.tokens, column.lengths, document_ends=column.document_ends, modes=column.modes)
            self.counts["num_tokens"] += len(column.tokens)
            if column.hashes is not None:
                self._arrays[f"{HASHES}_{number}"].append(column.hashes)
        for writer, column in zip(self._roles, block.columns, strict=bool(self._roles)):
            if column.roles is not None:
                writer.append(column.roles)
        if len(block.left_out) or not self._left_out:
            self._left_out.append((block.left_out, block.num_records))
        else:  # which keeps nothing of blocks with nothing unusual
            left_out, num_before = self._left_out[-1]
            self._left_out[-1] = (left_out, num_before + block.num_records)
        if block.hashes is not None:
            self._arrays[HASHES].append(block.hashes)
        self.counts["num_documents"] += block.num_documents
        self.counts["num_blank_lines"] += block.num_blank_lines
        self.numbers.update(block.numbers)
        self.largest_token = max(self.largest_token, -1 if block.largest_token is None else block.largest_token)
        for bad_line in block.bad_lines:
            self._reject(bad_line)

    def _reject(self, bad: BadLine) -> None:
        budget = self.plan.settings.bad_records
        if budget.is_exceeded(self.counts["num_rejected"] + 1):
            # An error tells the place in the file; otherwise, that is known in the end.
            slices = (slice_ for slice_ in self.shard.slices if slice_.file.path == bad.path)
            num_before = sum(count_lines_before(each) for each in slices if each.numbers_records_from_its_start)
            bad = replace(bad, line=bad.line + num_before)
            if budget.allows_none:
                hint = f"correct the {bad.unit}, or let bad {bad.unit}s be skipped: they are then set aside in a file"
                message = f"{bad.place}: {bad.reason}"
                raise bad.error(message, hint=hint)
            message = f"expected at most {budget} bad records, found one more: {bad.place}: {bad.reason}"
            raise bad.error(message, hint=f"{ALLOW_MORE}; what is done is kept")
        if self._rejected is None:
            self._rejected = PendingFile(rejected_path(self.prefix))
            self._stack.callback(self._rejected.discard)
        number = {} if bad.unit == "file" else {bad.unit: bad.line}
        record: dict[str, object] = {"file": bad.path, **number, "reason": bad.reason}
        try:
            record["text"] = bad.data.decode("utf-8")
        except UnicodeDecodeError:
            record["base64"] = base64.b64encode(bad.data).decode("ascii")
        self._rejected.write(json_line(record))
        self.counts["num_rejected"] += 1

    def publish(self, *, slice_rows: tuple[int, ...], engine: str, engine_reason: str, started: float) -> ShardReport:
        """Makes the files appear, then the report, and returns that."""
        recipe = self.plan.recipe
        kept, blank, rejected = (self.counts[name] for name in _COUNTED[:3])
        num_read = kept + blank + rejected
        ledger = DocumentLedger(num_read=num_read, num_kept=kept, num_blank=blank, num_rejected=rejected)
        files = tuple(slice_.file for slice_ in self.shard.slices)

        def manifest(key: str, pair: PairFacts) -> Manifest:
            if recipe.is_multimodal:  # the bytes of images are no tokens
                pair = replace(pair, largest_token=None if self.largest_token < 0 else self.largest_token)
            return recipe.manifest(pair, files=files, key=key, split=None, ledger=ledger, engine=engine)

        for number, builder in enumerate(self._builders):
            make = partial(manifest, self.plan.columns[number])
            columns = {NAME: self._roles[number]} if self._roles else {}
            builder.finalize(idx_path(part_pair(self.prefix, number)), manifest=make, columns=columns)
        if len(left_out := joined_left_out(self._left_out)):
            self._arrays[RECORDS] = [left_out]
        checksums = {}
        for name, arrays in self._arrays.items():
            data = b"".join(each.tobytes() for each in arrays)
            publish_bytes(f"{self.prefix}.{name}", data)
            checksums[name] = zlib.crc32(data)
        if self._rejected is not None:
            self._rejected.publish()
        report = ShardReport(
            key=self.shard.key,
            slice_rows=slice_rows,
            **self.counts,
            arrays=checksums,
            engine=engine,
            engine_reason=engine_reason,
            seconds=time.monotonic() - started,
            boot_id=boot_id(),
            numbers=dict(self.numbers),
        )
        publish_bytes(f"{self.prefix}.json", report.to_json())
        return report


def damaged_parts(plan: JobPlan, folder: JobFolder) -> list[tuple[PlannedShard, str]]:
    """Returns the shards whose files are not what was written, and in what.

    Sizes are compared for all; the bytes are read only of parts that this machine, as it runs now, did not write: what
    it wrote it still has in memory, or on disk.
    """
    damaged: list[tuple[PlannedShard, str]] = []
    for shard in plan.shards:
        try:
            _check_part(plan, folder, shard)
        except TokenloomError as error:
            damaged.append((shard, error.message))
    return damaged


def _check_part(plan: JobPlan, folder: JobFolder, shard: PlannedShard) -> None:
    if (report := folder.report(shard)) is None:
        message = "its report is missing"
        raise StorageError(message)
    prefix, recipe = folder.part_prefix(shard), plan.recipe
    for number in range(len(plan.columns)):
        pair = part_pair(prefix, number)
        dataset = IndexedDataset(pair, multimodal=recipe.is_multimodal)
        noted = None if (manifest := manifest_of(dataset)) is None else manifest.pair
        if recipe.has_roles:
            read_roles(dataset)
        found = noted
        if noted is not None and report.boot_id != boot_id():
            found = pair_facts(dataset)
            check_columns(dataset)
            if recipe.is_multimodal:  # of the texts alone
                found = replace(found, largest_token=noted.largest_token)
        if noted is None or found != noted:
            message = f"`{pair}` does not hold what its manifest says"
            raise StorageError(message)
    for name, crc32 in report.arrays.items():
        if zlib.crc32(map_file(f"{prefix}.{name}").data) != crc32:
            message = f"`{prefix}.{name}` does not hold what its report says"
            raise StorageError(message)
    if report.num_rejected and not os.path.exists(rejected_path(prefix)):
        message = f"`{rejected_path(prefix)}` is missing"
        raise StorageError(message)
