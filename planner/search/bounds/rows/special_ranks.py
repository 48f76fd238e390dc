"""Rows about the rank that holds the largest piece of a table.

Means alone let a shard that is heavy in one phase be balanced by shards that are heavy in another
phase, although no rank has both. For a table t, let r be the rank with its largest piece. Further
variables ``q[o]`` are the number of pieces of option o on r. In every plan:

- the loads of r are below the maxima: its uniform options, that piece, and the other pieces on it;
- the mean over the other ranks is below the maxima too: all that is not on r, over W - 1;
- ``q[o] <= pieces[o] y[o]`` for each option, and ``q[o] >= y[o]`` for the options of t.

All phases share q. A rank that is full in one phase therefore has its part of the other phases too.
The rows of several tables may be in one program; they do not say whether their ranks are the same.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from costmodels.sharding import Spread
from planner.search.common.linear import LinearModel
from planner.search.common.milp import Rows

_TINY: Final = 1e-9
"""Loads up to this, in the unit of the program, are left out, because they trouble the solver. The
rows stay true without them."""
_NONE: Final = np.zeros(0, dtype=np.int64)
_EMPTY: Final = np.zeros(0)
"""Numbers of rows and variables, and coefficients, where there are no rows."""


class SpecialRanks:
    """Builds the rows of each table."""

    def __init__(self, model: LinearModel, uniform: BoolArray) -> None:
        """Count the pieces of each option that can be on one rank.

        Args:
            model: tangents and options.
            uniform: ``[n]`` True for options that load every rank; they have no pieces.
        """
        self._model, self._space, self._uniform = model, model.space, uniform
        options = self._space.options
        local = self._space.local_world_size
        self._pieces = np.array(
            [
                0 if u else r.size // (local if o.spread is Spread.HOSTS else 1)
                for o, u, r in zip(options, self._uniform, self._space.rows, strict=True)
            ],
            dtype=float,
        )

    @property
    def size(self) -> int:
        """Number of variables for each table: one per option."""
        return len(self._pieces)

    @property
    def upper(self) -> FloatArray:
        """``[size]`` the largest value of each variable: all pieces that can be on one rank."""
        return self._pieces

    def rows(self, table: int, first: int, phase: int, base: int, scale: float) -> Rows:
        """The rows of one table.

        Args:
            table: which table.
            first: position in the program of its first variable q.
            phase: position of the first z, the maxima of the phases in use.
            base: position of the first u, the least loads of uniform options.
            scale: how much of the objective is 1 in the program.
        """
        space, model = self._space, self._model
        own = np.arange(space.first[table], space.first[table + 1])
        own = own[~self._uniform[own]]
        if not len(own):
            return Rows(row=_NONE, column=_NONE, values=_EMPTY, lower=_EMPTY, upper=_EMPTY)
        least, most, total = (
            np.where(self._uniform[:, None], 0.0, loads / scale)
            for loads in (
                model.extreme(np.minimum),
                model.extreme(np.maximum),
                model.mean * space.world_size,
            )
        )
        largest = np.array([self._largest_piece(int(flat)) for flat in own]) / scale
        world = space.world_size
        parts = [self._counts(own, first)]
        for c in range(model.num_tangents):
            z, u = phase + model.phase_index[c], base + c
            on = np.flatnonzero(least[:, c] > _TINY)
            more = np.maximum(largest[:, c] - least[own, c], 0.0)
            parts.append(
                _row(
                    np.concatenate([first + on, own, [u, z]]),
                    np.concatenate([least[on, c], more, [1.0, -1.0]]),
                )
            )
            away, with_q = np.flatnonzero(total[:, c] > _TINY), np.flatnonzero(most[:, c] > 0)
            if world > 1:
                parts.append(
                    _row(
                        np.concatenate([away, first + with_q, [u, z]]),
                        np.concatenate(
                            [
                                total[away, c],
                                -np.maximum(most[with_q, c], _TINY),
                                [world - 1.0, 1.0 - world],
                            ]
                        ),
                    )
                )
        return Rows.stack(parts)

    def _counts(self, own: IntArray, first: int) -> Rows:
        """Rows ``q <= pieces y`` of all options and ``y <= q`` of the table's ``own`` options."""
        count = self.size
        every = np.arange(count)
        number = np.arange(len(own))
        return Rows(
            row=np.concatenate([every, every, count + number, count + number]),
            column=np.concatenate([first + every, every, own, first + own]),
            values=np.concatenate(
                [np.ones(count), -self._pieces, np.ones(len(own)), -np.ones(len(own))]
            ),
            lower=np.full(count + len(own), -math.inf),
            upper=np.zeros(count + len(own)),
        )

    def _largest_piece(self, flat: int) -> FloatArray:
        """``[P]`` loads of the shard of an option whose loads add up to most."""
        tangents = self._model.num_tangents
        rows = self._model.option_rows(flat)[..., :tangents].reshape(-1, tangents)
        return np.asarray(rows[int(np.argmax(rows.sum(axis=1)))])


def _row(column: IntArray, values: FloatArray) -> Rows:
    """One row ``values @ x <= 0``."""
    return Rows(
        row=np.zeros(len(column), dtype=np.int64),
        column=column,
        values=values,
        lower=np.array([-math.inf]),
        upper=np.zeros(1),
    )
