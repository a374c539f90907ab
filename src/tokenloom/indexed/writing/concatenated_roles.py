"""The roles of many datasets as those of one, where all of them have roles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tokenloom.errors import ConfigError
from tokenloom.indexed.dataset import IndexedDataset
from tokenloom.indexed.layout import prefix_of
from tokenloom.indexed.manifest.contents import FileChecksum
from tokenloom.indexed.roles import RolesWriter, SequenceRoles, read_roles, roles_path
from tokenloom.indexed.writing.kept_documents import ConcatenatedPart, Selection
from tokenloom.storage.atomic import PendingFile
from tokenloom.storage.copies import PendingObject
from tokenloom.storage.local import ByteSource
from tokenloom.storage.resolve import exists


class ConcatenatedRoles:
    """What becomes of roles beside the inputs. Memory: 8 bytes per sequence and, where some are left out, 5 per part.

    Args:
        parts: what the output is made of.
        output_prefix: prefix of the output.
        multimodal: whether the inputs hold modes.

    Raises:
        ConfigError: only some of the inputs have roles, or they come from different tokenizers.
        DatasetFormatError: the roles of an input are damaged, or belong to other data.
    """

    def __init__(self, parts: Sequence[ConcatenatedPart], output_prefix: str, *, multimodal: bool) -> None:
        self._parts = parts
        self._multimodal = multimodal
        prefixes = list(dict.fromkeys(prefix_of(part.prefix) for part in parts))
        having = [prefix for prefix in prefixes if exists(roles_path(prefix))]
        if having and len(having) < len(prefixes):
            without = next(prefix for prefix in prefixes if prefix not in having)
            message = f"there are roles beside `{having[0]}`, but none beside `{without}`"
            raise ConfigError(message, hint="join conversations with conversations, or move the `.roles` files away")
        tokenizer = self._read(having[0])[1].tokenizer_sha256 if having else None
        for prefix in having:
            if (found := self._read(prefix)[1].tokenizer_sha256) != tokenizer:
                message = (
                    f"the roles of `{prefix}` come from the tokenizer {found}, those of `{having[0]}` from {tokenizer}"
                )
                raise ConfigError(message, hint="tokenize the conversations with one tokenizer")
        self._writer = RolesWriter(output_prefix, tokenizer_sha256=tokenizer)
        self._are_there = bool(having)

    def write(
        self, num_sequences: int, tokens: ByteSource, index: ByteSource
    ) -> tuple[PendingFile | PendingObject, FileChecksum] | None:
        """Returns the roles of the output as `RolesWriter.write` does; None if the inputs have none."""
        if not self._are_there:
            return None
        for part in self._parts:
            dataset, roles = self._read(part.prefix)
            for block in Selection(dataset, part).blocks():
                offsets = roles.offsets[block.rows.start : block.rows.stop + 1]
                counts, parts = np.diff(offsets), slice(int(offsets[0]), int(offsets[-1]))
                stops, kinds = roles.stops[parts], roles.kinds[parts]
                if not block.kept_rows.all():
                    chosen = np.repeat(block.kept_rows, counts)
                    counts, stops, kinds = counts[block.kept_rows], stops[chosen], kinds[chosen]
                self._writer.append(counts, stops, kinds)
        return self._writer.write(num_sequences, tokens, index)

    def _read(self, prefix: str) -> tuple[IndexedDataset, SequenceRoles]:
        dataset = IndexedDataset(prefix, multimodal=self._multimodal)
        return dataset, read_roles(dataset)
