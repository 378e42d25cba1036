import fcntl
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

from collab.config import FilesData
from collab.data.made_once import BeingMade, make_once, not_now
from collab.data.sources import Reader, Split, documents
from collab.data.tokens import (
    BlockRequest,
    open_blocks,
    parse_tokenizer,
    run_tokenizer,
    train_tokenizer,
    vocabulary_size,
)
from collab.errors import BrokenOff, DataError, DataUnreachable
from tests.full_disk import no_file_larger_than

WORDS = [f"the quick brown fox number {index} jumps over the lazy dog; déjà vu {index % 7}\n" for index in range(400)]

TOKENIZER = train_tokenizer(WORDS, 400)


def request(folder: Path, *, length: int = 16, split: Split = Split.TRAIN,
            max_blocks: int | None = None) -> BlockRequest:
    (folder / "data").mkdir(exist_ok=True)
    for index in range(0, 400, 4):
        path = folder / "data" / f"{index:03}.txt"
        if not path.exists():
            path.write_text("".join(WORDS[index:index + 4]))
    return BlockRequest(section=FilesData(source="files", path="data"), split=split, sequence_length=length,
                        max_blocks=max_blocks, reader=Reader(seed=0, peer_id="a", base_dir=folder))


def token_files(cache: Path) -> list[Path]:
    return [path for path in cache.iterdir() if path.suffix != ".lock"]


def expected_stream(wanted: BlockRequest) -> list[int]:
    tokenizer = parse_tokenizer(TOKENIZER, origin="test")
    return [token for text in documents(wanted.section, wanted.split, wanted.reader)
            for token in [*tokenizer.encode(text).ids, 0]]


@pytest.mark.parametrize("text", ["the quick brown fox", "déjà vu", "  tabs\tand\r\nlines\x00", "日本 🦊 <|endoftext|>",
                                  ""])
def test_byte_level_bpe_gives_every_text_back(text: str) -> None:
    tokenizer = parse_tokenizer(TOKENIZER, origin="test")
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert 0 not in ids


def test_common_words_are_one_token_and_the_vocabulary_is_no_larger_than_asked() -> None:
    tokenizer = parse_tokenizer(TOKENIZER, origin="test")
    assert len(tokenizer.encode(" quick brown").ids) == 2
    assert 257 < vocabulary_size(tokenizer) <= 400
    assert tokenizer.token_to_id("<|endoftext|>") == 0


def test_training_a_tokenizer_in_other_processes_gives_the_same_bytes() -> None:
    program = ("import hashlib, tests.data.test_tokens as t; "
               "print(hashlib.sha256(t.TOKENIZER.encode()).hexdigest())")
    runs = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True,
                             cwd=Path(__file__).parents[2], env=os.environ | {"PYTHONHASHSEED": seed})
            for seed in ("1", "2")]
    digests = {run.communicate()[0].strip() for run in runs}
    assert digests == {hashlib.sha256(TOKENIZER.encode()).hexdigest()}


def test_blocks_are_the_token_stream_cut_at_their_length(tmp_path: Path) -> None:
    wanted = request(tmp_path)
    blocks = open_blocks(wanted, TOKENIZER, tmp_path / "cache")
    stream = expected_stream(wanted)
    assert blocks.dtype == np.uint16
    assert blocks.shape == (len(stream) // 16, 16)
    assert blocks.ravel().tolist() == stream[:blocks.size]


def test_batches_of_text_leave_no_seam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = request(tmp_path, length=13)
    whole = open_blocks(wanted, TOKENIZER, tmp_path / "one")
    monkeypatch.setattr("collab.data.tokens._BATCH_BYTES", 500)
    encoded: list[int] = []
    pieces = open_blocks(wanted, TOKENIZER, tmp_path / "two", lambda done, _: encoded.append(done))
    assert np.array_equal(whole, pieces)
    assert len(encoded) > 10
    assert encoded == sorted(encoded)


def test_whoever_breaks_off_leaves_what_is_encoded_and_the_next_one_goes_on_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collab.data.tokens._BATCH_BYTES", 500)
    wanted, cache = request(tmp_path, length=13), tmp_path / "cache"
    whole = open_blocks(wanted, TOKENIZER, tmp_path / "other")
    told = list[int]()

    def overseen(texts: Iterator[str]) -> Iterator[str]:
        for number, text in enumerate(texts):
            if number == most:
                raise reason("that will do, or the server is away")
            yield text

    for limit, kind in ((0, BrokenOff), (30, DataUnreachable), (31, BrokenOff), (60, DataUnreachable)):
        most, reason = limit, kind
        with pytest.raises(kind):
            open_blocks(wanted, TOKENIZER, cache, lambda done, _: told.append(done), overseen)
        assert not list(cache.glob("*.bin"))
    most = 10_000
    before = told[-1]
    (partial,) = cache.glob("*.partial")
    assert partial.stat().st_size > 0
    with partial.open("ab") as handle:
        handle.write(b"of one that was killed while it went on")
    told.clear()
    assert np.array_equal(open_blocks(wanted, TOKENIZER, cache, lambda done, _: told.append(done), overseen), whole)
    assert told[0] > before, "it was not encoded again"
    assert [path.suffix for path in token_files(cache)] == [".bin"]


@pytest.mark.parametrize(
    "other",
    [
        lambda ours: ours | {"pages": 3},
        lambda ours: ours | {"documents": "a"},
        lambda ours: ours | {"documents": -1},
        lambda ours: ours | {"blocks": 10**6},
        lambda ours: ours | {"pending": [70_000]},
        lambda ours: ours | {"pending": None},
        lambda ours: {"documents": ours["documents"]},
        lambda ours: list(ours.values()),
        lambda _: 5,
    ],
)
def test_a_note_of_another_form_is_as_if_there_were_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: Callable[[dict[str, Any]], Any]
) -> None:
    monkeypatch.setattr("collab.data.tokens._BATCH_BYTES", 500)
    wanted, cache = request(tmp_path, length=13), tmp_path / "cache"

    def broken_off(texts: Iterator[str]) -> Iterator[str]:
        yield from islice(texts, 30)
        raise BrokenOff("that will do")

    with pytest.raises(BrokenOff):
        open_blocks(wanted, TOKENIZER, cache, overseen=broken_off)
    (note,) = cache.glob("*.left")
    note.write_text(json.dumps(other(json.loads(note.read_text()))))
    blocks = open_blocks(wanted, TOKENIZER, cache)
    assert np.array_equal(blocks, open_blocks(wanted, TOKENIZER, tmp_path / "other"))


def test_how_far_the_encoding_is_is_told_of_about_as_much_as_there_will_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collab.data.tokens._BATCH_BYTES", 500)
    wanted, told = request(tmp_path), list[tuple[int, int]]()
    open_blocks(wanted, TOKENIZER, tmp_path / "cache", lambda done, whole: told.append((done, whole)))
    all_bytes = sum(len(text.encode()) for text in documents(wanted.section, wanted.split, wanted.reader))
    *before, last = told
    assert last == (all_bytes, all_bytes)
    assert len(before) > 10
    assert [done for done, _ in before] == sorted(done for done, _ in before)
    (whole,) = {whole for done, whole in before if done < 0.9 * all_bytes}
    assert whole == pytest.approx(all_bytes, rel=0.1)
    assert all(whole == 0 or done < whole for done, whole in before), "no bar is full before the end"
    told.clear()
    open_blocks(wanted, TOKENIZER, tmp_path / "cache", lambda done, whole: told.append((done, whole)))
    assert told == [], "it is there"


def test_no_more_blocks_than_asked(tmp_path: Path) -> None:
    everything = open_blocks(request(tmp_path), TOKENIZER, tmp_path / "cache")
    some = open_blocks(request(tmp_path, max_blocks=7), TOKENIZER, tmp_path / "cache")
    assert np.array_equal(some, everything[:7])


def test_train_and_eval_blocks_share_no_document(tmp_path: Path) -> None:
    tokenizer = parse_tokenizer(TOKENIZER, origin="test")
    blocks = [open_blocks(request(tmp_path, split=split), TOKENIZER, tmp_path / "cache") for split in Split]
    texts = [tokenizer.decode(part.ravel().tolist()) for part in blocks]
    numbers = [{word for word in text.split() if word.isdigit() and int(word) > 9} for text in texts]
    assert numbers[1]
    assert len(numbers[0] & numbers[1]) <= 1  # a number cut at the end of the last block may look like another


def test_vocabulary_beyond_sixteen_bits_is_stored_in_thirty_two(tmp_path: Path) -> None:
    tokenizer = parse_tokenizer(TOKENIZER, origin="test")
    tokenizer.add_tokens([f"token-{index}" for index in range(2**16)])
    blocks = open_blocks(request(tmp_path), tokenizer.to_str(), tmp_path / "cache")
    assert blocks.dtype == np.uint32
    assert blocks.ravel().tolist() == expected_stream(request(tmp_path))[:blocks.size]


def test_second_opening_reads_no_text(tmp_path: Path) -> None:
    first = open_blocks(request(tmp_path), TOKENIZER, tmp_path / "cache")
    read: list[int] = []
    again = open_blocks(request(tmp_path), TOKENIZER, tmp_path / "cache", lambda done, _: read.append(done))
    assert np.array_equal(first, again)
    assert read == []


def test_other_text_tokenizer_or_length_is_another_file(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    open_blocks(request(tmp_path), TOKENIZER, cache)
    open_blocks(request(tmp_path, length=8), TOKENIZER, cache)
    open_blocks(request(tmp_path), train_tokenizer(WORDS, 300), cache)
    (tmp_path / "data" / "000.txt").write_text("changed")
    open_blocks(request(tmp_path), TOKENIZER, cache)
    assert len(token_files(cache)) == 4


ENCODE = """
import sys
from pathlib import Path
from typing import BinaryIO
from collab.data.tokens import open_blocks
from tests.data.test_tokens import TOKENIZER, request

folder = Path(sys.argv[1])
read = []
wanted = request(folder)
print("ready", flush=True)
sys.stdin.readline()
blocks = open_blocks(wanted, TOKENIZER, folder / "cache", lambda done, _: read.append(done))
print(len(read), blocks.shape[0], int(blocks.sum()), flush=True)
"""


def test_processes_that_encode_at_once_share_the_work_of_one(tmp_path: Path) -> None:
    request(tmp_path)
    runs = [subprocess.Popen([sys.executable, "-c", ENCODE, str(tmp_path)], stdin=subprocess.PIPE, text=True,
                             stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) for _ in range(2)]
    for run in runs:
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
    for run in runs:
        assert run.stdin is not None
        run.stdin.write("go\n")
        run.stdin.flush()
    answers = [run.communicate()[0].split() for run in runs]
    assert sorted(answer[0] == "0" for answer in answers) == [False, True]
    assert answers[0][1:] == answers[1][1:]
    assert [path.suffix for path in token_files(tmp_path / "cache")] == [".bin"]


def test_file_is_absent_until_it_is_whole_and_a_second_writer_waits(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "file.bin"
    started, go_on = threading.Event(), threading.Event()
    written: list[str] = []

    def slow(handle: BinaryIO) -> None:
        handle.write(b"first half, ")
        started.set()
        assert go_on.wait(10)
        handle.write(b"second half")
        written.append("slow")

    first = threading.Thread(target=make_once, args=(path, slow, int))
    first.start()
    assert started.wait(10)
    assert not path.exists()
    second = threading.Thread(target=make_once, args=(path, lambda _handle: written.append("second"), int))
    second.start()
    go_on.set()
    first.join()
    second.join()
    assert path.read_bytes() == b"first half, second half"
    assert written == ["slow"]


def test_who_finds_another_one_writing_hears_so_before_it_waits_and_may_do_something_else(tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    told: list[Path] = []
    with (tmp_path / "file.lock").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(BeingMade, match="another peer of yours"):
            make_once(path, lambda handle: handle.write(b"ours"), int, not_now)
        assert not path.exists()

        def waits(lock: Path) -> None:
            told.append(lock)
            other.close()

        make_once(path, lambda handle: handle.write(b"ours"), int, waits)
    assert told == [tmp_path / "file.lock"]
    assert path.read_bytes() == b"ours"


def test_partial_file_of_a_dead_process_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "file.partial").write_bytes(b"x" * 1000)
    make_once(tmp_path / "file.bin", lambda handle: handle.write(b"whole"), int)
    assert (tmp_path / "file.bin").read_bytes() == b"whole"
    assert not (tmp_path / "file.partial").exists()


def test_full_disk_names_the_path_and_the_bytes_and_leaves_no_half_file(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    wanted = request(tmp_path)
    message = r"no space to write .*cache.*about \d{4,} bytes"
    with no_file_larger_than(2048), pytest.raises(DataError, match=message) as caught:
        open_blocks(wanted, TOKENIZER, cache)
    assert "make room" in caught.value.hint
    assert token_files(cache) == []
    assert len(open_blocks(wanted, TOKENIZER, cache)) > 0


def test_cache_folder_that_is_a_file_is_a_data_error(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    with pytest.raises(DataError, match=r"cannot write .*cache"):
        open_blocks(request(tmp_path), TOKENIZER, tmp_path / "cache")


def test_text_shorter_than_one_sample_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not one sample of 1000000 tokens"):
        open_blocks(request(tmp_path, length=1_000_000), TOKENIZER, tmp_path / "cache")


@pytest.mark.parametrize(("text", "message"), [
    ("{}", "is no tokenizer.json"),
    ("not even JSON", "is no tokenizer.json"),
    (TOKENIZER.replace("<|endoftext|>", "<|other|>"), "has no end-of-text token"),
])
def test_tokenizer_that_cannot_be_used_is_a_data_error(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_tokenizer(text, origin="the file")


def test_tokenizer_file_with_truncation_and_padding_encodes_whole_documents() -> None:
    tokenizer = parse_tokenizer(TOKENIZER, origin="test")
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    text = "the quick brown fox jumps over the lazy dog"
    assert parse_tokenizer(tokenizer.to_str(), origin="test").encode(text).ids == \
        parse_tokenizer(TOKENIZER, origin="test").encode(text).ids


def test_tokenizer_of_a_run_is_trained_once(tmp_path: Path) -> None:
    wanted = request(tmp_path)
    first = run_tokenizer(wanted.section, 300, wanted.reader, tmp_path / "cache")
    again = run_tokenizer(wanted.section, 300, wanted.reader, tmp_path / "cache")
    assert first == again == train_tokenizer(documents(wanted.section, Split.TRAIN, wanted.reader), 300)
    assert len(token_files(tmp_path / "cache")) == 1
