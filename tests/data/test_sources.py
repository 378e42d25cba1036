import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import datasets
import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub.errors import HfHubHTTPError

from collab.config import BuiltinData, FilesData, HubData
from collab.data.sources import (
    Reader,
    Split,
    count_shards,
    documents,
    expected_bytes,
    source_state,
    split_of,
)
from collab.data.text_files import matching_files
from collab.errors import DataError, DataUnreachable


def reader(base_dir: Path, *, seed: int = 0, peer_id: str = "a") -> Reader:
    return Reader(seed=seed, peer_id=peer_id, base_dir=base_dir)


def numbered(count: int) -> list[str]:
    return [f"This is document number {index}." for index in range(count)]


def read(section: FilesData | HubData | BuiltinData, who: Reader) -> tuple[list[str], list[str]]:
    return list(documents(section, Split.TRAIN, who)), list(documents(section, Split.EVAL, who))


def write_lines(path: Path, rows: Iterable[object]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_builtin_corpus_is_python_source_up_to_the_limit(tmp_path: Path) -> None:
    texts = list(documents(BuiltinData(max_megabytes=0.3), Split.TRAIN, reader(tmp_path)))
    sizes = [len(text.encode()) for text in texts]
    assert sum(sizes) >= 300_000 > sum(sizes[:-1])
    assert sum("import " in text for text in texts) > len(texts) / 2


def test_how_much_text_there_will_be_is_known_but_for_packed_columns_and_shards(tmp_path: Path) -> None:
    who = reader(tmp_path)
    assert expected_bytes(BuiltinData(max_megabytes=0.3), Split.TRAIN, who) == 300_000
    whole = BuiltinData(max_megabytes=1000.0)
    assert expected_bytes(whole, Split.TRAIN, who) == pytest.approx(
        sum(len(text.encode()) for text in documents(whole, Split.TRAIN, who)), rel=0.1
    )
    write_lines(tmp_path / "rows.jsonl", [{"text": text} for text in numbered(200)])
    rows = FilesData(source="files", path="rows.jsonl")
    assert expected_bytes(rows, Split.TRAIN, who) == pytest.approx((tmp_path / "rows.jsonl").stat().st_size, rel=0.1)
    pq.write_table(pa.table({"text": numbered(50)}), tmp_path / "rows.parquet")
    assert expected_bytes(FilesData(source="files", path="rows.parquet"), Split.TRAIN, who) == 0
    hub = HubData(source="hub", dataset="org/name", max_megabytes=5.0)
    assert expected_bytes(hub, Split.TRAIN, who) == 5_000_000
    assert expected_bytes(hub, Split.TRAIN, replace(who, shard=3)) == 0


def test_builtin_corpus_has_one_order_per_seed(tmp_path: Path) -> None:
    section = BuiltinData(max_megabytes=0.2)
    first, again, other = (list(documents(section, Split.TRAIN, reader(tmp_path, seed=seed))) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_jsonl_and_parquet_rows_are_documents_and_each_is_on_one_side(tmp_path: Path) -> None:
    texts = numbered(200)
    write_lines(tmp_path / "a.jsonl", ({"body": text, "id": 1} for text in texts[:100]))
    pq.write_table(pa.table({"body": texts[100:], "id": list(range(100))}), tmp_path / "b.parquet")
    train, held_out = read(FilesData(source="files", path=".", text_field="body"), reader(tmp_path))
    assert sorted(train + held_out) == sorted(texts)
    assert 0 < len(held_out) < 40
    assert all(split_of(text) is Split.EVAL for text in held_out)


def test_long_text_file_is_cut_into_documents_that_add_up_to_it(tmp_path: Path) -> None:
    text = "".join(f"line {index} of a long book\n" for index in range(20_000))
    (tmp_path / "book.txt").write_text(text)
    train, held_out = read(FilesData(source="files", path="book.txt"), reader(tmp_path))
    assert len("".join(train)) + len("".join(held_out)) == len(text)
    assert held_out
    assert all(piece.endswith("\n") and len(piece) < 10_000 for piece in train + held_out)


def test_directory_is_read_in_sorted_order_without_hidden_and_unknown_files(tmp_path: Path) -> None:
    for name in ("b.txt", "a.md", "sub/c.py", ".git/d.txt", "e.bin", "sub/.f.txt"):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_text(name)
    files = [str(file.relative_to(tmp_path / "data")) for file in matching_files("data", tmp_path)]
    assert files == ["a.md", "b.txt", "sub/c.py"]
    assert matching_files("data/*.txt", tmp_path) == [tmp_path / "data" / "b.txt"]


def test_path_that_matches_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere/\*\.txt matches no .*\.jsonl") as caught:
        list(documents(FilesData(source="files", path="nowhere/*.txt"), Split.TRAIN, reader(tmp_path)))
    assert str(tmp_path) in caught.value.hint


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_missing_text_field_names_those_that_exist(tmp_path: Path, name: str) -> None:
    if name.endswith("jsonl"):
        write_lines(tmp_path / name, [{"title": "x", "content": "y"}])
    else:
        pq.write_table(pa.table({"title": ["x"], "content": ["y"]}), tmp_path / name)
    with pytest.raises(DataError, match="no field 'text'; it has: content, title"):
        list(documents(FilesData(source="files", path=name), Split.TRAIN, reader(tmp_path)))


@pytest.mark.parametrize(("name", "content", "message"), [
    ("a.jsonl", b'{"text": "good"}\n{"text": \n', "line 2 is not JSON"),
    ("a.jsonl", b'["text"]\n', "line 1 should be an object, got list"),
    ("a.jsonl", b'{"text": 3}\n', "should be text, got int"),
    ("a.txt", b"caf\xe9 au lait\n", "is not UTF-8"),
    ("a.txt", b" \n\n", "everything in it is empty"),
    ("a.parquet", b"PAR1 and then nothing", "cannot be read as parquet"),
    ("a.csv", b"text\n", "is no .*parquet.* file"),
])
def test_file_that_cannot_be_used_is_named_with_the_reason(tmp_path: Path, name: str, content: bytes,
                                                           message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        list(documents(FilesData(source="files", path=name), Split.TRAIN, reader(tmp_path)))
    assert name in caught.value.message
    assert caught.value.hint


def test_too_little_text_for_an_eval_side_says_how_many_documents_there_are(tmp_path: Path) -> None:
    text = next(text for text in numbered(100) if split_of(text) is Split.TRAIN)
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(DataError, match="has 1 documents and none of them is on the eval side"):
        list(documents(FilesData(source="files", path="a.txt"), Split.EVAL, reader(tmp_path)))


def test_lone_surrogates_of_json_become_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(f'{{"text": "half \\ud800 {index}"}}\n' for index in range(3)))
    first, *_ = documents(FilesData(source="files", path="a.jsonl"), Split.TRAIN, reader(tmp_path))
    assert first == "half ? 0"


def test_changed_file_changes_the_state_that_caches_are_keyed_with(tmp_path: Path) -> None:
    section = FilesData(source="files", path="a.txt")
    (tmp_path / "a.txt").write_text("one")
    before = source_state(section, Split.TRAIN, reader(tmp_path))
    assert source_state(section, Split.TRAIN, reader(tmp_path)) == before
    (tmp_path / "a.txt").write_text("one and more")
    assert source_state(section, Split.TRAIN, reader(tmp_path)) != before


def hub_dataset(tmp_path: Path) -> HubData:
    # `datasets` streams a local folder by the code that streams a repository of the Hub.
    folder = tmp_path / "dataset"
    folder.mkdir()
    pq.write_table(pa.table({"text": numbered(400)}), folder / "train.parquet", row_group_size=20)
    return HubData(source="hub", dataset=str(folder), max_megabytes=0.003)


def test_peers_stream_different_parts_of_a_dataset_and_evaluate_the_same(tmp_path: Path) -> None:
    section = hub_dataset(tmp_path)
    train_a, eval_a = read(section, reader(tmp_path, peer_id="a"))
    train_b, eval_b = read(section, reader(tmp_path, peer_id="b"))
    assert eval_a == eval_b == [text for text in numbered(400) if split_of(text) is Split.EVAL]
    assert len(train_a) == len(set(train_a))
    assert set(train_a) != set(train_b)
    assert not set(train_a + train_b) & set(eval_a)


def test_peer_that_comes_back_streams_the_same_part(tmp_path: Path) -> None:
    section = hub_dataset(tmp_path)
    first, again = (list(documents(section, Split.TRAIN, reader(tmp_path, peer_id="a"))) for _ in range(2))
    assert first == again


@pytest.mark.parametrize(("change", "message"), [
    ({"dataset": "./no-such-folder"}, "no-such-folder"),
    ({"split": "tests"}, "tests"),
    ({"text_field": "body"}, "no field 'body'; it has: text"),
])
def test_dataset_that_cannot_be_streamed_is_named_with_the_reason(tmp_path: Path, change: dict[str, str],
                                                                  message: str) -> None:
    section = hub_dataset(tmp_path).model_copy(update=change)
    with pytest.raises(DataError, match=message) as caught:
        list(documents(section, Split.TRAIN, reader(tmp_path)))
    assert caught.value.hint


def hub_error(status: int) -> HfHubHTTPError:
    return HfHubHTTPError("no route to host", response=httpx.Response(status, request=httpx.Request("GET", "https://hub")))


def of(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(("error", "may_pass"), [
    (httpx.ConnectError("no route to host"), True),
    (ConnectionError("no route to host"), True),
    (of(FileNotFoundError("no route to host"), hub_error(503)), True),
    (hub_error(429), True),
    (of(FileNotFoundError("no route to host"), hub_error(404)), False),
    (FileNotFoundError("no route to host"), False),
    (ValueError("no route to host"), False),
])
def test_hub_that_cannot_be_read_is_a_data_error_which_says_whether_that_may_pass(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, may_pass: bool) -> None:
    def fails(*_args: object, **_options: object) -> None:
        raise error

    monkeypatch.setattr(datasets, "load_dataset", fails)
    section = HubData(source="hub", dataset="some/text")
    with pytest.raises(DataError, match=r"dataset 'some/text' .*no route to host") as caught:
        list(documents(section, Split.TRAIN, reader(tmp_path)))
    assert "network" in caught.value.hint
    assert isinstance(caught.value, DataUnreachable) is may_pass
    with pytest.raises(DataUnreachable if may_pass else DataError):
        count_shards(section)
