"""Whether documents of one batch are apart in a model: by gradient, by change, each alone, and without padding."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tokenloom.errors import ConfigError, ConformanceError
from tokenloom.numbers import checked_integer
from tokenloom_check.isolation_batch import PADDING, PER_TOKEN, PackedBatch, Piece, Tensor, is_tensor, packed_batch
from tokenloom_check.isolation_report import QUESTIONS, IsolationCheck, IsolationLeak, IsolationReport, leak_words

_SEED = 1234
_NUM_ROUNDED = 4
_MARGIN = 4.0
"""How much more than other roundings do in `_NUM_ROUNDED` runs a difference must be, to be none of rounding."""

_LOOKUPS = {"embedding", "__getitem__", "index_select"}
_ROUNDED = {
    "embedding", "linear", "matmul", "__matmul__", "bmm", "baddbmm", "einsum", "conv1d", "softmax", "log_softmax",
    "layer_norm", "rms_norm", "scaled_dot_product_attention", "cross_entropy",
}  # fmt: skip


def check_isolation(
    model: Callable[..., Any],
    batch: Mapping[str, Any],
    *,
    call: Callable[[Any, dict[str, Any]], Any] | None = None,
    documents: object = None,
    checks: Sequence[str] = tuple(QUESTIONS),
    max_documents: int = 16,
    raises: bool = True,
) -> IsolationReport:
    """Checks that the documents of a batch do not depend on each other in a model, nor on padding.

    Example:
        >>> import torch
        >>> class Sum(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.embed = torch.nn.Embedding(8, 4)
        ...     def forward(self, tokens):
        ...         return self.embed(tokens).cumsum(1)
        >>> batch = {"tokens": torch.tensor([[1, 2, 3, 4]]), "position_ids": torch.tensor([[0, 1, 0, 1]])}
        >>> report = check_isolation(Sum(), batch, raises=False)
        >>> [check.result for check in report.checks], report.checks[0].leak.token
        (['leak', 'leak', 'leak', 'not run', 'not run'], 1)

    Args:
        model: a module, or a function; modules are named in the report. It is called as it is: no mode is changed.
        batch: tensors or arrays by name, as loaders of tokenloom give: `tokens` (or `input_ids`), and what else the
            model takes. They are moved to the device of the model.
        call: calls the model with a batch, and returns logits or losses: a tensor, or these by name or in a tuple. By
            default the model is called with the arrays that it names, or with the batch.
        documents: the document of each token, -1 for padding, an array of the shape of the tokens; or such by name of
            an array, for batches with an encoder. By default from `document_ids`, `cu_seqlens` or `position_ids`.
        checks: some of "gradient", "change", "alone", "tail" and "labels".
        max_documents: how many documents are probed; of more, some that are spread evenly.
        raises: whether a leak is an error.

    Raises:
        ConformanceError: a document depends on another, or on padding; the message says which, and where it begins.
        ConfigError: the batch or the model cannot be checked.
    """
    unknown = [name for name in checks if name not in QUESTIONS]
    if unknown:
        message = f"unknown check {unknown[0]!r}"
        raise ConfigError(message, hint=f"there are {', '.join(QUESTIONS)}")
    checked_integer("max_documents", max_documents, at_least=1)
    parameter = next(iter(model.parameters()), None) if isinstance(model, torch.nn.Module) else None
    packed = packed_batch(batch, documents=documents, device=None if parameter is None else parameter.device)
    report = _Search(model, call, packed, max_documents).report(checks)
    if raises and not report.ok:
        raise ConformanceError(str(report))
    return report


def _call_by_name(model: Any, batch: Mapping[str, Any]) -> Callable[[Any, dict[str, Any]], Any]:
    """Returns how a model takes a batch: by the names of its arrays, or as it is."""
    inner = getattr(model, "_orig_mod", model)
    parameters = inspect.signature(inner.forward if isinstance(inner, torch.nn.Module) else inner).parameters
    by_name = [name for name in parameters if name in batch]
    needed = [
        name
        for name, each in parameters.items()
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    if any(name in by_name for name in ("tokens", "input_ids")) and all(name in batch for name in needed):
        return lambda model, values: model(**{name: values[name] for name in by_name})
    if len(needed) == 1 and not by_name:
        return lambda model, values: model(values)
    message = f"the model takes {', '.join(parameters)}, and the batch has {', '.join(batch)}"
    hint = 'give `call=`, such as `call=lambda model, batch: model(input_ids=batch["tokens"], '
    raise ConfigError(message, hint=f'{hint}position_ids=batch["position_ids"]).logits`')


class _Embedded(TorchFunctionMode):  # type: ignore[misc]  # torch has no types
    """Makes what tokens are looked up as the beginning of a graph of its own, whatever of the model is frozen."""

    def __init__(self, packed: PackedBatch) -> None:
        super().__init__()
        self._tokens = {name: packed.batch[name].flatten() for name in packed.token_arrays()}
        self.found: list[tuple[str, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        value = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in _LOOKUPS and is_tensor(value) and value.is_floating_point():
            indices = [each for each in (*args, *(kwargs or {}).values()) if is_tensor(each) and each is not value]
            for name, tokens in self._tokens.items():
                if any(_is_same(each, tokens) for each in indices) and value.numel() % tokens.numel() == 0:
                    begin = value.detach().requires_grad_()
                    self.found.append((name, begin))
                    return begin.clone()
        return value


def _is_same(value: Tensor, tokens: Tensor) -> bool:
    is_like = not value.is_floating_point() and value.numel() == tokens.numel()
    return is_like and torch.equal(value.flatten().long(), tokens.long())


class _Rounded(TorchFunctionMode):  # type: ignore[misc]  # torch has no types
    """Changes what products, norms and the like give by up to one unit in the last place, at random."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = 1000 * seed

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        value = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in _ROUNDED and is_tensor(value) and value.is_floating_point():
            self._seed += 1
            generator = torch.Generator(value.device).manual_seed(self._seed)
            noise = torch.rand(value.shape, generator=generator, device=value.device, dtype=torch.float64)
            value = value * (1 + torch.finfo(value.dtype).eps * (2 * noise - 1)).to(value.dtype)
        return value


@contextlib.contextmanager
def _eager() -> Iterator[None]:
    """Runs what is compiled as it is written: hooks and lookups are not seen in what a compiler made."""
    with torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else contextlib.nullcontext():
        yield


_Found = tuple[IsolationCheck, dict[str, Any] | None] | str
"""What a check found, and the batch for which outputs differ; or why it was not run."""

_Case = tuple[int | None, dict[str, Any], Tensor]
"""The document that was changed, the batch, and float64[num_tokens], by how much outputs of the others differ."""


class _Search:
    """All checks of one model and one batch. Each run of the model begins with the same state of the generators."""

    def __init__(self, model: Any, call: Any, packed: PackedBatch, max_documents: int) -> None:
        self.model, self.packed = model, packed
        self.call = call if call is not None else _call_by_name(model, packed.batch)
        self.modules: dict[str, Any] = {}
        if isinstance(model, torch.nn.Module):
            self.modules = dict(getattr(model, "_orig_mod", model).named_modules())  # of a compiled model its own
        self.owner = packed.owner
        known = sorted(packed.pieces[packed.tokens])
        count = min(max_documents, len(known))
        self.probed = [known[round(index * (len(known) - 1) / max(1, count - 1))] for index in range(count)]
        self.notes: list[str] = []
        self.has_grads = self.has_no_gradient = self.has_losses = self.is_single = False
        self._measure()

    def report(self, names: Sequence[str]) -> IsolationReport:
        """Runs the checks."""
        return IsolationReport(
            model=getattr(self.model, "__name__", type(self.modules.get("", self.model)).__name__),
            num_documents=self.packed.num_documents,
            num_tokens=int((self.owner >= 0).sum()),
            num_padding=int((self.owner < 0).sum()),
            source=self.packed.source,
            checks=tuple(self._check(name) for name in QUESTIONS if name in names),
            notes=tuple(self.notes),
        )

    # --- running the model ------------------------------------------------------------------------------------------

    def values(self, batch: dict[str, Any], owner: Tensor | None = None, *, seed: int | None = _SEED) -> Tensor:
        """Returns float[num_tokens, n]. A model that gives one loss is run for each document that is probed, with the
        loss of that one alone, which stands at each of its tokens.
        """
        owner = self.owner if owner is None else owner
        found = self._run(batch, seed)
        if not self.is_single:
            return found
        losses = torch.zeros(len(owner), 1, dtype=found.dtype, device=found.device)
        for document in [each for each in self.probed if bool((owner == each).any())]:
            inside = owner == document
            if (of_one := self.packed.with_loss_of(batch, inside)) is not None:
                losses = torch.where(inside[:, None], self._run(of_one, seed), losses)
        return losses

    def _run(self, batch: dict[str, Any], seed: int | None) -> Tensor:
        tokens = batch[self.packed.tokens]
        with (
            torch.set_grad_enabled(self.has_grads),
            torch.random.fork_rng(devices=[tokens.device] if tokens.is_cuda else [], enabled=seed is not None),
        ):
            if seed is not None:
                torch.manual_seed(seed)
            named = {
                name: each for name, each in _tensors(self.call(self.model, dict(batch))) if each.is_floating_point()
            }
        num_rows, length = (1, *tokens.shape)[-2:]
        found = {}
        for name, each in named.items():
            if each.shape[:2] == (length, num_rows) != (num_rows, length):
                each = each.transpose(0, 1)
            if each.shape[:2] == (num_rows, length) or each.shape[:1] == (num_rows * length,):
                found[name] = each.reshape(num_rows * length, -1)
        single = [each for name, each in named.items() if each.numel() == 1 and name not in found]
        self.is_single = not found and len(single) == 1
        self.has_losses = self.is_single or all(each.shape[1] == 1 for each in found.values())
        self.ignored = [name for name in named if found and name not in found]
        if self.is_single:
            return single[0].reshape(1, 1)
        if not found:
            shapes = ", ".join(f"{name} {list(each.shape)}" for name, each in named.items()) or "none of numbers"
            message = f"expected logits or losses of tokens {list(tokens.shape)}, or one loss, found {shapes}"
            raise ConfigError(message, hint=PER_TOKEN)
        return torch.cat([*found.values()], dim=1)

    def _measure(self) -> None:
        """Runs the batch as it is, and measures by how much equal runs, and runs with other roundings, differ."""
        self.base = self.values(self.packed.batch)
        inside = torch.isin(self.owner, torch.tensor(self.probed, device=self.owner.device))
        wrong = (~self.base.isfinite()).any(dim=1) & inside
        if bool(wrong.any()):
            row, position, document, _ = self.packed.place(int(wrong.nonzero()[0]))
            message = f"the model gives NaN or infinity for document {document}, first at token {position} of row {row}"
            raise ConfigError(message, hint="float16 overflows above 65,504: check it in bfloat16 or float32")
        if self.is_single and len(self.probed) > 1 and len(self.base[inside & (self.base[:, 0] != 0)].unique()) == 1:
            loss = float(self.base[inside][0])
            message = f"the loss is {loss:.6g} whichever document has one: it ignores `loss_mask`"
            raise ConfigError(message, hint=PER_TOKEN)
        self.spread = _difference(self.base, self.values(self.packed.batch), inside)
        self.is_random = _difference(self.base, self.values(self.packed.batch, seed=None), inside) > self.spread
        with _eager():
            eager = self.values(self.packed.batch)
            rounded = []
            for seed in range(_NUM_ROUNDED):
                with _Rounded(seed):
                    rounded.append(_differences(eager, self.values(self.packed.batch)))
        self.rounding = self.spread + _allowed(rounded, inside)
        self.typical = float(self.rounding[inside].min())
        if float(self.rounding[inside].max()) > 1000 * self.typical:
            count = int((self.rounding[inside] > 1000 * self.typical).sum())
            note = f"other roundings change what the model chooses at {count} of {int(inside.sum())} tokens, such as "
            self.notes.append(f"{note}experts: differences there are taken for none, up to 4 times what roundings make")
        kinds = {name: each for name, each in self.modules.items() if "Dropout" in type(each).__name__}
        dropped = [name for name, each in kinds.items() if each.training and getattr(each, "p", 0) > 0]
        if dropped:
            note = f"dropout is on, first in `{dropped[0]}`: all runs drew the same; `model.eval()` turns it off"
            self.notes.append(note)
        elif self.is_random and not self.spread:
            self.notes.append("the model draws random numbers: all runs began with the same seed")
        if self.spread:
            self.notes.append(f"equal runs differ by up to {self.spread:.2g}: by change, smaller leaks are not seen")
        if self.packed.num_documents <= self.packed.num_rows:
            note = f"each row is one document, by `{self.packed.source}`: nothing within a row was told apart"
            self.notes.append(note)
        if self.ignored:
            self.notes.append(f"not checked, as they have no value per token: {', '.join(self.ignored)}")

    # --- the checks -------------------------------------------------------------------------------------------------

    def _check(self, name: str) -> IsolationCheck:
        found: _Found = getattr(self, f"_{name}")()
        if isinstance(found, str):
            return IsolationCheck(name=name, result="not run", words=found)
        check, batch = found
        if batch is None or check.leak is None:
            return check
        leak = self._named(check.leak, batch)
        words = leak_words(name, leak, limit=check.limit, is_silent=self.has_no_gradient)
        return replace(check, result="leak", leak=leak, words=words)

    def _gradient(self) -> _Found:
        self.has_grads = True
        try:
            with _eager(), _Embedded(self.packed) as looked:
                found = self.values(self.packed.batch)
        except Exception as error:  # noqa: BLE001 - a model may raise anything where gradients are kept
            return f"the model fails with gradients: {type(error).__name__}: {error}"
        finally:
            self.has_grads = False
        worst: IsolationLeak | None = None
        reaches = False
        weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(_SEED)).to(found.device, found.dtype)
        for document in self.probed if looked.found and found.requires_grad else ():
            loss = (found * weights)[self.owner == document].sum()
            begins = [begin for _, begin in looked.found]
            grads = torch.autograd.grad(loss, begins, retain_graph=True, allow_unused=True)
            for (name, _), grad in zip(looked.found, grads, strict=True):
                if grad is None:
                    continue
                owner = self.packed.owners[name].flatten()
                norms = grad.reshape(len(owner), -1).float().norm(dim=1)
                if not bool(norms.isfinite().all()):
                    return f"the gradient of document {document} has NaN or infinity"
                reaches |= bool(norms.any())
                norms = norms.masked_fill(owner == document, 0)
                index = int(norms.argmax())
                if float(norms[index]) > (worst.size if worst else 0):
                    worst = self._leak(document, int(owner[index]), index, float(norms[index]), array=name)
        if not reaches:
            return "what the model gives has no gradient at the embeddings of its tokens"
        self.has_no_gradient = worst is None
        probed = len(self.probed)
        check = IsolationCheck(name="gradient", result="apart", probed=probed, largest=0.0, limit=0.0, leak=worst)
        if worst is None or worst.other is None:
            return check, None
        return check, self.packed.changed(self.packed.token_arrays(), worst.other)

    def _change(self) -> _Found:
        return self._by_change("change", self.packed.token_arrays(), self.probed)

    def _tail(self) -> _Found:
        if not bool((self.owner == PADDING).any()):
            return "the batch has no padding"
        return self._by_change("tail", self.packed.token_arrays(), [PADDING])

    def _labels(self) -> _Found:
        arrays = self.packed.label_arrays()
        if not arrays:
            return "the batch has no `labels`"
        if crossing := self.packed.crossing_labels():
            (name, index, ahead), *_ = crossing
            leak = self._leak(int(self.owner[index]), int(self.owner[index + ahead]), index, 1.0)
            words = f"The label of token {leak.position} of row {leak.row}, at the end of document {leak.document}, is "
            words += f"a token of document {leak.other}, and has a loss: so do {len(crossing)} in `{name}`. Mask them, "
            words += "as `eod_mask_loss=True` does, or shift labels in each document before packing."
            return IsolationCheck(name="labels", result="leak", words=words, probed=len(self.probed), leak=leak), None
        if not self.has_losses:
            return IsolationCheck(name="labels", result="apart", probed=self.packed.num_documents), None
        return self._by_change("labels", arrays, self.probed)

    def _by_change(self, name: str, arrays: list[str], documents: list[int]) -> _Found:
        """Changes one document after the other, and compares what the model gives for all others."""
        cases: list[_Case] = []
        for other in documents:
            changed = self.packed.changed(arrays, other)
            if not all(torch.equal(changed[array], self.packed.batch[array]) for array in arrays):
                sizes = _differences(self.base, self.values(changed))
                cases.append((other, changed, sizes.masked_fill((self.owner == other) | (self.owner == PADDING), 0)))
        if not cases:
            return "no token of it has another value to take"
        limits = self.rounding if self.has_no_gradient else torch.full_like(self.rounding, self.spread)
        check, batch = self._judged(name, cases, limits)
        if check.largest is None or check.largest <= self.spread:
            return replace(check, limit=self.spread), batch
        if batch is None:
            note = f"by {name}, outputs differ by {check.largest:.2g}, as roundings do; no gradient flows: no leak"
            self.notes.append(note)
        return check, batch

    def _alone(self) -> _Found:
        if self.is_random and not self.spread:
            return "the model draws random numbers, others for another shape: call `model.eval()`"
        cases: list[_Case] = []
        for document in self.probed:
            batch = self.packed.alone(document)
            if isinstance(batch, str):
                return batch
            inside = self.owner == document
            sizes = torch.zeros_like(self.rounding)
            try:
                sizes[inside] = _differences(self.base[inside], self.values(batch, self.owner[inside]))
            except Exception as error:  # noqa: BLE001 - a model may raise anything of a batch of another shape
                return f"the model fails on document {document} alone: {type(error).__name__}: {error}"
            cases.append((None, batch, sizes))
        return self._judged("alone", cases, self.rounding)

    def _judged(self, name: str, cases: list[_Case], limits: Tensor) -> tuple[IsolationCheck, dict[str, Any] | None]:
        """Returns what the differences above limits say, and the batch that has the largest."""
        sizes = torch.stack([each for _, _, each in cases])
        above = torch.where(sizes > limits, sizes, 0)
        largest = float(torch.where(sizes > limits, 0, sizes).max())
        case, index = divmod(int(above.argmax()), sizes.shape[1])
        other, batch, _ = cases[case]
        leak = None
        if (size := float(above[case, index])) > 0:
            leak = self._leak(int(self.owner[index]), other, index, size)
        check = IsolationCheck(
            name=name, result="apart", probed=len(cases), largest=largest, limit=self.typical, leak=leak
        )
        return check, None if leak is None else batch

    # --- where a leak begins ----------------------------------------------------------------------------------------

    def _leak(self, document: int, other: int | None, index: int, size: float, *, array: str = "") -> IsolationLeak:
        leak = IsolationLeak(document=document, other=other, size=size)
        if self.is_single and not array:
            return leak
        name = array or self.packed.tokens
        row, position, _, offset = self.packed.place(index, name)
        token = int(self.packed.batch[name].flatten()[index])
        return replace(leak, row=row, position=position, offset=offset, token=token)

    def _named(self, leak: IsolationLeak, values: dict[str, Any]) -> IsolationLeak:
        """Returns a leak with the first module whose output differs, of the document, between the batch and values."""
        pieces = {name: of[leak.document] for name, of in self.packed.pieces.items() if leak.document in of}
        places = [((1, *self.packed.batch[name].shape)[-2:], piece) for name, piece in pieces.items()]
        is_alone = leak.other is None
        lengths = [piece.end - piece.start for piece in pieces.values()]
        alone = [((1, length), Piece(row=0, start=0, end=length)) for length in lengths]
        before = self._events(self.packed.batch, places)
        again = [self._events(self.packed.batch, places, rounded=seed if is_alone else None) for seed in (7, 8)]
        after = self._events(values, alone if is_alone else places)
        for old, new, *repeats in zip(before, after, *again, strict=False):
            if old[:2] != new[:2]:
                break
            for one, two, *others in zip(old[2], new[2], *(each[2] for each in repeats), strict=False):
                limits = _allowed([_differences(one, each) for each in others])
                is_seen = one.shape == two.shape and (one.is_floating_point() or not is_alone)  # numbers of documents
                if is_seen and bool((_differences(one, two) > limits).any()):
                    return replace(leak, module=old[0], before=old[1])
        else:  # all modules gave the same: it is in the one loss that the model makes of that
            leak = replace(leak, module="") if self.is_single and before else leak
        return leak

    def _events(
        self, batch: dict[str, Any], places: list[tuple[Any, Piece]], *, rounded: int | None = None
    ) -> list[tuple[str, str | None, list[Tensor]]]:
        """Returns what each module is handed and what it gives, of one document, in the order of execution: the module
        that computed it, the one that it is handed to or None, and tensors.
        """
        found: list[tuple[str, str | None, list[Tensor]]] = []
        stack: list[str] = []

        def keep(owner: str, before: str | None, value: Any) -> None:
            parts = [_part(each, places) for _, each in _tensors(value)]
            found.append(
                (owner, before, [part.detach().clone() for part in parts if part is not None and part.numel()])
            )

        def enter(name: str, given: Any) -> None:
            if name:
                keep(stack[-1] if stack else "", name, given)
            stack.append(name)

        def leave(value: Any) -> None:
            keep(stack.pop(), None, value)

        with contextlib.ExitStack() as ending:
            for name, module in self.modules.items():
                entering = lambda _, args, kwargs, name=name: enter(name, (args, kwargs))  # noqa: E731
                ending.callback(module.register_forward_pre_hook(entering, with_kwargs=True).remove)
                ending.callback(module.register_forward_hook(lambda _, args, value: leave(value)).remove)
            ending.enter_context(_eager())
            if rounded is not None:
                ending.enter_context(_Rounded(rounded))
            tokens = batch[self.packed.tokens]
            self.values(batch, self.owner if tokens.numel() == len(self.owner) else torch.zeros_like(tokens.flatten()))
        return found


def _part(value: Tensor, places: list[tuple[Any, Piece]]) -> Tensor | None:
    """Returns what a tensor holds of one document; None if it has no axis of tokens."""
    for (num_rows, length), piece in places:
        row, inside = piece.row, slice(piece.start, piece.end)
        if value.shape[:2] == (num_rows, length):
            return value[row, inside]
        if value.shape[:2] == (length, num_rows):
            return value[inside, row]
        if value.shape[:1] == (num_rows * length,):
            return value[row * length + piece.start : row * length + piece.end]
        if value.shape[:1] == (num_rows,) and length in value.shape[2:]:
            return value[row].movedim(value.shape.index(length, 2) - 1, 0)[inside]
    return None


def _differences(one: Tensor, two: Tensor) -> Tensor:
    """Returns float64[n], the largest difference in each row; infinity where one of two alone is NaN."""
    is_same = (one == two) | (one.isnan() & two.isnan())
    found = torch.where(is_same, 0.0, (one.double() - two.double()).abs())
    return found.nan_to_num(nan=torch.inf).reshape(len(found), -1).amax(dim=1)


def _difference(one: Tensor, two: Tensor, inside: Any = slice(None)) -> float:
    return float(_differences(one[inside, None], two[inside, None]).max()) if one.numel() else 0.0


def _allowed(rounded: list[Tensor], inside: Any = slice(None)) -> Tensor:
    """Returns float64[n], up to which a difference at a token is one of roundings, by those of some runs.

    What roundings do is much alike at all tokens but those where the model chooses, whose limit is their own.
    """
    most = torch.stack(rounded).amax(dim=0)
    return _MARGIN * most.clamp(min=2 * float(most[inside].median()))


def _tensors(value: Any, name: str = "output") -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors in what a model or a module takes or gives."""
    if is_tensor(value):
        yield name, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _tensors(each, str(key))
    elif isinstance(value, tuple | list):
        for index, each in enumerate(value):
            yield from _tensors(each, f"{name}[{index}]")
