"""`nearfield fit`: from a folder of photographs to a model, with what to expect of it."""

from __future__ import annotations

import argparse
from pathlib import Path

from nearfield.cli import show
from nearfield.cli.grammar import Commands, add_command, add_json

DETAILS = """
PHOTOS is a folder with a folder of images for each class, a table (.csv with the columns path and label), or the name
of a dataset (`nearfield data list`).

  1  The data are checked: files that cannot be read, classes with one image, copies, near-duplicates in
     two classes.
  2  30 % of the classes are held out. Nothing is learned from them, and nothing is chosen by them.
  3  A few strong methods are compared under equal conditions: first as heads on frozen features of a
     pretrained network, then, if the time allows, the whole network; small images also train a small
     network from scratch.
  4  What validation chose is tested on the held-out classes, against the untrained network. The report
     says what to expect on new classes, with an interval. If training is not better, the untrained
     network is exported.

Photographs without classes get the pretrained network. DIR is a model that `nearfield index`, `nearfield embed` and
nearfield.load open; DIR/report.md is the report. Until it is complete its parts are in DIR.work: interrupt it at any
time, the same command resumes. --minutes is a budget, not a promise: it may take up to twice as long.
"""
EXAMPLES = """
nearfield fit photos/ --out model/
nearfield fit photos/ --out model/ --minutes 60
nearfield fit parts.csv --out model/ --onnx
nearfield index model/ photos/ --out shop.index
"""


def add_parser(commands: Commands) -> None:
    """The grammar."""
    summary = "fit a model to a folder of photographs, and say what to expect of it on new classes"
    parser = add_command(commands, "fit", fit, summary, details=DETAILS, examples=EXAMPLES)
    parser.add_argument("photos", help="a folder of class folders, a table (.csv), or the name of a dataset")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the model to write")
    parser.add_argument("--minutes", type=float, default=10.0, metavar="N", help="budget of time (default: 10)")
    parser.add_argument("--onnx", action="store_true", help="write model.onnx too")
    add_json(parser, "what was found")


def fit(arguments: argparse.Namespace) -> None:
    """Fit a model; see `nearfield.fit`."""
    from nearfield.fit import fit_model, report_text

    facts = fit_model(
        arguments.photos,
        arguments.out,
        minutes=arguments.minutes,
        onnx=arguments.onnx,
        say=lambda line: show.note(line),
    )
    if arguments.json:
        show.say_json(facts)
    else:
        show.say(report_text(facts).rstrip(), f"\nModel: {arguments.out}\nReport: {arguments.out / 'report.md'}")
