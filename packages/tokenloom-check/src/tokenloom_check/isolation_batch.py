"""Which tokens of a batch belong to which document, and batches made from it: one changed, or one document alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeGuard

import torch

from tokenloom.errors import ConfigError

Tensor = Any

PADDING = -1
"""The document of tokens that are padding."""

_TOKENS = ("tokens", "input_ids")
_GIVE = "give `documents=`: an integer for each token, the number of its document, -1 for padding"


class Piece(NamedTuple):
    """Where a document lies in an array: positions from start to end, end excluded, of a row."""

    row: int
    start: int
    end: int


class PackedBatch:
    """A batch, and which document each of its tokens belongs to; see `check_isolation`.

    Attributes:
        batch: tensors by name, on a device if one is given.
        tokens: name of the tokens that the model predicts from.
        owners: by name of an array, int64[rows, positions], the document of each token; `tokens` and, of an encoder,
            further arrays.
        owner: int64[num_tokens], that of `tokens`, row after row.
        source: what told documents apart.
        pieces: by name of an array, where each document lies in it; a document may be absent from one.
        num_documents: how many documents there are, numbered from 0.
        token_arrays, label_arrays: names of the arrays that are embedded, and of those that hold labels.

    Raises:
        ConfigError: there are no tokens, nothing tells documents apart, or there is one document alone.
    """

    def __init__(self, batch: Mapping[str, Any], *, documents: object = None, device: Any = None) -> None:
        values = {name: _tensor(value, device) for name, value in batch.items()}
        name = next((name for name in _TOKENS if is_tensor(values.get(name))), None)
        if (
            name is None
            or values[name].is_floating_point()
            or values[name].ndim not in (1, 2)
            or not values[name].numel()
        ):
            there = ", ".join(f"{each} {_words(value)}" for each, value in values.items())
            message = f"expected `tokens` or `input_ids`, integers [rows, positions] or [positions], found {there}"
            raise ConfigError(message, hint="rename the array that holds token ids; embeddings are not checked")
        tokens = values[name]
        owners, source = {}, "documents="
        for array, given in (documents if isinstance(documents, Mapping) else {name: documents}).items():
            if given is not None:
                ids, value = _tensor(given, tokens.device, takes_lists=True), values.get(array)
                if not is_tensor(value) or ids.shape != value.shape:
                    message = f"expected `documents` of the shape of `{array}`, {_words(value)}, found {_words(ids)}"
                    raise ConfigError(message, hint=_GIVE)
                owners[array] = _rows(ids).long()
        if name not in owners:
            owners[name], source = _owner(values, name)
        step = max(int(owner.max()) for owner in owners.values()) + 1
        for array, owner in owners.items():  # a document is in one row: numbers may begin anew in each
            rows = torch.arange(len(owner), device=owner.device)[:, None]
            owners[array] = torch.where(owner >= 0, owner + step * rows, PADDING)
        numbers = torch.cat([owner.flatten() for owner in owners.values()]).unique()
        numbers = numbers[numbers >= 0]
        pieces: dict[str, dict[int, Piece]] = {}
        for array, owner in owners.items():
            owners[array] = torch.where(owner >= 0, torch.searchsorted(numbers, owner.clamp(min=0)), PADDING)
            pieces[array] = _pieces(owners[array], array)
        if len(numbers) < 2 and not bool((owners[name] == PADDING).any()):
            message = (
                f"the batch has one document of {tokens.numel():,} tokens, by `{source}`: nothing to be apart from"
            )
            raise ConfigError(message, hint=f"take a batch of several documents, or {_GIVE}")
        self.batch, self.tokens, self.owners, self.source, self.pieces = values, name, owners, source, pieces
        self.num_documents = len(numbers)
        self.owner = owners[name].flatten()
        self.token_arrays = [name for name in owners if name.endswith(_TOKENS)]
        self.label_arrays = [name for name, value in values.items() if name.startswith("labels") and is_tensor(value)]

    def place(self, index: int, name: str) -> tuple[int, int, int]:
        """Returns row, position in the row and position in its document of a token, by its flat index."""
        row, position = divmod(index, self.owners[name].shape[1])
        piece = self.pieces[name].get(int(self.owners[name][row, position]))
        return row, position, position - (0 if piece is None else piece.start)

    def changed(self, names: list[str], document: int) -> dict[str, Any]:
        """Returns the batch with other values where a document, or padding, has tokens: each becomes the next that is.

        Tokens with which all documents begin, or end, stay and are put nowhere: they may tell a model where documents
        are. Labels change as their tokens do.
        """
        values = torch.cat([self.batch[name].flatten() for name in self.token_arrays]).long()
        rows = _rows(self.batch[self.tokens])
        pieces = self.pieces[self.tokens].values()
        edges = [
            {int(rows[row, start]) for row, start, _ in pieces},
            {int(rows[row, end - 1]) for row, _, end in pieces},
        ]
        kept = {token for tokens in edges if len(tokens) == 1 for token in tokens}
        table = torch.arange(int(values.max()) + 1, device=values.device)
        others = [value for value in values.unique().tolist() if value not in kept]
        others = others if len(others) > 1 else [value for value in table.tolist() if value not in kept]
        table[others] = table[others].roll(1)
        if others and document == PADDING:
            table[list(kept)] = others[0]
        found = dict(self.batch)
        for name in names:
            array = self.batch[name]
            inside: Tensor = self.owners.get(name, self.owners[self.tokens]) == document
            inside = inside[:, None].expand(len(inside), array.numel() // inside.numel(), -1).reshape(array.shape)
            known = inside & (array >= 0) & (array < len(table))
            found[name] = torch.where(known, table[array.clamp(0, len(table) - 1).long()].to(array.dtype), array)
        return found

    def crossing_label(self) -> tuple[int, int, int] | None:
        """Returns the first label with a loss that is a token of another document: document, other one, and flat index.

        Where the own document has the same token at that place, such as one that begins all, a label tells nothing.
        """
        tokens, owner = _rows(self.batch[self.tokens]), self.owners[self.tokens]
        mask = self.batch.get("loss_mask")
        has_loss = mask.reshape(tokens.shape) > 0 if is_tensor(mask) and mask.numel() == tokens.numel() else owner >= 0
        for name in self.label_arrays:
            for ahead, labels in enumerate(self.batch[name].reshape(len(tokens), -1, tokens.shape[1]).unbind(1), 1):
                now = torch.where(has_loss & (labels >= 0), owner, PADDING)[:, :-ahead]
                later, is_next = owner[:, ahead:], labels[:, :-ahead] == tokens[:, ahead:]
                inside = is_next[(now == later) & (now >= 0)]
                if not len(inside) or float(inside.float().mean()) < 0.9:
                    continue  # what is so far ahead is not what they are labels of
                for row, position in (is_next & (now != later) & (now >= 0) & (later >= 0)).nonzero().tolist():
                    document, other = int(now[row, position]), int(later[row, position])
                    _, start, end = self.pieces[self.tokens][document]
                    same = start + position + ahead - self.pieces[self.tokens][other].start
                    if same >= end or int(tokens[row, same]) != int(labels[row, position]):
                        return document, other, row * tokens.shape[1] + position
        return None

    def alone(self, document: int) -> dict[str, Any] | str:
        """Returns a batch of one document; or why there is none."""
        if document not in self.pieces[self.tokens]:
            return f"document {document} has no `{self.tokens}`"
        row, start, end = self.pieces[self.tokens][document]
        found: dict[str, Any] = {}
        for name, value in self.batch.items():
            if name.startswith("cu_seqlens") and is_tensor(value):
                found[name] = torch.full_like(value[:1] if value.ndim == 2 else value[:2], end - start)
                found[name][..., 0] = 0
            elif name.startswith("max_seqlen") and is_tensor(value):
                found[name] = torch.full_like(value[:1] if value.ndim else value, end - start)
            elif is_tensor(value):
                found[name] = self.cut(value, document, name)
            elif isinstance(value, int | float | str | None):
                found[name] = value
            else:
                return f"`{name}` is a {type(value).__name__}, which cannot be cut: let `call=` make it from tensors"
        if "seen_stop" in found:
            found["seen_stop"] = found["seen_stop"] - start
        positions = self.batch.get("position_ids")
        if start and is_tensor(positions) and positions.numel() == self.owner.numel():
            first, before = _rows(positions)[row, [start, start - 1]].tolist()
            if first == before + 1:  # they go on from the document before
                found["position_ids"] = found["position_ids"] - first
        return found

    def cut(self, value: Tensor, document: int, name: str | None = None) -> Tensor | None:
        """Returns what a tensor has of a document: its row, and its tokens along axes that are as long as a row.

        An array of the batch is cut along all of these axes, by its own documents if it has some; what modules take and
        give, which has no name, along the first one, and is None if it has no such axis.
        """
        found = None
        for array in [name] if name in self.pieces else self.pieces:
            num_rows, length = self.owners[array].shape
            row, start, end = self.pieces[array].get(document, (0, 0, length))
            if value.shape[:1] == (num_rows * length,):
                return value.narrow(0, row * length + start, end - start)
            if value.shape[:2] == (length, num_rows) != (num_rows, length):
                return value.narrow(1, row, 1).narrow(0, start, end - start)
            if value.shape[:1] in ((num_rows,), (1,)):
                value = value.narrow(0, row if len(value) > 1 else 0, 1)
                for axis in range(1, value.ndim):
                    if value.shape[axis] == length and (found is None or name):
                        found = value = value.narrow(axis, start, end - start)
        return value if name else found


def is_tensor(value: object) -> TypeGuard[Any]:
    """Whether a value is a tensor of torch."""
    return isinstance(value, torch.Tensor)


def _rows(value: Tensor) -> Tensor:
    return value.reshape(-1, value.shape[-1])


def _tensor(value: object, device: Any, *, takes_lists: bool = False) -> Any:
    if (takes_lists or hasattr(value, "__array__")) and not is_tensor(value):
        value = torch.as_tensor(value)
    return value.to(device) if is_tensor(value) and device is not None else value


def _words(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}".removeprefix("torch.") if is_tensor(value) else type(value).__name__


def _owner(values: Mapping[str, Any], name: str) -> tuple[Tensor, str]:
    """Returns int64[rows, positions], the document of each token, and the array that tells it."""
    rows = _rows(values[name])
    length = rows.shape[1]
    tensors = {each: value for each, value in values.items() if is_tensor(value)}
    alike = {each: value.reshape(rows.shape) for each, value in tensors.items() if value.numel() == rows.numel()}
    is_padding = torch.zeros_like(rows, dtype=torch.bool)
    if "document_ids" in alike:
        source, ids = "document_ids", alike["document_ids"].long()
    elif "cu_seqlens" in tensors:
        source, bounds = "cu_seqlens", tensors["cu_seqlens"]
        is_flat = bounds.ndim == 1 or (len(bounds) == 1 and int(bounds.max()) > length)
        bounds, width = (bounds.reshape(1, -1), rows.numel()) if is_flat else (bounds, length)
        if bool((bounds.diff() < 0).any()) or int(bounds.max()) > width or len(bounds) * width != rows.numel():
            message = f"expected `cu_seqlens` that rise to {width} at most, found {bounds.flatten().tolist()[:20]}"
            raise ConfigError(message, hint="they are where documents begin, and the end of the last one")
        positions = torch.arange(width, device=rows.device).expand(len(bounds), width).contiguous()
        ids = torch.searchsorted(bounds.long().contiguous(), positions, right=True).reshape(rows.shape)
        is_padding = (positions >= bounds[:, -1:]).reshape(rows.shape)
    elif "position_ids" in alike:
        source = "position_ids"
        ids = torch.nn.functional.pad((alike["position_ids"].diff() != 1).long(), (1, 0)).cumsum(1)
    else:
        message = "nothing in the batch tells documents apart: no `document_ids`, `cu_seqlens` or `position_ids`"
        raise ConfigError(message, hint=f"{_GIVE}; loaders of tokenloom give boundaries by `inter_document_masking`")
    if "attention_mask" in alike:
        is_padding = is_padding | (alike["attention_mask"] == 0)
    if "loss_mask" in alike:  # the same token without a loss, up to the end of the row
        idle = (alike["loss_mask"] == 0) & (rows == rows[:, -1:])
        tail = idle.flip(1).long().cumprod(1).flip(1).bool()
        is_padding = is_padding | (tail & (tail.sum(1, keepdim=True) > 1))
    return torch.where(is_padding, PADDING, ids), source


def _pieces(owner: Tensor, name: str) -> dict[int, Piece]:
    starts = torch.nn.functional.pad(owner.diff() != 0, (1, 0), value=True).nonzero().tolist()
    found: dict[int, Piece] = {}
    for (row, start), (next_row, end) in zip(starts, [*starts[1:], [len(owner), 0]], strict=True):
        document = int(owner[row, start])
        if document in found:
            message = f"expected each document of `{name}` in one piece, found document {document} in several"
            raise ConfigError(message, hint=_GIVE)
        if document != PADDING:
            found[document] = Piece(row, start, end if next_row == row else owner.shape[1])
    return found
