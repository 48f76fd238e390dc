"""TorchRec's own plan, as a rival: ours must beat it, and a draw goes to it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from torch import nn
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.planners import EmbeddingShardingPlanner
from torchrec.distributed.planner.types import (
    Enumerator,
    ParameterConstraints,
    ShardingOption,
    StorageReservation,
)
from torchrec.distributed.planner.types import Topology as TorchrecTopology
from torchrec.distributed.types import ModuleSharder, ShardingPlan

from costmodels.sharding import Plan
from costmodels.workload import Workload
from planner.integrations.torchrec_plan import from_sharding_plan

logger: Final = logging.getLogger(__name__)

MOST_SHARDS: Final = 512
"""Tables times ranks up to which TorchRec's planner needs no more than some 2 s; its time grows
with the square of the tables."""

_LIMIT_S: Final = 2


class LazyEnumerator(EmbeddingEnumerator):
    """TorchRec's enumerator, run when somebody asks: this project's search does not need its list.

    Context hashes do, and for hundreds of tables it takes a minute.
    """

    pending: tuple[nn.Module, list[ModuleSharder[nn.Module]]] | None = None

    @property
    def last_stored_search_space(self) -> list[ShardingOption] | None:
        """Options of the model that was planned last; None before any."""
        if self._last_stored_search_space is None and self.pending is not None:
            self.enumerate(*self.pending)
        return self._last_stored_search_space


def rival_plan(
    module: nn.Module,
    sharders: list[ModuleSharder[nn.Module]],
    topology: TorchrecTopology,
    workload: Workload,
    *,
    batch_size: int,
    enumerator: Enumerator,
    reservation: StorageReservation,
    constraints: Mapping[str, ParameterConstraints] | None,
) -> Plan | None:
    """What ``EmbeddingShardingPlanner`` makes of the same arguments.

    None for models for which it takes long, where it fails, and for plans that we cannot express.
    """
    if len(workload.tables) * topology.world_size > MOST_SHARDS:
        return None
    theirs = EmbeddingShardingPlanner(
        topology=topology,
        batch_size=batch_size,
        enumerator=enumerator,
        storage_reservation=reservation,
        stats=[],
        constraints=None if constraints is None else dict(constraints),
        debug=False,
        timeout_seconds=_LIMIT_S,
    )
    try:
        plan: ShardingPlan = theirs.plan(module, sharders)
        return from_sharding_plan(plan, workload)
    except Exception as error:  # a comparison must not keep a job from its plan
        logger.debug("TorchRec's planner gives no plan to compare with: %s", error)
        return None
