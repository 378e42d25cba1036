"""What was said and is not read yet: so much is kept, in order, and it is told what is missing."""

import threading

from peers.backlog import Backlog

LIMIT_S = 240.0


class Reader:
    """Reads on when it may."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.begun = threading.Event()
        self.read = ""

    def put(self, data: bytes) -> None:
        self.begun.set()
        self.goes_on.wait(LIMIT_S)
        self.read += data.decode()

    def gap(self, num_lines: int) -> bytes:
        return f"({num_lines} missing)\n".encode()


def begun(limit_bytes: int) -> tuple[Backlog, Reader]:
    """With a first line that waits to be read."""
    backlog, reader = Backlog(limit_bytes), Reader()
    backlog.begin()
    assert backlog.take(reader, b"first\n")
    assert reader.begun.wait(LIMIT_S)
    return backlog, reader


def test_who_reads_on_gets_the_newest_lines_and_how_many_are_missing_before_them() -> None:
    backlog, reader = begun(60)
    for number in range(100):
        assert backlog.take(reader, f"line {number:03}\n".encode())
    reader.goes_on.set()
    backlog.close(LIMIT_S)
    kept = [f"line {number:03}" for number in range(94, 100)]
    assert reader.read.splitlines() == ["first", "(94 missing)", *kept]


def test_of_a_burst_beyond_that_nothing_is_missing_where_the_reader_reads_on() -> None:
    backlog, reader = begun(60)
    reader.goes_on.set()
    lines = [f"line {number:03}" for number in range(1000)]
    for line in lines:
        backlog.take(reader, f"{line}\n".encode())
    backlog.close(LIMIT_S)
    assert reader.read.splitlines() == ["first", *lines]


def test_what_is_drawn_is_dropped_too_and_no_line_and_the_newest_stays_however_long_it_is() -> None:
    backlog, reader = begun(20)
    for part in (b"one\ntwo\n", b"drawn\n and more", b"z" * 100):
        backlog.take(reader, part)
    reader.goes_on.set()
    backlog.close(LIMIT_S)
    assert reader.read == "first\n(2 missing)\n" + "z" * 100


def test_two_streams_to_one_place_keep_their_order_and_each_is_told_what_it_misses() -> None:
    backlog, reader = begun(14)
    other = Reader()
    other.goes_on = reader.goes_on
    for number in range(10):
        backlog.take(reader if number % 2 else other, f"line {number}\n".encode())
    reader.goes_on.set()
    backlog.close(LIMIT_S)
    assert reader.read.splitlines() == ["first", "(4 missing)", "line 9"]
    assert other.read.splitlines() == ["(4 missing)", "line 8"]


def test_at_the_end_it_waits_so_long_and_what_comes_later_is_dropped() -> None:
    backlog, reader = begun(1000)
    backlog.take(reader, b"second\n")
    backlog.close(0.01)
    assert backlog.take(reader, b"third\n"), "nobody else is to write it, who would wait for the reader"
    reader.goes_on.set()
    backlog.close(LIMIT_S)
    assert reader.read == "first\n"


def test_what_comes_after_the_end_where_all_was_read_is_for_others_to_write() -> None:
    backlog, reader = begun(1000)
    reader.goes_on.set()
    backlog.close(LIMIT_S)
    assert not backlog.take(reader, b"second\n")
