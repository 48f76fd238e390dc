"""What a TorchRec planner is asked for in one call."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints, StorageReservation
from torchrec.distributed.planner.types import Topology as TorchrecTopology
from torchrec.distributed.types import ModuleSharder

Sharders = list[ModuleSharder[nn.Module]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """A model to shard, and the arguments of the planner.

    Attributes:
        module: the model.
        sharders: its sharders.
        topology: TorchRec's topology.
        batch_size: samples per rank.
        constraints: TorchRec's constraints by table name.
        reservation: the storage reservation.
    """

    module: nn.Module
    sharders: Sharders
    topology: TorchrecTopology
    batch_size: int
    constraints: dict[str, ParameterConstraints] | None
    reservation: StorageReservation
