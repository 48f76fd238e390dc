"""``shardplan import``: other tools' files into ours."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from planner.cli import console
from planner.cli import flags as spec
from planner.cli.types import FILE, MAX_RANKS, File, Text, ValueKind, count, quantity
from planner.support.text import counted

if TYPE_CHECKING:
    from costmodels.workload import Workload
    from planner.io.importers.base import Imported


COUNT = click.IntRange(min=1, max=MAX_RANKS)
Ranks = Annotated[int | None, ValueKind(COUNT)]
COLLECTIVES = ("all_to_all", "all_gather", "reduce_scatter", "all_reduce")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportFlags(spec.Flags):
    """The flags of every import of a workload; None for flags that were not given."""

    output: File = spec.option("File to write.  [default: stdout]", "-o --output")
    name: Text = spec.option("Name of the workload.  [default: the file's]", metavar="NAME")
    batch_size: Annotated[int | None, ValueKind(count(100_000_000))] = spec.option(
        "Samples per rank.", "--batch-size --batch"
    )


def shape_of(
    context: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, tuple[int, int]]:
    """The shapes of all ``--shape NAME=ROWSxCOLUMNS``, by table."""
    del context
    shapes = {}
    for value in values:
        name, _, text = value.rpartition("=")
        rows, _, columns = text.replace("_", "").partition("x")
        digits = rows.isascii() and rows.isdigit() and columns.isascii() and columns.isdigit()
        if not name or not digits or len(rows) > 15 or len(columns) > 6:
            message = f"{value!r} is not NAME=ROWSxCOLUMNS, such as user=1000000x64"
            raise click.BadParameter(message, param=param)
        shapes[name] = (int(rows), int(columns))
    return shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleFlags(spec.Flags):
    """What the flags of what reads a model from its Python code say."""

    device: Annotated[str, ValueKind(click.Choice(("cuda", "cpu")))] = spec.option(
        "Device of the job; it decides which sharding types are possible.", default="cuda"
    )
    inputs: Text = spec.option(
        "Function that returns the arguments of the model's forward for a batch size, to trace the "
        "dense part.",
        metavar="PKG:FUNC",
    )
    autocast: Annotated[str | None, ValueKind(click.Choice(("bf16", "fp16")))] = spec.option(
        "Type of torch.autocast while the dense part is traced.  [default: none]"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFlags(spec.Flags):
    """What the flags say about the ranks that a log of collectives comes from."""

    collective: Annotated[str | None, ValueKind(click.Choice(COLLECTIVES))] = spec.option(
        "Which collective was timed.  [default: as the log says]"
    )
    nodes: Ranks = spec.option("Number of hosts.  [default: as the log says]")
    gpus_per_node: Ranks = spec.option("Ranks per host.  [default: as the log says]")
    domain_gpus: Ranks = spec.option("Ranks in a scale-up domain.  [default: one host's]")
    nic: Annotated[float | None, ValueKind(quantity("bytes_per_s", positive=True), "RATE")] = (
        spec.option("Nominal rate of the network per GPU and direction, such as '50 GB/s'.")
    )


@click.group(cls=spec.StrictGroup, short_help="Turn files of other tools into files of ours.")
def command() -> None:
    """Turn files of other tools into files that the other commands read.

    Examples:
      shardplan import tables my_model.yaml --list tables.csv    columns name, rows, dim, pooling
      shardplan import tables my_model.yaml --tables 300         made-up tables, to try sizes
      shardplan import collectives all_reduce.log alltoall.json -o my_curves.csv
      shardplan import collectives param.log --gpus-per-node 8 --nodes 2 --nic '50 GB/s'
      shardplan import torchrec plan.json -o my_model.yaml
      shardplan import module my_package.my_model:build -o my_model.yaml --batch-size 8192
      shardplan import module my_package.gpt:build --inputs my_package.gpt:batch --batch-size 8
      shardplan import dlrm -o dlrm.yaml -- python dlrm_main.py --embedding_dim 128 ...
      shardplan import hugectr dcn.json -o dcn.yaml --plan dcn_plan.json
      shardplan import fbgemm tbe_config.json -o tbe.yaml
    """


@command.command("tables", short_help="A list of tables; or an example to edit.")
@click.argument("path", type=FILE, default="workload.yaml")
@click.option(
    "--list", "listed", type=FILE, metavar="FILE",
    help="Take the tables from a list: name, rows, dim, pooling, ...",
)  # fmt: skip
@click.option("--dim", type=count(16_384), help="Embedding dimension where the list has none.")
@click.option(
    "--tables",
    "num_tables",
    type=count(100_000),
    metavar="N",
    help="Make up N tables, to overwrite.",
)
@spec.output_options
@click.pass_obj
def tables(
    settings: console.Settings,
    *,
    path: Path,
    listed: Path | None,
    dim: int | None,
    num_tables: int | None,
) -> int:
    """Write a workload file to edit; PATH is workload.yaml unless given.

    Without --list and --tables, the file is an example that explains every key of training and
    tables. In any case it is a complete, valid workload: you can plan it as it is, and then change
    it. An existing file is never overwritten.

    The list is CSV (commas, semicolons or tabs) with the columns name, rows and dim; it may have
    pooling (mean indices per sample), features, zipf_exponent, dtype, count and others, under their
    usual names. FuxiCTR's feature_map.json, NVIDIA's feature_spec.yaml and TorchEasyRec's
    configurations are read, too. What a list cannot say, such as batch size and dense layers, is
    assumed, and the file marks each such line.
    """
    if listed is not None and num_tables is not None:
        message = "--list and --tables exclude each other; give one"
        raise spec.usage(message)
    if dim is not None and listed is None:
        message = "--dim is for the tables of --list; give both"
        raise spec.usage(message)
    warnings = _write(path, listed=listed, tables=num_tables, dim=dim)
    if settings.json:
        console.write_json(
            {"written": str(path)} | ({"warnings": list(warnings)} if warnings else {})
        )
        return 0
    console.say(f"Wrote {console.shown_paths((path,))}")
    console.warn(settings, warnings)
    console.remark(
        settings, f"next: shardplan plan {console.typed(path)} --system h100_sxm --gpus 8 -o run1"
    )
    return 0


def _write(
    path: Path, *, listed: Path | None = None, tables: int | None = None, dim: int | None = None
) -> tuple[str, ...]:
    """Write the commented workload, or one with the tables of a list, or with made-up tables.

    Returns:
        Warnings on what TorchRec cannot do with the tables.

    Raises:
        InvalidInputError: the path exists already or has the ending of a list, or the list breaks
            a rule.
    """
    from planner import io
    from planner.errors import InvalidInputError
    from planner.io.workload.starter import listed_text, placeholder_text
    from planner.io.workload.table_list import LIST_ENDINGS
    from planner.options.torchrec_rules import width_remarks
    from planner.support.files import write_text_atomic

    if path.exists():
        message = f"{path} exists; choose another name, it is not overwritten"
        raise InvalidInputError(message)
    if path.suffix.lower() in LIST_ENDINGS:
        message = (
            f"{path}: a workload whose name ends in {path.suffix} is read as a list of tables; "
            "name a .yaml file, and give a list with --list"
        )
        raise InvalidInputError(message)
    if listed is not None:
        text = listed_text(listed, path.stem, dim=dim)
    elif tables is not None:
        text = placeholder_text(tables, path.stem)
    else:
        text = io.read_template()
    write_text_atomic(path, text)
    return width_remarks(io.load_workload_file(path).workload)


@command.command("collectives", short_help="Logs of nccl-tests, rccl-tests and PARAM.")
@click.argument("logs", type=FILE, nargs=-1, required=True)
@click.option("-o", "--output", type=FILE, metavar="FILE", help="File to write.  [default: stdout]")
@click.option("--name", default="imported", show_default=True, help="Name of the set of curves.")
@spec.taking(LogFlags, "ranks")
@spec.output_options
@click.pass_obj
def collectives(
    settings: console.Settings,
    *,
    logs: tuple[Path, ...],
    output: Path | None,
    name: str,
    ranks: LogFlags,
) -> int:
    """Write measured curves of collectives from benchmark logs as CSV.

    To predict with the curves, name the file under collective_curves in a system file. Host names
    and environment variables in a log are not kept.
    """
    from costmodels.measured.curves import Collective
    from planner.cli.output import refuse_own_input
    from planner.io.system.collective_curves import LogShape, curves_text, read_logs, write_curves

    if output is not None:
        refuse_own_input([output], logs)
    shape = LogShape(
        collective=Collective(ranks.collective) if ranks.collective else None,
        nodes=ranks.nodes,
        gpus_per_node=ranks.gpus_per_node,
        domain_gpus=ranks.domain_gpus,
        network_bytes_per_s=ranks.nic or 0.0,
        set_name=name,
    )
    records = read_logs(logs, shape)
    if output is not None:
        write_curves(output, records)
    if settings.json:
        console.write_json(
            [
                {
                    "collective": r.curve.collective.value,
                    "ranks": r.curve.ranks,
                    "nodes": r.nodes,
                    "size_bytes": list(r.curve.size_bytes),
                    "time_s": list(r.curve.time_s),
                    "source": r.curve.source,
                }
                for r in records
            ]
        )
    elif output is None:
        console.write_data(curves_text(records))
    if output is not None:
        console.remark(
            settings, f"{len(records)} curves written to {console.shown_paths((output,))}"
        )
    return 0


@command.command("torchrec", short_help="A TorchRec plan, or a model's Python code.")
@click.argument("plan", type=FILE, metavar="PLAN|PKG:FUNC")
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    callback=shape_of,
    metavar="NAME=ROWSxCOLS",
    help="Shape of a table for which the plan lists no shards; repeatable.",
)
@spec.taking(ModuleFlags, "reading")
@spec.taking(ImportFlags)
@spec.output_options
@click.pass_obj
def torchrec(
    settings: console.Settings,
    *,
    plan: Path,
    shapes: dict[str, tuple[int, int]],
    reading: ModuleFlags,
    flags: ImportFlags,
) -> int:
    """Write a workload with the tables of a TorchRec plan (the JSON of ShardingPlan).

    Names, shapes and modules come from the plan. Features, pooling factors, index laws, data types
    and the dense part do not: they are assumed, and the file says so beside each. With PKG:FUNC in
    the place of a file, a model is read as 'import module' does it; only then can --device,
    --inputs and --autocast be given.
    """
    if ":" in str(plan) and not plan.exists():
        if shapes:
            message = "--shape is for a plan; a model, PKG:FUNC, says the shapes of its tables"
            raise spec.usage(message)
        imported = _read_module(str(plan), flags.batch_size, reading)
        return finish(settings, imported, flags)
    if reading.inputs is not None or reading.autocast is not None or spec.is_given("device"):
        message = (
            "--device, --inputs and --autocast are for a model, PKG:FUNC; a plan says neither "
            "what the model is made of nor where it runs"
        )
        raise spec.usage(message)
    from planner.io.importers.torchrec_plan import import_torchrec_plan

    imported = import_torchrec_plan(plan, shapes)
    return finish(settings, imported, flags, read=(plan,))


@command.command("module", short_help="Tables of a TorchRec model, from its Python code.")
@click.argument("factory", metavar="PKG:FUNC")
@spec.taking(ModuleFlags, "reading")
@spec.taking(ImportFlags)
@spec.output_options
@click.pass_obj
def module(
    settings: console.Settings, *, factory: str, reading: ModuleFlags, flags: ImportFlags
) -> int:
    """Write a workload with the tables of a model that a Python function builds.

    PKG:FUNC is called without arguments, with the meta device as torch's default, so that it
    allocates nothing. It returns the model, or the model and its ParameterConstraints by table
    name. This needs torch and torchrec.

    With --inputs, forward and backward pass of the dense part are traced on fake tensors, and the
    file lists its operators; repeated blocks are listed once. Such a model may have no tables.
    """
    imported = _read_module(factory, flags.batch_size, reading)
    return finish(settings, imported, flags)


def _read_module(factory: str, batch_size: int | None, reading: ModuleFlags) -> Imported:
    from planner.errors import InvalidInputError
    from planner.io.importers.base import DEFAULT_BATCH

    try:
        from planner.integrations.translate.module_factory import import_module
    except ImportError as error:
        message = f"reading a model needs torch and torchrec: {error}; 'shardplan check' tells more"
        raise InvalidInputError(message) from error
    return import_module(
        factory,
        batch_size=batch_size or DEFAULT_BATCH,
        device=reading.device,
        inputs=reading.inputs,
        autocast=reading.autocast,
    )


@command.command("dlrm", short_help="A command line of DLRM.")
@click.argument("words", metavar="-- COMMAND...", nargs=-1, type=click.UNPROCESSED, required=True)
@click.option("--gpus", type=COUNT, help="Number of ranks that share a global batch.")
@spec.taking(ImportFlags)
@spec.output_options
@click.pass_obj
def dlrm(
    settings: console.Settings, *, words: tuple[str, ...], gpus: int | None, flags: ImportFlags
) -> int:
    """Write the workload that a command line of DLRM trains.

    The command is dlrm_s_pytorch.py or torchrec_dlrm's dlrm_main.py. Paste it after '--', whole or
    only its flags. The batch of dlrm_s_pytorch.py is global: a launcher in the command, or --gpus,
    says how many ranks share it.
    """
    from planner.io.importers.dlrm import import_dlrm

    imported = import_dlrm(words, world_size=gpus)
    return finish(settings, imported, flags)


@command.command("hugectr", short_help="A HugeCTR configuration or plan file.")
@click.argument("file", type=FILE)
@click.option("--plan", type=FILE, metavar="FILE", help="File for the plan.")
@click.option(
    "--workload",
    type=FILE,
    metavar="FILE",
    help="The tables of a plan file, in the order of its numbers.",
)
@click.option(
    "--gpus-per-host", type=COUNT, help="GPUs per host, for a plan file.  [default: 8, or all]"
)
@spec.taking(ImportFlags)
@spec.output_options
@click.pass_obj
def hugectr(
    settings: console.Settings,
    *,
    file: Path,
    plan: Path | None,
    workload: Path | None,
    gpus_per_host: int | None,
    flags: ImportFlags,
) -> int:
    """Write the workload of a HugeCTR JSON configuration, and the plan that it implies.

    --plan writes a plan.json that 'shardplan estimate' can price: localized slots are placed whole
    on GPUs in turn, distributed slots are cut by rows. FILE may also be the plan file of an
    embedding collection. It names tables by number only, so it needs --workload, and --plan for the
    result.
    """
    from planner import io
    from planner.errors import InvalidInputError
    from planner.io.documents import read_json
    from planner.io.importers.hugectr import import_hugectr, import_hugectr_plan, is_plan

    if file.suffix.lower() == ".py":
        message = (
            f"{file}: is a Python script, which is not run; HugeCTR writes its JSON configuration "
            "with model.graph_to_json(graph_config_file='model.json'): import that file"
        )
        raise InvalidInputError(message)
    value = read_json(file)
    if not is_plan(value):
        if workload is not None:
            message = f"{file} is a configuration with its own tables; leave --workload out"
            raise InvalidInputError(message)
        if gpus_per_host is not None:
            message = (
                f"{file} is a configuration, whose solver names the GPUs of each host; leave "
                "--gpus-per-host out"
            )
            raise InvalidInputError(message)
        imported = import_hugectr(file, value)
        return finish(settings, imported, flags, read=(file,), plan=plan)
    if workload is None or plan is None:
        message = f"{file} is a plan: add --workload with its tables, and --plan for the result"
        raise InvalidInputError(message)
    tables = io.load_workload_file(workload).workload
    imported = import_hugectr_plan(file, tables, value, local_world_size=gpus_per_host)
    return finish(settings, imported, flags, read=(file, workload), plan=plan, only_plan=True)


@command.command("fbgemm", short_help="A TBE configuration of FBGEMM.")
@click.argument("file", type=FILE)
@spec.taking(ImportFlags)
@spec.output_options
@click.pass_obj
def fbgemm(settings: console.Settings, *, file: Path, flags: ImportFlags) -> int:
    """Write a workload from FBGEMM's TBE data configuration (JSON).

    The file has one configuration, a list of them, or an object of named ones. It gives tables,
    pooling factors and index laws; heavy hitters and the power law of the rest become one law.
    """
    from planner.io.importers.fbgemm import import_fbgemm

    imported = import_fbgemm(file)
    return finish(settings, imported, flags, read=(file,))


@command.command("param", short_help="A lookup benchmark of PARAM.")
@click.argument("file", type=FILE)
@spec.taking(ImportFlags)
@spec.output_options
@click.pass_obj
def param(settings: console.Settings, *, file: Path, flags: ImportFlags) -> int:
    """Write a workload from PARAM's SplitTableBatchedEmbeddingBagsCodegen configuration (JSON).

    'shardplan import collectives' reads the logs of PARAM's collectives.
    """
    from planner.io.importers.fbgemm import import_param

    imported = import_param(file)
    return finish(settings, imported, flags, read=(file,))


def finish(
    settings: console.Settings,
    imported: Imported,
    flags: ImportFlags,
    *,
    read: tuple[Path, ...] = (),
    plan: Path | None = None,
    only_plan: bool = False,
) -> int:
    """Write or print what was read, and say what had to be assumed.

    Raises:
        InvalidInputError: a file cannot hold some name, a folder cannot be written, or an output is
            one of the files in ``read``; nothing is written then.
    """
    from costmodels.units import format_bytes
    from planner.io.importers.base import imported_plan_text, imported_text
    from planner.support.files import write_texts_atomic

    imported, output = _changed(imported, flags.name, flags.batch_size), flags.output
    texts: dict[Path, str] = {}
    text = imported_text(imported)
    _check_outputs(output, plan, read)
    if plan is not None:
        texts[plan] = imported_plan_text(imported)
    if output is not None:
        texts[output] = text
    elif not settings.json and not only_plan:
        console.write_data(text)
    write_texts_atomic(texts)
    workload = imported.workload
    if settings.json:
        console.write_json(
            {
                "source": imported.source,
                "files": [str(path) for path in texts],
                "tables": len(workload.tables),
                "weight_bytes": workload.weight_bytes,
                "batch_size_per_rank": workload.batch_size_per_rank,
                "world_size": imported.world_size,
                "assumed": imported.assumed,
                "left_out": list(imported.unsaid),
            }
        )
    size = format_bytes(workload.weight_bytes) + _listed(workload)
    where = f"; written to {console.shown_paths(texts)}" if texts else ""
    assumed = ", ".join(imported.assumed) or "nothing"
    console.remark(
        settings,
        f"{counted(len(workload.tables), 'table')}, {size}, "
        f"{counted(workload.batch_size_per_rank, 'sample')} per rank, "
        f"from {imported.source}{where}; assumed: {assumed}",
    )
    for key, what in imported.assumed.items():
        console.remark(settings, f"  {key}: {what}")
    for what in imported.unsaid:
        console.remark(settings, f"  left out: {what}")
    return 0


def _check_outputs(output: Path | None, plan: Path | None, read: tuple[Path, ...]) -> None:
    """Refuse to overwrite a file that is read, or to write two outputs into one file.

    Raises:
        InvalidInputError: an output is such a file; the message names it.
    """
    from planner.cli.output import refuse_own_input
    from planner.errors import InvalidInputError

    refuse_own_input([path for path in (output, plan) if path is not None], read)
    if plan is not None and plan == output:
        message = f"{plan}: is named for both the workload and the plan; name two files"
        raise InvalidInputError(message)


def _listed(workload: Workload) -> str:
    traced = workload.dense.operators
    if traced is None:
        return ""
    return f", {len(traced.before_tables) + len(traced.after_tables)} kinds of operators"


def _changed(imported: Imported, name: str | None, batch_size: int | None) -> Imported:
    """The import with the name and the batch size that flags give."""
    workload, assumed = imported.workload, dict(imported.assumed)
    if name is not None:
        workload = replace(workload, name=name)
    if batch_size is not None and batch_size != workload.batch_size_per_rank:
        workload = replace(workload, batch_size_per_rank=batch_size)
    if batch_size is not None:
        assumed.pop("training.batch_size_per_rank", None)
    return replace(imported, workload=workload, assumed=assumed)
