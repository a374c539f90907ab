"""Which tokens of a batch belong to which document, and batches made from it: one changed, or one document alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeGuard

import torch

from tokenloom.errors import ConfigError

Batch = Mapping[str, Any]
Tensor = Any

PADDING = -1
"""The document of tokens that are padding."""

_TOKENS = ("tokens", "input_ids")
PER_TOKEN = "give `call=lambda model, batch: …`, which returns logits or losses per token"
_GIVE = "give `documents=`: an integer for each token, the number of its document, -1 for padding"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Where a document lies in an array: positions from start to end, end excluded, of a row."""

    row: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedBatch:
    """A batch, and which document each of its tokens belongs to.

    Attributes:
        tokens: name of the tokens that the model predicts from.
        owners: by name of an array, int64 of the shape of the array, the document of each token; `tokens` and, of an
            encoder, further arrays.
        source: what told documents apart.
        pieces: by name of an array, where each document lies in it; a document may be absent from one.
    """

    batch: dict[str, Any]
    tokens: str
    owners: dict[str, Tensor]
    source: str
    pieces: dict[str, dict[int, Piece]] = field(default_factory=dict)

    @property
    def owner(self) -> Tensor:
        """int64[num_tokens], the document of each token, row after row."""
        return self.owners[self.tokens].flatten()

    @property
    def num_documents(self) -> int:
        """How many documents there are, numbered from 0."""
        return int(max(int(owner.max()) for owner in self.owners.values())) + 1

    @property
    def num_rows(self) -> int:
        """How many rows the batch has."""
        return int(self.owner.numel() // self.batch[self.tokens].shape[-1])

    def token_arrays(self) -> list[str]:
        """Names of the arrays that hold tokens, and are embedded."""
        return [name for name in self.owners if name.endswith(_TOKENS)]

    def label_arrays(self) -> list[str]:
        """Names of the arrays that hold labels."""
        return [name for name, value in self.batch.items() if name.startswith("labels") and is_tensor(value)]

    def place(self, index: int, name: str | None = None) -> tuple[int, int, int, int]:
        """Returns row, position in the row, document and position in the document of a token, by its flat index."""
        name = name or self.tokens
        length = self.batch[name].shape[-1]
        document = int(self.owners[name].flatten()[index])
        piece = self.pieces[name].get(document)
        return index // length, index % length, document, index % length - (0 if piece is None else piece.start)

    def changed(self, names: list[str], document: int) -> dict[str, Any]:
        """Returns the batch with other values where a document, or padding, has tokens: each value becomes another.

        Tokens with which all documents begin, or end, stay and are put nowhere: they may tell a model where documents
        are. Labels change as their tokens do.
        """
        table = self._exchange(keeps_edges=document != PADDING)
        found = dict(self.batch)
        for name in names:
            values = self.batch[name]
            owner = self.owners.get(name, self.owners[self.tokens])
            inside: Tensor = owner == document
            inside = (inside if inside.ndim == values.ndim else inside.unsqueeze(-2)).expand_as(values)
            known = inside & (values >= 0) & (values < len(table))
            found[name] = torch.where(known, table[values.clamp(0, len(table) - 1).long()].to(values.dtype), values)
        return found

    def with_loss_of(self, batch: dict[str, Any], inside: Tensor) -> dict[str, Any] | None:
        """Returns a batch, of the same documents or one of them, with the losses inside alone; None if there is none.

        Raises:
            ConfigError: the batch has nothing that says where losses are.
        """
        inside = inside.reshape(batch[self.tokens].shape)
        if is_tensor(mask := batch.get("loss_mask")):
            return batch | {"loss_mask": mask * inside} if bool((mask * inside).any()) else None
        if not self.label_arrays():
            message = "the model gives one loss, and the batch has no `loss_mask` or `labels` to take one document's"
            raise ConfigError(message, hint=PER_TOKEN)
        kept = {name: torch.where(inside, batch[name], -100) for name in self.label_arrays()}
        return batch | kept if any(bool((labels != -100).any()) for labels in kept.values()) else None

    def crossing_labels(self) -> list[tuple[str, int, int]]:
        """Returns labels with a loss that are a token of the next document: array, flat index, and how far ahead.

        Where the own document has the same token at that place, such as one that begins all, a label tells nothing.
        """
        tokens, owner, found = self.batch[self.tokens], self.owner, []
        mask = self.batch.get("loss_mask")
        places = torch.tensor([self.place(index)[3] for index in range(len(owner))], device=owner.device)
        for name in self.label_arrays():
            array = self.batch[name] if self.batch[name].ndim > tokens.ndim else self.batch[name].unsqueeze(-2)
            for ahead, labels in enumerate(array.movedim(-2, 0).flatten(1), start=1):
                has_loss = labels >= 0
                if is_tensor(mask) and mask.numel() == tokens.numel():
                    has_loss = has_loss & (mask.flatten() > 0)
                now, later = torch.where(has_loss, owner, PADDING)[:-ahead], owner[ahead:]
                is_next = labels[:-ahead] == tokens.flatten()[ahead:]
                inside = is_next[(now == later) & (now >= 0)]
                if not len(inside) or float(inside.float().mean()) < 0.9:
                    continue  # what is so far ahead is not what they are labels of
                beyond = is_next & (now != later) & (now >= 0) & (later >= 0)
                for index in beyond.nonzero().flatten().tolist():
                    own = tokens.flatten()[(owner == owner[index]) & (places == places[index + ahead])]
                    is_row = (index + ahead) // tokens.shape[-1] == index // tokens.shape[-1]
                    if is_row and not (len(own) and int(own[0]) == int(labels[index])):
                        found.append((name, index, ahead))
        return found

    def _exchange(self, *, keeps_edges: bool) -> Tensor:
        """int64[largest token + 1], what each token of the batch becomes: the next one that the batch has."""
        values = torch.cat([self.batch[name].flatten() for name in self.token_arrays()]).long()
        rows = self.batch[self.tokens].reshape(-1, self.batch[self.tokens].shape[-1])
        pieces = self.pieces[self.tokens].values()
        firsts = {int(rows[piece.row, piece.start]) for piece in pieces}
        lasts = {int(rows[piece.row, piece.end - 1]) for piece in pieces}
        kept = (firsts if len(firsts) == 1 else set()) | (lasts if len(lasts) == 1 else set())
        others = [value for value in values.unique().tolist() if value not in kept]
        if len(others) < 2:
            others = [value for value in range(int(values.max()) + 1) if value not in kept]
        table = torch.arange(int(values.max()) + 1, device=values.device)
        if others:
            old = torch.tensor(others, device=values.device)
            table[old] = old.roll(1)
            if not keeps_edges:
                table[list(kept)] = others[0]
        return table

    def alone(self, document: int) -> dict[str, Any] | str:
        """Returns a batch of one document; or why there is none."""
        piece = self.pieces[self.tokens].get(document)
        if piece is None:
            return f"document {document} has no `{self.tokens}`"
        tokens = self.batch[self.tokens]
        length = piece.end - piece.start
        cuts = {tokens.shape[-1]: piece}
        for name, owner in self.owners.items():
            if document in self.pieces[name]:
                cuts.setdefault(owner.shape[-1], self.pieces[name][document])
        found: dict[str, Any] = {}
        for name, value in self.batch.items():
            if not is_tensor(value):
                if isinstance(value, int | float | str | bool | None):
                    found[name] = value
                    continue
                return f"`{name}` is a {type(value).__name__}, which cannot be cut: let `call=` make it from tensors"
            if name.startswith("cu_seqlens"):
                ends = torch.full_like(value[..., : length + 1 if value.ndim == 2 else 2], length)
                ends[..., 0] = 0
                found[name] = ends[:1] if value.ndim == 2 else ends
            elif name.startswith("max_seqlen"):
                found[name] = torch.full_like(value[:1] if value.ndim else value, length)
            else:
                own = {self.owners[name].shape[-1]: self.pieces[name].get(document)} if name in self.owners else cuts
                found[name] = _cut(value, own, is_flat=tokens.ndim == 1)
        positions = found.get("position_ids")
        if positions is not None and piece.start:
            row = self.batch["position_ids"].reshape(tokens.shape)
            row = row if tokens.ndim == 1 else row[piece.row]
            if int(row[piece.start]) == int(row[piece.start - 1]) + 1:  # they go on from the document before
                found["position_ids"] = positions - positions.flatten()[0]
        return found


def is_tensor(value: object) -> TypeGuard[Any]:
    """Whether a value is a tensor of torch."""
    return isinstance(value, torch.Tensor)


def _cut(value: Tensor, pieces: Mapping[int, Piece | None], *, is_flat: bool) -> Tensor:
    """Returns what belongs to one document: its row, and its positions along each axis that is as long as a row."""
    if not is_flat and value.ndim:
        piece = next(iter(pieces.values()))
        row = 0 if piece is None or value.shape[0] == 1 else piece.row
        value = value[row : row + 1]
    for axis in range(0 if is_flat else 1, value.ndim):
        cut = pieces.get(value.shape[axis])
        if cut is not None:
            value = value.narrow(axis, cut.start, cut.end - cut.start)
    return value


def packed_batch(batch: object, *, documents: object = None, device: Any = None) -> PackedBatch:
    """Returns a batch with the documents of its tokens; see `check_isolation`. A device of None leaves tensors there.

    Raises:
        ConfigError: there are no tokens, nothing tells documents apart, or there is one document alone.
    """
    if not isinstance(batch, Mapping):
        message = f"expected a batch as a dict of tensors by name, found {type(batch).__name__}"
        raise ConfigError(message, hint='such as {"tokens": …, "position_ids": …}, as a loader of tokenloom gives')
    values = {name: _tensor(value, device) for name, value in batch.items()}
    name = next((name for name in _TOKENS if is_tensor(values.get(name))), None)
    if name is None:
        message = f"expected `tokens` or `input_ids` in the batch, found {', '.join(map(str, values)) or 'nothing'}"
        raise ConfigError(message, hint="rename the array that holds the token ids")
    tokens = values[name]
    if tokens.is_floating_point() or tokens.ndim not in (1, 2) or not tokens.numel():
        message = f"expected `{name}` as integers [rows, positions] or [positions], found {_words(tokens)}"
        raise ConfigError(message, hint="embeddings and images are not checked: give the token ids")
    given = documents if isinstance(documents, Mapping) else {name: documents}
    owners, source = {}, "documents="
    for array, ids in given.items():
        if ids is not None:
            owners[array] = _tensor(ids, tokens.device, takes_lists=True)
            if not is_tensor(values.get(array)) or owners[array].shape != values[array].shape:
                shape = _words(values.get(array))
                message = f"expected `documents` of the shape of `{array}`, {shape}, found {_words(owners[array])}"
                raise ConfigError(message, hint=_GIVE)
    if name not in owners:
        owners[name], source = _found(values, name)
    step = int(max(int(owner.max()) for owner in owners.values())) + 1
    for array, owner in owners.items():  # a document is in one row: numbers may begin anew in each
        rows = torch.arange(owner.numel() // owner.shape[-1], device=owner.device).reshape(-1, *[1] * (owner.ndim - 1))
        owners[array] = torch.where(owner >= 0, owner.long() + step * rows, PADDING)
    numbers = torch.cat([owner.flatten() for owner in owners.values()]).unique()
    numbers = numbers[numbers >= 0]
    pieces: dict[str, dict[int, Piece]] = {}
    for array, owner in owners.items():
        owners[array] = torch.where(owner >= 0, torch.searchsorted(numbers, owner.clamp(min=0).contiguous()), PADDING)
        pieces[array] = _pieces(owners[array], array)
    found = PackedBatch(batch=values, tokens=name, owners=owners, source=source, pieces=pieces)
    if found.num_documents < 2 and not bool((found.owner == PADDING).any()):
        message = (
            f"the batch has one document of {tokens.numel():,} tokens, by `{source}`: it has none to be apart from"
        )
        raise ConfigError(message, hint=f"take a batch of several documents, or {_GIVE}")
    return found


def _tensor(value: object, device: Any, *, takes_lists: bool = False) -> Any:
    if (takes_lists or hasattr(value, "__array__")) and not is_tensor(value):
        value = torch.as_tensor(value)
    return value.to(device) if is_tensor(value) and device is not None else value


def _words(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}".removeprefix("torch.") if is_tensor(value) else type(value).__name__


def _found(values: Batch, name: str) -> tuple[Tensor, str]:
    """Returns the document of each token, and the array that tells it."""
    tokens = values[name]
    rows = tokens.reshape(-1, tokens.shape[-1])
    length = rows.shape[1]
    if is_tensor(values.get("document_ids")):
        return values["document_ids"].reshape(tokens.shape).long(), "document_ids"
    starts = torch.zeros(rows.shape, dtype=torch.int64, device=rows.device)
    starts[:, 0] = 1
    is_padding = torch.zeros_like(starts, dtype=torch.bool)
    bounds = values.get("cu_seqlens")
    if is_tensor(bounds):
        source = "cu_seqlens"
        flat = bounds.ndim == 1 or (bounds.shape[0] == 1 and int(bounds.max()) > length)
        for row in range(1 if flat else len(rows)):
            line, width = (starts.view(-1), starts.numel()) if flat else (starts[row], length)
            ends = (bounds.flatten() if flat else bounds[row]).long()
            if bool((ends.diff() < 0).any()) or int(ends[-1]) > width:
                message = f"expected `cu_seqlens` that rise to {width} at most, found {ends.tolist()[:20]}"
                raise ConfigError(message, hint="they are where documents begin, and the end of the last one")
            line[ends[ends < width]] = 1
            (is_padding.view(-1) if flat else is_padding[row])[int(ends[-1]) :] = True
    elif is_tensor(values.get("position_ids")) and values["position_ids"].numel() == tokens.numel():
        source = "position_ids"
        positions = values["position_ids"].reshape(rows.shape)
        starts[:, 1:] = (positions[:, 1:] != positions[:, :-1] + 1).long()
    else:
        message = "nothing in the batch tells documents apart: no `document_ids`, `cu_seqlens` or `position_ids`"
        raise ConfigError(message, hint=f"{_GIVE}; loaders of tokenloom give boundaries by `inter_document_masking`")
    if is_tensor(values.get("attention_mask")) and values["attention_mask"].shape == tokens.shape:
        is_padding |= values["attention_mask"].reshape(rows.shape) == 0
    if is_tensor(values.get("loss_mask")) and values["loss_mask"].numel() == tokens.numel():
        idle = (values["loss_mask"].reshape(rows.shape) == 0) & (rows == rows[:, -1:])
        tail = idle.flip(1).long().cumprod(1).flip(1).bool()
        is_padding |= tail & (tail.sum(1, keepdim=True) > 1)
    ids = starts.flatten().cumsum(0).reshape(rows.shape) - 1
    return torch.where(is_padding, PADDING, ids).reshape(tokens.shape), source


def _pieces(owner: Tensor, name: str) -> dict[int, Piece]:
    found: dict[int, Piece] = {}
    for row, documents in enumerate(owner.reshape(-1, owner.shape[-1]).tolist()):
        end = 0
        for document, run in groupby(documents):
            start, end = end, end + len(list(run))
            if document in found:
                message = f"expected each document of `{name}` in one piece of one row, found document {document} in "
                message += "several"
                raise ConfigError(message, hint=_GIVE)
            if document != PADDING:
                found[document] = Piece(row=row, start=start, end=end)
    return found
