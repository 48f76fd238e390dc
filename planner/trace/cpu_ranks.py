"""Reads traces of ranks that are CPU cores, where the spans of one thread have all times."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

_KINDS: Final = (
    ("lookup forward", re.compile(r"^\[lookup\]")),
    ("lookup backward", re.compile(r"CppNode<.*Lookup")),
    (
        "all-to-all",
        re.compile(r"^(## |\[\w*dist|c10d::|gloo:)|(All2All|ReduceScatter|AllGather)\w*_"),
    ),
)
"""Kinds of spans by name, from TorchRec's marks and the nodes of autograd; the first match wins."""
SPAN_KINDS: Final = frozenset(kind for kind, _ in _KINDS)
_MARKED: Final = frozenset({"cpu_op", "user_annotation"})


def is_of_gloo(document: Any) -> bool:
    """Whether a profile is of ranks that exchange over gloo, and therefore have no GPU."""
    info = document.get("distributedInfo")
    return isinstance(info, dict) and info.get("backend") == "gloo"


def spans(
    events: Sequence[dict[str, Any]], step_threads: frozenset[Any], other: str
) -> list[dict[str, Any]]:
    """Spans without gaps on the thread of the steps, named by the kind of their time.

    The outermost span of a kind counts as a whole, including the Python code around its kernels.
    Exchanges include waits for other ranks. The time between two spans is ``other``: the dense part
    and the optimizer.
    """
    own = [
        e for e in events if e.get("tid") in step_threads and str(e.get("cat")).lower() in _MARKED
    ]
    own.sort(key=lambda e: (float(e["ts"]), -float(e["dur"])))
    return list(_without_gaps(own, other))


def _without_gaps(own: Sequence[dict[str, Any]], other: str) -> Iterator[dict[str, Any]]:
    end: float | None = None
    for event in own:
        begin = float(event["ts"])
        if end is None:
            end = begin
        kind = next((k for k, p in _KINDS if p.search(str(event.get("name", "")))), None)
        if kind is None or begin < end:
            continue
        if begin > end:
            yield {"name": other, "ts": end, "dur": begin - end}
        yield {"name": kind, "ts": begin, "dur": float(event["dur"])}
        end = begin + float(event["dur"])
    last = max((float(e["ts"]) + float(e["dur"]) for e in own), default=0.0)
    if end is not None and last > end:
        yield {"name": other, "ts": end, "dur": last - end}
