"""Hints of the user on what a TorchRec model does not say about its training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Final

from costmodels.distribution.base import AbstractIndexDistribution
from costmodels.workload import DataType, DenseArch, Pipeline
from planner.errors import InvalidInputError


@dataclass(frozen=True, kw_only=True)
class WorkloadHints:
    """What a model does not say about its training.

    ``distributions`` maps table names to index laws. Other tables get ``default_distribution``,
    called with their number of rows. The law of a virtual table has as many rows as ids are in use.
    ``dense`` replaces the dense part that is read from the model; without it, the dense part is
    traced with ``inputs``, a function of the batch size that makes the arguments of ``forward``
    (a tuple, a mapping of names, or the only argument; tensors may be on the meta device), or else
    that of the first DLRM in the model is read. ``reserved_bytes`` is device
    memory of each rank that is kept free for everything that the planner does not count.

    Raises:
        InvalidInputError: values have a wrong type, or the reserve is negative; the message names
            each of them.
    """

    name: str = "torchrec_model"
    distributions: Mapping[str, AbstractIndexDistribution] = field(default_factory=dict)
    default_distribution: Callable[[int], AbstractIndexDistribution] | None = None
    dense: DenseArch | None = None
    inputs: Callable[[int], Any] | None = None
    pipeline: Pipeline = Pipeline.SPARSE_DIST
    output_dtype: DataType | None = None
    reserved_bytes: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values of a wrong type, and a negative reserve."""
        kinds: tuple[tuple[str, Any, str], ...] = (
            ("name", str, "a text"),
            ("distributions", Mapping, "a dictionary of index distributions by table"),
            (
                "default_distribution",
                Callable | None,
                "a function of the number of rows, or None",
            ),
            ("dense", DenseArch | None, "a DenseArch or None"),
            ("inputs", Callable | None, "a function of the batch size, or None"),
            ("pipeline", Pipeline, "a Pipeline, such as Pipeline.SPARSE_DIST"),
            ("output_dtype", DataType | None, "a DataType, such as DataType.FP16, or None"),
            ("reserved_bytes", Real, "a number of bytes"),
        )
        problems = [
            f"hints: {name} must be {words}, got {getattr(self, name)!r:.80}"
            for name, kind, words in kinds
            if not isinstance(getattr(self, name), kind)
        ]
        if not problems:
            problems = [
                f"hints: the law of {table!r} must be an index distribution, got {law!r:.80}"
                for table, law in self.distributions.items()
                if not isinstance(law, AbstractIndexDistribution)
            ]
            if not 0 <= self.reserved_bytes < math.inf:
                message = f"hints: reserved_bytes must be 0 or more, got {self.reserved_bytes}"
                problems.append(message)
        if problems:
            raise InvalidInputError(problems)


NO_HINTS: Final = WorkloadHints()
