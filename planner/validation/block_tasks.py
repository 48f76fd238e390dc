"""Random models with transformer blocks above their tables, for ``validate torchrec``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.distribution.zipf import Zipf
from costmodels.workload import (
    DenseArch,
    Feature,
    Interaction,
    Pipeline,
    Pooling,
    Table,
    Workload,
)

_HEADS = (1, 2, 4)
"""Numbers of heads that are drawn."""
_HEAD_WIDTHS = (16, 24, 32)
"""Elements of a head that are drawn."""
_TABLE_BYTES = 1e8
"""A table has at most this many bytes of weights, so that a small machine can hold all tables."""
_MOST_WORK = 5e8
"""Multiply-adds of all blocks of a forward pass are at most about this many, so that a training
step takes well below a second."""
_LEAST_BATCH = 32
"""The batch is not halved below this: then there are fewer blocks instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Transformer blocks above the tables, of the same width as these.

    Attributes:
        layers: number of blocks.
        heads: heads of attention.
        ffn: inner width of the feed-forward networks.
        positions: positions per sample: one for the pooled vector of each table, or the length to
            which sequences are padded or cut.
    """

    layers: int
    heads: int
    ffn: int
    positions: int


def over_fields(seed: int) -> tuple[Workload, Blocks]:
    """A random model with attention between the pooled vectors of 4 to 12 tables."""
    rng = np.random.default_rng([seed, 15101])
    width, heads = _widths(rng)
    count, batch = int(rng.integers(4, 13)), int(rng.choice([256, 512, 1024, 2048]))
    tables = [
        _table(i, width, float(np.round(np.exp(rng.uniform(0.0, np.log(30.0))))), rng)
        for i in range(count)
    ]
    batch, blocks = _blocks(width, heads, count, batch, rng)
    return _workload(f"fields-{seed}", tables, batch, rng), blocks


def over_sequences(seed: int) -> tuple[Workload, Blocks]:
    """A random model with attention along histories, which 1 to 4 unpooled tables describe."""
    rng = np.random.default_rng([seed, 15107])
    width, heads = _widths(rng)
    mean, batch = int(rng.integers(8, 65)), int(rng.choice([64, 128, 256, 512]))
    tables = [
        _table(i, width, float(mean), rng, is_sequence=True) for i in range(int(rng.integers(1, 5)))
    ]
    positions = int(np.ceil(mean * rng.uniform(1.0, 1.4)))
    batch, blocks = _blocks(width, heads, positions, batch, rng)
    return _workload(f"sequences-{seed}", tables, batch, rng), blocks


def _widths(rng: np.random.Generator) -> tuple[int, int]:
    """A random width of all tables and blocks, and a number of heads that divides it."""
    heads = int(rng.choice(_HEADS))
    return heads * int(rng.choice(_HEAD_WIDTHS)), heads


def _table(
    number: int, width: int, length: float, rng: np.random.Generator, *, is_sequence: bool = False
) -> Table:
    """A random table.

    Args:
        number: its number, for names.
        width: columns.
        length: mean indices per sample.
        rng: random numbers.
        is_sequence: whether its vectors are not pooled.
    """
    rows = min(int(10 ** rng.uniform(2.5, 6.0)), int(_TABLE_BYTES / (4 * width)))
    exponent = 0.0 if rng.random() < 0.15 else float(np.round(rng.uniform(0.2, 1.4), 2))
    return Table(
        name=f"t{number}",
        num_embeddings=rows,
        embedding_dim=width,
        features=(Feature(name=f"f{number}", pooling_factor=length),),
        distribution=Zipf(
            num_embeddings=rows, exponent=exponent, scattered=bool(rng.random() < 0.6)
        ),
        pooling=Pooling.NONE if is_sequence else Pooling.SUM,
        module="embedding_collection" if is_sequence else "embedding_bag_collection",
    )


def _blocks(
    width: int, heads: int, positions: int, batch: int, rng: np.random.Generator
) -> tuple[int, Blocks]:
    """A batch size and one to four random blocks; less of both if a step would take too long.

    Args:
        width: elements of a position.
        heads: heads of attention.
        positions: positions per sample.
        batch: batch size that is wanted.
        rng: random numbers.
    """
    ffn, layers = width * int(rng.choice([1, 2, 4])), int(rng.integers(1, 5))
    sample = positions * (4 * width * width + 2 * width * ffn + 2 * width * positions)
    while batch > _LEAST_BATCH and batch * sample > _MOST_WORK:
        batch //= 2
    layers = min(layers, max(1, int(_MOST_WORK / (batch * sample))))
    return batch, Blocks(layers=layers, heads=heads, ffn=ffn, positions=positions)


def _workload(name: str, tables: list[Table], batch: int, rng: np.random.Generator) -> Workload:
    """The workload with these tables and small random MLPs."""
    return Workload(
        name=name,
        tables=tuple(tables),
        local_batch_size=batch,
        dense=DenseArch(
            num_dense_features=13,
            bottom_mlp=(int(rng.choice([16, 32])),),
            top_mlp=(int(rng.choice([16, 32, 64])), 1),
            interaction=Interaction.CAT,
        ),
        pipeline=Pipeline.NONE,
    )


BLOCK_TASKS: Final[dict[str, Callable[[int], tuple[Workload, Blocks]]]] = {
    "transformer": over_fields,
    "sequence": over_sequences,
}
"""The kinds of models, by the names that ``validate torchrec --models`` knows."""
