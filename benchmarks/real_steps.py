"""Training steps of random modules on this CPU, predicted from operators and then run.

    python -m benchmarks.real_steps                             calibrates quickly, 20 modules
    python -m benchmarks.real_steps --system my_cpu.yaml --modules 60 --seed 1

Modules are of the families that the tests write from their papers, with sizes and batches drawn at
random; none of them, and nothing like a whole model, is measured by ``shardplan calibrate``. A step
is forward, backward and an update by stochastic gradient descent, on one core, in processor time.
All modules take their turns in several rounds, and the median over the rounds counts; how far two
rounds of one module lie apart tells what no prediction can know. Beside the modules, fixed work is
timed: it tells how slow the machine was, compared with its calibration.
Half of the modules run on each of two cores at once, as ``calibrate`` measures and as training has
it. With ``--ranks 1`` the other cores are idle, and the one at work is faster for it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from costmodels.calibration.fitting import geomean_error
from costmodels.datatypes import FloatArray
from costmodels.sharding import Plan
from costmodels.topology import Topology
from costmodels.workload import DenseArch, OperatorList, Pipeline, Workload
from planner import estimate, load_system
from planner.integrations.dense.trace import trace_dense
from planner.integrations.measure.calibrate import calibrated_topology
from planner.integrations.measure.gloo_ranks import run_on_ranks
from planner.integrations.measure.microbench_cpu import timed_passes
from planner.integrations.measure.pace import Pace
from planner.io.system.system_file import load_constants
from tests.integration.dense import dense_modules as families

Random = np.random.Generator
_REPEATS = 7
_ROUNDS = 5
_INITIAL = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One module: what tracing lists, and the seconds of a step in every round.

    ``rounds_s`` are as measured, ``pace_s`` what fixed work took around each of them.
    """

    family: str
    operators: OperatorList
    rounds_s: tuple[float, ...]
    pace_s: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """Median over the rounds."""
        return float(np.median(self.rounds_s))

    def at(self, pace_s: float) -> float:
        """Seconds where fixed work takes ``pace_s``, the median over the rounds."""
        return float(np.median(np.array(self.rounds_s) * pace_s / np.array(self.pace_s)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Module:
    family: str
    module: nn.Module
    inputs: tuple[Any, ...]
    operators: OperatorList


def _log(rng: Random, low: int, high: int) -> int:
    return int(np.exp(rng.uniform(np.log(low), np.log(high))))


def _mlp(rng: Random) -> tuple[nn.Module, tuple[Any, ...]]:
    width, count = int(rng.choice([13, 64, 256, 512])), int(rng.integers(2, 5))
    sizes = [width, *map(int, rng.choice([32, 64, 128, 256, 512], count)), 1]
    return families.mlp(*sizes), (torch.randn(_log(rng, 128, 4096), width),)


def _deepfm(rng: Random) -> tuple[nn.Module, tuple[Any, ...]]:
    fields, width = int(rng.integers(4, 30)), int(rng.choice([8, 16, 32]))
    module = families.DeepFm(fields, width, (int(rng.choice([64, 128, 256])), 64))
    return module, (torch.randn(_log(rng, 128, 2048), fields, width),)


def _din(rng: Random) -> tuple[nn.Module, tuple[Any, ...]]:
    width, length = int(rng.choice([16, 32, 64])), int(rng.integers(10, 100))
    batch = _log(rng, 16, 256)
    module = families.Din(width, (int(rng.choice([40, 80, 128])), int(rng.choice([20, 40]))))
    return module, (torch.randn(batch, width), torch.randn(batch, length, width))


def _mmoe(rng: Random) -> tuple[nn.Module, tuple[Any, ...]]:
    width = int(rng.choice([64, 128, 256]))
    sizes = int(rng.choice([64, 128, 256])), int(rng.choice([32, 64]))
    module = families.Mmoe(width, int(rng.integers(2, 9)), int(rng.integers(2, 5)), sizes)
    return module, (torch.randn(_log(rng, 128, 2048), width),)


def _two_tower(rng: Random) -> tuple[nn.Module, tuple[Any, ...]]:
    width, batch = int(rng.choice([64, 128, 256])), _log(rng, 128, 2048)
    sizes = int(rng.choice([128, 256, 512])), int(rng.choice([32, 64, 128]))
    return families.TwoTower(width, sizes), (torch.randn(batch, width), torch.randn(batch, width))


def _transformer(rng: Random, *, causal: bool) -> tuple[nn.Module, tuple[Any, ...]]:
    heads, length = int(rng.choice([1, 2, 4])), int(rng.integers(20, 200))
    hidden, batch = heads * int(rng.choice([16, 32, 48])), max(1, _log(rng, 1600, 9600) // length)
    words = min(_log(rng, 200, 4000), max(100, 6_000_000 // (batch * length)))
    inner = hidden * int(rng.choice([1, 2, 4]))
    layers = int(rng.integers(1, 5))
    module = families.Transformer(layers, hidden, heads, inner, length, words, causal=causal)
    ids = torch.randint(0, words, (2, batch, length))
    return module, (ids[0], ids[1])


def _bert4rec(rng: Random) -> tuple[nn.Module, tuple[Any, ...]]:
    return _transformer(rng, causal=False)


def _sasrec(rng: Random) -> tuple[nn.Module, tuple[Any, ...]]:
    return _transformer(rng, causal=True)


def _hstu(rng: Random) -> tuple[nn.Module, tuple[Any, ...]]:
    heads, length = int(rng.choice([1, 2, 4])), int(rng.integers(20, 150))
    width, batch = int(rng.choice([16, 32, 48])), max(1, _log(rng, 800, 4800) // length)
    module = families.Hstu(int(rng.integers(1, 5)), heads * width, heads, (width, width))
    return module, (torch.randn(batch, length, heads * width),)


def _moe(rng: Random) -> tuple[nn.Module, tuple[Any, ...]]:
    width, experts = int(rng.choice([32, 64, 128])), int(rng.choice([4, 8, 16]))
    module = families.Moe(
        width, width * int(rng.choice([1, 2, 4])), experts, int(rng.integers(1, 3))
    )
    return module, (torch.randn(_log(rng, 256, 4096), width),)


def _encoder(rng: Random) -> tuple[nn.Module, tuple[Any, ...]]:
    """PyTorch's own encoder layers, with dropout and without a fused attention."""
    heads, length = int(rng.choice([2, 4])), int(rng.integers(20, 100))
    hidden = heads * int(rng.choice([16, 32]))
    layer = nn.TransformerEncoderLayer(
        hidden, heads, hidden * int(rng.choice([2, 4])), activation="gelu", batch_first=True
    )
    module = nn.TransformerEncoder(layer, int(rng.integers(1, 4)), enable_nested_tensor=False)
    return module, (torch.randn(max(1, _log(rng, 400, 2400) // length), length, hidden),)


_FAMILIES: dict[str, Callable[[Random], tuple[nn.Module, tuple[Any, ...]]]] = {
    "MLP": _mlp,
    "DeepFM": _deepfm,
    "DIN": _din,
    "MMoE": _mmoe,
    "two-tower": _two_tower,
    "BERT4Rec": _bert4rec,
    "SASRec": _sasrec,
    "HSTU": _hstu,
    "MoE": _moe,
    "encoder": _encoder,
}


def _measured(rank: int, world_size: int, count: int, seed: int) -> list[Step]:
    """Modules of every family in turn; every rank draws them all and runs its share."""
    rng = np.random.default_rng([seed, 17])
    torch.manual_seed(seed)
    turns = len(_FAMILIES)
    drawn = _drawn(rng, count)
    own = [m for i, m in enumerate(drawn) if (i + i // turns) % world_size == rank]
    pace, rounds, paces = Pace(), list[list[float]](), list[list[float]]()
    for _ in range(_ROUNDS):
        seconds, moments = [0.0] * len(own), [0.0] * len(own)
        for i in rng.permutation(len(own)):
            pace.read()
            seconds[i] = sum(timed_passes(own[i].module, own[i].inputs, repeats=_REPEATS))
            moments[i] = time.perf_counter()
            pace.read()
        rounds.append(seconds)
        paces.append(moments)
    return [
        Step(
            family=own[i].family,
            operators=own[i].operators,
            rounds_s=tuple(r[i] for r in rounds),
            pace_s=tuple(pace.around_s(m[i]) for m in paces),
        )
        for i in range(len(own))
    ]


def _drawn(rng: Random, count: int) -> list[_Module]:
    """Modules of every family in turn, with their inputs."""
    names, found = list(_FAMILIES), list[_Module]()
    for i in range(count):
        name = names[i % len(names)]
        module, inputs = _FAMILIES[name](rng)
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=_INITIAL)
        given = tuple(x.requires_grad_() if x.is_floating_point() else x for x in inputs)
        operators = trace_dense(module, given, batch_size=1).operators
        found.append(_Module(family=name, module=module, inputs=given, operators=operators))
    return found


def _predicted(step: Step, topology: Topology) -> tuple[float, float, float]:
    """Seconds, with the ends of the interval."""
    workload = Workload(
        name=step.family,
        tables=(),
        batch_size_per_rank=step.operators.batch_size_per_rank,
        dense=DenseArch(operators=step.operators),
        pipeline=Pipeline.NONE,
    )
    time = estimate(workload, topology, Plan(placements=())).estimate.time
    return time.time_s, time.low_s, time.high_s


def main() -> None:
    """Run the modules, print predicted and measured."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--system", type=Path, metavar="FILE")
    parser.add_argument("--modules", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    if options.system is None:
        with tempfile.TemporaryDirectory() as folder:
            topology = calibrated_topology(Path(folder), 2, print)
            _report(options, topology)
    else:
        _report(options, load_system(options.system, gpus=1))


def _report(options: argparse.Namespace, topology: Topology) -> None:
    per_rank = run_on_ranks(_measured, options.ranks, options.modules, options.seed)
    steps = [step for found in per_rank for step in found]
    predicted = np.array([_predicted(s, topology) for s in steps])
    measured = np.array([s.seconds for s in steps])
    for step, (predicted_s, low_s, high_s) in zip(steps, predicted, strict=True):
        print(
            f"{step.family:10} {1e3 * step.seconds:9.3f} ms measured {1e3 * predicted_s:9.3f} ms "
            f"predicted ({1e3 * low_s:.3f} to {1e3 * high_s:.3f})  {predicted_s / step.seconds:.2f}"
        )
    logs = np.log(np.array([s.rounds_s for s in steps]))
    apart = np.abs(logs[:, :, None] - logs[:, None, :]).sum() / (_ROUNDS * (_ROUNDS - 1))
    print(f"two rounds of one module differ by {100 * np.expm1(apart / len(steps)):.1f} %")
    print(f"{len(steps)} modules, as measured: {_summary(predicted, measured)}")
    pace_s = load_constants(topology.calibration).pace_s if topology.calibration else None
    if pace_s is None:
        return
    ratio = float(np.median([s.pace_s for s in steps])) / pace_s
    alike = np.array([s.at(pace_s) for s in steps])
    print(f"fixed work took {ratio:.2f} times as long as in the calibration; at its pace:")
    print(_summary(predicted, alike))


def _summary(rows: FloatArray, measured: FloatArray) -> str:
    from scipy.stats import kendalltau

    predicted, low, high = rows.T
    errors = np.log(predicted / measured)
    inside = np.mean((low <= measured) & (measured <= high))
    tau = kendalltau(predicted, measured)[0]
    return (
        f"geometric mean error {100 * geomean_error(errors):.1f} %, "
        f"MAPE {100 * np.mean(np.abs(predicted / measured - 1)):.1f} %, "
        f"bias {100 * np.expm1(errors.mean()):+.1f} %, tau {tau:.3f}, "
        f"{100 * inside:.0f} % inside the interval"
    )


if __name__ == "__main__":
    main()
