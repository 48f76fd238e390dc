"""Records every operator of a forward pass on fake tensors, and which ones a checkpoint repeats."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from types import CodeType, FrameType
from typing import Any, Final

import torch
from torch import nn
from torch.autograd.graph import _engine_run_backward
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from costmodels.operators import Operator, OperatorKind
from planner.integrations.dense import kinds
from planner.integrations.dense.lookups import known_operators

_ENGINE: Final = _engine_run_backward.__code__


def is_differentiable(made: Iterable[torch.Tensor]) -> bool:
    """Whether results can have a gradient; whole numbers have none."""
    return any(x.is_floating_point() or x.is_complex() for x in made)


def is_in_own_function() -> bool:
    """Whether the forward pass of a ``torch.autograd.Function`` runs now.

    It runs without gradients, but has a backward pass of its own.
    """
    if torch.is_grad_enabled():
        return False
    own = {code for kind in _below(torch.autograd.Function) if (code := _code(kind)) is not None}
    return any(frame.f_code in own for frame in _frames())


def newest_node() -> int:
    """The number of the newest node of autograd's graph.

    This is the node of the operator that runs now, or of the ``torch.autograd.Function`` around it.
    """
    return int(torch.autograd._get_sequence_nr()) - 1


def reached_nodes(outputs: Iterable[torch.Tensor]) -> frozenset[int]:
    """The numbers of the nodes through which the gradients of ``outputs`` pass."""
    waiting: list[Any] = [x.grad_fn for x in outputs if x.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is not None and node not in seen:
                seen.add(node)
                waiting.append(node)
    return frozenset(int(node._sequence_nr()) for node in seen)


def is_computed_again() -> bool:
    """Whether an operator that runs now, in a backward pass, belongs to the forward pass.

    Gradients themselves are computed with gradients switched off. What a checkpoint computes again
    runs with gradients switched on or, in parts that are not trained, is called by a function of
    PyTorch's checkpoints.
    """
    if torch.is_grad_enabled():
        return True
    for frame in _frames():
        if frame.f_code is _ENGINE:
            return False
        if frame.f_code.co_filename == checkpoint.__file__:
            return True
    return False


def _frames() -> Iterator[FrameType]:
    """The frames of the callers, the nearest first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _below(kind: type) -> Iterator[type]:
    children: list[type] = kind.__subclasses__()
    for child in children:
        yield child
        yield from _below(child)


def _code(kind: type) -> CodeType | None:
    return getattr(getattr(kind, "forward", None), "__code__", None)


class Recorder(TorchDispatchMode):
    """A dispatch mode that lists operators, with their parameters and the tensors that they keep.

    In the backward pass, a recorder of its own tells that of the forward pass which operators run
    again.

    Args:
        parameters: the storages of trained tensors, with the elements and bytes of each.
        forward: the recorder of the forward pass, for a backward pass.
    """

    def __init__(
        self, parameters: dict[int, tuple[int, float]], forward: Recorder | None = None
    ) -> None:
        """Start with empty lists."""
        super().__init__()
        self._forward = forward
        self._listed: list[Operator] = []
        self._after: set[int] = set()
        self.remarks: dict[str, str] = {}
        self.unused = dict(parameters)
        self._parameters = frozenset(parameters)
        self._cast: set[int] = set()
        self._looked_up: set[int] = set()
        self._saved: set[int] = set()
        self._pending_bytes = 0.0
        self._last: frozenset[int] = frozenset()
        self._path: list[str] = []
        self._names: frozenset[str] = frozenset()
        self._silent = 0
        self._alive: list[Any] = []
        self._followed: set[int] = set()
        self._nodes: list[tuple[int, int]] = []
        self._without_gradients: set[int] = set()
        self._places: dict[tuple[object, ...], list[int]] | None = None

    def operators(self, *, after: bool) -> list[Operator]:
        """The operators after the tables, or those before them."""
        return [o for place, o in enumerate(self._listed) if (place in self._after) is after]

    # -- what the tracer tells ----------------------------------------------------------------

    def look_up(self, tensor: torch.Tensor) -> None:
        """Note that a tensor comes from tables; what is computed from it is after the tables."""
        self._looked_up.add(_storage(tensor))
        self._alive.append(tensor)

    @contextlib.contextmanager
    def inside(self, module: nn.Module) -> Iterator[None]:
        """A context in which operators are listed under the part of a module that runs them."""
        names = {child: path for path, child in module.named_modules()}
        handles: list[Any] = []
        self._names = frozenset(names.values())
        for child in names:
            enter = self._entering(names)
            if isinstance(child, torch.jit.ScriptModule):
                continue  # takes no hooks
            handles.append(child.register_forward_pre_hook(enter, with_kwargs=True))
            handles.append(child.register_forward_hook(self._leave, always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def again(self, operator: Operator) -> None:
        """Note that the backward pass has run an operator of the forward pass again.

        The operator is searched among those of the same module; outside of modules, among all with
        equal work. If the forward pass ran it without gradients, as in a checkpoint of the older
        kind, only now is it known which of its operands need a gradient.
        """
        if self._places is None:
            self._places = self._by_work()
        places = self._places.get((operator.name, *_work(operator)))
        if places is None and operator.name not in self._names:
            places = self._places.get(_work(operator))
        if places is None:
            return
        while places:
            place = places.pop()
            known = self._listed[place]
            if known.is_recomputed:
                continue
            if place in self._without_gradients:
                known = replace(
                    known,
                    left_gradient=operator.left_gradient,
                    right_gradient=operator.right_gradient,
                    backward_bytes=operator.backward_bytes,
                )
            self._listed[place] = replace(known, is_recomputed=True)
            return
        words = "a checkpoint inside another computes operators more than once again: once counts"
        self.remarks["nested"] = words

    def results(self, outputs: list[torch.Tensor]) -> None:
        """Note from which ``outputs`` gradients start; other operators have no backward pass."""
        if self._parameters and not outputs:
            words = "no result of the module has a gradient: no backward pass is listed"
            self.remarks["no gradient"] = words
        reached = reached_nodes(outputs)
        for place, node in self._nodes:
            if node not in reached:
                self._listed[place] = replace(
                    self._listed[place],
                    left_gradient=False,
                    right_gradient=False,
                    backward_bytes=0.0,
                )

    def end(self) -> None:
        """End the forward pass; tensors kept since the last operator belong to that operator."""
        if self._listed:
            self._keep_with_last(self._pending_bytes)
            self._pending_bytes = 0.0

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Note a tensor that the backward pass needs; storages count once, parameters never."""
        storage = _storage(tensor)
        self._alive.append(tensor)
        if storage in self._saved or storage in self._parameters:
            return tensor
        self._saved.add(storage)
        size = float(tensor.untyped_storage().nbytes())
        if storage in self._last and not self._silent:
            self._keep_with_last(size)
        elif not self._silent:
            self._pending_bytes += size
        return tensor

    def _keep_with_last(self, size: float) -> None:
        last = self._listed[-1]
        self._listed[-1] = replace(last, saved_bytes=last.saved_bytes + size)

    # -- what torch calls -----------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and list it; an operator that consists of others counts as those.

        Such operators arrive undivided only under ``torch.inference_mode``.
        """
        del types
        kwargs = kwargs or {}
        if self._forward is not None and not is_computed_again():
            return func(*args, **kwargs)
        if func is not torch.ops.prim.device.default:
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        read = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        made = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        self._alive += made
        if self._casts_parameter(func, read, made):
            return out
        is_after = any(_storage(x) in self._looked_up for x in read)
        self._follow(read, made)
        if is_after:
            self._looked_up.update(_storage(x) for x in made)
        if not self._silent and made and not kinds.is_free(func):
            operator = self._operator(func, args, kwargs, out, read, made)
            self._add([operator], is_after=is_after)
            self._last = frozenset(_storage(x) for x in made)
            self._remember_node(len(self._listed) - 1, func)
        return out

    # -- private --------------------------------------------------------------------------------

    def _add(self, operators: Sequence[Operator], *, is_after: bool) -> None:
        if self._forward is not None:
            for operator in operators:
                self._forward.again(operator)
        if is_after:
            self._after.update(range(len(self._listed), len(self._listed) + len(operators)))
        self._listed += operators

    def _casts_parameter(
        self, func: Any, read: list[torch.Tensor], made: list[torch.Tensor]
    ) -> bool:
        """Whether autocast casts a trained tensor here, which is told of the product that reads it.

        The product then counts the elements and bytes of the tensor.
        """
        if kinds.operator_name(func) != "_to_copy" or _storage(read[0]) not in self._parameters:
            return False
        if read[0].element_size() <= made[0].element_size():
            return False
        given, cast = _storage(read[0]), _storage(made[0])
        self._cast.add(cast)
        self.unused[cast] = self.unused.pop(given, (0, 0.0))
        return True

    def _follow(self, read: list[torch.Tensor], made: list[torch.Tensor]) -> None:
        """Mark results inside a ``torch.autograd.Function`` whose operands need gradients.

        Autograd does not mark them, because it does not look inside the function.
        """
        if is_in_own_function() and any(self._needs(read)):
            self._followed.update(_storage(x) for x in made)

    def _needs(self, tensors: Iterable[torch.Tensor]) -> tuple[bool, ...]:
        """Which tensors need a gradient, if the operator that runs now can have one."""
        is_own = is_in_own_function()
        found = tuple(
            bool(x.requires_grad) or (is_own and _storage(x) in self._followed) for x in tensors
        )
        return found if is_own or torch.is_grad_enabled() else (False,) * len(found)

    def _remember_node(self, place: int, func: Any) -> None:
        """Remember the node of autograd's graph that computes the gradients of the last operator.

        An operator that writes into a part of a tensor has no node of its own.
        """
        is_own = is_in_own_function()
        if is_own:
            self._without_gradients.add(place)
        if is_own or (torch.is_grad_enabled() and not func._schema.is_mutable):
            self._nodes.append((place, newest_node()))

    def _by_work(self) -> dict[tuple[object, ...], list[int]]:
        """The positions of operators by their work, with the name of their module and without.

        Operators that ran without gradients are last, so that they are taken first.
        """
        found: dict[tuple[object, ...], list[int]] = {}
        for place, known in enumerate(self._listed):
            for key in (_work(known), (known.name, *_work(known))):
                found.setdefault(key, []).append(place)
        for places in found.values():
            places.sort(key=lambda place: self._listed[place].left_gradient, reverse=True)
        return found

    def _operator(
        self,
        func: Any,
        args: Any,
        kwargs: Any,
        out: Any,
        read: list[torch.Tensor],
        made: list[torch.Tensor],
    ) -> Operator:
        name = kinds.operator_name(func)
        kind = kinds.kind_of(func)
        read_bytes = kinds.bytes_of(read)
        if kind is OperatorKind.GATHER:
            read_bytes = min(read_bytes, kinds.bytes_of(made) + kinds.bytes_of(read[1:]))
        count, size = self._parameters_of(read)
        figures: dict[str, Any] = {
            "read_bytes": read_bytes,
            "written_bytes": kinds.bytes_of(made),
            "num_parameters": count,
            "parameter_bytes": size,
            "saved_bytes": self._pending_bytes,
        }
        self._pending_bytes = 0.0
        has_gradient = is_differentiable(made) and any(self._needs(read))
        path = self._path[-1] if self._path else name
        if product := kinds.product_of(func, path, args, kwargs, read, out):
            gradients = self._needs(product.operands)
            if product.kind is OperatorKind.ATTENTION:
                gradients = (has_gradient, has_gradient)
            return Operator(
                name=path,
                kind=product.kind,
                shape=product.shape,
                dtype=kinds.data_type(product.operands[0]),
                left_gradient=gradients[0],
                right_gradient=gradients[1],
                is_cast=any(_storage(x) in self._cast for x in product.operands),
                is_causal=product.is_causal,
                **figures,
            )
        if kind is None:
            self._remark(func, name, kinds.counted_flop(func, args, kwargs, out))
        if name in kinds.SORTS:
            figures["num_sorted"] = _numel(made[0])
        largest = max((*read, *made) if kind is not OperatorKind.GATHER else made, key=_numel)
        return Operator(
            name=path,
            kind=kind or OperatorKind.OTHER,
            shape=tuple(int(n) for n in largest.shape),
            dtype=kinds.data_type(largest),
            function=name,
            backward_bytes=None if has_gradient else 0.0,
            **figures,
        )

    def _parameters_of(self, read: list[torch.Tensor]) -> tuple[int, float]:
        """Elements and bytes of trained tensors that no operator before has read."""
        count, size = 0, 0.0
        for tensor in read:
            elements, num_bytes = self.unused.pop(_storage(tensor), (0, 0.0))
            count, size = count + elements, size + num_bytes
        return count, size

    def _remark(self, func: Any, name: str, flop: float) -> None:
        words = f"operator {func.namespace}.{name} is not known: it counts as the bytes it moves"
        if flop:
            words += f", and {flop:.3g} FLOP of it are not counted"
        self.remarks.setdefault(name, words)

    def _entering(self, names: dict[nn.Module, str]) -> Callable[..., None]:
        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._path.append(names[module] or type(module).__name__)
            if self._silent:
                self._silent += 1
                return
            whole = known_operators(module, (*args, *kwargs.values()))
            if whole is None:
                return
            self._add(whole, is_after=True)
            for parameter in module.parameters():
                self.unused.pop(_storage(parameter), None)
            self._silent = 1

        return enter

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        del module, args, output
        self._path.pop()
        self._silent = max(0, self._silent - 1)


def _work(operator: Operator) -> tuple[object, ...]:
    """A key of what an operator does, without its module and without what it keeps."""
    return (
        operator.kind,
        operator.shape,
        operator.dtype,
        operator.function,
        operator.read_bytes,
        operator.written_bytes,
    )


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _numel(tensor: torch.Tensor) -> int:
    return int(tensor.numel())
