"""`tokenloom export`: documents or samples as files of Parquet or Arrow."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from tokenloom.adapters.arrow_files import PART_BYTES, ROW_GROUP_BYTES, export_documents, export_samples
from tokenloom.cli.json_output import print_json
from tokenloom.cli.options import UsageError, Written, arguments_of
from tokenloom.loading.from_data import load
from tokenloom.setting_types import Bytes, Count, Number


@dataclass(frozen=True, kw_only=True)
class Options:
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
    json: bool = False


def run(options: Options) -> int:
    """Exports, and prints what was written."""
    compression = None if options.compression == "none" else options.compression
    if options.sequence_length is None and not options.data.endswith(".toml"):
        for name in ("num_samples", "seed"):
            if getattr(options, name) is not None:
                message = f"`--{name.replace('_', '-')}` is of samples: name their `--sequence-length`, too"
                raise UsageError(message)
        what = "documents"
        report = export_documents(
            **arguments_of(options, export_documents, prefix=options.data, compression=compression)
        )
    else:
        what = "samples"
        seed: dict[str, Any] = {} if options.seed is None else {"seed": options.seed}
        dataset = load(options.data, sequence_length=options.sequence_length, tokenizer=options.tokenizer, **seed)
        report = export_samples(**arguments_of(options, export_samples, dataset=dataset, compression=compression))
    if options.json:
        print_json({"what": what, **dataclasses.asdict(report)})
        return 0
    files = report.paths[0] if len(report.paths) == 1 else f"{report.paths[0]} and {len(report.paths) - 1} more files"
    print(f"{files}: {report.num_rows:,} {what}, {report.num_tokens:,} tokens, {report.num_bytes:,} bytes")
    return 0
