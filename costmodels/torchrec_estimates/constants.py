"""The constants of TorchRec's planner, in bytes, seconds and bytes per second.

All values are those of torchrec 1.8.0 (most of them in ``distributed/planner/constants.py``),
because its estimates are to be reproduced; none was chosen here.
"""

from __future__ import annotations

from typing import Final

from costmodels.units import GIB

HBM_BANDWIDTH_BYTES_PER_S: Final = 897.0 * GIB
"""Device memory, if the user gives no bandwidth (a V100's)."""
DEVICE_LINK_BANDWIDTH_BYTES_PER_S: Final = 32.0 * GIB
"""The link between a device and the host's memory."""
INTRA_HOST_BANDWIDTH_BYTES_PER_S: Final = 600.0 * GIB
"""The links between the ranks of a host."""
INTER_HOST_BANDWIDTH_BYTES_PER_S: Final = 12.5 * GIB
"""The links between hosts."""
HBM_CAPACITY_BYTES: Final = 32.0 * GIB
"""Device memory of each rank, if the user gives none."""
DDR_CAPACITY_BYTES: Final = 128.0 * GIB
"""Host memory of each rank (not of a host), if the user gives none."""

INDEX_BYTES: Final = 8
"""Bytes of an index."""
CACHE_LOAD_FACTOR: Final = 0.2
"""Share of a table's rows that are cached on the device, if the user gives none."""
MIN_COLUMN_WIDTH: Final = 128
"""Tables are cut into pieces of at least this many columns, unless a constraint allows fewer."""

MIN_LOOKUP_COLUMNS: Final = 32
"""A lookup of a piece takes as long as one of at least this many columns (``max(emb_dim, 32)``)."""

FULL_BLOCK_COLUMNS: Final = 128
"""From this many columns on, a kernel keeps all of its threads busy."""
HALF_BLOCK_COLUMNS: Final = 64
"""From this many columns on, it keeps half of them busy."""
HALF_BLOCK_PENALTY: Final = 1.15
"""Factor on the forward time of pieces with fewer columns than a full block."""
QUARTER_BLOCK_PENALTY: Final = 1.75
"""Factor on the forward time of pieces with fewer columns than half a block."""
BACKWARD_MULTIPLIER: Final = 2.0
"""Time of the backward over that of the forward lookup."""
WEIGHTED_KERNEL_MULTIPLIER: Final = 1.1
"""Further backward time of lookups with weights, over the forward time."""
BATCHED_COPY_FACTOR: Final = 2.455
"""How many times the bytes of gradients count that are copied to tables cut by rows."""
REPLICATED_UPDATE_FACTOR: Final = 9.22
"""How many times the bytes of a replicated table count for its update."""
DENSE_KERNEL_RATIO: Final = 0.5
"""Share of the bandwidth of device memory that the dense kernel reaches."""
HOST_KERNEL_RATIO: Final = 0.1
"""Share of its bandwidth that a kernel on host memory (UVM) reaches. This bandwidth is that of the
link, or with a cache a mix of link and device memory."""

RESERVED_RATIO: Final = 0.15
"""Share of device memory that tables may not fill (``HeuristicalStorageReservation``)."""
DENSE_COPIES: Final = 6
"""How many times the parameters of the dense part are kept (same class)."""
INPUT_COPIES: Final = 20
"""How many times the indices of a batch are kept (same class): ten copies of each of two batches in
flight."""
