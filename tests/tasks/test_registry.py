import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from collab.config import Run, parse_run
from collab.errors import DataError
from collab.tasks.registry import build_task, make_assets

LANGUAGE = """
run_id: small-lm
task:
  name: causal_lm
  model: {model_type: gpt2, n_layer: 1, n_embd: 16, n_head: 2}
  sequence_length: 16
  vocab_size: 270
  eval_samples: 4
  data: {source: builtin, max_megabytes: 0.05}
"""

DIGITS = """
run_id: digits
task: {name: image_classification}
"""


def run(text: str) -> Run:
    return parse_run(text, origin="test")


def test_digits_need_no_assets_and_are_built(tmp_path: Path) -> None:
    assert make_assets(run(DIGITS), base_dir=tmp_path, cache_dir=tmp_path) == {}
    task = build_task(run(DIGITS), assets={}, cache_dir=tmp_path, peer_id="a")
    assert task.num_samples == 1500


def test_two_peers_with_the_assets_of_the_organiser_have_the_same_task_on_the_builtin_corpus(tmp_path: Path) -> None:
    assets = make_assets(run(LANGUAGE), base_dir=tmp_path, cache_dir=tmp_path / "organiser")
    assert list(assets) == ["tokenizer.json"]
    one, two = (build_task(run(LANGUAGE), assets=assets, cache_dir=tmp_path / peer, peer_id=peer) for peer in "ab")
    assert one.num_samples == two.num_samples > 100
    assert torch.equal(one.batch((7,)).tensors["input_ids"], two.batch((7,)).tensors["input_ids"])
    torch.manual_seed(0)
    model = one.build_model()
    assert one.evaluate(model) == two.evaluate(model)
    assert set(one.checkpoint_files()) >= {"config.json", "tokenizer.json", "tokenizer_config.json"}


def test_relative_data_path_starts_at_the_folder_that_is_given(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("A long line of text, the same again and again.\n" * 3000)
    text = LANGUAGE.replace("{source: builtin, max_megabytes: 0.05}", "{source: files, path: book.txt}")
    assets = make_assets(run(text), base_dir=tmp_path, cache_dir=tmp_path / "cache")
    task = build_task(run(text), assets=assets, cache_dir=tmp_path / "cache", peer_id="a", base_dir=tmp_path)
    assert task.num_samples > 0


def test_missing_tokenizer_says_who_has_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"without its tokenizer\.json") as caught:
        build_task(run(LANGUAGE), assets={}, cache_dir=tmp_path, peer_id="a")
    assert "organiser" in caught.value.hint


def test_registry_and_text_sources_import_no_heavy_package() -> None:
    program = ("import sys, collab.tasks.registry, collab.data.sources; "
               "print([name for name in ('transformers', 'datasets', 'pyarrow', 'sklearn') if name in sys.modules])")
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=root, check=True,
                          env=os.environ | {"PYTHONPATH": str(root)})
    assert done.stdout.strip() == "[]"
