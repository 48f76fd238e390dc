"""Reads a pasted command line of DLRM: the program, its flags, and the number of ranks.

Variables that the same text sets (``export N=8;``) and whole-number ``$((N / 2))`` are filled in.

The flags are those of facebookresearch/dlrm, ``dlrm_s_pytorch.py`` and
``torchrec_dlrm/dlrm_main.py``.
"""

from __future__ import annotations

import ast
import difflib
import itertools
import operator
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from planner.errors import InvalidInputError

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
        flags=_flags(_without_separator(after), program, values, switches),
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


def _flags(
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
