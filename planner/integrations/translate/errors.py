"""The error for users of TorchRec, which is both TorchRec's ``PlannerError`` and ours."""

from __future__ import annotations

from dataclasses import dataclass

from torchrec.distributed.planner.types import PlannerError as TorchrecPlannerError
from torchrec.distributed.planner.types import PlannerErrorType

from planner.errors import InfeasibleError, InvalidInputError, NoPlanFoundError, PlannerError


class ShardPlannerError(TorchrecPlannerError, PlannerError):
    """No plan for a TorchRec model; ``error_type`` is TorchRec's reason."""

    def __init__(self, message: str, error_type: PlannerErrorType = PlannerErrorType.OTHER) -> None:
        """Keep TorchRec's reason with the message."""
        super().__init__(message, error_type)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What went wrong on the planning rank, in a form that can be sent to the others."""

    message: str
    error_type: str

    def raised(self) -> ShardPlannerError:
        """The error to raise; the same on every rank."""
        return ShardPlannerError(self.message, PlannerErrorType(self.error_type))


def as_failure(error: Exception) -> Failure:
    """Message and reason of any error, with its class name unless it is a planner's own."""
    if isinstance(error, TorchrecPlannerError):
        return Failure(message=str(error), error_type=error.error_type.value)
    kinds = {
        InfeasibleError: PlannerErrorType.INSUFFICIENT_STORAGE,
        InvalidInputError: PlannerErrorType.STRICT_CONSTRAINTS,
        NoPlanFoundError: PlannerErrorType.PARTITION,
    }
    kind = next((v for k, v in kinds.items() if isinstance(error, k)), PlannerErrorType.OTHER)
    own = isinstance(error, PlannerError)
    message = str(error) if own else f"{type(error).__name__}: {error}"
    return Failure(message=message, error_type=kind.value)
