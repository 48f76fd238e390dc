"""Runs all microbenchmarks of one rank, while the other ranks run theirs."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from costmodels.calibration import points as designs
from costmodels.calibration.fit_machine import CHAIN
from costmodels.measured.cpu_constants import CpuKernel
from planner.integrations.dense.trace import trace_dense
from planner.integrations.measure import gloo_ranks, runs
from planner.integrations.measure.device_rows import collective_call
from planner.integrations.measure.microbench_lookup import measure_lookups
from planner.integrations.measure.pace import Pace

_TAKING_TURNS = 6
"""So many models or tables are in memory and take turns: each finds the others' data in caches."""
_COLLECTIVE_PASSES = 4
_COLLECTIVE_REPEATS = 5
_COLLECTIVE_WARM_UP = 3
_KINDS = _COLLECTIVES, _STEPS, _LOOKUPS, _OPERATORS = "collectives", "steps", "lookups", "operators"


def measure_rank(
    rank: int, world_size: int, effort: designs.MeasuringEffort, seed: int
) -> designs.CalibrationPoints:
    """Run all microbenchmarks as one of the ranks; each draws its own lookups and operators."""
    own, shared = np.random.default_rng([seed, rank + 1]), np.random.default_rng(seed)
    counts = zip(CpuKernel, effort.num_lookups, strict=True)
    tables = [p for kernel, n in counts for p in designs.lookup_points(n, kernel, own)]
    steps = designs.step_points(effort.num_steps, world_size, shared)
    raw = designs.collective_points(world_size)
    found: dict[str, list[Any]] = {kind: [] for kind in _KINDS}
    groups = operator_groups(effort)
    torch.manual_seed(int(own.integers(2**31)))
    pace = Pace()
    for turn, part in enumerate(np.array_split(np.arange(len(steps)), effort.num_passes)):
        # All kinds of points take turns, so that a slow minute of the machine spoils none of them.
        if turn % max(1, effort.num_passes // _COLLECTIVE_PASSES) == 0:
            passed = pace.timed(_COLLECTIVES, _measure_collectives, raw, rank, pace)
            found[_COLLECTIVES].append(passed)
        settings = runs.RunSettings(effort.num_blocks, iterations=7, warm_up=3, seed=seed + turn)
        for start in range(0, len(part), _TAKING_TURNS):
            some = [steps[i] for i in part[start : start + _TAKING_TURNS]]
            found[_STEPS] += pace.timed(
                _STEPS, _measure_steps, some, rank, world_size, settings, pace
            )
        order = np.random.default_rng([seed, rank, turn]).permutation(len(tables))
        for start in range(0, len(tables), _TAKING_TURNS):
            group = order[start : start + _TAKING_TURNS]
            cases, own_seed = [tables[i] for i in group], seed + turn * len(tables) + start
            looked_up = pace.timed(_LOOKUPS, measure_lookups, cases, pace, own_seed)
            found[_LOOKUPS] += zip(group, looked_up, strict=True)
        for names in groups[turn :: effort.num_passes]:
            found[_OPERATORS] += pace.timed(_OPERATORS, measure_operators, names, own, pace)
    steady: Callable[[Any], Any] = pace.at_typical
    lookups = ([steady(p) for k, p in found[_LOOKUPS] if k == i] for i in range(len(tables)))
    # The fastest of several passes, because one disturbed moment would spoil the few points.
    same = zip(*found[_COLLECTIVES], strict=True)
    return designs.CalibrationPoints(
        lookups=tuple(map(_typical, lookups)),
        steps=tuple(map(steady, found[_STEPS])),
        collectives=tuple(min(map(steady, points), key=lambda p: p.time_s) for points in same),
        operators=tuple(map(steady, found[_OPERATORS])),
        pace_s=pace.typical_s(_STEPS),
        pace_sigma_ratio=pace.sigma_ratio(),
    )


def _measure_collectives(
    cases: Sequence[designs.CollectivePoint], rank: int, pace: Pace
) -> list[designs.CollectivePoint]:
    """Measure collectives: medians of this rank's processor time over some rounds."""
    calls = [collective_call(case, rank) for case in cases]
    times = np.zeros((len(cases), _COLLECTIVE_REPEATS + _COLLECTIVE_WARM_UP, 2))
    for i in range(_COLLECTIVE_REPEATS + _COLLECTIVE_WARM_UP):
        pace.read()
        gloo_ranks.rendezvous()
        calls[0]()  # a small collective takes longer directly after a large one
        for k, call in enumerate(calls):
            gloo_ranks.rendezvous()
            own, network = gloo_ranks.own_seconds(), gloo_ranks.network_seconds()
            call()
            times[k, i] = gloo_ranks.own_seconds() - own, gloo_ranks.network_seconds() - network
    # Medians of own seconds count, and low quantiles of those of network threads.
    own_s, network_s = np.moveaxis(times[:, _COLLECTIVE_WARM_UP:], -1, 0)
    quiet = np.median(own_s, axis=1) + np.quantile(network_s, gloo_ranks.NETWORK_QUANTILE, axis=1)
    return [replace(case, time_s=float(m)) for case, m in zip(cases, quiet, strict=True)]


def _typical(points: Sequence[designs.LookupPoint]) -> designs.LookupPoint:
    """One point with the geometric means over all places in memory.

    Depending on the place of its pages, a table can be twice as slow or as fast, at random. A
    median would fall into one of these two groups.
    """
    forward, backward = np.log([(p.forward_s, p.backward_s) for p in points]).mean(axis=0)
    return replace(points[0], forward_s=float(np.exp(forward)), backward_s=float(np.exp(backward)))


def _measure_steps(points: Sequence[designs.StepPoint], *job: Any) -> list[designs.StepPoint]:
    """Seconds of every stage on this rank, of models in turn; ``stages_s`` has one entry.

    ``job`` are the other arguments of :func:`train_in_turns`.
    """
    cases = [runs.RunCase(workload=p.workload, plan=p.plan) for p in points]
    log = runs.train_in_turns(cases, *job)
    return [
        replace(point, stages_s=(_quiet([i for i in log if i.plan == k]),))
        for k, point in enumerate(points)
    ]


def _quiet(iterations: Sequence[runs.TimedIteration]) -> tuple[float, ...]:
    """Median seconds of each stage, plus those of network threads in quiet moments."""
    own = np.median([i.stages_s for i in iterations], axis=0)
    network = np.array([i.network_s for i in iterations])
    quiet = float(np.quantile(network.sum(axis=1), gloo_ranks.NETWORK_QUANTILE))
    share = np.median(network, axis=0)
    share = share / max(float(share.sum()), 1e-12)
    return tuple(float(x) for x in own + quiet * share)


# ------------------ single operators, and chains of them


Random = np.random.Generator

_MOST_ELEMENTS: Final = 3_000_000
_MOST_PRODUCTS: Final = 6e8
_HEADS: Final = (1, 2, 4, 8)
_LEAST_HEAD: Final = 8
_ODD_SHARE: Final = 0.2
"""Share of widths that are not a multiple of four."""
_MOST_CHAIN_ELEMENTS: Final = 1_500_000
_MOST_CHAIN_FLOP: Final = 7e8
Snippet = tuple[nn.Module, tuple[torch.Tensor, ...]]
"""A module with its inputs, whose forward and backward pass is timed."""


class _Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self._function(*inputs)


def chain(rng: Random) -> Snippet:
    """Three to ten random operators, each on the result of the one before."""
    while True:
        batch, length = _log(rng, 2, 512), int(rng.choice([1, 1, _log(rng, 4, 128)]))
        width = _fours(rng, 16, 512)
        elements = batch * length * width
        if elements < _MOST_CHAIN_ELEMENTS and batch * length >= _LEAST_HEAD:
            made = _Chain(width, int(rng.integers(3, 11)), length, rng)
            if 2.0 * batch * length * made.multiplied < _MOST_CHAIN_FLOP:
                return _needing_gradients(made, torch.randn(batch, length, width))


class _Chain(nn.Module):
    """Operators one after the other; ``multiplied`` are its multiply-adds per position."""

    def __init__(self, width: int, count: int, length: int, rng: Random) -> None:
        super().__init__()
        self.multiplied, self._steps = 0.0, nn.ModuleList()
        for name in rng.choice(_CHAINED, count).tolist():
            step: nn.Module
            if name == "linear" or (name in ("attention", "mix") and length == 1):
                wide = _fours(rng, 16, 768)
                self.multiplied += width * wide
                step, width = nn.Linear(width, wide), wide
            elif name == "norm":
                step = nn.LayerNorm(width)
            elif name in ("attention", "mix"):
                self.multiplied += 2 * width * length
                fitting = [h for h in _HEADS if width % h == 0 and width // h >= _LEAST_HEAD]
                causal = bool(rng.random() < 0.5) if name == "attention" else None
                heads = int(rng.choice(fitting))
                step = _Function(partial(_attended, heads=heads, is_causal=causal))
            elif name == "cat" and 2 * width <= 768:
                step, width = _Function(lambda x: torch.cat([x, x], dim=-1)), 2 * width
            elif name in ("add", "mul"):
                step = _WithEarlier(_OF_TWO[name])
            else:
                chosen = str(rng.choice(_ACTIVATIONS)) if name == "act" else "dropout"
                step = _Function(_OF_ONE[chosen])
            self._steps.append(step)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        earlier: dict[int, torch.Tensor] = {}
        for step in self._steps:
            before, width = x, x.shape[-1]
            is_pair = isinstance(step, _WithEarlier)
            x = step(x, earlier.get(width, x)) if is_pair else step(x)
            earlier[width] = before
        return x


class _WithEarlier(_Function):
    """A function of the last operator's result and of an earlier operator's input."""


_attend: Final = functional.scaled_dot_product_attention


def _attended(x: torch.Tensor, *, heads: int, is_causal: bool | None) -> torch.Tensor:
    """Attention between all positions: fused (causal or not), or operator by operator if None."""
    batch, length, width = x.shape
    own = x.reshape(batch, length, heads, -1).transpose(1, 2)
    if is_causal is None:
        met = torch.softmax(own @ own.transpose(-1, -2), dim=-1) @ own
    else:
        met = _attend(own, own, own, is_causal=is_causal)
    return met.transpose(1, 2).reshape(batch, length, width)


_ACTIVATIONS: Final = ("gelu", "silu", "relu", "tanh", "sigmoid")
_CHAINED: Final = (
    *("linear", "linear", "linear", "act", "act", "norm"),
    *("add", "mul", "drop", "attention", "mix", "cat"),
)
"""Operators of a chain, by how often they come."""
_OF_ONE: Final[dict[str, Callable[..., torch.Tensor]]] = {
    **{
        name: getattr(torch, name) for name in ("relu", "sigmoid", "tanh", "exp", "square", "clone")
    },
    **{name: getattr(functional, name) for name in ("gelu", "silu")},
    "scale": lambda x: x * 0.3,
    "divide": lambda x: x / 7.0,
    "dropout": lambda x: functional.dropout(x, 0.1),
    "_softmax": lambda x: torch.softmax(x, dim=-1),
    "_log_softmax": lambda x: torch.log_softmax(x, dim=-1),
    "row sums": lambda x: x.sum(dim=1),
    "column sums": lambda x: x.sum(dim=0),
    "means": lambda x: x.mean(dim=-1, keepdim=True),
    "cross entropy": lambda x: functional.cross_entropy(
        x, torch.zeros(x.shape[0], dtype=torch.int64)
    ),
    "largest": lambda x: x[:, :8].t().topk(max(1, x.shape[0] // 4), dim=-1)[0],
}
_OF_TWO: Final[dict[str, Callable[..., torch.Tensor]]] = {
    **{name: getattr(torch, name) for name in ("add", "mul", "sub")},
    "add a row": lambda x, y: x + y[0],
    "mul by a column": lambda x, y: x * y[:, :1],
    "cat": lambda *x: torch.cat(x, dim=-1),
    "stack": lambda *x: torch.stack(x, dim=1),
}
_BY_INDEX: Final[dict[str, Callable[..., torch.Tensor]]] = {
    "index_select": lambda x, i: x.index_select(0, i),
    "index_add": lambda x, i: torch.zeros_like(x).index_add(0, i, x),
}


def _of_matrix(make: Callable[..., tuple[Any, ...]], rng: Random) -> Snippet:
    """What ``make`` makes of a random matrix's rows and columns: a module or function, inputs."""
    return _needing_gradients(*make(rng, *_matrix(rng)))


def _on_matrices(function: Callable[..., torch.Tensor], count: int, rng: Random) -> Snippet:
    """A function of so many matrices of one size."""
    return _needing_gradients(function, *torch.randn(count, *_matrix(rng)).unbind())


def _embedding(rng: Random, rows: int, columns: int) -> tuple[Any, ...]:
    held = max(2, min(_log(rng, 50, 20_000), _MOST_ELEMENTS // columns))
    return nn.Embedding(held, columns), torch.randint(0, held, (rows,))


def _by_index(function: Callable[..., torch.Tensor], rng: Random) -> Snippet:
    """A function of a matrix and of the row that each of its rows comes from or goes to."""
    rows, columns = _matrix(rng)
    return _needing_gradients(function, torch.randn(rows, columns), torch.randint(rows, (rows,)))


def _linear(rng: Random) -> Snippet:
    while True:
        rows, inner = _log(rng, 16, 16_384), _fours(rng, 8, 1024)
        outer = _odd(rng, _fours(rng, 8, 4096))
        if rows * inner * outer < _MOST_PRODUCTS and rows * max(inner, outer) < 4 * _MOST_ELEMENTS:
            break
    layer = nn.Linear(inner, outer, bias=bool(rng.random() < 0.7))
    made = torch.randn(rows, inner)
    return _needing_gradients(layer, made, inputs=bool(rng.random() < 0.8))


def _narrow_linear(rng: Random, rows: int, inner: int) -> tuple[Any, ...]:
    return nn.Linear(inner, int(rng.choice([1, 2, 4]))), torch.randn(rows, inner)


def _pairs(rng: Random) -> Snippet:
    """All pairs of rows, as between the users and items of two towers."""
    while True:
        rows, inner, others = _log(rng, 16, 4096), _fours(rng, 8, 512), _log(rng, 16, 4096)
        if rows * inner * others < _MOST_PRODUCTS and rows * others < _MOST_ELEMENTS:
            break
    pair = torch.randn(rows, inner), torch.randn(others, inner)
    return _needing_gradients(lambda x, y: x @ y.T, *pair)


def _batched(rng: Random) -> Snippet:
    while True:
        count, rows, inner = _log(rng, 1, 512), _log(rng, 1, 512), _fours(rng, 4, 256)
        columns = _log(rng, 4, 512)
        largest = count * max(rows * inner, inner * columns, rows * columns)
        if count * rows * inner * columns < _MOST_PRODUCTS / 3 and largest < _MOST_ELEMENTS:
            break
    pair = torch.randn(count, rows, inner), torch.randn(count, inner, columns)
    return _needing_gradients(torch.bmm, *pair)


def _on_heads(function: Callable[..., torch.Tensor], count: int, rng: Random) -> Snippet:
    """A function of so many tensors of :func:`_heads` of one size."""
    query = _heads(rng)
    others = (torch.randn_like(query) for _ in range(count - 1))
    return _needing_gradients(function, query, *others)


SINGLES: Final[dict[str, tuple[int, Callable[[Random], Snippet]]]] = {
    "linear": (8, _linear),
    "narrow linear": (2, partial(_of_matrix, _narrow_linear)),
    "batched": (3, _batched),
    "scores": (2, partial(_on_heads, lambda x, y: x @ y.transpose(-1, -2), 2)),
    "attention": (2, partial(_on_heads, _attend, 3)),
    "causal attention": (1, partial(_on_heads, partial(_attend, is_causal=True), 3)),
    "norm": (3, partial(_of_matrix, lambda _, n, m: (nn.LayerNorm(m), torch.randn(n, m)))),
    "pairs": (1, _pairs),
    "embedding": (1, partial(_of_matrix, _embedding)),
    **{name: (1, partial(_by_index, f)) for name, f in _BY_INDEX.items()},
    **{name: (1, partial(_on_matrices, function, 2)) for name, function in _OF_TWO.items()},
    "heads": (1, partial(_on_heads, torch.Tensor.contiguous, 1)),
    **{
        name: (2 if name == "_softmax" else 1, partial(_on_matrices, function, 1))
        for name, function in _OF_ONE.items()
    },
}
"""How often an operator is measured, and what makes it with a random size."""


def _heads(rng: Random) -> torch.Tensor:
    """A tensor ``[samples, heads, positions, width]``, with positions before heads in memory."""
    while True:
        samples, heads = _log(rng, 1, 64), int(rng.choice(_HEADS))
        length, width = _log(rng, 8, 256), int(rng.choice([8, 16, 24, 32, 48, 64]))
        if samples * heads * length * max(length, width) <= _MOST_ELEMENTS:
            return torch.randn(samples, length, heads, width).transpose(1, 2)


def _matrix(rng: Random) -> tuple[int, int]:
    most = int(_MOST_ELEMENTS * rng.choice([0.1, 0.3, 1.0, 4.0]))
    while True:
        rows, columns = _log(rng, 32, 32_768), _odd(rng, _fours(rng, 8, 2048))
        if 2000 <= rows * columns <= most:
            return rows, columns


def _needing_gradients(what: Callable[..., Any], *given: Any, inputs: bool = True) -> Snippet:
    """A module, or a function as a module, with inputs that need gradients."""
    made = tuple(x.requires_grad_(inputs) if x.is_floating_point() else x for x in given)
    return what if isinstance(what, nn.Module) else _Function(what), made


def _log(rng: Random, low: int, high: int) -> int:
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


def _fours(rng: Random, low: int, high: int) -> int:
    return max(4, 4 * round(_log(rng, low, high) / 4))


def _odd(rng: Random, width: int) -> int:
    return width - int(rng.integers(1, 4)) if rng.random() < _ODD_SHARE else width


_PASSES_BEFORE = 2
_PASSES = 5
_LEARNING_RATE = 1e-6
_IN_A_ROW = 8
"""This many operators in a row are taken as measured at one moment."""


def operator_groups(effort: designs.MeasuringEffort) -> list[list[str]]:
    """The names of the operators to measure, every kind in turn, and of chains of them.

    A pass that measures every n-th group has operators of all kinds, and chains.
    """
    names = [name for name, (count, _) in SINGLES.items() for _ in range(count)]
    listed = [names[i % len(names)] for i in range(effort.num_operators)]
    listed += [CHAIN] * effort.num_chains
    return [listed[i : i + _IN_A_ROW] for i in range(0, len(listed), _IN_A_ROW)]


def measure_operators(
    names: Sequence[str], rng: np.random.Generator, pace: Pace
) -> list[designs.OperatorPoint]:
    """Measure operators or chains with random sizes; those without an operator are left out.

    Args:
        names: of :func:`operator_groups`.
        rng: draws the sizes.
        pace: the pace of this rank, read after each operator.
    """
    found = []
    for name in names:
        module, inputs = chain(rng) if name == CHAIN else SINGLES[name][1](rng)
        gradients = any(x.requires_grad for x in inputs)
        trace = trace_dense(module, inputs, batch_size=1, inputs_need_gradients=gradients)
        operators = tuple(o for o in trace.all_operators if o.name != "loss")
        passes = zip(
            ("forward_s", "backward_s", "update_s"), timed_passes(module, inputs), strict=True
        )
        found.append(designs.OperatorPoint(name=name, operators=operators, **dict(passes)))
        pace.read()
    return [point for point in found if point.operators]


def timed_passes(
    module: nn.Module, inputs: Sequence[Any], *, repeats: int = _PASSES
) -> tuple[float, float, float]:
    """Median seconds of a forward pass, a backward pass and an update, after some to warm up.

    Args:
        module: a module with or without parameters.
        inputs: the arguments of ``forward``.
        repeats: how many passes are measured.

    Returns:
        Processor seconds of this thread; the last is 0 without parameters.
    """
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=_LEARNING_RATE) if parameters else None
    times = []
    for _ in range(_PASSES_BEFORE + repeats):
        for tensor in (*inputs, *parameters):
            tensor.grad = None
        start = time.thread_time()
        output = module(*inputs)
        forward = time.thread_time()
        found = [x for x in tree_leaves(output) if isinstance(x, torch.Tensor) and x.requires_grad]
        given = [torch.ones_like(x) for x in found]
        begun = time.thread_time()
        torch.autograd.backward(found, given)
        done = time.thread_time()
        if optimizer is not None:
            optimizer.step()
        times.append((forward - start, done - begun, time.thread_time() - done))
        del output, found, given
    forward_s, backward_s, update_s = np.median(times[_PASSES_BEFORE:], axis=0).tolist()
    return forward_s, backward_s, update_s if parameters else 0.0
