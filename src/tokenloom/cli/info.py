"""`tokenloom info`: what a dataset holds."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from tokenloom.cli import console
from tokenloom.cli.json_output import print_json
from tokenloom.cli.options import Written
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import prefix_of
from tokenloom.indexed.manifests import Manifest, SpecialToken, TokenizerIdentity, manifest_document, manifest_of
from tokenloom.indexed.origins import Origins, read_origins
from tokenloom.indexed.prefixes import prefixes_in
from tokenloom.indexed.sidecars import read_document_hashes
from tokenloom.indexed.verify import check_index
from tokenloom.rendering.words import printable


@dataclass(frozen=True, kw_only=True)
class Options:
    """Documents, tokens and lengths, what a dataset was made of, and whether it tells that of each document.

    Attributes:
        prefixes: path of the pair without .bin or .idx, or a folder of pairs.
        multimodal: the index holds sequence modes.
        json: print one JSON object per dataset, a line each: prefix, num_documents, num_sequences, num_tokens,
            num_bytes, dtype, num_empty, shortest, mean_length, longest, percentiles, histogram, modes, origins, hashes,
            manifest.
    """

    prefixes: Annotated[tuple[str, ...], Written(metavar="PREFIX", is_positional=True)]
    multimodal: bool = False
    json: bool = False


def run(options: Options) -> int:
    """Prints the numbers of `IndexedDataset.statistics()` for each dataset, and what its manifest says."""
    for prefix in _pairs_of(options.prefixes):
        dataset = IndexedDataset(prefix, multimodal=options.multimodal)
        check_index(dataset)
        statistics, manifest = dataset.statistics(), manifest_of(dataset)
        origins, hashes = read_origins(prefix_of(prefix)), read_document_hashes(prefix_of(prefix))
        if options.json:
            record = None if manifest is None else manifest_document(manifest)
            beside = {"origins": _origins_record(origins), "hashes": hashes is not None}
            print_json({"prefix": prefix, **dataclasses.asdict(statistics), **beside, "manifest": record})
            continue
        console.print_table(
            (prefix, ""),
            [
                ("documents", f"{statistics.num_documents:,}"),
                ("sequences", f"{statistics.num_sequences:,}"),
                ("tokens", f"{statistics.num_tokens:,}"),
                ("bytes", f"{statistics.num_bytes:,}"),
                ("dtype", statistics.dtype),
                ("empty sequences", f"{statistics.num_empty:,}"),
                ("shortest", f"{statistics.shortest:,}"),
                ("mean length", f"{statistics.mean_length:,.1f}"),
                ("longest", f"{statistics.longest:,}"),
                *(
                    (f"sequences of mode {mode}", f"{count:,} with {tokens:,} tokens")
                    for mode, count, tokens in statistics.modes
                ),
                *((f"percentile {percent}", f"{tokens:,}") for percent, tokens in statistics.percentiles),
                ("origins", "none" if origins is None else _origins_words(origins)),
                ("hashes of texts", "none" if hashes is None else "of all documents"),
            ],
        )
        if manifest is not None:
            console.print_table(("made by", ""), _manifest_rows(manifest))
        if statistics.histogram:
            most = max(count for _, _, count in statistics.histogram)
            console.print_table(
                ("tokens", "sequences", ""),
                [
                    (f"{start:,} to {stop - 1:,}", f"{count:,}", console.bar(count / most))
                    for start, stop, count in statistics.histogram
                ],
            )
    return 0


def _pairs_of(targets: Sequence[str]) -> Iterator[str]:
    """Yields prefixes; of a folder those in it.

    Raises:
        DatasetNotFoundError: a folder holds no pair.
    """
    for target in targets:
        yield from prefixes_in(target) if os.path.isdir(target) else (target,)


def _origins_record(origins: Origins | None) -> dict[str, int] | None:
    if origins is None:
        return None
    return {"num_input_files": len(origins.files), "num_known_documents": origins.num_known}


def _origins_words(origins: Origins) -> str:
    known = origins.num_known
    documents = "all documents" if known == origins.num_documents else f"{known:,} documents"
    return f"of {documents}, input files: {len(origins.files):,}"


def _manifest_rows(manifest: Manifest) -> list[tuple[str, str]]:
    tokenizer, ledger = manifest.tokenizer, manifest.ledger
    largest = manifest.pair.largest_token
    return [
        ("tokenizer", printable(_made_by(tokenizer), keep="")),
        ("sha256", tokenizer.sha256 or "unknown"),
        ("vocabulary", "unknown" if tokenizer.vocab_size is None else f"{tokenizer.vocab_size:,}"),
        ("largest token", "none" if largest is None else f"{largest:,}"),
        ("before each document", _special(tokenizer.bos)),
        ("after each document", _special(tokenizer.eod)),
        *((printable(name, keep=""), json.dumps(value)) for name, value in manifest.options.items()),
        ("engine", printable(manifest.engine or "unknown", keep="")),
        ("tokenloom", printable(manifest.tokenloom_version, keep="")),
        ("input files", f"{len(manifest.inputs):,}"),
        ("input bytes", f"{sum(record.num_bytes for record in manifest.inputs):,}"),
        *(
            (f"documents {field.name.removeprefix('num_')}", f"{getattr(ledger, field.name):,}")
            for field in dataclasses.fields(ledger)
        ),
    ]


def _special(token: SpecialToken | None) -> str:
    if token is None:
        return "nothing"
    return str(token.id) if token.text is None else f"{token.id} {token.text!r}"


def _made_by(tokenizer: TokenizerIdentity) -> str:
    return tokenizer.kind if tokenizer.path is None else f"{tokenizer.kind} {tokenizer.path}"
