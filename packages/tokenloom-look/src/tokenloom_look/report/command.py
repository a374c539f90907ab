"""`tokenloom report`: a summary of a dataset, run or job as one HTML page."""

from __future__ import annotations

import os
import time
import warnings
from dataclasses import dataclass
from typing import Annotated, Any

from tokenloom.cli.options import Written
from tokenloom.cli.output import print_json, say
from tokenloom.optional import require
from tokenloom.rendering.words import size
from tokenloom.setting_types import Count, Number
from tokenloom.storage.publishing import exists_error, make_folder_of, write_report
from tokenloom_look.report.page import page
from tokenloom_look.report.section import ReportOptions, duration
from tokenloom_look.report.sections import SectionResult, make_sections
from tokenloom_look.target import TargetOptions


@dataclass(frozen=True, kw_only=True)
class Options(TargetOptions):
    """Write a summary as one HTML page that works offline and can be printed: documents and their lengths, packing,
    tokens, input records, tokenizer and options, and example samples with their boundaries; for a run, also its blend
    over time, passes and ledger; for a job, its progress. Anomalies are listed first. No other file is written, except
    with `--pictures`. Exits with 1 if a section failed; the page says which section.

    Attributes:
        output: path of the page, such as x.html.
        overwrite: replace an existing file.
        num_samples_shown: number of samples to show; also the number of random documents to show.
        statistics: file with statistics of a training loop, written by JsonLinesWriter.
        contamination: file with the output of `tokenloom contamination --json`.
        pictures: folder to write each chart to, as ID.png.
        no_time: omit the time of creation, so that equal data gives equal bytes.
        global_batch_size: samples per step, to show steps instead of positions.
        json: print one JSON object: path, num_bytes, seconds, and sections, a list of objects with id, title, made
            (false if the section is empty or failed), error, findings and seconds.
    """

    output: Annotated[str, Written(names=("-o", "--output"), metavar="FILE")]
    overwrite: bool = False
    num_samples_shown: Number = 4
    statistics: Annotated[str | None, Written(metavar="FILE")] = None
    contamination: Annotated[str | None, Written(metavar="FILE")] = None
    pictures: Annotated[str | None, Written(metavar="FOLDER")] = None
    no_time: bool = False
    global_batch_size: Annotated[Count | None, Written(metavar="G")] = None
    json: bool = False


def run(options: Options) -> int:
    """Writes the page; returns 1 if a section failed."""
    began = time.monotonic()
    require_place(options.output, overwrite=options.overwrite)
    if options.pictures is not None:
        require("matplotlib", extra="plot")
    target = options.open()
    wanted = ReportOptions(
        num_samples_shown=options.num_samples_shown,
        global_batch_size=options.global_batch_size,
        statistics=options.statistics,
        contamination=options.contamination,
        seed=options.seed,
    )
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("default")
        made = list(make_sections(target, wanted))
    for text in dict.fromkeys(str(each.message) for each in warned):
        say(f"warning: {text}")
    when = None if options.no_time else time.time()
    data = page(target, [each.section for each in made if each.section is not None], when=when)
    write_report(options.output, data, overwrite=options.overwrite)
    if options.pictures is not None:
        os.makedirs(options.pictures, exist_ok=True)
        for each in made:
            for chart in () if each.section is None else each.section.charts:
                chart.save(os.path.join(options.pictures, f"{chart.id}.png"), overwrite=options.overwrite)
    seconds = time.monotonic() - began
    failed = [each for each in made if each.error is not None]
    for each in failed:
        say(f"error: {each.listed.title}: {each.error}")
    if options.json:
        print_json(_summary(options.output, made, num_bytes=len(data), seconds=seconds))
    else:
        num_sections = sum(each.section is not None for each in made)
        print(f"{options.output}: {num_sections} sections, {size(len(data))}, {duration(seconds)}")
    return 1 if failed else 0


def require_place(path: str, *, overwrite: bool) -> None:
    """Creates the folder of an output file; raises an error if the file exists and `overwrite` is False."""
    if os.path.lexists(path) and not overwrite:
        raise exists_error(path)
    make_folder_of(path)


def _summary(path: str, made: list[SectionResult], *, num_bytes: int, seconds: float) -> dict[str, Any]:
    sections = [
        {
            "id": each.listed.id,
            "title": each.listed.title,
            "made": each.section is not None and each.error is None,
            "error": each.error,
            "findings": [] if each.section is None else list(each.section.findings),
            "seconds": round(each.seconds, 3),
        }
        for each in made
    ]
    return {"path": path, "num_bytes": num_bytes, "seconds": round(seconds, 3), "sections": sections}
