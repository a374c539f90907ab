"""Commands about pairs: info, verify, merge, catalogue, export, column."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from tokenloom.adapters.arrow import PART_BYTES, ROW_GROUP_BYTES, export_documents, export_samples
from tokenloom.cli.options import JsonOption, Written, arguments_of, refuse_usage
from tokenloom.cli.output import Answer, facts_lines, members, table
from tokenloom.errors import DatasetFormatError, DatasetNotFoundError, InputError
from tokenloom.indexed.columns import ColumnFacts, add_column, blocks_of, read_columns, remove_column
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
    """For a dataset, print the counts of documents and tokens, sequence lengths, manifest, origins and columns.

    Attributes:
        prefixes: path of a pair, without .bin or .idx, or a folder of pairs.
        multimodal: read an index with sequence modes (text and images).
        json: print one JSON object per dataset, one per line: prefix, num_documents, num_sequences, num_tokens,
            num_bytes, dtype, num_empty, shortest, mean_length, longest, hashes (a bool), columns (names), manifest;
            `percentiles`: a list of [percent, length]; `histogram`: a list of [start, stop, count]; `modes`: a list of
            [mode, num_sequences, num_tokens]; `origins`: null, or an object: num_input_files, num_known_documents.
    """

    prefixes: Annotated[tuple[str, ...], Written(metavar="PREFIX", is_positional=True)]
    multimodal: bool = False


def info(options: InfoOptions) -> Iterator[Answer]:
    for prefix in expand_prefixes(options.prefixes):
        dataset = IndexedDataset(prefix, multimodal=options.multimodal)
        check_index(dataset)
        statistics, manifest = dataset.statistics(), manifest_of(dataset)
        origins, columns = read_origins(dataset), read_columns(dataset)
        origin_counts, origins_text, hashes = None, "none", "hashes" in columns
        if origins is not None:
            origin_counts = {"num_input_files": len(origins.files), "num_known_documents": origins.num_known}
            num_known = "all" if origins.num_known == origins.num_documents else f"{origins.num_known:,}"
            origins_text = f"of {num_known} documents, input files: {len(origins.files):,}"
        record = {"prefix": prefix, **members(statistics), "origins": origin_counts, "hashes": hashes}
        record |= {"manifest": None if manifest is None else manifest_document(manifest), "columns": [*columns]}
        texts = {"origins": origins_text, "hashes of texts": "of all documents" if hashes else "none"}
        yield Answer(record, _info_lines(record, texts | {"columns": ", ".join(sorted(columns)) or "none"}))


def _info_lines(record: Mapping[str, Any], texts: Mapping[str, str]) -> Iterator[str]:
    omitted = dict.fromkeys(("percentiles", "histogram", "modes", "manifest", "hashes", "prefix"))
    modes = {f"sequences of mode {mode}": f"{count:,} with {many:,} tokens" for mode, count, many in record["modes"]}
    percentiles = {f"percentile {percent}": tokens for percent, tokens in record["percentiles"]}
    yield from facts_lines(record["prefix"], {**record, **omitted, **modes, **percentiles, **texts})
    if record["manifest"] is not None:
        made_by = record["manifest"] | dict.fromkeys(("format", "version", "pair", "inputs"))
        yield from facts_lines("made by", made_by | {"largest token": record["manifest"]["pair"]["largest_token"]})
    if record["histogram"]:
        most = max(count for _, _, count in record["histogram"])
        block = "█" if (sys.stdout.encoding or "ascii").lower().startswith("utf") else "#"
        bars = [(block * round(30 * count / most)).ljust(30) for _, _, count in record["histogram"]]
        cells = [(f"{start:,} to {stop - 1:,}", count) for start, stop, count in record["histogram"]]
        yield from table(("tokens", "sequences", ""), [(*each, bar) for each, bar in zip(cells, bars, strict=True)])


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(JsonOption):
    """Check every index row and every token of a dataset.

    Attributes:
        prefixes: path of the pair, without .bin or .idx.
        multimodal: read an index with sequence modes (text and images).
        vocab_size: also check that every token is below N.
        json: print one JSON object: ok, and `datasets`: a list with one object per PREFIX: prefix, ok, num_tokens,
            smallest_token, largest_token, problems (a list of texts), has_manifest, has_images.
    """

    prefixes: Annotated[tuple[str, ...], Written(metavar="PREFIX", is_positional=True)]
    multimodal: bool = False
    vocab_size: Count | None = None


def verify(options: VerifyOptions) -> Iterator[Answer]:
    results = []
    for prefix in options.prefixes:
        try:
            report = verify_dataset(prefix, multimodal=options.multimodal, vocab_size=options.vocab_size)
        except (DatasetFormatError, DatasetNotFoundError) as error:  # continue with the next dataset
            report = VerifyReport(num_tokens=0, smallest_token=None, largest_token=None, problems=(str(error),))
        results.append({"prefix": prefix, "ok": report.ok, **members(report)})
        lines = [f"{prefix}: {problem}" for problem in report.problems]
        if report.ok:
            tokens = "no tokens"
            if report.largest_token is not None:
                kind = " of text and images" if report.has_images else ""
                tokens = f"{report.num_tokens} tokens{kind} from {report.smallest_token} to {report.largest_token}"
            lines = [f"{prefix}: ok, {tokens}" + (", matches the manifest" if report.has_manifest else "")]
        yield Answer(iter(()), lines, 0 if report.ok else 1)
    yield Answer({"ok": all(each["ok"] for each in results), "datasets": results}, ())


@dataclass(frozen=True, kw_only=True)
class DatasetOptions:
    """Options that name the input datasets and the output of merge and catalogue.

    Attributes:
        prefixes: input datasets, globs or folders.
        input: use all datasets of a folder, sorted by name.
        list: use the prefixes, globs and folders listed in a file, one per line.
        output_prefix: path of the result, without suffix.
        overwrite: replace an existing result.
        multimodal: read indices with sequence modes (text and images).
    """

    prefixes: Annotated[tuple[str, ...], Written(metavar="PREFIX", is_positional=True)] = ()
    input: Annotated[str | None, Written(metavar="FOLDER")] = None
    list: Annotated[str | None, Written(metavar="FILE")] = None
    output_prefix: str
    overwrite: bool = False
    multimodal: bool = False

    def __post_init__(self) -> None:
        if sum(map(bool, (self.prefixes, self.input, self.list))) != 1:
            refuse_usage("pass exactly one of PREFIX…, --input and --list")

    def input_prefixes(self) -> Sequence[str]:
        if self.input:
            return prefixes_in(self.input)
        return expand_prefixes(prefixes_listed(self.list) if self.list else self.prefixes)


def _result(dataset: IndexedDataset) -> dict[str, Any]:
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
    """Merge datasets into one pair, in the given order.

    Attributes:
        verify: compare the inputs with their manifests, and the result with the inputs.
        durable: --no-sync skips the fsync of the result: faster, but a power failure may lose the result.
        json: print one JSON object: num_inputs, num_input_bytes, seconds, verified, notices, and `datasets`: a list
            with one object: prefix, num_documents, num_known_origins, num_sequences, num_tokens, num_bytes, dtype.
    """

    verify: bool = False
    durable: Annotated[bool, Written(names=("--no-sync",))] = True


def merge(options: MergeOptions) -> Answer:
    prefixes = options.input_prefixes()
    total = sum(IndexedDataset(prefix).extents.num_held_bytes for prefix in prefixes)
    merged, times = _timed(merge_datasets, options, prefixes)
    record = {"num_inputs": len(prefixes), "num_input_bytes": total, **times, "verified": options.verify}
    record |= {"datasets": [_result(merged)]}
    return Answer(record, facts_lines(f"merged, {total / 1e6 / times['seconds']:,.0f} MB/s", record))


def _timed(
    function: Callable[..., IndexedDataset], options: object, prefixes: Sequence[str]
) -> tuple[IndexedDataset, dict[str, Any]]:
    notices: list[str] = []
    started = time.perf_counter()
    dataset = function(**arguments_of(options, function, prefixes=prefixes, notice=notices.append))
    return dataset, {"seconds": time.perf_counter() - started, "notices": notices}


@dataclass(frozen=True, kw_only=True)
class CatalogueOptions(DatasetOptions, JsonOption):
    """Combine datasets in the given order without copying tokens: PREFIX.catalogue refers to the inputs' .bin files.

    Attributes:
        verify: read all tokens and compare their checksums with the manifests.
        json: print one JSON object: prefix, num_documents, num_known_origins, num_sequences, num_tokens, num_bytes,
            dtype, num_pairs, seconds and notices (a list of texts).
    """

    verify: bool = False


def catalogue(options: CatalogueOptions) -> Answer:
    dataset, times = _timed(build_catalogue, options, options.input_prefixes())
    record = {**_result(dataset), "num_pairs": len(dataset.sections), **times}
    return Answer(record, facts_lines("catalogue", record))


@dataclass(frozen=True, kw_only=True)
class ExportOptions(JsonOption):
    """Write the documents of a dataset as rows of Parquet or Arrow. With --sequence-length, or for a run.toml, write
    training samples instead. The labels of these samples are already shifted by one token.

    Attributes:
        data: path of a pair, without .bin or .idx; for samples also a glob, a folder or a run.toml.
        output: a file ending in .parquet or .arrow, or a folder for several files.
        overwrite: replace an earlier export.
        tokenizer: tokenizer to decode documents into a column `text`; for samples, replaces the manifest's tokenizer.
        sequence_length: write samples of N tokens.
        num_samples: write only the first N samples.
        seed: seed of the shuffle of samples (default 1234).
        file_format: format of the files in an output folder.
        compression: zstd, snappy, lz4 or none.
        row_group_bytes: maximum size in bytes of the tokens in a row group.
        part_bytes: maximum size in bytes of the tokens in one file of an output folder.
        json: print one JSON object: `what` ("documents" or "samples"), paths, num_rows, num_tokens, num_bytes.
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
                refuse_usage(f"--{name.replace('_', '-')} needs --sequence-length")
        what, given = "documents", {"prefix": options.data, "compression": compression}
        report = export_documents(**arguments_of(options, export_documents, **given))
    else:
        what = "samples"
        seed: dict[str, Any] = {} if options.seed is None else {"seed": options.seed}
        dataset = load(options.data, sequence_length=options.sequence_length, tokenizer=options.tokenizer, **seed)
        report = export_samples(**arguments_of(options, export_samples, dataset=dataset, compression=compression))
    return Answer({"what": what, **members(report)}, facts_lines(what, members(report)))


@dataclass(frozen=True, kw_only=True)
class ColumnOptions(JsonOption):
    """Add a column of values to a dataset, list the dataset's columns (info), or remove a column. The setting `columns`
    of a dataset class selects the columns that the samples contain.

    Attributes:
        action: what to do with the columns.
        prefix: path of the pair, without .bin or .idx.
        name: name of the column.
        values: a .npy file with a row for each token, sequence or document, in the order of the dataset. With --kind
            document, also a .parquet or .jsonl file with a row for each document, in any order: the document index is
            under the key `document`, and the value or list of values under the key NAME.
        kind: whether VALUES has a row for each token, sequence or document.
        of: put a token's value into the slot whose input is the token (token), or whose label is the token (label).
        padding: value for the padding of a sample.
        dtype: dtype of the values (default: that of the .npy file, else float32).
        made_by: origin of the values, a text that `column info` prints (default: the file name).
        overwrite: replace an existing column.
        json: print one JSON object: prefix, and `columns`: an object with one object per column, by name: kind, dtype,
            shape, num_bytes, crc32, of, padding, made_by, about (names of further metadata).
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
    values: NDArray[Any]
    dtype: Any = options.dtype
    if formats_by_name(path):
        if options.kind != "document":
            refuse_usage(f"`{path}` needs --kind document")
        rows = dict(_rows_by_document(path, name, count := IndexedDataset(options.prefix).num_documents))
        if missing := set(range(count)) - rows.keys():
            hint = f"add rows for all documents, 0 to {count - 1}"
            raise InputError(f"`{path}`: no row for document {min(missing)}", hint=hint)
        values = np.stack([rows[number] for number in range(count)]) if count else np.empty(0)
        dtype = dtype or "float32"
    else:
        try:
            values = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            message = f"cannot read `{path}` as a NumPy file: {error}"
            raise InputError(message, hint="write it with `numpy.save`") from error
    facts = {"made_by": options.made_by or os.path.basename(path), "dtype": dtype or values.dtype}
    given = {"path_prefix": options.prefix, "name": name, "blocks": blocks_of(values), **facts}
    add_column(**arguments_of(options, add_column, **given))


def _rows_by_document(path: str, name: str, count: int) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yields (document index, values) for each row; an invalid row or a repeated document is an error."""
    seen, limits = np.zeros(count, dtype=np.bool_), ReadLimits(max_record_bytes=1 << 30)
    keys, file = ("document", name), whole_file(inspect_input(path))
    with closing(open_slice(file, block_bytes=1 << 22, keys=keys, limits=limits)) as reader:
        for record in itertools.chain.from_iterable(map(records_of, reader.blocks())):
            where = f"`{path}`, record {record.number}"
            if isinstance(record.value, Exception):
                raise InputError(f"{where}: {record.value}") from record.value
            if record.is_blank:
                continue
            document = record.value.get("document") if isinstance(record.value, Mapping) else None
            if type(document) is not int or not 0 <= document < count or seen[document] or name not in record.value:
                needed = f"must have `{name}`, and a document index `document` below {count} that no earlier record has"
                raise InputError(f"{where}: {needed}, got {record.value!r:.200}")
            seen[document] = True
            values = np.array(record.value[name])
            if values.dtype.kind not in "biuf":
                raise InputError(f"{where}: `{name}` must be one or more numbers, got {record.value[name]!r:.200}")
            yield document, values


def _row(name: str, facts: ColumnFacts) -> tuple[str, str, str, int, str]:
    per = f"{facts.kind}, of labels" if facts.of == "label" else facts.kind
    width = f"[{facts.shape[1]}]" if facts.shape[1:] else ""
    return name, per, f"{facts.shape[0]:,} x {facts.dtype}{width}", facts.num_bytes, facts.made_by or ""
