"""TorchRec's modules in a trace: replaces their lookups, and knows the parts of a DLRM."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, MutableMapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torchrec import EmbeddingBagCollection, EmbeddingCollection
from torchrec.models.dlrm import InteractionArch, InteractionDCNArch, SparseArch
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

from costmodels.datatypes import DataType
from costmodels.layers import joins
from costmodels.layers.base import Flow
from costmodels.operators import Operator
from planner.integrations.dense.kinds import data_type
from planner.integrations.translate.private_names import cross_layers


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


Lookup = Callable[[FakeTensorMode, tuple[Any, ...], dict[str, Any]], tuple[Any, list[torch.Tensor]]]
"""From the arguments of a module with tables to its result, and the tensors in the result."""


def lookups_of(module: nn.Module) -> dict[str, Lookup]:
    """The function that replaces the lookups of each module with tables, by its path."""
    # torch.fx warns of a function that TorchRec calls for jagged inputs.
    logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
    kinds = (EmbeddingBagCollection, EmbeddingCollection)
    dtype = _type_of(module)
    named = module.named_modules()
    return {path: _lookup(child, dtype) for path, child in named if isinstance(child, kinds)}


def synchronized(value: Any) -> Any:
    """Jagged inputs with lengths that the host knows, because fake tensors have no values."""
    return mapped(value, lambda x: x.sync() if isinstance(x, KeyedJaggedTensor) else x)


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
        return joins.dot(flow)[0]
    joined, met = joins.joined(flow)
    layers = cross_layers(module.crossnet)
    return None if layers is None else (*joined, *joins.cross(met, *layers))


def _type_of(module: nn.Module) -> torch.dtype:
    """The type of looked-up vectors: fp32, or the type of a model whose types all have two bytes.

    By default FBGEMM returns vectors in fp32, from rows of any type.
    """
    types = {p.dtype for p in module.parameters() if p.is_floating_point()}
    halves = (torch.bfloat16, torch.float16)
    return next(iter(types)) if len(types) == 1 and types <= set(halves) else torch.float32


def _lookup(owner: EmbeddingBagCollection | EmbeddingCollection, dtype: torch.dtype) -> Lookup:
    pooled = isinstance(owner, EmbeddingBagCollection)
    configs = owner.embedding_bag_configs() if pooled else owner.embedding_configs()
    columns = [(name, c.embedding_dim) for c in configs for name in c.feature_names]

    def look_up(
        fake: FakeTensorMode, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, list[torch.Tensor]]:
        features = args[0] if args else next(iter(kwargs.values()))
        widths = [width for _, width in columns]
        shapes = [(features.stride(), sum(widths))]
        if not pooled:
            counts = dict(zip(features.keys(), features.length_per_key(), strict=True))
            shapes = [(int(counts[name]), width) for name, width in columns]
        with fake:
            tensors = [torch.empty(*shape, dtype=dtype, requires_grad=True) for shape in shapes]
            if pooled:
                keys = list(getattr(owner, "embedding_names", [name for name, _ in columns]))
                return KeyedTensor(keys=keys, length_per_key=widths, values=tensors[0]), tensors
            vectors = {
                name: JaggedTensor(
                    values=values, lengths=torch.empty(features.stride(), dtype=torch.int64)
                )
                for (name, _), values in zip(columns, tensors, strict=True)
            }
        return vectors, tensors

    return look_up
