"""A streamed dataset as blocks: `datasets` streams a local folder by the code that streams a repository of the Hub."""

from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from collab.config import HubData
from collab.data.shards import KEPT, TokenShards
from collab.data.sources import Reader, Split, split_of
from collab.data.tokens import BlockRequest, blocks_path, open_blocks, parse_tokenizer, train_tokenizer
from collab.errors import DataError

LENGTH = 8


def shards_of(tmp_path: Path, peer: str, *, rows: int = 200, max_megabytes: float = 1.0) -> TokenShards:
    folder = tmp_path / "dataset"
    if not folder.exists():
        folder.mkdir()
        texts = [f"text number {index} of the dataset" for index in range(rows)]
        pq.write_table(pa.table({"text": texts}), folder / "train.parquet", row_group_size=10)
    section = HubData(source="hub", dataset=str(folder), max_megabytes=max_megabytes)
    reader = Reader(seed=0, peer_id=peer, base_dir=tmp_path)
    request = BlockRequest(
        section=section, split=Split.TRAIN, sequence_length=LENGTH, max_blocks=None, reader=reader
    )
    return TokenShards(request, train_tokenizer(iter(["text number of the dataset 0123456789"] * 9), 280),
                       tmp_path / f"cache-{peer}")  # fmt: skip


def kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache-alice").rglob("*.bin"))


def test_all_shards_together_have_all_train_text_once_whoever_reads_them(tmp_path: Path) -> None:
    alice, bob = shards_of(tmp_path, "alice"), shards_of(tmp_path, "bob")
    assert alice.number == bob.number == 20
    assert alice.digest == bob.digest
    tokenizer = parse_tokenizer(train_tokenizer(iter(["text number of the dataset 0123456789"] * 9), 280), origin="t")
    seen = []
    for shard in range(20):
        reader = (alice, bob)[shard % 2]
        ids = reader.open(shard)
        text = tokenizer.decode(reader.rows(ids).flatten().tolist(), skip_special_tokens=False)
        seen += [int(part.split()[0]) for part in text.split("text number ")[1:-1]]
        assert len(set(ids)) == len(ids)
    expected = [index for index in range(200) if split_of(f"text number {index} of the dataset") is Split.TRAIN]
    assert len(seen) == len(set(seen))
    assert set(seen) <= set(expected)
    assert len(seen) > 0.7 * len(expected), "but for what does not fill the last sample of each shard"


def test_a_shard_that_is_read_is_told_of(tmp_path: Path) -> None:
    shards, told = shards_of(tmp_path, "alice"), list[tuple[int, int]]()
    shards._progress = lambda done, whole: told.append((done, whole))
    shards.open(7)
    assert told[-1][0] == told[-1][1] > 0
    assert {whole for _, whole in told[:-1]} <= {0}, "how long it is nobody knows before"


def test_two_peers_get_the_same_samples_from_one_shard(tmp_path: Path) -> None:
    alice, bob = shards_of(tmp_path, "alice"), shards_of(tmp_path, "bob")
    ids = alice.open(7)
    assert bob.open(7) == ids
    assert np.array_equal(alice.rows(ids), bob.rows(ids))
    assert alice.rows(ids).shape == (len(ids), LENGTH)


def test_a_shard_that_is_trained_is_no_longer_on_the_disk(tmp_path: Path) -> None:
    shards = shards_of(tmp_path, "alice")
    three, four = shards.open(3), shards.open(4)
    before = {path.name for path in kept(tmp_path)}
    shards.close(3)
    shards.close(3)
    assert len(before) == 2
    assert len(kept(tmp_path)) == 1
    assert len(shards.rows(four)) == len(four)
    with pytest.raises(DataError, match="not open"):
        shards.rows(three)


def test_ids_of_all_shards_differ(tmp_path: Path) -> None:
    shards = shards_of(tmp_path, "alice")
    ids = list(chain.from_iterable(shards.open(shard) for shard in range(5)))
    assert len(ids) == len(set(ids))


def test_the_next_life_finds_the_shards_that_the_last_one_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = shards_of(tmp_path, "alice")
    ids = [before.open(shard) for shard in (3, 4, 5)]
    monkeypatch.setattr("collab.data.tokens.documents", lambda *_: pytest.fail("it is here"))
    after = shards_of(tmp_path, "alice")
    assert [after.open(shard) for shard in (5, 3, 4)] == [ids[2], ids[0], ids[1]]


def test_of_what_many_lives_have_left_the_newest_few_are_kept_and_nothing_when_the_run_is_over(tmp_path: Path) -> None:
    for shard in range(0, 20, 3):
        shards = shards_of(tmp_path, "alice")
        for one in range(shard, min(shard + 3, 20)):
            shards.open(one)
    newest = kept(tmp_path)
    assert len(newest) == KEPT + 2
    shards.close(18)
    shards.open(17)
    assert len(kept(tmp_path)) == KEPT + 1, "one of those that were left"
    other = shards_of(tmp_path, "bob")
    other.open(0)
    shards.drop()
    assert kept(tmp_path) == []
    assert not list((tmp_path / "cache-alice").rglob("*.lock"))
    assert len(other.rows(other.open(0))) > 0


def test_shards_of_earlier_versions_go_and_nothing_else_that_is_encoded_does(tmp_path: Path) -> None:
    """They lay in the cache itself, where other runs, and what is not streamed, are."""
    shards, cache = shards_of(tmp_path, "alice"), tmp_path / "cache-alice"
    whole = replace(shards._request, reader=replace(shards._request.reader, shard=None))
    other = replace(whole, sequence_length=LENGTH + 1, reader=replace(whole.reader, shard=3))
    for request in (whole, other):
        open_blocks(request, shards._tokenizer_json, cache)
    (cache / "tokens-train-notes.bin").write_bytes(b"of somebody's")
    before = set(cache.iterdir())
    for shard in (3, 19):
        one = replace(whole, reader=replace(whole.reader, shard=shard))
        assert open_blocks(one, shards._tokenizer_json, cache).size
    assert len(set(cache.glob("*.bin")) - before) == 2
    broken_off = blocks_path(replace(whole, reader=replace(whole.reader, shard=5)), shards._tokenizer_json, cache)
    for ending in (".partial", ".left"):
        broken_off.with_suffix(ending).write_bytes(b"half of it")
    shards.open(7)
    left = set(cache.iterdir()) - {shards._folder}
    assert {path for path in left if path.suffix != ".lock"} == {path for path in before if path.suffix != ".lock"}
