"""An error that a client is told: status, message, headers."""

from __future__ import annotations


class ApiError(Exception):
    """Answered as JSON with this status."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers or {}


def overloaded(what: str) -> ApiError:
    """503: try again later."""
    return ApiError(503, f"The server is busy: {what}. Try again in a second.", {"Retry-After": "1"})
