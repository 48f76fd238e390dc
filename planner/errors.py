"""What can go wrong in planning. Messages state the rule, the values, and what to change.

PlannerError
├── InvalidInputError     bad file, flag or argument: exit code 2; lists every problem found
├── InfeasibleError       proven that nothing fits: exit code 3; the binding limit in bytes
├── NoPlanFoundError      the budget ran out before any plan that fits was found: exit code 3
└── StoppedError          the caller asked to stop before there was an answer: exit code 4
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from costmodels.errors import InvalidValueError


class PlannerError(Exception):
    """Root of all errors that :mod:`planner` raises on purpose.

    Example:
        >>> issubclass(InfeasibleError, PlannerError)
        True
    """


class InvalidInputError(PlannerError, ValueError):
    """Input that breaks a rule: a file, a flag or an argument.

    Attributes:
        problems: one line for each broken rule, with the value and what to change.

    Example:
        >>> error = InvalidInputError(["seed must be a whole number from 0, got -1"])
        >>> error.problems
        ['seed must be a whole number from 0, got -1']
    """

    def __init__(self, problems: str | list[str]) -> None:
        """Join all problems into one message, one per line."""
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class InfeasibleError(PlannerError):
    """It is proven that no plan fits in memory, or keeps the constraints.

    Attributes:
        shortfall_bytes: bytes that the fullest rank lacks, 0 if memory is not what is missing.
        advice: changes that would make a plan fit, one sentence each.

    Example:
        >>> InfeasibleError("nothing fits", shortfall_bytes=2.0**30).advice
        ()
    """

    def __init__(
        self, message: str, *, shortfall_bytes: float, advice: tuple[str, ...] = ()
    ) -> None:
        """Keep the shortfall (bytes per rank) and the advice beside the message."""
        self.shortfall_bytes = shortfall_bytes
        self.advice = advice
        super().__init__(message)


class StoppedError(PlannerError):
    """The caller asked to stop before there was any plan.

    Example:
        >>> from planner import load_problem, solve
        >>> problem = load_problem("small_demo", "h100_sxm", gpus=2)
        >>> try:
        ...     solve(problem, should_stop=lambda: True)
        ... except StoppedError:
        ...     print("stopped")
        stopped
    """


class NoPlanFoundError(PlannerError):
    """The search ended before it found a plan that fits; this does not prove that there is none.

    Example:
        >>> issubclass(NoPlanFoundError, InfeasibleError)
        False
    """


def refuse(problem: str | list[str]) -> NoReturn:
    """Refuse input that breaks a rule.

    Args:
        problem: what is wrong, or a line for each broken rule.

    Raises:
        InvalidInputError: always.

    Example:
        >>> refuse("seed must be a whole number from 0, got -1")
        Traceback (most recent call last):
        planner.errors.InvalidInputError: seed must be a whole number from 0, got -1
    """
    raise InvalidInputError(problem)


def refuse_any(problems: list[str]) -> None:
    """Refuse input for which problems were found.

    Raises:
        InvalidInputError: there are some.

    Example:
        >>> refuse_any([])
    """
    if problems:
        raise InvalidInputError(problems)


@contextmanager
def refusing(where: str = "") -> Iterator[None]:
    """A context in which values that a cost model refuses are refused as input.

    Args:
        where: what stands before the message.

    Raises:
        InvalidInputError: a value was refused.

    Example:
        >>> from planner import Feature
        >>> with refusing("table 'user': "):
        ...     Feature(name="clicks", pooling_factor=-1.0)
        Traceback (most recent call last):
        planner.errors.InvalidInputError: table 'user': feature 'clicks': pooling_factor must be ...
    """
    try:
        yield
    except InvalidValueError as error:
        refuse(f"{where}{error}")


@contextmanager
def reading(where: str) -> Iterator[None]:
    """A context in which whatever a library raises for damaged data says where the damage is.

    It can be any error: NumPy parses the header of an array as Python text, zipfile meets methods
    and versions that it has not, Optuna reads fields that a line lacks, and Arrow has errors of its
    own.

    Raises:
        InvalidInputError: the data could not be read.

    Example:
        >>> with reading("x.json: not JSON"):
        ...     import json
        ...     json.loads("{")
        Traceback (most recent call last):
        planner.errors.InvalidInputError: x.json: not JSON: Expecting property name ...
    """
    try:
        yield
    except PlannerError:
        raise
    except Exception as error:
        reason = " ".join(str(getattr(error, "strerror", None) or error or type(error)).split())
        refuse(f"{where}: {reason[:400]}")
