"""The public surface, and the README's claims, executed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import nearfield as nf

ROOT = Path(__file__).parents[1]


def test_exported_names_are_exactly_these() -> None:
    assert sorted(nf.__all__) == sorted(
        [
            "data",
            "losses",
            "metrics",
            "mining",
            "models",
            "pairs",
            "samplers",
            "BenchConfig",
            "CrossBatchMemory",
            "Index",
            "InputError",
            "NearfieldError",
            "OptimizerConfig",
            "RunConfig",
            "RunError",
            "load",
            "pair_weights",
            "param_groups",
            "retrieval_metrics",
            "train",
            "__version__",
        ]
    )
    for name in nf.__all__:
        assert getattr(nf, name) is not None
    assert callable(nf.train)


def test_contract_names_of_losses() -> None:
    wanted = """contrastive triplet margin lifted lifted_generalized lifted_star npairs angular ranked_list binomial
    bin_lifted histogram nca multi_similarity fastap snr supcon nt_xent circle smooth_ap npairs_angular
    structured_clustering prototypical proxy_triplet proxy_nca proxy_softmax proxy_anchor soft_triple cosface arcface
    sub_center_arcface dreml drml"""
    assert set(wanted.split()) <= set(nf.losses.names())  # more may be added
    assert nf.losses.names() == sorted(nf.losses.names())


def test_import_is_quick_because_torch_waits() -> None:
    code = "import sys, nearfield; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_readme_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
    assert len(blocks) == 2
    done = subprocess.run([sys.executable, "-W", "error", "-c", blocks[0]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\d+\.\d{3}  \d\.\d{3}  \d+ pairs matter\n", done.stdout)


def test_the_readmes_loss_is_the_one_in_the_library() -> None:
    shown = re.findall(r"```python\n(class LiftedStar.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)[
        0
    ]
    real = (ROOT / "src" / "nearfield" / "losses" / "neighbourhood.py").read_text(encoding="utf-8")
    for line in shown.split("def weigh")[1].splitlines()[1:]:
        assert line.strip() in real


def test_generated_pages_are_current() -> None:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import generate
    finally:
        sys.path.remove(str(ROOT / "docs"))
    assert (ROOT / "docs" / "methods.md").read_text(encoding="utf-8") == generate.methods_page()
    if sys.version_info < (3, 13):  # since then argparse writes short and long options in another way
        assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == generate.cli_page()


def test_linked_files_exist() -> None:
    for page in ("README.md", "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text(encoding="utf-8")):
            assert (ROOT / target).exists(), target
