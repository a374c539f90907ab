"""What follows from a proof and a root: everything is worked out again, and nothing that a proof says is believed.

First all hashes, up to the root: after that the lock and the data are those that were committed to. Then where the
document is read, by the kernels that training asks, over lengths that stand in for the data. That has to be what the
proof claims.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from tokenloom.errors import ConfigError, MissingTokenError
from tokenloom.run.audit.commitment import hash_of_source, reduced, root_of_head
from tokenloom.run.audit.committed_data import PairRoots, document_digest, hash_of_block, hash_of_document, hash_of_sums
from tokenloom.run.audit.document_reading import MOST_DOCUMENTS, check_readable, own_pair, reading_of, stand_in
from tokenloom.run.audit.merkle import root_from
from tokenloom.run.audit.proof import Proof
from tokenloom.run.digest import check_position
from tokenloom.run.lock import BLOCK_DOCUMENTS, LockedSource
from tokenloom.tokenizers.text_tokenizer import TextTokenizer

_HASH = re.compile("[0-9a-f]{64}")

_MOST_TOKENS = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """What a proof proves.

    Attributes:
        source: name of the source.
        document: number of the document in it.
        num_tokens: its length.
        sha256: of its tokens, see `document_digest`.
        begin, end: the positions that it is about.
        read: those of them at which it is read, rising.
        denied: those at which it would be, but is denied.
        root: the root that all of this follows from.
    """

    source: str
    document: int
    num_tokens: int
    sha256: str
    begin: int
    end: int
    read: tuple[int, ...]
    denied: tuple[int, ...]
    root: str


def check_proof(proof: Proof, root: str) -> Proven:
    """Returns what a proof proves to those who know the root of a run; reads no data.

    Takes up to 4 bytes of memory per document of the document's pair, for stand-ins of their lengths.

    Args:
        proof: the proof, whoever made it.
        root: the root, 64 hexadecimal digits.

    Raises:
        ConfigError: it proves nothing; the message says why.
    """
    if not _HASH.fullmatch(root):
        message = f"expected a root of 64 hexadecimal digits, found {root[:80]!r}"
        raise ConfigError(message)
    claim, lock, block = proof.claim, proof.lock, proof.block
    number = _number_of(proof)
    source = lock.sources[number]
    if not 0 <= claim.begin < claim.end:
        _refuse(f"of positions [{claim.begin}, {claim.end}), which are none")
    check_position(lock, claim.end)
    owner, own = own_pair(source, claim.document)
    _check_hashes(proof, number, owner, own, root)
    lengths = np.array(block.lengths, dtype=np.int32)
    check_readable(lock)
    whole = stand_in(
        source.pairs[owner],
        block.sums,
        lengths,
        lock=lock,
        source=source.name,
        number=owner,
        block=own // BLOCK_DOCUMENTS,
    )
    try:
        reading = reading_of(lock, number, claim.document, whole, start=claim.begin, stop=claim.end)
    except (OverflowError, IndexError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        _refuse(f"from a lock that no run can follow ({error})")
    if (reading.read, reading.denied) != (claim.read, claim.denied):
        _refuse(f"of {len(claim.read)} readings of the document, where the lock has {len(reading.read)} or others")
    return Proven(
        source=claim.source,
        document=claim.document,
        num_tokens=int(lengths[own % BLOCK_DOCUMENTS]),
        sha256=block.sha256,
        begin=claim.begin,
        end=claim.end,
        read=reading.read,
        denied=reading.denied,
        root=root,
    )


def _number_of(proof: Proof) -> int:
    """Returns the number of the source, whose lock has nothing that its hashes do not cover."""
    names = [source.name for source in proof.lock.sources]
    if proof.claim.source not in names:
        _refuse(f"about source {proof.claim.source[:80]!r}, which its lock does not have")
    number = names.index(proof.claim.source)
    if reduced(proof.lock, number) != proof.lock:
        _refuse("with a lock that says more than what is proven")
    return number


def _check_hashes(proof: Proof, number: int, owner: int, own: int, root: str) -> None:
    """Checks that lock, lengths and tokens are those that a root stands for."""
    block, source = proof.block, proof.lock.sources[number]
    _check_sizes(proof, source, owner, own)
    if len(proof.roots) != len(source.pairs):
        _refuse(f"with the roots of {len(proof.roots)} pairs, where the source has {len(source.pairs)}")
    place, inside = divmod(own, BLOCK_DOCUMENTS)
    if proof.tokens is not None:
        _check_tokens(proof.tokens, block.lengths[inside], block.sha256)
    document = hash_of_document(_hash(block.sha256))
    documents = root_from(document, inside, len(block.lengths), [_hash(each) for each in block.document_path])
    if documents is None:
        _refuse("with a path from the document that is too short or too long")
    leaf = hash_of_block(place, np.array(block.lengths, dtype=np.int32), documents)
    blocks = root_from(leaf, place, len(block.sums), [_hash(each) for each in block.block_path])
    sums = hash_of_sums(np.array(block.sums, dtype=np.int64))
    if blocks is None or PairRoots(blocks=blocks.hex(), sums=sums) != proof.roots[owner]:
        _refuse("whose document, lengths or sums are not those of the pair")
    leaf = hash_of_source(proof.lock, number, proof.roots)
    sources = root_from(leaf, number, len(proof.lock.sources), [_hash(each) for each in proof.source_path])
    if sources is None or root_of_head(proof.lock, sources) != root:
        _refuse(f"that does not lead to the root {root[:16]}…")


def _check_sizes(proof: Proof, source: LockedSource, owner: int, own: int) -> None:
    block, num_documents = proof.block, source.pairs[owner].num_documents
    if num_documents > MOST_DOCUMENTS:
        _refuse(f"about a pair of {num_documents} documents, more than {MOST_DOCUMENTS}")
    if len(block.sums) != -(-num_documents // BLOCK_DOCUMENTS):
        _refuse(f"with {len(block.sums)} sums for a pair of {num_documents} documents")
    if min(block.sums) < 0 or max(block.sums) >= _MOST_TOKENS:
        _refuse("with sums that are none")
    first = own - own % BLOCK_DOCUMENTS
    if len(block.lengths) != min(BLOCK_DOCUMENTS, num_documents - first):
        _refuse(f"with {len(block.lengths)} lengths for the block from document {first} on")
    if min(block.lengths) < 0 or max(block.lengths) >= 1 << 31:
        _refuse("with lengths that are none")


def _check_tokens(tokens: Sequence[int], length: int, sha256: str) -> None:
    if not is_document(tokens, length, sha256):
        _refuse("with other tokens than those of the document")


def is_document(tokens: Sequence[int], num_tokens: int, sha256: str) -> bool:
    """Whether tokens are those of a document of that length and digest."""
    if len(tokens) != num_tokens or any(not -(1 << 63) <= token < 1 << 63 for token in tokens):
        return False
    return document_digest(np.array(tokens, dtype=np.int64)).hex() == sha256


def _hash(text: str) -> bytes:
    if not _HASH.fullmatch(text):
        _refuse(f"with a hash of 64 hexadecimal digits that is none: {text[:80]!r}")
    return bytes.fromhex(text)


def _refuse(what: str) -> NoReturn:
    message = f"expected a proof that holds, found one {what}"
    raise ConfigError(message)


def check_text(proven: Proven, text: str, tokenizer: TextTokenizer) -> None:
    """Checks that a document is a text, with or without what the tokenizer puts before and behind it.

    Raises:
        ConfigError: it is another one.
        TokenizerError: the text cannot be tokenized.
    """
    tokens = tokenizer.tokenize(text)
    befores, behinds = ([[], *_role(tokenizer, name)] for name in ("bos", "eod"))
    forms = [[*before, *tokens, *behind] for before in befores for behind in behinds]
    if not any(is_document(form, proven.num_tokens, proven.sha256) for form in forms):
        message = (
            f"expected the text of document {proven.document} of {proven.source!r}, {proven.num_tokens} tokens with "
            f"sha256 {proven.sha256[:16]}…, found one of {len(tokens)} tokens"
        )
        raise ConfigError(message, hint="name the tokenizer that made the data, and the text as it was, to the byte")


def _role(tokenizer: TextTokenizer, name: str) -> list[list[int]]:
    try:
        return [[tokenizer.eod if name == "eod" else tokenizer.bos]]
    except MissingTokenError:
        return []
