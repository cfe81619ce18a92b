"""`nearfield check-gradients`: check the gradient of any loss."""

from __future__ import annotations

import argparse

from nearfield.cli import show
from nearfield.cli.grammar import Commands, add_command, add_json, add_set

DETAILS = """
Compares it with finite differences of the value, with other block sizes, and with the two-pass gradient of a large
batch in chunks. Exit code 1 if one of them differs.
"""
EXAMPLES = """
nearfield check-gradients multi_similarity --set alpha=2.0
nearfield check-gradients pytorch_metric_learning.losses:CircleLoss --set m=0.25
"""


def add_parser(commands: Commands) -> None:
    """The grammar."""
    summary = "check that the gradient of a loss is the derivative of its value"
    parser = add_command(commands, "check-gradients", check_gradients, summary, details=DETAILS, examples=EXAMPLES)
    loss = "a method (see `nearfield methods`), or module:Class of any loss that is called with (embeddings, labels)"
    parser.add_argument("loss", help=loss)
    add_set(parser, "alpha=2.0", "parameter of the loss")
    add_json(parser)


def check_gradients(arguments: argparse.Namespace) -> int:
    """Certify a loss; see `nearfield.inspection.gradients`."""
    from nearfield.config import merge
    from nearfield.inspection.gradients import TOLERANCE, certify, find_loss

    checks = certify(find_loss(arguments.loss, num_classes=12, dim=16, **merge({}, arguments.overrides)))
    if arguments.json:
        show.say_json([{**c._asdict(), "passed": c.passed} for c in checks])
    else:
        head = ("check", "largest relative error", "", "what is compared")
        rows = [(c.name, f"{c.error:.1e}", "ok" if c.passed else f"above {TOLERANCE:g}", c.why) for c in checks]
        show.say(show.table(head, rows, arguments.loss))
    return 0 if all(c.passed for c in checks) else 1
