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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from costmodels.distribution.uniform import Uniform
from costmodels.workload import (
    DataType,
    DenseArch,
    DenseOptimizer,
    Feature,
    Interaction,
    Optimizer,
    Table,
    Workload,
)
from planner.errors import InvalidInputError
from planner.io.importers.base import (
    MAX_COLUMNS,
    MAX_IMPORTED_TABLES,
    MAX_ROWS,
    Imported,
    assume,
    make_workload,
)
from planner.io.schemas import show

MAX_RANKS: Final = 65_536


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_S_VALUES: Final = _words(
    """
    arch-sparse-feature-size arch-embedding-size arch-mlp-bot arch-mlp-top arch-interaction-op
    weighted-pooling activation-function loss-function loss-weights loss-threshold data-size
    num-batches data-generation rand-data-dist rand-data-min rand-data-max rand-data-mu
    rand-data-sigma data-trace-file data-set raw-data-file processed-data-file data-randomize
    data-trace-enable-padding max-ind-range data-sub-sample-rate num-indices-per-lookup
    num-indices-per-lookup-fixed num-workers mini-batch-size nepochs learning-rate
    print-precision numpy-rand-seed sync-dense-params optimizer quantize-mlp-with-bit
    quantize-emb-with-bit local_rank dist-backend print-freq test-freq test-mini-batch-size
    test-num-workers tensor-board-filename save-model load-model mlperf-acc-threshold
    mlperf-auc-threshold mlperf-grad-accum-iter lr-num-warmup-steps lr-decay-start-step
    lr-num-decay-steps md-threshold md-temperature qr-threshold qr-operation qr-collisions
    """
)
_S_SWITCHES: Final = _words(
    """
    arch-interaction-itself md-flag md-round-dims qr-flag round-targets memory-map
    dataset-multiprocessing inference-only save-onnx use-gpu print-time print-wall-time
    debug-mode enable-profiling plot-compute-graph mlperf-logging mlperf-bin-loader
    mlperf-bin-shuffle
    """
)
_MAIN_VALUES: Final = _words(
    """
    epochs batch_size test_batch_size limit_train_batches limit_val_batches limit_test_batches
    dataset_name num_embeddings num_embeddings_per_feature dense_arch_layer_sizes
    over_arch_layer_sizes embedding_dim interaction_branch1_layer_sizes
    interaction_branch2_layer_sizes dcn_num_layers dcn_low_rank_dim undersampling_rate seed
    in_memory_binary_criteo_path synthetic_multi_hot_criteo_path learning_rate eps
    validation_freq_within_epoch interaction_type multi_hot_sizes multi_hot_distribution_type
    lr_warmup_steps lr_decay_start lr_decay_steps
    """
)
_MAIN_SWITCHES: Final = _words(
    """
    drop_last_training_batch pin_memory mmap_mode shuffle_batches shuffle_training_set
    validation_auroc evaluate_on_epoch_end evaluate_on_training_end adagrad
    collect_multi_hot_freqs_stats print_lr allow_tf32 print_sharding_plan print_progress
    """
)
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
    "dlrm_s_pytorch.py": (_S_VALUES, _S_SWITCHES),
    "dlrm_main.py": (_MAIN_VALUES, _MAIN_SWITCHES),
}


def parse_dlrm_command(words: Sequence[str]) -> DlrmCommand:
    """Read a whole command line, or only its flags; one quoted text is split as by a shell.

    Raises:
        InvalidInputError: quotes are not balanced, the program is neither of the two, or it does
            not have a flag.
    """
    words = _split(words)
    script = next((i for i, w in enumerate(words) if w.rsplit("/", 1)[-1] in PROGRAMS), None)
    if script is None:
        program = _guess(words)
        after = words[_first_flag(words, PROGRAMS[program]) :]
        before = words[: len(words) - len(after)]
    else:
        program = words[script].rsplit("/", 1)[-1]
        before, after = words[:script], words[script + 1 :]
    values, switches = PROGRAMS[program]
    return DlrmCommand(
        program=program,
        flags=_flags_of(_without_separator(after), program, values, switches),
        world_size=_world_size(before),
    )


def _first_flag(words: Sequence[str], known: tuple[frozenset[str], frozenset[str]]) -> int:
    """Where the flags of the program begin, if a launcher names another script, or none."""
    if words[0].startswith("--"):
        return 0
    if "--" in words:
        return words.index("--")
    return next(
        i for i, w in enumerate(words) if w.startswith("--") and _name(w) in set().union(*known)
    )


def _split(words: Sequence[str]) -> list[str]:
    text = _filled_in(words[0]) if len(words) == 1 else None
    try:
        split = shlex.split(text) if text is not None else list(words)
    except ValueError as error:
        message = f"the command line is not well formed: {error}; check its quotes"
        raise InvalidInputError(message) from error
    end = next((i for i, w in enumerate(split) if w in _SHELL_ENDS), len(split))
    kept = [w for w in split[:end] if w.strip() not in {"", "\\"}]
    if not kept:
        message = "no command line; give one after '--', such as -- python dlrm_main.py ..."
        raise InvalidInputError(message)
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
    if not re.fullmatch(r"[0-9+*/%()-]{1,200}", plain) or "**" in plain or "//" in plain:
        return otherwise
    try:
        tree = ast.parse(plain.replace("/", "//"), mode="eval").body
        return str(_value(tree))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return otherwise


def _value(tree: ast.expr) -> int:
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int):
        return tree.value
    if isinstance(tree, ast.BinOp) and (operation := _OPERATIONS.get(type(tree.op))):
        return int(operation(_value(tree.left), _value(tree.right)))
    message = "no sum, product or quotient of whole numbers"
    raise ValueError(message)


def _guess(words: Iterable[str]) -> str:
    """The program whose flags these are."""
    names = [_name(w) for w in words if w.startswith("--")]
    score = {
        program: sum(name in values | switches for name in names)
        for program, (values, switches) in PROGRAMS.items()
    }
    best = max(score, key=lambda program: score[program])
    if not score[best]:
        message = (
            "neither dlrm_s_pytorch.py nor dlrm_main.py is named, and none of the flags is one of "
            "theirs; paste the whole command line after '--'"
        )
        raise InvalidInputError(message)
    return best


def _name(word: str) -> str:
    return word.lstrip("-").split("=", 1)[0]


def _without_separator(words: list[str]) -> list[str]:
    """The words without the ``--`` that launchers put between a script and its flags."""
    return words[1:] if words[:1] == ["--"] else words


def _flags_of(
    words: list[str], program: str, values: frozenset[str], switches: frozenset[str]
) -> dict[str, str]:
    flags: dict[str, str] = {}
    problems: list[str] = []
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        name = _name(word)
        if not word.startswith("--"):
            problems.append(f"value {word!r}: belongs to no flag; {program} takes flags only")
        elif name not in values | switches:
            near = difflib.get_close_matches(name, values | switches, n=1)
            hint = f"; did you mean --{near[0]}?" if near else "; remove it"
            problems.append(f"--{name}: {program} has no such flag{hint}")
            position += position < len(words) and not words[position].startswith("--")
        elif name in switches:
            follows = position < len(words) and words[position].lower() in _BOOLEANS
            given = word.split("=", 1)[1] if "=" in word else words[position] if follows else "1"
            position += follows and "=" not in word
            if given.lower() not in _BOOLEANS:
                problems.append(f"--{name}: takes no value but True or False, got {given!r}")
            elif _BOOLEANS[given.lower()]:
                flags[name] = ""
        elif "=" in word:
            flags[name] = word.split("=", 1)[1]
        elif position < len(words) and not words[position].startswith("--"):
            flags[name] = words[position]
            position += 1
        else:
            problems.append(f"--{name}: needs a value")
    if problems:
        raise InvalidInputError([f"command line: {p}" for p in problems])
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
        message = f"command line: {world:,} ranks: must be at most {MAX_RANKS:,}"
        raise InvalidInputError(message)
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
_DATA_PATHS: Final = ("in_memory_binary", "synthetic_multi_hot")
_WHERE: Final = "command line"
_NO_LAW: Final = "uniform indices; the command line does not say the data's law"
_MOST_SAMPLES: Final = 10**8
_TRUE_WORDS: Final = ("true", "1", "yes")
_S_DATA: Final = ("random", "synthetic", "dataset")
_S_OPTIMIZERS: Final = {
    "sgd": (Optimizer.SGD, DenseOptimizer.SGD),
    "adagrad": (Optimizer.ADAGRAD, DenseOptimizer.ADAGRAD),
    "rwsadagrad": (Optimizer.ROWWISE_ADAGRAD, DenseOptimizer.ADAGRAD),
}
"""For each name the optimizer of the tables and that of the dense part. One optimizer trains both;
``rwsadagrad`` keeps one sum per row only for sparse gradients, that is for tables."""
_MAIN_MODULE: Final = "model.sparse_arch.embedding_bag_collection"
"""The tables of ``DLRMTrain(DLRM(...))``, as a plan names them."""


@dataclass(slots=True)
class _Flags:
    """Typed values of flags; every error names the flag and the value."""

    command: DlrmCommand
    assumed: dict[str, str] = field(default_factory=dict)
    unsaid: list[str] = field(default_factory=list)

    def text(self, name: str, default: str) -> str:
        return self.command.flags.get(name, default)

    def has(self, name: str) -> bool:
        return name in self.command.flags

    def whole(self, name: str, default: int, *, low: int = 1, high: int = MAX_ROWS) -> int:
        text = self.text(name, str(default))
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else -1
        if not low <= number <= high:
            raise self.fail(name, text, f"must be a whole number, {low} to {high:,}")
        return number

    def numbers(self, name: str, default: str, separator: str, high: int) -> tuple[int, ...]:
        text = self.text(name, default)
        parts = [p.strip() for p in text.split(separator)]
        good = [p for p in parts if p.isascii() and p.isdigit() and len(p) < 19]
        numbers = tuple(int(p) for p in good)
        if len(good) != len(parts) or not all(1 <= n <= high for n in numbers):
            rule = f"must be whole numbers, 1 to {high:,}, with {separator!r} between them"
            raise self.fail(name, text, rule)
        return numbers

    def choice(self, name: str, default: str, known: Sequence[str]) -> str:
        text = self.text(name, default)
        if text not in known:
            raise self.fail(name, text, f"must be one of {', '.join(known)}")
        return text

    def fail(self, name: str, value: object, rule: str) -> InvalidInputError:
        return InvalidInputError(f"{_WHERE}: --{name}: value {show(value)}: {rule}")


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
    flags = _Flags(command)
    if command.program == "dlrm_main.py":
        if world_size is not None:
            message = (
                "--gpus divides the global batch of dlrm_s_pytorch.py; the batch of dlrm_main.py "
                "is per rank already, leave --gpus out"
            )
            raise InvalidInputError(message)
        return _import_main(flags)
    return _import_s(flags, world_size or command.world_size)


# ------------------------------------------------------------------ torchrec_dlrm/dlrm_main.py


def _import_main(flags: _Flags) -> Imported:
    """``torchrec_dlrm``: 26 Criteo features, a batch per rank, exact optimizers."""
    dim = flags.whole("embedding_dim", 64, high=MAX_COLUMNS)
    if flags.has("num_embeddings_per_feature"):
        rows = flags.numbers("num_embeddings_per_feature", "", ",", MAX_ROWS)
    else:
        rows = (flags.whole("num_embeddings", 100_000),) * NUM_CRITEO_TABLES
    is_made = flags.has("synthetic_multi_hot_criteo_path") and not flags.has("multi_hot_sizes")
    if is_made:
        what = (
            f"{sum(MLPERF_HOT)} indices per sample, those of MLPerf's multi-hot data; the command "
            "line names a folder of such data and no --multi_hot_sizes"
        )
        assume(flags.assumed, "tables", what)
    usual = MLPERF_HOT if is_made else (1,) * len(rows)
    hot = flags.numbers("multi_hot_sizes", ",".join(map(str, usual)), ",", 10**6)
    for name, values in (("num_embeddings_per_feature", rows), ("multi_hot_sizes", hot)):
        if len(values) != NUM_CRITEO_TABLES:
            rule = f"must be {NUM_CRITEO_TABLES} numbers, one per feature, got {len(values)}"
            raise flags.fail(name, flags.text(name, ""), rule)
    kind = flags.choice("interaction_type", "original", ("original", "dcn", "projection"))
    is_cross = kind == "dcn"
    if kind == "projection":
        flags.unsaid.append("the two branches of the projection; counted as a dot interaction")
    bottom = flags.numbers("dense_arch_layer_sizes", "512,256,64", ",", 10**6)
    if bottom[-1] != dim:
        rule = f"must end with the embedding dimension, {dim}"
        name = "dense_arch_layer_sizes"
        raise flags.fail(name, flags.text("dense_arch_layer_sizes", ""), rule)
    law_is_known = not any(flags.has(f"{p}_criteo_path") for p in _DATA_PATHS)
    if flags.choice("multi_hot_distribution_type", "uniform", ("uniform", "pareto")) == "pareto":
        law_is_known = False
    if not law_is_known:
        assume(flags.assumed, "tables", _NO_LAW)
    is_adagrad = flags.has("adagrad")
    tables = tuple(
        replace(_table(f"t_cat_{i}", n, dim, h, f"cat_{i}"), module=_MAIN_MODULE)
        for i, (n, h) in enumerate(zip(rows, hot, strict=True))
    )
    workload = make_workload(
        _WHERE,
        name="torchrec_dlrm",
        tables=tables,
        batch_size_per_rank=flags.whole("batch_size", 32, high=_MOST_SAMPLES),
        optimizer=Optimizer.ADAGRAD if is_adagrad else Optimizer.SGD,
        dense_optimizer=DenseOptimizer.ADAGRAD if is_adagrad else DenseOptimizer.SGD,
        dense=DenseArch(
            num_dense_features=NUM_CRITEO_DENSE,
            bottom_mlp=bottom,
            top_mlp=flags.numbers("over_arch_layer_sizes", "512,512,256,1", ",", 10**6),
            interaction=Interaction.DCN if is_cross else Interaction.DOT,
            dcn_num_layers=flags.whole("dcn_num_layers", 3, high=1000) if is_cross else 0,
            dcn_low_rank_dim=flags.whole("dcn_low_rank_dim", 512, high=10**6) if is_cross else 0,
            dtype=DataType.TF32 if flags.has("allow_tf32") else DataType.FP32,
        ),
    )
    return _imported(flags, workload, law_is_known=law_is_known)


# ------------------------------------------------------------------ dlrm_s_pytorch.py


def _import_s(flags: _Flags, world_size: int | None) -> Imported:
    """``dlrm_s_pytorch.py``: a global batch; defaults are the program's own."""
    for name in ("qr-flag", "md-flag"):
        if flags.has(name):
            message = (
                f"{_WHERE}: --{name}: tables are built from smaller ones, which a workload cannot "
                "say; leave the flag out for the plain tables"
            )
            raise InvalidInputError(message)
    if flags.has("inference-only"):
        message = (
            f"{_WHERE}: --inference-only: the program trains nothing, and a workload is a training "
            "step; leave the flag out for the model that it would train"
        )
        raise InvalidInputError(message)
    data = flags.choice("data-generation", "random", _S_DATA)
    is_random = data != "dataset"
    rows = _s_rows(flags, is_random=is_random)
    dim = flags.whole("arch-sparse-feature-size", 2, high=MAX_COLUMNS)
    bottom = flags.numbers("arch-mlp-bot", "4-3-2", "-", 10**6)
    if len(bottom) < 2 or bottom[-1] != dim:
        rule = f"must be at least two sizes and end with --arch-sparse-feature-size, {dim}"
        name = "arch-mlp-bot"
        raise flags.fail(name, flags.text("arch-mlp-bot", "4-3-2"), rule)
    operator = flags.choice("arch-interaction-op", "dot", ("dot", "cat"))
    if flags.has("arch-interaction-itself"):
        flags.unsaid.append("products of vectors with themselves (--arch-interaction-itself)")
    law_is_known = data == "random" and flags.text("rand-data-dist", "uniform") == "uniform"
    if not law_is_known:
        assume(flags.assumed, "tables", _NO_LAW)
    tables = tuple(
        _table(f"emb_{i}", n, dim, _indices_per_sample(flags, n, is_random=is_random), f"s_{i}",
               is_weighted=flags.text("weighted-pooling", "None") != "None")
        for i, n in enumerate(rows)
    )  # fmt: skip
    optimizer, dense_optimizer = _S_OPTIMIZERS[
        flags.choice("optimizer", "sgd", tuple(_S_OPTIMIZERS))
    ]
    workload = make_workload(
        _WHERE,
        name="dlrm",
        tables=tables,
        batch_size_per_rank=_local_batch(flags, world_size),
        optimizer=optimizer,
        dense_optimizer=dense_optimizer,
        dense=DenseArch(
            num_dense_features=NUM_CRITEO_DENSE if not is_random else bottom[0],
            bottom_mlp=bottom[1:],
            top_mlp=flags.numbers("arch-mlp-top", "4-2-1", "-", 10**6),
            interaction=Interaction(operator),
        ),
    )
    return _imported(flags, workload, law_is_known=law_is_known)


def _s_rows(flags: _Flags, *, is_random: bool) -> tuple[int, ...]:
    """Rows of each table: as given for random data, otherwise those of the named data set.

    As in the program, ``--max-ind-range`` limits only the rows of a data set.
    """
    cap = "-1" if is_random else flags.text("max-ind-range", "-1")
    most = MAX_ROWS if cap == "-1" else flags.whole("max-ind-range", 1)
    if is_random or flags.has("arch-embedding-size"):
        rows = flags.numbers("arch-embedding-size", "4-3-2", "-", MAX_ROWS)
        if not is_random:
            what = "rows of --arch-embedding-size; training takes the data's"
            assume(flags.assumed, "tables", what)
        if len(rows) > MAX_IMPORTED_TABLES:
            rule = f"must be at most {MAX_IMPORTED_TABLES:,} tables, got {len(rows):,}"
            name = "arch-embedding-size"
            raise flags.fail(name, flags.text("arch-embedding-size", ""), rule)
        return tuple(min(n, most) for n in rows)
    if flags.text("data-set", "kaggle") != "kaggle":
        message = (
            f"{_WHERE}: --data-set {flags.text('data-set', '')}: its row counts are taken from the "
            "data; add --arch-embedding-size with them"
        )
        raise InvalidInputError(message)
    return tuple(min(n, most) for n in KAGGLE_ROWS)


def _indices_per_sample(flags: _Flags, rows: int, *, is_random: bool) -> float:
    """Mean indices per sample of one table.

    The random generator draws max(1, round(r min(rows, n))) indices with r uniform in 0..1; the
    mean is n/2 + 1/(2 n). It then drops repeated indices, which is ignored here. Criteo data have
    one index. The program takes every value of ``--num-indices-per-lookup-fixed`` except an empty
    one for true, even the word False (argparse ``type=bool``).
    """
    if not is_random:
        return 1.0
    most = flags.whole("num-indices-per-lookup", 10, high=10**6)
    fixed = "num-indices-per-lookup-fixed"
    if given := flags.text(fixed, ""):
        if given.lower() not in _TRUE_WORDS:
            said = f"{most} indices per lookup, for the program takes --{fixed}={given} for true"
            assume(flags.assumed, "tables", said)
        return float(most)
    bound = min(rows, most)
    return bound / 2 + 1 / (2 * bound)


def _local_batch(flags: _Flags, world_size: int | None) -> int:
    batch = flags.whole("mini-batch-size", 1, high=_MOST_SAMPLES)
    if world_size is None:
        flags.assumed["training.batch_size_per_rank"] = (
            "the whole --mini-batch-size, for one rank; --gpus divides it"
        )
        return batch
    if batch % world_size:
        rest = f"{batch} samples are no multiple of {world_size} ranks: rounded up"
        flags.assumed["training.batch_size_per_rank"] = rest
    return math.ceil(batch / world_size)


# ------------------------------------------------------------------ both


def _table(
    name: str, rows: int, dim: int, indices: float, feature: str, *, is_weighted: bool = False
) -> Table:
    return Table(
        name=name,
        num_embeddings=rows,
        embedding_dim=dim,
        features=(Feature(name=feature, pooling_factor=float(indices)),),
        distribution=Uniform(num_embeddings=rows),
        is_weighted=is_weighted,
    )


def _imported(flags: _Flags, workload: Workload, *, law_is_known: bool) -> Imported:
    return Imported(
        workload=workload,
        source=f"a command line of {flags.command.program}",
        assumed=flags.assumed,
        unsaid=tuple(flags.unsaid),
        law_is_known=law_is_known,
        world_size=flags.command.world_size,
    )
