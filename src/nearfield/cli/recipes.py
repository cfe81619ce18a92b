"""`nearfield recipes`: list the recipes, or print one as a TOML file with its notes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import nearfield as nf
from nearfield.cli import show
from nearfield.cli.grammar import Commands, add_command, add_json

if TYPE_CHECKING:
    from nearfield.config import RunConfig

DETAILS = """
A recipe is a complete configuration of a run: the settings of a paper, or some for a machine without an accelerator.
With a name it is printed as a TOML file, with notes on where its numbers come from.
"""
EXAMPLES = """
nearfield recipes ms_bninception_cub > mine.toml
nearfield train cub_lite0_features
"""


def add_parser(commands: Commands) -> None:
    """The grammar."""
    summary = "list complete configurations, or print one as TOML"
    parser = add_command(commands, "recipes", recipes, summary, details=DETAILS, examples=EXAMPLES)
    parser.add_argument("name", nargs="?", help="recipe to print")
    add_json(parser)


def recipes(arguments: argparse.Namespace) -> None:
    """List every recipe, or print one: its notes as comments, then its configuration; a file for `nearfield train`."""
    from nearfield.recipes import RECIPES, recipe

    if arguments.name:
        config = recipe(arguments.name)
        if arguments.json:
            show.say_json({"notes": notes(arguments.name), "config": config.model_dump(mode="json")})
            return
        comments = "".join(f"# {line}".rstrip() + "\n" for line in notes(arguments.name).splitlines())
        show.results().out(f"{comments}\n{config.to_toml()}", end="")
        return
    if arguments.json:
        show.say_json([{"recipe": name, **summary(recipe(name))} for name in RECIPES])
        return
    rows = [(name, notes(name).partition("\n")[0]) for name in RECIPES]
    show.say(show.table(("recipe", "what it trains"), rows))
    show.say("`nearfield recipes NAME` prints one with its notes; `nearfield train NAME` runs it.")


def notes(name: str) -> str:
    """A recipe's docstring: where its numbers come from, and what differs here."""
    import inspect

    from nearfield.recipes import RECIPES

    return inspect.getdoc(RECIPES[name]) or ""


def summary(config: RunConfig) -> dict[str, str]:
    """A configuration in a few words, by column."""
    learns = "num_classes" in nf.losses.method(config.method.name).parameters
    model, batch, optimizer = config.model, config.sampler, config.optimizer
    rates = [f"{optimizer.lr:g}"]
    rates += [f"head {optimizer.lr * optimizer.head:g}"] if optimizer.head != 1 else []
    rates += [f"loss {optimizer.loss_lr:g}"] if learns and optimizer.loss_lr != optimizer.lr else []
    frozen = [f"{optimizer.frozen_steps:,} of the head first"] if optimizer.frozen_steps else []
    falls = f"x {optimizer.decay:g} each {optimizer.decay_every:,}" if optimizer.decay_every else optimizer.schedule
    chunks = f" in chunks of {config.chunk}" if config.chunk else ""
    updates = f", {config.accumulate} an update" if config.accumulate > 1 else ""
    per_class = f", {batch.per_class} a class" if batch.name in ("m_per_class", "episodic") else ""
    return {
        "method": config.method.name,
        "data": config.data.name,
        "crops": config.data.augment or "none",
        "network": f"{model.backbone}, {model.pool}, {model.dim} dims" + (", frozen BN" if model.freeze_bn else ""),
        "batch": f"{batch.batch_size}{chunks}, {batch.name}{per_class}{updates}",
        "optimiser": f"{optimizer.name} {', '.join(rates)}",
        "steps": ", ".join([f"{config.steps:,}", falls, *frozen]),
    }
