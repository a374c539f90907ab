"""What a run of preprocessing records of itself in the manifests beside its outputs."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from tokenloom.indexed.manifest.contents import DocumentLedger, InputRecord, Manifest, PairFacts
from tokenloom.indexed.manifest.tokenizer_identity import SpecialToken, TokenizerIdentity, identity_of
from tokenloom.inputs import STDIN, InputFile
from tokenloom.preprocess.document_tokens import DocumentTokens
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.atomic import storage_errors
from tokenloom.storage.objects import RemoteFile
from tokenloom.storage.secrets import admit
from tokenloom.tokenizers.kinds import KINDS
from tokenloom.tokenizers.text_tokenizer import TextTokenizer


def manifest_of_run(
    pair: PairFacts,
    *,
    tokenizer: TextTokenizer,
    added: DocumentTokens,
    options: Mapping[str, Any],
    ledger: DocumentLedger,
    inputs: Iterable[InputRecord],
    engine: str | None = None,
) -> Manifest:
    """Returns the manifest of a pair that was just written.

    Args:
        pair: what its files hold, from `IndexedDatasetBuilder.finalize`.
        tokenizer: tokenizer that made the tokens.
        added: the ids that were put before and after each document.
        options: all that decided the bytes besides tokenizer and input, by name: values of JSON.
        ledger: what became of each document.
        inputs: the files that were read.
        engine: name of the engine that tokenized.
    """

    def special(number: int | None) -> SpecialToken | None:
        return None if number is None else SpecialToken(id=number, text=tokenizer.detokenize([number]))

    return Manifest(
        pair=pair,
        tokenizer=_located(identity_of(tokenizer, bos=special(added.bos), eod=special(added.eod))),
        options=options,
        ledger=ledger,
        inputs=tuple(inputs),
        engine=engine,
        tokenloom_version=_version(),
    )


def _located(identity: TokenizerIdentity) -> TokenizerIdentity:
    """Returns an identity that names its file wherever it is read; what is no file, such as `byte`, as it was named."""
    path = identity.path
    is_file = path is not None and (identity.kind not in KINDS or KINDS[identity.kind].needs_file)
    if path is None or not is_file or not os.path.isfile(path):
        return identity
    return replace(identity, path=os.path.abspath(path))


def is_of_same_run(found: Manifest, expected: Manifest) -> bool:
    """Whether two manifests tell of the same inputs, tokenized in the same way."""
    return (expected.tokenizer.fingerprint, expected.options, expected.inputs) == (
        found.tokenizer.fingerprint,
        found.options,
        found.inputs,
    )


@functools.cache
def _version() -> str:
    return version("tokenloom")


def input_records(files: Iterable[InputFile]) -> tuple[InputRecord, ...]:
    """Returns what a manifest says of the files of a corpus."""
    return tuple(InputRecord(path=file.path, num_bytes=file.num_bytes, version=file.version) for file in files)


def input_record(path: str) -> InputRecord:
    """Returns what a manifest says of one input, as it is now; a folder counts as one, with the bytes of its files.

    Raises:
        StorageError: it cannot be looked at.
    """
    if path == STDIN:
        return InputRecord(path=path, num_bytes=0)
    if is_remote(path):
        path = admit(path)
        found = RemoteFile(path).version
        return InputRecord(path=path, num_bytes=found.num_bytes, version=found.etag)
    with storage_errors("open", path):
        status = os.stat(path)
        if not os.path.isdir(path):
            return InputRecord(path=path, num_bytes=status.st_size, version=str(status.st_mtime_ns))
        with os.scandir(path) as entries:
            return InputRecord(path=path, num_bytes=sum(entry.stat().st_size for entry in entries if entry.is_file()))
