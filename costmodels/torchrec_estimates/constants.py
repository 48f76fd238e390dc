"""Constants of torchrec 1.8.0, ``distributed/planner/constants.py``, in SI units."""

from __future__ import annotations

from typing import Final

from costmodels.units import GIB

HBM_BANDWIDTH_BYTES_PER_S: Final = 897.0 * GIB
DEVICE_LINK_BANDWIDTH_BYTES_PER_S: Final = 32.0 * GIB
INTRA_HOST_BANDWIDTH_BYTES_PER_S: Final = 600.0 * GIB
INTER_HOST_BANDWIDTH_BYTES_PER_S: Final = 12.5 * GIB
HBM_CAPACITY_BYTES: Final = 32.0 * GIB
DDR_CAPACITY_BYTES: Final = 128.0 * GIB
"""Of each rank, not of the host."""

INDEX_BYTES: Final = 8
CACHE_LOAD_FACTOR: Final = 0.2
MIN_COLUMN_WIDTH: Final = 128
"""Columns of a table are cut no narrower than this unless a constraint says so."""

MIN_LOOKUP_COLUMNS: Final = 32
"""Lookups of column pieces are charged for at least so many columns (``max(emb_dim, 32)``)."""

FULL_BLOCK_COLUMNS: Final = 128
HALF_BLOCK_COLUMNS: Final = 64
HALF_BLOCK_PENALTY: Final = 1.15
QUARTER_BLOCK_PENALTY: Final = 1.75
BACKWARD_MULTIPLIER: Final = 2.0
WEIGHTED_KERNEL_MULTIPLIER: Final = 1.1
BATCHED_COPY_FACTOR: Final = 2.455
REPLICATED_UPDATE_FACTOR: Final = 9.22
DENSE_KERNEL_RATIO: Final = 0.5
HOST_KERNEL_RATIO: Final = 0.1
"""Share of the link, or of the mix of link and device memory, that the UVM kernels reach."""

RESERVED_RATIO: Final = 0.15
DENSE_COPIES: Final = 6
INPUT_COPIES: Final = 20
"""``HeuristicalStorageReservation``: two batches in flight with ten copies of the indices each."""
