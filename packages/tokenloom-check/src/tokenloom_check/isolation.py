"""Checks that documents packed into one batch do not depend on each other in a model.

A probe is the batch with a change that must not affect some of the outputs. `_Search` runs the model on each probe,
compares how much these outputs differ with a measured limit, and finds the module where a difference begins.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, TypeGuard

import torch
from torch.nn.functional import pad
from torch.overrides import TorchFunctionMode

from tokenloom.errors import ConfigError, ConformanceError
from tokenloom.numbers import checked_integer
from tokenloom_check.isolation_report import PADDING, QUESTIONS, IsolationCheck, IsolationLeak, IsolationReport

_NUM_ROUNDED, _MARGIN = 4, 4.0  # runs with perturbed rounding; a leak exceeds `_MARGIN` times their largest effect
_TOKENS = ("tokens", "input_ids")
_GIVE = "pass `documents=`: the document index of each token, -1 for padding"
_LOOKUPS = {"embedding", "__getitem__", "index_select"}
_ROUNDED = {
    "embedding", "linear", "matmul", "__matmul__", "bmm", "baddbmm", "einsum", "conv1d", "softmax", "log_softmax",
    "layer_norm", "rms_norm", "scaled_dot_product_attention", "cross_entropy",
}  # fmt: skip

Tensor = Any
Batch = dict[str, Any]


def check_isolation(
    model: Callable[..., Any],
    batch: Mapping[str, Any],
    *,
    call: Callable[[Any, Batch], Any] | None = None,
    documents: object = None,
    checks: Sequence[str] = tuple(QUESTIONS),
    max_documents: int = 16,
    raises: bool = True,
) -> IsolationReport:
    """Checks that the documents of a batch depend neither on each other nor on padding in a model.

    Example:
        >>> import torch
        >>> embed = torch.nn.Embedding(8, 4)
        >>> batch = {"tokens": torch.tensor([[1, 2, 3, 4]]), "position_ids": torch.tensor([[0, 1, 0, 1]])}
        >>> report = check_isolation(lambda tokens: embed(tokens).cumsum(1), batch, raises=False)
        >>> [check.result for check in report.checks], report.checks[0].leak.token
        (['leak', 'leak', 'leak', 'not run', 'not run'], 1)

    Args:
        model: a module, called in its current mode, or a function. The report names the submodule only for a module.
        batch: tensors or arrays by name: `tokens` or `input_ids`, and the other inputs of the model. They are moved to
            the device of the model.
        call: a function that takes the model and a batch, and returns logits or losses per token: a tensor, or tensors
            in a mapping or tuple. By default the model gets the arrays that its parameters name, or else the batch.
        documents: the document index of each token, -1 for padding, in the shape of the tokens; or a mapping from array
            names to such arrays, for encoder-decoder batches. By default taken from `document_ids`, `cu_seqlens` or
            `position_ids`.
        checks: names of the checks to run, "gradient", "change", "alone", "tail", "labels"; see `QUESTIONS`.
        max_documents: maximum number of documents to probe, spread evenly over the batch.
        raises: raise ConformanceError if a leak is found.

    Raises:
        ConformanceError: a document depends on another one or on padding. The message names both and the module.
        ConfigError: the batch or the model cannot be checked.
    """
    if unknown := [name for name in checks if name not in QUESTIONS]:
        _refuse(f"unknown check {unknown[0]!r}", f"choose from {', '.join(QUESTIONS)}")
    checked_integer("max_documents", max_documents, at_least=1)
    search = _Search(model, call, _PackedBatch(batch, documents, model), max_documents)
    report = IsolationReport(
        model=getattr(model, "__name__", type(search.modules.get("", model)).__name__),
        num_documents=search.packed.num_documents,
        num_tokens=int((search.owner >= 0).sum()),
        num_padding=int((search.owner < 0).sum()),
        source=search.packed.source,
        checks=tuple(search.check(name) for name in QUESTIONS if name in checks),
        notes=tuple(search.notes),
    )
    if raises and not report.ok:
        raise ConformanceError(str(report))
    return report


class _PackedBatch:
    """A batch with the document of each token, and the batches that the checks derive from it."""

    def __init__(self, batch: Mapping[str, Any], documents: object, model: Any) -> None:
        parameters = model.parameters() if isinstance(model, torch.nn.Module) else iter(())
        device = next((parameter.device for parameter in parameters), None)
        arrays = {name: torch.as_tensor(each) if hasattr(each, "__array__") else each for name, each in batch.items()}
        self.batch = {name: each.to(device) if _is_tensor(each) else each for name, each in arrays.items()}
        self.tokens = next((name for name in _TOKENS if _is_tensor(self.batch.get(name))), "")
        tokens = self.batch.get(self.tokens)
        if tokens is None or tokens.is_floating_point() or tokens.ndim not in (1, 2) or not tokens.numel():
            found = ", ".join(f"{name} {_words(value)}" for name, value in self.batch.items())
            message = f"the batch needs integer `tokens` or `input_ids` [rows, positions] or [positions], got {found}"
            _refuse(message, "rename the array of token ids; embeddings are not supported")
        given = dict(documents) if isinstance(documents, Mapping) else {self.tokens: documents}
        own, self.source = given.pop(self.tokens, None), "documents="
        if own is None:
            own, self.source = _owner_of({name: each for name, each in self.batch.items() if _is_tensor(each)}, tokens)
        raw = {name: self._as_owner(name, ids) for name, ids in ({self.tokens: own} | given).items()}
        step = max(int(ids.max()) for ids in raw.values()) + 1  # each row may number its documents from 0
        apart = {name: ids + step * torch.arange(len(ids), device=ids.device)[:, None] for name, ids in raw.items()}
        owners = {name: torch.where(ids < 0, PADDING, apart[name]) for name, ids in raw.items()}
        numbers, numbered = torch.cat([owner.flatten() for owner in owners.values()]).unique(return_inverse=True)
        parts = (numbered - int(numbers[0] == PADDING)).split([owner.numel() for owner in owners.values()])
        # By array name: the document index of each token, or PADDING, int64[rows, positions]; and document places.
        self.owners = {name: part.view_as(owners[name]) for name, part in zip(owners, parts, strict=True)}
        self.pieces = {name: _pieces(owner, name) for name, owner in self.owners.items()}
        self.num_documents = len(numbers) - int(numbers[0] == PADDING)
        if self.num_documents < 2 and not bool((owners[self.tokens] == PADDING).any()):
            message = f"the batch has only one document of {tokens.numel():,} tokens according to `{self.source}`"
            _refuse(message, f"use a batch of several documents, or {_GIVE}")
        self.token_arrays = [name for name in owners if name.endswith(_TOKENS)]
        self.label_arrays = [name for name in self.batch if name.startswith("labels") and _is_tensor(self.batch[name])]

    def _as_owner(self, name: str, documents: Any) -> Tensor:
        ids, value = torch.as_tensor(documents, device=self.batch[self.tokens].device), self.batch.get(name)
        if not _is_tensor(value) or ids.numel() != value.numel() or ids.shape[-1] != value.shape[-1]:
            _refuse(f"`documents` must have the shape of `{name}`, {_words(value)}, got {_words(ids)}", _GIVE)
        return _rows(ids).long()

    def changed(self, names: list[str], document: int) -> Batch:
        """Returns the batch with other values in one document or the padding, in the arrays called `names`."""
        # A token that starts or ends every document is neither replaced nor inserted: models may find boundaries by it.
        values = torch.cat([self.batch[name].flatten() for name in self.token_arrays]).long()
        rows, pieces = _rows(self.batch[self.tokens]), self.pieces[self.tokens].values()
        begins = {int(rows[row, start]) for row, start, _ in pieces}
        ends = {int(rows[row, end - 1]) for row, _, end in pieces}
        kept = {token for tokens in (begins, ends) if len(tokens) == 1 for token in tokens}
        table = torch.arange(int(values.max()) + 1, device=values.device)
        others = [value for value in values.unique().tolist() if value not in kept]
        others = others if len(others) > 1 else [value for value in table.tolist() if value not in kept]
        table[others] = table[others].roll(1)  # each value becomes another one of the batch; labels like their tokens
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

    def alone(self, document: int) -> Batch:
        if document not in self.pieces[self.tokens]:
            raise _NotRunError(f"document {document} has no `{self.tokens}`")
        row, start, end = self.pieces[self.tokens][document]
        found = dict(self.batch)
        for name, value in self.batch.items():
            if name.startswith("cu_seqlens") and _is_tensor(value):
                found[name] = torch.full_like(value[:1] if value.ndim == 2 else value[:2], end - start)
                found[name][..., 0] = 0
            elif name.startswith("max_seqlen") and _is_tensor(value):
                found[name] = torch.full_like(value[:1] if value.ndim else value, end - start)
            elif _is_tensor(value):
                cut: Tensor = self.cut(value, document, name)
                found[name] = cut - start if name == "seen_stop" else cut
            elif not isinstance(value, int | float | str | None):
                raise _NotRunError(f"cannot slice `{name}`, a {type(value).__name__}: build it from tensors in `call=`")
        positions = self.batch.get("position_ids")
        if start and _is_tensor(positions) and positions.numel() == self.owners[self.tokens].numel():
            first, before = _rows(positions)[row, [start, start - 1]].tolist()
            if first == before + 1:  # positions continue from the previous document
                found["position_ids"] = found["position_ids"] - first
        return found

    def cut(self, value: Tensor, document: int, name: str | None = None) -> Tensor | None:
        """Returns one document of an array of the batch called `name`: its row, sliced along all axes as long as a row.

        Without a name, `value` is an input or output of a module, sliced along the first such axis; None without one.
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

    def crossing_label(self) -> tuple[int, int, int] | None:
        """Returns (document, other document, flat index) for the first label taken from another document, else None."""
        tokens, owner, pieces = _rows(self.batch[self.tokens]), self.owners[self.tokens], self.pieces[self.tokens]
        mask = self.batch.get("loss_mask")
        has_loss = mask.reshape(tokens.shape) > 0 if _is_tensor(mask) and mask.numel() == tokens.numel() else owner >= 0
        for name in self.label_arrays:
            for ahead, labels in enumerate(self.batch[name].reshape(len(tokens), -1, tokens.shape[1]).unbind(1), 1):
                now = torch.where(has_loss & (labels >= 0), owner, PADDING)[:, :-ahead]
                later, is_next = owner[:, ahead:], labels[:, :-ahead] == tokens[:, ahead:]
                inside = is_next[(now == later) & (now >= 0)]
                if not len(inside) or float(inside.float().mean()) < 0.9:
                    continue  # these are not the labels of tokens `ahead` positions later
                for row, position in (is_next & (now != later) & (now >= 0) & (later >= 0)).nonzero().tolist():
                    document, other = int(now[row, position]), int(later[row, position])
                    (_, start, end), (_, other_start, _) = pieces[document], pieces[other]
                    # No leak if the own document begins with the same token, such as a common first token.
                    same = start + position + ahead - other_start
                    if same >= end or int(tokens[row, same]) != int(labels[row, position]):
                        return document, other, row * tokens.shape[1] + position
        return None


def _owner_of(tensors: Batch, tokens: Tensor) -> tuple[Tensor, str]:
    """Returns the document of each token, int64[rows, positions], and the name of the array it comes from."""
    rows, source = _rows(tokens), "position_ids"
    alike = {name: value.reshape(rows.shape) for name, value in tensors.items() if value.numel() == rows.numel()}
    is_padding = torch.zeros_like(rows, dtype=torch.bool)
    if "document_ids" in alike:
        source, ids = "document_ids", alike["document_ids"].long()
    elif (bounds := tensors.get("cu_seqlens")) is not None:  # bounds per row, or of all rows concatenated
        source, bounds = "cu_seqlens", bounds.reshape(-1, bounds.shape[-1]).long().contiguous()
        width = rows.numel() // len(bounds)
        if bool((bounds.diff() < 0).any()) or int(bounds.max()) > width or len(bounds) not in (1, len(rows)):
            message = f"`cu_seqlens` must ascend to at most {width}, got {bounds.flatten().tolist()[:20]}"
            _refuse(message, "pass the start of each document, then the end of the last one")
        positions = torch.arange(width, device=rows.device).expand(len(bounds), width).contiguous()
        ids = torch.searchsorted(bounds, positions, right=True).reshape(rows.shape)
        is_padding = (positions >= bounds[:, -1:]).reshape(rows.shape)
    elif "position_ids" in alike:
        ids = pad((alike["position_ids"].diff() != 1).long(), (1, 0)).cumsum(1)
    else:
        message = "the batch has no document boundaries: no `document_ids`, `cu_seqlens` or `position_ids`"
        _refuse(message, f"{_GIVE}; loaders of tokenloom return boundaries with `inter_document_masking`")
    if "attention_mask" in alike:
        is_padding = is_padding | (alike["attention_mask"] == 0)
    if "loss_mask" in alike:  # padding is a repeated token without loss at the end of a row
        idle = (alike["loss_mask"] == 0) & (rows == rows[:, -1:])
        tail = idle.flip(1).long().cumprod(1).flip(1).bool()
        is_padding = is_padding | (tail & (tail.sum(1, keepdim=True) > 1))
    return torch.where(is_padding, PADDING, ids), source


def _pieces(owner: Tensor, name: str) -> dict[int, tuple[int, int, int]]:
    """Returns, by document, its row, its first position, and the position after its last."""
    length, found = owner.shape[1], dict[int, tuple[int, int, int]]()
    starts = pad(owner.diff() != 0, (1, 0), value=True).flatten().nonzero().flatten().tolist()
    for start, end in itertools.pairwise([*starts, owner.numel()]):
        document = int(owner.flatten()[start])
        if document in found:
            _refuse(f"the tokens of document {document} are not contiguous in `{name}`", _GIVE)
        if document != PADDING:
            found[document] = (start // length, start % length, start % length + end - start)
    return found


class _Calls(TorchFunctionMode):  # type: ignore[misc]  # torch has no types
    """While active, passes floating-point results of the torch functions called `names` through `replaced`."""

    def __init__(self, names: set[str], replaced: Callable[[Tensor, list[Any]], Tensor]) -> None:
        super().__init__()
        self._names, self._replaced = names, replaced

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        value = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in self._names and _is_tensor(value) and value.is_floating_point():
            return self._replaced(value, [*args, *(kwargs or {}).values()])
        return value


def _start_gradients(packed: _PackedBatch, found: list[tuple[str, Tensor]]) -> _Calls:
    """Makes the autograd graph begin at the token embeddings, even of frozen models, and appends them to `found`."""

    def begun(value: Tensor, given: list[Any]) -> Tensor:
        indices = [each.flatten() for each in given if _is_tensor(each) and not each.is_floating_point()]
        for name in packed.token_arrays:
            tokens = packed.batch[name].flatten()
            if any(torch.equal(each, tokens) for each in indices) and value.numel() % len(tokens) == 0:
                found.append((name, value.detach().requires_grad_()))
                return found[-1][1].clone()
        return value

    return _Calls(_LOOKUPS, begun)


def _perturb_rounding(seed: int) -> _Calls:
    """Perturbs the results of matrix products, norms and softmax at random, by up to one unit in the last place."""
    seeds = itertools.count(1000 * seed)

    def moved(value: Tensor, _given: list[Any]) -> Tensor:
        generator = torch.Generator(value.device).manual_seed(next(seeds))
        noise = torch.rand(value.shape, generator=generator, device=value.device, dtype=torch.float64)
        return value * (1 + torch.finfo(value.dtype).eps * (2 * noise - 1)).to(value.dtype)

    return _Calls(_ROUNDED, moved)


def _eager() -> contextlib.AbstractContextManager[Any]:
    """Disables compiled code, in which hooks and lookups are not called."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else contextlib.nullcontext()


def _call_by_name(model: Any, batch: Batch) -> Callable[[Any, Batch], Any]:
    """Returns a function that calls the model with a batch: with the arrays its parameters name, or one mapping."""
    inner = getattr(model, "_orig_mod", model)
    signature = inspect.signature(inner.forward if isinstance(inner, torch.nn.Module) else inner)
    named = [name for name in signature.parameters if name in batch]
    try:
        signature.bind(*[] if named else [batch], **dict.fromkeys(named))
    except TypeError as error:
        hint = 'pass `call=`, such as `call=lambda model, batch: model(input_ids=batch["tokens"]).logits`'
        takes = f"the model takes {', '.join(signature.parameters)}, but the batch has {', '.join(batch)}"
        _refuse(f"{takes}: {error}", hint)
    return lambda model, values: model(**{name: values[name] for name in named}) if named else model(values)


class _NotRunError(Exception):
    """Raised if a check cannot be run; the message is the reason."""


class _Search:
    """All checks of one model and one batch. Each run of the model starts from the same random state."""

    def __init__(self, model: Any, call: Any, packed: _PackedBatch, max_documents: int) -> None:
        self.model, self.packed, self.call = model, packed, call or _call_by_name(model, packed.batch)
        is_module = isinstance(model, torch.nn.Module)
        self.modules = dict(getattr(model, "_orig_mod", model).named_modules()) if is_module else {}
        self.owner = packed.owners[packed.tokens].flatten()
        self.owners = torch.cat([packed.owners[name].flatten() for name in packed.token_arrays])
        known = sorted(packed.pieces[packed.tokens])
        count = min(max_documents, len(known))
        self.probed = [known[round(index * (len(known) - 1) / max(1, count - 1))] for index in range(count)]
        self.inside = torch.isin(self.owner, torch.tensor(self.probed, device=self.owner.device))
        self.is_silent = False
        self.base, ignored = self.run(packed.batch)
        if len(wrong := (~self.base.isfinite().all(dim=1) & self.inside).nonzero()):
            row, position = divmod(int(wrong[0]), packed.owners[packed.tokens].shape[1])
            where = f"document {int(self.owner[wrong[0]])}, first at token {position} of row {row}"
            hint = "float16 overflows above 65,504: check the model in bfloat16 or float32"
            _refuse(f"the model returns NaN or infinity for {where}", hint)
        again = [self.run(packed.batch)[0], self.run(packed.batch, seed=None)[0]]
        self.spread, unseeded = [float(_differences(self.base, each)[self.inside].max()) for each in again]
        self.is_random = unseeded > self.spread
        with _eager():
            eager, rounded = self.run(packed.batch)[0], []
            for seed in range(_NUM_ROUNDED):
                with _perturb_rounding(seed):
                    rounded.append(_differences(eager, self.run(packed.batch)[0]))
        self.rounding = self.spread + _limits(rounded, self.inside)
        limits = self.rounding[self.inside]
        num_chosen = int((limits > 1000 * limits.min()).sum())
        notes = {
            f"outputs without a value per token were not checked: {', '.join(ignored)}": ignored,
            f"rounding changes discrete choices of the model, such as experts, at {num_chosen} of {len(limits)} "
            "tokens: their limit is 4 times the largest effect of rounding": num_chosen,
            f"identical runs differ by up to {self.spread:.2g}: the check `change` misses smaller leaks": self.spread,
            "the model uses random numbers, such as dropout: all runs used the same seed; `model.eval()` "
            "turns dropout off": self.is_random and not self.spread,
            f"each row is one document according to `{packed.source}`: no boundary within a row was checked": (
                packed.num_documents <= len(packed.owners[packed.tokens])
            ),
        }
        self.notes = [note for note, holds in notes.items() if holds]

    def run(self, batch: Batch, *, seed: int | None = 1234, has_grads: bool = False) -> tuple[Tensor, list[str]]:
        """Runs the model; returns its outputs per token, float[num_tokens, n], and the names of its other outputs."""
        tokens = batch[self.packed.tokens]
        devices = [tokens.device] if tokens.is_cuda else []
        with torch.set_grad_enabled(has_grads), torch.random.fork_rng(devices=devices, enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            given = dict(_tensors(self.call(self.model, dict(batch))))
        (num_rows, length), found, ignored = (1, *tokens.shape)[-2:], [], []
        for name, value in given.items():
            by_rows = value.transpose(0, 1) if value.shape[:2] == (length, num_rows) != (num_rows, length) else value
            if not value.is_floating_point():
                continue
            if by_rows.shape[:2] == (num_rows, length) or by_rows.shape[:1] == (num_rows * length,):
                found.append(by_rows.reshape(num_rows * length, -1))
            else:
                ignored.append(f"{name} {list(value.shape)}")
        if not found:
            message = f"the model must return logits or losses per token, for tokens {list(tokens.shape)}, got "
            hint = "pass `call=lambda model, batch: …` that returns logits or losses per token, not their mean"
            _refuse(f"{message}{', '.join(ignored) or 'no floating-point tensor'}", hint)
        return torch.cat(found, dim=1), ignored

    def check(self, name: str) -> IsolationCheck:
        """Runs one check; for a leak, finds the module where the difference begins."""
        if name == "labels" and (crossing := self.packed.crossing_label()):
            leak = self._leak(*crossing, 1.0)
            return IsolationCheck(name=name, result="leak", words=leak.paragraph("crossing"), leak=leak)
        try:
            sizes = self._gradients() if name == "gradient" else self._changes(name)
        except Exception as error:  # noqa: BLE001 - gradients or another shape may raise anything in a model
            is_known = isinstance(error, _NotRunError)
            words = str(error) if is_known else f"the model failed: {type(error).__name__}: {error}"
            return IsolationCheck(name=name, result="not run", words=words)
        table = torch.stack([*sizes.values()])
        limits = torch.full_like(table[0], 0 if name == "gradient" else self.spread)
        if name == "alone" or (name != "gradient" and self.is_silent and bool((table > limits).any())):
            limits = self.rounding  # discrete choices may change the shapes of products, so their rounding
        above = torch.where(table > limits, table, 0)
        case, index = divmod(int(above.argmax()), len(limits))
        probed, size = [*sizes][case], float(above[case, index])
        largest, limit = torch.where(table > limits, 0, table).max(), limits[: len(self.owner)][self.inside].min()
        found = IsolationCheck(name=name, probed=len(sizes), largest=float(largest), limit=float(limit))
        self.is_silent |= name == "gradient" and not size
        if not size:
            return found
        owner = int(self.owners[index])
        pair = {"gradient": (probed, owner), "alone": (owner, None)}.get(name, (owner, probed))
        values = self._probe(name, owner if name == "gradient" else probed)
        leak = self._with_module(self._leak(*pair, index, size), values)
        words = leak.paragraph(name, limit=found.limit, is_silent=self.is_silent)
        return replace(found, result="leak", leak=leak, words=words)

    def _probe(self, name: str, document: int) -> Batch:
        if name == "alone":
            return self.packed.alone(document)
        return self.packed.changed(self.packed.label_arrays if name == "labels" else self.packed.token_arrays, document)

    def _gradients(self) -> dict[int, Tensor]:
        """Returns, by probed document, the gradient norm of its loss at each token, float[num_tokens], 0 at its own."""
        begins: list[tuple[str, Tensor]] = []
        with _eager(), _start_gradients(self.packed, begins):
            found, _ = self.run(self.packed.batch, has_grads=True)
        sizes: dict[int, Tensor] = {}
        weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(1234)).to(found.device, found.dtype)
        for document in self.probed if begins and found.requires_grad else ():
            loss = (found * weights)[self.owner == document].sum()
            inputs = [begin for _, begin in begins]
            grads = torch.autograd.grad(loss, inputs, retain_graph=True, materialize_grads=True, allow_unused=True)
            norms = {name: torch.zeros(owner.numel()).to(found.device) for name, owner in self.packed.owners.items()}
            for (name, _), grad in zip(begins, grads, strict=True):
                norms[name] = norms[name].maximum(grad.reshape(len(norms[name]), -1).float().norm(dim=1))
            sizes[document] = torch.cat([norms[name] for name in self.packed.token_arrays])
            if not bool(sizes[document].isfinite().all()):
                raise _NotRunError(f"the gradient of document {document} has NaN or infinity")
        if not any(bool(each.any()) for each in sizes.values()):
            raise _NotRunError("no gradient flows from the outputs of the model to its token embeddings")
        return {document: each.masked_fill(self.owners == document, 0) for document, each in sizes.items()}

    def _changes(self, name: str) -> dict[int, Tensor]:
        """Returns, by probe (document or padding), differences of outputs that must stay equal: float64[num_tokens]."""
        if name == "tail" and not bool((self.owner == PADDING).any()):
            raise _NotRunError("the batch has no padding")
        if name == "labels" and not self.packed.label_arrays:
            raise _NotRunError("the batch has no `labels`")
        if name == "alone" and self.is_random and not self.spread:
            reason = "the model uses random numbers, which depend on the shape of the batch: call `model.eval()`"
            raise _NotRunError(reason)
        found, arrays = dict[int, Tensor](), self.packed.token_arrays + self.packed.label_arrays
        for document in [PADDING] if name == "tail" else self.probed:
            batch, is_own = self._probe(name, document), self.owner == document
            if name != "alone" and all(torch.equal(batch[each], self.packed.batch[each]) for each in arrays):
                continue
            compared = is_own if name == "alone" else ~is_own & (self.owner != PADDING)
            after, _ = self.run(batch)
            found[document] = torch.zeros_like(self.rounding)
            found[document][compared] = _differences(self.base[compared], after if name == "alone" else after[compared])
        if not found:
            raise _NotRunError("the batch has no other token value to insert")
        return found

    def _leak(self, document: int, other: int | None, index: int, size: float) -> IsolationLeak:
        for name in self.packed.token_arrays:  # `index` counts over all token arrays
            if index < self.packed.owners[name].numel():
                break
            index -= self.packed.owners[name].numel()
        row, position = divmod(index, self.packed.owners[name].shape[1])
        _, start, _ = self.packed.pieces[name].get(int(self.packed.owners[name][row, position]), (row, 0, 0))
        token, offset = int(self.packed.batch[name].flatten()[index]), position - start
        return IsolationLeak(
            document=document, other=other, row=row, position=position, offset=offset, token=token, size=size
        )

    def _with_module(self, leak: IsolationLeak, values: Batch) -> IsolationLeak:
        """Adds to a leak the first module whose outputs for its document differ between the batch and `values`."""
        is_alone = leak.other is None
        before = self._events(self.packed.batch, leak.document)
        roundings = range(7, 11) if is_alone else (None, None)  # two runs are too few for the tokens of one document
        again = [self._events(self.packed.batch, leak.document, rounded=seed) for seed in roundings]
        after = self._events(values, None if is_alone else leak.document)
        for (place, old), (new_place, new), *repeats in zip(before, after, *again, strict=False):
            if place != new_place:
                break
            for one, two, *others in zip(old, new, *(tensors for _, tensors in repeats), strict=False):
                if one is None or two is None or one.shape != two.shape or (is_alone and not one.is_floating_point()):
                    continue  # a tensor without a token axis, or of document indices
                if bool((_differences(one, two) > _limits([_differences(one, each) for each in others])).any()):
                    return replace(leak, module=place[0], before=place[1])
        return leak

    def _events(
        self, batch: Batch, document: int | None, *, rounded: int | None = None
    ) -> list[tuple[tuple[str, str | None], list[Tensor | None]]]:
        """Runs a batch; returns ((module, the module that it calls or None), tensors) in the order of execution."""
        found, stack = [], [""]

        def keep(owner: str, before: str | None, value: Any) -> None:
            tensors = [each.detach().clone() for _, each in _tensors(value)]
            cut = [each if document is None else self.packed.cut(each, document) for each in tensors]
            found.append(((owner, before), cut))

        def enter(name: str, *given: Any) -> None:
            if name:
                keep(stack[-1], name, given)
            stack.append(name)

        with contextlib.ExitStack() as ending:
            for name, module in self.modules.items():
                entering = lambda _, args, kwargs, name=name: enter(name, args, kwargs)  # noqa: E731
                ending.callback(module.register_forward_pre_hook(entering, with_kwargs=True).remove)
                leaving = lambda _, args, value: keep(stack.pop(), None, value)  # noqa: E731
                ending.callback(module.register_forward_hook(leaving).remove)
            ending.enter_context(_eager())
            ending.enter_context(contextlib.nullcontext() if rounded is None else _perturb_rounding(rounded))
            self.run(batch)
        return found


def _differences(one: Tensor, two: Tensor) -> Tensor:
    """Returns the largest difference along the last axis, float64[...]; infinity if only one of two values is NaN."""
    is_same = (one == two) | (one.isnan() & two.isnan())
    found = torch.where(is_same, 0.0, (one.double() - two.double()).abs()).nan_to_num(nan=torch.inf)
    return found.amax(dim=-1) if found.ndim else found


def _limits(rounded: list[Tensor], inside: Any = slice(None)) -> Tensor:
    """Returns the largest difference that rounding can cause, float64[n], by token, from measured ones (`rounded`)."""
    # The effect is about the same at all tokens, except where rounding changes a discrete choice of the model.
    most = torch.stack(rounded).amax(dim=0)
    return _MARGIN * most.clamp(min=2 * float(most[inside].median()))


def _tensors(value: Any, name: str = "output") -> Iterator[tuple[str, Tensor]]:
    if _is_tensor(value):
        yield name, value
    elif isinstance(value, Mapping | tuple | list):
        for key, each in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _tensors(each, key if isinstance(key, str) else f"{name}[{key}]")


def _is_tensor(value: object) -> TypeGuard[Any]:
    return isinstance(value, torch.Tensor)


def _rows(value: Tensor) -> Tensor:
    return value.reshape(-1, value.shape[-1])


def _words(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}".removeprefix("torch.") if _is_tensor(value) else type(value).__name__


def _refuse(message: str, hint: str) -> NoReturn:
    raise ConfigError(message, hint=hint)
