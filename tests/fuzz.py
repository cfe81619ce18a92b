"""Hostile input for losses, constructors, metrics, commands and files, and kills: prints cases and failures.

    python tests/fuzz.py                    every area, a few minutes; exit code 1 if anything failed
    python tests/fuzz.py batches --seed 3   one area, other cases
    python tests/fuzz.py --minutes 30       more of everything

A case either does what it should or ends with the library's own error. Anything else is a failure, and is printed with
what reproduces it: another exception, a gradient that is not finite beside a value that is, a score that brute force
does not confirm, a run that resumes to other numbers. `tests/test_fuzz.py` runs a short form.

Axes: N items, D dims, C classes.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from reference_metrics import all_query_scores, mean_scores
from torch import Tensor

from nearfield import losses, retrieval_metrics
from nearfield.cli.main import main as nearfield
from nearfield.errors import NearfieldError

C = 12  # classes that losses with proxies know
UNEXPECTED = "unexpected error"  # what the command line says of an exception that it did not foresee


class Case(NamedTuple):
    """Something to try: a name that reproduces it, and a check that returns what went wrong, or None."""

    name: str
    check: Callable[[], str | None]


# ---------------------------------------------------------------------------------------------------------------
# Batches: every loss on vectors and labels that nobody would wish for

Vectors = Callable[[int, int, torch.Generator], Tensor]


def _normal(n: int, d: int, g: torch.Generator) -> Tensor:
    return torch.randn(n, d, generator=g, dtype=torch.float64)


def _with(change: Callable[[Tensor], None]) -> Vectors:
    def make(n: int, d: int, g: torch.Generator) -> Tensor:
        x = _normal(n, d, g)
        change(x)
        return x

    return make


def _set(row: int, value: float) -> Callable[[Tensor], None]:
    def change(x: Tensor) -> None:
        x[row] = value

    return change


def _set_one(value: float) -> Callable[[Tensor], None]:
    def change(x: Tensor) -> None:
        x[len(x) // 2, 0] = value

    return change


VECTORS: dict[str, Vectors] = {
    "normal": _normal,
    "tiny": lambda n, d, g: 1e-18 * _normal(n, d, g),
    "large": lambda n, d, g: 1e3 * _normal(n, d, g),
    "mixed scales": lambda n, d, g: _normal(n, d, g) * 10.0 ** torch.arange(n).remainder(6)[:, None],
    "zeros": lambda n, d, g: torch.zeros(n, d, dtype=torch.float64),
    "one zero row": _with(_set(0, 0.0)),
    "all equal": lambda n, d, g: torch.ones(n, d, dtype=torch.float64),
    "duplicates": lambda n, d, g: _normal((n + 1) // 2, d, g).repeat(2, 1)[:n],
    "opposite": lambda n, d, g: _normal(1, d, g) * torch.tensor([1.0, -1.0]).repeat(n)[:n, None],
    "collinear": lambda n, d, g: _normal(1, d, g) * torch.arange(1, n + 1)[:, None],
    "one-hot": lambda n, d, g: torch.eye(max(n, d), dtype=torch.float64)[:n, :d],
    "orthogonal to nothing": lambda n, d, g: _normal(n, d, g).sign(),
    "nan": _with(_set_one(math.nan)),
    "infinity": _with(_set_one(math.inf)),
}
BROKEN = ("nan", "infinity")
LABELS: dict[str, Callable[[int], list[int]]] = {
    "one class": lambda n: [0] * n,
    "all different": lambda n: [i % C for i in range(n)] if n <= C else list(range(n)),
    "pairs": lambda n: [(i // 2) % C for i in range(n)],
    "alternating": lambda n: [i % 2 for i in range(n)],
    "unequal": lambda n: [int(math.sqrt(i)) % C for i in range(n)],
    "one against all": lambda n: [0] * (n - 1) + [1],
}
SHAPES = ((2, 1), (2, 2), (3, 8), (17, 5), (40, 16))
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def make_loss(name: str, dim: int, **params: Any) -> torch.nn.Module:
    """A loss with what it must be told, its parameters from the same numbers every time."""
    needed: dict[str, Any] = {"num_classes": C, "dim": dim}
    wanted = losses.method(name).parameters
    torch.manual_seed(0)
    return losses.create(name, **{k: v for k, v in needed.items() if k in wanted}, **params)


def batches(rng: random.Random) -> Iterator[Case]:
    """Every loss on every kind of vectors, labels, shape and dtype, in random order."""
    grid = list(itertools.product(losses.names(), VECTORS, LABELS, SHAPES, DTYPES))
    rng.shuffle(grid)
    for name, vectors, labels, shape, dtype in grid:
        yield Case(
            f"{name} on {vectors}, labels {labels}, {shape}, {dtype}",
            lambda a=(name, vectors, labels, shape, dtype): _batch(*a),  # type: ignore[misc]
        )


def _batch(name: str, vectors: str, labels: str, shape: tuple[int, int], dtype: torch.dtype) -> str | None:
    generator = torch.Generator().manual_seed(0)
    x = VECTORS[vectors](*shape, generator).to(dtype).requires_grad_()
    y = torch.tensor(LABELS[labels](len(x)))
    try:
        loss = make_loss(name, shape[1])
        if dtype == torch.float64:
            loss = loss.double()
        value = loss(x, y)
        value.backward()
    except NearfieldError:
        return None
    assert x.grad is not None
    finite = bool(value.isfinite()), bool(x.grad.isfinite().all())
    if vectors in BROKEN:
        return "a value that is finite although the input is not" if finite[0] else None
    if finite[0] and finite[1]:
        return None
    if dtype == torch.float16 or not bool(x.isfinite().all()):
        return None  # 1/norm of short vectors exceeds the range of float16; a gradient scaler sees it
    return f"value finite: {finite[0]}, gradient finite: {finite[1]}"


# ---------------------------------------------------------------------------------------------------------------
# Constructors: every parameter of every method with values of every type

HOSTILE: tuple[Any, ...] = (
    None, True, "x", "", "nan", b"x", [], [1], (1, 2), {}, {"a": 1}, object, math.nan, math.inf, -math.inf, -1, -0.5,
    0, 0.0, 1, 2, 1e-300, 1e300, 10**30, -(10**30), 1.5, 3 + 1j, torch.tensor(1.0), np.float32(0.5), torch.zeros(2),
)  # fmt: skip


def constructors(rng: random.Random) -> Iterator[Case]:
    """Every parameter of every method with every hostile value."""
    grid = [
        (name, key, value) for name in losses.names() for key in losses.method(name).parameters for value in HOSTILE
    ]
    rng.shuffle(grid)
    for name, key, value in grid:
        yield Case(f"{name}({key}={value!r})", lambda a=(name, key, value): _construct(*a))  # type: ignore[misc]


def _construct(name: str, key: str, value: Any) -> str | None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(24, 8, generator=generator, requires_grad=True), torch.arange(24) // 4
    given = {"num_classes": C, "dim": 8}
    wanted = losses.method(name).parameters
    try:
        loss = losses.create(name, **{**{k: v for k, v in given.items() if k in wanted}, key: value})
        result = loss(x, y)
        result.backward()
    except NearfieldError:
        return None
    if result.isfinite() and x.grad is not None and x.grad.isfinite().all():
        return None
    return f"accepted, and the value is {float(result):.3g}"


# ---------------------------------------------------------------------------------------------------------------
# Metrics: scores against brute force, and input that is no input


def metrics(rng: random.Random) -> Iterator[Case]:
    """Small random sets, many of them with ties, against the slow reference; and hostile arguments."""
    for number in itertools.count():
        seed = rng.randrange(1 << 30)
        if number % 3:
            yield Case(f"metrics of random set {seed}", lambda s=seed: _scores(s))  # type: ignore[misc]
        else:
            yield Case(f"hostile arguments {seed}", lambda s=seed: _arguments(s))  # type: ignore[misc]


def _scores(seed: int) -> str | None:
    rng = np.random.default_rng(seed)
    n, d, classes = int(rng.integers(2, 40)), int(rng.integers(1, 6)), int(rng.integers(1, 8))
    x = rng.integers(-2, 3, (n, d)) if rng.random() < 0.5 else rng.standard_normal((n, d))
    labels = rng.integers(0, classes, n)
    distances: tuple[Literal["cosine", "euclidean"], ...] = ("cosine", "euclidean")
    distance = distances[int(rng.integers(2))]
    try:
        found = retrieval_metrics(
            torch.from_numpy(x.astype(np.float64)),
            torch.from_numpy(labels),
            (1, 2, 5),
            metrics=("recall", "r_precision", "map_at_r"),
            distance=distance,
        )
    except NearfieldError:
        counts = np.bincount(labels)
        return "refused although some query has a match" if (counts > 1).any() and n > 1 else None
    expected = mean_scores(all_query_scores(x.astype(np.float64), labels.tolist(), (1, 2, 5), distance=distance))
    worst = max((abs(found[key] - value) for key, value in expected.items() if key in found), default=0.0)
    return f"differs from brute force by {worst:.2e}" if worst > 1e-9 else None


ODD: tuple[Any, ...] = (None, 5, "x", [], (), (True,), ("1",), (0,), (-1,), (2**70,), (1.5,), math.nan, {}, object)


def _arguments(seed: int) -> str | None:
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    x: Any = torch.randn(10, 3, generator=generator)
    arguments: dict[str, Any] = {}
    for key in rng.sample(["ks", "metrics", "distance", "ties", "gallery", "kmeans", "denominator", "nonsense"], 2):
        arguments[key] = rng.choice(ODD)
    spoil = rng.choice(["nothing", "nan", "empty", "integers", "flat", "list"])
    x = {
        "nothing": lambda: x,
        "nan": lambda: x.masked_fill(x > 1, math.nan),
        "empty": lambda: x[:0],
        "integers": lambda: x.long(),
        "flat": lambda: x[:, 0],
        "list": lambda: x.tolist(),
    }[spoil]()
    try:
        scores = retrieval_metrics(x, torch.arange(len(x)) // 2, **arguments)
    except NearfieldError:
        return None
    wrong = [name for name, score in scores.items() if not math.isfinite(score)]
    return f"scores that are not finite: {wrong}, from {spoil} and {arguments}" if wrong else None


# ---------------------------------------------------------------------------------------------------------------
# Commands and files: damaged configurations, data and results, given to the command line

WORDS = (
    "", " ", "-", "--", "0", "-1", "1e9", "nan", "x" * 300, "../x", "[/]", "a=b", "=", "steps=", "steps=x", "steps=0",
    "a.b.c=1", "é", "💥", "%s", "{0}", "method.name=tripletz", "method.params.margin=nan", "optimizer.lr=inf",
    "data.name=nowhere", "digits", "glyphs\x01", "steps=5\n[model]\ndim=3", "seed=1979-05-27",
    "sampler.batch_size=true", "model.dim=99999999999999999999",
)  # fmt: skip
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("train", "--set"), ("bench", "--dry-run", "--set"), ("bench", "--dry-run", "--methods"),
    ("bench", "--dry-run", "--protocol"), ("eval",), ("methods",), ("recipes",), ("weights",), ("check-gradients",),
    ("data", "show"), ("data", "add", "mine"), ("embed",), ("export",), ("report",), ("lint",),
    ("ablate", "bins", "--dry-run", "--values"), ("nonsense",),
)  # fmt: skip


def commands(rng: random.Random) -> Iterator[Case]:
    """Command lines with odd words, and files that are cut, swollen or not what their name says."""
    with tempfile.TemporaryDirectory() as folder:
        samples = _samples(Path(folder))
        for number in itertools.count():
            if number % 2:
                words = [*rng.choice(COMMANDS), *rng.choices(WORDS, k=rng.randrange(1, 3))]
            else:
                words = _damaged(rng, samples, Path(folder) / f"case-{number}")
            yield Case(" ".join(repr(word) for word in words), lambda w=words, d=folder: _command(w, Path(d)))  # type: ignore[misc]


def _samples(folder: Path) -> dict[str, list[str]]:
    """Good files, each with the command that reads it; the file is the word that is the key."""
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((12, 4)).astype(np.float32), np.arange(12) // 3
    np.savez(folder / "x.npz", embeddings=x, labels=labels)
    np.save(folder / "x.npy", x)
    np.save(folder / "labels.npy", labels)
    rows = "\n".join(",".join([str(label), *map(str, row)]) for label, row in zip(labels, x, strict=True))
    (folder / "x.csv").write_text("label,a,b,c,d\n" + rows + "\n", encoding="utf-8")
    (folder / "run.toml").write_text('steps = 1\n[data]\nname = "nowhere"\n', encoding="utf-8")
    (folder / "bench.toml").write_text('seeds = [0]\n[run.data]\nname = "nowhere"\n', encoding="utf-8")
    return {
        "x.npz": ["eval", "x.npz"],
        "x.npy": ["eval", "x.npy", str(folder / "labels.npy")],
        "x.csv": ["eval", "x.csv"],
        "run.toml": ["train", "run.toml", "--set", "data.name=nowhere"],  # whatever is left of it, nothing is trained
        "bench.toml": ["bench", "bench.toml", "--dry-run", "--set", "run.data.name=nowhere"],
    }


def _damaged(rng: random.Random, samples: dict[str, list[str]], folder: Path) -> list[str]:
    """A damaged copy of a sample, and the command that reads it."""
    name = rng.choice(list(samples))
    content = bytearray((folder.parent / name).read_bytes())
    match rng.randrange(5):
        case 0:
            del content[rng.randrange(len(content)) :]
        case 1:
            for _ in range(rng.randrange(1, 9)):
                content[rng.randrange(len(content))] = rng.randrange(256)
        case 2:
            content[:0] = b"\xef\xbb\xbf"
        case 3:
            at = rng.randrange(len(content))
            content[at:at] = rng.randbytes(rng.randrange(1, 40))
        case _:
            content.clear()
    folder.mkdir()
    (folder / name).write_bytes(content)
    return [str(folder / name) if word == name else word for word in samples[name]]


def _command(words: list[str], folder: Path) -> str | None:
    said = io.StringIO()
    before = os.getcwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            code = nearfield(words)
    except SystemExit as ended:  # argparse
        code = ended.code if isinstance(ended.code, int) else 1
    finally:
        os.chdir(before)
        for left in ("runs", "member"):
            shutil.rmtree(folder / left, ignore_errors=True)
    if code not in (0, 1, 2):
        return f"exit code {code}"
    return f"exit code {code}: {said.getvalue().strip()[-300:]}" if UNEXPECTED in said.getvalue() else None


# ---------------------------------------------------------------------------------------------------------------
# Kills: a run that is killed at random moments ends as if it had not been

RUN = (
    "train",
    "--set",
    "steps=60",
    "--set",
    "eval_every=5",
    "--set",
    "data.name=digits",
    "--set",
    "sampler.batch_size=12",
)


def kills(rng: random.Random) -> Iterator[Case]:
    """A training run, killed at a random moment and started again until it ends, beside an undisturbed one."""
    with tempfile.TemporaryDirectory() as folder:
        whole, seconds = _trained(Path(folder) / "whole")
        for number in itertools.count():
            moments = [rng.uniform(0.2, 1.0) * seconds for _ in range(3)]
            out = Path(folder) / f"killed-{number}"
            yield Case(f"killed after {[round(m, 2) for m in moments]} s", lambda o=out, m=moments: _kill(o, m, whole))  # type: ignore[misc]
            shutil.rmtree(out, ignore_errors=True)


def _trained(out: Path) -> tuple[bytes, float]:
    """The weights of an undisturbed run, and the seconds that it took."""
    begun = time.monotonic()
    subprocess.run([sys.executable, "-m", "nearfield", *RUN, "--out", str(out)], check=True, capture_output=True)
    return _outcome(out), time.monotonic() - begun


def _outcome(out: Path) -> bytes:
    """What a run ends with, but for the time it took."""
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    result.pop("train_seconds")
    return json.dumps(result, sort_keys=True).encode() + (out / "model.safetensors").read_bytes()


def _kill(out: Path, moments: list[float], expected: bytes) -> str | None:
    command = [sys.executable, "-m", "nearfield", *RUN, "--out", str(out)]
    for moment in moments:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(moment)
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"exit code {done.returncode}: {done.stderr[-300:]}"
    return None if _outcome(out) == expected else "other numbers than the undisturbed run"


# ---------------------------------------------------------------------------------------------------------------
# Running

Area = Callable[[random.Random], Iterator[Case]]
AREAS: dict[str, Area] = {
    "batches": batches,
    "constructors": constructors,
    "metrics": metrics,
    "commands": commands,
    "kills": kills,
}


class Tally(NamedTuple):
    """How an area went."""

    cases: int
    failures: list[str]


def run_area(area: Area, seed: int, seconds: float = math.inf, cases: int | None = None) -> Tally:
    """Try cases of an area until the time is over, `cases` are done, or there are no more."""
    begun, done, failures = time.monotonic(), 0, []
    found = area(random.Random(seed))
    for case in itertools.islice(found, cases):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                wrong = case.check()
            except Exception as error:
                wrong = f"{type(error).__name__}: {str(error)[:200]}"
        done += 1
        if wrong is not None:
            failures.append(f"{case.name}: {wrong}")
        if time.monotonic() - begun > seconds:
            break
    found.close()  # type: ignore[attr-defined]
    return Tally(done, failures)


def main() -> int:
    """Run the areas and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("areas", nargs="*", help=f"of {', '.join(AREAS)} (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=5.0, help="for all areas together (default: 5)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    chosen = arguments.areas or list(AREAS)
    failed = False
    for name in chosen:
        tally = run_area(AREAS[name], arguments.seed, 60 * arguments.minutes / len(chosen))
        print(f"{name:14} {tally.cases:7,} cases {len(tally.failures):5,} failures", flush=True)
        for failure in tally.failures[:10]:
            print(f"    {failure}")
        failed |= bool(tally.failures)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
