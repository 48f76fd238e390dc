"""``shardplan import``: other tools' files into ours."""

import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import click

from costmodels.measured import curves
from costmodels.units import format_bytes
from planner import io
from planner.cli import console, spec
from planner.cli.output import refuse_own_input
from planner.errors import refuse
from planner.io import documents
from planner.io.importers import base
from planner.io.importers import dlrm as dlrm_words
from planner.io.importers import fbgemm as tbe
from planner.io.importers import hugectr as merlin
from planner.io.system import collective_curves
from planner.io.workload import starter, table_list
from planner.options import torchrec_rules
from planner.support.files import write_text_atomic, write_texts_atomic
from planner.support.text import counted

COLLECTIVES = ("all_to_all", "all_gather", "reduce_scatter", "all_reduce")


class ImportFlags(spec.Flags):
    """The flags of every import of a workload; None for flags that were not given.

    Attributes:
        output: File to write.  [default: stdout]
        name: Name of the workload.  [default: the file's]
        batch_size_per_rank: Samples per rank.
    """

    output: spec.Output = None
    name: Annotated[spec.Text, "NAME"] = None
    batch_size_per_rank: Annotated[spec.Batch, "--batch-size --batch"] = None


class LogFlags(spec.Flags):
    """What the flags say about the ranks that a log of collectives comes from.

    Attributes:
        collective: Which collective was timed.  [default: as the log says]
        nodes: Number of hosts.  [default: as the log says]
        gpus_per_node: Ranks per host.  [default: as the log says]
        domain_gpus: Ranks in a scale-up domain.  [default: one host's]
        network_bytes_per_s: Nominal rate of the network per GPU and direction, such as '50 GB/s'.
    """

    collective: Annotated[str | None, click.Choice(COLLECTIVES)] = None
    nodes: spec.Number = None
    gpus_per_node: spec.Number = None
    domain_gpus: spec.Number = None
    network_bytes_per_s: Annotated[
        float | None, spec.quantity("bytes_per_s", positive=True), "RATE", "--nic"
    ] = None


def _shape(value: str) -> tuple[str, tuple[int, int]]:
    """The table of ``NAME=ROWSxCOLUMNS``, and its shape."""
    found = re.fullmatch(r"(.+)=([0-9](?:_?[0-9]){0,14})x([0-9](?:_?[0-9]){0,5})", value)
    if found is None:
        refuse(f"{value!r} is not NAME=ROWSxCOLUMNS, such as user=1000000x64")
    return found[1], (int(found[2]), int(found[3]))


@click.group(short_help="Turn files of other tools into files of ours.")
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


@spec.command("A list of tables; or an example to edit.", command)
def tables(
    path: Path = spec.argument(default="workload.yaml"),
    listed: Annotated[spec.File, "--list"] = None,
    dim: Annotated[int | None, spec.count(16_384)] = None,
    num_tables: Annotated[spec.Tables, "--tables"] = None,
) -> None:
    """Write a workload file to edit; PATH is workload.yaml unless given.

    Without --list and --tables, the file is an example that explains every key of training and
    tables. In any case it is a complete, valid workload: you can plan it as it is, and then change
    it. An existing file is never overwritten.

    The list is CSV (commas, semicolons or tabs) with the columns name, rows and dim; it may have
    pooling (mean indices per sample), features, zipf_exponent, dtype, count and others, under their
    usual names. FuxiCTR's feature_map.json, NVIDIA's feature_spec.yaml and TorchEasyRec's
    configurations are read, too. What a list cannot say, such as batch size and dense layers, is
    assumed, and the file marks each such line.

    Args:
        listed: Take the tables from a list: name, rows, dim, pooling, ...
        dim: Embedding dimension where the list has none.
        num_tables: Make up N tables, to overwrite.
    """
    spec.refuse(listed and num_tables, "--list and --tables exclude each other; give one")
    spec.refuse(dim and not listed, "--dim is for the tables of --list; give both")

    spec.refuse(path.exists(), f"{path} exists; choose another name, it is not overwritten")
    spec.refuse(
        path.suffix.lower() in table_list.LIST_ENDINGS,
        f"{path}: a workload whose name ends in {path.suffix} is read as a list of tables; name a "
        ".yaml file, and give a list with --list",
    )
    if listed is not None:
        text = starter.listed_text(listed, path.stem, dim=dim)
    elif num_tables is not None:
        text = starter.placeholder_text(num_tables, path.stem)
    else:
        text = io.read_template()
    write_text_atomic(path, text)
    warnings = torchrec_rules.width_remarks(io.load_workload_file(path).workload)
    if not console.settings().json:
        console.say(f"Wrote {path}")
    console.tell({"written": str(path)}, (), warnings or None)
    if not console.settings().json:
        then = f"{console.typed(path)} --system h100_sxm --gpus 8 -o run1"
        console.remark(f"next: shardplan plan {then}")


@spec.command("Logs of nccl-tests, rccl-tests and PARAM.", command)
def collectives(
    ranks: LogFlags,
    logs: tuple[Path, ...],
    output: spec.Output = None,
    name: Annotated[str, click.STRING] = "imported",
) -> None:
    """Write measured curves of collectives from benchmark logs as CSV.

    To predict with the curves, name the file under collective_curves in a system file. Host names
    and environment variables in a log are not kept.

    Args:
        output: File to write.  [default: stdout]
        name: Name of the set of curves.
    """
    if output is not None:
        refuse_own_input([output], logs)
    said = {key: value for key, value in asdict(ranks).items() if value is not None}
    if ranks.collective is not None:
        said["collective"] = curves.Collective(ranks.collective)
    records = collective_curves.read_logs(logs, collective_curves.LogShape(**said, set_name=name))
    data = [{"nodes": r.nodes, **asdict(r.curve)} for r in records]
    what = f"{len(records)} curves"
    console.write_or_print(collective_curves.curves_text(records), data, output, what)


@spec.command("A TorchRec plan.", command)
def torchrec(
    plan: Path,
    flags: ImportFlags,
    shapes: Annotated[
        tuple[tuple[str, tuple[int, int]], ...],
        spec.Parsed("shape", _shape),
        "NAME=ROWSxCOLS",
        "--shape",
    ] = (),
) -> None:
    """Write a workload with the tables of a TorchRec plan (the JSON of ShardingPlan).

    Names, shapes and modules come from the plan. Features, pooling factors, index laws, data types
    and the dense part do not: they are assumed, and the file says so beside each. A model,
    PKG:FUNC, is read by 'import module'.

    Args:
        shapes: Shape of a table for which the plan lists no shards; repeatable.
    """
    if ":" in str(plan) and not plan.exists():
        refuse(f"{plan} is no file; 'shardplan import module' reads the model of a PKG:FUNC")
    finish(base.import_torchrec_plan(plan, dict(shapes)), flags, read=(plan,))


@spec.command("Tables of a TorchRec model, from its Python code.", command)
def module(
    flags: ImportFlags,
    factory: str = spec.argument(type=click.STRING, metavar="PKG:FUNC"),
    device: Annotated[str, click.Choice(("cuda", "cpu"))] = "cuda",
    inputs: Annotated[spec.Text, "PKG:FUNC"] = None,
    autocast: Annotated[str | None, click.Choice(("bf16", "fp16"))] = None,
) -> None:
    """Write a workload with the tables of a model that a Python function builds.

    PKG:FUNC is called without arguments, with the meta device as torch's default, so that it
    allocates nothing. It returns the model, or the model and its ParameterConstraints by table
    name. This needs torch and torchrec.

    With --inputs, forward and backward pass of the dense part are traced on fake tensors, and the
    file lists its operators; repeated blocks are listed once. Such a model may have no tables.

    Args:
        device: Device of the job; it decides which sharding types are possible.
        inputs: Function that returns the arguments of the model's forward for a batch size, to
            trace the dense part.
        autocast: Type of torch.autocast while the dense part is traced.  [default: none]
    """
    try:
        from planner.integrations.torchrec_workload import import_module
    except ImportError as error:
        refuse(f"reading a model needs torch and torchrec: {error}; 'shardplan check' tells more")
    imported = import_module(
        factory,
        batch_size=flags.batch_size_per_rank or base.DEFAULT_BATCH,
        device=device,
        inputs=inputs,
        autocast=autocast,
    )
    finish(imported, flags)


@spec.command("A command line of DLRM.", command)
def dlrm(
    flags: ImportFlags,
    words: tuple[str, ...] = spec.argument(
        metavar="-- COMMAND...", nargs=-1, type=click.UNPROCESSED, required=True
    ),
    gpus: spec.Number = None,
) -> None:
    """Write the workload that a command line of DLRM trains.

    The command is dlrm_s_pytorch.py or torchrec_dlrm's dlrm_main.py. Paste it after '--', whole or
    only its flags. The batch of dlrm_s_pytorch.py is global: a launcher in the command, or --gpus,
    says how many ranks share it.

    Args:
        gpus: Number of ranks that share a global batch.
    """
    finish(dlrm_words.import_dlrm(words, world_size=gpus), flags)


@spec.command("A HugeCTR configuration or plan file.", command)
def hugectr(
    file: Path,
    flags: ImportFlags,
    plan: spec.File = None,
    workload: spec.File = None,
    gpus_per_host: spec.Number = None,
) -> None:
    """Write the workload of a HugeCTR JSON configuration, and the plan that it implies.

    --plan writes a plan.json that 'shardplan estimate' can price: localized slots are placed whole
    on GPUs in turn, distributed slots are cut by rows. FILE may also be the plan file of an
    embedding collection. It names tables by number only, so it needs --workload, and --plan for the
    result.

    Args:
        plan: File for the plan.
        workload: The tables of a plan file, in the order of its numbers.
        gpus_per_host: GPUs per host, for a plan file.  [default: 8, or all]
    """
    if file.suffix.lower() == ".py":
        refuse(
            f"{file}: is a Python script, which is not run; HugeCTR writes its JSON configuration "
            "with model.graph_to_json(graph_config_file='model.json'): import that file"
        )
    value = documents.read_json(file)
    if not isinstance(value, list):
        for flag, given in (("--workload", workload), ("--gpus-per-host", gpus_per_host)):
            own = f"{file} is a configuration with tables and hosts of its own; leave {flag} out"
            spec.refuse(given is not None, own)
        finish(merlin.import_hugectr(file, value), flags, read=(file,), plan=plan)
        return
    if workload is None or plan is None:
        refuse(f"{file} is a plan: add --workload with its tables, and --plan for the result")
    tables = io.load_workload_file(workload).workload
    imported = merlin.import_hugectr_plan(file, tables, value, local_world_size=gpus_per_host)
    finish(imported, flags, read=(file, workload), plan=plan, only_plan=True)


@spec.command("A TBE configuration of FBGEMM.", command)
def fbgemm(file: Path, flags: ImportFlags) -> None:
    """Write a workload from FBGEMM's TBE data configuration (JSON).

    The file has one configuration, a list of them, or an object of named ones. It gives tables,
    pooling factors and index laws; heavy hitters and the power law of the rest become one law.
    """
    finish(tbe.import_fbgemm(file), flags, read=(file,))


@spec.command("A lookup benchmark of PARAM.", command)
def param(file: Path, flags: ImportFlags) -> None:
    """Write a workload from PARAM's SplitTableBatchedEmbeddingBagsCodegen configuration (JSON).

    'shardplan import collectives' reads the logs of PARAM's collectives.
    """
    finish(tbe.import_param(file), flags, read=(file,))


def finish(
    imported: "base.Imported",
    flags: ImportFlags,
    *,
    read: tuple[Path, ...] = (),
    plan: Path | None = None,
    only_plan: bool = False,
) -> None:
    """Write or print what was read, and say what had to be assumed.

    Raises:
        InvalidInputError: a file cannot hold some name, a folder cannot be written, or an output is
            one of the files in ``read`` or is named twice; nothing is written then.
    """
    given = {k: v for k, v in asdict(flags).items() if k != "output" and v is not None}
    assumed = {k: v for k, v in imported.assumed.items() if k.rpartition(".")[2] not in given}
    workload, output = replace(imported.workload, **given), flags.output
    imported = replace(imported, workload=workload, assumed=assumed)
    texts = {} if plan is None else {plan: base.imported_plan_text(imported)}
    text = base.imported_text(imported)
    refuse_own_input([path for path in (output, plan) if path is not None], read)
    if plan is not None and plan == output:
        refuse(f"{plan}: is named for both the workload and the plan; name two files")
    if output is not None:
        texts[output] = text
    write_texts_atomic(texts)
    if console.settings().json:
        told = {
            "source": imported.source,
            "files": [str(path) for path in texts],
            "tables": len(workload.tables),
            "weight_bytes": workload.weight_bytes,
            "batch_size_per_rank": workload.batch_size_per_rank,
            "world_size": imported.world_size,
            "assumed": assumed,
            "left_out": imported.unsaid,
        }
        console.write_json(told)
    elif output is None and not only_plan:
        console.write_data(text)
    where = f"; written to {console.shown_paths(texts)}" if texts else ""
    lines = (
        f"{counted(len(workload.tables), 'table')}, {format_bytes(workload.weight_bytes)}, "
        f"{counted(workload.batch_size_per_rank, 'sample')} per rank, from "
        f"{imported.source}{where}; assumed: {', '.join(assumed) or 'nothing'}",
        *(f"  {key}: {what}" for key, what in assumed.items()),
        *(f"  left out: {what}" for what in imported.unsaid),
    )
    console.remark("\n".join(lines))
