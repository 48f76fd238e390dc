"""Placing pieces one by one, each on the rank or host with the least cost so far that has room."""

from __future__ import annotations

import numpy as np

from costmodels.datatypes import FloatArray, IntArray
from costmodels.sharding import Spread
from planner.space.evaluation import FITTING, SearchSpace


class ScalarPlacer:
    """Places shards one after the other, each where the sum of costs so far is least.

    Only ranks (or hosts) with room for the shard count. If none has room, the shard goes where most
    memory is left.

    Attributes:
        cost: ``[W]`` sum of the costs of the shards on each rank.
        room: ``[W]`` bytes of device memory left.
        host_room: ``[hosts]`` bytes of host memory left.
    """

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self.cost: FloatArray = np.zeros(space.world_size)
        self.room: FloatArray = space.pipeline.device_limits * FITTING
        self.host_room: FloatArray = space.pipeline.host_limits * FITTING
        self._device = space.pool_device
        self._host = space.pool_host

    def largest_bytes(self, table: int, option: int) -> float:
        """Device bytes of the largest shard of an option."""
        return float(self._device[self.space.rows[int(self.space.first[table]) + option]].max())

    def place(self, table: int, index: int, cost: FloatArray) -> tuple[int, ...]:
        """Place every piece of a table.

        Args:
            table: its position in the workload.
            index: which of its options.
            cost: of each piece; for uniform options of the shard on each rank, ``[W]``.

        Returns:
            The rank (or host) of each piece; nothing for uniform options.
        """
        space = self.space
        flat = int(space.first[table]) + index
        option, rows = space.options[flat], space.rows[flat]
        device, host = self._device[rows], self._host[rows]
        if option.is_uniform:
            self.cost = self.cost + cost
            self.room = self.room - device
            self.host_room = self.host_room - host.reshape(space.num_hosts, -1).sum(axis=-1)
            return ()
        if option.spread is Spread.HOSTS:
            return tuple(
                self._to_host(table, device[i], float(host[i].sum()), float(cost[i]))
                for i in range(option.num_pieces)
            )
        among: IntArray | None = None
        places: list[int] = []
        for i in range(option.num_pieces):
            places.append(
                self._to_rank(table, float(device[i]), float(host[i]), float(cost[i]), among)
            )
            if option.keeps_pieces_on_host and i == 0:
                among = space.host_ranks([places[0] // space.local_world_size])
            if option.keeps_pieces_apart:
                among = np.arange(space.world_size) if among is None else among
                rest = among[among != places[-1]]
                among = rest if space.may_use_rank[table][rest].any() else among
        return tuple(places)

    def _to_rank(
        self, table: int, device: float, host: float, cost: float, among: IntArray | None
    ) -> int:
        """Put a piece on a rank.

        Args:
            table: whose piece it is; only its allowed ranks count.
            device: device bytes of the piece.
            host: host bytes of the piece.
            cost: of the piece.
            among: ranks to choose from; None for all.
        """
        space = self.space
        allowed = np.flatnonzero(space.may_use_rank[table])
        if among is not None:
            allowed = np.intersect1d(allowed, among)
        hosts = allowed // space.local_world_size
        roomy = (self.room[allowed] >= device) & (self.host_room[hosts] >= host)
        ranks = allowed[roomy] if roomy.any() else allowed
        order = np.lexsort((ranks, -self.room[ranks], self.cost[ranks]))
        rank = int(ranks[order[0]] if roomy.any() else ranks[np.argmax(self.room[ranks])])
        self.cost[rank] += cost
        self.room[rank] -= device
        self.host_room[rank // space.local_world_size] -= host
        return rank

    def _to_host(self, table: int, device: FloatArray, host_bytes: float, cost: float) -> int:
        """Put a piece on a host.

        Args:
            table: whose piece it is; only its allowed hosts count.
            device: ``[L]`` device bytes of the piece on each rank of the host.
            host_bytes: host bytes of the piece.
            cost: of the piece on each of these ranks.
        """
        space = self.space
        shape = (space.num_hosts, space.local_world_size)
        allowed = np.flatnonzero(space.may_use_host[table])
        room = (self.room.reshape(shape) - device).min(axis=-1)[allowed]
        roomy = (room >= 0) & (self.host_room[allowed] >= host_bytes)
        loads = self.cost.reshape(shape).max(axis=-1)[allowed]
        at = int(np.argmin(np.where(roomy, loads, np.inf))) if roomy.any() else int(np.argmax(room))
        host = int(allowed[at])
        ranks = space.host_ranks([host])
        self.cost[ranks] += cost
        self.room[ranks] -= device
        self.host_room[host] -= host_bytes
        return host
