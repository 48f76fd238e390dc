"""The keys of a system file. A number is written with its unit and where it comes from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer
from pydantic.json_schema import WithJsonSchema

from costmodels.estimates import Source
from costmodels.units import parse_quantity
from costmodels.workload import DataType
from planner.io.problems import Strict
from planner.io.workload_schema import Name, Positive

_SOURCED = re.compile(
    r"^(?P<value>[^()]+?)\s*(?:\((?P<source>[a-z]+)(?:,\s*(?P<reference>.+))?\))?\s*$", re.S
)


@dataclass(frozen=True, slots=True)
class Sourced:
    """A number in SI, as it was written, and its source."""

    value: float
    text: str
    source: Source
    reference: str


def split_source(text: object) -> tuple[str, Source, str]:
    """``"80 GiB (datasheet, H100)"`` into value, source and reference; bare values are the user's.

    Raises:
        ValueError: the parenthesis does not name a source.
    """
    match = _SOURCED.match(text) if isinstance(text, str) else None
    if match is None:
        message = "write a value, its unit and its source, such as '3.35 TB/s (datasheet, H100)'"
        raise ValueError(message)
    kind = match["source"] or Source.USER.value
    if kind not in list(Source):
        message = f"source {kind!r} is not one of {', '.join(Source)}"
        raise ValueError(message)
    return match["value"], Source(kind), (match["reference"] or "").strip()


def sourced(dimension: str | None, example: str, *, low: float = 0.0, high: float = 1e30) -> Any:
    """A pydantic type for a sourced number of a dimension, or a plain one where it is None."""

    def read(text: object) -> Sourced:
        value_text, source, reference = split_source(text)
        value = _plain(value_text) if dimension is None else parse_quantity(value_text, dimension)
        if not low <= value <= high:
            message = f"must be {low:g}..{high:g}"
            raise ValueError(message)
        return Sourced(value, value_text, source, reference)

    schema = {"type": "string", "examples": [f"{example} (datasheet, where it is from)"]}
    return Annotated[
        Any, BeforeValidator(read), PlainSerializer(lambda v: v.text), WithJsonSchema(schema)
    ]


def _plain(text: str) -> float:
    try:
        return float(text.replace("_", ""))
    except ValueError as error:
        message = f"{text!r} is not a number"
        raise ValueError(message) from error


Capacity = sourced("bytes", "80 GiB", low=1.0)
Bandwidth = sourced("bytes_per_s", "450 GB/s", low=1.0)
Latency = sourced("s", "10 us", high=10.0)
Rate = sourced("flops_per_s", "989 TFLOP/s", low=1.0)
Share = sourced(None, "0.7", low=0.01, high=1.0)
Plain = sourced(None, "132", high=1e15)
Price = sourced("usd_per_hour", "3.9 USD/h")


class DeviceSchema(Strict):
    """One accelerator."""

    name: Name
    hbm_capacity: Capacity
    hbm_bandwidth: Bandwidth
    l2_capacity: Capacity
    l2_bandwidth: Bandwidth
    flops: Annotated[dict[Annotated[DataType, Field(strict=False)], Rate], Field(min_length=1)]
    flops_efficiency: Share
    kernel_latency: Latency
    launch_latency: Latency
    row_half: sourced("bytes", "32 B")  # type: ignore[valid-type]
    update_efficiency: Share
    sort_rate: sourced(None, "5e9", low=1.0)  # type: ignore[valid-type]
    overlap_slowdown: sourced(None, "0.1", high=1.0) | None = None  # type: ignore[valid-type]
    num_multiprocessors: Plain | None = None


class HostSchema(Strict):
    """One machine."""

    ddr_capacity: Capacity
    ddr_bandwidth: Bandwidth
    device_link_bandwidth: Bandwidth


class LinkSchema(Strict):
    """One link level, per rank and direction, as achieved."""

    latency: Latency
    bandwidth: Bandwidth


class LinksSchema(Strict):
    """Three levels; ``domain`` joins hosts of one scale-up domain and defaults to ``host``."""

    host: LinkSchema
    domain: LinkSchema | None = None
    network: LinkSchema


class LayoutSchema(Strict):
    """Ranks per host, and ranks per scale-up domain (defaults to one host)."""

    gpus_per_host: Positive = 8
    domain_size: Positive | None = None


class SystemSchema(Strict):
    """A kind of machine, without its number."""

    name: Name
    description: str = ""
    device: DeviceSchema
    host: HostSchema
    links: LinksSchema
    layout: LayoutSchema = LayoutSchema()
    price: Price | None = None
