"""Measures a device point by point, and writes each point as a row of a file once it is known.

The points are those of :mod:`costmodels.calibration.device`; docs/reference/formats.md
describes the rows. A point that fails is a row that says so, and the next one follows.
"""

import gc
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache, partial
from importlib import metadata
from importlib.util import find_spec
from itertools import count, pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple, Self

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from costmodels.calibration import device as designs
from costmodels.calibration.points import CollectivePoint
from costmodels.distribution.zipf import Zipf
from costmodels.units import KIB, MIB, US
from planner.integrations.measure.calibrate import machine_name, memory_bytes
from planner.integrations.measure.gloo_ranks import rendezvous

Step = Callable[[int], object]
"""Work to be timed; its argument counts the calls, so that inputs can take turns."""

_HOLD_S: Final = 1.5e-3
"""How long the device is held at first; a held call that outlasts it is repeated, held longer."""
_LONGEST_HOLD_S: Final = 0.1
_SLEEP_CYCLES: Final = 1_000_000
_DRIVER: Final = Path("/proc/driver/nvidia/version")
_PACKAGES: Final = {"fbgemm-gpu-cpu": "fbgemm", "fbgemm-gpu": "fbgemm", "torchrec": "torchrec"}


class TimedCall(NamedTuple):
    """Seconds of steps, one list for each step, and whether the host was outside all of them."""

    each_s: tuple[tuple[float, ...], ...]
    is_held: bool


class _Mark:
    """A moment of a CPU core, in the place of an event of a GPU."""

    def record(self) -> None:
        self._at_s = time.perf_counter()

    def query(self) -> bool:
        return False

    def elapsed_time(self, later: Self) -> float:
        return 1e3 * (later._at_s - self._at_s)


class Device:
    """The core of this process, or a CUDA device: events on its stream, and a sleep that holds it.

    Calls of a core have ended when they return, so that nothing is held there.
    """

    def __init__(self, name: str) -> None:
        """Take the device, such as ``cuda:0``; on CUDA time its sleep."""
        self.device = torch.device(name)
        self.on_gpu = self.device.type == "cuda"
        self._hold_s, self._cycles_per_s = _HOLD_S, 0.0
        for _ in range(2 * self.on_gpu):  # the second sleep counts
            torch.cuda.set_device(self.device)
            begun, ended = self._event(), self._event()
            begun.record()
            torch.cuda._sleep(_SLEEP_CYCLES)
            ended.record()
            self._synchronize()
            self._cycles_per_s = _SLEEP_CYCLES / max(1e-3 * begun.elapsed_time(ended), US)

    @property
    def memory_bytes(self) -> float:
        """Memory that points may use: what is free of a GPU's, or that of the machine."""
        return float(torch.cuda.mem_get_info(self.device)[0]) if self.on_gpu else memory_bytes()

    def timed(
        self, steps: Sequence[Step], *, repeats: int, warm_up: int = 3, is_held: bool = True
    ) -> TimedCall:
        """The seconds that the device works on each of ``steps``, which follow each other.

        Args:
            steps: what is timed, each by itself.
            repeats: how often.
            warm_up: calls before, which are not counted.
            is_held: whether to keep the device from starting until the host has queued all steps.
                Copies of pageable memory wait for the device and cannot be held.
        """
        for i in range(warm_up):
            for step in steps:
                step(i)
        self._synchronize()
        times, was_held, turns = [], is_held, count(warm_up)
        for _ in range(repeats):
            marks, queued_in_time = self._once(steps, next(turns), is_held=is_held)
            while is_held and not queued_in_time and self._hold_s < _LONGEST_HOLD_S:
                self._hold_s *= 2.0
                marks, queued_in_time = self._once(steps, next(turns), is_held=is_held)
            was_held = was_held and queued_in_time
            times.append([1e-3 * a.elapsed_time(b) for a, b in pairwise(marks)])
        if not was_held:
            self._hold_s = _HOLD_S
        return TimedCall(each_s=tuple(zip(*times, strict=True)), is_held=was_held)

    def _once(self, steps: Sequence[Step], turn: int, *, is_held: bool) -> tuple[list[Any], bool]:
        """Events around each step, and whether the host queued all before the first one began."""
        marks = [self._event() for _ in range(len(steps) + 1)]
        if is_held and self.on_gpu:
            torch.cuda._sleep(int(self._hold_s * self._cycles_per_s))
        marks[0].record()
        for step, mark in zip(steps, marks[1:], strict=True):
            step(turn)
            mark.record()
        queued_in_time = not marks[0].query()
        self._synchronize()
        return marks, queued_in_time

    def _event(self) -> Any:
        return torch.cuda.Event(enable_timing=True) if self.on_gpu else _Mark()

    def _synchronize(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def tidy(self) -> None:
        """Give freed memory back."""
        gc.collect()
        torch.cuda.empty_cache()

    def facts(self) -> dict[str, Any]:
        """What the first row of a file says of the device, its driver and its software.

        The version of NVIDIA's driver is what its kernel module says, where there is one.
        """
        found: dict[str, Any] = {"cpu": machine_name()}
        if self.on_gpu:
            properties = torch.cuda.get_device_properties(self.device)
            found = {
                "gpu": properties.name,
                "sms": properties.multi_processor_count,
                "mem": properties.total_memory,
                "cuda": torch.version.cuda,
            }
        found |= {"torch": torch.__version__, "measured": datetime.now(UTC).date().isoformat()}
        for package, key in _PACKAGES.items():
            with suppress(metadata.PackageNotFoundError):
                found[key] = metadata.version(package)
        if torch.cuda.is_available():
            with suppress(OSError, StopIteration):
                words = _DRIVER.read_text(encoding="utf-8").split()
                found["driver"] = next(w for w in words if w[:1].isdigit() and "." in w)
            if dist.is_nccl_available():
                found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        return found


_FEW: Final = 8
"""Elements of a tensor whose kernels take no longer than any kernel must."""
_COLLECTIVES_IN_A_ROW: Final = 10
"""As in NCCL's own tests, collectives follow each other, so that no rank waits for a late one."""
_CACHE_WARM_UP: Final = 16
"""Batches after which a cache of rows holds what it will hold."""
_MOST_HELD_INDICES: Final = 3e7
_CALLS: Final = 200
_PASSES: Final = 20
"""Calls of the host in a repeat: some milliseconds, so that most repeats meet no other process."""
_HOST_REPEATS: Final = 41
_HOST_WARM_UP: Final = 50
_UNDISTURBED: Final = 0.25
"""Quantile of the repeats that counts, as other processes only ever add to a time."""
_GRADIENT: Final = 1e-3
_BROKEN: Final = ("CUDA error", "illegal memory access", "NCCL error")
"""Words of errors after which a process can do nothing more on its GPU."""


def measure_device(rank: int, world_size: int, job: designs.DeviceJob) -> None:
    """Measure as one of the ranks: collectives together, everything else by rank 0 alone."""
    device = Device(f"cuda:{rank}" if job.kind == "cuda" else job.kind)

    def add(row: designs.Row) -> None:
        """Append a row, so that it is on disk before the next point begins."""
        if rank == 0:
            with Path(job.path).open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    add({"block": "ceilings", "what": "env", "ranks": world_size, **device.facts()})
    for point, measure in _measurements(device, rank, world_size, job):
        try:
            add({**point, **measure()})
        except Exception as error:  # whatever fails, the other points are still worth measuring
            add({**point, "error": f"{type(error).__name__}: {error}"[:400]})
            is_full = isinstance(error, torch.cuda.OutOfMemoryError)
            if not is_full and any(words in str(error) for words in _BROKEN):
                reason = "the device failed; not measured"
                add({"block": "ceilings", "what": "rest", "error": reason})
                return
        device.tidy()


def _measurements(
    device: Device, rank: int, world_size: int, job: designs.DeviceJob
) -> Iterator[tuple[designs.Row, Callable[[], designs.Row]]]:
    """The points that this rank measures, as far as its device and software go, and how."""
    point: designs.Row
    size, repeats = job.effort.size_ratio, job.effort.repeats
    for case in designs.exchange_points(world_size, size_ratio=size) if world_size > 1 else ():
        point = {
            "block": "collectives",
            "operation": case.operation,
            "ranks": world_size,
            "sent_bytes": list(case.sent_bytes),
            "kept_bytes": list(case.kept_bytes),
            "backend": "nccl" if device.on_gpu else "gloo",
        }
        yield point, partial(_exchanged, device, case, rank, repeats)
    if rank > 0:
        return
    missing: dict[str, str] = {}
    if not device.on_gpu:
        missing = dict.fromkeys(("uvm", "uvmc"), "CPU cores have no memory of their own")
    if find_spec("fbgemm_gpu") is None:
        missing = dict.fromkeys(designs.LOOKUP_BLOCKS, "fbgemm_gpu is not installed")
    for point in designs.device_points(job.effort, job.seed, memory_bytes=device.memory_bytes):
        if point["block"] not in missing:
            yield point, partial(MEASURES[point.get("what", "lookup")], device, point, repeats)
    for block, error in missing.items():
        yield {"block": block}, partial(dict, error=error)


def _kernel_gap(device: Device, _: designs.Row, repeats: int) -> designs.Row:
    few = torch.zeros(_FEW, device=device.device)

    def run(_: int) -> None:
        for _ in range(designs.KERNELS_IN_A_ROW):
            few.add_(1.0)

    seconds = device.timed([run], repeats=repeats).each_s[0]
    return {"us_each": _us(median(seconds)) / designs.KERNELS_IN_A_ROW}


def _host_call(device: Device, row: designs.Row, _: int) -> designs.Row:
    """A call of the host, issued back to back."""
    name = "eager_call_s" if row["what"] == designs.EAGER_CALL else "eager_pass_s"
    return {"wall_us": _us(getattr(measure_host(device.device), name))}


@cache
def measure_host(device: torch.device | str) -> designs.HostCalls:
    """Seconds of an eager call and of a tiny pass, after a warm-up, in about a second.

    On CUDA each call is followed by the record of an event, and the device has finished before the
    clock is read.
    """
    measured = torch.device(device)
    values = torch.zeros(8, device=measured)
    layer, samples = nn.Linear(8, 8).to(measured), torch.randn(8, 8, device=measured)
    on_gpu = measured.type == "cuda"
    name = f"host of {torch.cuda.get_device_name(measured)}" if on_gpu else "eager calls on cpu"
    return designs.HostCalls(
        eager_call_s=_call_s(lambda: values.add_(1), _CALLS, measured),
        eager_pass_s=_call_s(lambda: layer(samples).sum().backward(), _PASSES, measured),
        machine=f"{name}, PyTorch {torch.__version__.partition('+')[0]}",
    )


def _call_s(call: Callable[[], object], number: int, device: torch.device) -> float:
    """Seconds of one of ``number`` calls, issued back to back."""
    on_gpu = device.type == "cuda"
    synchronize = partial(torch.cuda.synchronize, device) if on_gpu else lambda: None
    for _ in range(_HOST_WARM_UP):
        call()
    times_s = []
    for _ in range(_HOST_REPEATS):
        events = [torch.cuda.Event(enable_timing=True) if on_gpu else None for _ in range(number)]
        synchronize()
        start_s = time.perf_counter()
        for event in events:
            call()
            if event is not None:
                event.record()
        synchronize()
        times_s.append((time.perf_counter() - start_s) / number)
    return float(np.quantile(times_s, _UNDISTURBED))


def _typical_us(timed: TimedCall, *names: str) -> designs.Row:
    """The median microseconds of each step, and a remark if the host was in them."""
    found: designs.Row = {n: _us(median(s)) for n, s in zip(names, timed.each_s, strict=True)}
    return found if timed.is_held else {**found, "held": False}


def _us(seconds: float) -> float:
    """Microseconds with the six digits that a measurement has at most."""
    return float(f"{seconds / US:.6g}")


def _copied(device: Device, row: designs.Row, repeats: int) -> designs.Row:
    source = torch.ones(int(row["mb"]) * MIB // 4, device=device.device)
    target = torch.empty_like(source)
    steps: dict[str, Step] = {
        "d2d": lambda _: target.copy_(source),
        "add": lambda _: torch.add(source, source, out=target),
    }
    return _typical_us(device.timed([steps[row["what"]]], repeats=repeats), "us")


def _linked(device: Device, row: designs.Row, repeats: int) -> designs.Row:
    size, is_pinned = int(row["kb"]) * KIB, bool(row["pinned"])
    near = torch.empty(size, dtype=torch.uint8, pin_memory=is_pinned and device.on_gpu).fill_(7)
    far = torch.empty(size, dtype=torch.uint8, device=device.device)
    found = {}
    for name, target, source in (("h2d_us", far, near), ("d2h_us", near, far)):
        steps = [lambda _, to=target, of=source: to.copy_(of, non_blocking=True)]
        timed = device.timed(steps, repeats=repeats, is_held=is_pinned)
        found[name] = _us(median(timed.each_s[0]))
    return found


def _multiplied(device: Device, row: designs.Row, repeats: int) -> designs.Row:
    precision = row["prec"] if row["what"] == "gemm" else row["dtype"]
    m, inner, n = (row["n"],) * 3 if row["what"] == "gemm" else (row["M"], row["K"], row["N"])
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    left = torch.randn(m, inner, device=device.device).to(kind)
    right = torch.randn(n, inner, device=device.device).to(kind)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        return _typical_us(device.timed([lambda _: left @ right.t()], repeats=repeats), "us")
    finally:
        torch.set_float32_matmul_precision(before)


def _looked_up(device: Device, point: designs.Row, repeats: int) -> designs.Row:
    """Forward, and backward with the update, of one fused call."""
    from planner.integrations.measure.microbench_lookup import IndexSampler, fused_tables

    torch.manual_seed(point["seed"])
    is_cached = point["loc"] == "uvm_caching"
    module = fused_tables(
        [(point["rows"], point["dim"])] * point["T"],
        device.device,
        is_pooled=point["pooled"],
        place=point["loc"],
        is_half=point["wdtype"] == "fp16",
        optimizer=point["opt"],
        load_factor=point.get("clf", 1.0),
    )
    warm_up = _CACHE_WARM_UP if is_cached else 4
    few = min(5, max(2, int(_MOST_HELD_INDICES // point["N"])))
    fresh = warm_up + 2 * repeats
    exponent = 0.0 if point["law"] == "uniform" else float(point["law"].split()[1])
    law = Zipf(num_embeddings=point["rows"], exponent=exponent, scattered=True)
    rng = np.random.default_rng(point["seed"])
    sampler = IndexSampler(law, rng)
    shift = np.arange(point["T"])[:, None] * 977  # each table has hot rows of its own
    shape = point["T"], point["B"] * point["L"]
    sets = []
    for _ in range(fresh if is_cached else few):
        ids = (sampler.draw(point["N"], rng).reshape(shape) + shift) % point["rows"]
        sets.append(torch.from_numpy(ids.ravel()).to(device.device))
    offsets = torch.arange(0, point["N"] + 1, point["L"], device=device.device)
    gradient = torch.full_like(module(sets[0], offsets), _GRADIENT)
    outputs: list[torch.Tensor] = []

    def forward(turn: int) -> None:
        outputs[:] = [module(sets[turn % len(sets)], offsets)]

    def backward(_: int) -> None:
        outputs[0].backward(gradient)

    timed = device.timed([forward, backward], repeats=repeats, warm_up=warm_up)
    num_distinct = sum(int(torch.unique(x).numel()) for x in sets[0].reshape(point["T"], -1))
    return {"backend": "fbgemm", "uniq": num_distinct, **_typical_us(timed, "fwd_us", "bwd_us")}


MEASURES: Final[dict[str, Callable[[Device, designs.Row, int], designs.Row]]] = {
    designs.KERNEL_GAP: _kernel_gap,
    designs.EAGER_CALL: _host_call,
    designs.EAGER_PASS: _host_call,
    "d2d": _copied,
    "add": _copied,
    "link": _linked,
    "gemm": _multiplied,
    "gemm_shape": _multiplied,
    "lookup": _looked_up,
}
"""What measures a point, from the device, the point and how often; by what the point says it is."""


def _exchanged(device: Device, case: CollectivePoint, rank: int, repeats: int) -> designs.Row:
    """The microseconds of one of several collectives that follow each other."""
    try:
        call, reason = collective_call(case, rank, device.device), ""
    except Exception as error:
        call, reason = None, f"{type(error).__name__}: {error}"
    failed = [text for text in _of_all_ranks(reason, case) if text]
    if call is None or failed:
        raise MemoryError(failed[0])  # so that no rank begins and waits for this one

    def run(_: int) -> None:
        for _ in range(_COLLECTIVES_IN_A_ROW):
            call()

    times = []
    for turn in range(repeats):
        rendezvous()
        timed = device.timed([run], repeats=1, warm_up=1 if turn == 0 else 0)
        times.append(timed.each_s[0][0])
    return {"us": _us(max(_of_all_ranks(median(times), case)) / _COLLECTIVES_IN_A_ROW)}


def _of_all_ranks(value: Any, case: CollectivePoint) -> list[Any]:
    found: list[Any] = [None] * len(case.sent_bytes)
    dist.all_gather_object(found, value)
    return found


def collective_call(
    case: CollectivePoint, rank: int, device: torch.device | None = None
) -> Callable[[], None]:
    """A function that runs the collective of a case, with its buffers allocated on a device.

    All-to-all sends ``sent_bytes[rank]`` in equal parts to the other ranks. All-reduce works on a
    buffer of the kept bytes, other collectives on one of ``world_size`` times the kept bytes.
    """
    world = len(case.sent_bytes)
    if case.operation == "all_to_all":

        def elements(source: int, target: int) -> int:
            if source == target:
                return int(case.kept_bytes[source]) // 4
            return int(case.sent_bytes[source] / max(world - 1, 1)) // 4

        leaving = [elements(rank, r) for r in range(world)]
        arriving = [elements(r, rank) for r in range(world)]
        sent = torch.ones(sum(leaving), device=device)
        target = torch.empty(sum(arriving), device=device)
        return lambda: dist.all_to_all_single(target, sent, arriving, leaving)
    part = torch.ones(max(1, int(case.kept_bytes[rank]) // 4), device=device)
    whole = torch.ones(part.numel() * world, device=device)
    if case.operation == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(part, whole)
    if case.operation == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, part)
    return lambda: dist.all_reduce(part)
