"""What the numbers of a bench depend on, and the command that reproduces them."""

from __future__ import annotations

import json
import shlex
from typing import Any

from nearfield.bench.results import BenchResults
from nearfield.config import BenchConfig, build_config, leaves
from nearfield.errors import InputError

NAMES = {"nearfield": "Nearfield", "commit": "Commit", "python": "Python", "torch": "PyTorch", "numpy": "NumPy"}


def command(config: BenchConfig) -> str:
    """The command that runs this bench, with every key that differs from its default."""
    default = leaves(BenchConfig().model_dump(mode="json"))
    changed = [(k, v) for k, v in leaves(config.model_dump(mode="json")).items() if k not in default or default[k] != v]
    return " ".join(["nearfield bench", *(f"--set {shlex.quote(f'{key}={_toml(value)}')}" for key, value in changed)])


def _toml(value: Any) -> str:
    """A value as TOML on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def provenance(results: BenchResults) -> dict[str, Any]:
    """Facts, protocol, command, configuration, and missing tasks."""
    seeds = sorted({seed.seed for method in results.methods for seed in method.seeds})
    facts = {
        "Bench": results.digest,
        "Data": str(results.data.get("name", "unknown")),
        "Data fingerprint": str(results.data.get("fingerprint", "unknown")),
        "Split fingerprint": results.split,
        "Seeds": ", ".join(map(str, seeds)) or "none yet",
    }
    for key, value in results.environment.items():
        if not isinstance(value, dict | list):
            facts[NAMES.get(key, key.capitalize().replace("_", " "))] = "unknown" if value is None else str(value)
    text, toml = _reproduce(results)
    return {
        "facts": facts,
        "protocol": {key: str(value) for key, value in results.protocol.items()},
        "command": text,
        "toml": toml,
        "missing": list(results.missing),
    }


def _reproduce(results: BenchResults) -> tuple[str, str]:
    """The command and the TOML configuration; no command, and JSON, if this version cannot read the configuration."""
    try:
        config = build_config(BenchConfig, results.config)
    except InputError:
        return "", json.dumps(results.config, indent=2)
    return command(config), config.to_toml()
