"""Imports a command line of DLRM: tables, dense part and training of the model that it runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
from planner.io.importers.dlrm_command import DlrmCommand, parse_dlrm_command
from planner.io.problems import show

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
        local_batch_size=flags.whole("batch_size", 32, high=_MOST_SAMPLES),
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
        local_batch_size=_local_batch(flags, world_size),
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
