"""Traces the dense part of any module as a list of operators, on fake tensors."""

import contextlib
import copy
import logging
import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parameter import is_lazy
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._pytree import tree_leaves
from torchrec import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

from costmodels.dense.rewriting import repeating
from costmodels.operators import Operator, OperatorKind
from costmodels.workload import OperatorList
from planner.errors import InvalidInputError, refuse
from planner.integrations.dense.recorder import Recorder, bytes_of, data_type
from planner.integrations.translate.settings import said


class DenseTrace(NamedTuple):
    """The result of a trace: the operators, and remarks."""

    operators: OperatorList
    remarks: tuple[str, ...]

    @property
    def all_operators(self) -> tuple[Operator, ...]:
        """The operators before and after the tables."""
        return (*self.operators.before_tables, *self.operators.after_tables)


def trace_dense(
    module: nn.Module,
    inputs: Any,
    *,
    batch_size: int,
    inputs_need_gradients: bool = True,
    autocast: torch.dtype | None = None,
) -> DenseTrace:
    """Trace the forward and backward pass of a module.

    Nothing is computed, because parameters and inputs become fake tensors. The listed operators are
    those of the forward pass. The FLOP of the backward pass follow from them. TorchRec's modules
    with tables return fake vectors, without a lookup.

    Args:
        module: the module, on any device, including the meta device; it is left as it was.
        inputs: the arguments of ``forward``: a tuple, a mapping of names, or the only argument.
            Tensors can be inside lists, mappings, named tuples and dataclasses.
        batch_size: samples in ``inputs``.
        inputs_need_gradients: whether inputs of floating type need a gradient, as vectors from
            tables do.
        autocast: the type in which products compute under ``torch.autocast``; None without it.

    Raises:
        InvalidInputError: it cannot be traced on fake tensors, or has lazy layers that never ran.
    """
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    found = lookups_of(module)
    tensors = _module_tensors(module, fake, tuple(found))
    recorder = Recorder([t for t in tensors.values() if t.requires_grad])
    computing = contextlib.nullcontext() if autocast is None else torch.autocast("cpu", autocast)
    keeping = torch.autograd.graph.saved_tensors_hooks(recorder.keep, lambda tensor: tensor)
    faked = _reparametrize_module(module, tensors, tie_weights=True)
    try:
        args, kwargs = _arguments(inputs, fake, needs_gradients=inputs_need_gradients)
        with fake, _changed(module, found, recorder, fake), faked:
            with computing, keeping, recorder.inside(module), recorder:
                output = module(*args, **kwargs)
            recorder.end()
            outputs = _differentiable(output)
            recorder.results(outputs)
            backward = Recorder((), forward=recorder)
            with backward.inside(module), backward:
                torch.autograd.backward(outputs, [torch.ones_like(x) for x in outputs])
    except InvalidInputError:
        raise
    except Exception as error:
        text = (str(error).strip().splitlines() or [""])[0]
        told = {"module": type(module).__name__, "kind": type(error).__name__, "text": text}
        refuse(said("untraced", **told))
    before, after = recorder.operators(after=False), recorder.operators(after=True)
    if not found:
        before, after = [], before + after
    after += [_loss(x) for x in outputs if x.numel() > 1] + _unused(recorder)
    operators = OperatorList(
        batch_size_per_rank=batch_size, before_tables=folded(before), after_tables=folded(after)
    )
    return DenseTrace(operators=operators, remarks=tuple(recorder.remarks.values()))


@contextlib.contextmanager
def _changed(
    module: nn.Module, tables: Mapping[str, nn.Module], recorder: Recorder, fake: FakeTensorMode
) -> Iterator[None]:
    """A context in which a module runs on fake tensors.

    Modules with tables return fake vectors, without a lookup. Tensors that modules keep as plain
    attributes are fake: a model that is built on the meta device has them there, but its inputs are
    on the CPU. Recurrent layers, and attention without gradients, run as products.
    """
    onednn, attention, dtype = torch.backends.mkldnn, torch.backends.mha, _type_of(module)
    with contextlib.ExitStack() as stack:
        stack.callback(setattr, onednn, "enabled", onednn.enabled)
        stack.callback(attention.set_fastpath_enabled, attention.get_fastpath_enabled())
        onednn.enabled = False
        attention.set_fastpath_enabled(False)
        for owner in module.modules():
            for name, value in list(vars(owner).items()):
                is_own = name in ("_parameters", "_buffers", "_modules")  # replaced by others
                if not is_own and any(map(_is_plain, tree_leaves(value))):
                    stack.callback(vars(owner).update, {name: value})
                    vars(owner)[name] = mapped(value, lambda item: _faked(item, fake))
        for owner in tables.values():

            def vectors(*args: Any, owner: nn.Module = owner, **kwargs: Any) -> Any:
                with fake:
                    made, tensors = _vectors(owner, (*args, *kwargs.values())[0], dtype)
                for tensor in tensors:
                    recorder.look_up(tensor)
                return made

            vars(owner)["forward"] = vectors
            stack.callback(vars(owner).pop, "forward")
        yield


def _differentiable(output: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for leaf in tree_leaves(output):
        if is_dataclass(leaf) and not isinstance(leaf, type):
            found += _differentiable([getattr(leaf, field.name) for field in fields(leaf)])
        elif isinstance(leaf, torch.Tensor) and leaf.requires_grad:
            found.append(leaf)
    return found


def _loss(output: torch.Tensor) -> Operator:
    """The operator that stands for a loss after a result that is not one: one pass over it."""
    size = bytes_of([output])
    return Operator(
        name="loss",
        kind=OperatorKind.ELEMENTWISE,
        shape=tuple(int(n) for n in output.shape),
        dtype=data_type(output),
        read_bytes=size,
        written_bytes=size,
    )


def _unused(recorder: Recorder) -> list[Operator]:
    """An operator for parameters that nothing reads; they are stored and reduced as well."""
    count = sum(elements for elements, _ in recorder.unused.values())
    if not count:
        return []
    recorder.remarks["unused"] = f"{count:,} trained elements take no part in the forward pass"
    return [
        Operator(
            name="unused parameters",
            kind=OperatorKind.OTHER,
            shape=(0,),
            num_parameters=count,
            parameter_bytes=sum(size for _, size in recorder.unused.values()),
            num_kernels=0,
            num_calls=0,
        )
    ]


_NUMBER: Final = re.compile(r"(?<![^.])\d+(?![^.])")


def folded(operators: Sequence[Operator]) -> tuple[Operator, ...]:
    """The same operators, with neighbouring equal blocks listed once with their number.

    Numbers in names are ignored in the comparison: ``blocks.0.norm`` and ``blocks.1.norm`` become
    ``blocks.*.norm``.
    """
    plain = [replace(operator, name=_NUMBER.sub("*", operator.name)) for operator in operators]
    found: list[Operator] = []
    for at, period, repeats in repeating(plain):
        if repeats > 1:
            block = plain[at : at + period]
            found += [replace(o, num_repeats=o.num_repeats * repeats) for o in block]
        else:
            found += operators[at : at + period]
    return tuple(found)


def _module_tensors(
    module: nn.Module, fake: FakeTensorMode, without: tuple[str, ...]
) -> dict[str, torch.Tensor]:
    """Parameters and buffers as fake tensors, without those of tables.

    Raises:
        InvalidInputError: there are lazy layers, whose sizes are known only after they have run.
    """
    lazy = [
        f"{path or 'the model itself'} ({type(child).__name__})"
        for path, child in module.named_modules()
        if any(map(is_lazy, (*child._parameters.values(), *child._buffers.values())))
    ]
    if lazy:
        more = f" and {len(lazy) - 5} more" if len(lazy) > 5 else ""
        layers = ", ".join(lazy[:5]) + more
        refuse(said("lazy layers", module=type(module).__name__, layers=layers))
    prefixes = tuple(f"{path}." for path in without)
    made: dict[str, torch.Tensor] = {}
    with fake:
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if name.startswith(prefixes) and prefixes:
                continue
            like = torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device="cpu")
            is_trained = isinstance(tensor, nn.Parameter) and tensor.requires_grad
            made[name] = like.requires_grad_() if is_trained else like
    return made


def _arguments(
    inputs: Any, fake: FakeTensorMode, *, needs_gradients: bool
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of ``forward`` with fake tensors: a tuple, a mapping, or a single argument."""

    def faked(value: Any) -> Any:
        if isinstance(value, KeyedJaggedTensor):
            # The host has to know lengths, because fake tensors have no values.
            value = value.sync()
        made = _faked(value, fake)
        if made is value:
            return value
        return made.requires_grad_(needs_gradients and made.is_floating_point())

    if isinstance(inputs, Mapping):
        return (), {str(key): mapped(value, faked) for key, value in inputs.items()}
    given = inputs if type(inputs) is tuple else (inputs,)
    return tuple(mapped(value, faked) for value in given), {}


def _is_plain(value: Any) -> bool:
    """Whether a value is a tensor, but no parameter: those are replaced with all others."""
    return isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter)


def _faked(value: Any, fake: FakeTensorMode) -> Any:
    """A tensor as a fake tensor on the CPU; parameters and other values as they are."""
    if not _is_plain(value):
        return value
    if value.is_meta:
        with fake:
            return torch.empty_strided(
                value.size(), value.stride(), dtype=value.dtype, device="cpu"
            )
    return fake.from_tensor(value.detach().to("cpu"))


# ------------------ modules with tables


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """A copy of the containers, with each value replaced by ``change`` of it.

    Named tuples, mappings of any kind and dataclasses, including frozen ones, keep their types. An
    object of any other type is a value.
    """
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return type(value)._make(mapped(item, change) for item in value)
    if type(value) in (list, tuple):
        return type(value)(mapped(item, change) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        made = copy.copy(value)
        for field in fields(value):
            object.__setattr__(made, field.name, mapped(getattr(value, field.name), change))
        return made
    if isinstance(value, MutableMapping):
        other = copy.copy(value)
        for key, item in value.items():
            other[key] = mapped(item, change)
        return other
    return change(value)


def lookups_of(module: nn.Module) -> dict[str, nn.Module]:
    """The modules with tables, by their paths."""
    # torch.fx warns of a function that TorchRec calls for jagged inputs.
    logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
    kinds = (EmbeddingBagCollection, EmbeddingCollection)
    return {path: child for path, child in module.named_modules() if isinstance(child, kinds)}


def _type_of(module: nn.Module) -> torch.dtype:
    """The type of looked-up vectors: fp32, or the type of a model whose types all have two bytes.

    By default FBGEMM returns vectors in fp32, from rows of any type.
    """
    types = {p.dtype for p in module.parameters() if p.is_floating_point()}
    halves = (torch.bfloat16, torch.float16)
    return next(iter(types)) if len(types) == 1 and types <= set(halves) else torch.float32


def _vectors(
    owner: nn.Module, features: KeyedJaggedTensor, dtype: torch.dtype
) -> tuple[Any, list[torch.Tensor]]:
    """What a module with tables returns for features, and the tensors in that."""
    pooled, samples = isinstance(owner, EmbeddingBagCollection), features.stride()
    configs = owner.embedding_bag_configs() if pooled else owner.embedding_configs()
    columns = [(name, c.embedding_dim) for c in configs for name in c.feature_names]
    widths = [width for _, width in columns]
    shapes = [(samples, sum(widths))]
    if not pooled:
        counts = dict(zip(features.keys(), features.length_per_key(), strict=True))
        shapes = [(int(counts[name]), width) for name, width in columns]
    tensors = [torch.empty(*shape, dtype=dtype, requires_grad=True) for shape in shapes]
    if pooled:
        keys = list(getattr(owner, "embedding_names", [name for name, _ in columns]))
        return KeyedTensor(keys=keys, length_per_key=widths, values=tensors[0]), tensors
    vectors = {
        name: JaggedTensor(values=values, lengths=torch.empty(samples, dtype=torch.int64))
        for (name, _), values in zip(columns, tensors, strict=True)
    }
    return vectors, tensors
