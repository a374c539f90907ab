"""Writing a catalogue: an index of many pairs, and where their tokens are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

import numpy as np

from tokenloom.errors import ConfigError, StorageError
from tokenloom.indexed.catalogue import Catalogue, CataloguePart, catalogue_path
from tokenloom.indexed.checksums import PairTally
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import DType, Header, bin_path, idx_path, prefix_of
from tokenloom.indexed.manifest.check import combined_manifest
from tokenloom.indexed.manifest.file import manifest_bytes
from tokenloom.indexed.opening import inputs_stay
from tokenloom.indexed.writing.concatenate import check_output, checked_inputs, tell_nothing_to_do
from tokenloom.indexed.writing.index_writer import IndexWriter
from tokenloom.indexed.writing.joined_sidecars import JoinedSidecars
from tokenloom.indexed.writing.kept_documents import ConcatenatedPart, Selection
from tokenloom.indexed.writing.outputs import PendingDataset, has_same_sidecars, is_published, publish_datasets
from tokenloom.progress import NOTHING_WRITTEN, if_stopped, task
from tokenloom.setting_types import checked_paths
from tokenloom.storage.extents import record_file
from tokenloom.storage.local import MappedFile
from tokenloom.storage.publishing import OutputLock, make_folder_of
from tokenloom.storage.resolve import exists, open_pending


def build_catalogue(
    prefixes: Sequence[str],
    output_prefix: str,
    *,
    multimodal: bool = False,
    progress: Callable[[str], None] | None = None,
    overwrite: bool = False,
    notice: Callable[[str], None] | None = None,
    verify: bool = False,
) -> IndexedDataset:
    """Makes many datasets one without copying a token, and returns it opened.

    The result is an index, `OUTPUT.idx`, and a list of the pairs, `OUTPUT.catalogue`, see FORMAT.md. Its prefix is as
    good as that of a pair. Pairs below the folder of the catalogue are named from there, so that the folder can be
    moved; others by their whole path or address. A pair that changes later is an error when it is read. Catalogues
    among the inputs are resolved to their pairs. What lies beside the inputs is joined: roles, hashes of documents and
    manifests if all have them, origins if any has.

    Every row of the inputs is checked, and rows pass in blocks, one input after the other.

    Example:
        >>> import tempfile
        >>> from tokenloom import IndexedDatasetBuilder, build_catalogue
        >>> folder = tempfile.mkdtemp()
        >>> for name in ("a", "b"):
        ...     builder = IndexedDatasetBuilder(f"{folder}/{name}.bin")
        ...     builder.add_documents([[1, 2], [3]])
        ...     builder.finalize(f"{folder}/{name}.idx")
        >>> dataset = build_catalogue([f"{folder}/a", f"{folder}/b"], f"{folder}/all")
        >>> len(dataset), dataset.num_tokens, dataset[2].tolist()
        (4, 6, [1, 2])

    Args:
        prefixes: prefixes of the inputs, in the order wanted.
        output_prefix: prefix of the catalogue.
        multimodal: whether the datasets hold modes.
        progress: called with each prefix once it is recorded.
        overwrite: replace a catalogue that is there and lists something else; never a pair.
        notice: called with a sentence where there is nothing to do.
        verify: read all tokens and compare them with the manifests. Without, the manifest of the result says that
            they were not.

    Raises:
        ConfigError: there are no inputs, the output is one of them or a pair, the dtypes or, as manifests tell, the
            tokenizers differ, only some have roles, or a catalogue in object storage would name local files.
        OutputExistsError: there is another catalogue, and no `overwrite`.
        OutputBusyError: another process writes the same output.
        DatasetNotFoundError, DatasetFormatError: of an input that is missing or damaged.
        StorageError: reading or writing fails, or an input changes meanwhile.
    """
    prefixes = checked_paths("prefixes", prefixes, example='such as ["books", "web"]')
    target = prefix_of(output_prefix)
    check_output(target, prefixes)
    if exists(bin_path(target)):
        message = f"a catalogue `{target}` would take the place of `{bin_path(target)}`, which is there"
        raise ConfigError(message, hint="choose another output prefix, or remove the pair")
    make_folder_of(target)
    with if_stopped(lambda: NOTHING_WRITTEN), OutputLock(idx_path(target)) as lock, inputs_stay(prefixes):
        pending = _write(prefixes, target, multimodal=multimodal, progress=progress, verify=verify)
        if not overwrite and is_published(pending) and has_same_sidecars(target, pending.sidecars):
            pending.discard()
            tell_nothing_to_do(notice, target)
        else:
            publish_datasets([pending], overwrite=overwrite, locks=[lock])
    return IndexedDataset(target, multimodal=multimodal)


def _write(
    prefixes: Sequence[str],
    target: str,
    *,
    multimodal: bool,
    progress: Callable[[str], None] | None,
    verify: bool,
) -> PendingDataset:
    """Writes the files of a catalogue, which have no names yet."""
    recorded, code = _record(prefixes, multimodal=multimodal, progress=progress, verify=verify)
    inputs = [ConcatenatedPart(prefix=prefix_of(prefix)) for prefix in prefixes]
    catalogue = Catalogue([part for each in inputs for part in recorded[each.prefix]])
    content = catalogue.pack(target)
    joining = JoinedSidecars(inputs, target, multimodal=multimodal)
    manifest = combined_manifest(
        [each.prefix for each in inputs],
        multimodal=multimodal,
        copied_tokens="compared" if verify else "inherited",
    )
    tally = PairTally(np.dtype(DType.dtype_from_code(code)))
    with ExitStack() as stack:
        file = open_pending(catalogue_path(target))
        stack.callback(file.discard)
        index = open_pending(idx_path(target))
        stack.callback(index.discard)
        file.write(content)
        header = Header(
            dtype_code=code, num_sequences=catalogue.num_sequences, num_boundaries=catalogue.num_documents + 1
        )
        rows = IndexWriter(index, header, multimodal=multimodal)
        starts = iter(catalogue.extents.starts.tolist())
        for each in inputs:
            dataset = IndexedDataset(each.prefix, multimodal=multimodal)
            if manifest is not None:
                tally.add_pair(dataset)
            for section in dataset.sections:
                rows.pointer = next(starts)
                chosen = ConcatenatedPart(prefix=each.prefix, documents=section.documents)
                for block in Selection(dataset, chosen).blocks():
                    rows.add_boundaries(rows.num_rows + np.cumsum(block.counts))
                    rows.add_rows(block.lengths, block.modes)
            dataset.check_index()
        rows.finish()
        pending = PendingDataset(prefix=target, tokens=file, index=index)
        written_index = MappedFile(index.readable_path)
        joined = joining.write(header.num_sequences, catalogue.source(target, mmap=True), written_index)
        stack.callback(joined.discard)
        pending.add_beside(joined.files)
        if manifest is not None:
            pending.manifest = manifest_bytes(manifest(joined.facts(tally.facts(written_index))))
        stack.pop_all()
    return pending


def _record(
    prefixes: Sequence[str], *, multimodal: bool, progress: Callable[[str], None] | None, verify: bool
) -> tuple[dict[str, list[CataloguePart]], int]:
    """Returns the pairs that each dataset consists of, after checking all, and the dtype code of their tokens."""
    recorded: dict[str, list[CataloguePart]] = {}
    code = 0
    with task("catalogue", unit="datasets", total=len(prefixes)) as advance:
        for dataset in checked_inputs(prefixes, multimodal=multimodal, tokens=verify):
            code = DType.code_from_dtype(dataset.dtype)
            recorded[dataset.path_prefix] = parts = []
            for number, section in enumerate(dataset.sections):
                file = record_file(section.path, version=dataset.version_of_section(number))
                if file.num_bytes != section.num_bytes:
                    message = f"`{section.path}`: expected {section.num_bytes} bytes, found {file.num_bytes}"
                    raise StorageError(message, hint="the file changed while it was recorded")
                parts.append(
                    CataloguePart(file=file, num_sequences=len(section.rows), num_documents=len(section.documents))
                )
            advance()
            if progress is not None:
                progress(dataset.path_prefix)
    return recorded, code
