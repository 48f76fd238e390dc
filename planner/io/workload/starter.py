"""Writes first workload files: a user's list of tables, or placeholders, and all other keys.

Every value that the user has not given has a comment that asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from costmodels import units
from costmodels.distribution.zipf import Zipf
from costmodels.workload import DataType, DenseArch, Feature, Interaction, Table, Workload
from planner.io.workload.feature_files import read_any_list
from planner.io.workload.table_list import DEFAULT_BATCH
from planner.io.workload.workload_file import workload_file_of
from planner.io.workload.workload_writer import workload_text

_DENSE: Final = DenseArch(
    num_dense_features=13,
    bottom_mlp=(512, 256, 128),
    top_mlp=(1024, 512, 256, 1),
    interaction=Interaction.CAT,
    dtype=DataType.BF16,
)
_RESERVED_BYTES: Final = 6 * units.GIB

_NOTES: Final = {
    "training.batch_size_per_rank": "samples per GPU and step: assumed, put yours",
    "training.optimizer": "assumed, put yours",
    "training.output_dtype": "of pooled embeddings on the wire: assumed, put yours",
    "training.gradient_dtype": "of dense gradients on the wire: assumed, put yours",
    "training.pipeline": "assumed, put yours",
    "training.index_bytes": "assumed, put yours",
    "dense": "layers: assumed, put yours, or leave the section out for embeddings only",
    "memory": "per GPU: framework, allocator, NCCL: assumed, put yours",
    "tables": "where the list names none: pooling_factor 1 and dtype fp32, assumed",
}

_MEDIAN_ROWS: Final = 3e5
_MEDIAN_POOLING: Final = 5.0
_DIMS: Final = (16, 32, 64, 128, 256)


def listed_text(source: Path, name: str, *, dim: int | None = None) -> str:
    """The tables of a list (whatever its file is called) as a workload file to edit.

    ``dim`` is the embedding dimension of tables for which the list has none.

    Raises:
        InvalidInputError: the list breaks rules; the message names every line that does.
    """
    document = read_any_list(source, dim=dim)
    workload = workload_file_of(document, is_list=True).workload
    is_said = workload.local_batch_size != DEFAULT_BATCH
    notes = {k: v for k, v in _NOTES.items() if not is_said or k != "training.batch_size_per_rank"}
    header = (
        f"Tables of {source.name}. Lines with 'assumed' are not from it; 'shardplan profile' finds",
        "how indices fall on rows, which is taken as uniform where a table has no distribution.",
    )
    return _text(replace(workload, name=name), header, notes)


def placeholder_text(num_tables: int, name: str) -> str:
    """A workload of made-up tables, the same at every call, to try sizes and to edit.

    Rows and pooling factors are log-normal (medians 300,000 and 5), dimensions are 16..256, and
    exponents of the Zipf law 0.6..1.3, as in the shipped ``synthetic_300``.
    """
    import numpy as np

    rng = np.random.default_rng(num_tables)
    rows = np.clip(_MEDIAN_ROWS * rng.lognormal(0.0, 2.0, num_tables), 1e3, 1e8).astype(int)
    dims = rng.choice(_DIMS, num_tables)
    pooling = np.clip(_MEDIAN_POOLING * rng.lognormal(0.0, 1.1, num_tables), 0.3, 200.0).round(1)
    exponents = rng.uniform(0.6, 1.3, num_tables).round(2)
    digits = len(str(num_tables - 1))
    tables = tuple(
        Table(
            name=f"table_{i:0{digits}d}",
            num_embeddings=int(rows[i]),
            embedding_dim=int(dims[i]),
            features=(Feature(name=f"table_{i:0{digits}d}", pooling_factor=float(pooling[i])),),
            distribution=Zipf(num_embeddings=int(rows[i]), exponent=float(exponents[i])),
        )
        for i in range(num_tables)
    )
    header = (
        f"{num_tables} made-up tables, one per line: overwrite them with yours. 'shardplan import",
        "tables --list tables.csv' writes this file from a list of your tables.",
    )
    notes = {key: text for key, text in _NOTES.items() if key != "tables"}
    return _text(Workload(name=name, tables=tables, local_batch_size=4096), header, notes)


def _text(workload: Workload, header: tuple[str, ...], notes: Mapping[str, str]) -> str:
    whole = replace(
        workload, dense=_DENSE, reserved_bytes=_RESERVED_BYTES, output_dtype=DataType.FP16
    )
    return workload_text(whole, header=header, notes=notes, law_is_known=False)
