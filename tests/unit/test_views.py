"""What people see of a run."""

from __future__ import annotations

import base64
import contextvars
import html.parser
import io
import itertools
import re
import sys
import threading
import time
import types
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nb_accelerate.messages import (
    Left,
    Metric,
    Metrics,
    Notice,
    Output,
    Progress,
    RankEnded,
    Ready,
    Waiting,
)
from nb_accelerate.record import Log, MetricTable
from nb_accelerate.ui.bars import PrintedBars, Track, clock_text
from nb_accelerate.ui.board import Board
from nb_accelerate.ui.cell import BackgroundCellView, CellBlock, CellView, Scrollback, write_to_cell
from nb_accelerate.ui.flow import Allowance
from nb_accelerate.ui.sparkline import Curve
from nb_accelerate.ui.terminal import TerminalView
from nb_accelerate.ui.text import TextView
from nb_accelerate.ui.views import Recorder, Tee, default_view, show_past


class Clock:
    """A clock that the test moves."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Screen:
    """A text view on a fake screen, under a clock that the test moves."""

    def __init__(self, num_ranks=2, folder=None):
        self.clock = Clock()
        self.writes = []
        self.view = TextView(
            lambda stream, text: self.writes.append((stream, text)),
            num_ranks=num_ranks,
            folder=folder,
            clock=self.clock,
        )

    def say(self, rank, text, ending="\n", stream="stdout"):
        self.view.show(Output(rank, stream, text, ending, self.clock.now))

    def tick(self, after=0.0):
        self.clock.now += after
        self.view.tick(self.clock.now)
        return self

    def close(self, summary="", *, ok=True):
        self.view.close(summary, ok=ok)
        return self.text

    def run_until_idle(self):
        """Tick exactly when the view asks for it, as a run's loop does."""
        for _ in range(1_000):
            due = self.view.deadline()
            if due is None:
                return self.text
            self.clock.now = max(self.clock.now, due)
            self.tick()
        pytest.fail("the view never comes to rest")

    @property
    def text(self):
        return "".join(text for _, text in self.writes)

    @property
    def lines(self):
        return self.text.splitlines()


class FakeBlock:
    """A place in a cell that remembers what was put there."""

    def __init__(self):
        self.displayed = []
        self.updates = []

    def display(self, bundle):
        self.displayed.append(bundle)

    def update(self, bundle):
        assert self.displayed
        self.updates.append(bundle)

    @property
    def newest(self):
        return [*self.displayed, *self.updates][-1]


def loss(rank, step, value, name="loss"):
    return Metrics(rank, (Metric(step, 0.0, {name: value}),))


def step(rank, done, *, total=100, at=None, finished=False, description="epoch 0"):
    return Progress(
        rank, description, done, total, finished=finished, time=float(done if at is None else at)
    )


# ---------------------------------------------------------------- lines and ranks
def test_lines_bear_their_rank():
    screen = Screen()
    screen.say(0, "a")
    screen.say(1, "b")
    assert screen.run_until_idle() == "[rank 0] a\n[rank 1] b\n"


def test_with_one_rank_there_are_no_tags_and_no_waiting():
    screen = Screen(num_ranks=1)
    screen.say(0, "a")
    screen.tick()
    assert screen.text == "a\n"
    assert screen.view.deadline() is None


def test_standard_error_stays_standard_error():
    screen = Screen()
    screen.say(0, "a")
    screen.say(0, "oh", stream="stderr")
    screen.run_until_idle()
    assert screen.writes == [("stdout", "[rank 0] a\n"), ("stderr", "[rank 0] oh\n")]


def test_the_same_line_of_all_ranks_is_one_line_at_once():
    screen = Screen(num_ranks=3)
    for rank in (1, 0, 2):
        screen.say(rank, "hello")
    screen.tick()
    assert screen.text == "[ranks 0-2] hello\n"


def test_the_same_line_of_some_ranks_is_one_line_after_a_moment():
    screen = Screen(num_ranks=4)
    for rank in (0, 1, 3):
        screen.say(rank, "hello")
    screen.tick()
    assert screen.text == ""
    screen.tick(after=0.003)
    assert screen.text == "[ranks 0-1,3] hello\n"


def test_a_line_waits_three_milliseconds_at_most():
    screen = Screen()
    screen.say(0, "main process only")
    assert screen.view.deadline() <= screen.clock.now + 0.003
    screen.tick(after=0.003)
    assert screen.text == "[rank 0] main process only\n"


def test_the_same_line_long_after_is_another_line():
    screen = Screen()
    screen.say(0, "a")
    screen.tick(after=0.01)
    screen.say(1, "a")
    assert screen.run_until_idle() == "[rank 0] a\n[rank 1] a\n"


def test_the_same_line_on_the_other_stream_is_another_line():
    screen = Screen()
    screen.say(0, "a")
    screen.say(1, "a", stream="stderr")
    assert screen.run_until_idle() == "[rank 0] a\n[rank 1] a\n"


def test_a_whole_block_of_lines_folds_line_by_line():
    screen = Screen()
    for rank, line in itertools.product((0, 1), ("a", "b", "a")):
        screen.say(rank, line)
    assert screen.run_until_idle() == "[ranks 0-1] a\n[ranks 0-1] b\n[ranks 0-1] a\n"


def test_lines_are_not_folded_across_their_ranks_order():
    screen = Screen()
    for rank, line in [(0, "a"), (0, "b"), (1, "b"), (1, "a")]:
        screen.say(rank, line)
    assert screen.run_until_idle() == "[rank 0] a\n[ranks 0-1] b\n[rank 1] a\n"


def test_no_line_waits_for_a_rank_that_has_left():
    screen = Screen()
    screen.view.show(Left(1))
    screen.say(0, "alone")
    screen.tick()
    assert screen.text == "[rank 0] alone\n"


def test_no_line_waits_for_a_rank_that_has_died():
    screen = Screen()
    screen.view.show(RankEnded(1, 9, 0.0, 0))
    screen.say(0, "alone")
    assert screen.tick().text == "[rank 0] alone\n"


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from(["a", "b", ""]),
            st.sampled_from([0.0, 0.001, 0.005]),
        ),
        max_size=40,
    )
)
def test_every_line_of_every_rank_is_shown_once_and_in_order(said):
    screen = Screen(num_ranks=3)
    for rank, line, pause in said:
        screen.say(rank, line)
        screen.tick(after=pause)
    shown = {rank: [] for rank in range(3)}
    for tagged in screen.close().split("\n")[:-1]:
        tag, line = re.fullmatch(r"\[ranks? ([\d,-]+)\] (.*)", tagged).groups()
        for span in tag.split(","):
            first, _, last = span.partition("-")
            for rank in range(int(first), int(last or first) + 1):
                shown[rank].append(line)
    assert shown == {rank: [line for r, line, _ in said if r == rank] for rank in range(3)}


# ---------------------------------------------------------------- open text
def test_open_text_is_shown_as_it_is_and_continued():
    screen = Screen()
    screen.say(0, "name? ", "")
    assert screen.run_until_idle() == "[rank 0] name? "
    screen.say(0, "Ada")
    assert screen.run_until_idle() == "[rank 0] name? Ada\n"


def test_text_that_comes_between_ends_the_open_line():
    screen = Screen()
    screen.say(0, "name? ", "")
    screen.run_until_idle()
    screen.say(1, "hello")
    screen.run_until_idle()
    screen.say(0, "Ada")
    screen.run_until_idle()
    assert screen.lines == ["[rank 0] name? ", "[rank 1] hello", "[rank 0] Ada"]


def test_the_newline_of_a_line_that_others_have_ended_is_not_shown():
    screen = Screen()
    screen.say(0, "10 %", "")
    screen.run_until_idle()
    screen.say(1, "hello")
    screen.run_until_idle()
    screen.say(0, "")
    screen.run_until_idle()
    assert screen.lines == ["[rank 0] 10 %", "[rank 1] hello"]


def test_dots_of_one_rank_make_one_line():
    screen = Screen()
    for _ in range(3):
        screen.say(0, ".", "")
        screen.run_until_idle()
    assert screen.text == "[rank 0] ..."


def test_open_text_is_ended_by_the_runs_end():
    screen = Screen()
    screen.say(0, "open", "")
    assert screen.close("done") == "[rank 0] open\ndone\n"


def test_a_bar_takes_over_the_row_of_open_text():
    screen = Screen()
    screen.say(0, "Loading", "")
    screen.say(0, "", "\r")
    screen.say(0, "Done")
    screen.run_until_idle()
    assert screen.lines == ["[rank 0] Loading", "[rank 0] Done"]


def test_bars_are_not_text():
    screen = Screen()
    screen.say(0, "10%|█   | 1/10", "\r")
    screen.tick(after=1.0)
    assert screen.close() == ""


# ---------------------------------------------------------------- notices and the end
def test_notices_stand_in_their_place_without_a_tag():
    screen = Screen()
    screen.say(0, "a")
    screen.view.show(Notice("rank 1 waits", "warning"))
    screen.view.show(Notice("2 ranks"))
    screen.run_until_idle()
    assert screen.lines == ["[rank 0] a", "rank 1 waits", "2 ranks"]
    assert ("stderr", "rank 1 waits\n") in screen.writes


def test_messages_that_are_no_text_show_nothing():
    screen = Screen()
    for message in (Ready(0, 1), loss(0, 1, 1.0), step(0, 1), Waiting(0, 1.0, "x", ())):
        screen.view.show(message)
    assert screen.view.deadline() is None
    assert screen.close() == ""


def test_the_end_shows_all_that_waits_and_the_summary():
    screen = Screen()
    screen.say(0, "a")
    assert screen.close("finished after 1.0 s") == "[rank 0] a\nfinished after 1.0 s\n"


def test_the_summary_of_a_failed_run_goes_to_standard_error():
    screen = Screen()
    screen.close("failed", ok=False)
    assert screen.writes == [("stderr", "failed\n")]


# ---------------------------------------------------------------- floods
def test_a_burst_of_some_thousand_lines_is_shown_whole():
    screen = Screen(num_ranks=1)
    for number in range(2_000):
        screen.say(0, str(number))
    screen.run_until_idle()
    assert screen.lines == [str(number) for number in range(2_000)]


def test_a_flood_shows_its_beginning_its_tail_and_how_much_is_hidden():
    screen = Screen(folder=Path("runs/x"))
    for number in range(20_000):
        for rank in (0, 1):
            screen.say(rank, f"r{rank} line {number}")
    screen.close()
    numbers = {rank: [] for rank in (0, 1)}
    for line in screen.lines:
        match = re.fullmatch(r"\[rank (\d)\] r\1 line (\d+)", line)
        if match:
            numbers[int(match[1])].append(int(match[2]))
    (notice,) = [line for line in screen.lines if line.startswith("…")]
    assert re.fullmatch(r"… 37 8\d\d lines not shown here, all in runs/x/log.txt", notice)
    hidden = int(re.sub(r"\D", "", notice.split("lines")[0]))
    assert len(screen.lines) - 1 + hidden == 40_000
    for shown in numbers.values():
        assert shown == sorted(shown)
        assert shown[:900] == list(range(900))
        assert shown[-90:] == list(range(19_910, 20_000))


def test_the_tail_of_a_flood_that_ended_is_shown_without_waiting_for_the_run():
    screen = Screen(num_ranks=1)
    for number in range(5_000):
        screen.say(0, str(number))
    screen.tick()
    start = screen.clock.now
    assert screen.run_until_idle().endswith("4999\n")
    assert screen.clock.now - start < 0.5


def test_a_lasting_flood_stays_within_what_a_server_lets_through():
    screen = Screen(num_ranks=1)
    began = screen.clock.now
    for number in range(100_000):
        screen.say(0, f"{number} {'x' * 300}")
        screen.tick(after=0.0002)
    seconds = screen.clock.now - began
    assert len(screen.text) < 1_000_000 + 600_000 * seconds
    assert len(screen.writes) < 20 + 60 * seconds
    assert len(screen.view._valve._tail) <= 200
    assert screen.close().endswith(f"99999 {'x' * 300}\n")


def test_huge_lines_are_bounded_by_their_size():
    screen = Screen(num_ranks=1)
    for _ in range(500):
        screen.say(0, "x" * 65_536)
    screen.tick()
    assert len(screen.text) < 1_100_000
    assert len(screen.close()) < 1_500_000


def test_after_a_flood_lines_come_at_once_again():
    screen = Screen(num_ranks=1)
    for number in range(5_000):
        screen.say(0, str(number))
    screen.run_until_idle()
    screen.tick(after=10.0)
    screen.say(0, "calm again")
    screen.tick()
    assert screen.lines[-1] == "calm again"


def test_the_next_flood_counts_anew():
    screen = Screen(num_ranks=1)
    for _ in range(2):
        for number in range(5_000):
            screen.say(0, str(number))
        screen.run_until_idle()
        screen.tick(after=10.0)
    counts = [line.split(" lines")[0] for line in screen.lines if line.startswith("…")]
    assert counts == ["… 2 800", "… 2 800"]


def test_many_small_prints_are_gathered_into_few_writes():
    screen = Screen(num_ranks=1)
    for number in range(500):
        screen.say(0, str(number))
        screen.tick(after=0.001)
    screen.run_until_idle()
    assert len(screen.writes) <= 20 + 0.5 * 50 + 2
    assert screen.lines == [str(number) for number in range(500)]


def test_streams_that_alternate_are_gathered_too():
    screen = Screen(num_ranks=1)
    for number in range(500):
        screen.say(0, str(number), stream=("stdout", "stderr")[number % 2])
    screen.tick()
    assert len(screen.writes) == 2
    assert screen.writes[1][1].splitlines() == [str(number) for number in range(1, 500, 2)]


def test_a_flood_is_taken_in_quickly_and_memory_stays_bounded():
    screen = Screen()
    outputs = [Output(n % 2, "stdout", f"line {n}", "\n", 1000.0) for n in range(40_000)]
    start = time.process_time()
    for output in outputs:
        screen.view.show(output)
        assert len(screen.view._twins) <= 8_192
    screen.tick(after=0.003)
    assert time.process_time() - start < 2.0  # 0.15 s on an idle core


def test_an_allowance_refills_up_to_its_burst():
    allowance = Allowance(10, 5)
    allowance.take(12, 0.0)
    assert allowance.left(0.0) == -2
    assert allowance.when(3, 0.0) == 1.0
    assert allowance.left(1.0) == 3
    assert allowance.left(100.0) == 10


# ---------------------------------------------------------------- progress
@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "00:00"), (72.4, "01:12"), (3723, "1:02:03"), (-1, "00:00")]
)
def test_durations_are_clock_times(seconds, text):
    assert clock_text(seconds) == text


def tracked(*messages):
    track = Track()
    for message in messages:
        track.take(message)
    return track


def test_a_loop_tells_steps_time_and_rate():
    track = tracked(step(0, 0, total=500, at=0.0), step(0, 120, total=500, at=12.0))
    assert track.text() == "120/500 00:12 < 00:38, 10.0 it/s"
    assert track.fraction == 0.24


def test_a_loop_is_as_far_as_the_last_of_its_ranks():
    track = tracked(step(0, 30), step(1, 10))
    assert track.done == 10
    assert track.by_rank == {0: 30, 1: 10}


def test_a_rank_that_is_through_does_not_hold_the_bar():
    track = tracked(step(0, 5, total=5, finished=True), step(1, 50, total=100))
    assert (track.done, track.total) == (50, 100)
    assert not track.finished


def test_a_finished_loop_is_full_and_has_no_time_left():
    track = tracked(step(0, 0, at=0.0), step(0, 100, at=4.0, finished=True))
    assert track.text() == "100/100 00:04, 25.0 it/s"
    assert track.fraction == 1.0


def test_a_loop_of_unknown_length_counts_on():
    track = tracked(step(0, 0, total=None, at=0.0), step(0, 5, total=None, at=10.0))
    assert track.text() == "5 00:10, 2.0 s/it"
    assert track.fraction is None


def test_the_rate_is_that_of_the_last_half_minute():
    slow = [step(0, n, at=10.0 * n) for n in range(10)]
    fast = [step(0, 9 + 10 * n, total=1_000, at=90.0 + n) for n in range(40)]
    assert tracked(*slow, *fast).text().endswith("10.0 it/s")


def test_a_loop_that_begins_again_counts_anew():
    first = [step(rank, 100, at=50.0, finished=True) for rank in (0, 1)]
    again = [step(rank, 10, at=60.0) for rank in (0, 1)]
    later = [step(rank, 20, at=61.0) for rank in (0, 1)]
    assert tracked(*first, *again, *later).text() == "20/100 00:01 < 00:08, 10.0 it/s"


# ---------------------------------------------------------------- printed bars
def bars_after(*pieces, rank=0):
    bars = PrintedBars()
    for text, ending in pieces:
        bars.take(Output(rank, "stderr", text, ending))
    return [(bar.text, bar.fraction) for bar in bars]


def test_a_printed_bar_is_its_newest_state():
    states = [("train:  10%|█   | 1/10 [00:01]", "\r"), ("train:  20%|██  | 2/10 [00:02]", "\r")]
    assert bars_after(*states) == [("train:  20%|██  | 2/10 [00:02]", 0.2)]


def test_a_bar_whose_name_changes_is_one_bar():
    states = [(f"loss {n / 7:.3f}:  {n}0%|█   | {n}/10 [00:01]", "\r") for n in range(1, 9)]
    assert len(bars_after(*states)) == 1


def test_a_bar_that_is_given_its_name_later_is_one_bar():
    states = [("  0%|   | 0/40 [0]", "\r"), ("loss 0.5:  25%|█  | 10/40 [1]", "\r")]
    assert bars_after(*states) == [("loss 0.5:  25%|█  | 10/40 [1]", 0.25)]


def test_nested_bars_are_two():
    states = [("epochs:   0%|    | 0/3 [00:00]", "\r"), (" 50%|██  | 5/10 [00:00]", "\r")]
    assert [fraction for _, fraction in bars_after(*states)] == [0.0, 0.5]


def test_a_bar_that_becomes_a_line_is_no_bar_any_more():
    assert bars_after(("50%|█ | 1/2 [a]", "\r"), ("100%|██| 2/2 [b]", "\n")) == []


def test_a_bar_that_erases_itself_is_gone():
    outer, inner = ("epochs:   0%|    | 0/3 [0]", "\r"), (" 50%|██  | 5/10 [0]", "\r")
    assert bars_after(outer, inner, ("        ", "\r")) == [(outer[0], 0.0)]


def test_any_line_that_is_overwritten_is_a_bar_until_a_line_stays():
    assert bars_after(("step 1", "\r"), ("step 2", "\r")) == [("step 2", None)]
    assert bars_after(("step 1", "\r"), ("done", "\n")) == []


def test_other_lines_leave_a_bar_alone():
    bar = (" 50%|██  | 5/10 [0]", "\r")
    assert len(bars_after(bar, ("epoch done", "\n"))) == 1


def test_bars_do_not_pile_up():
    assert len(bars_after(*((f"1%|█| 1/{n} [0]", "\r") for n in range(1, 999)))) <= 32


# ---------------------------------------------------------------- curves
def svg_of(image):
    return base64.b64decode(re.search(r"base64,([\w+/=]+)", image)[1]).decode()


def test_a_curve_is_an_image_with_its_story_told():
    curve = Curve()
    for at in range(10):
        curve.add(0, at, 2.0 - at / 10)
        curve.add(1, at, 2.2 - at / 10)
    image = curve.image('<"loss">')
    assert 'alt="&lt;&quot;loss&quot;&gt; from 2.1 to 1.2"' in image
    svg = svg_of(image)
    assert svg.startswith("<svg xmlns=")
    assert len(re.search(r'polyline points="([^"]*)"', svg)[1].split()) == 10


def test_a_curve_of_many_steps_is_bounded_and_keeps_its_extremes():
    curve = Curve()
    for at in range(50_000):
        curve.add(0, at, 1_000.0 if at == 31_234 else 1.0)
    assert len(curve._points) <= 80
    assert max(point.high for point in curve._points.values()) == 1_000.0
    assert sum(point.count for point in curve._points.values()) == 50_000
    assert len(svg_of(curve.image("a"))) < 4_000


def test_steps_far_apart_do_not_break_a_curve():
    curve = Curve()
    for at in range(300):
        curve.add(0, at * 10**9, float(at))
    assert len(curve._points) <= 80


@pytest.mark.parametrize("values", [[1.0], [float("nan")] * 5, []])
def test_where_there_is_no_line_there_is_no_image(values):
    curve = Curve()
    for at, value in enumerate(values):
        curve.add(0, at, value)
    assert curve.image("a") == ""


@pytest.mark.parametrize("values", [[1.0, 1.0], [1e308, -1e308], [1.0, float("inf"), 2.0]])
def test_strange_values_still_make_a_drawing(values):
    curve = Curve()
    for at, value in enumerate(values):
        curve.add(0, at, value)
    assert "nan" not in svg_of(curve.image("a"))
    assert "inf" not in svg_of(curve.image("a"))


def test_newest_is_by_step_not_by_arrival():
    curve = Curve()
    for at in (5, 3):
        curve.add(0, at, float(at))
    assert curve.newest == {0: (5, 5.0)}


# ---------------------------------------------------------------- board
class Balance(html.parser.HTMLParser):
    """Whether every element that is opened is closed."""

    VOID = frozenset({"img", "br"})

    def __init__(self):
        super().__init__()
        self.open = []
        self.seen = []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def elements(markup):
    parser = Balance()
    parser.feed(markup)
    assert parser.open == []
    return parser.seen


def board_of(*messages, num_ranks=2):
    board = Board(num_ranks)
    for message in messages:
        board.show(message)
    return board


def test_a_board_has_a_row_per_metric_with_its_mean_band_and_ranks():
    board = board_of(loss(0, 7, 1.0), loss(1, 7, 3.0), loss(0, 7, 0.5, "acc"))
    markup = board.html()
    assert "<td>7</td><td>2</td><td>1 – 3</td><td>1</td><td>3</td>" in markup
    assert "<th>rank 1</th>" in markup
    assert elements(markup).count("tr") == 3
    assert re.search(r"loss +7 +2 +1 – 3", board.text())


def test_with_one_rank_a_board_has_values_only():
    board = board_of(loss(0, 7, 1.5), num_ranks=1)
    assert "<td>7</td><td>1.5</td></tr>" in board.html()
    assert "rank 0" not in board.html().split("</table>")[0].split("<table>")[1]
    assert re.search(r"loss +7 +1.5", board.text())


def test_with_many_ranks_the_columns_stay_few():
    board = board_of(*(loss(rank, 1, 1.0) for rank in range(64)), num_ranks=64)
    assert elements(board.html()).count("th") < 10


def test_everything_that_comes_from_the_users_code_is_escaped():
    evil = "<script>'\"&"
    board = board_of(
        loss(0, 1, 1.0, evil),
        loss(0, 2, 2.0, evil),
        step(0, 1, description=evil),
        Output(0, "stderr", f"{evil} 10%|█| 1/10 [0]", "\r"),
        Output(1, "stderr", evil, "\r"),
    )
    board.end(evil, ok=False)
    markup = board.html()
    assert "<script" not in markup
    assert "script" not in elements(markup)
    assert set(elements(markup)) <= {
        *("div", "span", "small", "progress", "code", "table", "thead", "tbody"),
        *("tr", "th", "td", "img"),
    }


def test_a_board_without_style_sheets_stands_on_its_own():
    markup = board_of(loss(0, 1, 1.0), step(0, 1)).html()
    assert "<style" not in markup
    assert "class=" not in markup.replace('class="nb-accelerate"', "")
    for colour in re.findall(r"var\((--jp-[\w-]+)(.*?)\)", markup):
        assert colour[1].startswith(", #")


def test_all_ranks_of_a_loop_share_one_bar():
    board = board_of(step(0, 40), step(1, 50))
    markup = board.html()
    assert elements(markup).count("progress") == 1
    assert 'value="0.4000"' in markup
    assert 'title="rank 0: 40; rank 1: 50"' in markup
    assert "epoch 0  [40/100" in board.text()


def test_of_many_loops_the_newest_are_shown_and_those_under_way():
    ended = [step(0, 1, total=1, finished=True, description=f"epoch {n};") for n in range(50)]
    markup = board_of(step(0, 1, description="outer"), *ended).html()
    assert elements(markup).count("progress") == 6
    assert "outer" in markup
    assert "epoch 49;" in markup
    assert "epoch 40;" not in markup
    assert "45 more finished loops" in markup


def test_printed_bars_are_shown_per_rank():
    board = board_of(*(Output(r, "stderr", f" 5{r}%|█| 5/10 [0]", "\r") for r in (0, 1)))
    assert board.text().splitlines() == ["[rank 0] 50%|█| 5/10 [0]", "[rank 1] 51%|█| 5/10 [0]"]
    assert elements(board.html()).count("progress") == 2


def test_the_bars_of_a_rank_that_has_ended_are_gone():
    bar = Output(1, "stderr", " 50%|█| 5/10 [0]", "\r")
    assert not board_of(bar, RankEnded(1, 9, 0.0, 0)).has_content


def test_a_board_tells_what_the_ranks_are_doing():
    markup = board_of(Ready(0, 1), RankEnded(1, 9, 0.0, 0)).html()
    assert "1 rank running, 1 rank died" in markup
    assert 'title="rank 1: died"' in markup


def test_the_end_is_told_with_a_mark():
    board = board_of(loss(0, 1, 1.0))
    board.end("finished after 2.0 s", ok=True)
    assert "✓" in board.html()
    assert board.text().endswith("finished after 2.0 s")
    board.end("failed", ok=False)
    assert "✗" in board.html()


def test_too_many_metrics_are_counted_not_drawn():
    board = board_of(*(loss(0, 1, 1.0, f"m{n};") for n in range(100)))
    assert "m39;" in board.html()
    assert "m40;" not in board.html()
    assert "60 more metrics" in board.html()


def test_a_metric_that_is_not_a_number_is_shown_so():
    board = board_of(loss(0, 1, float("nan")), loss(1, 1, 1.0))
    assert "<td>nan</td><td>nan</td><td>nan</td><td>1</td>" in board.html()


# ---------------------------------------------------------------- cell
class Cell:
    """A cell view on a fake cell."""

    def __init__(self, num_ranks=2):
        self.clock = Clock()
        self.writes = []
        self.block = FakeBlock()
        self.view = CellView(
            num_ranks,
            write=lambda stream, text: self.writes.append((stream, text)),
            block=self.block,
            clock=self.clock,
        )

    def show(self, *messages):
        for message in messages:
            self.view.show(message)
        return self

    def tick(self, after=0.0):
        self.clock.now += after
        self.view.tick(self.clock.now)
        return self


def test_a_run_that_only_prints_has_no_block():
    cell = Cell().show(Ready(0, 1), Output(0, "stdout", "hello")).tick(after=0.01)
    cell.view.close("finished", ok=True)
    assert cell.block.displayed == []
    assert [text for _, text in cell.writes] == ["[rank 0] hello\n", "finished\n"]


def test_metrics_stand_in_one_block_that_changes_in_place():
    cell = Cell().show(loss(0, 1, 5.0)).tick()
    cell.show(loss(0, 2, 4.0)).tick(after=0.2)
    assert len(cell.block.displayed) == 1
    assert "<td>4</td>" in cell.block.newest["text/html"]
    assert cell.writes == []


def test_a_block_changes_ten_times_a_second_at_most():
    cell = Cell()
    for number in range(1_000):
        cell.show(loss(0, number, 1.0)).tick(after=0.001)
    assert len(cell.block.updates) <= 10


def test_a_block_asks_for_its_next_change():
    cell = Cell().show(loss(0, 1, 1.0)).tick()
    assert cell.view.deadline() is None
    cell.show(loss(0, 2, 1.0)).tick(after=0.04)
    assert cell.view.deadline() == pytest.approx(cell.clock.now + 0.06)


def test_the_final_state_is_always_sent():
    cell = Cell().show(loss(0, 1, 5.0)).tick()
    cell.show(loss(0, 2, 4.0)).tick()
    cell.view.close("finished after 1 s", ok=True)
    assert "<td>4</td>" in cell.block.newest["text/html"]
    assert "finished after 1 s" in cell.block.newest["text/html"]
    assert cell.writes == []


def test_metrics_that_come_with_the_end_are_displayed():
    cell = Cell().show(loss(0, 1, 5.0))
    cell.view.close("finished", ok=True)
    assert len(cell.block.displayed) == 1


def test_text_does_not_redraw_the_block():
    cell = Cell().show(loss(0, 1, 5.0)).tick()
    cell.show(Output(0, "stdout", "hello")).tick(after=1.0)
    assert cell.block.updates == []
    assert len(cell.writes) == 1


def test_each_state_is_html_and_plain_text():
    cell = Cell().show(loss(0, 1, 5.0)).tick()
    assert set(cell.block.newest) == {"text/html", "text/plain"}


# ---------------------------------------------------------------- background
class Background:
    """A background view on a fake cell."""

    def __init__(self, num_ranks=2):
        self.clock = Clock()
        self.block = FakeBlock()
        self.view = BackgroundCellView(num_ranks, block=self.block, clock=self.clock)

    def show(self, *messages):
        for message in messages:
            self.view.show(message)
        return self

    def tick(self, after=0.0):
        self.clock.now += after
        self.view.tick(self.clock.now)
        return self


def test_the_block_of_a_background_run_is_displayed_at_once():
    assert len(Background().block.displayed) == 1


def test_a_background_run_prints_nothing(capsys):
    background = Background().show(Output(0, "stdout", "<b>"), Output(1, "stderr", "oh"))
    background.tick(after=1.0)
    background.view.close("finished", ok=True)
    assert capsys.readouterr() == ("", "")
    markup = background.block.newest["text/html"]
    assert "[rank 0] &lt;b&gt;" in markup
    assert re.search(r'<span style="color: [^"]*">\[rank 1\] oh</span>', markup)
    assert "finished" in markup
    assert elements(markup).count("pre") == 1


def test_a_background_block_changes_ten_times_a_second_at_most():
    background = Background()
    for number in range(1_000):
        background.show(Output(0, "stdout", str(number))).tick(after=0.001)
    assert len(background.block.updates) <= 10


def test_publishing_sends_the_newest_state_from_any_thread():
    background = Background().show(loss(0, 1, 0.25))
    thread = threading.Thread(target=background.view.publish)
    thread.start()
    thread.join(timeout=10)
    assert "0.25" in background.block.newest["text/html"]


def test_a_background_run_keeps_its_newest_lines():
    background = Background(num_ranks=1)
    for number in range(1_000):
        background.show(Output(0, "stdout", f"line {number};"))
    background.tick(after=1.0)
    markup = background.block.newest["text/html"]
    assert "line 999;" in markup
    assert "line 600;" in markup
    assert "line 599;" not in markup


def test_showing_and_publishing_at_once_is_safe():
    background = Background()
    messages = [loss(n % 2, n, 1.0, f"m{n % 30}") for n in range(2_000)]

    def publish():
        for _ in range(30):
            background.view.publish()

    thread = threading.Thread(target=publish)
    thread.start()
    background.show(*messages).tick(after=1.0)
    thread.join(timeout=30)
    assert not thread.is_alive()
    assert "m29" in background.block.newest["text/html"]


def test_a_scrollback_joins_pieces_of_a_line():
    scrollback = Scrollback()
    for text in ("a", "b\nc", "\n", "\nd\n"):
        scrollback.write("stdout", text)
    assert scrollback.text() == "ab\nc\n\nd"


def test_a_scrollback_has_no_colour_codes():
    scrollback = Scrollback()
    scrollback.write("stdout", "\x1b[31mred\x1b[0m\n")
    assert ">red</pre>" in scrollback.html()


def test_a_block_whose_update_needs_the_cells_context_gets_it():
    shell = contextvars.ContextVar("shell")
    seen = []

    def update(bundle, *, raw):
        seen.append((shell.get(), bundle, raw))

    shell.set("the cell's")
    block = CellBlock()
    block._update = update
    thread = threading.Thread(target=block.update, args=({"text/plain": "x"},))
    thread.start()
    thread.join(timeout=10)
    assert seen == [("the cell's", {"text/plain": "x"}, True)]


def test_a_block_that_was_never_displayed_stays_silent(capsys):
    CellBlock().update({"text/plain": "x"})
    assert capsys.readouterr() == ("", "")


def test_what_ranks_print_is_sent_at_once_and_our_own_words_have_time():
    written, flushed = [], []
    view = TextView(lambda stream, text: written.append(text), num_ranks=2, flush=flushed.append)
    view.show(Notice("2 processes"))
    view.tick(time.monotonic() + 1.0)
    assert (written, flushed) == (["2 processes\n"], [])
    view.show(Output(0, "stderr", "hello"))
    view.tick(time.monotonic() + 1.0)
    assert (written[-1], flushed) == ("[rank 0] hello\n", ["stderr"])


def test_text_goes_to_the_cells_own_streams(capsys):
    write_to_cell("stdout", "a")
    write_to_cell("stderr", "b")
    assert capsys.readouterr() == ("a", "b")


# ---------------------------------------------------------------- terminal
class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_file_gets_the_text_and_the_board_at_the_end(capsys):
    view = TerminalView(2)
    view.show(Output(0, "stdout", "hello"))
    view.show(loss(0, 1, 0.25))
    view.tick(time.monotonic() + 1.0)
    assert capsys.readouterr().out == "[rank 0] hello\n"
    assert view.deadline() is None
    view.close("finished", ok=True)
    out = capsys.readouterr().out
    assert re.search(r"loss +1 +0.25", out)
    assert out.endswith("finished\n")


def test_a_terminal_gets_the_text_and_a_live_board(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    clock = Clock()
    view = TerminalView(2, clock=clock)
    view.show(loss(0, 1, 0.25))
    view.tick(clock.now)
    view.show(Output(0, "stdout", "[bold]hello[/bold] \x1b[31mred\x1b[0m", "\n", clock.now))
    view.show(loss(0, 2, 0.125))
    clock.now += 1.0
    view.tick(clock.now)
    view.close("finished", ok=True)
    assert "[bold]hello[/bold]" in terminal.getvalue()
    assert "0.125" in terminal.getvalue()
    assert terminal.getvalue().endswith("finished\n")


def test_a_background_run_leaves_the_prompt_of_a_terminal_alone(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    view = TerminalView(1, live=False)
    view.show(loss(0, 1, 0.25))
    view.tick(time.monotonic() + 1.0)
    assert terminal.getvalue() == ""
    view.close("", ok=True)


# ---------------------------------------------------------------- which view
def test_a_recorder_remembers_all():
    recorder = Recorder()
    recorder.show(Ready(0, 1))
    recorder.tick(5.0)
    recorder.close("done", ok=True)
    assert recorder.messages == [Ready(0, 1)]
    assert (recorder.ticks, recorder.summary, recorder.ok) == ([5.0], "done", True)
    assert recorder.deadline() is None


def test_a_tee_shows_to_all_and_heeds_the_earliest_deadline():
    recorder, screen = Recorder(), Screen()
    tee = Tee(recorder, screen.view)
    tee.show(Output(0, "stdout", "a", "\n", screen.clock.now))
    assert tee.deadline() == screen.view.deadline() is not None
    tee.tick(screen.clock.now)
    tee.close("done", ok=True)
    assert recorder.summary == "done"
    assert screen.lines == ["[rank 0] a", "done"]
    assert Tee(recorder).deadline() is None


def in_a_kernel(monkeypatch):
    shell = types.SimpleNamespace(kernel=object())
    fake = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", fake)


def test_outside_of_a_kernel_the_terminal_is_the_view(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert isinstance(default_view(2), TerminalView)


def test_in_a_kernel_the_cell_is_the_view(monkeypatch):
    in_a_kernel(monkeypatch)
    assert isinstance(default_view(2), CellView)


def test_a_past_run_is_drawn_in_a_terminal(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    metrics, log = MetricTable(), Log()
    metrics.add(1, 5, {"loss": 0.5})
    log.add(Output(1, "stdout", "hello"))
    show_past(metrics, log, summary="train: finished", ok=True)
    out = capsys.readouterr().out
    assert "[rank 1] hello" in out
    assert re.search(r"loss +5 +0.5", out)
    assert "train: finished" in out


def test_a_board_of_known_metrics_looks_like_the_live_one():
    metrics, live = MetricTable(), Board(2)
    for rank, at in itertools.product((0, 1), range(20)):
        metrics.add(rank, at, {"loss": float(at + rank)})
        live.show(loss(rank, at, float(at + rank)))
    assert Board.of(metrics, num_ranks=2).text() == live.text()
