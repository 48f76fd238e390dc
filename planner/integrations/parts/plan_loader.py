"""Loads a saved plan for the ``plan_loader`` argument of TorchRec's own planner."""

from __future__ import annotations

import copy
from pathlib import Path

from torch import nn
from torchrec.distributed.planner.types import (
    Enumerator,
    ParameterConstraints,
    PlanLoader,
    PlannerErrorType,
    ShardingOption,
)
from torchrec.distributed.types import ModuleSharder

from costmodels.sharding import TablePlacement
from planner import io
from planner.errors import InvalidInputError
from planner.integrations.torchrec_parts import (
    Key,
    key_of,
    names_of,
    sharders_by_module,
    tables_of,
)
from planner.integrations.torchrec_plan import torchrec_shards
from planner.integrations.torchrec_workload import NO_HINTS
from planner.integrations.translate.settings import ShardPlannerError


class PlanFileLoader(PlanLoader):
    """Loads a ``plan.json`` into ``EmbeddingShardingPlanner``.

    From a stored plan, TorchRec takes only the ranks of the shards. Everything else comes from the
    option in its own list that has the same sharding type, kernel and cache load factor. It has to
    list this option: name ``grid_shard`` and load factors in the constraints of the tables that use
    them.

    Args:
        path: a plan, ours or TorchRec's.
        enumerator: the enumerator of the planner, so that both use the same list.
        module: the model.
        sharders: its sharders.
        constraints: the planner's constraints.
        context_hash: the planner's ``hash_planner_context_inputs_str`` when the plan was made; None
            to use the plan for any inputs.
    """

    def __init__(
        self,
        path: str | Path,
        enumerator: Enumerator,
        module: nn.Module,
        sharders: list[ModuleSharder[nn.Module]],
        *,
        constraints: dict[str, ParameterConstraints] | None = None,
        context_hash: str | None = None,
    ) -> None:
        self._path = Path(path)
        self._enumerator = enumerator
        self._model = module, sharders
        self._constraints = constraints
        self._context_hash = context_hash

    def load(self) -> dict[int, ShardingOption] | None:
        """The stored options, by the storage hash of TorchRec's equal option.

        Raises:
            ShardPlannerError: the file is not a plan of this model, or uses an option that the
                enumerator does not list.
        """
        module, sharders = self._model
        listed = self._enumerator.enumerate(module, sharders)
        names = names_of(listed)
        try:
            by_module = sharders_by_module(sharders)
            _, workload = tables_of(listed, by_module, self._constraints, NO_HINTS)
            plan = io.load_plan(self._path, workload).plan
        except (OSError, InvalidInputError) as error:
            raise self._refused([str(error)]) from error
        placements = {p.table: p for p in plan.placements}
        missing = [
            f"table {n!r} of the model is not in it" for n in names.values() if n not in placements
        ]
        if missing:
            raise self._refused(missing)
        options: dict[int, ShardingOption] = {}
        problems = []
        for key, name in names.items():
            match = _matching([o for o in listed if key_of(o) == key], placements[name])
            if match is None:
                problems.append(_unlisted(key, placements[name]))
            else:
                options[match.storage_hash()] = _placed(match, placements[name])
        if problems:
            raise self._refused(problems)
        self._enumerator.populate_estimates(list(options.values()))
        return options

    def plan_context_hash(self) -> str | None:
        """The context hash of the plan, if it was given."""
        return self._context_hash

    def get_plan_id(self) -> str:
        """The path of the file, which TorchRec logs."""
        return str(self._path)

    def _refused(self, lines: list[str]) -> ShardPlannerError:
        message = "\n".join([f"the plan {self._path} cannot be loaded:", *lines])
        return ShardPlannerError(message, PlannerErrorType.PLAN_LOADING_FAILED)


def _matching(options: list[ShardingOption], placed: TablePlacement) -> ShardingOption | None:
    for option in options:
        same = (option.sharding_type, option.compute_kernel) == (
            str(placed.sharding_type),
            str(placed.kernel),
        )
        ratio = placed.cache_load_factor_ratio
        if same and (ratio is None or option.cache_load_factor == ratio):
            return option
    return None


def _placed(option: ShardingOption, placed: TablePlacement) -> ShardingOption:
    made = copy.copy(option)
    made.shards = torchrec_shards(placed)
    return made


def _unlisted(key: Key, placed: TablePlacement) -> str:
    ratio = placed.cache_load_factor_ratio
    cache = "" if ratio is None else f" with cache_params=CacheParams(load_factor={ratio})"
    return (
        f"table {key[1]!r} of module {key[0]!r}: TorchRec does not list {placed.sharding_type} "
        f"with {placed.kernel}{cache}; name it in the constraints of that table"
    )
