"""Records every operator of a forward pass on fake tensors, and which ones a checkpoint repeats."""

import contextlib
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from operator import attrgetter
from traceback import walk_stack
from typing import Any, Final, NamedTuple, Self

import torch
from torch import nn
from torch.autograd.graph import _engine_run_backward
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry
from torchrec.models.dlrm import InteractionArch, InteractionDCNArch, SparseArch

from costmodels.datatypes import DataType
from costmodels.layers import parts
from costmodels.layers.base import Flow
from costmodels.operators import Operator, OperatorKind
from planner.errors import refuse
from planner.integrations.translate.private_names import cross_layers
from planner.integrations.translate.settings import WORDS, said

# ------------------ what an operator is

_NO_WORK: Final = frozenset(WORDS["free"])
PRODUCTS: Final = {"mm": 0, "addmm": 1, "bmm": 0, "baddbmm": 1, "_scaled_mm": 0}
"""Matrix products, with the position of the argument that is the left operand."""
CONVOLUTION: Final = "convolution"
KINDS: Final = {
    name: OperatorKind(kind) for kind, names in WORDS["operators"].items() for name in names
}


def operator_name(func: Any) -> str:
    """The name without library and overload, such as ``addmm``."""
    return str(func.overloadpacket.__name__)


def is_free(func: Any) -> bool:
    """Whether an operator makes a view or only reads shapes, so that no kernel runs."""
    if func.namespace == "prim" or operator_name(func) in _NO_WORK:
        return True
    returned = func._schema.returns
    return bool(returned) and all(
        r.alias_info is not None and not r.alias_info.is_write for r in returned
    )


def kind_of(func: Any) -> OperatorKind | None:
    """The kind of an operator that is neither product nor attention; None if it is not known."""
    known = KINDS.get(operator_name(func))
    if known is None and torch.Tag.pointwise in func.tags:
        return OperatorKind.ELEMENTWISE
    return known


def bytes_of(tensors: Iterable[torch.Tensor]) -> float:
    """Bytes of all elements; elements that an expanded tensor repeats count once."""
    total = 0
    for x in tensors:
        distinct = (n for n, step in zip(x.shape, x.stride(), strict=True) if step != 0)
        total += math.prod(distinct) * x.element_size()
    return float(total)


def data_type(tensor: torch.Tensor) -> DataType:
    """The element type; types of eight bytes count as fp32, because only products depend on it."""
    return DataType(WORDS["tensors"].get(str(tensor.dtype).removeprefix("torch."), DataType.FP32))


class Call(NamedTuple):
    """A call of an operator, with the tensors that it reads and makes."""

    func: Any
    args: Any
    kwargs: Any
    out: Any
    read: list[torch.Tensor]
    made: list[torch.Tensor]

    def given(self, name: str) -> Any:
        """An argument by its name, however it was given, or its default; None if there is none."""
        declared = self.func._schema.arguments
        defaults = {a.name: a.default_value for a in declared}
        positional = zip((a.name for a in declared), self.args, strict=False)
        return (defaults | dict(positional) | self.kwargs).get(name)


def product_of(call: Call, path: str) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]] | None:
    """An operator as a product; None for all others.

    That is the operands of a matrix product or a fused attention, whose gradients are products
    again; and its kind, its shape, and whether it is causal.

    A convolution is one of patches and filters: the input is ``[samples, channels, ...]``, the
    filters are ``[out, in / groups, ...]`` (in and out change places if it is transposed), and the
    positions of the output are the rows of the product; those of the input if it is transposed. A
    fused attention reads queries, keys and values ``[samples, heads, positions, width]``.

    Raises:
        InvalidInputError: a product has operands of two types.
    """
    name = operator_name(call.func)
    if name in PRODUCTS:
        left, right = call.args[PRODUCTS[name] : PRODUCTS[name] + 2]
        if left.dtype is not right.dtype and name != "_scaled_mm":
            # No device runs it, though fake tensors do; scaled products may mix eight-bit numbers.
            types = [str(x.dtype).removeprefix("torch.") for x in (left, right)]
            refuse(said("types of a product", path=path, types=types))
        is_batched = name in ("bmm", "baddbmm")
        shape = (int(left.shape[0]) if is_batched else 1, *left.shape[-2:], right.shape[-1])
        kind = OperatorKind.BATCHED_MATMUL if is_batched else OperatorKind.MATMUL
        return (left, right), {"kind": kind, "shape": tuple(map(int, shape))}
    if name == CONVOLUTION:
        given, filters = call.args[:2]
        transposed, groups = call.given("transposed"), call.given("groups")
        rows = given if transposed else call.out
        outer, inner = int(filters.shape[0]) // groups, math.prod(map(int, filters.shape[1:]))
        columns = (outer, inner) if transposed else (inner, outer)
        shape = (groups, math.prod(rows.shape[2:]) * int(rows.shape[0]), *columns)
        kind = OperatorKind.MATMUL if groups == 1 else OperatorKind.BATCHED_MATMUL
        return (given, filters), {"kind": kind, "shape": shape}
    if name.startswith("_scaled_dot_product_") or name in (
        "_flash_attention_forward",
        "_efficient_attention_forward",
    ):
        query, key, value = call.read[:3]
        sizes = (query.shape[-2], key.shape[-2], query.shape[-1], value.shape[-1])
        told = {"kind": OperatorKind.ATTENTION, "is_causal": bool(call.given("is_causal"))}
        return (query, key), {"shape": (math.prod(query.shape[:-2]), *map(int, sizes)), **told}
    return None


def known_operators(module: nn.Module, args: tuple[Any, ...]) -> tuple[Operator, ...] | None:
    """The operators of the interaction of TorchRec's DLRM; None for all other modules.

    They are those of :mod:`costmodels.layers`, which include the copy of the looked-up vectors.
    """
    if isinstance(module, SparseArch):
        return ()
    if not isinstance(module, InteractionArch | InteractionDCNArch) or len(args) < 2:
        return None
    dense, sparse = args[0], args[1]
    batch, width = int(dense.shape[0]), int(dense.shape[1])
    flow = Flow(
        batch_size=batch,
        dtype=data_type(dense),
        width=width,
        is_input=False,
        num_vectors=int(sparse.shape[1]),
        num_elements=int(sparse.shape[1]) * int(sparse.shape[2]),
        # Lookups give fp32, whatever the type of the products.
        piece_bytes=DataType.FP32.num_bytes,
    )
    if isinstance(module, InteractionArch):
        return parts.dot(flow)[0]
    joined, met = parts.joined(flow)
    layers = cross_layers(module.crossnet)
    return None if layers is None else (*joined, *parts.cross(met, *layers))


# ------------------ when it runs

_ENGINE: Final = _engine_run_backward.__code__


def is_in_own_function() -> bool:
    """Whether the forward pass of a ``torch.autograd.Function`` runs now.

    It runs without gradients, but has a backward pass of its own.
    """
    if torch.is_grad_enabled():
        return False
    kinds = _below(torch.autograd.Function)
    own = {getattr(getattr(kind, "forward", None), "__code__", None) for kind in kinds}
    return any(frame.f_code in own for frame, _ in walk_stack(sys._getframe()))


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
    for frame, _ in walk_stack(sys._getframe()):
        if frame.f_code is _ENGINE:
            return False
        if frame.f_code.co_filename == checkpoint.__file__:
            return True
    return False


def _below(kind: type) -> Iterator[type]:
    children: list[type] = kind.__subclasses__()
    for child in children:
        yield child
        yield from _below(child)


class Recorder(TorchDispatchMode):
    """A dispatch mode that lists operators, with their parameters and the tensors that they keep.

    In the backward pass, a recorder of its own tells that of the forward pass which operators run
    again.

    Args:
        parameters: the trained tensors; those that share a storage count once.
        forward: the recorder of the forward pass, for a backward pass.
    """

    def __init__(self, parameters: Iterable[torch.Tensor], forward: Self | None = None) -> None:
        """Start with empty lists."""
        super().__init__()
        self._forward = forward
        self._listed: list[Operator] = []
        self._after: set[int] = set()
        self.remarks: dict[str, str] = {}
        self.unused = {
            _storage(x): (int(x.numel()), float(x.numel() * x.element_size())) for x in parameters
        }
        self._parameters = frozenset(self.unused)
        self._cast, self._looked_up, self._saved, self._followed = (set[int]() for _ in range(4))
        self._without_gradients = set[int]()
        self._pending_bytes, self._silent, self._own = 0.0, 0, False
        self._last: frozenset[int] = frozenset()
        self._path: list[str] = []
        self._names: dict[nn.Module, str] = {}
        self._alive: list[Any] = []
        self._nodes: list[tuple[int, int]] = []

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
        self._names = {child: path for path, child in module.named_modules()}
        with contextlib.ExitStack() as stack:
            for child in self._names:
                if not isinstance(child, torch.jit.ScriptModule):  # which takes no hooks
                    enter = child.register_forward_pre_hook(self._enter, with_kwargs=True)
                    leave = child.register_forward_hook(self._leave, always_call=True)
                    stack.callback(enter.remove)
                    stack.callback(leave.remove)
            yield

    def again(self, operator: Operator) -> None:
        """Note that the backward pass has run an operator of the forward pass again.

        The operator is searched among those of the same module; outside of modules, among all with
        equal work. If the forward pass ran it without gradients, as in a checkpoint of the older
        kind, only now is it known which of its operands need a gradient.
        """
        places = self._places.get((operator.name, *_work(operator)))
        if places is None and operator.name not in self._names.values():
            places = self._places.get(_work(operator))
        if places is None:
            return
        while places and self._listed[places[-1]].is_recomputed:
            places.pop()
        if not places:
            self.remarks["nested"] = said("nested checkpoints")
            return
        place = places.pop()
        names = ("left_gradient", "right_gradient", "backward_bytes")
        known = {n: getattr(operator, n) for n in names if place in self._without_gradients}
        self._listed[place] = replace(self._listed[place], is_recomputed=True, **known)

    def results(self, outputs: list[torch.Tensor]) -> None:
        """Note from which ``outputs`` gradients start; other operators have no backward pass."""
        if self._parameters and not outputs:
            self.remarks["no gradient"] = said("no gradient")
        none: dict[str, Any] = dict(left_gradient=False, right_gradient=False)
        reached = reached_nodes(outputs)
        for place, node in self._nodes:
            if node not in reached:
                self._listed[place] = replace(self._listed[place], **none, backward_bytes=0.0)

    def end(self) -> None:
        """End the forward pass; tensors kept since the last operator belong to that operator."""
        if self._listed:
            self._keep_with_last(self._pending_bytes)
            self._pending_bytes = 0.0

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Note a tensor that the backward pass needs; storages count once, parameters never."""
        storage = _storage(tensor)
        is_new = storage not in self._saved and storage not in self._parameters
        self._alive.append(tensor)
        self._saved.add(storage)
        if is_new and not self._silent:
            size = float(tensor.untyped_storage().nbytes())
            if storage in self._last:
                self._keep_with_last(size)
            else:
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
        call = Call(func, args, kwargs, out, read, made)
        if self._casts_parameter(call):
            return out
        is_after = any(_storage(x) in self._looked_up for x in read)
        self._own = is_in_own_function()
        if self._own and any(self._needs(read)):
            # Autograd does not mark the results, because it does not look inside the function.
            self._followed.update(map(_storage, made))
        if is_after:
            self._looked_up.update(map(_storage, made))
        if not self._silent and made and not is_free(func):
            self._list(call, is_after=is_after)
        return out

    # -- private --------------------------------------------------------------------------------

    def _add(self, operators: Sequence[Operator], *, is_after: bool) -> None:
        if self._forward is not None:
            for operator in operators:
                self._forward.again(operator)
        if is_after:
            self._after.update(range(len(self._listed), len(self._listed) + len(operators)))
        self._listed += operators

    def _casts_parameter(self, call: Call) -> bool:
        """Whether autocast casts a trained tensor here, which is told of the product that reads it.

        The product then counts the elements and bytes of the tensor.
        """
        if operator_name(call.func) != "_to_copy":
            return False
        source, made = call.read[0], call.made[0]
        given, cast = _storage(source), _storage(made)
        if given not in self._parameters or source.element_size() <= made.element_size():
            return False
        self._cast.add(cast)
        self.unused[cast] = self.unused.pop(given, (0, 0.0))
        return True

    def _needs(self, tensors: Iterable[torch.Tensor]) -> tuple[bool, ...]:
        """Which tensors need a gradient, if the operator that runs now can have one."""
        found = tuple(
            bool(x.requires_grad) or (self._own and _storage(x) in self._followed) for x in tensors
        )
        return found if self._own or torch.is_grad_enabled() else (False,) * len(found)

    @cached_property
    def _places(self) -> dict[tuple[object, ...], list[int]]:
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

    def _list(self, call: Call, *, is_after: bool) -> None:
        """List an operator, and remember the node of autograd's graph for its gradients.

        That is the newest one, of the operator or of the ``torch.autograd.Function`` around it. An
        operator that writes into a part of a tensor has no node of its own.
        """
        place, self._last = len(self._listed), frozenset(map(_storage, call.made))
        self._add([self._operator(call)], is_after=is_after)
        if self._own:
            self._without_gradients.add(place)
        if self._own or (torch.is_grad_enabled() and not call.func._schema.is_mutable):
            self._nodes.append((place, int(torch.autograd._get_sequence_nr()) - 1))

    def _operator(self, call: Call) -> Operator:
        func, read, made = call.func, call.read, call.made
        name, kind, read_bytes = operator_name(func), kind_of(func), bytes_of(read)
        if kind is OperatorKind.GATHER:
            read_bytes = min(read_bytes, bytes_of(made) + bytes_of(read[1:]))
        # Elements and bytes of trained tensors that no operator before has read.
        trained = [self.unused.pop(_storage(x), (0, 0.0)) for x in read]
        path = self._path[-1] if self._path else name
        figures: dict[str, Any] = {
            "name": path,
            "read_bytes": read_bytes,
            "written_bytes": bytes_of(made),
            "num_parameters": sum(elements for elements, _ in trained),
            "parameter_bytes": sum(size for _, size in trained),
            "saved_bytes": self._pending_bytes,
        }
        self._pending_bytes = 0.0
        can_have = any(x.is_floating_point() or x.is_complex() for x in made)
        has_gradient = can_have and any(self._needs(read))
        if product := product_of(call, path):
            operands, told = product
            is_fused = told["kind"] is OperatorKind.ATTENTION
            left, right = (has_gradient,) * 2 if is_fused else self._needs(operands)
            figures |= {"left_gradient": left, "right_gradient": right, **told}
            is_cast = any(_storage(x) in self._cast for x in operands)
            return Operator(dtype=data_type(operands[0]), is_cast=is_cast, **figures)
        if kind is None:
            counter = flop_registry.get(func.overloadpacket)
            flop = counter(*call.args, **call.kwargs, out_val=call.out) if counter else 0
            lost = f", and {flop:.3g} FLOP of it are not counted" if flop else ""
            self.remarks.setdefault(
                name, said("unknown operator", operator=f"{func.namespace}.{name}", lost=lost)
            )
        if name in ("topk", "sort", "argsort"):  # which sort about as many as they return
            figures["num_sorted"] = int(made[0].numel())
        touched = made if kind is OperatorKind.GATHER else [*read, *made]
        largest = max(touched, key=torch.Tensor.numel)
        return Operator(
            kind=kind or OperatorKind.OTHER,
            shape=tuple(int(n) for n in largest.shape),
            dtype=data_type(largest),
            function=name,
            backward_bytes=None if has_gradient else 0.0,
            **figures,
        )

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._path.append(self._names[module] or type(module).__name__)
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

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        del module, args, output
        self._path.pop()
        self._silent = max(0, self._silent - 1)


_work: Final = attrgetter("kind", "shape", "dtype", "function", "read_bytes", "written_bytes")
"""A key of what an operator does, without its module and without what it keeps."""


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
