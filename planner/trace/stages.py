"""Tells to which stage of an iteration each kernel of a trace belongs, and of what kind it is.

A kernel's name alone often does not tell: the lookup's backward pass and the backward pass of an
index both sort, and each stage fills and copies. Therefore a kernel belongs to the stage of the
innermost span of the host around the call that launched it. Both have the same ``correlation``.
Where a trace has no spans of the host, only the name is left, and the stages of the dense part
count together. Of ranks that are CPU cores, the spans of one thread have all times.
"""

from __future__ import annotations

import math
import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeGuard

from costmodels.iteration.base import LOOKUP_BACKWARD, LOOKUP_FORWARD

Patterns = tuple[tuple[str, re.Pattern[str]], ...]
"""Names, each with the pattern of what it stands for; the first match wins."""


def _patterns(*pairs: tuple[str, str], flags: re.RegexFlag = re.NOFLAG) -> Patterns:
    return tuple((name, re.compile(pattern, flags)) for name, pattern in pairs)


_KINDS: Final = _patterns(
    ("lookup forward", r"^\[lookup\]"),
    ("lookup backward", r"CppNode<.*Lookup"),
    ("all-to-all", r"^(## |\[\w*dist|c10d::|gloo:)|(All2All|ReduceScatter|AllGather)\w*_"),
)
"""Kinds of spans by name, from TorchRec's marks and the nodes of autograd."""
SPAN_KINDS: Final = frozenset(kind for kind, _ in _KINDS)
WAITED: Final = "waited for late ranks (us)"
"""The argument of a predicted collective that says how long the rank waits in it."""
_LONGEST_US: Final = 1e18
"""Times beyond this, some 30,000 years, are no times of a trace."""


ON_GPU: Final = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHING: Final = ("cuda_runtime", "cuda_driver", "hip_runtime")
_MARKED: Final = ("cpu_op", "user_annotation")
"""Categories of events that are read."""


class Event(NamedTuple):
    """A complete event of a trace; ``number`` is that of a kernel and of the call that launched it.

    ``waited_s`` is how long a rank waits for later ones in it, where the file tells.
    """

    category: str
    name: str
    begin_us: float
    time_us: float
    thread: str = ""
    number: int | None = None
    waited_s: float = 0.0

    @property
    def end_us(self) -> float:
        """When it ends."""
        return self.begin_us + self.time_us

    @property
    def is_marked(self) -> bool:
        """Whether it is a span of the host's program."""
        return self.category in _MARKED


def event_of(raw: Any) -> Event | None:
    """The event of a file; None for kinds that are not read, and for times that are no times."""
    if not isinstance(raw, dict) or raw.get("ph") != "X":
        return None
    category, args = str(raw.get("cat", "")).lower(), raw.get("args")
    begin, length = raw.get("ts"), raw.get("dur")
    if not (_is_time(begin, least=-_LONGEST_US) and _is_time(length)):
        return None
    if category not in (*ON_GPU, *_LAUNCHING, *_MARKED):
        return None
    args = args if isinstance(args, dict) else {}
    number, waited = args.get("correlation"), args.get(WAITED)
    return Event(
        category=category,
        name=sys.intern(str(raw.get("name", ""))),
        begin_us=float(begin),
        time_us=float(length),
        thread=str(raw.get("tid")),
        number=number if isinstance(number, int) and not isinstance(number, bool) else None,
        waited_s=float(waited) * 1e-6 if _is_time(waited) else 0.0,
    )


def _is_time(value: object, *, least: float = 0.0) -> TypeGuard[float]:
    return isinstance(value, int | float) and least <= value <= _LONGEST_US


def cpu_spans(events: Sequence[Event], step_threads: Collection[str]) -> list[Event]:
    """Spans without gaps on the thread of the steps, named by the kind of their time.

    The outermost span of a kind counts as a whole, including the Python code around its kernels.
    Exchanges include waits for other ranks. The time between two spans is other compute: the dense
    part and the optimizer.
    """
    own = [e for e in events if e.thread in step_threads and e.is_marked]
    own.sort(key=lambda e: (e.begin_us, -e.time_us))
    found, end = list[Event](), own[0].begin_us
    for event in own:
        kind = _first(_KINDS, event.name)
        if kind is None or event.begin_us < end:
            continue
        if event.begin_us > end:
            found.append(Event("", OTHER, end, event.begin_us - end))
        found.append(event._replace(name=kind, number=None))
        end = event.end_us
    last = max(e.end_us for e in own)
    if last > end:
        found.append(Event("", OTHER, end, last - end))
    return found


COPIES: Final = "copies"
DENSE_FORWARD: Final = "dense forward"
DENSE_BACKWARD: Final = "dense backward"
OPTIMIZER: Final = "dense optimizer"
DENSE_STAGES: Final = (DENSE_FORWARD, DENSE_BACKWARD, OPTIMIZER)
OTHER: Final = "other compute"
COLLECTIVES: Final = (
    "all-to-all",
    "reduce-scatter",
    "all-gather",
    "all-reduce",
    "other collectives",
)
STAGES: Final = (
    COPIES,
    DENSE_FORWARD,
    LOOKUP_FORWARD,
    *COLLECTIVES,
    DENSE_BACKWARD,
    LOOKUP_BACKWARD,
    OPTIMIZER,
    OTHER,
)
"""In the order in which they are shown."""

_COLLECTIVE_NAMES: Final = _patterns(
    ("all-to-all", r"nccl.*(sendrecv|alltoall|all_to_all)"),
    ("reduce-scatter", r"nccl.*reduce_?scatter"),
    ("all-gather", r"nccl.*all_?gather"),
    ("all-reduce", r"nccl.*all_?reduce"),
    ("other collectives", r"^(nccl|rccl)"),
    flags=re.IGNORECASE,
)
_SORTED: Final = "embedding.*(backward|grad)|linearize_index|transpose_embedding|radix_?sort"
_NAMES: Final = (
    *_COLLECTIVE_NAMES,
    *_patterns(
        (LOOKUP_BACKWARD, rf"{_SORTED}|split_embedding.*optimizer"),
        (LOOKUP_FORWARD, r"(split|dense|batched)_embedding|bounds_check"),
        (COPIES, r"^mem(cpy|set)"),
        flags=re.IGNORECASE,
    ),
    # Steps of predicted iterations; names of real kernels have no such words.
    *_patterns(
        (OPTIMIZER, r"^dense optimizer"),
        (DENSE_FORWARD, r"^[^_(<:]* forward\b"),
        (DENSE_BACKWARD, r"^[^_(<:]* backward\b"),
    ),
)
"""Stages by the name of a kernel."""
_EXCHANGED: Final = r"^\[\w*dist|(All2All|ReduceScatter|AllGather)\w*_"

_SPANS: Final = _patterns(
    (OPTIMIZER, r"^(Optimizer\.|## optimizer ##)"),
    (LOOKUP_BACKWARD, r"CppNode<\w*Lookup|embedding_backward"),
    (LOOKUP_FORWARD, r"^\[lookup\]|_embedding\w*_(lookup|forward)|bounds_check"),
    (OTHER, rf"^## (KJT|all2all|\w+ wait\(\)|.*dist)|{_EXCHANGED}"),
    (DENSE_BACKWARD, r"^(autograd::engine::|## backward ##)"),
    (DENSE_FORWARD, r"^(DistributedDataParallel\.forward|## forward ##)"),
)
"""Stages by the name of a span of the host, from the marks of PyTorch and TorchRec; a span without
a match has the stage of the span around it."""

_MOVES: Final = re.compile(r"^Memcpy (HtoD|DtoH)", re.IGNORECASE)
"""Copies over the host's link: the batch and, in TorchRec, sizes of exchanges."""

_ENCODED: Final = r"ReduceByKey|RunLength|linearize_index|find_long_segments"
_GROUPS: Final = _patterns(
    ("copies", r"(?i)^memcpy"),
    ("fill", r"(?i)^memset|FillFunctor"),
    ("bounds check", r"bounds_check"),
    ("index backward", r"indexing_backward"),
    ("sort and encode", rf"(?i)radix_?sort|Device(Scan|Compact|Merge)|{_ENCODED}"),
    ("embedding kernels", r"(?i)embedding"),
    ("multi-tensor", r"multi_tensor_apply"),
    ("attention", r"(?i)flash_|fmha|attention|hstu"),
    ("concatenation", r"CatArray"),
    ("index", r"(?i)index_elementwise|_gather|scatter|index_select"),
    ("products", r"(?i)gemm|gemv|cutlass|cublas|splitK|xmma|nvjet|scal_kernel"),
    ("normalization", r"(?i)softmax|layer_?norm|batch_?norm"),
    ("reductions", r"reduce_kernel"),
    ("elementwise", r"(?i)elementwise|triton_poi"),
)
"""Groups of kernels by name."""
_REST: Final = "other kernels"
_NAMES_KEPT: Final = 4096
"""Names of kernels and spans come again in every step."""


def _first(patterns: Patterns, name: str) -> str | None:
    """What stands beside the first pattern that is in a name; None without any."""
    return next((what for what, pattern in patterns if pattern.search(name)), None)


@lru_cache(maxsize=_NAMES_KEPT)
def stage_of_name(name: str) -> str:
    """The stage of a kernel by its name; spans of CPU ranks already have the names of stages."""
    if name in SPAN_KINDS:
        return name
    return _first(_NAMES, name) or OTHER


@lru_cache(maxsize=_NAMES_KEPT)
def group_of(name: str) -> str:
    """What kind of kernel a name is of."""
    return "collective" if _first(_COLLECTIVE_NAMES, name) else _first(_GROUPS, name) or _REST


@lru_cache(maxsize=_NAMES_KEPT)
def _stage_of_span(name: str) -> str | None:
    """The stage that a span of the host names; None if it names none."""
    return _first(_SPANS, name)


def launches_of(complete: Sequence[Event]) -> dict[int | None, tuple[float, str | None]]:
    """When the host launched the kernel of each number, and the stage of the span around it."""
    calls, spans = defaultdict(list), defaultdict(list)
    for event in complete:
        if event.category in _LAUNCHING and event.number is not None:
            calls[event.thread].append((event.begin_us, event.number))
        elif event.is_marked:
            spans[event.thread].append((event.begin_us, -event.time_us, event.name))
    found: dict[int | None, tuple[float, str | None]] = {}
    for thread, own in calls.items():
        found.update(_launches(sorted(own), sorted(spans[thread])))
    return found


def stage_of(name: str, launched_in: str | None) -> str:
    """The stage of a kernel: that of the span that launched it, unless its name tells more."""
    named = stage_of_name(name)
    if launched_in is None or named in COLLECTIVES or _MOVES.search(name):
        return named
    return launched_in


def _launches(
    calls: Sequence[tuple[float, int]], spans: Sequence[tuple[float, float, str]]
) -> Iterator[tuple[int, tuple[float, str | None]]]:
    """The number, the begin and the stage of each call of a thread; None outside of spans.

    Args:
        calls: begin and number, in order.
        spans: begin, negative length and name, in order; those of one thread nest.
    """
    around: list[tuple[float, str | None]] = [(math.inf, None)]  # end and stage of the open spans
    at = 0
    for begin, number in calls:
        while at < len(spans) and spans[at][0] <= begin:
            opened, shorter, name = spans[at]
            at += 1
            while around[-1][0] <= opened:
                around.pop()
            own = _stage_of_span(name) or around[-1][1]
            if own is None and not name.startswith("ProfilerStep#"):
                own = DENSE_FORWARD
            around.append((opened - shorter, own))
        while around[-1][0] <= begin:
            around.pop()
        yield number, (begin, around[-1][1])
