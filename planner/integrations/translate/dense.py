"""Reads the dense part of a TorchRec DLRM from its layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from torch import nn
from torch.nn.parameter import is_lazy
from torchrec.models.dlrm import DLRM, DLRM_DCN

from costmodels.workload import DenseArch, Interaction

DENSE_BYTES_PER_PARAMETER_BYTE: Final = 6.0
"""Bytes of memory for each byte of parameters of a dense part of unknown shape: once for the
parameters, twice for the optimizer, three times for DDP (TorchRec 1.8,
``HeuristicalStorageReservation``)."""


def dense_arch(module: nn.Module) -> DenseArch | None:
    """The dense part of the first DLRM inside a model; None if there is no DLRM.

    Plain, projection and DCN interactions are known; the projection model counts as a plain one.
    """
    for candidate in module.modules():
        if isinstance(candidate, DLRM):
            return _of_dlrm(candidate)
    return None


def dense_reserve_bytes(module: nn.Module, sharded: Sequence[nn.Parameter]) -> float:
    """Bytes per rank for all parameters except the sharded ones, with their optimizer and DDP."""
    skip = {id(p) for p in sharded}
    plain = (p for p in module.parameters() if id(p) not in skip and not is_lazy(p))
    return DENSE_BYTES_PER_PARAMETER_BYTE * sum(p.numel() * p.element_size() for p in plain)


def _of_dlrm(model: DLRM) -> DenseArch:
    bottom, top = _linear_layers(model.dense_arch), _linear_layers(model.over_arch)
    is_cross = isinstance(model, DLRM_DCN)
    return DenseArch(
        num_dense_features=bottom[0].in_features,
        bottom_mlp=tuple(layer.out_features for layer in bottom),
        top_mlp=tuple(layer.out_features for layer in top),
        interaction=Interaction.DCN if is_cross else Interaction.DOT,
        dcn_num_layers=model.inter_arch.crossnet._num_layers if is_cross else 0,
        dcn_low_rank_dim=model.inter_arch.crossnet._low_rank if is_cross else 0,
    )


def _linear_layers(module: nn.Module) -> list[nn.Linear]:
    return [m for m in module.modules() if isinstance(m, nn.Linear)]
