"""System files: their keys, files that start from another one (``base: h100_sxm``), and sizes.

A number is written with its unit and where it comes from. A system can name a calibration of CPU
ranks, which is JSON.
"""

import functools
import hashlib
import itertools
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import Discriminator, Field, Tag, TypeAdapter, ValidationError, model_validator

from costmodels import units
from costmodels.estimates import Provenance, Source
from costmodels.fabrics import FABRICS, STATES, fabric_link
from costmodels.measured.cpu_constants import CpuConstants
from costmodels.measured.fbgemm_constants import MOST, FbgemmConstants
from costmodels.topology import Device, FittedFactors, Host, Link, Links, Topology, with_host_factor
from costmodels.workload import DataType
from planner.errors import refuse
from planner.io import documents, schemas
from planner.io.system.collective_curves import load_curves
from planner.support.files import once_per_version, write_text_atomic

if TYPE_CHECKING:
    from costmodels.calibration.fitting import Calibration

Capacity: Any = schemas.quantity("bytes", "80 GiB", low=1.0)
Size: Any = schemas.quantity("bytes", "32 B")
Bandwidth: Any = schemas.quantity("bytes_per_s", "450 GB/s", low=1.0)
Latency: Any = schemas.quantity("s", "10 us", high=10.0)
Rate: Any = schemas.quantity("flops_per_s", "989 TFLOP/s", low=1.0)
Share: Any = schemas.quantity(None, "0.7", low=0.01, high=1.0)
Speed: Any = schemas.quantity(None, "0.8", low=0.01, high=100.0)
Slowdown: Any = schemas.quantity(None, "0.1", high=1.0)
KeysPerSecond: Any = schemas.quantity(None, "5e9", low=1.0)
Number: Any = schemas.quantity(None, "132", high=1e6, is_whole=True)
Price: Any = schemas.quantity("usd_per_hour", "3.9 USD/h")


_UNITS: Final = {
    "bytes": Size,
    "bytes_per_s": Bandwidth,
    "s": Latency,
    "per_s": KeysPerSecond,
    "ratio": Share,
}
_of_units: Final = partial(schemas.schema_of, units=_UNITS)


class _DeviceKeys(schemas.Strict):
    """One accelerator, by the rates that it achieves."""

    hbm_capacity: Capacity
    flops: Annotated[dict[Annotated[DataType, Field(strict=False)], Rate], Field(min_length=1)]
    overlap_slowdown: Slowdown | None = None
    num_multiprocessors: Number | None = None


class PodsSchema(schemas.Strict):
    """Hosts that share a rack or pod, and how far the links above it fall short.

    ``oversubscription`` is the rate of a pod's cards together over that of its links to other pods.
    """

    hosts: schemas.Positive
    oversubscription: Annotated[float, Field(ge=1, le=1000)]


class _HostLinkKeys(schemas.Strict):
    """The links inside a host; ``mesh`` ranks are joined pairwise, each by 1 / (mesh - 1) of it."""

    mesh: Annotated[int, Field(ge=2, le=1024)] | None = None


class _NetworkLinkKeys(schemas.Strict):
    """The network by rate and latency."""

    pods: PodsSchema | None = None


DeviceSchema: Any = _of_units(Device, "DeviceSchema", base=_DeviceKeys, without=("single_stream",))
HostSchema: Any = _of_units(Host, "HostSchema", eager_call=(Latency, ...))
_NOT_WRITTEN: Final = ("half_size_bytes", "fabric", "pod_hosts", "oversubscription_ratio")
_link: Final = partial(_of_units, Link, without=(*_NOT_WRITTEN, "mesh_ranks"))
LinkSchema: Any = _link("LinkSchema")
NetworkLinkSchema: Any = _link("NetworkLinkSchema", base=_NetworkLinkKeys)
_MESH: Final = {"mesh_ranks": "mesh"}
HostLinkSchema: Any = _link("HostLinkSchema", base=_HostLinkKeys, keys=_MESH, without=_NOT_WRITTEN)
_Fabric: Any = Literal[tuple(FABRICS)]
_State: Any = Literal[tuple(STATES)]


class FabricSchema(schemas.Strict):
    """A network by its kind and the network cards of a host.

    ``latency`` (start-up of one step of a collective from host to host), ``efficiency`` (share of
    the cards' rate that large messages reach) and ``half_size`` (message of an exchange that
    reaches half of it) are those of the kind unless given. ``state`` says that it is not tuned, or
    that bytes pass through the memory of the host.
    """

    fabric: _Fabric
    nic: Bandwidth
    nics_per_host: schemas.Positive
    latency: Latency | None = None
    efficiency: Share | None = None
    half_size: Size | None = None
    state: _State = "tuned"
    pods: PodsSchema | None = None

    @model_validator(mode="after")
    def _every_key_counts(self) -> Self:
        """Refuse a state beside the efficiency that it would change."""
        if self.efficiency is not None and "state" in self.model_fields_set:
            refuse("state contradicts efficiency, which says what the network reaches; keep one")
        return self


def _way(network: Any) -> str:
    """By kind, or by rate and latency; files that give a key of the kind mean the kind."""
    keys = network if isinstance(network, dict) else {}
    return "by kind" if keys.keys() & {"fabric", "nic", "nics_per_host"} else "by rate"


NetworkSchema = Annotated[
    Annotated[NetworkLinkSchema, Tag("by rate")] | Annotated[FabricSchema, Tag("by kind")],
    Discriminator(_way),
]


class LinksSchema(schemas.Strict):
    """Three levels; ``domain`` joins hosts of one scale-up domain and defaults to ``host``."""

    host: HostLinkSchema
    domain: LinkSchema | None = None
    network: NetworkSchema


class LayoutSchema(schemas.Strict):
    """Ranks per host, and ranks per scale-up domain (defaults to one host).

    A list has the ranks of each domain of the job, in the order of the ranks.
    """

    gpus_per_host: schemas.Positive = 8
    domain_size: (
        schemas.Positive | Annotated[list[schemas.Positive], Field(min_length=1)] | None
    ) = None

    @model_validator(mode="after")
    def _whole_hosts(self) -> Self:
        """Refuse a domain that ends inside a host."""
        given, host = self.domain_size, self.gpus_per_host
        sizes = given if isinstance(given, list) else [given or host]
        if any(size % host for size in sizes):
            refuse(
                f"domain_size {given} must be a multiple of gpus_per_host {host}: a domain joins "
                "whole hosts; change one of them"
            )
        return self


class RankSchema(schemas.Strict):
    """Ranks that differ from the device: less memory, or slower."""

    ranks: Annotated[list[schemas.Count], Field(min_length=1)]
    hbm_capacity: Capacity | None = None
    speed: Speed | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        """Refuse an entry that leaves its ranks as they are."""
        if self.hbm_capacity is None and self.speed is None:
            refuse("says nothing about its ranks; give hbm_capacity or speed, or remove the entry")
        return self


class DifferentHostSchema(schemas.Strict):
    """Hosts with another size of memory."""

    hosts: Annotated[list[schemas.Count], Field(min_length=1)]
    ddr_capacity: Size


Factor: Any = schemas.quantity(None, "1.08", low=0.001, high=1000.0)


class _FittedKeys(schemas.Strict):
    """Factors on kinds of time, from runs of one's own (``shardplan fit``).

    ``spread`` is what they leave open: rows of a lower triangle, in the order of the factors.
    """

    spread: Annotated[list[list[float]], Field(max_length=4)] = Field(default_factory=list)


FittedSchema: Any = schemas.schema_of(
    FittedFactors, "FittedSchema", base=_FittedKeys, units={"ratio": Factor}
)
Constant: Any = schemas.quantity(None, "1.3e-5")
_Constant: Any = Literal[tuple(MOST)]


class SystemSchema(schemas.Strict):
    """A kind of machine, without its number; keys that are missing are those of ``base``.

    Attributes:
        lookup: Constants of FBGEMM's lookups in SI units, by shardplan calibrate; others are the
            shipped ones.
    """

    base: schemas.Name | None = None
    name: schemas.Name
    description: str = ""
    device: DeviceSchema
    host: HostSchema
    links: LinksSchema
    layout: LayoutSchema = LayoutSchema()
    price: Price | None = None
    different_ranks: list[RankSchema] = Field(default_factory=list)
    different_hosts: list[DifferentHostSchema] = Field(default_factory=list)
    collective_curves: list[schemas.Name] = Field(default_factory=list)
    calibration: schemas.Name | None = None
    lookup: dict[_Constant, Constant] = Field(default_factory=dict)
    fitted: FittedSchema | None = None

    @model_validator(mode="after")
    def _every_key_counts(self) -> Self:
        """Refuse keys that another key, or its absence, would leave without effect."""
        if self.links.domain is not None and self.layout.domain_size is None:
            refuse(
                "links.domain needs layout.domain_size, the ranks that share it; without it a "
                "domain is one host"
            )
        for key, held in (("lookup", "lookups"), ("collective_curves", "collectives")):
            if self.calibration is not None and getattr(self, key):
                refuse(
                    f"{key} contradicts calibration, which holds measured {held} of CPU cores; "
                    "remove one of them"
                )
        return self


_WHOLE: Final = (("links", "network"), ("device", "flops"))
"""Keys that replace those of the base as a whole, because a network is of one kind only."""


def read_system(path: Path) -> documents.Document:
    """Read a system file; keys that it does not have are those of its base.

    A base is a shipped system or a file beside this one, and can have a base itself.

    Raises:
        InvalidInputError: a file cannot be read, or is its own base through others.
    """
    return system_of(path, documents.read_text(path))


def system_of(path: Path, text: str, above: tuple[Path, ...] = ()) -> documents.Document:
    """The system of a file with this text, which need not be written yet; it is a base of others.

    Raises:
        InvalidInputError: as for :func:`read_system`.
    """
    document = documents.as_yaml(path, text)
    base = document.value.get("base")
    if base is None:
        return document
    if not isinstance(base, str):
        refuse(f"{document.where(('base',))}: must be the name or file of a system, got {base!r}")
    beside = Path(os.path.normpath(path.parent / base))
    found = beside if documents.is_file(beside) else documents.locate(base, "systems")
    seen = [p.resolve() for p in (*above, path)]
    if found.resolve() in seen:
        refuse(
            f"{document.where(('base',))}: {base} leads back to {path.name}; name a system that "
            "stands for itself"
        )
    below = system_of(found, documents.read_text(found), (*above, path))
    values = _with_full_paths(replace(below, path=found.absolute())).value
    own = {key: value for key, value in document.value.items() if key != "base"}
    lines = {keys: f"{below.path}:{line}" for keys, line in below.lines.items()}
    origins = {k: v for k, v in (lines | below.origins).items() if k not in document.lines}
    return documents.Document(path, _merged_values(values, own, ()), document.lines, origins)


def _with_full_paths(document: documents.Document) -> documents.Document:
    """The system with full paths of the files that it names, which are beside it."""
    value, folder = dict(document.value), document.path.parent
    curves, calibration = value.get("collective_curves"), value.get("calibration")
    if isinstance(curves, list):
        value["collective_curves"] = [
            str(folder / name) if isinstance(name, str) and name.endswith(".csv") else name
            for name in curves
        ]
    if isinstance(calibration, str):
        value["calibration"] = str(folder / calibration)
    return replace(document, value=value)


def _merged_values(below: Any, own: Any, keys: documents.Keys) -> Any:
    if not isinstance(below, dict) or not isinstance(own, dict) or keys in _WHOLE:
        return own
    both = {k: _merged_values(below[k], v, (*keys, k)) if k in below else v for k, v in own.items()}
    return {**below, **both}


# ------------------------------------------------------------------ schema to nouns

_MOST_RANKS = 65_536


def load_system(
    source: str | Path,
    *,
    gpus: int | None = None,
    gpus_per_host: int | None = None,
    overrides: tuple[tuple[str, str], ...] = (),
) -> Topology:
    """Read a system at a size.

    Args:
        source: path of a ``.yaml`` file, or the name of a shipped system.
        gpus: number of ranks; None for one full host. If it is smaller than the ranks of a host,
            there is one host with this many ranks.
        gpus_per_host: ranks per host; None for those of the system.
        overrides: changes of single values, as pairs of a key path and a YAML text.

    Returns:
        The topology: sizes in bytes, rates in bytes or FLOP per second, latencies in seconds.

    Raises:
        InvalidInputError: the file breaks a rule, or ``gpus`` is no multiple of ``gpus_per_host``.

    Example:
        >>> load_system("h100_sxm", gpus=16).num_hosts
        2
    """
    path = documents.locate(source, "systems")
    document = read_system(path)
    documents.override_all(document, overrides)
    named = named_system(document, gpus, gpus_per_host)
    key = "collective_curves" if named.collective_curves else "calibration"
    return schemas.made(document.where((key,)), partial(with_measurements, named))


def named_system(
    document: documents.Document, gpus: int | None = None, gpus_per_host: int | None = None
) -> Topology:
    """As :func:`load_system`; what the system names is not read."""
    schema = schemas.validate(SystemSchema, _with_full_paths(document))
    num_hosts, local = _layout(gpus, gpus_per_host, schema.layout.gpus_per_host)
    domain = _domain(document, schema, num_hosts * local, local)
    topology = schemas.made(
        str(document.path),
        lambda: _uneven(schema, _topology(schema, num_hosts, local, domain)),
    )
    if schema.fitted is not None:
        where = document.where(("fitted", "spread"))
        fitted: FittedFactors = schemas.made(where, partial(schemas.as_noun, schema.fitted))
        topology = replace(with_host_factor(topology, fitted.host_ratio), fitted=fitted)
    return topology


def with_measurements(topology: Topology) -> Topology:
    """The system with what it names: curves and a calibration.

    Raises:
        InvalidInputError: something that it names cannot be read.
    """
    measured = replace(
        topology.measurements,
        curves=load_curves(topology),
        curve_links=links_measured(topology),
        cpu=load_constants(topology.calibration) if topology.calibration else None,
    )
    return replace(topology, measurements=measured)


def links_measured(topology: Topology) -> Links | None:
    """The links of the shipped system whose curves ``topology`` inherits.

    This is the shipped system of the same name. For a renamed copy it is the first of these that
    exists: a shipped system with the same sets of curves, the same device and the same kind of
    network; one with the same sets; the one that has the name of the first set.

    Returns:
        The links. None if the system has curves of its own file, which hold for its own links, or
        if no shipped system has such sets.
    """
    sets, local = topology.collective_curves, topology.local_world_size
    if not sets or any(name.endswith(".csv") for name in sets):
        return None
    shipped = documents.names("systems")
    if topology.name in shipped:
        known = _shipped(topology.name, local)
        if known.collective_curves in (sets, ()):
            return known.links
    every = [_shipped(name, local) for name in shipped]
    alike = [s for s in every if s.collective_curves == sets]
    alike = alike or [s for s in every if s.name == sets[0]]
    device, fabric = topology.device.name, topology.network_link.fabric
    rank = [
        (s.device.name != device, s.network_link.fabric != fabric, s.name != sets[0]) for s in alike
    ]
    return alike[rank.index(min(rank))].links if alike else None


@functools.lru_cache(maxsize=256)
def _shipped(name: str, local: int) -> Topology:
    return named_system(read_system(documents.locate(name, "systems")), local, local)


def load_smallest(source: str | Path, *, gpus_per_host: int | None = None) -> Topology:
    """Read a system at its smallest size: the fewest whole hosts that have all ranks it names.

    For questions that are not about a size, such as whether the file keeps the rules.

    Args:
        source: as for :func:`load_system`.
        gpus_per_host: as for :func:`load_system`.

    Raises:
        InvalidInputError: the file breaks a rule.
    """
    schema = schemas.validate(SystemSchema, read_system(documents.locate(source, "systems")))
    _, local = _layout(None, gpus_per_host, schema.layout.gpus_per_host)
    ranks = [rank for entry in schema.different_ranks for rank in entry.ranks]
    hosts = [host for entry in schema.different_hosts for host in entry.hosts]
    fewest = 1 + max([0, *(rank // local for rank in ranks), *hosts])
    gpus = local * min(fewest, _MOST_RANKS // local)
    return load_system(source, gpus=gpus, gpus_per_host=gpus_per_host)


def _uneven(schema: SystemSchema, topology: Topology) -> Topology:
    """The topology with those ranks and hosts that differ from the others.

    A rank or host that gets the same key from two entries is refused: one would have no effect.
    """
    own: dict[str, Any] = {}
    for section, places, key, field, values in (
        ("different_ranks", "ranks", "hbm_capacity", "hbm_capacity_by_rank_bytes",
         topology.hbm_capacities()),
        ("different_ranks", "ranks", "speed", "speed_by_rank_ratio", topology.speeds()),
        ("different_hosts", "hosts", "ddr_capacity", "ddr_capacity_by_host_bytes",
         topology.ddr_capacities()),
    ):  # fmt: skip
        entries, given = getattr(schema, section), set[int]()
        for entry in entries:
            at, number = getattr(entry, places), getattr(entry, key)
            if max(at) >= len(values):
                refuse(
                    f"{section}.{places}: value {next(p for p in at if p >= len(values))}: must be "
                    f"0..{len(values) - 1} at this size; remove it, or use more GPUs"
                )
            if number is not None:
                if twice := given & {*at}:
                    refuse(f"{section}: 2 entries give {key} of {min(twice)}; keep one")
                values[at] = number.value
                given |= {*at}
        if entries:
            own[field] = tuple(values.tolist())
    return replace(topology, **own)


def system_json_schema() -> dict[str, Any]:
    """JSON Schema of a system file, for editors; a file with a base may leave any key out."""

    def optional(part: dict[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in part.items() if k != "required" or not isinstance(v, list)}

    text = json.dumps(SystemSchema.model_json_schema())
    schema: dict[str, Any] = json.loads(text, object_hook=optional)
    return schema


def _layout(gpus: int | None, gpus_per_host: int | None, default: int) -> tuple[int, int]:
    """(hosts, ranks per host)."""
    per_host = default if gpus_per_host is None else gpus_per_host
    total = per_host if gpus is None else gpus
    given: tuple[object, ...] = (total, per_host)
    are_whole = all(isinstance(number, Integral) for number in given)
    if not are_whole or not 1 <= total <= _MOST_RANKS or per_host < 1:
        refuse(
            f"--gpus {total!r} with {per_host!r} per host: both must be whole numbers from 1 to "
            f"{_MOST_RANKS}"
        )
    per_host = min(per_host, total)
    if rest := total % per_host:
        refuse(
            f"--gpus {total} is not a multiple of {per_host} GPUs per host; use "
            f"{total - rest} or {total - rest + per_host}, or --gpus-per-host"
        )
    return total // per_host, per_host


def _domain(document: documents.Document, schema: SystemSchema, ranks: int, local: int) -> int:
    """Ranks of a domain in whole hosts; of domains of unequal size, those of the smallest one.

    The slowest rank of an exchange is in the smallest domain: it sends most over the network, and
    its domain has the fewest network cards.
    """
    given = schema.layout.domain_size or local
    sizes = given if isinstance(given, list) else [given]
    if isinstance(given, list):
        if ranks > sum(sizes):
            refuse(
                f"{document.where(('layout', 'domain_size'))}: the domains have {sum(sizes)} GPUs, "
                f"which is less than --gpus {ranks}; add a domain, or use fewer GPUs"
            )
        starts = [0, *itertools.accumulate(sizes)]
        sizes = [min(n, ranks - first) for n, first in zip(sizes, starts, strict=False)]
        sizes = [n for n in sizes if n > 0]
    return min(max(local, n - n % local) for n in sizes)


def _topology(schema: SystemSchema, num_hosts: int, local: int, domain: int) -> Topology:
    links = schema.links
    # Constants of FBGEMM's lookups that the file does not give are shipped.
    constants = {name: number.value for name, number in schema.lookup.items()}
    return Topology(
        name=schema.name,
        device=schemas.as_noun(schema.device, single_stream=schema.calibration is not None),
        host=schemas.as_noun(schema.host),
        num_hosts=num_hosts,
        local_world_size=local,
        domain_size=domain,
        host_link=schemas.as_noun(links.host),
        domain_link=schemas.noun_of(Link, links.domain or links.host, mesh_ranks=0),
        network_link=_network(schema, local),
        price_per_device_usd_per_hour=schema.price.value if schema.price else None,
        lookup_constants=FbgemmConstants(**constants) if constants else None,
        collective_curves=tuple(schema.collective_curves),
        calibration=schema.calibration or "",
        provenance=(*_provenance(schema), *_fabric_provenance(schema, local)),
    )


def _network(schema: SystemSchema, local: int) -> Link:
    """The network link of each of ``local`` ranks on a host.

    To a network of a kind it is the rank's share of the cards of its host. It uses no more cards
    than the link of its device can feed, and one at least: where few of the devices of a host run,
    those are the cards beside them.
    """
    network = schema.links.network
    pods = network.pods
    if not isinstance(network, FabricSchema):
        link = schemas.noun_of(Link, network)
    else:
        fed = max(1.0, schema.host.device_link_bandwidth.value // network.nic.value)
        link = fabric_link(
            network.fabric,
            nic_bytes_per_s=network.nic.value,
            nics_per_gpu=min(network.nics_per_host / local, fed),
            startup_s=schemas.as_noun(network.latency),
            efficiency_ratio=schemas.as_noun(network.efficiency),
            half_size_bytes=schemas.as_noun(network.half_size),
            state=network.state,
        )
    if pods is None:
        return link
    return replace(link, pod_hosts=pods.hosts, oversubscription_ratio=pods.oversubscription)


def _fabric_provenance(schema: SystemSchema, local: int) -> Iterator[Provenance]:
    """The sources of numbers that follow from the kind of network, unless the file gives them."""
    network = schema.links.network
    if not isinstance(network, FabricSchema):
        return
    link, source = _network(schema, local), FABRICS[network.fabric].source
    for given, name, value in (
        (network.latency, "latency", units.format_time(link.latency_s)),
        (network.efficiency, "bandwidth", units.format_rate(link.bandwidth_bytes_per_s)),
    ):
        if given is None:
            name, reference = f"links.network.{name}", f"{network.fabric}, {source}"
            kind = Source.CALIBRATED
            yield Provenance(name=name, value=value, source=kind, reference=reference)


def _provenance(value: Any, name: str = "") -> Iterator[Provenance]:
    """Every number of a file that has a source, with its key path."""
    if isinstance(value, schemas.Sourced):
        source, reference = value.source, value.reference
        yield Provenance(name=name, value=value.text, source=source, reference=reference)
    inner = dict(value) if isinstance(value, schemas.Strict | dict) else {}
    for key, item in inner.items():
        yield from _provenance(item, f"{name}.{key}".lstrip("."))


# ------------------------------------------------------------------ calibrations of CPU ranks


@functools.cache
def _adapter() -> "TypeAdapter[Calibration]":
    """Made when a calibration is read: most commands read none, and it takes milliseconds."""
    from costmodels.calibration.fitting import Calibration

    return TypeAdapter(Calibration)


def write_calibration(path: Path, calibration: "Calibration") -> None:
    """Write the constants, the errors of the fit, and doubtful points."""
    write_text_atomic(path, _adapter().dump_json(calibration, indent=1).decode() + "\n")


def read_calibration(path: str | Path) -> "Calibration":
    """Read a calibration that :func:`write_calibration` has written.

    Raises:
        InvalidInputError: there is no such file, or it is not a calibration.
    """
    try:
        return _adapter().validate_json(Path(path).read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = " ".join(map(str, [*first["loc"], first["msg"]]))
        refuse(f"{path} is not a calibration: {where}; write it anew by 'shardplan calibrate'")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        refuse(f"cannot read the calibration {path}: {reason}")


@once_per_version(num_kept=8)
def load_constants(path: str) -> CpuConstants:
    """The constants of a calibration; each version of a file is read only once."""
    return read_calibration(path).constants


def measured_hash(topology: Topology) -> str:
    """SHA-256 over a system's calibration and own curves; empty without any."""
    named = [topology.calibration] if topology.calibration else []
    named += [name for name in topology.collective_curves if name.endswith(".csv")]
    files = [path for path in map(Path, named) if documents.is_file(path)]
    digests = [hashlib.sha256(f.read_bytes()).digest() for f in files]
    return hashlib.sha256(b"".join(digests)).hexdigest() if files else ""
