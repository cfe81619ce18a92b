"""`nearfield methods`: list the methods, or explain one."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from nearfield.cli import show
from nearfield.cli.grammar import Commands, add_command, add_json

if TYPE_CHECKING:
    from nearfield.losses.registry import Method


def add_parser(commands: Commands) -> None:
    """The grammar."""
    parser = add_command(commands, "methods", methods, "list the methods, or explain one", "nearfield methods fastap")
    parser.add_argument("name", nargs="?", help="explain this method")
    add_json(parser)


def methods(arguments: argparse.Namespace) -> None:
    """List the methods or explain one."""
    from rich.table import Table

    from nearfield import losses

    found = [losses.method(arguments.name)] if arguments.name else [losses.method(name) for name in losses.names()]
    if arguments.json:
        facts = [_facts(m) for m in found]
        show.results().print_json(json.dumps(facts[0] if arguments.name else facts))
        return
    if not arguments.name:
        table = Table("method", "source", "parameters", "sampler")
        for m in found:
            table.add_row(m.name, m.source, ", ".join(_defaults(m)), m.sampler)
        show.results().print(table)
        return
    (m,) = found
    show.results().print(f"[bold]{m.name}[/bold]  {m.source}\n", soft_wrap=True)
    show.results().print(m.idea, soft_wrap=True, markup=False)
    lines = {"defaults": _list(_defaults(m))}
    lines |= {f"variant {name}": _list(preset) for name, preset in m.presets.items()}
    for name, space in m.space.items():
        log = ", log scale" if getattr(space, "log", False) else ""
        lines[f"search {name}"] = f"{space.low} to {space.high}{log}"
    lines["sampler"] = m.sampler
    lines["recipe"] = _list(m.recipe.model_dump(exclude_defaults=True)) if m.recipe else "the run's own optimiser"
    show.results().print(
        "\n" + "\n".join(f"{key}: {text}" for key, text in lines.items()), soft_wrap=True, markup=False
    )


def _list(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in values.items()) or "none"


def _facts(m: Method) -> dict[str, Any]:
    return {
        "name": m.name,
        "source": m.source,
        "idea": m.idea,
        "defaults": _defaults(m),
        "presets": {name: dict(preset) for name, preset in m.presets.items()},
        "space": {name: asdict(space) for name, space in m.space.items()},
        "sampler": m.sampler,
        "recipe": m.recipe.model_dump(exclude_defaults=True) if m.recipe else None,
    }


def _defaults(method: Any) -> dict[str, Any]:
    return {n: None if p.default is p.empty else p.default for n, p in method.parameters.items()}
