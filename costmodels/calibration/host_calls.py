"""What a machine's calls take, and the lines of a system file that say so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from costmodels.errors import InvalidValueError

_MICROSECOND: Final = 1e-6
EAGER_CALL: Final = "eager add_ of 8 elements, back to back"
EAGER_PASS: Final = "eager linear+sum forward backward"
"""Names of the rows in the block ``ceilings`` of GPU measurements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCalls:
    """Seconds of the calls that :class:`costmodels.topology.Host` is described by.

    Attributes:
        eager_call_s: an addition in place on eight elements and the record of an event.
        eager_pass_s: forward and backward pass of a linear layer of 8 by 8 on 8 samples and the sum
            of its result, and the record of an event.
        machine: where they were measured, for people.
    """

    eager_call_s: float
    eager_pass_s: float
    machine: str

    def lines(self) -> tuple[str, str]:
        """The keys of ``host`` in a system file."""
        note = f"(measured, {self.machine})"
        return (
            f"eager_call: {self.eager_call_s / _MICROSECOND:.2f} us {note}",
            f"eager_pass: {self.eager_pass_s / _MICROSECOND:.1f} us {note}",
        )


def host_calls_of(rows: Iterable[Mapping[str, Any]]) -> HostCalls:
    """The same numbers from measured rows of the block ``ceilings``, times in microseconds.

    Raises:
        InvalidValueError: the rows have no such measurement.
    """
    ceilings = [row for row in rows if row.get("block") == "ceilings"]
    found = {row.get("what"): row for row in ceilings}
    missing = [name for name in (EAGER_CALL, EAGER_PASS) if "wall_us" not in found.get(name, {})]
    if missing:
        message = f"no row of the block 'ceilings' has wall_us of {', '.join(map(repr, missing))}"
        raise InvalidValueError(message)
    machine = str(found.get("env", {}).get("gpu", "one machine"))
    return HostCalls(
        eager_call_s=float(found[EAGER_CALL]["wall_us"]) * _MICROSECOND,
        eager_pass_s=float(found[EAGER_PASS]["wall_us"]) * _MICROSECOND,
        machine=f"host of {machine}",
    )
