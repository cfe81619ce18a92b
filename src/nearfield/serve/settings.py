"""Where the server listens, who may ask, and how much."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass

from nearfield.errors import InputError

SHORTEST = 16  # characters of a token
MEBI = 2**20


@dataclass(frozen=True)
class Settings:
    """Address, token and limits of a server; InputError if they are not safe together."""

    host: str = "127.0.0.1"
    port: int = 8000  # 0: any that is free
    token: str | None = None  # for changes; with an address that others reach, for everything
    max_bytes: int = 16 * MEBI  # of a request
    max_pixels: int = 50_000_000  # of an image, checked before it is decoded
    queue: int = 64  # requests with images or queries, at work or waiting; more are answered 503
    memory: int = 256 * MEBI  # bytes of all bodies that are being read or wait
    patience: float = 30.0  # seconds for a body to arrive, and for an answer to be computed
    batch: int = 16  # images embedded at once
    threads: int = 0  # of the network and of decoding; 0: one per core
    cors: tuple[str, ...] = ()  # origins of other sites that may ask, such as https://shop.example

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise InputError(f"port must be in 0..65535; got {self.port}.")
        for name in ("max_bytes", "max_pixels", "queue", "memory", "patience", "batch"):
            if getattr(self, name) <= 0:
                raise InputError(f"{name} must be above 0; got {getattr(self, name)}.")
        if self.token is not None and not (len(self.token) >= SHORTEST and self.token.isascii()):
            raise InputError(f"token must have at least {SHORTEST} ASCII characters; got {len(self.token)} characters.")
        if not self.is_local and self.token is None:
            raise InputError(
                f"host {self.host} can be reached by others, which needs a token: give --token or set NEARFIELD_TOKEN."
            )
        bad = next((origin for origin in self.cors if not origin.startswith(("http://", "https://"))), None)
        if bad is not None:
            raise InputError(f"cors must name origins such as https://shop.example; got {bad!r}.")

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def workers(self) -> int:
        """Threads of the network, and of decoding."""
        return self.threads or os.cpu_count() or 1
