"""Runs TorchRec 1.9's dry run on our systems, in code and on the command line.

The flags are those of TorchRec's ``planner/dry_run/cli.py``. SKUs are our systems, and the model
can be one of the user's::

    python -m planner.integrations.torchrec_dry_run my_package.my_model:build
        --sku-list h100_sxm,a100_80gb_sxm --world-size 16 --local-world-size 8 --batch-size 4096
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from torchrec.distributed.sharding_plan import get_default_sharders

from planner.errors import InvalidInputError, refuse
from planner.integrations.torchrec_workload import built_model
from planner.integrations.translate.settings import said

EXIT_INPUT: Final = 2

try:
    # This import comes first, because its error says which version of TorchRec is needed.
    from planner.integrations.torchrec_provider import ShardplanProvider  # isort: skip
    from torchrec.distributed.planner.dry_run import cli
    from torchrec.distributed.planner.dry_run.api import DryRunOrchestrator
    from torchrec.distributed.planner.dry_run.types import DryRunRequest, DryRunResult
    from torchrec.distributed.planner.executor import DefaultPlannerExecutor
    from torchrec.distributed.planner.reporter import DefaultPlanReporter
    from torchrec.distributed.planner.types import PlannerSessionContext
except ImportError as error:
    if __name__ != "__main__":
        raise
    sys.stderr.write(f"torchrec_dry_run: {error}\n")
    raise SystemExit(EXIT_INPUT) from error

_SYNTHETIC: Final = ("num_tables", "num_embeddings", "embedding_dim")


class ShardplanReporter(DefaultPlanReporter):
    """Reports TorchRec's statistics, and a block of our own text for each system.

    Args:
        provider: the provider of the orchestrator that gets this reporter.
    """

    def __init__(self, provider: ShardplanProvider) -> None:
        self.provider = provider

    @property
    def blocks(self) -> dict[str, str]:
        """Our text by system: predicted step with interval, bound, memory of the fullest rank."""
        return {sku: made.block for sku, made in self.provider.planners.items() if made.block}


def dry_run(
    request: DryRunRequest, provider: ShardplanProvider | None = None
) -> tuple[Mapping[str, DryRunResult], ShardplanReporter, PlannerSessionContext]:
    """Plan a request for every system of its ``sku_list``.

    Args:
        request: TorchRec's request, whose SKUs are names or files of systems.
        provider: a provider, for example with hints or another objective; None for the default.

    Returns:
        TorchRec's result for each system, our block for each that could be planned, and TorchRec's
        context, whose ``warnings`` name the settings that were not used.
    """
    chosen = provider or ShardplanProvider()
    reporter = ShardplanReporter(chosen)
    context = PlannerSessionContext(request=request, results={})
    orchestrator = DryRunOrchestrator(DefaultPlannerExecutor(chosen), reporter)
    return orchestrator.plan(request, context), reporter, context


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns 1 if a system cannot be planned, and 2 for bad input."""
    parser = cli.build_arg_parser()
    parser.prog = "python -m planner.integrations.torchrec_dry_run"
    parser.description = said("dry run")
    parser.add_argument("model", nargs="?", metavar="PKG:FUNC", help=said("model of a dry run"))
    args, provider = parser.parse_args(arguments), ShardplanProvider()
    try:
        request = _request(parser, args)
        for sku in request.sku_list:
            provider.check(sku, request)
    except (InvalidInputError, ValueError, NotImplementedError) as error:
        sys.stderr.write(f"torchrec_dry_run: {error}\n")
        return EXIT_INPUT
    results, reporter, context = dry_run(request, provider)
    cli.print_results(results, print_plan=args.print_plan, save_plan_dir=args.save_plan_dir)
    lines = [f"{sku}: {block}" for sku, block in reporter.blocks.items()]
    lines += [f"warning: {line}" for line in context.warnings]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0 if all(r.success for r in results.values()) else 1


def _request(parser: argparse.ArgumentParser, args: argparse.Namespace) -> DryRunRequest:
    if args.save_plan_dir is not None and "/" in args.sku_list:
        refuse("--save-plan-dir names files after SKUs: name systems without their folders")
    if args.model is None:
        return cli.build_request(args, *cli.build_model_and_sharders(args))
    unread = [n for n in _SYNTHETIC if getattr(args, n) != parser.get_default(n)]
    if unread:
        flags = ", ".join("--" + n.replace("_", "-") for n in unread)
        refuse(f"{flags}: only the synthetic model reads them; leave them out, or PKG:FUNC")
    model, constraints = built_model(args.model)
    request = cli.build_request(args, model, get_default_sharders())
    return request if constraints is None else replace(request, constraints=dict(constraints))


if __name__ == "__main__":
    raise SystemExit(main())
