"""Whether documents of one batch are apart in a model: by gradient, by change, each alone, and without padding."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tokenloom.errors import ConfigError, ConformanceError
from tokenloom.numbers import checked_integer
from tokenloom_check.isolation_batch import PADDING, PackedBatch, Tensor, is_tensor
from tokenloom_check.isolation_report import QUESTIONS, IsolationCheck, IsolationLeak, IsolationReport

_NUM_ROUNDED = 4
_MARGIN = 4.0
"""How much more than other roundings do in `_NUM_ROUNDED` runs a difference must be, to be none of rounding."""

_LOOKUPS = {"embedding", "__getitem__", "index_select"}
_ROUNDED = {
    "embedding", "linear", "matmul", "__matmul__", "bmm", "baddbmm", "einsum", "conv1d", "softmax", "log_softmax",
    "layer_norm", "rms_norm", "scaled_dot_product_attention", "cross_entropy",
}  # fmt: skip

_Event = tuple[str, str | None, list[Tensor | None]]
"""A module that computed something, the module that is handed it or None, and tensors; None where one has no tokens."""

_Found = tuple[IsolationCheck, dict[str, Any]]
"""A check, and the batch in which outputs differ most from those of the batch as it is."""


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
        >>> embed = torch.nn.Embedding(8, 4)
        >>> batch = {"tokens": torch.tensor([[1, 2, 3, 4]]), "position_ids": torch.tensor([[0, 1, 0, 1]])}
        >>> report = check_isolation(lambda tokens: embed(tokens).cumsum(1), batch, raises=False)
        >>> [check.result for check in report.checks], report.checks[0].leak.token
        (['leak', 'leak', 'leak', 'not run', 'not run'], 1)

    Args:
        model: a module, or a function; modules are named in the report. It is called as it is: no mode is changed.
        batch: tensors or arrays by name, as loaders of tokenloom give: `tokens` (or `input_ids`), and what else the
            model takes. They are moved to the device of the model.
        call: calls the model with a batch, and returns logits or losses per token: a tensor, or these by name or in a
            tuple. By default the model is called with the arrays that it names, or with the batch.
        documents: the document of each token, -1 for padding, an array of the shape of the tokens; or such by name of
            an array, for batches with an encoder. By default from `document_ids`, `cu_seqlens` or `position_ids`.
        checks: some of "gradient", "change", "alone", "tail" and "labels".
        max_documents: how many documents are probed; of more, some that are spread evenly.
        raises: whether a leak is an error.

    Raises:
        ConformanceError: a document depends on another, or on padding; the message says which, and where it begins.
        ConfigError: the batch or the model cannot be checked.
    """
    if unknown := [name for name in checks if name not in QUESTIONS]:
        message = f"unknown check {unknown[0]!r}"
        raise ConfigError(message, hint=f"there are {', '.join(QUESTIONS)}")
    checked_integer("max_documents", max_documents, at_least=1)
    parameter = next(iter(model.parameters()), None) if isinstance(model, torch.nn.Module) else None
    packed = PackedBatch(batch, documents=documents, device=None if parameter is None else parameter.device)
    search = _Search(model, call, packed, max_documents)
    report = IsolationReport(
        model=getattr(model, "__name__", type(search.modules.get("", model)).__name__),
        num_documents=packed.num_documents,
        num_tokens=int((search.owner >= 0).sum()),
        num_padding=int((search.owner < 0).sum()),
        source=packed.source,
        checks=tuple(search.check(name) for name in QUESTIONS if name in checks),
        notes=tuple(search.notes),
    )
    if raises and not report.ok:
        raise ConformanceError(str(report))
    return report


def _call_by_name(model: Any, batch: Mapping[str, Any]) -> Callable[[Any, dict[str, Any]], Any]:
    """Returns how a model takes a batch: by the names of its arrays, or as it is."""
    inner = getattr(model, "_orig_mod", model)
    signature = inspect.signature(inner.forward if isinstance(inner, torch.nn.Module) else inner)
    named = [name for name in signature.parameters if name in batch]
    try:
        signature.bind(*[] if named else [batch], **dict.fromkeys(named))
    except TypeError as error:
        message = f"the model takes {', '.join(signature.parameters)}, and the batch has {', '.join(batch)}: {error}"
        hint = 'give `call=`, such as `call=lambda model, batch: model(input_ids=batch["tokens"], '
        raise ConfigError(message, hint=f'{hint}position_ids=batch["position_ids"]).logits`') from error
    return lambda model, values: model(**{name: values[name] for name in named}) if named else model(values)


class _Calls(TorchFunctionMode):  # type: ignore[misc]  # torch has no types
    """Puts other numbers in the place of what some functions of torch give."""

    def __init__(self, names: set[str], replaced: Callable[[Tensor, list[Any]], Tensor]) -> None:
        super().__init__()
        self._names, self._replaced = names, replaced

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        value = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in self._names and is_tensor(value) and value.is_floating_point():
            return self._replaced(value, [*args, *(kwargs or {}).values()])
        return value


def _looked_up(packed: PackedBatch, found: list[tuple[str, Tensor]]) -> _Calls:
    """Makes what tokens are looked up as the beginning of a graph of its own, whatever of the model is frozen."""

    def begun(value: Tensor, given: list[Any]) -> Tensor:
        indices = [each.flatten() for each in given if is_tensor(each) and not each.is_floating_point()]
        for name in packed.token_arrays:
            tokens = packed.batch[name].flatten()
            is_like = any(each.shape == tokens.shape and bool((each == tokens).all()) for each in indices)
            if is_like and value.numel() % len(tokens) == 0:
                found.append((name, value.detach().requires_grad_()))
                return found[-1][1].clone()
        return value

    return _Calls(_LOOKUPS, begun)


def _rounded(seed: int) -> _Calls:
    """Changes what products, norms and the like give by up to one unit in the last place, at random."""
    seeds = itertools.count(1000 * seed)

    def moved(value: Tensor, _given: list[Any]) -> Tensor:
        generator = torch.Generator(value.device).manual_seed(next(seeds))
        noise = torch.rand(value.shape, generator=generator, device=value.device, dtype=torch.float64)
        return value * (1 + torch.finfo(value.dtype).eps * (2 * noise - 1)).to(value.dtype)

    return _Calls(_ROUNDED, moved)


def _eager() -> contextlib.AbstractContextManager[Any]:
    """Runs what is compiled as it is written: hooks and lookups are not seen in what a compiler made."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else contextlib.nullcontext()


class _Search:
    """All checks of one model and one batch. Each run of the model begins with the same state of the generators."""

    def __init__(self, model: Any, call: Any, packed: PackedBatch, max_documents: int) -> None:
        self.model, self.packed, self.owner = model, packed, packed.owner
        self.call = call if call is not None else _call_by_name(model, packed.batch)
        is_module = isinstance(model, torch.nn.Module)
        self.modules = dict(getattr(model, "_orig_mod", model).named_modules()) if is_module else {}
        known = sorted(packed.pieces[packed.tokens])
        count = min(max_documents, len(known))
        self.probed = [known[round(index * (len(known) - 1) / max(1, count - 1))] for index in range(count)]
        self.notes: list[str] = []
        self.has_no_gradient = False
        self._measure()

    def run(self, batch: dict[str, Any], *, seed: int | None = 1234, has_grads: bool = False) -> Tensor:
        """Returns float[num_tokens, n], what the model gives for each token."""
        tokens = batch[self.packed.tokens]
        devices = [tokens.device] if tokens.is_cuda else []
        with torch.set_grad_enabled(has_grads), torch.random.fork_rng(devices=devices, enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            given = dict(_tensors(self.call(self.model, dict(batch))))
        num_rows, length = (1, *tokens.shape)[-2:]
        found = []
        self.ignored = []
        for name, each in given.items():
            value = each.transpose(0, 1) if each.shape[:2] == (length, num_rows) != (num_rows, length) else each
            if not each.is_floating_point():
                continue
            if value.shape[:2] == (num_rows, length) or value.shape[:1] == (num_rows * length,):
                found.append(value.reshape(num_rows * length, -1))
            else:
                self.ignored.append(f"{name} {list(each.shape)}")
        if not found:
            shapes = ", ".join(self.ignored) or "none of numbers"
            message = f"expected logits or losses of each of the tokens {list(tokens.shape)}, found {shapes}"
            hint = "give `call=lambda model, batch: …`, which returns logits or losses per token, not their mean"
            raise ConfigError(message, hint=hint)
        return torch.cat(found, dim=1)

    def _measure(self) -> None:
        """Runs the batch as it is, and measures by how much equal runs, and runs with other roundings, differ."""
        self.base = self.run(self.packed.batch)
        self.inside = inside = torch.isin(self.owner, torch.tensor(self.probed, device=self.owner.device))
        wrong = (~self.base.isfinite()).any(dim=1) & inside
        if bool(wrong.any()):
            index = int(wrong.nonzero()[0])
            row, position, _ = self.packed.place(index, self.packed.tokens)
            where = f"document {self.owner[index]}, first at token {position} of row {row}"
            message = f"the model gives NaN or infinity for {where}"
            raise ConfigError(message, hint="float16 overflows above 65,504: check it in bfloat16 or float32")
        if self.ignored:
            self.notes.append(f"not checked, as they have no value per token: {', '.join(self.ignored)}")
        again = [self.run(self.packed.batch), self.run(self.packed.batch, seed=None)]
        self.spread, unseeded = [float(_differences(self.base, each)[inside].max()) for each in again]
        self.is_random = unseeded > self.spread
        with _eager():
            eager = self.run(self.packed.batch)
            rounded = []
            for seed in range(_NUM_ROUNDED):
                with _rounded(seed):
                    rounded.append(_differences(eager, self.run(self.packed.batch)))
        self.rounding = self.spread + _allowed(rounded, inside)
        num_chosen = int((self.rounding[inside] > 1000 * self.rounding[inside].min()).sum())
        if num_chosen:
            note = f"other roundings change what the model chooses at {num_chosen} of {int(inside.sum())} tokens, such "
            self.notes.append(f"{note}as experts: differences there count from 4 times what roundings make")
        if self.spread:
            self.notes.append(f"equal runs differ by up to {self.spread:.2g}: by change, smaller leaks are not seen")
        elif self.is_random:
            note = "the model draws random numbers, as dropout that is left on does: all runs drew the same"
            self.notes.append(f"{note}; `model.eval()` turns dropout off")
        if self.packed.num_documents <= len(self.packed.owners[self.packed.tokens]):
            note = f"each row is one document, by `{self.packed.source}`: nothing within a row was told apart"
            self.notes.append(note)

    def check(self, name: str) -> IsolationCheck:
        """Runs one check, and names the module in which what leaks begins."""
        found: _Found | str
        if name == "tail" and not bool((self.owner == PADDING).any()):
            found = "the batch has no padding"
        elif name == "labels" and not self.packed.label_arrays:
            found = "the batch has no `labels`"
        elif name == "labels" and (crossing := self.packed.crossing_label()):
            leak = self._leak(*crossing, 1.0)
            return IsolationCheck(name=name, result="leak", words=leak.paragraph("crossing"), leak=leak)
        elif name == "alone" and self.is_random and not self.spread:
            found = "the model draws random numbers, others for another shape: call `model.eval()`"
        else:
            found = self._gradient() if name == "gradient" else self._compared(name)
        if isinstance(found, str):
            return IsolationCheck(name=name, result="not run", words=found)
        check, batch = found
        if check.leak is None:
            return check
        leak = self._named(check.leak, batch)
        words = leak.paragraph(name, limit=check.limit, is_silent=self.has_no_gradient)
        return replace(check, result="leak", leak=leak, words=words)

    def _gradient(self) -> _Found | str:
        begins: list[tuple[str, Tensor]] = []
        try:
            with _eager(), _looked_up(self.packed, begins):
                found = self.run(self.packed.batch, has_grads=True)
        except Exception as error:  # noqa: BLE001 - a model may raise anything where gradients are kept
            return f"the model fails with gradients: {type(error).__name__}: {error}"
        worst: IsolationLeak | None = None
        reaches = False
        weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(1234)).to(found.device, found.dtype)
        for document in self.probed if begins and found.requires_grad else ():
            loss = (found * weights)[self.owner == document].sum()
            inputs = [begin for _, begin in begins]
            grads = torch.autograd.grad(loss, inputs, retain_graph=True, materialize_grads=True, allow_unused=True)
            for (name, _), grad in zip(begins, grads, strict=True):
                owner = self.packed.owners[name].flatten()
                norms = grad.reshape(len(owner), -1).float().norm(dim=1)
                if not bool(norms.isfinite().all()):
                    return f"the gradient of document {document} has NaN or infinity"
                reaches |= bool(norms.any())
                norms = norms.masked_fill(owner == document, 0)
                index = int(norms.argmax())
                if float(norms[index]) > (worst.size if worst else 0):
                    worst = self._leak(document, int(owner[index]), index, float(norms[index]), name)
        if not reaches:
            return "what the model gives has no gradient at the embeddings of its tokens"
        self.has_no_gradient = worst is None
        check = IsolationCheck(name="gradient", probed=len(self.probed), largest=0.0, leak=worst)
        other = PADDING if worst is None or worst.other is None else worst.other
        return check, self.packed.changed(self.packed.token_arrays, other)

    def _compared(self, name: str) -> _Found | str:
        """Changes documents, padding or labels one after the other, or takes each document alone, and compares."""
        is_alone, packed = name == "alone", self.packed
        arrays = packed.label_arrays if name == "labels" else packed.token_arrays
        cases: list[tuple[int | None, dict[str, Any], Tensor]] = []
        for document in [PADDING] if name == "tail" else self.probed:
            batch = packed.alone(document) if is_alone else packed.changed(arrays, document)
            if isinstance(batch, str):
                return batch
            if not is_alone and all(torch.equal(batch[array], packed.batch[array]) for array in arrays):
                continue
            compared = self.owner == document if is_alone else (self.owner != document) & (self.owner != PADDING)
            try:
                found = self.run(batch)
            except Exception as error:  # noqa: BLE001 - a model may raise anything of a batch of another shape
                return f"the model fails at document {document}: {type(error).__name__}: {error}"
            sizes = torch.zeros_like(self.rounding)
            sizes[compared] = _differences(self.base[compared], found if is_alone else found[compared])
            cases.append((None if is_alone else document, batch, sizes))
        if not cases:
            return "no token of it has another value to take"
        sizes = torch.stack([each for _, _, each in cases])
        limits = torch.full_like(self.rounding, self.spread)
        if is_alone or (self.has_no_gradient and bool((sizes > limits).any())):
            limits = self.rounding  # what is chosen by other tokens may come with other roundings
        above = torch.where(sizes > limits, sizes, 0)
        case, index = divmod(int(above.argmax()), sizes.shape[1])
        other, batch, _ = cases[case]
        size = float(above[case, index])
        leak = self._leak(int(self.owner[index]), other, index, size) if size > 0 else None
        largest, limit = float(torch.where(sizes > limits, 0, sizes).max()), float(limits[self.inside].min())
        return IsolationCheck(name=name, probed=len(cases), largest=largest, limit=limit, leak=leak), batch

    def _leak(self, document: int, other: int | None, index: int, size: float, name: str = "") -> IsolationLeak:
        name = name or self.packed.tokens
        row, position, offset = self.packed.place(index, name)
        token = int(self.packed.batch[name].flatten()[index])
        return IsolationLeak(
            document=document, other=other, size=size, row=row, position=position, offset=offset, token=token
        )

    def _named(self, leak: IsolationLeak, values: dict[str, Any]) -> IsolationLeak:
        """Returns a leak with the first module whose output differs, of the document, between the batch and values."""
        is_alone = leak.other is None
        before = self._events(self.packed.batch, leak.document)
        roundings = range(7, 11) if is_alone else (None, None)  # a document has few tokens: two would not tell
        again = [self._events(self.packed.batch, leak.document, rounded=seed) for seed in roundings]
        after = self._events(values, None if is_alone else leak.document)
        for old, new, *repeats in zip(before, after, *again, strict=False):
            if old[:2] != new[:2]:
                break
            for one, two, *others in zip(old[2], new[2], *(each[2] for each in repeats), strict=False):
                if one is None or two is None or one.shape != two.shape or (is_alone and not one.is_floating_point()):
                    continue  # has no tokens, or is numbers of documents
                if bool((_differences(one, two) > _allowed([_differences(one, each) for each in others])).any()):
                    return replace(leak, module=old[0], before=old[1])
        return leak

    def _events(self, batch: dict[str, Any], document: int | None, *, rounded: int | None = None) -> list[_Event]:
        """Returns what each module is handed and what it gives, in the order of execution: of a document, or all."""
        found: list[_Event] = []
        stack = [""]

        def keep(owner: str, before: str | None, value: Any) -> None:
            tensors = [each.detach().clone() for _, each in _tensors(value)]
            cut = [each if document is None else self.packed.cut(each, document) for each in tensors]
            found.append((owner, before, cut))

        def enter(name: str, given: Any) -> None:
            if name:
                keep(stack[-1], name, given)
            stack.append(name)

        with contextlib.ExitStack() as ending:
            for name, module in self.modules.items():
                entering = lambda _, args, kwargs, name=name: enter(name, (args, kwargs))  # noqa: E731
                ending.callback(module.register_forward_pre_hook(entering, with_kwargs=True).remove)
                leaving = lambda _, args, value: keep(stack.pop(), None, value)  # noqa: E731
                ending.callback(module.register_forward_hook(leaving).remove)
            ending.enter_context(_eager())
            ending.enter_context(contextlib.nullcontext() if rounded is None else _rounded(rounded))
            self.run(batch)
        return found


def _differences(one: Tensor, two: Tensor) -> Tensor:
    """Returns float64[...], the largest difference along the last axis; infinity where one of two alone is NaN."""
    is_same = (one == two) | (one.isnan() & two.isnan())
    found = torch.where(is_same, 0.0, (one.double() - two.double()).abs()).nan_to_num(nan=torch.inf)
    return found.amax(dim=-1) if found.ndim else found


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
    elif isinstance(value, Mapping | tuple | list):
        for key, each in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _tensors(each, str(key) if isinstance(key, str) else f"{name}[{key}]")
