import fcntl
import logging
import math
import warnings
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file

from collab.config import CausalLMTask
from collab.data.made_once import BeingMade
from collab.data.sources import Reader
from collab.errors import ConfigError, DataError
from collab.tasks.causal_lm import CausalLM, make_tokenizer, sample_text
from collab.tasks.evaluation import evaluate_unless

GPT2 = {"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "resid_pdrop": 0.1}
LLAMA = {"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 24,
         "num_attention_heads": 2}


def section(model: dict[str, object] | None = None, **fields: object) -> CausalLMTask:
    return CausalLMTask.model_validate(
        {"name": "causal_lm", "model": GPT2 if model is None else model, "sequence_length": 16, "vocab_size": 300,
         "eval_samples": 11, "data": {"source": "files", "path": "text"}} | fields)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("causal_lm")
    (base / "text").mkdir()
    for index in range(60):
        words = " ".join(f"word {index * number % 17}" for number in range(30))
        (base / "text" / f"{index:02}.txt").write_text(f"Document {index}: {words}.\n")
    return base


@pytest.fixture(scope="module")
def tokenizer_json(folder: Path) -> bytes:
    return make_tokenizer(section(), seed=0, base_dir=folder, cache_dir=folder / "cache", peer_id="organiser")


@pytest.fixture
def task(folder: Path, tokenizer_json: bytes) -> CausalLM:
    return make(section(), folder, tokenizer_json)


def make(chosen: CausalLMTask, folder: Path, tokenizer_json: bytes) -> CausalLM:
    return CausalLM(chosen, tokenizer_json, cache_dir=folder / "cache",
                    reader=Reader(seed=0, peer_id="a", base_dir=folder))


def save(task: CausalLM, model: torch.nn.Module, folder: Path) -> None:
    """What a checkpoint writer does that knows nothing of the task: each tensor once, by the name it has first."""
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    stored = {name: tensors[name].detach().contiguous() for name in model.state_dict() if name in tensors}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    for name, content in task.checkpoint_files().items():
        (folder / name).write_bytes(content)


@pytest.mark.parametrize("fields", [GPT2, GPT2 | {"tie_word_embeddings": False}, LLAMA,
                                    LLAMA | {"tie_word_embeddings": True}])
def test_checkpoint_loads_without_a_warning_and_has_exactly_the_same_eval_loss(
        fields: dict[str, object], folder: Path, tokenizer_json: bytes, tmp_path: Path,
        caplog: pytest.LogCaptureFixture) -> None:
    task = make(section(fields), folder, tokenizer_json)
    torch.manual_seed(0)
    model = task.build_model()
    save(task, model, tmp_path)
    transformers.utils.logging.enable_propagation()
    with warnings.catch_warnings(), caplog.at_level(logging.INFO, logger="transformers"):
        warnings.simplefilter("error")
        loaded, report = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert {name: list(found) for name, found in report.items() if found} == {}
    assert loaded.dtype == torch.float32
    assert task.evaluate(loaded) == task.evaluate(model)


def test_checkpoint_tokenizer_gives_the_ids_that_the_model_learnt_from(task: CausalLM, tmp_path: Path) -> None:
    save(task, task.build_model(), tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    block = task.batch((0,)).tensors["input_ids"][0].tolist()
    assert tokenizer.encode(tokenizer.decode(block)) == block
    assert tokenizer.decode(tokenizer.encode(" don't , touch .")) == " don't , touch ."
    assert tokenizer.eos_token == "<|endoftext|>"
    assert tokenizer.model_max_length == 16


def test_sampled_text_starts_with_the_prompt_and_depends_on_the_seed_alone(task: CausalLM, tmp_path: Path) -> None:
    torch.manual_seed(0)
    save(task, task.build_model(), tmp_path)
    state = torch.random.get_rng_state()
    first, again, other = (sample_text(tmp_path, "word", 8, seed) for seed in (1, 1, 2))
    assert first.startswith("word")
    assert len(first) > len("word")
    assert first == again != other
    assert torch.equal(state, torch.random.get_rng_state())


def test_sampling_more_than_the_model_has_positions_for_still_gives_text(task: CausalLM, tmp_path: Path) -> None:
    save(task, task.build_model(), tmp_path)
    assert sample_text(tmp_path, "word " * 40, 100, seed=0)
    assert sample_text(tmp_path, "", 4, seed=0)


def test_samples_are_blocks_of_token_ids(task: CausalLM) -> None:
    batch = task.batch((3, 0, 3))
    ids = batch.tensors["input_ids"]
    assert batch.sample_ids == (3, 0, 3)
    assert ids.shape == (3, 16)
    assert ids.dtype == torch.int64
    assert torch.equal(ids[0], ids[2])
    assert task.num_samples > 100
    assert torch.equal(task.batch((task.num_samples - 1,)).tensors["input_ids"][0],
                       task.batch(tuple(range(task.num_samples))).tensors["input_ids"][-1])


def test_loss_is_what_transformers_computes_from_labels(task: CausalLM) -> None:
    torch.manual_seed(0)
    model = task.build_model().eval()
    ids = task.batch((0, 1, 2)).tensors["input_ids"]
    theirs = model(input_ids=ids, labels=ids).loss
    torch.testing.assert_close(task.loss(model, {"input_ids": ids}), theirs, rtol=1e-6, atol=0)
    assert theirs.item() == pytest.approx(math.log(300), rel=0.1)


def test_loss_is_the_mean_so_that_means_compose(task: CausalLM) -> None:
    torch.manual_seed(0)
    model = task.build_model().eval()
    loss = {ids: task.loss(model, task.batch(ids).tensors).item() for ids in [(0, 1, 2), (3,), (0, 1, 2, 3)]}
    assert loss[0, 1, 2, 3] == pytest.approx((3 * loss[0, 1, 2] + loss[3,]) / 4, rel=1e-6)


def test_evaluation_has_no_dropout_and_leaves_mode_and_gradients(task: CausalLM) -> None:
    torch.manual_seed(0)
    model = task.build_model().train()
    assert task.evaluate(model) == task.evaluate(model)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_evaluation_needs_no_train_text_to_be_encoded(folder: Path, tokenizer_json: bytes, tmp_path: Path) -> None:
    task = CausalLM(section(), tokenizer_json, cache_dir=tmp_path,
                    reader=Reader(seed=0, peer_id="a", base_dir=folder))
    assert math.isfinite(task.evaluate(task.build_model()).loss)
    assert [path.name.split("-")[1] for path in tmp_path.glob("*.bin")] == ["eval"]


def test_held_out_text_is_read_before_any_device_is_needed(folder: Path, tokenizer_json: bytes, tmp_path: Path) -> None:
    task = CausalLM(section(), tokenizer_json, cache_dir=tmp_path,
                    reader=Reader(seed=0, peer_id="a", base_dir=folder))
    task.read_held_out()
    assert [path.name.split("-")[1] for path in tmp_path.glob("*.bin")] == ["eval"]
    task._reader = Reader(seed=0, peer_id="a", base_dir=tmp_path)  # where no text is
    assert math.isfinite(task.evaluate(task.build_model()).loss)


def test_train_text_that_another_peer_encodes_is_waited_for_in_words_and_held_out_text_is_not(
    folder: Path, tokenizer_json: bytes, tmp_path: Path
) -> None:
    reader = Reader(seed=0, peer_id="a", base_dir=folder)
    first = CausalLM(section(), tokenizer_json, cache_dir=tmp_path, reader=reader)
    first.read_held_out()
    number = first.num_samples
    for path in tmp_path.glob("*.bin"):
        path.unlink()
    task = CausalLM(section(), tokenizer_json, cache_dir=tmp_path, reader=reader)
    (held_out,), (train,) = tmp_path.glob("tokens-eval-*.lock"), tmp_path.glob("tokens-train-*.lock")
    with held_out.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(BeingMade):
            task.read_held_out()
    task.read_held_out()
    assert math.isfinite(task.evaluate(task.build_model()).loss)
    told: list[Path] = []
    with train.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)

        def waits(lock: Path) -> None:
            told.append(lock)
            other.close()

        task.waits = waits
        assert task.num_samples == number
    assert told == [train]


def test_an_evaluation_is_left_off_between_two_batches(task: CausalLM) -> None:
    model, asked = task.build_model(), list[bool]()

    def is_to_stop() -> bool:
        asked.append(len(asked) == 1)
        return asked[-1]

    assert evaluate_unless(task, model, lambda: False) == task.evaluate(model)
    assert evaluate_unless(task, model, is_to_stop) is None
    assert asked == [False, True], "eleven samples are two batches"


def test_a_few_steps_learn_the_text(task: CausalLM) -> None:
    torch.manual_seed(0)
    model = task.build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    before = task.evaluate(model).loss
    for step in range(40):
        optimizer.zero_grad()
        task.loss(model, task.batch(tuple(range(step * 4, step * 4 + 16))).tensors).backward()
        optimizer.step()
    assert task.evaluate(model).loss < before - 2


def test_padding_takes_no_gradient_from_the_end_of_text(folder: Path, tokenizer_json: bytes) -> None:
    task = make(section(LLAMA), folder, tokenizer_json)
    model = task.build_model()
    ids = torch.zeros(1, 16, dtype=torch.int64)
    ids[0, 8:] = 5
    task.loss(model, {"input_ids": ids}).backward()
    gradient = model.get_input_embeddings().weight.grad
    assert gradient is not None
    assert gradient[0].abs().sum() > 0


@pytest.mark.parametrize(("fields", "message"), [
    ({"model_type": "gtp2"}, "'gtp2' is not known to transformers .*did you mean"),
    ({"model_type": "t5"}, "'t5' has no causal language model"),
    (GPT2 | {"n_layr": 3}, r"gpt2 does not know: n_layr \(did you mean n_layer\?\)"),
    (GPT2 | {"dtype": "bfloat16"}, r"dtype \(is set by collab\)"),
    (GPT2 | {"n_embd": "big"}, "n_embd.*expected int"),
    (GPT2 | {"n_embd": 15}, "divisible"),
    (GPT2 | {"activation_function": "golu"}, "golu"),
    (GPT2 | {"n_positions": 15}, "n_positions is 15, but task.sequence_length is 16"),
    (GPT2 | {"vocab_size": 5}, "vocab_size is 5, but the tokenizer has"),
])
def test_model_that_cannot_be_built_names_the_field(fields: dict[str, object], message: str, folder: Path,
                                                    tokenizer_json: bytes) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        make(section(fields), folder, tokenizer_json)
    assert caught.value.hint


def test_model_is_checked_before_a_tokenizer_is_trained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="n_layr"):
        make_tokenizer(section(GPT2 | {"n_layr": 3}), seed=0, base_dir=tmp_path, cache_dir=tmp_path / "cache",
                       peer_id="organiser")
    assert not (tmp_path / "cache").exists()


def test_fields_by_their_general_name_and_positions_of_ones_own_are_taken(folder: Path, tokenizer_json: bytes) -> None:
    fields = {"model_type": "gpt2", "num_hidden_layers": 2, "hidden_size": 8, "n_head": 2, "n_positions": 40}
    model = make(section(fields), folder, tokenizer_json).build_model()
    assert (model.config.n_layer, model.config.n_embd, model.config.n_positions) == (2, 8, 40)
    assert make(section(), folder, tokenizer_json).build_model().config.n_positions == 16


def test_tokenizer_of_the_organiser_is_loaded_from_its_path(tokenizer_json: bytes, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_bytes(tokenizer_json)
    chosen = section(tokenizer="mine.json")
    assert make_tokenizer(chosen, seed=0, base_dir=tmp_path, cache_dir=tmp_path / "cache",
                          peer_id="organiser") == tokenizer_json
    with pytest.raises(DataError, match=r"cannot read task.tokenizer .*other\.json"):
        make_tokenizer(section(tokenizer="other.json"), seed=0, base_dir=tmp_path, cache_dir=tmp_path, peer_id="a")


def test_bytes_that_are_no_tokenizer_are_a_data_error(folder: Path) -> None:
    for content in (b"\xff\xfe", b"[]"):
        with pytest.raises(DataError, match=r"no tokenizer\.json"):
            make(section(), folder, content)
