"""The run folder: everything about a run, on disk, never half-written.

    config.toml          the resolved configuration
    environment.json     versions, platform, commit, data and split fingerprints
    metrics.jsonl        one JSON object a line: training loss and validation scores, with their step
    checkpoint-STEP/     model.safetensors, best.safetensors, state.pt: all that resuming needs
    test.safetensors     test embeddings and per-query scores of the chosen weights, if they were tested
    model.safetensors    the chosen weights
    result.json          written last: it marks the run as finished

A checkpoint is written under another name, flushed to disk and renamed when it is complete, so that a kill or a power
cut at any instant leaves either the old one or the new one. The two newest are kept.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from nearfield._version import __version__
from nearfield.config import RunConfig, differences, load_config
from nearfield.errors import InputError, RunError
from nearfield.files import atomic_write, read_json, whole_folder, write_json, write_text
from nearfield.models.pretrained import DAMAGE

ANOTHER_FOLDER = "Choose another --out, or delete the folder."


class Busy(RunError):
    """Another process has locked the folder."""


class CheckpointWarning(UserWarning):
    """A checkpoint is damaged, and an earlier one is used."""


class Saved(NamedTuple):
    """What a checkpoint on disk holds."""

    weights: dict[str, Tensor]  # of all modules
    best: dict[str, Tensor]  # of the model, at its best validation so far
    state: dict[str, Any]


class RunFolder:
    """Reads and writes the folder of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def locked(self, timeout: float = 10.0) -> Iterator[None]:
        """Lock the folder for this process; Busy if another one keeps it for more than `timeout` seconds."""
        import fcntl

        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = (self.path / "lock").open("w")
        except OSError as error:
            raise RunError(
                f"cannot write the run folder {self.path}: {error.strerror}. Choose another with --out."
            ) from error
        with handle:
            deadline = time.monotonic() + timeout
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        message = f"{self.path} is in use by another process; wait for it, or choose another --out."
                        raise Busy(message) from None
                    time.sleep(0.05)
            yield

    def require_same(self, config: RunConfig, identity: Mapping[str, str | None]) -> None:
        """RunError naming every difference if the folder holds a run of another configuration or on other data.

        `identity` holds fingerprints: of the data, of the split, of the file of pretrained weights.
        """
        found: list[str] = []
        if (self.path / "config.toml").exists():
            found += differences(self._config(), config)
        if (self.path / "environment.json").exists():
            facts = read_json(self.path / "environment.json")
            facts["pretrained"] = (facts.get("pretrained") or {}).get("sha256")
            for key, here in identity.items():
                there = facts.get(key)
                if None not in (there, here) and there != here:
                    found.append(f"{key} fingerprint: {there} there, {here} here")
        if found:
            raise RunError(
                "\n".join([f"{self.path} holds another run:", *(f"  {each}" for each in found), ANOTHER_FOLDER])
            )

    def _config(self) -> RunConfig:
        try:
            return load_config(RunConfig, self.path / "config.toml")
        except InputError as error:
            raise RunError(f"{self.path / 'config.toml'} cannot be compared with this run: {error}") from error

    def begin(self, config: RunConfig, facts: dict[str, Any]) -> None:
        """Write what the run is; of a run that resumes, add only what has changed: versions, processes, device."""
        if not (self.path / "config.toml").exists():
            write_text(self.path / "config.toml", config.to_toml())
        for draft in self.path.glob(".*.part"):  # of a process that was killed
            shutil.rmtree(draft) if draft.is_dir() else draft.unlink()
        path = self.path / "environment.json"
        now = json.loads(json.dumps({**environment(), **facts, "config": config.digest()}))
        if not path.exists():
            write_json(path, now)
            return
        known = read_json(path)
        resumed = known.get("resumed", [])
        changed = {key: value for key, value in now.items() if known.get(key) != value}
        if changed and changed not in resumed:
            write_json(path, {**known, "resumed": [*resumed, changed]})

    @property
    def result(self) -> dict[str, Any] | None:
        """The finished run's result, or None while it is not finished."""
        found = self.path / "result.json"
        return read_json(found) if found.exists() else None

    def weights(self) -> dict[str, Tensor]:
        """The chosen weights of a finished run."""
        return load_file(self.path / "model.safetensors")

    def finish(self, weights: dict[str, Tensor], test: dict[str, Tensor], result: dict[str, Any]) -> None:
        """Write weights, test scores and, last, the result; then delete the checkpoints."""
        for name, tensors in (("model", weights), ("test", test)):
            if tensors:
                with atomic_write(self.path / f"{name}.safetensors") as path:
                    write_tensors(tensors, path)
        write_json(self.path / "result.json", result)
        for checkpoint in self._checkpoints():
            shutil.rmtree(checkpoint, ignore_errors=True)

    def log(self, record: dict[str, Any]) -> None:
        """Append a record to metrics.jsonl."""
        try:
            with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(record) + "\n")
                stream.flush()
                os.fsync(stream.fileno())  # before the checkpoint that counts on it
        except OSError as error:
            raise RunError(f"cannot write {self.path / 'metrics.jsonl'}: {error.strerror}. Free some space.") from error

    def records(self) -> list[dict[str, Any]]:
        """What was logged so far, without a last line that a kill cut short; RunError names any other bad line."""
        path = self.path / "metrics.jsonl"
        try:
            lines = path.read_bytes().splitlines() if path.exists() else []
        except OSError as error:
            raise RunError(f"cannot read {path}: {error.strerror or error}. Make it readable.") from error
        found = []
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
            except ValueError as error:
                if number == len(lines):
                    break
                raise RunError(f"{path}, line {number} is not JSON: {error}. Delete the line.") from error
            if not isinstance(record, dict) or not isinstance(record.get("step"), int):
                shown = line.decode(errors="replace")[:60]
                raise RunError(f"{path}, line {number} must be an object with a step; got {shown}. Delete the line.")
            found.append(record)
        return found

    def forget_after(self, step: int) -> None:
        """Delete records of later steps: resuming writes them again."""
        kept = [record for record in self.records() if record["step"] <= step]
        write_text(self.path / "metrics.jsonl", "".join(json.dumps(record) + "\n" for record in kept))

    def save(self, step: int, weights: dict[str, Tensor], best: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Write checkpoint `step` completely, then delete all but the one before it, which a damaged disk may need."""
        target, older = self.path / f"checkpoint-{step:08d}", self._checkpoints()
        if target.exists():  # a run is deterministic: this step's checkpoint is this one
            return
        try:
            with whole_folder(target, flush=True) as draft:
                write_tensors(weights, draft / "model.safetensors")
                write_tensors(best, draft / "best.safetensors")
                _write_state(state, draft / "state.pt")
        except RunError as error:
            kept = f"Then run the same command to resume from {older[-1].name}." if older else ""
            raise RunError(f"{error} {kept}".rstrip()) from error
        for checkpoint in older[:-1]:
            shutil.rmtree(checkpoint, ignore_errors=True)

    def load(self) -> Saved | None:
        """The newest complete checkpoint, or None. Damaged ones are deleted, with a warning."""
        for path in reversed(self._checkpoints()):
            try:
                return _read_checkpoint(path)
            except DAMAGE as error:
                if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EIO):
                    raise RunError(f"cannot read {path}: {error.strerror}. Make it readable, or delete it.") from error
                rest = [other for other in self._checkpoints() if other < path]
                then = f"resuming from {rest[-1].name}" if rest else "starting again from the first step"
                reason = str(error).split("\n")[0]
                warnings.warn(f"{path} is damaged ({reason}); {then}.", CheckpointWarning, stacklevel=2)
                shutil.rmtree(path, ignore_errors=True)
        return None

    def _checkpoints(self) -> list[Path]:
        return sorted(self.path.glob("checkpoint-*"))


def _read_checkpoint(path: Path) -> Saved:
    state = torch.load(path / "state.pt", map_location="cpu", weights_only=True)
    return Saved(load_file(path / "model.safetensors"), load_file(path / "best.safetensors"), state)


def write_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a .safetensors file; OSError if the disk fails."""
    try:
        save_file(tensors, path)
    except SafetensorError as error:  # which is no OSError, though the disk is what fails
        raise OSError(str(error)) from error


def _write_state(state: dict[str, Any], path: Path) -> None:
    try:
        torch.save(state, path)
    except RuntimeError as error:
        raise OSError("torch could not write all of it") from error


def environment() -> dict[str, Any]:
    """Versions, platform and commit: what a result depends on besides its configuration."""
    import numpy

    return {
        "nearfield": __version__,
        "commit": commit(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
        "processor": platform.machine(),
    }


def commit() -> str | None:
    """The commit of the source tree, marked "-dirty" if it has changes; None outside a git repository."""
    here = Path(__file__).parent
    try:
        call = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        return subprocess.run(call, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
