"""Reads the raw rows of a calibration of a device: one JSON object a line, the first the machine.

docs/reference/formats.md describes them. Every row that a fit reads is checked here, so that a fit
meets numbers that are finite and above 0 only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from costmodels.calibration.device import EAGER_CALL, EAGER_PASS, LOOKUP_BLOCKS, Row
from costmodels.workload import Optimizer
from planner.errors import refuse
from planner.io.documents import Document, parse_json, read_text
from planner.io.schemas import Loose, row_schema, validate

_OTHER_BLOCKS: Final = ("dense", "dlrm", "pipe")
"""Blocks of whole steps; only what a fit of such steps reads is checked, and by that fit."""
_Block: Any = Literal[("ceilings", "codec", *LOOKUP_BLOCKS, "collectives", *_OTHER_BLOCKS)]

Microseconds = Annotated[float, Field(gt=0, le=1e10)]
Whole = Annotated[int, Field(gt=0, le=10**13)]
Bytes = Annotated[float, Field(ge=0, le=1e15)]
Text = Annotated[str, Field(max_length=400)]


_SOFTWARE: Final = ("gpu", "nccl", "cpu", "torch", "driver", "fbgemm", "measured")
_Environment: Final = row_schema(
    mem=(Annotated[float, Field(gt=0, le=1e15)] | None, None),
    sms=(Annotated[int, Field(gt=0, le=10**5)] | None, None),
    cuda=(Text | None, ""),
    **dict.fromkeys(_SOFTWARE, (Text, "")),
)


_Row: Any = row_schema(block=_Block, what=(Text, ""), error=(Text | None, None))


class _Lookup(Loose):
    id: Text
    T: Annotated[int, Field(gt=0, le=10**5)]
    rows: Whole
    dim: Annotated[int, Field(gt=0, le=10**5)]
    L: Annotated[float, Field(gt=0, le=1e7)]
    B: Annotated[int, Field(gt=0, le=10**8)]
    law: Annotated[str, Field(pattern=r"^(uniform|zipf \d{1,2}(\.\d{1,6})?)$")]
    wdtype: Literal["fp32", "fp16"]
    opt: Annotated[Optimizer, Field(strict=False)]
    loc: Literal["hbm", "uvm", "uvm_caching"]
    pooled: bool
    clf: Annotated[float, Field(gt=0, le=1)] = 1.0
    N: Whole
    uniq: Whole
    fwd_us: Microseconds
    bwd_us: Microseconds

    @model_validator(mode="after")
    def _adds_up(self) -> _Lookup:
        if self.uniq > self.N:
            refuse(f"uniq ({self.uniq}) must not exceed N ({self.N}), the indices of the call")
        return self


_Named = row_schema(what=Text)
_Timed = row_schema(us=Microseconds)
_Gap = row_schema(us_each=Microseconds)
_Call = row_schema(what=Text, wall_us=Microseconds)
_Sized = row_schema(us=Microseconds, mb=Annotated[float, Field(gt=0, le=1e7)])
_Precision = Literal["fp32", "tf32", "bf16", "fp16"]
_Product = row_schema(us=Microseconds, prec=_Precision, n=Annotated[int, Field(gt=0, le=10**6)])
_Size = Annotated[int, Field(gt=0, le=10**8)]
_Shape = row_schema(us=Microseconds, dtype=_Precision, M=_Size, K=_Size, N=_Size)
_Kilobytes = Annotated[float, Field(gt=0, le=1e10)]
_Linked = row_schema(pinned=bool, kb=_Kilobytes, h2d_us=Microseconds, d2h_us=Microseconds)


class _Collective(Loose):
    us: Microseconds
    operation: Literal["all_to_all", "all_reduce", "reduce_scatter", "all_gather"]
    ranks: Annotated[int, Field(ge=2, le=65536)]
    sent_bytes: list[Bytes]
    kept_bytes: list[Bytes]

    @model_validator(mode="after")
    def _has_every_rank(self) -> _Collective:
        lengths = {len(self.sent_bytes), len(self.kept_bytes)}
        if lengths != {self.ranks}:
            refuse(f"sent_bytes and kept_bytes must have a number for each of {self.ranks} ranks")
        return self


_ROWS: Final[dict[str, type[Loose]]] = {
    **dict.fromkeys(LOOKUP_BLOCKS, _Lookup),
    **dict.fromkeys(("codec", "d2d", "add"), _Sized),
    **dict.fromkeys((EAGER_CALL, EAGER_PASS), _Call),
    "collectives": _Collective,
    "gemm": _Product,
    "gemm_shape": _Shape,
    "link": _Linked,
    "add_ and synchronize": _Timed,
}
"""What rows have to be like, by their block, or by what was measured of the ceilings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRows:
    """The rows of a file.

    Attributes:
        path: the file.
        environment: its first row: the device, the software and the day.
        rows: all rows that hold a measurement, as they stand in the file.
        failed: what could not be measured, and why, in words.
    """

    path: Path
    environment: Row
    rows: tuple[Row, ...]
    failed: tuple[str, ...]

    def of_block(self, *blocks: str) -> tuple[Row, ...]:
        """The rows of some blocks."""
        return tuple(row for row in self.rows if row["block"] in blocks)

    def machine(self, *software: str) -> str:
        """Device and software in a few words, as the source of what is fitted to the rows.

        Args:
            software: keys of the environment to name beside torch and the driver.
        """
        known = self.environment
        device = str(known.get("gpu") or known.get("cpu") or "unknown device")
        keys = [key for key in ("torch", *software, "driver") if known.get(key)]
        return ", ".join([device, *(f"{key} {known[key]}" for key in keys)])


def read_rows(path: Path) -> MeasuredRows:
    """Read and check a file of rows.

    Raises:
        InvalidInputError: the file cannot be read, or a row is not as described; the message names
            the line of the first such row.
    """
    rows: list[Row] = []
    failed: list[str] = []
    environment: Row | None = None
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        row = parse_json(line, path, line=number)
        document = Document(path, row, {(): number})
        head = validate(_Row, document)
        if (head.block == "ceilings" and head.what == "env") != (environment is None):
            refuse(
                f"{path}:{number}: the first row must describe the machine, and only the first "
                'row: {"block": "ceilings", "what": "env", "gpu": ..., "torch": ...}'
            )
        if environment is None:
            validate(_Environment, document)
            environment = row
        elif head.error is not None:
            name = " ".join(str(row[k]) for k in ("block", "what", "operation", "id") if row.get(k))
            failed.append(f"{name[:100]}: {head.error[:200]}")
        else:
            validate(_schema(head, row), document)
            rows.append(row)
    if environment is None:
        refuse(f"{path}: no rows")
    return MeasuredRows(path=path, environment=environment, rows=tuple(rows), failed=tuple(failed))


def _schema(head: _Row, row: Row) -> type[Loose]:
    """What a row that holds a measurement has to be like."""
    if head.block != "ceilings":
        return _ROWS.get(head.block, Loose)
    other = _Call if "wall_us" in row else _Named
    return _Gap if head.what.startswith("kernel gap") else _ROWS.get(head.what, other)
