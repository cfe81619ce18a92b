"""Counters of the server in the text format of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from pathlib import Path

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds


class Metrics:
    """Requests by route and status, and how long they took."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.times: dict[str, list[int]] = {}  # of each route: requests by bucket
        self.seconds: Counter[str] = Counter()

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """Enter a request that was answered."""
        self.requests[method, route, status] += 1
        self.times.setdefault(route, [0] * (len(BOUNDS) + 1))[bisect_left(BOUNDS, seconds)] += 1
        self.seconds[route] += seconds  # type: ignore[assignment]

    def text(self, gauges: dict[str, tuple[str, float]]) -> str:
        """All counters and the given values (name: what it is, value)."""
        lines = ["# HELP nearfield_requests_total Requests answered.", "# TYPE nearfield_requests_total counter"]
        for (method, route, status), number in sorted(self.requests.items()):
            labels = f'method="{method}",route="{route}",status="{status}"'
            lines.append(f"nearfield_requests_total{{{labels}}} {number}")
        name = "nearfield_request_seconds"
        lines += [f"# HELP {name} Time until the answer began.", f"# TYPE {name} histogram"]
        for route, buckets in sorted(self.times.items()):
            total = 0
            for bound, number in zip((*BOUNDS, "+Inf"), buckets, strict=True):
                total += number
                lines.append(f'{name}_bucket{{route="{route}",le="{bound}"}} {total}')
            lines.append(f'{name}_sum{{route="{route}"}} {self.seconds[route]:.6f}')
            lines.append(f'{name}_count{{route="{route}"}} {total}')
        for gauge, (what, value) in gauges.items():
            kind = "counter" if gauge.endswith("_total") else "gauge"
            lines += [f"# HELP {gauge} {what}", f"# TYPE {gauge} {kind}", f"{gauge} {value:g}"]
        return "\n".join(lines) + "\n"


def resident_bytes() -> int:
    """Memory of this process in use; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    import resource

    return pages * resource.getpagesize()
