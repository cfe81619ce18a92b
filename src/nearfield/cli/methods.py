"""`nearfield methods`: list the methods, or explain one."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import nearfield as nf
from nearfield.cli import show
from nearfield.cli.grammar import Commands, add_command, add_json

if TYPE_CHECKING:
    from nearfield.losses.registry import Method, Range

DETAILS = """
With a name it prints the equation, file and line, the defaults, published variants, the search space, the sampler, and
the released code that value and gradient were compared with.
With --table it prints all methods by year with their results as published: R@1 in percent by dataset and backbone.
"""
SHOWN = {"cub": "CUB", "cars196": "Cars", "sop": "SOP"}  # columns of that table; other datasets share one
TWO_EXAMPLES = "nearfield methods fastap\nnearfield methods --table"


def add_parser(commands: Commands) -> None:
    """The grammar."""
    summary = "list the methods, or explain one"
    parser = add_command(commands, "methods", methods, summary, details=DETAILS, examples=TWO_EXAMPLES)
    parser.add_argument("name", nargs="?", help="method to explain")
    parser.add_argument("--table", action="store_true", help="all methods by year with their published results")
    add_json(parser)


def methods(arguments: argparse.Namespace) -> None:
    """List the methods or explain one."""
    names = [arguments.name] if arguments.name else nf.losses.names()
    found = [nf.losses.method(name) for name in names]
    if arguments.json:
        facts = [_facts(m) for m in found]
        show.say_json(facts[0] if arguments.name else facts)
    elif arguments.table:
        _by_year(found)
    elif arguments.name:
        _explain(found[0])
    else:
        rows = [(m.name, m.source, ", ".join(_defaults(m)), m.sampler) for m in found]
        show.say(show.table(("method", "source", "parameters", "sampler"), rows))


def _explain(m: Method) -> None:
    lines = {"defined in": m.where, "defaults": _list(_defaults(m))}
    lines |= {f"variant {name}": _list(preset) for name, preset in m.presets.items()}
    for name, (space, _) in m.searched({}).items():
        lines[f"search {name}"] = span(space)
    lines["sampler"] = "that of its base" if m.sampler == "base" else m.sampler
    configured = f"as the run is configured ({m.no_recipe})"
    lines["optimiser"] = _list(m.recipe.model_dump(exclude_defaults=True)) if m.recipe else configured
    lines["compared with"] = "; ".join(map(str, m.compared)) or ": ".join(filter(None, ("nothing", m.uncompared)))
    show.say(f"{m.name}  {m.source}\n", m.idea, "", *(f"{key}: {text}" for key, text in lines.items()))


def _by_year(found: list[Method]) -> None:
    """Methods and their claims, oldest first."""
    rows: list[tuple[str, ...]] = []
    notes: dict[str, int] = {}
    for m in sorted(found, key=lambda m: (m.year, m.name)):
        by_dataset: dict[str, list[str]] = {}
        for claim in m.claims:
            mark = f" [{notes.setdefault(claim.source, len(notes) + 1)}]" if claim.source else ""
            column = claim.dataset if claim.dataset in SHOWN else ""
            where = " ".join(filter(None, ("" if column else claim.dataset, claim.backbone)))
            by_dataset.setdefault(column, []).append(f"{claim.r_at_1:.1f} {where}".rstrip() + mark)
        name = f"{m.name} (= {m.alias_of})" if m.alias_of else m.name
        rows.append((name, str(m.year), *("\n".join(by_dataset.get(column, [])) for column in (*SHOWN, ""))))
    head = ("method", "year", *SHOWN.values(), "other")
    show.say(show.table(head, rows, "R@1 in percent as published, by backbone and embedding size", lines=True))
    show.say(*(f"[{number}] {source}" for source, number in notes.items()))


def span(each: Range) -> str:
    """What a search may choose from, in words."""
    from nearfield.losses.registry import Choice

    if isinstance(each, Choice):
        return " or ".join(map(str, each.values))
    return f"{each.low} to {each.high}{', log scale' if each.log else ''}"


def _list(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in values.items()) or "none"


def _facts(m: Method) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "name": m.name,
        "source": m.source,
        "year": m.year,
        "claims": [claim._asdict() for claim in m.claims],
        "alias_of": m.alias_of,
        "idea": m.idea,
        "defaults": _defaults(m),
        "presets": {name: dict(preset) for name, preset in m.presets.items()},
        "space": {name: asdict(space) for name, space in m.space.items()},
        "sampler": m.sampler,
        "recipe": m.recipe.model_dump(exclude_defaults=True) if m.recipe else None,
        "compared": [each._asdict() for each in m.compared],
        "uncompared": m.uncompared,
        "where": m.where,
    }


def _defaults(m: Method) -> dict[str, Any]:
    return {n: None if p.default is p.empty else p.default for n, p in m.parameters.items()}
