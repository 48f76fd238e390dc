"""Turns entries on quantized communication into codecs, and back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from costmodels.training.communication import Codec, Codecs, Communication
from planner.errors import InvalidInputError
from planner.io.workload.workload_schema import CommunicationSchema

_EXCHANGES: Final = ("all_to_all", "reduce_scatter", "sequence")


def communication_of(entry: CommunicationSchema) -> Communication:
    """The codecs of an entry."""
    found = Communication.of(entry.forward, entry.backward)
    named = {
        key: Codecs(forward=Codec(precision=own.forward), backward=Codec(precision=own.backward))
        for key in _EXCHANGES
        if (own := getattr(entry, key)) is not None
    }
    return replace(found, **named)


def communication_entry(communication: Communication) -> dict[str, Any]:
    """The keys of an entry that reads back as these codecs, in the short form if it is enough.

    Raises:
        InvalidInputError: a codec has its own size of rows, for which files have no key.
    """
    exchanges = {key: getattr(communication, key) for key in _EXCHANGES}
    codecs = [c for both in exchanges.values() if both for c in (both.forward, both.backward)]
    if any(c.row_dim for c in codecs):
        message = "a workload file has no key for the rows of a codec (row_dim); leave it at 0"
        raise InvalidInputError(message)
    first = communication.all_to_all
    if first is not None:
        ways = first.forward.precision, first.backward.precision
        if Communication.of(*ways) == communication:
            return _ways(first)
    return {key: _ways(both) for key, both in exchanges.items() if both is not None}


def unsummed_remark(communication: Communication) -> str | None:
    """A remark on the sharding types that pooled tables lose because codecs cannot add up."""
    if communication.sums_rows:
        return None
    return (
        "communication: fp8, int8 and mx4 cannot be summed, so pooled tables are "
        "not cut by rows; give reduce_scatter fp16 or bf16 to allow it"
    )


def _ways(codecs: Codecs) -> dict[str, str]:
    return {
        "forward": codecs.forward.precision.value,
        "backward": codecs.backward.precision.value,
    }
