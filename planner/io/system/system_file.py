"""System files: a kind of machine, sized by the number of GPUs."""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from numbers import Integral
from pathlib import Path
from typing import Any

from costmodels import units
from costmodels.errors import CostModelError, InvalidValueError
from costmodels.estimates import Provenance, Source
from costmodels.fabrics import FABRICS, fabric_link
from costmodels.measured.fbgemm_constants import FbgemmConstants
from costmodels.topology import (
    Device,
    FittedFactors,
    Host,
    Link,
    Links,
    Measurements,
    Topology,
    with_host_factor,
)
from planner.errors import InvalidInputError
from planner.io.documents import Document, override
from planner.io.library import locate, names
from planner.io.schemas import Sourced, Strict, validate
from planner.io.system.collective_curves import load_curves, unknown_sets
from planner.io.system.measured_files import load_constants
from planner.io.system.system_schema import FabricSchema, LinkSchema, SystemSchema, read_system

_MOST_RANKS = 65_536
_UNIT = re.compile(r"_(bytes_per_s|bytes|per_s|s|ratio)$")
"""The unit at the end of a field's name, which the key of a file has in its value."""
_CSV = ".csv"


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
    path = locate(source, "systems")
    named = _named_system(path, gpus, gpus_per_host, overrides)
    try:
        return with_measurements(named)
    except InvalidInputError as error:
        raise InvalidInputError([f"{path}: {text}" for text in error.problems]) from error


def _named_system(
    path: Path,
    gpus: int | None,
    gpus_per_host: int | None,
    overrides: tuple[tuple[str, str], ...] = (),
) -> Topology:
    """As :func:`load_system`; what the system names is not read."""
    document = read_system(path)
    for pair in overrides:
        override(document, *pair)
    schema = validate(SystemSchema, document)
    problems = [
        f"{document.where(('collective_curves', i))}: {unknown}"
        for i, unknown in unknown_sets(schema.collective_curves)
    ]
    if problems:
        raise InvalidInputError(problems)
    num_hosts, local = _layout(gpus, gpus_per_host, schema.layout.gpus_per_host)
    domain = _domain(document, schema, num_hosts * local, local)
    try:
        topology = _uneven(schema, _topology(schema, num_hosts, local, domain))
        if schema.calibration is not None:
            topology = replace(topology, device=replace(topology.device, single_stream=True))
    except CostModelError as error:
        message = f"{path}: {error}"
        raise InvalidInputError(message) from error
    curves = tuple(_beside(name, path) for name in schema.collective_curves)
    topology = replace(_corrected(schema, path, topology), collective_curves=curves)
    if schema.calibration is None:
        return topology
    return replace(topology, calibration=str(path.parent / schema.calibration))


def with_measurements(topology: Topology) -> Topology:
    """The system with what it names: curves and a calibration.

    Raises:
        InvalidInputError: something that it names cannot be read.
    """
    measured = Measurements(
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
    sets = topology.collective_curves
    if not sets or any(name.endswith(_CSV) for name in sets):
        return None
    shipped = names("systems")
    local = topology.local_world_size
    if topology.name in shipped:
        known = _shipped(topology.name, local)
        if known.collective_curves in (sets, ()):
            return known.links
    every = (_shipped(name, local) for name in shipped)
    alike = [s for s in every if s.collective_curves == sets]
    alike.sort(
        key=lambda s: (
            s.device.name != topology.device.name,
            s.network_link.fabric != topology.network_link.fabric,
            s.name != sets[0],
        )
    )
    if not alike and sets[0] in shipped:
        alike = [_shipped(sets[0], local)]
    return alike[0].links if alike else None


@functools.lru_cache(maxsize=256)
def _shipped(name: str, local: int) -> Topology:
    return _named_system(locate(name, "systems"), local, local)


def load_smallest(source: str | Path, *, gpus_per_host: int | None = None) -> Topology:
    """Read a system at its smallest size: the fewest whole hosts that have all ranks it names.

    For questions that are not about a size, such as whether the file keeps the rules.

    Args:
        source: as for :func:`load_system`.
        gpus_per_host: as for :func:`load_system`.

    Raises:
        InvalidInputError: the file breaks a rule.
    """
    schema = validate(SystemSchema, read_system(locate(source, "systems")))
    _, local = _layout(None, gpus_per_host, schema.layout.gpus_per_host)
    ranks = [rank for entry in schema.different_ranks for rank in entry.ranks]
    hosts = [host for entry in schema.different_hosts for host in entry.hosts]
    fewest = 1 + max([0, *(rank // local for rank in ranks), *hosts])
    gpus = local * min(fewest, _MOST_RANKS // local)
    return load_system(source, gpus=gpus, gpus_per_host=gpus_per_host)


def _corrected(schema: SystemSchema, path: Path, topology: Topology) -> Topology:
    """The topology with fitted factors; the factor of host time changes the calls of the host."""
    given = schema.fitted
    if given is None:
        return topology
    try:
        fitted = FittedFactors(
            **_numbers(FittedFactors, given), spread_ratio=tuple(tuple(row) for row in given.spread)
        )
    except CostModelError as error:
        message = f"{path}: fitted.spread: {error}"
        raise InvalidInputError(message) from error
    return replace(with_host_factor(topology, fitted.host_ratio), fitted=fitted)


def _uneven(schema: SystemSchema, topology: Topology) -> Topology:
    """The topology with those ranks and hosts that differ from the others.

    A rank or host that gets the same key from two entries is refused: one would have no effect.
    """
    values = {
        "hbm_capacity": topology.hbm_capacities(),
        "speed": topology.speeds(),
        "ddr_capacity": topology.ddr_capacities(),
    }
    given: Counter[tuple[str, str, int]] = Counter()
    sections = (
        ("different_ranks", "ranks", topology.world_size),
        ("different_hosts", "hosts", topology.num_hosts),
    )
    for section, places, count in sections:
        for entry in getattr(schema, section):
            at = getattr(entry, places)
            if max(at) >= count:
                message = (
                    f"{section}.{places}: value {next(p for p in at if p >= count)}: must be "
                    f"0..{count - 1} at this size; remove it, or use more GPUs"
                )
                raise InvalidValueError(message)
            for key, numbers in values.items():
                if (number := getattr(entry, key, None)) is not None:
                    numbers[at] = number.value
                    given.update((section, key, place) for place in set(at))
    for (section, key, place), times in given.items():
        if times > 1:
            message = f"{section}: {times} entries give {key} of {place}; keep one"
            raise InvalidValueError(message)
    device, speeds, host = (tuple(numbers.tolist()) for numbers in values.values())
    if schema.different_ranks:
        topology = replace(topology, hbm_capacity_by_rank_bytes=device, speed_by_rank_ratio=speeds)
    if schema.different_hosts:
        topology = replace(topology, ddr_capacity_by_host_bytes=host)
    return topology


def _beside(name: str, path: Path) -> str:
    """The name of a set of curves, or the path of a CSV file beside the system file."""
    return str(path.parent / name) if name.endswith(".csv") else name


def system_json_schema() -> dict[str, Any]:
    """JSON Schema of a system file, for editors; a file with a base may leave any key out."""
    schema: dict[str, Any] = _without_required(SystemSchema.model_json_schema())
    return schema


def _without_required(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_required(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _without_required(value)
        for key, value in schema.items()
        if key != "required" or not isinstance(value, list)
    }


def _layout(gpus: int | None, gpus_per_host: int | None, default: int) -> tuple[int, int]:
    """(hosts, ranks per host)."""
    per_host = default if gpus_per_host is None else gpus_per_host
    total = per_host if gpus is None else gpus
    given: tuple[object, ...] = (total, per_host)
    are_whole = all(isinstance(number, Integral) for number in given)
    if not are_whole or not 1 <= total <= _MOST_RANKS or per_host < 1:
        message = (
            f"--gpus {total!r} with {per_host!r} per host: both must be whole numbers from 1 to "
            f"{_MOST_RANKS}"
        )
        raise InvalidInputError(message)
    if total < per_host:
        per_host = total
    if total % per_host:
        below = total - total % per_host
        message = (
            f"--gpus {total} is not a multiple of {per_host} GPUs per host; use "
            f"{below} or {below + per_host}, or --gpus-per-host"
        )
        raise InvalidInputError(message)
    return total // per_host, per_host


def _domain(document: Document, schema: SystemSchema, ranks: int, local: int) -> int:
    """Ranks of a domain in whole hosts; of domains of unequal size, those of the smallest one.

    The slowest rank of an exchange is in the smallest domain: it sends most over the network, and
    its domain has the fewest network cards.
    """
    given = schema.layout.domain_size or local
    sizes = given if isinstance(given, list) else [given]
    if isinstance(given, list):
        if ranks > sum(sizes):
            message = (
                f"{document.where(('layout', 'domain_size'))}: the domains have {sum(sizes)} GPUs, "
                f"which is less than --gpus {ranks}; add a domain, or use fewer GPUs"
            )
            raise InvalidInputError(message)
        starts = [0, *itertools.accumulate(sizes)]
        sizes = [min(n, ranks - first) for n, first in zip(sizes, starts, strict=False)]
        sizes = [n for n in sizes if n > 0]
    return min(max(local, n - n % local) for n in sizes)


def _topology(schema: SystemSchema, num_hosts: int, local: int, domain: int) -> Topology:
    links, device = schema.links, schema.device
    flops = tuple((dtype, rate.value) for dtype, rate in device.flops.items())
    # Constants of FBGEMM's lookups that the file does not give are shipped.
    constants = {name: number.value for name, number in schema.lookup.items()}
    host_link = replace(_link(links.host), mesh_ranks=links.host.mesh or 0)
    return Topology(
        name=schema.name,
        device=Device(name=device.name, flops_per_s=flops, **_numbers(Device, device)),
        host=Host(**_numbers(Host, schema.host)),
        num_hosts=num_hosts,
        local_world_size=local,
        domain_size=domain,
        host_link=host_link,
        domain_link=_link(links.domain or links.host),
        network_link=_network(schema, local),
        price_per_device_usd_per_hour=schema.price.value if schema.price else None,
        lookup_constants=FbgemmConstants(**constants) if constants else None,
        provenance=(*_provenance(schema), *_fabric_provenance(schema, local)),
    )


def _link(schema: LinkSchema) -> Link:
    return Link(**_numbers(Link, schema))


def _numbers(noun: type[Device | Host | Link | FittedFactors], schema: Strict) -> dict[str, Any]:
    """The numbers of a section by the fields of a noun: a field is a key and its unit."""
    given = {f.name: getattr(schema, _UNIT.sub("", f.name), None) for f in fields(noun)}
    return {name: number.value for name, number in given.items() if isinstance(number, Sourced)}


def _network(schema: SystemSchema, local: int) -> Link:
    """The network link of each of ``local`` ranks on a host."""
    network = schema.links.network
    link = _link(network) if isinstance(network, LinkSchema) else _of_kind(network, schema, local)
    pods = network.pods
    if pods is None:
        return link
    return replace(link, pod_hosts=pods.hosts, oversubscription_ratio=pods.oversubscription)


def _of_kind(network: FabricSchema, schema: SystemSchema, local: int) -> Link:
    """The link of a rank to a network of a kind: its share of the cards of its host.

    It uses no more cards than the link of its device can feed, and one at least: where few of the
    devices of a host run, those are the cards beside them.
    """
    fed = max(1.0, schema.host.device_link_bandwidth.value // network.nic.value)
    return fabric_link(
        network.fabric,
        nic_bytes_per_s=network.nic.value,
        nics_per_gpu=min(network.nics_per_host / local, fed),
        startup_s=network.latency.value if network.latency else None,
        efficiency_ratio=network.efficiency.value if network.efficiency else None,
        half_size_bytes=network.half_size.value if network.half_size else None,
        state=network.state,
    )


def _fabric_provenance(schema: SystemSchema, local: int) -> Iterator[Provenance]:
    """The sources of numbers that follow from the kind of network, unless the file gives them."""
    network = schema.links.network
    if not isinstance(network, FabricSchema):
        return
    link, source = _network(schema, local), FABRICS[network.fabric].source
    told = (
        (network.latency, "latency", units.format_time(link.latency_s)),
        (network.efficiency, "bandwidth", units.format_rate(link.bandwidth_bytes_per_s)),
    )
    for given, name, value in told:
        if given is None:
            yield Provenance(
                name=f"links.network.{name}",
                value=value,
                source=Source.CALIBRATED,
                reference=f"{network.fabric}, {source}",
            )


def _provenance(value: object, name: str = "") -> Iterator[Provenance]:
    """Every number of a file that has a source, with its key path."""
    if isinstance(value, Sourced):
        yield Provenance(
            name=name, value=value.text, source=value.source, reference=value.reference
        )
        return
    inner: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Strict):
        inner = [(key, getattr(value, key)) for key in type(value).model_fields]
    elif isinstance(value, dict):
        inner = value.items()
    for key, item in inner:
        yield from _provenance(item, f"{name}.{key}".lstrip("."))
