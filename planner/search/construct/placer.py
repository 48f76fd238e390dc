"""Places the shards of given options: the largest first, each where it raises the pressure least.

The pressure of a rank is a sum of powers of its loads. It grows steeply as a load comes near what
it is measured against, so that the fullest loads decide where a shard goes, and the others break
ties.
"""

from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from costmodels.sharding import Spread
from planner.search.base import Record
from planner.search.common.linear import LinearModel
from planner.space.effort import placing_s
from planner.space.evaluation import FITTING, Assignment

MEMORY_WEIGHT: Final = 0.3
"""Weight of memory beside times in the pressure. It is below 1 because times should be balanced,
while memory only has to stay below its limit."""

POWERS: Final = (4, 16, 30)
"""Exponents of the pressure with which a choice of options is placed, once with each. Low ones
balance all loads of all ranks, high ones see the fullest load alone."""

_MOST_LOAD: Final = 1e8
"""Loads above this many times their target count as this many. Its 30th power, the largest
exponent, is a finite number."""


def pressure(loads: FloatArray, targets: FloatArray, power: float) -> FloatArray:
    """The pressure ``[...]`` of ranks: ``sum_c weight[c] (load[c] / target[c])^power``.

    Args:
        loads: ``[..., P + 2]`` of the ranks.
        targets: ``[P + 2]`` what each load is measured against, in its unit.
        power: the exponent.
    """
    share = np.minimum(np.abs(loads) / targets, _MOST_LOAD)
    weights = np.ones(loads.shape[-1])
    weights[-2:] = MEMORY_WEIGHT
    return np.asarray(share**power @ weights)


class Placer:
    """The loads of all ranks while shards are placed one after the other.

    Args:
        model: tangents and options.
        targets, power: of the pressure, which a shard should raise least.

    Attributes:
        loads: ``[W, P + 2]`` loads of all ranks so far.
    """

    def __init__(self, model: LinearModel, targets: FloatArray, power: float) -> None:
        """Begin with empty ranks."""
        self.model, self.space = model, model.space
        self._targets, self._power = targets, power
        self.loads: FloatArray = np.zeros((self.space.world_size, model.num_tangents + 2))
        pipeline = self.space.pipeline
        self._device_limits = pipeline.device_limits * FITTING
        self._host_limits = pipeline.host_limits * FITTING
        self._now = pressure(self.loads, targets, power)

    def add_pieces(
        self, table: int, rows: FloatArray, count: int = 1, among: BoolArray | None = None
    ) -> list[int]:
        """Put equal pieces on ranks (or hosts) with room, each where it raises the pressure least.

        If no place has room, only the places that would be overfull by the fewest bytes count.

        Args:
            table: whose pieces they are; only its allowed places count.
            rows: loads of a piece on the fastest device, ``[P + 2]`` on a rank, or ``[L, P + 2]``
                on the L ranks of a host.
            count: number of pieces.
            among: True for the ranks to choose from; None for all.

        Returns:
            The rank (or host) of each piece.
        """
        space, on_hosts = self.space, rows.ndim > 1
        shape = (space.num_hosts, space.local_world_size) if on_hosts else (space.world_size,)
        loads, now = self.loads.reshape(*shape, -1), self._now.reshape(shape)
        limits, pressed = self._device_limits.reshape(shape), np.empty(shape)
        rise, over = np.empty((2, len(loads)))
        allowed = (space.may_use_host if on_hosts else space.may_use_rank)[table]
        allowed = allowed if among is None else allowed & among
        alike = np.tile(rows, (space.num_hosts, 1)) if on_hosts else rows
        more = self.model.at(alike, slice(None))
        every = np.broadcast_to(more, self.loads.shape).reshape(loads.shape)
        places: list[int] = []
        looked_at = slice(None)
        for _ in range(count):
            new = loads[looked_at] + every[looked_at]
            pressed[looked_at] = pressure(new, self._targets, self._power)
            risen = pressed[looked_at] - now[looked_at]
            excess = np.maximum(new[..., -2] - limits[looked_at], 0.0)
            if on_hosts:
                risen, excess = risen.sum(axis=-1), excess.sum(axis=-1)
                held = new[..., -1].sum(axis=-1)
                excess += np.maximum(held - self._host_limits[looked_at], 0.0)
            elif rows[-1] > 0:
                held = self.loads[:, -1].reshape(space.num_hosts, -1).sum(axis=-1) + rows[-1]
                beside = np.maximum(held - self._host_limits, 0.0)
                excess += np.repeat(beside, space.local_world_size)
            rise[looked_at], over[looked_at] = risen, excess
            place = int(np.argmin(np.where(allowed & (over <= over[allowed].min()), rise, np.inf)))
            places.append(place)
            loads[place] += every[place]
            now[place] = pressed[place]
            if on_hosts or rows[-1] <= 0:  # nothing changes for the others
                looked_at = slice(place, place + 1)
        return places

    def add(self, table: int, index: int) -> tuple[int, ...]:
        """Place all pieces of an option of a table; returns the rank (or host) of each."""
        flat = int(self.space.first[table]) + index
        option = self.space.options[flat]
        if option.is_uniform:
            self.loads += self.model.at(self.model.option_rows(flat), slice(None))
            self._now = pressure(self.loads, self._targets, self._power)
            return ()
        on_ranks = option.spread is Spread.RANKS
        places: list[int] = []
        if option.keeps_pieces_on_host or (on_ranks and option.keeps_pieces_apart):
            free = np.ones(self.space.world_size, dtype=bool)
            for row in self.model.option_rows(flat):
                places += self.add_pieces(table, row, among=free)
                if option.keeps_pieces_on_host and len(places) == 1:
                    free[:] = False
                    free[self.space.host_ranks([places[0] // self.space.local_world_size])] = True
                rest = free.copy()
                rest[places[-1]] = False
                if option.keeps_pieces_apart and (self.space.may_use_rank[table] & rest).any():
                    free = rest
            return tuple(places)
        for run, count in self.space.runs(flat):
            places += sorted(self.add_pieces(table, self.model.columns[run], count))
        return tuple(places)


def place_options(model: LinearModel, choice: IntArray, power: float) -> Assignment:
    """Place one option per table, each piece where it raises the pressure least.

    Uniform options come first, then pieces on hosts, then pieces on ranks, of each the tables with
    the largest pieces first. If no rank had room for some piece, the plan does not fit into memory.

    Args:
        model: tangents and options.
        choice: ``[T]`` index of the option of each table.
        power: of the pressure.
    """
    space = model.space
    targets = model.targets(model.mean[space.first[:-1] + choice].sum(axis=0))
    placer = Placer(model, targets, power)

    def turn(table: int) -> tuple[bool, bool, float, int]:
        flat = int(space.first[table] + choice[table])
        if space.is_uniform[flat]:
            return False, False, 0.0, table
        share = model.option_rows(flat) / targets
        size = float(share[..., :-2].max() + MEMORY_WEIGHT * share[..., -2:].max())
        return True, not space.is_on_hosts[flat], -size, table

    places: list[tuple[int, ...]] = [()] * space.num_tables
    for table in sorted(range(space.num_tables), key=turn):
        places[table] = placer.add(table, int(choice[table]))
    return Assignment(options=tuple(int(i) for i in choice), places=tuple(places))


# ------------------ plans from options that are cheapest at sampled prices
#
# The options of a plan follow from a few numbers: what a second of each phase is worth, how large a
# piece may be, and what a byte costs. Each table takes its cheapest option at these prices, and a
# greedy rule places the pieces. The numbers are sampled log-uniformly at first, then around the
# best point so far (a (1 + 1) evolution strategy). So plans are found which are far from the
# solution of the bound, and to which no single change of a good plan leads.

_PRICE: Final = (0.2, 5.0)
"""Range of the price of a phase, as a factor on its slope in the objective."""
_PIECE: Final = (0.6, 1.6)
"""Range of the size from which on a piece is penalised, as a share of the phase's maximum in the
solution of the bound. A piece of size 1 alone takes as long as that maximum."""
_WEIGHT: Final = (1e-3, 10.0)
"""Range of the weight of that penalty."""
_BYTES: Final = (1e-3, 1.0)
"""Range of the price of filling all memory of one kind, as a share of the objective."""
_PRESSURE_POWER: Final = (3.0, 30.0)
"""Range of the exponent of the pressure by which pieces are placed."""
_STEEP: Final = 6
"""Exponent of the penalty on the size of pieces: pieces a little below the sampled size cost
little, those a little above it much."""
_MOST_PIECE: Final = 30.0
"""Pieces above this many times the sampled size count as this many, so that powers stay finite."""
_FIRST: Final = 12
"""Samples drawn from the whole ranges before any are drawn around the best point."""
_ANYWHERE: Final = 0.25
"""Share of the later samples that are drawn from the whole ranges. They can leave a poor best
point; the others improve a good one."""
_STEP: Final = 0.25
"""Standard deviation of the other samples around the best point, as a share of each range."""
_HOPELESS: Final = 1.03
"""Options are not placed if the objective would be above the best plan by this factor even with all
loads spread evenly. Placing takes far longer than this test."""
_CLOSE: Final = 1.12
"""Cycles may begin with plans within this factor of the best plan."""
_OVERFULL_S: Final = 1e6
"""What counts as the objective of plans that do not fit, and as much again if they need twice the
memory: more than that of any plan, so that samples go where less memory is needed."""


class PriceSearch:
    """Samples prices for the options of one model.

    A point is the logarithm of all sampled numbers.

    Args:
        model: tangents, and the cuts in use.
        allowed: ``[n]`` True for options to choose from.
        phases: ``[K']`` maxima of the phases in use in the solution of the bound.
        limits: device bytes and host bytes per rank.
        rng: draws all samples.
    """

    def __init__(
        self,
        model: LinearModel,
        allowed: BoolArray,
        phases: FloatArray,
        limits: FloatArray,
        rng: "np.random.Generator",
    ) -> None:
        """Work out what does not change from sample to sample."""
        self.model, self._rng = model, rng
        maxima = np.maximum(phases, 1e-6 * max(float(phases.max(initial=0.0)), 1e-30))
        slopes = model.slopes_of(maxima)
        self._value = float(slopes @ maxima)
        self._means = np.where(allowed[:, None], model.phase_maxima(model.mean) * slopes, np.inf)
        pieces = model.phase_maxima(model.largest)
        self._pieces = np.where(model.space.is_uniform[:, None], 0.0, pieces)
        self._shares = self._pieces / maxima
        self._bytes = model.mean[:, -2:] / limits
        ranges = [*([_PRICE] * len(slopes)), _PIECE, _WEIGHT, _BYTES, _BYTES, _PRESSURE_POWER]
        self._low, high = np.log(np.array(ranges)).T
        self._width = high - self._low
        self._best, self._best_value, self._count = self._low, np.inf, 0

    def sample(self) -> tuple[FloatArray, IntArray, float]:
        """Draw a point.

        Returns:
            The point, to be given back to :meth:`tell`; the index of the option of each table,
            ``[T]``; and the exponent of the pressure by which pieces are placed.
        """
        rng, size = self._rng, len(self._low)
        if self._count < _FIRST or rng.random() < _ANYWHERE:
            point = self._low + self._width * rng.random(size)
        else:
            moved = self._best + _STEP * self._width * rng.normal(size=size)
            point = np.clip(moved, self._low, self._low + self._width)
        self._count += 1
        *prices, piece, weight, device, host, power = np.exp(point).tolist()
        large = np.minimum(self._shares / piece, _MOST_PIECE) ** _STEEP
        penalty = weight * large.sum(axis=-1) / self.model.space.num_tables
        penalty += self._bytes @ np.array([device, host])
        cost = self._means @ np.array(prices) + penalty * self._value
        space = self.model.space
        return point, space.least_options(cost) - space.first[:-1], power

    def tell(self, point: FloatArray, value: float) -> None:
        """Say what value a point has led to; later samples are drawn around the best point."""
        if value < self._best_value:
            self._best, self._best_value = point, value

    def least(self, choice: IntArray) -> float:
        """What the objective would be if all loads were spread evenly over ranks.

        A phase still takes at least its largest piece.

        Args:
            choice: ``[T]`` index of the option of each table.
        """
        flats = self.model.space.first[:-1] + choice
        means = self.model.phase_maxima(self.model.mean[flats].sum(axis=0))
        return float(self.model.paths(np.maximum(means, self._pieces[flats].max(axis=0))).max())


def explore(prices: PriceSearch, record: Record, count: int) -> list[Assignment]:
    """Make plans from samples.

    Args:
        prices: gives the samples.
        record: is offered every plan.
        count: number of samples.

    Returns:
        The plans that are close to the best one; if there are none, the one that is least overfull,
        from which a cycle may reach plans that no change of a few tables leads to.
    """
    model = prices.model
    found: dict[Assignment, None] = {}
    overfull: tuple[float, Assignment] | None = None
    for _ in range(count):
        if record.stopped or record.proven:
            break
        point, choice, power = prices.sample()
        value = prices.least(choice)
        if value < record.value * _HOPELESS:
            record.evaluate.meter.spend(placing_s(model.space.num_tables, model.space.world_size))
            plan = place_options(model, choice, power)
            value = record.consider(plan, "prices")
            if value < record.value * _CLOSE:
                found[plan] = None
            elif np.isinf(value):
                value = _OVERFULL_S * (1.0 + record.evaluate.space.overfull_ratio(plan))
                if overfull is None or value < overfull[0]:
                    overfull = value, plan
        else:
            value *= _HOPELESS
        prices.tell(point, value)
    return list(found) or [plan for _, plan in filter(None, [overfull])]
