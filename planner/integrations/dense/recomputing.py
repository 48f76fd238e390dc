"""Finds the operators that checkpoints compute again in a backward pass."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from planner.integrations.dense.gradients import is_computed_again
from planner.integrations.dense.recorder import Known, Recorder


class Recomputing(TorchDispatchMode):
    """A dispatch mode for the backward pass that tells a recorder which operators run again.

    Args:
        recorder: the recorder of the forward pass.
    """

    def __init__(self, recorder: Recorder) -> None:
        """Keep the recorder."""
        super().__init__()
        self._recorder = recorder
        self._seen = Recorder({})

    @contextlib.contextmanager
    def inside(self, names: dict[nn.Module, str], known: Known) -> Iterator[None]:
        """A context in which operators are counted for the module that runs them."""
        with self._seen.inside(names, known), self:
            yield

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator; tell the recorder if it belongs to the forward pass."""
        del types
        if not is_computed_again():
            return func(*args, **(kwargs or {}))
        with self._seen:
            out = func(*args, **(kwargs or {}))
        for listed in (self._seen.before, self._seen.after):
            for operator in listed:
                self._recorder.again(operator)
            listed.clear()
        return out
