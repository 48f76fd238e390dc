"""Reads the raw rows of a calibration of a device: one JSON object a line, the first the machine.

docs/reference/formats.md describes them. Every row that a fit reads is checked here, so that a fit
meets numbers that are finite and above 0 only.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from costmodels.calibration.device import EAGER_CALL, EAGER_PASS, LOOKUP_BLOCKS, Row
from costmodels.workload import Optimizer
from planner.errors import refuse
from planner.io.documents import Document, parse_json, read_text, read_words
from planner.io.schemas import Loose, schemas_of, validate

_OTHER_BLOCKS: Final = ("dense", "dlrm", "pipe")
"""Blocks of whole steps; only what a fit of such steps reads is checked, and by that fit."""
_ROWS: Final = schemas_of(
    read_words("rows"),
    text=Annotated[str, Field(max_length=400)],
    block=Literal[("ceilings", "codec", *LOOKUP_BLOCKS, "collectives", *_OTHER_BLOCKS)],
    law=Annotated[str, Field(pattern=r"^(uniform|zipf \d{1,2}(\.\d{1,6})?)$")],
    optimizer=Annotated[Optimizer, Field(strict=False)],
)


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
        head = validate(_ROWS["every row"], document)
        if (head.block == "ceilings" and head.what == "env") != (environment is None):
            refuse(
                f"{path}:{number}: the first row must describe the machine, and only the first "
                'row: {"block": "ceilings", "what": "env", "gpu": ..., "torch": ...}'
            )
        if environment is None:
            validate(_ROWS["the machine"], document)
            environment = row
        elif head.error is not None:
            name = " ".join(str(row[k]) for k in ("block", "what", "operation", "id") if row.get(k))
            failed.append(f"{name[:100]}: {head.error[:200]}")
        else:
            validate(_schema(head, row), document)
            _check(document, row)
            rows.append(row)
    if environment is None:
        refuse(f"{path}: no rows")
    return MeasuredRows(path=path, environment=environment, rows=tuple(rows), failed=tuple(failed))


def _schema(head: Any, row: Row) -> Any:
    """What a row that holds a measurement has to be like."""
    if head.block != "ceilings":
        return _ROWS.get(head.block, Loose)
    if head.what.startswith("kernel gap"):
        return _ROWS["a gap"]
    is_call = head.what in (EAGER_CALL, EAGER_PASS) or (head.what not in _ROWS and "wall_us" in row)
    return _ROWS["a call"] if is_call else _ROWS.get(head.what, _ROWS["another ceiling"])


def _check(document: Document, row: Row) -> None:
    """Refuse a row whose values do not go together."""
    if row["block"] in LOOKUP_BLOCKS and row["uniq"] > row["N"]:
        told = f"uniq ({row['uniq']}) must not exceed N ({row['N']}), the indices of the call"
        document.refuse((), row, told)
    if row["block"] == "collectives":
        keys, ranks = ("sent_bytes", "kept_bytes"), row["ranks"]
        told = f"{' and '.join(keys)} must have a number for each of {ranks} ranks"
        if any(len(row[key]) != ranks for key in keys):
            document.refuse((), row, told)
