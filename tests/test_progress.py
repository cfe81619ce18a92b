"""Progress: true speed and time left, few lines in a log, and a reader who goes away."""

from __future__ import annotations

import io
import json
import os
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from nearfield.cli import show
from nearfield.cli.pace import MEMORY, Pace, time_text
from nearfield.cli.progress import StopFlag, report_progress
from nearfield.errors import InputError


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def log_file() -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(file=stream, force_terminal=False, width=60, highlight=False), stream


@given(begun=st.integers(0, 10_000), seconds=st.floats(0.01, 100), images=st.floats(1, 1e5), steps=st.integers(2, 200))
def test_a_steady_speed_is_found_whatever_was_done_before(
    begun: int, seconds: float, images: float, steps: int
) -> None:
    clock = Clock()
    pace = Pace(clock)
    assert pace.seconds_left(begun + steps) is None
    for step in range(begun + 1, begun + steps + 1):
        clock.now += seconds
        pace.update(step, {"loss": 1.0, "images_per_second": images})
    assert pace.images_per_second == pytest.approx(images)
    assert pace.seconds_left(begun + 2 * steps) == pytest.approx(steps * seconds)


def test_the_past_fades() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.update(0, {})
    for seconds, length in ((1.0, 100), (0.1, 1000)):
        for step in range(length):
            clock.now += seconds
            pace.update(step + (0 if seconds == 1.0 else 100), {"images_per_second": 8 / seconds})
    assert pace.images_per_second == pytest.approx(80, rel=0.01)  # 100 s of the new speed, some lengths of the memory
    assert MEMORY < 20


def test_a_lower_step_begins_something_new() -> None:
    clock = Clock()
    pace = Pace(clock)
    for step in (*range(10), *range(10)):  # two tasks, one after the other
        pace.update(step)
        clock.now += 1.0
    assert pace.seconds_left(19) == pytest.approx(10)


def test_one_stray_value_does_not_throw_the_number_about() -> None:
    clock = Clock()
    pace = Pace(clock)
    for step in range(100):
        clock.now += 0.2
        pace.update(step, {"images_per_second": 100.0})
    clock.now += 0.2
    pace.update(100, {"images_per_second": 1000.0})
    assert pace.images_per_second == pytest.approx(100, rel=0.2)


def test_a_log_file_gets_a_line_every_ten_seconds_and_one_at_the_end() -> None:
    clock, (console, stream) = Clock(), log_file()
    with report_progress("bar", "fastap", StopFlag(), console, clock) as report:
        for step in range(1, 301):
            clock.now += 0.1
            latest = {"loss": 0.5, "map@r": 0.25, "images_per_second": 1280.0}
            report(step, 300, latest)
    lines = stream.getvalue().splitlines()
    assert 3 <= len(lines) <= 4
    assert lines[0] == "fastap  100/300  loss 0.5  map@r 0.25  1280 images/s  0:00:20 left"
    assert lines[-1].startswith("fastap  300/300")
    assert lines[-1].endswith("0:00:00 left")


def test_a_transient_bar_leaves_nothing_behind() -> None:
    clock, (console, stream) = Clock(), log_file()
    with show.bar("Decoding", transient=True, console=console, clock=clock) as bar:
        for done in range(1, 26):
            clock.now += 1.0
            bar(done, 25, "images")
    assert stream.getvalue().splitlines() == [
        "Decoding  10/25  images  0:00:15 left",
        "Decoding  20/25  images  0:00:05 left",
    ]


def test_who_knows_the_time_left_says_so() -> None:
    clock, (console, stream) = Clock(), log_file()
    with show.bar("bench", line_every=0.0, console=console, clock=clock) as bar:
        bar(1, 3)
        bar(2, 3, seconds_left=3661)
    assert stream.getvalue().splitlines() == ["bench  1/3  -:--:-- left", "bench  2/3  1:01:01 left"]


def test_a_terminal_shows_bars_in_bars_and_tables_above() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100, markup=False, legacy_windows=False)
    with show.bar("outer [/b]", console=console) as outer:
        outer.above(show.table(("name", "value"), [("[/]", "1")]))
        with show.bar("inner", transient=True, console=console) as inner:
            inner(1, 2)
        outer(3, 3, "[/red]")
    for text in ("outer [/b]", "3/3", "[/red]", "│ [/]  │ 1     │"):
        assert text in stream.getvalue()


def test_a_terminal_gets_a_bar_with_everything() -> None:
    clock, stream = Clock(), io.StringIO()
    console = Console(file=stream, force_terminal=True, width=140, highlight=False, legacy_windows=False)
    with report_progress("bar", "fastap [seed 0]", StopFlag(), console, clock) as report:
        for step in range(51, 101):
            clock.now += 2.0
            report(step, 500, {"loss": 0.123456, "map@r": 0.25, "images_per_second": 64.0})
    last = [line for line in stream.getvalue().splitlines() if "fastap" in line][-1]
    for part in ("fastap [seed 0]", "100/500", "loss 0.1235", "map@r 0.25", "64 images/s", "0:13:20 left"):
        assert part in last


def test_json_lines_are_few_and_the_last_step_is_always_there(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with report_progress("json", "fastap", StopFlag(), clock=clock) as report:
        for step in range(1, 101):
            report(step, 100, {"loss": step / 100})
            clock.now += 0.01
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == {"step": 1, "loss": 0.01}
    assert lines[-1] == {"step": 100, "loss": 1.0}
    assert len(lines) <= 7


def test_a_reader_who_went_away_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        def flush(self) -> None:
            raise BrokenPipeError

    stopping = StopFlag()
    monkeypatch.setattr("sys.stdout", Closed())
    with report_progress("json", "fastap", stopping) as report:
        assert not stopping()
        report(1, 10, {"loss": 0.5})
    assert stopping()


def test_none_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with report_progress("none", "fastap", StopFlag()) as report:
        report(1, 1, {"loss": 0.5})
    assert capfd.readouterr() == ("", "")
    with (
        pytest.raises(InputError, match=r"progress must be one of bar, json, none; got 'bars', did you mean 'bar'"),
        report_progress("bars", "fastap", StopFlag()),
    ):
        pass


def test_the_first_signal_asks_and_the_second_stops() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        stopping = StopFlag().listen()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopping()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-:--:-- left"), (59.6, "0:01:00 left"), (90061, "25:01:01 left")]
)
def test_time_in_words(seconds: float | None, text: str) -> None:
    assert time_text(seconds) == text
