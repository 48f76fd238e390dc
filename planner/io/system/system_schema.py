"""The keys of a system file, and files that start from another one: ``base: h100_sxm``.

A number is written with its unit and where it comes from.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from costmodels.fabrics import FABRICS, STATES
from costmodels.measured.fbgemm_constants import MOST
from costmodels.workload import DataType
from planner.errors import InvalidInputError
from planner.io.documents import Document, Keys, as_yaml, read_text, read_yaml
from planner.io.library import configs_folder, is_file, locate
from planner.io.schemas import Count, Name, Positive, Quantity, Sourced, Strict

Capacity = Annotated[Sourced, Quantity(dimension="bytes", example="80 GiB", low=1.0)]
Size = Annotated[Sourced, Quantity(dimension="bytes", example="32 B")]
Bandwidth = Annotated[Sourced, Quantity(dimension="bytes_per_s", example="450 GB/s", low=1.0)]
Latency = Annotated[Sourced, Quantity(dimension="s", example="10 us", high=10.0)]
Rate = Annotated[Sourced, Quantity(dimension="flops_per_s", example="989 TFLOP/s", low=1.0)]
Share = Annotated[Sourced, Quantity(dimension=None, example="0.7", low=0.01, high=1.0)]
Speed = Annotated[Sourced, Quantity(dimension=None, example="0.8", low=0.01, high=100.0)]
Slowdown = Annotated[Sourced, Quantity(dimension=None, example="0.1", high=1.0)]
KeysPerSecond = Annotated[Sourced, Quantity(dimension=None, example="5e9", low=1.0)]
Number = Annotated[Sourced, Quantity(dimension=None, example="132", high=1e6, is_whole=True)]
Price = Annotated[Sourced, Quantity(dimension="usd_per_hour", example="3.9 USD/h")]


class DeviceSchema(Strict):
    """One accelerator."""

    name: Annotated[
        Name,
        Field(description="Device; 'cpu' where ranks are CPU cores, which have fewer kernels."),
    ]
    hbm_capacity: Capacity
    hbm_bandwidth: Bandwidth
    l2_capacity: Size
    l2_bandwidth: Bandwidth
    flops: Annotated[dict[Annotated[DataType, Field(strict=False)], Rate], Field(min_length=1)]
    flops_efficiency: Share
    kernel_latency: Latency
    row_half: Size
    update_efficiency: Share
    sort_rate: KeysPerSecond
    overlap_slowdown: Slowdown | None = None
    num_multiprocessors: Number | None = None


class HostSchema(Strict):
    """One machine."""

    ddr_capacity: Size
    ddr_bandwidth: Bandwidth = Field(
        description="The rate of TorchRec's topology for CPU ranks; no model of GPUs reads it."
    )
    device_link_bandwidth: Bandwidth
    eager_call: Latency = Field(
        description="Time of an eager call of a tiny kernel; calibrate --host measures it."
    )
    eager_pass: Latency | None = None
    """Time of a tiny forward and backward pass; 15 eager calls if it is not given."""


class LinkSchema(Strict):
    """One link level, per rank and direction, as achieved."""

    latency: Latency
    bandwidth: Bandwidth


class HostLinkSchema(LinkSchema):
    """The links inside a host; ``mesh`` ranks are joined pairwise, each by 1 / (mesh - 1) of it."""

    mesh: Annotated[int, Field(ge=2, le=1024)] | None = None


class PodsSchema(Strict):
    """Hosts that share a rack or pod, and how far the links above it fall short.

    ``oversubscription`` is the rate of a pod's cards together over that of its links to other pods.
    """

    hosts: Positive
    oversubscription: Annotated[float, Field(ge=1, le=1000)]


class NetworkLinkSchema(LinkSchema):
    """The network by rate and latency."""

    pods: PodsSchema | None = None


def _one_of(known: Iterable[str]) -> tuple[AfterValidator, Any]:
    """Allows only words that are known."""
    words = [*known]

    def check(word: str) -> str:
        if word not in words:
            message = f"must be one of {', '.join(words)}"
            raise ValueError(message)
        return word

    return AfterValidator(check), Field(json_schema_extra={"enum": [*words]})


class FabricSchema(Strict):
    """A network by its kind and the network cards of a host.

    ``latency`` (start-up of one step of a collective from host to host), ``efficiency`` (share of
    the cards' rate that large messages reach) and ``half_size`` (message of an exchange that
    reaches half of it) are those of the kind unless given. ``state`` says that it is not tuned, or
    that bytes pass through the memory of the host.
    """

    fabric: Annotated[str, *_one_of(FABRICS)]
    nic: Bandwidth
    nics_per_host: Positive
    latency: Latency | None = None
    efficiency: Share | None = None
    half_size: Size | None = None
    state: Annotated[str, *_one_of(STATES)] = "tuned"
    pods: PodsSchema | None = None

    @model_validator(mode="after")
    def _every_key_counts(self) -> FabricSchema:
        """Refuse a state beside the efficiency that it would change."""
        if self.efficiency is not None and "state" in self.model_fields_set:
            msg = "state contradicts efficiency, which says what the network reaches; keep one"
            raise ValueError(msg)
        return self


def _way(network: Any) -> str:
    """By kind, or by rate and latency; files that give a key of the kind mean the kind."""
    keys = network if isinstance(network, dict) else {}
    return "fabric" if keys.keys() & {"fabric", "nic", "nics_per_host"} else "link"


NetworkSchema = Annotated[
    Annotated[NetworkLinkSchema, Tag("link")] | Annotated[FabricSchema, Tag("fabric")],
    Discriminator(_way),
]


class LinksSchema(Strict):
    """Three levels; ``domain`` joins hosts of one scale-up domain and defaults to ``host``."""

    host: HostLinkSchema
    domain: LinkSchema | None = None
    network: NetworkSchema


class LayoutSchema(Strict):
    """Ranks per host, and ranks per scale-up domain (defaults to one host).

    A list has the ranks of each domain of the job, in the order of the ranks.
    """

    gpus_per_host: Positive = 8
    domain_size: Positive | Annotated[list[Positive], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _whole_hosts(self) -> LayoutSchema:
        """Refuse a domain that ends inside a host."""
        given, host = self.domain_size, self.gpus_per_host
        sizes = given if isinstance(given, list) else [given or host]
        if any(size % host for size in sizes):
            msg = (
                f"domain_size {given} must be a multiple of gpus_per_host {host}: a domain joins "
                "whole hosts; change one of them"
            )
            raise ValueError(msg)
        return self


class RankSchema(Strict):
    """Ranks that differ from the device: less memory, or slower."""

    ranks: Annotated[list[Count], Field(min_length=1)]
    hbm_capacity: Capacity | None = None
    speed: Speed | None = None

    @model_validator(mode="after")
    def _says_something(self) -> RankSchema:
        """Refuse an entry that leaves its ranks as they are."""
        if self.hbm_capacity is None and self.speed is None:
            msg = "says nothing about its ranks; give hbm_capacity or speed, or remove the entry"
            raise ValueError(msg)
        return self


class DifferentHostSchema(Strict):
    """Hosts with another size of memory."""

    hosts: Annotated[list[Count], Field(min_length=1)]
    ddr_capacity: Size


LEAST_FACTOR: Final = 0.001
MOST_FACTOR: Final = 1000.0
Factor = Annotated[
    Sourced, Quantity(dimension=None, example="1.08", low=LEAST_FACTOR, high=MOST_FACTOR)
]


class FittedSchema(Strict):
    """Factors on kinds of time, from runs of one's own (``shardplan fit``).

    ``spread`` is what they leave open: rows of a lower triangle, in the order of the factors.
    """

    lookup: Factor
    collective: Factor
    dense: Factor
    host: Factor
    spread: Annotated[list[list[float]], Field(max_length=4)] = Field(default_factory=list)


Constant = Annotated[Sourced, Quantity(dimension=None, example="1.3e-5")]
LookupConstants = dict[Annotated[str, *_one_of(MOST)], Constant]


class SystemSchema(Strict):
    """A kind of machine, without its number; keys that are missing are those of ``base``."""

    base: Name | None = None
    name: Name
    description: str = ""
    device: DeviceSchema
    host: HostSchema
    links: LinksSchema
    layout: LayoutSchema = LayoutSchema()
    price: Price | None = None
    different_ranks: list[RankSchema] = Field(default_factory=list)
    different_hosts: list[DifferentHostSchema] = Field(default_factory=list)
    collective_curves: list[Name] = Field(default_factory=list)
    calibration: Name | None = None
    lookup: LookupConstants = Field(default_factory=dict)
    """Constants of FBGEMM's lookups in SI units, by shardplan calibrate; others are the shipped
    ones."""
    fitted: FittedSchema | None = None

    @model_validator(mode="after")
    def _every_key_counts(self) -> SystemSchema:
        """Refuse keys that another key, or its absence, would leave without effect."""
        if self.links.domain is not None and self.layout.domain_size is None:
            msg = (
                "links.domain needs layout.domain_size, the ranks that share it; without it a "
                "domain is one host"
            )
            raise ValueError(msg)
        for key, held in (("lookup", "lookups"), ("collective_curves", "collectives")):
            if self.calibration is not None and getattr(self, key):
                msg = (
                    f"{key} contradicts calibration, which holds measured {held} of CPU cores; "
                    "remove one of them"
                )
                raise ValueError(msg)
        return self


_WHOLE: Final = (("links", "network"), ("device", "flops"))
"""Keys that replace those of the base as a whole, because a network is of one kind only."""
_DEEPEST: Final = 8


def read_system(path: Path) -> Document:
    """Read a system file; keys that it does not have are those of its base.

    A base is a shipped system or a file beside this one, and can have a base itself.

    Raises:
        InvalidInputError: a file cannot be read, or is its own base through others.
    """
    return system_of(path, read_text(path))


def system_of(path: Path, text: str, above: tuple[Path, ...] = ()) -> Document:
    """The system of a file with this text, which need not be written yet; it is a base of others.

    Raises:
        InvalidInputError: as for :func:`read_system`.
    """
    document = as_yaml(path, text)
    base = document.value.get("base")
    if base is None:
        return document
    if not isinstance(base, str):
        message = f"{document.where(('base',))}: must be the name or file of a system, got {base!r}"
        raise InvalidInputError(message)
    found = _beside_or_shipped(path, base)
    seen = [p.resolve() for p in (*above, path)]
    if found.resolve() in seen or len(above) >= _DEEPEST:
        message = (
            f"{document.where(('base',))}: {base} leads back to {path.name}; name a system that "
            "stands for itself"
        )
        raise InvalidInputError(message)
    below = _beside(system_of(found, read_text(found), (*above, path)))
    own = {key: value for key, value in document.value.items() if key != "base"}
    lines = {keys: f"{below.path}:{line}" for keys, line in below.lines.items()}
    origins = {k: v for k, v in (lines | below.origins).items() if not _is_own(k, own)}
    return Document(path, _merged_values(below.value, own, ()), document.lines, origins)


def _is_own(keys: Keys, own: Any) -> bool:
    """Whether a file's own values say what is at a place, so that nothing of its base is there."""
    for i, key in enumerate(keys):
        if not isinstance(own, dict) or keys[:i] in _WHOLE:
            return True
        if key not in own:
            return False
        own = own[key]
    return True


def own_base(path: Path) -> Path | None:
    """The file beside a system file that is its base; None for a shipped base, or no base.

    Raises:
        InvalidInputError: a file cannot be read, or there is no such system.
    """
    base = read_yaml(path).value.get("base")
    found = _beside_or_shipped(path, base) if isinstance(base, str) else None
    return None if found is None or found.is_relative_to(configs_folder()) else found


def _beside_or_shipped(path: Path, base: str) -> Path:
    beside = path.parent / base
    return beside if is_file(beside) else locate(base, "systems")


def _beside(base: Document) -> Document:
    """The base with full paths of the files that it names, because they are beside the base."""
    value, folder = dict(base.value), base.path.parent.absolute()
    curves = value.get("collective_curves")
    if isinstance(curves, list):
        value["collective_curves"] = [
            str(folder / c) if isinstance(c, str) and c.endswith(".csv") else c for c in curves
        ]
    if isinstance(value.get("calibration"), str):
        value["calibration"] = str(folder / value["calibration"])
    return Document(base.path, value, base.lines, base.origins)


def _merged_values(below: Any, own: Any, keys: Keys) -> Any:
    if not isinstance(below, dict) or not isinstance(own, dict) or keys in _WHOLE:
        return own
    both = {k: _merged_values(below[k], v, (*keys, k)) if k in below else v for k, v in own.items()}
    return {**below, **both}
