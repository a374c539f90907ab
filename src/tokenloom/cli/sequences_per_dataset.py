"""`tokenloom sequences-per-dataset`: record the counts of a blend's datasets."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated

from tokenloom.cli.json_output import print_json
from tokenloom.cli.options import Written
from tokenloom.cli.run_options import DataOptions
from tokenloom.indexed.prefixes import sequence_counts
from tokenloom.storage.publishing import write_report


@dataclass(frozen=True, kw_only=True)
class Options(DataOptions):
    """Record the sequences and document boundaries of each dataset of a blend as JSON, for the setting
    `sequences_per_dataset`: a run refuses data whose counts have changed, and with `fast_cache_load` opens each dataset
    with its first sample.

    Attributes:
        output: path of the output (default: standard output).
        overwrite: replace a file that holds something else.
        json: print one JSON object: path, num_datasets, written; on standard output the counts are JSON anyway.
    """

    output: Annotated[str | None, Written(names=("--output", "--per-dataset-sequences-path"), metavar="FILE")] = None
    overwrite: bool = False
    json: bool = False


def run(options: Options) -> int:
    """Writes the JSON."""
    settings = options.data_settings()
    blends = [settings.get("blend"), *settings.get("blend_per_split", [])]
    prefixes = dict.fromkeys(prefix for blend in blends if blend is not None for prefix in blend[0])
    text = json.dumps(sequence_counts(list(prefixes)), indent=4)
    if options.output is None:
        print(text)
        return 0
    is_new = write_report(options.output, text.encode() + b"\n", overwrite=options.overwrite)
    if options.json:
        print_json({"path": options.output, "num_datasets": len(prefixes), "written": is_new})
    else:
        print(f"{options.output}: {len(prefixes)} datasets" + ("" if is_new else ", nothing to do: it says so already"))
    return 0
