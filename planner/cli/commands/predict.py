"""``shardplan predict``: one operation at a time, for anyone's measurements."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import click

from costmodels import topology
from planner import io
from planner.cli import spec
from planner.cli.console import remark, warn, write_or_print
from planner.cli.output import check_output
from planner.predict import operations


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


class TableFlags(spec.Flags):
    """The system, and where to write.

    Attributes:
        system: System, by name or file; see 'shardplan systems'.
        output: Write the CSV to this file.  [default: stdout]
    """

    system: Annotated[str, spec.SYSTEM, "NAME|FILE"]
    output: spec.Output = None


@spec.command("All-to-all, all-reduce, all-gather, reduce-scatter.", command)
def collective(file: Path, flags: TableFlags) -> None:
    """Predict collectives of balanced messages.

    Columns: collective (all_to_all, all_reduce, all_gather, reduce_scatter), size_bytes as
    nccl-tests states it, and two of nodes, gpus_per_node and ranks.
    """

    def sized(gpus: int, per_host: int) -> topology.Topology:
        return io.load_system(flags.system, gpus=gpus, gpus_per_host=per_host)

    table = _read(file, flags, ("collective", "size_bytes"), ("nodes", "gpus_per_node", "ranks"))
    found, remarks = operations.predict_collectives(table, sized)
    show(table, found, flags.output)
    warn(remarks)


@spec.command("Embedding lookups, forward and backward.", command)
def lookup(file: Path, flags: TableFlags) -> None:
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
    table = _read(file, flags, operations.LOOKUP_COLUMNS, operations.LOOKUP_OPTIONAL)
    found = operations.predict_lookups(table, io.load_smallest(flags.system))
    show(table, found, flags.output)


@spec.command("Matrix products of the dense part.", command)
def dense(file: Path, flags: TableFlags) -> None:
    """Predict matrix products M x K by K x N on one device.

    Columns: M, K, N. Optional: batch (number of products at once; 1) and dtype (fp32, tf32, fp16,
    bf16, fp8). Without dtype every product is taken as fp32, which is slower than tf32 on most
    devices.
    """
    table = _read(file, flags, operations.DENSE_COLUMNS, operations.DENSE_OPTIONAL)
    if "dtype" not in table.columns:
        remark("there is no column dtype: every product is taken as fp32")
    found = operations.predict_products(table, io.load_smallest(flags.system))
    show(table, found, flags.output)


def _read(
    file: Path, flags: TableFlags, columns: tuple[str, ...], optional: tuple[str, ...]
) -> "operations.CsvRows":
    """The rows of a file, once it is sure that the answer can be written."""
    check_output(flags.output, (file, Path(flags.system)))
    return operations.read_table(file, columns, optional)


def show(
    table: "operations.CsvRows", found: "Sequence[operations.Answer]", output: Path | None
) -> None:
    """Write the predictions as CSV, or print them as CSV or JSON."""
    text, data = operations.predicted_text(table, found), operations.answers(table, found)
    write_or_print(text, data, output, f"{len(found)} rows")
