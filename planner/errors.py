"""What can go wrong in planning. Messages state the rule, the values, and what to change.

PlannerError
├── InvalidInputError     bad file, flag or argument: exit code 2; lists every problem found
├── InfeasibleError       proven that nothing fits: exit code 3; the binding limit in bytes
├── NoPlanFoundError      the budget ran out before any plan that fits was found: exit code 3
└── StoppedError          the caller asked to stop before there was an answer: exit code 4
"""

from __future__ import annotations


class PlannerError(Exception):
    """Root of all errors raised by :mod:`planner`."""


class InvalidInputError(PlannerError, ValueError):
    """Input that breaks a rule. ``problems`` holds one line per broken rule."""

    def __init__(self, problems: str | list[str]) -> None:
        """Join all problems into one message, one per line."""
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class InfeasibleError(PlannerError):
    """No plan fits. ``advice`` lists changes that would make one fit."""

    def __init__(
        self, message: str, *, shortfall_bytes: float, advice: tuple[str, ...] = ()
    ) -> None:
        """Keep the shortfall (bytes per rank) and the advice beside the message."""
        self.shortfall_bytes = shortfall_bytes
        self.advice = advice
        super().__init__(message)


class StoppedError(PlannerError):
    """The caller asked to stop before there was an answer; what was found so far is none."""


class NoPlanFoundError(PlannerError):
    """The budget ran out before a plan that fits was found; not a proof that there is none."""
