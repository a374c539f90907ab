"""Writing many small documents one by one."""

from __future__ import annotations

from harness.row import LIMIT, OURS, Row, Scale, Side

from rows.fairness import NO_IMPORTS

PEER, MOSAIC = "megatron-core", "mosaicml-streaming"
TOKENS_PER_DOCUMENT = 16
MOSAIC_SHARE = 10  # it takes a tenth of the documents: a rate is compared, and it is slower by far


def builder_row(kind: str, num_documents: int, rounds: int) -> Row:
    """Returns one row; `kind` is what documents are given as: uint16 arrays, int64 arrays or lists."""

    def side(name: str, library: str) -> Side:
        arguments = {"side": library, "kind": kind, "documents": num_documents}
        return Side(name=name, library=library, script="build_pair.py", arguments=arguments, fresh=True)

    mosaic = Side(
        name="MDSWriter",
        library=MOSAIC,
        script="build_mds.py",
        arguments={"documents": num_documents // MOSAIC_SHARE, "tokens": TOKENS_PER_DOCUMENT},
        environment=MOSAIC,
        fresh=True,
    )
    name = "IndexedDatasetBuilder"
    return Row(
        job="builder",
        name=f"builder, {num_documents / 1e6:g} M documents from {kind}",
        compares=f"`add_document` for each document of {TOKENS_PER_DOCUMENT} tokens, and `finalize`",
        fairness=f"Same documents; both files are compared, byte for byte. Each round is a new process. {NO_IMPORTS} "
        "Bytes go to the page cache. mosaicml-streaming's `MDSWriter` gets uint16 arrays always, and a tenth of the "
        "documents. Memory is the growth of the peak.",
        limit="writing as many bytes as both files have, held in memory, in one call",
        unit="documents",
        rounds=rounds,
        sides=(side(name, OURS), side(f"megatron {name}", PEER), mosaic, side("write", LIMIT)),
        prepare=lambda folder: None,
        same=(name, f"megatron {name}"),
    )


def rows(scale: Scale) -> list[Row]:
    """Returns the rows of a mode."""
    return [builder_row(kind, scale.built_documents, min(scale.rounds, 3)) for kind in ("uint16 arrays", "lists")]
