"""Complete configurations by name: the recipes of the papers, and some for a machine without an accelerator.

A recipe is a function that returns a `RunConfig`; its docstring states the source of its numbers and what differs.
`nearfield recipes NAME` prints both, `nearfield train NAME` runs it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nearfield.config import RunConfig, read_toml
from nearfield.errors import InputError, nearest
from nearfield.recipes import comparisons, pairs, proxies, small

RECIPES: dict[str, Callable[[], RunConfig]] = {
    function.__name__: function
    for function in (
        small.glyphs_conv,
        small.omniglot_conv4,
        small.cub_lite0_features,
        small.cub_lite0_128px,
        pairs.fastap_resnet18_sop,
        pairs.fastap_resnet50_sop,
        pairs.fastap_resnet50_sop_256,
        pairs.fastap_googlenet_sop,
        pairs.fastap_resnet18_inshop,
        pairs.fastap_resnet18_vehicleid,
        pairs.ms_bninception_cub,
        pairs.ms_bninception_cub_paper,
        pairs.ms_bninception_sop,
        pairs.contrastive_bninception_cub,
        pairs.margin_resnet50_cub,
        pairs.ranked_list_googlenet_sop,
        pairs.lifted_googlenet_cub,
        proxies.proxy_nca_bninception_cub,
        proxies.proxy_nca_plus_resnet50_cub,
        proxies.proxy_softmax_resnet50,
        proxies.soft_triple_bninception_cub,
        proxies.proxy_anchor_bninception_cub,
        proxies.dreml_resnet18_cub,
        proxies.drml_pa_cub,
        comparisons.unbiased_bninception_cub,
        comparisons.reality_check_bninception_cub,
        comparisons.revisiting_resnet50_cub,
    )
}


def recipe(name: str) -> RunConfig:
    """The configuration called `name`; InputError naming the nearest if it is unknown."""
    if name not in RECIPES:
        raise InputError(f"unknown recipe {name!r}; {nearest(name, RECIPES)}")
    return RECIPES[name]()


def config_values(name_or_path: str | Path) -> dict[str, Any]:
    """The tables of a recipe, or of a TOML file; a recipe's name always means the recipe."""
    path = Path(name_or_path)
    if str(path) in RECIPES:
        return recipe(str(path)).model_dump(mode="json", exclude_none=True)
    if path.suffix != ".toml" and not path.is_file():
        raise InputError(
            f"the configuration must be a TOML file or a recipe; got {str(path)!r}; {nearest(str(path), RECIPES)}"
        )
    return read_toml(path)
