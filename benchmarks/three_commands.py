"""From a folder of images to answers: `nearfield fit`, `nearfield index`, `nearfield serve`, each as a user starts it.

    NEARFIELD_DATA=... python benchmarks/three_commands.py [--only cub omniglot glyphs] [--minutes N] [--keep DIR]

Writes a folder of class folders: photographs of birds (CUB-200-2011, from $NEARFIELD_DATA/CUB_200_2011/images),
characters of Omniglot, or the built-in glyphs. One image of every class is held back, and some classes are not in the
folder at all. Prints the wall times of the commands, what fit promised for new classes, and how the index answers the
images it has never seen: is the class of a held-back image found, and is an image of a new class called new? The same
is asked of the server over HTTP. With --keep the images, the model and the index stay; run again, only what is missing
is done. Needs the extras [pretrained,serve].
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

if not __package__:  # started as a script
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import nearfield as nf
from benchmarks.load_serve import FORM, Client, form, server

KINDS = ("cub", "omniglot", "glyphs")
CLASSES, NEW, IMAGES = 50, 10, 30  # class folders, classes left out, most images of a class
FALSE_ACCEPT = 0.1


def write_folder(kind: str, home: Path) -> tuple[list[tuple[Path, str]], list[Path]]:
    """Make home/photos; the held-back images of known classes with their class, and the images of new classes."""
    known, new = list[tuple[Path, str]](), list[Path]()
    draw = np.random.default_rng(0)
    found = _birds() if kind == "cub" else _characters(kind)
    names = sorted(found)
    chosen = [names[place] for place in draw.permutation(len(names))[: CLASSES + NEW].tolist()]
    for place, name in enumerate(chosen):
        images = found[name][:IMAGES]
        folder = home / ("photos" if place < CLASSES else "new") / name
        for number, image in enumerate(images):
            held_back = place < CLASSES and number == 0
            target = (home / "held back" / name if held_back else folder) / f"{number}.{_suffix(image)}"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(image, target) if isinstance(image, Path) else Image.fromarray(image).save(target)
            if held_back:
                known.append((target, name))
            elif place >= CLASSES:
                new.append(target)
    return known, new


def _birds() -> dict[str, list[Any]]:
    root = Path(os.environ["NEARFIELD_DATA"]) / "CUB_200_2011" / "images"
    return {folder.name: sorted(folder.glob("*.jpg")) for folder in root.iterdir() if folder.is_dir()}


def _characters(kind: str) -> dict[str, list[Any]]:
    dataset = nf.data.load(kind)
    rows = np.argsort(dataset.labels, kind="stable")
    parts = np.split(rows, np.cumsum(np.bincount(dataset.labels))[:-1])
    images = np.asarray(dataset.images)
    return {f"{label:04d}": list(images[part]) for label, part in enumerate(parts)}


def _suffix(image: Any) -> str:
    return "jpg" if isinstance(image, Path) else "png"


def command(*words: str) -> tuple[Any, float]:
    """What a command of `nearfield` prints as JSON, and its wall time in seconds."""
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "nearfield", *words, "--json"], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout), time.monotonic() - begun


def show(kind: str, home: Path, minutes: float) -> None:
    """Run the commands on one collection and print what they did."""
    known, new = write_folder(kind, home)
    photos, model, shop = (str(home / name) for name in ("photos", "model", "shop.index"))
    facts, fitting = command("fit", photos, "--out", model, "--minutes", str(minutes))
    made, indexing = command("index", model, photos, "--out", shop, "--false-accept", str(FALSE_ACCEPT))
    print(f"{kind}: {facts['check']['usable_images']:,} images of {facts['check']['usable_classes']} classes")
    print(f"  nearfield fit    {fitting:6.1f} s  exported: {facts['exported']}, {facts['model']}")
    for part in ("untrained", "trained", "difference"):
        for name, value in facts["new_classes"].get(part, {}).items():
            low, mean, high = (100 * value[key] for key in ("low", "mean", "high"))
            print(f"    new classes, {part:10} {name:8} {mean:5.1f} ({low:.1f} to {high:.1f})")
    print(f"  nearfield index  {indexing:6.1f} s  {made['items']:,} images, {made['dims']} dims")
    with nf.Index.open(shop) as index:
        answers = index.search([path for path, _ in known], 5)
        right = [
            a.suggestion is not None and a.suggestion.label == name for a, (_, name) in zip(answers, known, strict=True)
        ]
        among = [any(n.label == name for n in a.neighbours) for a, (_, name) in zip(answers, known, strict=True)]
        accepted = [answer.is_new is False for answer in answers]
        flagged = [answer.is_new is True for answer in index.search(new, 5)]
        milliseconds = 1000 * min(_timed(index, known[0][0]) for _ in range(5))
    print(f"  {len(known)} held-back images of known classes: class of the nearest image right {np.mean(right):.0%}, ")
    print(f"    among the first five {np.mean(among):.0%}; called known {np.mean(accepted):.0%}")
    print(
        f"  {len(new)} images of {NEW} new classes: called new {np.mean(flagged):.0%} (asked: {1 - FALSE_ACCEPT:.0%})"
    )
    print(f"  a query, image file to answer: {milliseconds:.0f} ms")
    over_http(Path(shop), known, new)


def over_http(shop: Path, known: list[tuple[Path, str]], new: list[Path]) -> None:
    """Start the server, send it one image of every class over HTTP, print what it answers, and stop it."""
    begun = time.monotonic()
    with server(shop, []) as address:
        client = Client(address)
        pages = ", ".join(f"{path} {client.ask('GET', path)[0]}" for path in ("/healthz", "/", "/docs"))
        print(f"  nearfield serve  {time.monotonic() - begun:6.1f} s  {pages}")
        held_back = [(_post(client, path), name) for path, name in known]
        strangers = [(_post(client, path), path.parent.name) for path in new if path.stem == "0"]
        for answer, truth in ((held_back[0][0], f"held back, {known[0][1]}"), (strangers[0][0], "of a new class")):
            suggestion = answer["suggestion"]
            print(f"    POST /search, {truth}: {answer['status']}, is_new {answer['is_new']}, ", end="")
            print(f"suggestion {suggestion['label']} ({suggestion['probability']:.0%}), {answer['ms']:.0f} ms")
        right = sum(answer["suggestion"]["label"] == name for answer, name in held_back)
        flagged = sum(answer["is_new"] is True for answer, _ in strangers)
        times = [answer["ms"] for answer, _ in held_back + strangers]
        print(f"    {right} of {len(held_back)} held-back images get their class, ", end="")
        print(f"{flagged} of {len(strangers)} images of new classes are flagged; median {np.median(times):.0f} ms")
        counted = client.metric(r'nearfield_requests_total\{method="POST",route="/search",status="200"\}')
        print(f"    /metrics: {counted:.0f} searches answered")


def _post(client: Client, image: Path) -> dict[str, Any]:
    begun = time.monotonic()
    status, body = client.ask("POST", "/search?k=5", form(image.read_bytes()), FORM)
    return {**json.loads(body), "status": status, "ms": 1000 * (time.monotonic() - begun)}


def _timed(index: nf.Index, query: Path) -> float:
    begun = time.monotonic()
    index.search([query], 5)
    return time.monotonic() - begun


def main() -> None:
    """Show every collection that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--minutes", type=float, default=5.0, help="budget of each fit (default: 5)")
    parser.add_argument("--keep", type=Path, help="keep photographs, model and index in this folder")
    arguments = parser.parse_args()
    for kind in arguments.only:
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder) if arguments.keep is None else arguments.keep / kind
            show(kind, home, arguments.minutes)


if __name__ == "__main__":
    main()
