"""`nearfield check-gradients`: certify the gradient of a loss."""

from __future__ import annotations

import argparse
import json

from nearfield.cli import show
from nearfield.cli.grammar import Commands, add_command, add_json, add_set


def add_parser(commands: Commands) -> None:
    """The grammar."""
    summary = "certify a loss: is its gradient the derivative of its value, in blocks and chunks too?"
    example = "nearfield check-gradients pytorch_metric_learning.losses:CircleLoss --set m=0.25"
    parser = add_command(commands, "check-gradients", check_gradients, summary, example)
    parser.add_argument(
        "loss", help="a name (see `nearfield methods`) or module:Class of any loss called with (x, labels)"
    )
    add_set(parser, "alpha=2.0")
    add_json(parser)


def check_gradients(arguments: argparse.Namespace) -> int:
    """Certify a loss; see `nearfield.inspection.gradients`."""
    from rich.table import Table

    from nearfield.config import merge
    from nearfield.inspection.gradients import TOLERANCE, certify, find_loss

    checks = certify(find_loss(arguments.loss, num_classes=12, dim=16, **merge({}, arguments.overrides)))
    if arguments.json:
        show.results().print_json(json.dumps([{**c._asdict(), "passed": c.passed} for c in checks]))
    else:
        table = Table("check", "largest relative error", "", "what is compared", title=arguments.loss)
        for c in checks:
            table.add_row(c.name, f"{c.error:.1e}", "ok" if c.passed else f"above {TOLERANCE:g}", c.why)
        show.results().print(table)
    return 0 if all(c.passed for c in checks) else 1
