"""Bytes of a pipe become whole lines, bars and open text."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nb_accelerate.launch.lines import PIECE_CHARACTERS, LineAssembler
from nb_accelerate.messages import Output


def assembler(stream="stdout"):
    return LineAssembler(1, stream)


def told(outputs):
    return [(output.text, output.ending) for output in outputs]


def in_pieces(data, size):
    return [data[start : start + size] for start in range(0, len(data), size)]


def all_of(lines, pieces):
    """Everything that comes of `pieces` read back to back, and of the stream's end."""
    outputs = [output for piece in pieces for output in lines.feed(piece, 0.0)]
    return told(outputs + lines.flush(0.0, force=True))


def test_a_read_becomes_its_whole_lines_with_rank_stream_and_time():
    outputs = assembler("stderr").feed(b"one\ntwo\n", 5.0)
    assert outputs == [Output(1, "stderr", "one"), Output(1, "stderr", "two")]
    assert [output.time for output in outputs] == [5.0, 5.0]


def test_a_line_torn_over_reads_is_passed_on_once_and_whole():
    lines = assembler()
    assert lines.feed(b"lo", 0.0) == []
    assert lines.feed(b"ss 0.5", 0.01) == []
    assert told(lines.feed(b"\nacc", 0.02)) == [("loss 0.5", "\n")]


def test_a_blank_line_is_a_line():
    assert told(assembler().feed(b"\n\na\n", 0.0)) == [("", "\n"), ("", "\n"), ("a", "\n")]


def test_a_character_split_over_reads_is_whole():
    lines = assembler()
    data = "größe 🦊\n".encode()
    outputs = [output for byte in data for output in lines.feed(bytes([byte]), 0.0)]
    assert told(outputs) == [("größe 🦊", "\n")]


def test_bytes_that_are_not_utf_8_become_replacement_characters():
    assert told(assembler().feed(b"a\xff\xfeb\n", 0.0)) == [("a��b", "\n")]


def test_half_a_character_at_the_end_of_the_stream_is_replaced():
    lines = assembler()
    lines.feed(b"a\xf0\x9f", 0.0)
    assert told(lines.flush(0.0, force=True)) == [("a�", "")]


def test_a_prompt_is_passed_on_after_a_moment_of_silence():
    lines = assembler()
    assert lines.feed(b"name? ", 10.0) == []
    assert lines.deadline() == pytest.approx(10.02)
    assert lines.flush(10.015) == []
    assert told(lines.flush(10.021)) == [("name? ", "")]
    assert lines.deadline() is None
    assert told(lines.feed(b"Ada\n", 11.0)) == [("Ada", "\n")]


def test_dots_that_never_pause_are_passed_on_all_the_same():
    lines = assembler()
    seen = []
    for step in range(30):
        now = step * 0.01
        seen += lines.feed(b".", now)
        seen += lines.flush(now)
    assert sum(len(output.text) for output in seen) >= 20
    assert all(output.ending == "" for output in seen)


def test_text_still_open_at_the_end_of_the_stream_is_passed_on():
    lines = assembler()
    lines.feed(b"no newline", 0.0)
    assert told(lines.flush(0.0, force=True)) == [("no newline", "")]
    assert lines.flush(0.0, force=True) == []


def test_nothing_waits_after_whole_lines():
    lines = assembler()
    lines.feed(b"a\n", 0.0)
    assert lines.deadline() is None
    assert lines.flush(100.0) == []


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_carriage_return_and_newline_is_a_newline(size):
    assert all_of(assembler(), in_pieces(b"a\r\nb\r\n", size)) == [("a", "\n"), ("b", "\n")]


def test_of_many_bar_states_in_a_read_the_newest_is_kept():
    lines = assembler()
    assert told(lines.feed(b"\r10%\r20%\r30%", 0.0)) == [("20%", "\r")]
    assert told(lines.flush(0.05)) == [("30%", "\r")]
    assert lines.deadline() is None


def test_a_bar_that_stands_still_is_told_once():
    lines = assembler()
    lines.feed(b"\r10%", 0.0)
    assert told(lines.flush(0.05)) == [("10%", "\r")]
    assert lines.flush(0.2) == []
    assert told(lines.feed(b"\r11%\r11%", 0.3)) == [("11%", "\r")]


def test_a_finished_bar_is_a_line():
    lines = assembler()
    lines.feed(b"\r50%", 0.0)
    lines.flush(0.05)
    outputs = lines.feed(b"\r100%\n", 0.1) + lines.flush(0.2)
    assert told(outputs) == [("100%", "\n")]


def test_a_line_after_a_bar_keeps_its_place():
    lines = assembler()
    assert told(lines.feed(b"\r100%\ndone\n", 0.0)) == [("100%", "\n"), ("done", "\n")]


def test_a_row_ended_by_carriage_return_alone_is_kept_when_its_newline_comes():
    lines = assembler()
    assert told(lines.feed(b"step 1\rstep 2\r", 0.0)) == [("step 1", "\r")]
    assert told(lines.flush(0.05)) == [("step 2", "\r")]
    lines.feed(b"\n", 0.1)
    assert told(lines.flush(0.2)) == [("step 2", "\n")]


def test_the_last_state_of_a_bar_whose_rank_ended_is_a_line():
    lines = assembler()
    lines.feed(b"\r37%", 0.0)
    lines.flush(0.05)
    assert told(lines.flush(0.06, force=True)) == [("37%", "\n")]


def test_a_bar_that_erased_itself_leaves_no_line():
    assert all_of(assembler(), [b"\r37%\r    \r"])[-1][1] == "\r"


def test_open_text_that_is_overwritten_is_told_as_overwritten():
    lines = assembler()
    lines.feed(b"Loading", 0.0)
    assert told(lines.flush(0.05)) == [("Loading", "")]
    outputs = lines.feed(b"\rDone\n", 0.1) + lines.flush(0.2)
    assert told(outputs) == [("", "\r"), ("Done", "\n")]


def nested_bars():
    """What tqdm writes for an outer bar of 2 and an inner of 3 that leaves no trace."""
    pieces = ["\router: 0/2"]
    for epoch in (1, 2):
        for step in range(4):
            pieces += ["\n", f"\rinner {epoch}: {step}/3", "\x1b[A"]
        pieces += ["\n", "\r            ", "\r", "\x1b[A", f"\router: {epoch}/2"]
    return [piece.encode() for piece in [*pieces, "\n", "after\n"]]


@pytest.mark.parametrize("size", [1, 2, 5, 7, 1000])
def test_nested_bars_do_not_become_torn_lines(size):
    outputs = all_of(assembler(), in_pieces(b"".join(nested_bars()), size))
    assert [text for text, ending in outputs if ending == "\n"] == ["outer: 2/2", "after"]


def test_nested_bars_show_both_rows():
    outputs = all_of(assembler(), nested_bars())
    bars = [text for text, ending in outputs if ending == "\r"]
    assert "outer: 1/2" in bars
    assert "inner 2: 3/3" in bars


def test_a_message_between_nested_bars_becomes_a_line_after_silence():
    lines = assembler()
    lines.feed(b"\router\n\rinner\x1b[A", 0.0)
    outputs = lines.feed(b"\r     \rmessage\n\router\n\rinner\x1b[A", 0.1) + lines.flush(0.2)
    assert ("message", "\n") in told(outputs)
    assert ("outer", "\n") not in told(outputs)


def test_a_line_that_never_ends_is_passed_on_in_bounded_pieces():
    lines = assembler()
    pieces = [b"x" * 30_000] * 40
    outputs = [output for piece in pieces for output in lines.feed(piece, 0.0)]
    assert sum(len(output.text) for output in outputs) >= 1_200_000 - PIECE_CHARACTERS
    assert max(len(output.text) for output in outputs) <= PIECE_CHARACTERS
    assert {output.ending for output in outputs} == {""}


def test_a_huge_line_keeps_its_place_between_short_ones():
    huge = "y" * (2 * PIECE_CHARACTERS + 5)
    outputs = assembler().feed(f"first\n{huge}\nlast\n".encode(), 0.0)
    assert outputs[0].text == "first"
    assert outputs[-1].text == "last"
    assert "".join(output.text for output in outputs[1:-1]) == huge
    assert [output.ending for output in outputs] == ["\n", "", "", "\n", "\n"]


def test_a_bar_that_never_ends_is_bounded_too():
    lines = assembler()
    outputs = lines.feed(b"\r" + b"z" * 300_000, 0.0)
    assert max(len(output.text) for output in outputs) <= PIECE_CHARACTERS


@given(
    text=st.text(st.sampled_from("ab é🦊\n"), max_size=60),
    cuts=st.lists(st.integers(0, 120), max_size=6),
)
def test_however_it_is_read_plain_text_comes_out_as_it_went_in(text, cuts):
    data = text.encode()
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[a:b] for a, b in pairwise(edges)]
    assert "".join(a + b for a, b in all_of(assembler(), pieces)) == text


@given(
    parts=st.lists(st.sampled_from(["a", "b", "\n", "\r", "\x1b[A", "\x1b"]), max_size=40),
    size=st.integers(1, 9),
)
def test_whatever_is_written_each_line_that_stays_was_written(parts, size):
    data = "".join(parts)
    written = data.replace("\x1b[A", "")
    lines = assembler()
    outputs = all_of(lines, in_pieces(data.encode(), size))
    assert lines.deadline() is None
    for text, _ in outputs:
        assert "\n" not in text
        assert text in written


def test_twenty_thousand_lines_take_some_ten_milliseconds():
    data = b"".join(b"step %d of many, loss 0.123\n" % step for step in range(20_000))
    pieces = in_pieces(data, 64 * 1024)
    best = min(_seconds(pieces) for _ in range(3))
    assert best < 0.25  # 0.02 s on an idle core; the margin is for busy ones


def _seconds(pieces):
    lines = assembler()
    start = time.process_time()
    count = sum(len(lines.feed(piece, 0.0)) for piece in pieces)
    assert count == 20_000
    return time.process_time() - start
