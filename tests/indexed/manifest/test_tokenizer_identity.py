"""What can be learnt of any tokenizer."""

from __future__ import annotations

import numpy as np
from tests.indexed.manifest.manifests import SHA256

from tokenloom.indexed.manifest.tokenizer_identity import TokenizerIdentity, identity_of


class Peer:
    """A tokenizer as Megatron has them: told apart by a path, and with attributes that raise."""

    def __init__(self):
        self.unique_identifiers = {"class": "peer", "tokenizer_path": ["there/tokenizer"]}
        self.vocab_size = np.int64(100)

    def __getattr__(self, name):
        raise NotImplementedError


class Wrapper:
    def __init__(self):
        self.unique_identifiers = {"sha256": SHA256}


def test_any_tokenizer_has_an_identity():
    found = identity_of(Peer())
    assert found == TokenizerIdentity(kind="Peer", sha256=None, path="there/tokenizer", vocab_size=100)
    assert found.describe() == "Peer `there/tokenizer` (100 ids)"
    assert identity_of(Wrapper()).sha256 == SHA256
    assert identity_of(object()).describe() == "object"
