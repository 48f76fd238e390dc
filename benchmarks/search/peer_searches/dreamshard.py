"""DreamShard's placement, trained and run from a checkout of its repository, with our prices.

Its own trainer runs on other tasks of 4 ranks first, with its own settings, for seconds that are
not counted (``pretrain``): DreamShard is meant to be trained once and used on tasks it has not
seen. On a task, its policy places the tables once by its likeliest choices. Until the time is up it
then goes on as its trainer does: placements are sampled from the policy and priced, and now and
then costs and policy are trained on them. Where the repository measures on GPUs, it is given

- the price of the whole plan, on the full objective, in ms;
- of each rank the seconds of forward lookups, exchanges and backward lookups.

Tables are whole, for DreamShard cannot cut them. ``gym`` is only the base class of its environment;
where it is not installed, an empty one stands in.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import numpy as np
import torch

from benchmarks.search.peer_searches.neuroshard import Piece, Pricing
from benchmarks.search.peer_searches.tasks import Best, SpaceName, space_of, task
from costmodels.datatypes import FloatArray
from costmodels.workload import Table
from planner.space.evaluation import SearchSpace

_MS: Final = 1e3
_BINS: Final = 17
_WIDTH: Final = 64.0
_TRAINED_ON: Final = 10
_RANKS: Final = 4
"""As many as in the repository; what is learned is used on any number, as its paper does."""
_MOST_TABLES: Final = 80
"""Tables of a task to train on; the repository's has 50."""
_SETTINGS: Final = {
    "num_iterations": 10,
    "bench_steps": 10,
    "rl_num_batches": 10,
    "rl_batch_size": 10,
    "bench_training_steps": 300,
    "entropy_weight": 0.001,
    "batch_size": 64,
}
"""The repository's defaults (its ``train.py``)."""


class Evaluator:
    """Stands where DreamShard measures plans on GPUs."""

    def __init__(self, pricings: Sequence[Pricing]) -> None:
        """One pricing per task."""
        self._pricings = pricings

    def evaluate(self, number: int, ranks: Sequence[int]) -> tuple[float, FloatArray]:
        """Price of a placement, and ``[W, 4]`` forward, nothing, exchanges, backward; ms."""
        pricing = self._pricings[number]
        tables = pricing.space.problem.workload.tables
        shards: list[list[Piece]] = [[] for _ in range(pricing.space.world_size)]
        for t, rank in enumerate(ranks):
            shards[rank].append((t, tables[t].embedding_dim))
        pipeline, work = pricing.space.pipeline, pricing.work(shards)
        forward, backward = pipeline.lookup_times(work)
        phases = pipeline.phases.times(work)
        exchanged = phases[:, 2:-1] @ pipeline.phases.weights[2:-1]
        stages = np.stack([forward, np.zeros(len(forward)), exchanged, backward], axis=1)
        return pricing.plan_ms(shards), stages * _MS

    def terminate(self) -> None:
        """Nothing runs beside it."""


def features_of(tables: Sequence[Table], batch: int) -> list[Any]:
    """21 numbers per table, as DreamShard's: four of its shape, 17 of how often rows are used."""
    shapes = np.array([(t.num_embeddings, t.pooling_factor, t.weight_bytes) for t in tables], float)
    shapes = (shapes - shapes.mean(axis=0)) / (shapes.std(axis=0) + 1e-12)
    rows = [
        [t.embedding_dim / _WIDTH, *shape, *_uses(t, batch)]
        for t, shape in zip(tables, shapes.tolist(), strict=True)
    ]
    return [torch.tensor(row, dtype=torch.float32) for row in rows]


def _uses(table: Table, batch: int) -> list[float]:
    """Shares of the rows read in a batch that are read once, twice, up to 4, 8, ... times."""
    rows, probability = table.distribution.frequency_bins()
    expected = batch * table.pooling_factor * np.asarray(probability)
    touched = np.asarray(rows) * -np.expm1(-expected)
    count = expected / np.maximum(-np.expm1(-expected), 1e-300)
    at = np.clip(np.ceil(np.log2(np.maximum(count, 1.0)) - 1e-9), 0, _BINS - 1).astype(int)
    shares = np.bincount(at, weights=touched, minlength=_BINS)
    return (shares / max(shares.sum(), 1e-300)).tolist()  # type: ignore[no-any-return]


def pretrain(checkout: Path, seconds: float, seed: int, out: Path) -> None:
    """Run its trainer on ten other tasks and keep the last model in a file, if it made one."""
    best = Best(seconds)
    spaces = [
        space_of(task(n, 10_000 + seed, ranks=_RANKS, most=_MOST_TABLES), SpaceName.HALVING)
        for n in range(_TRAINED_ON)
    ]
    training = trainer_of(checkout, seed)
    pricings = [Pricing(space, best) for space in spaces]
    training.Evaluator = lambda *_: Evaluator(pricings)
    training.get_table_ids_list = lambda _: range(len(spaces))
    training.load_table_configs_features_sizes = lambda _, n: (None, *_described(pricings[n]))
    _watch(training, best)
    with tempfile.TemporaryDirectory() as folder:
        asked = SimpleNamespace(
            **_SETTINGS,
            ndevices=_RANKS,
            max_memory=pricings[0].limit_gib,
            data_dir="",
            task_path="",
            gpu_devices="",
            out_dir=folder,
        )
        with _silent():
            training.train(asked)
        models = sorted(Path(folder).glob("*.pt"), key=lambda p: int(p.stem))
        if models:
            out.write_bytes(models[-1].read_bytes())
    print(f"DreamShard: {len(models)} of {_SETTINGS['num_iterations']} rounds of training")


def dreamshard(
    training: ModuleType, model_file: Path | None, space: SearchSpace, best: Best
) -> None:
    """Place tables until the time is up.

    Raises:
        TimeIsUp: when it is.
    """
    model = training.Model(table_feature_dim=4 + _BINS)
    if model_file is not None and model_file.exists():
        model.load_state_dict(torch.load(model_file))
    pricing = Pricing(space, best)
    evaluator, (features, sizes) = Evaluator([pricing]), _described(pricing)
    _watch(training, best)
    ranks = space.world_size
    envs = [training.Env(features, sizes, model, ranks, pricing.limit_gib)]
    buffer = training.Buffer([features], _SETTINGS["batch_size"])
    optimizer = torch.optim.Adam(list(model.parameters()), lr=0.0005)
    place = importlib.import_module("dreamshard.sharders").shard
    with _silent():
        while True:
            evaluator.evaluate(0, place(envs[0], "dreamshard"))
            steps = _SETTINGS["bench_steps"]
            training.collect_data(envs, model, evaluator, buffer, steps, 0, ranks)
            training.train_cost(model, optimizer, buffer, _SETTINGS["bench_training_steps"], 0)
            training.train_rl(
                model,
                envs,
                optimizer,
                num_batches=_SETTINGS["rl_num_batches"],
                batch_size=_SETTINGS["rl_batch_size"],
                entropy_weight=_SETTINGS["entropy_weight"],
                iteration=0,
            )


def trainer_of(checkout: Path, seed: int) -> ModuleType:
    """The repository's trainer, imported from a checkout, with all random numbers from the seed.

    Raises:
        ImportError: the folder is no checkout of DreamShard.
    """
    sys.path.insert(0, str(checkout))
    if importlib.util.find_spec("gym") is None:
        gym, spaces = ModuleType("gym"), SimpleNamespace(Box=_nothing, Discrete=_nothing)
        gym.Env, gym.spaces = object, spaces  # type: ignore[attr-defined]
        sys.modules["gym"] = gym
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - its code draws from there
    importlib.import_module("dreamshard.sharders")
    return importlib.import_module("dreamshard.training")


def _nothing(*_: object, **__: object) -> None:
    """A description of spaces, which DreamShard's code never reads."""


def _described(pricing: Pricing) -> tuple[list[Any], list[float]]:
    """Features and sizes of the tables of a task."""
    workload = pricing.space.problem.workload
    sizes = [pricing.device_gib((t, x.embedding_dim)) for t, x in enumerate(workload.tables)]
    return features_of(workload.tables, workload.batch_size_per_rank), sizes


def _watch(training: ModuleType, best: Best) -> None:
    """Have its environment and buffer look at the clock."""
    env, buffer = training.Env, training.Buffer

    class Env(env):  # type: ignore[misc, valid-type]
        def step(self, action: int) -> Any:
            best.check()
            return super().step(action)

    class Buffer(buffer):  # type: ignore[misc, valid-type]
        def sample_overall(self) -> Any:
            best.check()
            return super().sample_overall()

    training.Env, training.Buffer = Env, Buffer  # type: ignore[attr-defined]


@contextlib.contextmanager
def _silent() -> Any:
    """Its code reports every step."""
    quiet = io.StringIO()
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        yield
