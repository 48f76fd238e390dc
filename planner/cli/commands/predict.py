"""``shardplan predict``: one operation at a time, for anyone's measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from planner import io
from planner.cli import flags as spec
from planner.cli.console import remark, warn, write_or_print
from planner.cli.output import check_output
from planner.cli.types import SYSTEM, Output

if TYPE_CHECKING:
    from costmodels.topology import Topology
    from planner.predict.operations import Answer, CsvRows


@click.group(short_help="Predict single operations, row by row of a CSV file.")
def command() -> None:
    """Append predicted times to the rows of a CSV file.

    The result has the columns predicted_us, low_us, high_us (a 90 % interval) and source: measured
    on this system, calibrated on a similar one, analytic (from link rates), or extrapolated to a
    shape or size that was not measured. A row that no model covers gets no time, and the column
    reason says why.

    Examples:
      shardplan predict collective nccl.csv --system h100_sxm
      shardplan predict collective nccl.csv --system my_box.yaml -o predicted.csv
      shardplan predict lookup tbe.csv --system h100_sxm
      shardplan predict dense gemm.csv --system a100_80gb_sxm
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFlags(spec.Flags):
    """The system, and where to write.

    Attributes:
        system: System, by name or file; see 'shardplan systems'.
        output: Write the CSV to this file.  [default: stdout]
    """

    system: Annotated[str, SYSTEM, "NAME|FILE"]
    output: Output = None


@spec.command("All-to-all, all-reduce, all-gather, reduce-scatter.", command)
def collective(file: Path, flags: TableFlags) -> int:
    """Predict collectives of balanced messages.

    Columns: collective (all_to_all, all_reduce, all_gather, reduce_scatter), size_bytes as
    nccl-tests states it, and two of nodes, gpus_per_node and ranks.
    """
    from planner import io
    from planner.predict.operations import predict_collectives

    def sized(gpus: int, per_host: int) -> Topology:
        return io.load_system(flags.system, gpus=gpus, gpus_per_host=per_host)

    table = _read(file, flags, ("collective", "size_bytes"), ("nodes", "gpus_per_node", "ranks"))
    found, remarks = predict_collectives(table, sized)
    code = show(table, found, flags.output)
    warn(remarks)
    return code


@spec.command("Embedding lookups, forward and backward.", command)
def lookup(file: Path, flags: TableFlags) -> int:
    """Predict table-batched embedding lookups on one device.

    Columns: phase (forward, backward, forward+backward; eval forward, before which the device is
    idle), rows_per_table, dim, and lookups_total or batch_per_table with pooling_factor.

    Optional: num_tables, location (hbm, uvm, uvm_caching), cache_load_factor, pooling (sum, mean,
    none), weight_dtype, output_dtype, optimizer (sgd), index_distribution ("uniform", "zipf 1.2",
    "power law alpha 1.05"), lookups_unique (distinct rows, if counted), kernel, and update.

    update says how the backward pass updates rows. deduplicated, the default: as FBGEMM does,
    indices are sorted, then each distinct row is updated once. deduplicated_without_sort: only the
    update kernel is timed. per_index: no sort, one atomic update for each index, as older kernels
    do.
    """
    from planner.predict.operations import LOOKUP_COLUMNS, LOOKUP_OPTIONAL, predict_lookups

    table = _read(file, flags, LOOKUP_COLUMNS, LOOKUP_OPTIONAL)
    found = predict_lookups(table, io.load_smallest(flags.system))
    return show(table, found, flags.output)


@spec.command("Matrix products of the dense part.", command)
def dense(file: Path, flags: TableFlags) -> int:
    """Predict matrix products M x K by K x N on one device.

    Columns: M, K, N. Optional: batch (number of products at once; 1) and dtype (fp32, tf32, fp16,
    bf16, fp8). Without dtype every product is taken as fp32, which is slower than tf32 on most
    devices.
    """
    from planner.predict.operations import DENSE_COLUMNS, DENSE_OPTIONAL, predict_products

    table = _read(file, flags, DENSE_COLUMNS, DENSE_OPTIONAL)
    if "dtype" not in table.columns:
        remark("there is no column dtype: every product is taken as fp32")
    found = predict_products(table, io.load_smallest(flags.system))
    return show(table, found, flags.output)


def _read(
    file: Path, flags: TableFlags, columns: tuple[str, ...], optional: tuple[str, ...]
) -> CsvRows:
    """The rows of a file, once it is sure that the answer can be written."""
    from planner.predict.operations import read_table

    check_output(flags.output, (file, Path(flags.system)))
    return read_table(file, columns, optional)


def show(table: CsvRows, found: Sequence[Answer], output: Path | None) -> int:
    """Write the predictions as CSV, or print them as CSV or JSON."""
    from planner.predict.operations import OWN_COLUMNS, Predicted, predicted_text

    data = []
    for row, p in zip(table.rows, found, strict=True):
        told: dict[str, object] = {k: cell for k, cell in row.items() if k not in OWN_COLUMNS}
        told |= dict.fromkeys(("predicted_s", "low_s", "high_s", "source"))
        if isinstance(p, Predicted):
            told |= {"predicted_s": p.time_s, "low_s": p.low_s, "high_s": p.high_s}
            data.append({**told, "source": p.basis.value})
        else:
            data.append({**told, "reason": p.reason})
    write_or_print(predicted_text(table, found), data, output, f"{len(found)} rows")
    return 0
