"""CONTRIBUTING's "Add a loss in four steps", executed in a copy of the project: no other edit may be needed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.programs

ROOT = Path(__file__).parents[1]
NAME = "soft_contrastive"
LAWS = ("contract", "losses", "certify", "engine", "methods", "public")  # tests that know every loss
Run = Callable[..., str]


def code_blocks() -> list[str]:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.split("## Add a loss in four steps")[1].split("\n## ")[0]
    return [textwrap.dedent(code) for code in re.findall(r"```python\n(.*?)```", section, re.S)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A command in a copy of the project in which steps 1 and 2 were done."""
    copy = tmp_path_factory.mktemp("project")
    for folder in ("src", "docs", "tests"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__", "*.png"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    slow, loss = code_blocks()
    reference, family = copy / "tests" / "reference.py", copy / "src" / "nearfield" / "losses" / "neighbourhood.py"
    text = reference.read_text(encoding="utf-8")
    head = "REFERENCE: dict[str, Callable[..., Tensor]] = {\n"
    assert head in text
    reference.write_text(text.replace(head, f'\n{slow}\n\n{head}    "{NAME}": {NAME},\n'), encoding="utf-8")
    family.write_text(f"{family.read_text(encoding='utf-8')}\n\n{loss}", encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(copy / "src")}

    def command(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=copy, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        return done.stdout

    return command


def test_it_keeps_the_laws_of_every_loss(run: Run) -> None:
    """Equality with its slow version, the contract, certificate, record, parameters; names and generated pages."""
    run("docs/generate.py")  # make docs
    files = [f"tests/test_{law}.py" for law in LAWS]
    chosen = f"{NAME} or every_pair_loss or names or generated"
    found = run("-m", "pytest", "-v", "-p", "no:cacheprovider", "-k", chosen, *files)
    passed = re.search(r"(\d+) passed", found)
    assert passed is not None
    assert int(passed[1]) > 100


def test_its_code_is_as_clean_as_the_rest(run: Run) -> None:
    for tool in (("ruff", "format", "--check"), ("ruff", "check")):
        run("-m", *tool, "src/nearfield/losses", "tests/reference.py")


def test_commands_know_it(run: Run, tmp_path: Path) -> None:
    few = [
        f"--set={key}={value}" for key, value in {"data.name": "digits", "sampler.batch_size": 12, "steps": 2}.items()
    ]
    commands = [
        ["methods", NAME, "--json"],
        ["weights", NAME, "--json"],
        ["check-gradients", NAME],
        ["train", f"--set=method.name={NAME}", *few, "--out", str(tmp_path / "run"), "--progress=none"],
    ]
    code = f"""
import contextlib, io, json
from nearfield.cli.main import main

printed = []
for words in {commands!r}:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(words) == 0, words
    printed.append(out.getvalue())
print(json.dumps(printed))
"""
    known, weighed, *_ = json.loads(run("-c", code))
    facts = json.loads(known)
    assert re.search(r"losses.neighbourhood\.py:\d+$", facts["where"])
    assert facts["defaults"] == {"scale": 16.0}
    (row,) = json.loads(weighed)
    assert row["measured"] == "SN"  # its own similarity, and the other negatives' through the logarithm of their sum
    assert json.loads((tmp_path / "run" / "result.json").read_text())["method"] == NAME


def test_doctor_and_bench_know_it(run: Run) -> None:
    run(
        "-W",
        "error",
        "-c",
        f"""
import torch
from nearfield import losses
from nearfield.bench.plan import Bench, plan
from nearfield.bench.protocols import protocol
from nearfield.config import BenchConfig
from nearfield.training.build import check_method
from nearfield.training.doctor import Doctor

loss, x = losses.create("{NAME}"), torch.randn(12, 4, requires_grad=True)
labels = torch.arange(12) // 3
loss(x, labels).backward()
doctor = Doctor(loss, torch.optim.SGD([x], lr=0.1))
assert [doctor.look(step, x, labels, 1.0, x.grad) for step in range(20)][0] == []

config = BenchConfig(methods=[{{"name": "{NAME}"}}], trials=4, variants=("untuned", "plain"))
check_method(config.run.model_copy(update={{"method": config.methods[0]}}))
bench = Bench(config, protocol("classic"), "data")
trials = plan(bench, {{}})
assert [task.kind for task in trials] == ["trial"] * 4
assert set(trials[1].setting) == {{"method.params.scale", "optimizer.lr", "sampler.per_class"}}
""",
    )
