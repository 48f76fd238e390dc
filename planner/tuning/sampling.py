"""Chooses the setup that a study searches next: by samplers of Optuna, or in a given order."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from optuna import samplers
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler
from optuna.trial import Trial

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

Parameters = Mapping[str, Any]

SETS_CONSTRAINTS: Final = hasattr(Trial, "set_constraint")
"""Whether a trial is told how much it breaks a constraint (since Optuna 5); before, the sampler
calls a function to find out."""
_STARTUP_TRIALS: Final = 8
_POPULATION: Final = 16


def make_sampler(name: str, *, seed: int) -> BaseSampler:
    """Optuna's sampler of that name; setups under which nothing fits break its constraint.

    Args:
        name: ``tpe``, ``nsga2`` or ``random``.
        seed: the seed of its random numbers.
    """
    constraint = None if SETS_CONSTRAINTS else violation
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        if name == "tpe":
            return samplers.TPESampler(
                seed=seed,
                n_startup_trials=_STARTUP_TRIALS,
                multivariate=True,
                group=True,
                constraints_func=constraint,
            )
        if name == "nsga2":
            return samplers.NSGAIISampler(
                population_size=_POPULATION, seed=seed, constraints_func=constraint
            )
        return samplers.RandomSampler(seed=seed)


def violation(trial: FrozenTrial) -> Sequence[float]:
    """How much a trial breaks the constraint: above 0 if nothing fits."""
    return (0.0 if trial.user_attrs.get("facts") else 1.0,)


class Ordered(BaseSampler):
    """A sampler that takes the choices that a function gives it, one setup after the other."""

    def __init__(
        self,
        distributions: Mapping[str, Sequence[Any]],
        next_pick: Callable[[], Parameters],
    ) -> None:
        """Keep the arguments.

        Args:
            distributions: the values of each choice, by its name.
            next_pick: returns the choices of the next setup.
        """
        self._space: dict[str, BaseDistribution] = {
            name: CategoricalDistribution(values) for name, values in distributions.items()
        }
        self._next = next_pick

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """All choices, which are made together."""
        del study, trial
        return self._space

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The choices of the next setup."""
        del study, trial, search_space
        return dict(self._next())

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """The usual value of a choice that the next setup does not have."""
        del study, trial, param_name
        assert isinstance(param_distribution, CategoricalDistribution)
        return param_distribution.choices[0]
