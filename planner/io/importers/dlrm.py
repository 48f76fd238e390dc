"""Imports a command line of DLRM: tables, dense part and training of the model that it runs.

The flags are those of facebookresearch/dlrm, ``dlrm_s_pytorch.py`` and
``torchrec_dlrm/dlrm_main.py``. Variables that the same text sets (``export N=8;``) and whole-number
``$((N / 2))`` are filled in.
"""

import ast
import math
import operator
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from planner.errors import refuse, refuse_any
from planner.io.documents import Document, read_words
from planner.io.importers import base
from planner.io.schemas import Lax, nearest, schemas_of, validate

_WHERE: Final = "command line"
_BOOLEANS: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
"""Words for a flag that is on or off; argparse's ``type=bool`` and torchx take them behind it."""
_SHELL_ENDS: Final = frozenset({"|", "||", "&", "&&", ";", ">", ">>", "2>&1", "2>", "<", "&>"})
_LAUNCHED: Final = re.compile(r"(?<!\S)--?([\w-]+)[= ]([0-9]{1,6})(?:x([0-9]{1,6}))?(?!\S)")
_ASSIGNED: Final = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(\S*)\s*(?:[;\n]\s*)?")
_OPERATIONS: Final[dict[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_ARITHMETIC: Final = re.compile(r"\$\(\(([\w\s$+*/%(){}-]{1,200}?)\)\)(?!\))")
_KNOWN: Final = read_words("dlrm")
PROGRAMS: Final = {
    program: (frozenset(flags["values"]), frozenset(flags["switches"]))
    for program, flags in _KNOWN["programs"].items()
}
"""The flags of each program: those that take a value, and switches."""
KAGGLE_ROWS: Final[list[int]] = _KNOWN["criteo_kaggle_rows"]


class DlrmCommand(NamedTuple):
    """One command line.

    Attributes:
        program: ``dlrm_s_pytorch.py`` or ``dlrm_main.py``.
        flags: for each name (without the dashes before it) its value; "" for a switch.
        world_size: number of ranks, if the launcher says it.
    """

    program: str
    flags: dict[str, str]
    world_size: int | None


def parse_dlrm_command(words: Sequence[str]) -> DlrmCommand:
    """Read a whole command line, or only its flags; one quoted text is split as by a shell.

    Raises:
        InvalidInputError: quotes are not balanced, the program is neither of the two, or it does
            not have a flag.
    """
    words = _split(words)
    files = [word.rsplit("/", 1)[-1] for word in words]
    flags = [word[2:].split("=", 1)[0] if word.startswith("--") else None for word in words]
    program = next((file for file in files if file in PROGRAMS), "")
    if program:
        first = files.index(program) + 1
    else:
        # A launcher names another script, or there is none: the flags tell the program.
        own = {name: [f in values | on for f in flags] for name, (values, on) in PROGRAMS.items()}
        program = max(own, key=lambda name: sum(own[name]))
        if not any(own[program]):
            refuse(
                "neither dlrm_s_pytorch.py nor dlrm_main.py is named, and none of the flags is one "
                "of theirs; paste the whole command line after '--'"
            )
        begins = words.index("--") if "--" in words else own[program].index(True)
        first = 0 if words[0].startswith("--") else begins
    first += words[first : first + 1] == ["--"]
    world_size = _world_size(" ".join(words[:first]))
    return DlrmCommand(program, _flags_of(words[first:], program), world_size)


def _split(words: Sequence[str]) -> list[str]:
    try:
        split = shlex.split(_filled_in(words[0])) if len(words) == 1 else list(words)
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
    while assigned := _ASSIGNED.match(text):
        known[assigned[1]] = assigned[2].rstrip(";").strip("\"'")
        text = text[assigned.end() :].lstrip("; \n")

    def computed(found: re.Match[str]) -> str:
        """The value of whole-number arithmetic; the text as it is if it has none."""
        plain = re.sub(r"[A-Za-z_]\w*", lambda name: known.get(name[0], name[0]), found[1])
        plain = re.sub(r"[${}\s]", "", plain).replace("/", "//")
        try:
            return str(_value(ast.parse(plain, mode="eval").body))
        except (LookupError, SyntaxError, TypeError, ValueError, ArithmeticError, RecursionError):
            return found[0]

    text = _ARITHMETIC.sub(computed, text)
    return re.sub(r"\$\{?([A-Za-z_]\w*)\}?", lambda name: known.get(name[1], name[0]), text)


def _value(tree: Any) -> int:
    """The value of a number, or of an operation on two values."""
    if isinstance(tree, ast.BinOp):
        return int(_OPERATIONS[type(tree.op)](_value(tree.left), _value(tree.right)))
    return int(ast.literal_eval(tree))


def _flags_of(words: Sequence[str], program: str) -> dict[str, str]:
    """The value of each flag; "" for a switch that is on."""
    given: list[tuple[str, str | None]] = []
    problems: list[str] = []
    for word in words:
        name, is_given, value = word.partition("=")
        if name.startswith("--"):
            given.append((name[2:], value if is_given else None))
        elif given and given[-1][1] is None:
            given[-1] = (given[-1][0], word)
        else:
            problems.append(f"value {word!r}: belongs to no flag; {program} takes flags only")
    values, switches = PROGRAMS[program]
    flags: dict[str, str] = {}
    for name, said in given:
        if name in switches:
            is_on = said is None or _BOOLEANS.get(said.lower())
            if is_on is None:
                problems.append(f"--{name}: takes no value but True or False, got {said!r}")
            elif is_on:
                flags[name] = ""
        elif name not in values:
            hint = nearest(f"--{name}", [f"--{n}" for n in sorted(values | switches)])
            problems.append(f"--{name}: {program} has no such flag; {hint or 'remove it'}".strip())
        elif said is None:
            problems.append(f"--{name}: needs a value")
        else:
            flags[name] = said
    refuse_any([f"{_WHERE}: {p}" for p in problems])
    return flags


def _world_size(launcher: str) -> int | None:
    """The number of ranks of ``torchrun``, ``torchx`` (``-j HOSTSxRANKS``) or ``mpirun``."""
    found: dict[str, int] = {}
    for name, count, local in _LAUNCHED.findall(launcher):
        if local and name == "j":
            found |= {"hosts": int(count), "local": int(local)}
        elif not local and (key := _KNOWN["launchers"].get(name.replace("-", "_"))):
            found[key] = int(count)
    world = found.get("world") or found.get("local", 0) * found.get("hosts", 1)
    if world > base.MAX_RANKS:
        refuse(f"{_WHERE}: {world:,} ranks: must be at most {base.MAX_RANKS:,}")
    return world or None


NUM_CRITEO_TABLES: Final = 26
NUM_CRITEO_DENSE: Final = 13
_NO_LAW: Final = "uniform indices; the command line does not say the data's law"
_MAIN_MODULE: Final = "model.sparse_arch.embedding_bag_collection"
"""The tables of ``DLRMTrain(DLRM(...))``, as a plan names them."""

_KEYS: Final = schemas_of(_KNOWN, Lax, **base.KINDS)


def import_dlrm(words: Sequence[str], *, world_size: int | None = None) -> base.Imported:
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
    read = base.Reading(Document(Path(_WHERE), flags, {}))
    given = validate(_KEYS[command.program], read.document)
    if command.program != "dlrm_main.py":
        values = _s_values(given, read, world_size or command.world_size)
    elif world_size is None:
        values = _main_values(given, read)
    else:
        refuse(
            "--gpus divides the global batch of dlrm_s_pytorch.py; the batch of dlrm_main.py is "
            "per rank already, leave --gpus out"
        )
    return read.imported(
        f"a command line of {command.program}",
        values,
        law_is_known=_NO_LAW not in read.assumed.get("tables", ""),
        world_size=command.world_size,
    )


def _main_values(flags: Any, read: base.Reading) -> dict[str, Any]:
    """``torchrec_dlrm``: 26 Criteo features, a batch per rank, exact optimizers."""
    rows = flags.num_embeddings_per_feature or [flags.num_embeddings] * NUM_CRITEO_TABLES
    hot = flags.multi_hot_sizes or [1] * NUM_CRITEO_TABLES
    if flags.synthetic_multi_hot_criteo_path is not None and flags.multi_hot_sizes is None:
        hot = _KNOWN["mlperf_indices_per_sample"]
        read.assume(
            "tables",
            f"{sum(hot)} indices per sample, those of MLPerf's multi-hot data; the command line "
            "names a folder of such data and no --multi_hot_sizes",
        )
    bottom, dim = flags.dense_arch_layer_sizes, flags.embedding_dim
    _check_end(read.document, "--dense_arch_layer_sizes", bottom, dim)
    paths = flags.in_memory_binary_criteo_path, flags.synthetic_multi_hot_criteo_path
    if paths != (None, None) or flags.multi_hot_distribution_type == "pareto":
        read.assume("tables", _NO_LAW)
    if flags.interaction_type == "projection":
        read.unsaid.append("the two branches of the projection; counted as a dot interaction")
    is_cross = flags.interaction_type == "dcn"
    return {
        "name": "torchrec_dlrm",
        "tables": (
            base.plain_table(f"t_cat_{i}", n, dim, [(f"cat_{i}", h)], module=_MAIN_MODULE)
            for i, (n, h) in enumerate(zip(rows, hot, strict=True))
        ),
        "batch_size_per_rank": flags.batch_size,
        **_KNOWN["optimizers"]["sgd" if flags.adagrad is None else "adagrad"],
        "dense": {
            "num_dense_features": NUM_CRITEO_DENSE,
            "bottom_mlp": bottom,
            "top_mlp": flags.over_arch_layer_sizes,
            "interaction": "dcn" if is_cross else "dot",
            "dcn_num_layers": flags.dcn_num_layers if is_cross else 0,
            "dcn_low_rank_dim": flags.dcn_low_rank_dim if is_cross else 0,
            "dtype": "fp32" if flags.allow_tf32 is None else "tf32",
        },
    }


def _check_end(document: Document, flag: str, sizes: list[int], dim: int) -> None:
    if sizes[-1] != dim:
        rule = f"must end with the embedding dimension, {dim}"
        document.refuse((flag,), document.value.get(flag, sizes), rule)


def _s_values(flags: Any, read: base.Reading, world_size: int | None) -> dict[str, Any]:
    """``dlrm_s_pytorch.py``: a global batch; defaults are the program's own."""
    given = read.document.value
    refuse_any([f"{_WHERE}: {k}: {why}" for k, why in _KNOWN["unable"].items() if k in given])
    is_random = flags.data_generation != "dataset"
    bottom, dim = flags.arch_mlp_bot, flags.arch_sparse_feature_size
    rows = flags.arch_embedding_size if is_random else _data_rows(flags, read)
    _check_end(read.document, "--arch-mlp-bot", bottom, dim)
    if (flags.data_generation, flags.rand_data_dist) != ("random", "uniform"):
        read.assume("tables", _NO_LAW)
    if flags.arch_interaction_itself is not None:
        read.unsaid.append("products of vectors with themselves (--arch-interaction-itself)")
    batch, key = flags.mini_batch_size, "training.batch_size_per_rank"
    if world_size is None:
        read.assume(key, "the whole --mini-batch-size, for one rank; --gpus divides it")
    elif batch % world_size:
        read.assume(key, f"{batch} samples are no multiple of {world_size} ranks: rounded up")
    factors = [_indices_per_sample(flags, read, n) if is_random else 1.0 for n in rows]
    is_weighted = flags.weighted_pooling != "None"
    return {
        "name": "dlrm",
        "tables": (
            base.plain_table(f"emb_{i}", n, dim, [(f"s_{i}", factor)], is_weighted=is_weighted)
            for i, (n, factor) in enumerate(zip(rows, factors, strict=True))
        ),
        "batch_size_per_rank": math.ceil(batch / (world_size or 1)),
        **_KNOWN["optimizers"][flags.optimizer],
        "dense": {
            "num_dense_features": bottom[0] if is_random else NUM_CRITEO_DENSE,
            "bottom_mlp": bottom[1:],
            "top_mlp": flags.arch_mlp_top,
            "interaction": flags.arch_interaction_op,
        },
    }


def _data_rows(flags: Any, read: base.Reading) -> list[int]:
    """Rows of each table of a named data set; ``--max-ind-range`` limits only these."""
    rows = KAGGLE_ROWS
    if "arch_embedding_size" in flags.model_fields_set:
        rows = flags.arch_embedding_size
        read.assume("tables", "rows of --arch-embedding-size; training takes the data's")
    elif flags.data_set != "kaggle":
        refuse(
            f"{_WHERE}: --data-set {flags.data_set}: its row counts are taken from the data; add "
            "--arch-embedding-size with them"
        )
    return [min(n, flags.max_ind_range) for n in rows] if flags.max_ind_range > 0 else rows


def _indices_per_sample(flags: Any, read: base.Reading, rows: int) -> float:
    """Mean indices per sample of one table of random data.

    The random generator draws max(1, round(r min(rows, n))) indices with r uniform in 0..1; the
    mean is n/2 + 1/(2 n). It then drops repeated indices, which is ignored here. The program takes
    every value of ``--num-indices-per-lookup-fixed`` except an empty one for true, even the word
    False (argparse ``type=bool``).
    """
    most, given = flags.num_indices_per_lookup, flags.num_indices_per_lookup_fixed
    if given:
        if not _BOOLEANS.get(given.lower()):
            flag = f"--num-indices-per-lookup-fixed={given}"
            read.assume(
                "tables", f"{most} indices per lookup, for the program takes {flag} for true"
            )
        return float(most)
    bound = min(rows, most)
    return float(bound / 2 + 1 / (2 * bound))
