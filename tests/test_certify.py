"""`check-gradients` passes correct losses and fails wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from nearfield import losses
from nearfield.cli.main import main
from nearfield.inspection.gradients import certify, find_loss


@pytest.mark.parametrize("name", losses.names())
def test_every_loss_is_certified(name: str) -> None:
    checks = certify(find_loss(name, num_classes=12, dim=16))
    assert all(check.passed for check in checks), checks
    assert {"two-pass chunks", "grad_output"} <= {check.name for check in checks}


class WrongGradient(torch.autograd.Function):
    """Like the released FastAP layer: ignores grad_output and scales the gradient."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        return x.square().sum()

    @staticmethod
    def backward(ctx, grad_output: torch.Tensor) -> torch.Tensor:  # type: ignore[no-untyped-def]
        x: torch.Tensor = ctx.saved_tensors[0]
        return 5 * x


def test_a_wrong_gradient_is_caught() -> None:
    wrong: Callable[[torch.Tensor], torch.Tensor] = WrongGradient.apply
    failed = {check.name for check in certify(lambda x, y: wrong(x)) if not check.passed}
    assert failed == {"finite differences", "grad_output"}


def test_command_line_on_anybodys_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_losses.py").write_text(
        "import torch\n"
        "class Mine(torch.nn.Module):\n"
        "    def __init__(self, power=2): super().__init__(); self.power = power\n"
        "    def forward(self, x, y): return (x ** self.power).mean()\n"
        "class Detached(Mine):\n"
        "    def forward(self, x, y): return (x.detach() * x).mean()\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["check-gradients", "my_losses:Mine", "--set", "power=4"]) == 0
    assert main(["check-gradients", "my_losses:Detached"]) == 1
    assert "above 1e-06" in capsys.readouterr().out
    assert main(["check-gradients", "my_losses:Nothing"]) == 2
    (tmp_path / "broken_losses.py").write_text("1 / 0\n")
    for name in (":x", "my_losses:", "broken_losses:Mine", "torch.nn:TripletMarginLoss", "math:pi", "json:dumps"):
        capsys.readouterr()
        assert main(["check-gradients", name]) == 2
        assert "loss must" in capsys.readouterr().err
    assert main(["check-gradients", "pytorch_metric_learning.losses:ContrastiveLoss"]) == 0
