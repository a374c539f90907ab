"""Tokenized conversations: a pair and its roles, made of a file of conversations where need be."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from contextlib import ExitStack
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tokenloom.datasets.chat_config import SFTDatasetConfig, as_chat_config
from tokenloom.datasets.protocols import Int64s
from tokenloom.errors import ConfigError, OutputBusyError, TokenizerError
from tokenloom.indexed.columns import has_column
from tokenloom.indexed.dataset import IndexedDataset, dataset_identity
from tokenloom.indexed.layout import column_path, prefix_of
from tokenloom.indexed.roles import NAME, SequenceRoles, read_roles
from tokenloom.indexed.token_source import span_reader
from tokenloom.order.arrays import refuse_to_build_now
from tokenloom.preprocess.chat import preprocess_chat
from tokenloom.preprocess.chat_templates import find_chat_template
from tokenloom.preprocess.settings import BadRecordBudget, ChatSettings
from tokenloom.progress import waiting_for
from tokenloom.storage.addresses import is_remote
from tokenloom.storage.local import MappedFile, sampled_hash
from tokenloom.tokenizers.huggingface import HuggingFaceTokenizer

logger: logging.Logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.2


class SFTLowLevelDataset:
    """Tokenized conversations: a pair and the roles beside it; each sequence is a conversation.

    Input that is not tokenized yet (JSON lines, Parquet) is tokenized once into `path_to_cache`, or into a folder
    `cache` beside it, under a name that changes with the file, the tokenizer and the template. Safe from several
    threads, and picklable (opened again from the pair, of object storage in the same version).

    Args:
        dataset_path: the prefix or address of a pair made by `preprocess_chat`; or the path of local conversations.
        config: the settings; needed for conversations that are not tokenized.
        plain_text: whether a pair without roles counts as text, which is trained everywhere.

    Raises:
        DatasetNotFoundError: there is no such file, or no roles beside the pair.
        ConfigError: conversations must be tokenized first, and the tokenizer is not one of Hugging Face.
    """

    def __init__(self, dataset_path: str, config: Any = None, *, plain_text: bool = False) -> None:
        prefix = prefix_of(dataset_path)
        if os.path.isfile(dataset_path) and not IndexedDataset.exists(prefix):
            if config is None:
                message = f"`{dataset_path}` is not tokenized yet, which needs a configuration, found none"
                raise ConfigError(message, hint="tokenize it with `tokenloom preprocess-chat`")
            prefix = _tokenized(dataset_path, as_chat_config(config))
        mmap = True if config is None else bool(config.mmap_bin_files)
        storage = None if config is None else config.storage_settings
        self._take(IndexedDataset(prefix, mmap=mmap, object_storage=storage), plain_text=plain_text)

    @classmethod
    def of_pair(cls, pair: IndexedDataset, *, plain_text: bool) -> Self:
        """Returns the conversations of a pair that is open."""
        data = cls.__new__(cls)
        data._take(pair, plain_text=plain_text)
        return data

    def _take(self, pair: IndexedDataset, *, plain_text: bool) -> None:
        self.pair = pair
        self.path_prefix: str = pair.path_prefix
        self._is_text = plain_text and not has_column(pair, NAME)
        self._open()

    def _open(self) -> None:
        self._read_spans = span_reader(self.pair, whole=True)
        self.roles: SequenceRoles = SequenceRoles() if self._is_text else read_roles(self.pair)

    def __len__(self) -> int:
        """The number of conversations."""
        return len(self.pair)

    def __getitem__(self, idx: int) -> NDArray[Any]:
        """Returns the tokens of a conversation."""
        tokens: NDArray[Any] = self.pair[idx]
        return tokens

    @property
    def sequence_lengths(self) -> NDArray[np.int32]:
        """int32[num_conversations], tokens of each."""
        return self.pair.sequence_lengths

    def gather(self, sequences: Int64s, starts: Int64s, lengths: Int64s) -> NDArray[Any]:
        """Returns the tokens of many spans, back to back."""
        return self._read_spans(self.pair, sequences, starts, lengths)

    @property
    def remote_paths(self) -> list[str]:
        """The addresses of the objects that tokens are read from; empty for local data."""
        return self.pair.remote_paths

    def will_need(self, sequences: Int64s, starts: Int64s, lengths: Int64s, *, block_bytes: int | None = None) -> None:
        """Announces spans that `gather` will read, see `IndexedDataset.will_need`."""
        self.pair.will_need(sequences, starts, lengths, block_bytes=block_bytes)

    def identity(self) -> dict[str, Any]:
        """Returns what tells these conversations from others."""
        return {**dataset_identity(self.pair), "roles": self.roles.identity()}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "roles": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()


def _tokenized(path: str, config: SFTDatasetConfig) -> str:
    """Returns the prefix of the conversations of a file, which are tokenized if they are not yet."""
    tokenizer = config.tokenizer
    if not isinstance(tokenizer, HuggingFaceTokenizer):
        message = f"`{path}` is not tokenized yet, which needs a Hugging Face tokenizer, found {tokenizer!r}"
        raise ConfigError(message, hint="tokenize it with `tokenloom preprocess-chat`, and name the output's prefix")
    file = MappedFile(path)
    key = json.dumps(
        {
            "num_bytes": file.num_bytes,
            "sample": sampled_hash(file) if file.num_bytes else "",
            "tokenizer": tokenizer.unique_identifiers,
            "special_tokens": tokenizer.special_tokens_dict,
            "chat_template": _template_source(tokenizer, config),
            "schema": config.schema,
            "skip_bad_lines": config.skip_bad_lines,
        }
    )
    folder = config.path_to_cache
    if folder is None or is_remote(folder):  # pairs are made where they are read
        folder = os.path.join(os.path.dirname(path), "cache")
    digest = hashlib.md5(key.encode(), usedforsecurity=False).hexdigest()
    prefix = os.path.join(folder, f"{digest}-{os.path.basename(path)}")
    if IndexedDataset.exists(prefix) and os.path.exists(column_path(prefix, NAME)):
        return prefix
    refuse_to_build_now(f"`{path}`")
    os.makedirs(folder, exist_ok=True)
    is_waiting = False
    with ExitStack() as stack:
        while not (IndexedDataset.exists(prefix) and os.path.exists(column_path(prefix, NAME))):
            try:
                summary = preprocess_chat(
                    path,
                    prefix,
                    tokenizer,
                    ChatSettings(
                        chat_template=config.chat_template,
                        schema=config.schema,
                        bad_records=BadRecordBudget(most=None if config.skip_bad_lines else 0),
                    ),
                    overwrite=True,
                )
            except OutputBusyError:
                if not is_waiting:
                    stack.enter_context(waiting_for(f"`{prefix}`, which another process makes"))
                is_waiting = True
                time.sleep(_LOOK_SECONDS)
                continue
            logger.info("tokenized `%s` into `%s`: %d records", path, prefix, summary.num_documents)
    return prefix


def _template_source(tokenizer: HuggingFaceTokenizer, config: SFTDatasetConfig) -> str | None:
    """Returns the text of the template, None where there is none: texts need none, and else tokenizing says so."""
    try:
        return find_chat_template(tokenizer, config.chat_template).source
    except TokenizerError:
        if config.chat_template is not None:
            raise
        return None
