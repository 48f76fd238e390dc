"""Imports a command line of DLRM: tables, dense part and training of the model that it runs.

The flags are those of facebookresearch/dlrm, ``dlrm_s_pytorch.py`` and
``torchrec_dlrm/dlrm_main.py``. Variables that the same text sets (``export N=8;``) and whole-number
``$((N / 2))`` are filled in.
"""

from __future__ import annotations

import ast
import difflib
import itertools
import math
import operator
import re
import shlex
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from costmodels.workload import (
    DataType,
    DenseArch,
    DenseOptimizer,
    Interaction,
    Optimizer,
    Workload,
)
from planner.errors import refuse, refuse_any
from planner.io.documents import Document, read_yaml
from planner.io.importers.base import (
    MAX_IMPORTED_TABLES,
    MAX_RANKS,
    BatchSize,
    Columns,
    Imported,
    Rows,
    Size,
    assume,
    plain_table,
)
from planner.io.library import configs_folder
from planner.io.schemas import Loose, made, validate

_BOOLEANS: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
"""Words for a flag that is on or off; argparse's ``type=bool`` and torchx take them behind it."""
_SHELL_ENDS: Final = frozenset({"|", "||", "&", "&&", ";", ">", ">>", "2>&1", "2>", "<", "&>"})
_LAUNCH_COUNTS: Final = {
    "nproc_per_node": "local", "np": "world", "n": "world",
    "nnodes": "hosts", "nodes": "hosts", "npernode": "local", "ntasks": "world",
    "ntasks_per_node": "local", "num_trainers": "world", "num_processes": "world",
}  # fmt: skip
_ASSIGNED: Final = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(\S*)\s*")
_OPERATIONS: Final[dict[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_ARITHMETIC: Final = re.compile(r"\$\(\(([\w\s$+*/%(){}-]{1,200}?)\)\)(?!\))")
_JOB: Final = re.compile(r"([0-9]{1,6})x([0-9]{1,6})")


@dataclass(frozen=True, slots=True, kw_only=True)
class DlrmCommand:
    """One command line.

    Attributes:
        program: ``dlrm_s_pytorch.py`` or ``dlrm_main.py``.
        flags: for each name (without the dashes before it) its value; "" for a switch.
        world_size: number of ranks, if the launcher says it.
    """

    program: str
    flags: dict[str, str]
    world_size: int | None


PROGRAMS: Final = {
    program: (frozenset(flags["values"]), frozenset(flags["switches"]))
    for program, flags in read_yaml(configs_folder() / "imports" / "dlrm_flags.yaml").value.items()
}
"""The flags of each program: those that take a value, and switches."""


def parse_dlrm_command(words: Sequence[str]) -> DlrmCommand:
    """Read a whole command line, or only its flags; one quoted text is split as by a shell.

    Raises:
        InvalidInputError: quotes are not balanced, the program is neither of the two, or it does
            not have a flag.
    """
    words = _split(words)
    script = next((i for i, w in enumerate(words) if w.rsplit("/", 1)[-1] in PROGRAMS), None)
    if script is not None:
        program = words[script].rsplit("/", 1)[-1]
        before, after = words[:script], words[script + 1 :]
    else:
        # A launcher names another script, or there is none.
        program = _guess(words)
        every = set().union(*PROGRAMS[program])
        known = (i for i, w in enumerate(words) if w.startswith("--") and _name(w) in every)
        first = words.index("--") if "--" in words else next(known)
        first = 0 if words[0].startswith("--") else first
        before, after = words[:first], words[first:]
    flags = _flags_of(after[after[:1] == ["--"] :], program)
    return DlrmCommand(program=program, flags=flags, world_size=_world_size(before))


def _split(words: Sequence[str]) -> list[str]:
    text = _filled_in(words[0]) if len(words) == 1 else None
    try:
        split = shlex.split(text) if text is not None else list(words)
    except ValueError as error:
        refuse(f"the command line is not well formed: {error}; check its quotes")
    end = next((i for i, w in enumerate(split) if w in _SHELL_ENDS), len(split))
    kept = [w for w in split[:end] if w.strip() not in {"", "\\"}]
    if not kept:
        refuse("no command line; give one after '--', such as -- python dlrm_main.py ...")
    return kept


def _filled_in(text: str) -> str:
    """The last command of a text, with the variables that assignments before it set."""
    text, known = re.sub(r"\\\r?\n", " ", text).strip(), dict[str, str]()
    while assigned := re.match(rf"{_ASSIGNED.pattern}(?:[;\n]\s*)?", text):
        known[assigned[1]] = assigned[2].rstrip(";").strip("\"'")
        text = text[assigned.end() :].lstrip("; \n")

    def plain(word: str) -> str:
        return re.sub(r"[A-Za-z_]\w*", lambda name: known.get(name[0], name[0]), word)

    text = _ARITHMETIC.sub(lambda found: _computed(plain(found[1]), found[0]), text)
    return re.sub(r"\$\{?([A-Za-z_]\w*)\}?", lambda name: known.get(name[1], name[0]), text)


def _computed(expression: str, otherwise: str) -> str:
    """The value of whole-number arithmetic as a shell computes it; ``otherwise`` if it has none."""
    plain = re.sub(r"[${}\s]", "", expression)
    try:
        return str(_value(ast.parse(plain.replace("/", "//"), mode="eval").body))
    except (LookupError, SyntaxError, TypeError, ValueError, ArithmeticError, RecursionError):
        return otherwise


def _value(tree: Any) -> int:
    """The value of a number, or of an operation on two values."""
    if isinstance(tree, ast.BinOp):
        return int(_OPERATIONS[type(tree.op)](_value(tree.left), _value(tree.right)))
    return int(ast.literal_eval(tree))


def _guess(words: Iterable[str]) -> str:
    """The program whose flags these are."""
    names = [_name(w) for w in words if w.startswith("--")]
    score = {
        program: sum(name in values | switches for name in names)
        for program, (values, switches) in PROGRAMS.items()
    }
    best: str = max(score, key=lambda program: score[program])
    if not score[best]:
        refuse(
            "neither dlrm_s_pytorch.py nor dlrm_main.py is named, and none of the flags is one of "
            "theirs; paste the whole command line after '--'"
        )
    return best


def _name(word: str) -> str:
    return word.lstrip("-").split("=", 1)[0]


def _flags_of(words: Sequence[str], program: str) -> dict[str, str]:
    """The value of each flag; "" for a switch that is on."""
    values, switches = PROGRAMS[program]
    flags: dict[str, str] = {}
    problems: list[str] = []
    left = deque(words)
    while left:
        name, given, value = left.popleft().partition("=")
        follows = bool(left) and not left[0].startswith("--")
        if not name.startswith("--"):
            problems.append(
                f"value {name + given + value!r}: belongs to no flag; {program} takes flags only"
            )
            continue
        name = name[2:]
        if name in switches:
            follows = follows and left[0].lower() in _BOOLEANS
            value = value if given else left.popleft() if follows else "1"
            if value.lower() not in _BOOLEANS:
                problems.append(f"--{name}: takes no value but True or False, got {value!r}")
            elif _BOOLEANS[value.lower()]:
                flags[name] = ""
            continue
        if not given and follows:
            value = left.popleft()
        if name not in values:
            near = difflib.get_close_matches(name, values | switches, n=1)
            hint = f"; did you mean --{near[0]}?" if near else "; remove it"
            problems.append(f"--{name}: {program} has no such flag{hint}")
        elif given or follows:
            flags[name] = value
        else:
            problems.append(f"--{name}: needs a value")
    refuse_any([f"command line: {p}" for p in problems])
    return flags


def _world_size(words: list[str]) -> int | None:
    """The number of ranks of ``torchrun``, ``torchx`` (``-j HOSTSxRANKS``) or ``mpirun``."""
    found: dict[str, int] = {}
    for word, following in itertools.pairwise([*words, ""]):
        name = _name(word).replace("-", "_")
        if not word.startswith("-"):
            continue
        value = word.split("=", 1)[1] if "=" in word else following
        job = _JOB.fullmatch(value) if name == "j" else None
        if job is not None:
            found["hosts"], found["local"] = int(job[1]), int(job[2])
        elif name in _LAUNCH_COUNTS and value.isascii() and value.isdigit() and len(value) < 7:
            found[_LAUNCH_COUNTS[name]] = int(value)
    world = found.get("world") or found.get("local", 0) * found.get("hosts", 1)
    if world > MAX_RANKS:
        refuse(f"command line: {world:,} ranks: must be at most {MAX_RANKS:,}")
    return world or None


KAGGLE_ROWS: Final = (
    1460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5683, 8_351_593, 3194, 27,
    14_992, 5_461_306, 10, 5652, 2173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572,
)  # fmt: skip
"""Distinct values of the 26 features of the Criteo Kaggle data (facebookresearch/dlrm README)."""

MLPERF_HOT: Final = (
    3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1,
)  # fmt: skip
"""Indices per sample of MLPerf's multi-hot data (mlcommons/training, recommendation_v2)."""

NUM_CRITEO_TABLES: Final = 26
NUM_CRITEO_DENSE: Final = 13
_WHERE: Final = "command line"
_NO_LAW: Final = "uniform indices; the command line does not say the data's law"
_TRUE_WORDS: Final = ("true", "1", "yes")
_S_OPTIMIZERS: Final = {
    "sgd": (Optimizer.SGD, DenseOptimizer.SGD),
    "adagrad": (Optimizer.ADAGRAD, DenseOptimizer.ADAGRAD),
    "rwsadagrad": (Optimizer.ROWWISE_ADAGRAD, DenseOptimizer.ADAGRAD),
}
"""For each name the optimizer of the tables and that of the dense part. One optimizer trains both;
``rwsadagrad`` keeps one sum per row only for sparse gradients, that is for tables."""
_MAIN_MODULE: Final = "model.sparse_arch.embedding_bag_collection"
"""The tables of ``DLRMTrain(DLRM(...))``, as a plan names them."""


def _whole(text: Any) -> Any:
    is_number = isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 19
    return int(text) if is_number else text


def _numbers(separator: str) -> BeforeValidator:
    """Splits a text into whole numbers."""

    def split(text: Any) -> Any:
        parts = [_whole(part.strip()) for part in text.split(separator)]
        if not all(isinstance(part, int) for part in parts):
            refuse(f"must be whole numbers with {separator!r} between them")
        return parts

    return BeforeValidator(split)


Whole = BeforeValidator(_whole)
_NUMBERS = _numbers(",")
_DASHED = _numbers("-")


class _Flags(Loose):
    """The flags that are read, with the defaults of the program."""

    model_config = ConfigDict(alias_generator=lambda name: f"--{name}")


class _MainFlags(_Flags):
    embedding_dim: Annotated[Columns, Whole] = 64
    num_embeddings: Annotated[Rows, Whole] = 100_000
    num_embeddings_per_feature: Annotated[list[Rows], _NUMBERS] | None = None
    multi_hot_sizes: Annotated[list[Size], _NUMBERS] | None = None
    multi_hot_distribution_type: Literal["uniform", "pareto"] = "uniform"
    in_memory_binary_criteo_path: str | None = None
    synthetic_multi_hot_criteo_path: str | None = None
    interaction_type: Literal["original", "dcn", "projection"] = "original"
    dense_arch_layer_sizes: Annotated[list[Size], _NUMBERS] = Field(default=[512, 256, 64])
    over_arch_layer_sizes: Annotated[list[Size], _NUMBERS] = Field(default=[512, 512, 256, 1])
    dcn_num_layers: Annotated[int, Whole, Field(ge=1, le=1000)] = 3
    dcn_low_rank_dim: Annotated[Size, Whole] = 512
    batch_size: Annotated[BatchSize, Whole] = 32
    adagrad: str | None = None
    allow_tf32: str | None = None


class _SFlags(_Flags):
    model_config = ConfigDict(alias_generator=lambda name: f"--{name.replace('_', '-')}")

    arch_embedding_size: Annotated[list[Rows], _DASHED, Field(max_length=MAX_IMPORTED_TABLES)] = (
        Field(default=[4, 3, 2])
    )
    arch_sparse_feature_size: Annotated[Columns, Whole] = 2
    arch_mlp_bot: Annotated[list[Size], _DASHED, Field(min_length=2)] = Field(default=[4, 3, 2])
    arch_mlp_top: Annotated[list[Size], _DASHED] = Field(default=[4, 2, 1])
    arch_interaction_op: Literal["dot", "cat"] = "dot"
    arch_interaction_itself: str | None = None
    weighted_pooling: str = "None"
    data_generation: Literal["random", "synthetic", "dataset"] = "random"
    rand_data_dist: str = "uniform"
    data_set: str = "kaggle"
    max_ind_range: Literal["-1"] | Annotated[Rows, Whole] = "-1"
    num_indices_per_lookup: Annotated[Size, Whole] = 10
    num_indices_per_lookup_fixed: str = ""
    mini_batch_size: Annotated[BatchSize, Whole] = 1
    optimizer: Literal["sgd", "adagrad", "rwsadagrad"] = "sgd"


def import_dlrm(words: Sequence[str], *, world_size: int | None = None) -> Imported:
    """The model that a DLRM command line trains.

    Args:
        words: the command line, or its flags alone.
        world_size: number of ranks, to divide the global batch of ``dlrm_s_pytorch.py``; None for
            the number that the launcher on the command line says.

    Raises:
        InvalidInputError: a flag is unknown, a value is out of range, a workload cannot express how
            the tables are built, or ``world_size`` is given for a program with a batch per rank.
    """
    command = parse_dlrm_command(words)
    flags = {f"--{name}": value for name, value in command.flags.items()}
    document, assumed = Document(Path(_WHERE), flags, {}), dict[str, str]()
    if command.program == "dlrm_main.py":
        if world_size is not None:
            refuse(
                "--gpus divides the global batch of dlrm_s_pytorch.py; the batch of dlrm_main.py "
                "is per rank already, leave --gpus out"
            )
        main = validate(_MainFlags, document)
        workload = _main_workload(main, document, assumed)
        is_cut = main.interaction_type == "projection"
        left_out = "the two branches of the projection; counted as a dot interaction"
    else:
        own = validate(_SFlags, document)
        workload = _s_workload(own, document, assumed, world_size or command.world_size)
        is_cut = own.arch_interaction_itself is not None
        left_out = "products of vectors with themselves (--arch-interaction-itself)"
    return Imported(
        workload=workload,
        source=f"a command line of {command.program}",
        assumed=assumed,
        unsaid=(left_out,) if is_cut else (),
        law_is_known=_NO_LAW not in assumed.get("tables", ""),
        world_size=command.world_size,
    )


def _main_workload(flags: _MainFlags, document: Document, assumed: dict[str, str]) -> Workload:
    """``torchrec_dlrm``: 26 Criteo features, a batch per rank, exact optimizers."""
    dim = flags.embedding_dim
    rows = flags.num_embeddings_per_feature or [flags.num_embeddings] * NUM_CRITEO_TABLES
    hot = flags.multi_hot_sizes or [1] * NUM_CRITEO_TABLES
    if flags.synthetic_multi_hot_criteo_path is not None and flags.multi_hot_sizes is None:
        hot = list(MLPERF_HOT)
        what = (
            f"{sum(MLPERF_HOT)} indices per sample, those of MLPerf's multi-hot data; the command "
            "line names a folder of such data and no --multi_hot_sizes"
        )
        assume(assumed, "tables", what)
    for name, values in (("num_embeddings_per_feature", rows), ("multi_hot_sizes", hot)):
        if len(values) != NUM_CRITEO_TABLES:
            rule = f"must be {NUM_CRITEO_TABLES} numbers, one per feature, got {len(values)}"
            document.refuse((f"--{name}",), document.value[f"--{name}"], rule)
    _check_end(document, "--dense_arch_layer_sizes", flags.dense_arch_layer_sizes, dim)
    paths = flags.in_memory_binary_criteo_path, flags.synthetic_multi_hot_criteo_path
    if paths != (None, None) or flags.multi_hot_distribution_type == "pareto":
        assume(assumed, "tables", _NO_LAW)
    is_cross, is_adagrad = flags.interaction_type == "dcn", flags.adagrad is not None
    return made(
        _WHERE,
        lambda: Workload(
            name="torchrec_dlrm",
            tables=tuple(
                plain_table(f"t_cat_{i}", n, dim, [(f"cat_{i}", h)], module=_MAIN_MODULE)
                for i, (n, h) in enumerate(zip(rows, hot, strict=True))
            ),
            batch_size_per_rank=flags.batch_size,
            optimizer=Optimizer.ADAGRAD if is_adagrad else Optimizer.SGD,
            dense_optimizer=DenseOptimizer.ADAGRAD if is_adagrad else DenseOptimizer.SGD,
            dense=DenseArch(
                num_dense_features=NUM_CRITEO_DENSE,
                bottom_mlp=tuple(flags.dense_arch_layer_sizes),
                top_mlp=tuple(flags.over_arch_layer_sizes),
                interaction=Interaction.DCN if is_cross else Interaction.DOT,
                dcn_num_layers=flags.dcn_num_layers if is_cross else 0,
                dcn_low_rank_dim=flags.dcn_low_rank_dim if is_cross else 0,
                dtype=DataType.FP32 if flags.allow_tf32 is None else DataType.TF32,
            ),
        ),
    )


def _check_end(document: Document, flag: str, sizes: list[int], dim: int) -> None:
    if sizes[-1] != dim:
        rule = f"must end with the embedding dimension, {dim}"
        document.refuse((flag,), document.value.get(flag, sizes), rule)


def _s_workload(
    flags: _SFlags, document: Document, assumed: dict[str, str], world_size: int | None
) -> Workload:
    """``dlrm_s_pytorch.py``: a global batch; defaults are the program's own."""
    unable = {
        "--qr-flag": "tables are built from smaller ones, which a workload cannot say; leave the "
        "flag out for the plain tables",
        "--inference-only": "the program trains nothing, and a workload is a training step; leave "
        "the flag out for the model that it would train",
    }
    unable["--md-flag"] = unable["--qr-flag"]
    for name, why in unable.items():
        if name in document.value:
            refuse(f"{_WHERE}: {name}: {why}")
    is_random = flags.data_generation != "dataset"
    bottom, dim = flags.arch_mlp_bot, flags.arch_sparse_feature_size
    rows = _s_rows(flags, assumed, is_random=is_random)
    _check_end(document, "--arch-mlp-bot", bottom, dim)
    if (flags.data_generation, flags.rand_data_dist) != ("random", "uniform"):
        assume(assumed, "tables", _NO_LAW)
    is_weighted = flags.weighted_pooling != "None"
    optimizer, dense_optimizer = _S_OPTIMIZERS[flags.optimizer]
    batch, key = flags.mini_batch_size, "training.batch_size_per_rank"
    if world_size is None:
        assumed[key] = "the whole --mini-batch-size, for one rank; --gpus divides it"
    elif batch % world_size:
        assumed[key] = f"{batch} samples are no multiple of {world_size} ranks: rounded up"
    return made(
        _WHERE,
        lambda: Workload(
            name="dlrm",
            tables=tuple(
                plain_table(
                    f"emb_{i}",
                    n,
                    dim,
                    [(f"s_{i}", _indices_per_sample(flags, assumed, n) if is_random else 1.0)],
                    is_weighted=is_weighted,
                )
                for i, n in enumerate(rows)
            ),
            batch_size_per_rank=math.ceil(batch / (world_size or 1)),
            optimizer=optimizer,
            dense_optimizer=dense_optimizer,
            dense=DenseArch(
                num_dense_features=bottom[0] if is_random else NUM_CRITEO_DENSE,
                bottom_mlp=tuple(bottom[1:]),
                top_mlp=tuple(flags.arch_mlp_top),
                interaction=Interaction(flags.arch_interaction_op),
            ),
        ),
    )


def _s_rows(flags: _SFlags, assumed: dict[str, str], *, is_random: bool) -> list[int]:
    """Rows of each table: as given for random data, otherwise those of the named data set.

    As in the program, ``--max-ind-range`` limits only the rows of a data set.
    """
    if is_random:
        return flags.arch_embedding_size
    rows = list(KAGGLE_ROWS)
    if "arch_embedding_size" in flags.model_fields_set:
        rows = flags.arch_embedding_size
        assume(assumed, "tables", "rows of --arch-embedding-size; training takes the data's")
    elif flags.data_set != "kaggle":
        refuse(
            f"{_WHERE}: --data-set {flags.data_set}: its row counts are taken from the data; add "
            "--arch-embedding-size with them"
        )
    most = flags.max_ind_range
    return rows if most == "-1" else [min(n, most) for n in rows]


def _indices_per_sample(flags: _SFlags, assumed: dict[str, str], rows: int) -> float:
    """Mean indices per sample of one table of random data.

    The random generator draws max(1, round(r min(rows, n))) indices with r uniform in 0..1; the
    mean is n/2 + 1/(2 n). It then drops repeated indices, which is ignored here. The program takes
    every value of ``--num-indices-per-lookup-fixed`` except an empty one for true, even the word
    False (argparse ``type=bool``).
    """
    most, given = flags.num_indices_per_lookup, flags.num_indices_per_lookup_fixed
    if given:
        if given.lower() not in _TRUE_WORDS:
            flag = f"--num-indices-per-lookup-fixed={given}"
            said = f"{most} indices per lookup, for the program takes {flag} for true"
            assume(assumed, "tables", said)
        return float(most)
    bound = min(rows, most)
    return bound / 2 + 1 / (2 * bound)
