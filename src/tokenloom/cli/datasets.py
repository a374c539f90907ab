"""Commands about pairs: what they hold, whether they are whole, others made of them, and columns beside them."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from tokenloom.adapters.arrow import PART_BYTES, ROW_GROUP_BYTES, export_documents, export_samples
from tokenloom.cli.options import JsonOption, Written, arguments_of, refuse_usage
from tokenloom.cli.output import Answer, facts_lines, members, table
from tokenloom.errors import DatasetFormatError, DatasetNotFoundError, InputError
from tokenloom.indexed.columns import ColumnFacts, ScatteredColumn, add_column, blocks_of, read_columns, remove_column
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.manifests import manifest_document, manifest_of
from tokenloom.indexed.origins import read_origins
from tokenloom.indexed.prefixes import expand_prefixes, prefixes_in, prefixes_listed
from tokenloom.indexed.verify import VerifyReport, check_index, verify_dataset
from tokenloom.indexed.writing.concatenate import build_catalogue, merge_datasets
from tokenloom.inputs import ReadLimits
from tokenloom.inputs.find import formats_by_name, inspect_input, whole_file
from tokenloom.inputs.record_format import open_slice
from tokenloom.inputs.records import records_of
from tokenloom.loading.from_data import load
from tokenloom.setting_types import Bytes, Count, Number
from tokenloom.storage.json_files import members_of


@dataclass(frozen=True, kw_only=True)
class InfoOptions(JsonOption):
    """Documents, tokens and lengths, what a dataset was made of, and whether it tells that of each document.

    Attributes:
        prefixes: path of the pair without .bin or .idx, or a folder of pairs.
        multimodal: the index holds sequence modes.
        json: print one JSON object per dataset, a line each: prefix, num_documents, num_sequences, num_tokens,
            num_bytes, dtype, num_empty, shortest, mean_length, longest, percentiles, histogram, modes, origins, hashes,
            columns, their names, and manifest.
    """

    prefixes: Annotated[tuple[str, ...], Written(metavar="PREFIX", is_positional=True)]
    multimodal: bool = False


def info(options: InfoOptions) -> Iterator[Answer]:
    for prefix in expand_prefixes(options.prefixes):
        dataset = IndexedDataset(prefix, multimodal=options.multimodal)
        check_index(dataset)
        statistics, manifest = dataset.statistics(), manifest_of(dataset)
        origins, columns = read_origins(dataset), read_columns(dataset)
        known, told, hashes = None, "none", "hashes" in columns
        if origins is not None:
            known = {"num_input_files": len(origins.files), "num_known_documents": origins.num_known}
            of = "all" if origins.num_known == origins.num_documents else f"{origins.num_known:,}"
            told = f"of {of} documents, input files: {len(origins.files):,}"
        record = {"prefix": prefix, **members(statistics), "origins": known, "hashes": hashes}
        record["manifest"] = None if manifest is None else manifest_document(manifest)
        record["columns"] = [*columns]
        words = {"origins": told, "hashes of texts": "of all documents" if hashes else "none"}
        words["columns"] = ", ".join(sorted(columns)) or "none"
        yield Answer(record, _tables_of(record, words))


def _tables_of(record: Mapping[str, Any], words: Mapping[str, str]) -> Iterator[str]:
    tables = {"percentiles": None, "histogram": None, "modes": None, "manifest": None, "hashes": None, "prefix": None}
    modes = {f"sequences of mode {mode}": f"{count:,} with {many:,} tokens" for mode, count, many in record["modes"]}
    percentiles = {f"percentile {percent}": tokens for percent, tokens in record["percentiles"]}
    yield from facts_lines(record["prefix"], {**record, **tables, **modes, **percentiles, **words})
    if record["manifest"] is not None:
        made_by = record["manifest"] | dict.fromkeys(("format", "version", "pair", "inputs"))
        yield from facts_lines("made by", made_by | {"largest token": record["manifest"]["pair"]["largest_token"]})
    if record["histogram"]:
        most = max(count for _, _, count in record["histogram"])
        block = "█" if (sys.stdout.encoding or "ascii").lower().startswith("utf") else "#"
        bars = [
            (f"{start:,} to {stop - 1:,}", count, (block * round(30 * count / most)).ljust(30))
            for start, stop, count in record["histogram"]
        ]
        yield from table(("tokens", "sequences", ""), bars)


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(JsonOption):
    """Check every row and token of a dataset.

    Attributes:
        prefixes: path of the pair without .bin or .idx.
        multimodal: the index holds sequence modes.
        vocab_size: check that every token is below N.
        json: print one JSON object: ok, and in datasets prefix, ok, num_tokens, smallest_token, largest_token, problems
            and has_manifest of each.
    """

    prefixes: Annotated[tuple[str, ...], Written(metavar="PREFIX", is_positional=True)]
    multimodal: bool = False
    vocab_size: Count | None = None


def verify(options: VerifyOptions) -> Iterator[Answer]:
    found = []
    for prefix in options.prefixes:
        try:
            report = verify_dataset(prefix, multimodal=options.multimodal, vocab_size=options.vocab_size)
        except (DatasetFormatError, DatasetNotFoundError) as error:  # the datasets after it are still checked
            report = VerifyReport(num_tokens=0, smallest_token=None, largest_token=None, problems=(str(error),))
        found.append({"prefix": prefix, "ok": report.ok, **members(report)})
        lines = [f"{prefix}: {problem}" for problem in report.problems]
        if report.ok:
            tokens = "no tokens"
            if report.largest_token is not None:
                of_what = " of text and images" if report.has_images else ""
                tokens = f"{report.num_tokens} tokens{of_what} from {report.smallest_token} to {report.largest_token}"
            lines = [f"{prefix}: ok, {tokens}" + (", as the manifest says" if report.has_manifest else "")]
        yield Answer(iter(()), lines, 0 if report.ok else 1)
    yield Answer({"ok": all(each["ok"] for each in found), "datasets": found}, ())


@dataclass(frozen=True, kw_only=True)
class DatasetOptions:
    """Many datasets, and where what is made of them goes.

    Attributes:
        prefixes: datasets to take; globs and folders too.
        input: take all datasets of a folder, sorted by name.
        list: take what a file names, a prefix, glob or folder per line.
        output_prefix: path of the result without suffix.
        overwrite: replace a result of other datasets.
        multimodal: the indexes hold sequence modes.
    """

    prefixes: Annotated[tuple[str, ...], Written(metavar="PREFIX", is_positional=True)] = ()
    input: Annotated[str | None, Written(metavar="FOLDER")] = None
    list: Annotated[str | None, Written(metavar="FILE")] = None
    output_prefix: str
    overwrite: bool = False
    multimodal: bool = False

    def __post_init__(self) -> None:
        if sum(map(bool, (self.prefixes, self.input, self.list))) != 1:
            refuse_usage("name either datasets or a folder with --input, or a file with --list")

    def chosen(self) -> Sequence[str]:
        """Returns the datasets that the options name."""
        if self.input:
            return prefixes_in(self.input)
        return expand_prefixes(prefixes_listed(self.list) if self.list else self.prefixes)


def _made(dataset: IndexedDataset) -> dict[str, Any]:
    """Returns what a dataset holds that was written."""
    origins = read_origins(dataset)
    return {
        "prefix": dataset.path_prefix,
        "num_documents": dataset.num_documents,
        "num_known_origins": None if origins is None else origins.num_known,
        "num_sequences": len(dataset),
        "num_tokens": dataset.num_tokens,
        "num_bytes": dataset.extents.num_held_bytes,
        "dtype": dataset.dtype.name,
    }


@dataclass(frozen=True, kw_only=True)
class MergeOptions(DatasetOptions, JsonOption):
    """Join datasets, in the order given, into one pair, or into pairs of a wanted size.

    Attributes:
        part_bytes: write PREFIX_00000, PREFIX_00001, … of at most so many bytes of tokens, such as 10GB or 512MiB.
        verify: compare the inputs with their manifests, read the result back and compare it with them.
        durable: leave it to the operating system when bytes reach the disk, as cp does.
        json: print one JSON object: num_inputs, num_input_bytes, seconds, verified, notices, and in datasets prefix,
            num_documents, num_known_origins, num_sequences, num_tokens, num_bytes, dtype of each.
    """

    part_bytes: Bytes | None = None
    verify: bool = False
    durable: Annotated[bool, Written(names=("--no-sync",))] = True


def merge(options: MergeOptions) -> Answer:
    prefixes = options.chosen()
    total = sum(IndexedDataset(prefix).extents.num_held_bytes for prefix in prefixes)
    notices: list[str] = []
    started = time.perf_counter()
    merged = merge_datasets(**arguments_of(options, merge_datasets, prefixes=prefixes, notice=notices.append))
    seconds = time.perf_counter() - started
    datasets = [_made(each) for each in ([merged] if isinstance(merged, IndexedDataset) else merged)]
    record: dict[str, Any] = {"num_inputs": len(prefixes), "num_input_bytes": total, "seconds": seconds}
    record |= {"verified": options.verify, "notices": notices, "datasets": datasets}
    return Answer(record, facts_lines(f"merged, {total / 1e6 / seconds:,.0f} MB/s", record))


@dataclass(frozen=True, kw_only=True)
class CatalogueOptions(DatasetOptions, JsonOption):
    """Write PREFIX.idx and PREFIX.catalogue, which together act as one dataset over all datasets named, in the order
    given. Their tokens stay where they are.

    Attributes:
        verify: read all tokens and compare them with the manifests.
        json: print one JSON object: prefix, num_documents, num_known_origins, num_sequences, num_tokens, num_bytes,
            dtype; num_pairs, seconds and notices.
    """

    verify: bool = False


def catalogue(options: CatalogueOptions) -> Answer:
    prefixes = options.chosen()
    notices: list[str] = []
    started = time.perf_counter()
    dataset = build_catalogue(**arguments_of(options, build_catalogue, prefixes=prefixes, notice=notices.append))
    seconds, num_pairs = time.perf_counter() - started, len(dataset.sections)
    record = {**_made(dataset), "num_pairs": num_pairs, "seconds": seconds, "notices": notices}
    return Answer(record, facts_lines("catalogue", record))


@dataclass(frozen=True, kw_only=True)
class ExportOptions(JsonOption):
    """Write the documents of a dataset as rows of Parquet or Arrow; with --sequence-length, or of a run.toml, the
    samples of training instead, whose labels are shifted already.

    Attributes:
        data: path of a pair without .bin or .idx; for samples also a glob, folder or run.toml.
        output: a file ending in .parquet or .arrow, or a folder for parts.
        overwrite: replace what an export wrote there.
        tokenizer: add the text of documents; for samples the tokenizer (default: manifest's).
        sequence_length: write samples of so many tokens.
        num_samples: write the first N samples (default all).
        seed: seed of the samples (default 1234).
        file_format: format of parts.
        compression: such as zstd, snappy, lz4 or none.
        row_group_bytes: size of a row group.
        part_bytes: size of a part's tokens.
        json: print one JSON object: what, paths, num_rows, num_tokens, num_bytes.
    """

    data: Annotated[str, Written(metavar="DATA", is_positional=True)]
    output: Annotated[str, Written(metavar="PATH")]
    overwrite: bool = False
    tokenizer: Annotated[str | None, Written(metavar="PATH")] = None
    sequence_length: Count | None = None
    num_samples: Count | None = None
    seed: Number | None = None
    file_format: Literal["parquet", "arrow"] = "parquet"
    compression: Annotated[str, Written(metavar="NAME")] = "zstd"
    row_group_bytes: Bytes = ROW_GROUP_BYTES
    part_bytes: Bytes = PART_BYTES


def export(options: ExportOptions) -> Answer:
    compression = None if options.compression == "none" else options.compression
    if options.sequence_length is None and not options.data.endswith(".toml"):
        for name in ("num_samples", "seed"):
            if getattr(options, name) is not None:
                refuse_usage(f"`--{name.replace('_', '-')}` is of samples: name their `--sequence-length`, too")
        what = "documents"
        report = export_documents(
            **arguments_of(options, export_documents, prefix=options.data, compression=compression)
        )
    else:
        what = "samples"
        seed: dict[str, Any] = {} if options.seed is None else {"seed": options.seed}
        dataset = load(options.data, sequence_length=options.sequence_length, tokenizer=options.tokenizer, **seed)
        report = export_samples(**arguments_of(options, export_samples, dataset=dataset, compression=compression))
    return Answer({"what": what, **members(report)}, facts_lines(what, members(report)))


@dataclass(frozen=True, kw_only=True)
class ColumnOptions(JsonOption):
    """Values beside a dataset: add a file of them as a column, show the columns there are, or remove one.

    Samples have the columns that `columns` of their settings names, beside their tokens.

    Attributes:
        action: what to do.
        prefix: path of the pair without .bin or .idx.
        name: name of the column, to add or remove.
        values: a .npy file with a row for each token, sequence or document, in their order; or a .parquet or .jsonl
            file with a row for each document, in any order: its number under `document`, and under the name of the
            column its value or list of values, or with --kind token a list with a value or list for each token.
        kind: what its rows are aligned with.
        of: whether a value belongs to a token as it is read, or as it is predicted.
        padding: the value at positions without a token.
        dtype: dtype of the values (default: that of the .npy file, else float32).
        made_by: what made the values, for those who read it.
        overwrite: replace the column.
        json: print one JSON object: prefix, and in columns by name kind, dtype, shape, num_bytes, crc32, of, padding.
    """

    action: Annotated[Literal["add", "info", "remove"], Written(is_positional=True)]
    prefix: Annotated[str, Written(metavar="PREFIX", is_positional=True)]
    name: Annotated[str | None, Written(metavar="NAME", is_positional=True)] = None
    values: Annotated[str | None, Written(metavar="VALUES", is_positional=True)] = None
    kind: Literal["token", "sequence", "document"] = "token"
    of: Literal["token", "label"] = "token"
    padding: float = 0
    dtype: Annotated[str | None, Written(metavar="DTYPE")] = None
    made_by: Annotated[str | None, Written(metavar="TEXT")] = None
    overwrite: bool = False


def column(options: ColumnOptions) -> Answer:
    given = {"add": 2, "info": 0, "remove": 1}[options.action]
    if given != (options.name is not None) + (options.values is not None):
        words = ("a prefix", "a prefix and the name of a column", "a prefix, the name of a column and a file of values")
        refuse_usage(f"`{options.action}` takes {words[given]}")
    if options.name is not None and options.values is not None:
        _add(options, options.name, options.values)
    elif options.name is not None:
        remove_column(options.prefix, options.name)
    columns = read_columns(IndexedDataset(options.prefix))
    known = {name: {**members_of(facts), "about": sorted(facts.about)} for name, facts in columns.items()}
    lines = table(("column", "per", "values", "bytes", "made by"), [_row(*each) for each in sorted(columns.items())])
    return Answer({"prefix": options.prefix, "columns": known}, lines if columns else f"{options.prefix}: no columns")


def _add(options: ColumnOptions, name: str, path: str) -> None:
    facts: dict[str, Any] = {"of": options.of, "padding": options.padding, "overwrite": options.overwrite}
    facts["made_by"] = options.made_by or os.path.basename(path)
    if not formats_by_name(path):
        try:
            values: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            message = f"cannot read `{path}` as a NumPy file: {error}"
            raise InputError(message, hint="`numpy.save` writes one") from error
        dtype: Any = options.dtype or values.dtype
        add_column(options.prefix, name, blocks_of(values), dtype=dtype, kind=options.kind, **facts)
        return
    pair, dtype = IndexedDataset(options.prefix), options.dtype or "float32"
    rows = _rows_by_document(path, name, pair.num_documents)
    if options.kind == "token":
        _add_of_tokens(pair, name, rows, dtype, facts)
    elif options.kind == "document":
        found = dict(rows)
        if missing := set(range(pair.num_documents)) - found.keys():
            message = f"`{path}`: there is no row of document {min(missing)}"
            raise InputError(message, hint="a column has a row for each")
        values = np.stack([found[number] for number in range(len(found))]) if found else np.empty(0)
        add_column(options.prefix, name, values, dtype=dtype, kind="document", **facts)
    else:
        refuse_usage("a file with a row for each document makes columns per document or per token")


def _add_of_tokens(
    pair: IndexedDataset, name: str, rows: Iterator[tuple[int, NDArray[Any]]], dtype: str, facts: Mapping[str, Any]
) -> None:
    column = None
    try:
        for document, values in rows:
            sequences = range(*pair.document_indices[document : document + 2].tolist())
            lengths = [int(pair.sequence_lengths[each]) for each in sequences]
            if values.ndim == 0 or len(values) != sum(lengths):
                message = f"document {document} has {sum(lengths)} tokens, found {values.size} values of `{name}`"
                raise InputError(message, hint="a column per token has a list with a value for each")
            if column is None and len(values):
                width = None if values.ndim == 1 else values.shape[1]
                column = ScatteredColumn(pair.path_prefix, name, dtype=dtype, width=width, resumes=False)
            for sequence, end, length in zip(sequences, np.cumsum(lengths), lengths, strict=True):
                if column is not None and length:
                    column.write(sequence, values[end - length : end])
        if column is None:
            add_column(pair.path_prefix, name, np.empty(0), dtype=dtype, **facts)
        else:
            column.finish(**facts)
    finally:
        if column is not None:
            column.close()
            column.discard()


def _rows_by_document(path: str, name: str, count: int) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yields documents with their values; each once."""
    seen, limits = np.zeros(count, dtype=np.bool_), ReadLimits(max_record_bytes=1 << 30)
    keys, file = ("document", name), whole_file(inspect_input(path))
    with closing(open_slice(file, block_bytes=1 << 22, keys=keys, limits=limits)) as reader:
        for record in itertools.chain.from_iterable(map(records_of, reader.blocks())):
            where = f"`{path}`, record {record.number}"
            if isinstance(record.value, Exception):
                message = f"{where}: {record.value}"
                raise InputError(message) from record.value
            if record.is_blank:
                continue
            document = record.value.get("document") if isinstance(record.value, Mapping) else None
            if type(document) is not int or not 0 <= document < count or seen[document] or name not in record.value:
                message = (
                    f"{where}: expected `{name}` and another `document` below {count}, found {record.value!r:.200}"
                )
                raise InputError(message)
            seen[document] = True
            values = np.array(record.value[name])
            if values.dtype.kind not in "biuf":
                message = f"{where}: expected numbers as `{name}`, found {record.value[name]!r:.200}"
                raise InputError(message)
            yield document, values


def _row(name: str, facts: ColumnFacts) -> tuple[str, str, str, int, str]:
    per = f"{facts.kind}, of labels" if facts.of == "label" else facts.kind
    width = f"[{facts.shape[1]}]" if facts.shape[1:] else ""
    return name, per, f"{facts.shape[0]:,} x {facts.dtype}{width}", facts.num_bytes, facts.made_by or ""
