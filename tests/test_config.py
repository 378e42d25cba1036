"""The run file: what is refused, in which words, and what makes two runs different."""

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from collab.config import About, CausalLMTask, Dts, FilesData, Run, fingerprint, load_run, parse_run
from collab.errors import ConfigError

VALID: dict[str, Any] = {
    "run_id": "my-run",
    "task": {"name": "causal_lm", "model": {"model_type": "gpt2", "n_layer": 2}},
    "optimizer": {"name": "adamw", "learning_rate": 0.002, "betas": [0.9, 0.95]},
    "schedule": {"name": "linear", "warmup_epochs": 5, "total_epochs": 50},
    "strategy": {"name": "dedloc", "target_batch_size": 128},
}

EVERYTHING: dict[str, Any] = Run.model_validate(VALID).model_dump(mode="json")
"""Every field of a run, with its value."""


def changed(place: str, value: Any, *, content: dict[str, Any] = VALID) -> dict[str, Any]:
    """A copy of ``content`` with another value at ``a.b.c``."""
    content = copy.deepcopy(content)
    *path, last = place.split(".")
    section = content
    for name in path:
        section = section.setdefault(name, {})
    section[last] = value
    return content


def problem_with(content: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_run(yaml.safe_dump(content), origin="run.yaml")
    return str(caught.value)


def places_of(content: dict[str, Any]) -> list[str]:
    """Names of all values, as ``a.b.c``."""
    places = []
    for name, value in content.items():
        places += [f"{name}.{inner}" for inner in places_of(value)] if isinstance(value, dict) else [name]
    return places


def another(value: Any) -> Any:
    """A value that differs from ``value``, of a type that its field takes."""
    match value:
        case str():
            return {"linear": "cosine", "adamw": "sgd", "float16": "none"}.get(value, value + "x")
        case list():
            return [value[0] / 2, *value[1:]]
        case float():
            return value / 2 or 0.5
        case int():
            return value + 1
        case _:
            return None


def test_a_short_file_is_valid_and_takes_the_defaults() -> None:
    run = parse_run(yaml.safe_dump(VALID), origin="run.yaml")
    assert isinstance(run.task, CausalLMTask)
    assert run.task.data.source == "builtin"
    assert run.averaging.compression == "auto"
    assert (run.averaging.reduction, run.averaging.max_share) == ("clipped_mean", 1.0)
    assert run.averaging.worker_momentum == 0.0
    assert run.until_epoch is None


@pytest.mark.parametrize(
    ("place", "misspelt"),
    [
        ("microbatchsize", "microbatchsize"),
        ("optimizer.learning_rat", "optimizer.learning_rat"),
        ("task.data.maxmegabytes", "data.builtin.maxmegabytes"),
        ("strategy.target_batch", "strategy.dedloc.target_batch"),
        ("checkpoints.every", "checkpoints.every"),
    ],
)
def test_an_unknown_or_misspelt_field_is_named_with_its_place(place: str, misspelt: str) -> None:
    content = changed(place, 1)
    if place.startswith("task.data"):
        content["task"]["data"]["source"] = "builtin"
    message = problem_with(content)
    assert f"{misspelt}: unknown field" in message
    assert "run.yaml" in message
    assert "collab-peer init" in message


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("seed", "many"),
        ("microbatch_size", 2.5),
        ("microbatch_size", [8]),
        ("run_id", 7),
        ("optimizer", "adamw"),
        ("optimizer.learning_rate", {"peak": 0.1}),
        ("task.model", "gpt2"),
        ("task.sequence_length", "long"),
        ("task.tokenizer", 5),
    ],
)
def test_a_value_of_a_wrong_type_is_shown_beside_its_place(place: str, value: Any) -> None:
    message = problem_with(changed(place, value))
    assert f"{place.rpartition('.')[2]}" in message
    assert f"got {value!r}" in message


@pytest.mark.parametrize(
    "place", ["microbatch_size", "seed", "until_epoch", "optimizer.learning_rate", "checkpoints.keep"]
)
def test_yes_and_no_are_not_numbers(place: str) -> None:
    assert place in problem_with(changed(place, True))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("run_id", "My Run"),
        ("run_id", "ab"),
        ("run_id", "a" * 41),
        ("run_id", "ends-with-newline\n"),
        ("seed", -1),
        ("seed", 2**32),
        ("microbatch_size", 0),
        ("until_epoch", 0),
        ("task.vocab_size", 256),
        ("task.sequence_length", 7),
        ("task.eval_samples", 0),
        ("optimizer.name", "adma"),
        ("optimizer.learning_rate", 0),
        ("optimizer.learning_rate", float("nan")),
        ("optimizer.learning_rate", float("inf")),
        ("optimizer.weight_decay", -0.1),
        ("optimizer.betas", [0.9, 1.0]),
        ("optimizer.betas", [-0.1, 0.9]),
        ("optimizer.momentum", 1.0),
        ("schedule.final_factor", 1.5),
        ("schedule.warmup_epochs", -1),
        ("strategy.name", "dedlock"),
        ("strategy.target_batch_size", 0),
        ("strategy.max_gradient_norm", 0),
        ("averaging.compression", "int3"),
        ("averaging.reduction", "krum"),
        ("averaging.max_share", 0),
        ("averaging.max_share", 1.01),
        ("averaging.max_share", True),
        ("averaging.worker_momentum", -0.1),
        ("averaging.worker_momentum", 1.0),
        ("averaging.worker_momentum", True),
        ("task", {"name": "image_classification", "hidden_sizes": [0]}),
        ("checkpoints.every_epochs", 0),
        ("checkpoints.keep", 0),
    ],
)
def test_an_impossible_value_is_refused_with_its_place(place: str, value: Any) -> None:
    assert place.partition(".")[0] in problem_with(changed(place, value))


@pytest.mark.parametrize("reduction", ["median", "trimmed_mean"])
def test_sparse_vectors_and_a_rule_that_drops_what_few_send_are_refused_together(reduction: str) -> None:
    content = changed("averaging", {"compression": "sparse", "reduction": reduction})
    message = problem_with(content)
    assert "compression sparse" in message
    assert "choose reduction mean, clipped_mean or centered_clip" in message


def test_a_missing_field_is_named() -> None:
    message = problem_with({"run_id": "my-run"})
    assert "task: Field required" in message
    assert "got" not in message


def test_a_schedule_that_never_ends_or_ends_in_its_warm_up_is_refused() -> None:
    assert "needs total_epochs" in problem_with(changed("schedule", {"name": "cosine"}))
    too_short = {"name": "linear", "warmup_epochs": 50, "total_epochs": 50}
    assert "larger than warmup_epochs" in problem_with(changed("schedule", too_short))


@pytest.mark.parametrize("model", [{}, {"n_layer": 2}, {"model_type": 2}])
def test_a_model_without_its_type_is_refused_with_examples(model: dict[str, Any]) -> None:
    assert "model_type" in problem_with(changed("task.model", model))


@pytest.mark.parametrize("value", ["2026-01-01", "!!binary gIGC", "!!set {a, b}", ".nan", "{1: {2: .inf}}"])
def test_a_model_field_that_cannot_travel_as_json_is_refused(value: str) -> None:
    text = f"run_id: my-run\ntask: {{name: causal_lm, model: {{model_type: gpt2, x: {value}}}}}\n"
    with pytest.raises(ConfigError, match="no text, number, list or map"):
        parse_run(text, origin="run.yaml")


def test_all_problems_of_a_file_are_listed_at_once() -> None:
    content = changed("optimizer.learning_rate", -1)
    content = changed("sedd", 1, content=content)
    content = changed("checkpoints.keep", "few", content=content)
    content = changed("strategy.target_batch_size", 0, content=content)
    message = problem_with(content)
    for place in ("optimizer.learning_rate", "sedd", "checkpoints.keep", "strategy.dedloc.target_batch_size"):
        assert f"  {place}: " in message


@pytest.mark.parametrize(
    "text",
    ["run_id: [", "a: b: c", "\tx: 1", "task: !!python/object/apply:os.system ['true']", "a: *nobody", "\x00", "%"],
)
def test_text_that_is_not_plain_yaml_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"run\.yaml is not YAML"):
        parse_run(text, origin="run.yaml")


@pytest.mark.parametrize("text", ["", "# nothing\n", "just text", "- run_id: my-run", "42"])
def test_yaml_that_is_no_map_of_fields_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="should be a map of fields"):
        parse_run(text, origin="run.yaml")


@pytest.mark.parametrize("text", ["1: 2\nrun_id: my-run\n", "? [a]\n: 1\n", "? {a: 1}\n: 2\n", "2026-99-99: 1\n"])
def test_keys_that_are_no_words_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_run(text, origin="run.yaml")


@pytest.mark.parametrize("text", ["[" * 20_000, "x: " + "{a: " * 20_000, "started: 2026-99-99"])
def test_yaml_made_to_break_the_reader_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_run(text, origin="run.yaml")


def test_aliases_are_refused_before_they_can_grow() -> None:
    doubling = "".join(f"x{level}: &a{level} [{f'*a{level - 1}, ' * 10}]\n" for level in range(1, 12))
    with pytest.raises(ConfigError, match="alias"):
        parse_run(f"x0: &a0 [lol]\n{doubling}", origin="run.yaml")


def test_a_repeated_field_is_refused_instead_of_quietly_replaced() -> None:
    with pytest.raises(ConfigError, match="seed"):
        parse_run(yaml.safe_dump(VALID) + "seed: 1\nseed: 2\n", origin="run.yaml")


def test_a_file_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"run_id: caf\xe9\n")
    for path in (tmp_path / "missing.yaml", tmp_path, tmp_path / "latin.yaml"):
        with pytest.raises(ConfigError, match="cannot read the run file") as caught:
            load_run(path)
        assert str(path) in caught.value.message


def test_a_loaded_file_equals_its_text(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(VALID))
    assert load_run(tmp_path / "run.yaml") == Run.model_validate(VALID)


def test_a_run_cannot_be_changed_after_it_was_checked() -> None:
    run = Run.model_validate(VALID)
    with pytest.raises(ValueError, match="frozen"):
        run.seed = 1


# -- fingerprint -----------------------------------------------------------------------------------------------------


def reversed_order(content: dict[str, Any]) -> dict[str, Any]:
    return {
        name: reversed_order(value) if isinstance(value, dict) else value for name, value in reversed(content.items())
    }


def test_comments_order_and_spelt_out_defaults_do_not_change_the_fingerprint() -> None:
    plain = yaml.safe_dump(VALID)
    texts = [
        f"# a comment\n{plain}\n# another\n",
        yaml.safe_dump(reversed_order(VALID), sort_keys=False),
        yaml.safe_dump(EVERYTHING),
        plain.replace("0.002", "2.0e-3"),
    ]
    expected = fingerprint(parse_run(plain, origin="run.yaml"), {})
    assert {fingerprint(parse_run(text, origin="run.yaml"), {}) for text in texts} == {expected}
    assert len(expected) == 64
    assert int(expected, 16) >= 0


def test_where_checkpoints_are_published_is_the_organisers_business_and_no_part_of_the_fingerprint() -> None:
    plain = Run.model_validate(VALID)
    named = Run.model_validate({**VALID, "hub_repo": "org/model"})
    assert named.hub_repo == "org/model"
    assert fingerprint(named, {}) == fingerprint(plain, {})


@pytest.mark.parametrize("name", ["model", "https://huggingface.co/org/model", "org/model@main", "a/b/c", "../x"])
def test_what_is_no_repository_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="hub_repo"):
        parse_run(yaml.safe_dump({**VALID, "hub_repo": name}), origin="run.yaml")


ONE_VALUE_ONLY = ("task.name", "task.data.source", "strategy.name", "until_accuracy", "hub_repo")
"""Beside the other fields of their sections, or with this task; or nobody else's business."""


@pytest.mark.parametrize("place", [place for place in places_of(EVERYTHING) if place not in ONE_VALUE_ONLY])
def test_every_value_of_the_run_changes_the_fingerprint(place: str) -> None:
    value: Any = EVERYTHING
    for name in place.split("."):
        value = value[name]
    special = {"averaging.compression": "exact", "averaging.reduction": "median"}
    special |= {"access": "invite_only", "when_alone": "wait"}
    special |= {"until_epoch": 9, "until_loss": 2.5, "task.tokenizer": "t.json", "task.data.placement": "local"}
    other = changed(place, special.get(place, another(value)), content=EVERYTHING)
    assert fingerprint(Run.model_validate(other), {}) != fingerprint(Run.model_validate(EVERYTHING), {})


def test_what_volunteers_are_told_is_agreed_on_and_saying_nothing_is_as_before_there_was_such_a_thing() -> None:
    base = Run.model_validate(VALID)
    told = [Run.model_validate({**VALID, "about": {name: "a word"}}) for name in About.model_fields]
    assert len({fingerprint(run, {}) for run in (base, *told)}) == 1 + len(told)
    agreed = base.model_dump(mode="json", exclude={"hub_repo", "about"})
    canonical = json.dumps({"run": agreed, "assets": {}}, sort_keys=True, separators=(",", ":"))
    assert fingerprint(base, {}) == hashlib.sha256(canonical.encode()).hexdigest()


@pytest.mark.parametrize("word", ["two\nlines", "\x1b[2J", "x" * 301])
def test_what_volunteers_are_told_is_one_short_line(word: str) -> None:
    assert "about.purpose" in problem_with({**VALID, "about": {"purpose": word}})


def test_another_data_source_task_or_strategy_changes_the_fingerprint() -> None:
    base = Run.model_validate(VALID)
    files = base.task.model_copy(update={"data": FilesData(source="files", path="texts")})
    digits = Run.model_validate(changed("task", {"name": "image_classification"}))
    good = digits.model_copy(update={"until_accuracy": 0.9})
    strategies = [Run.model_validate(changed("strategy", {"name": name})) for name in ("dedloc", "diloco", "solo")]
    others = [base, base.model_copy(update={"task": files}), digits, good, *strategies]
    assert len({fingerprint(run, {}) for run in others}) == len(others)


def test_a_language_model_is_not_right_or_wrong() -> None:
    assert "set until_loss instead" in problem_with(changed("until_accuracy", 0.9))


def test_the_fingerprint_covers_the_files_that_travel_with_the_run() -> None:
    run = Run.model_validate(VALID)
    assets = [{}, {"tokenizer.json": "aa"}, {"tokenizer.json": "ab"}, {"merges.txt": "aa"}]
    assert len({fingerprint(run, files) for files in assets}) == 4
    assert fingerprint(run, {"a": "1", "b": "2"}) == fingerprint(run, {"b": "2", "a": "1"})


def test_several_windows_in_a_round_are_averaged_by_their_mean() -> None:
    many = changed("strategy", {"name": "dts", "windows": 64})
    assert "set averaging.reduction: mean" in problem_with(many)
    assert Run.model_validate({**many, "averaging": {"reduction": "mean"}}).strategy == Dts(name="dts", windows=64)
    for windows in (0, 257):
        assert "windows" in problem_with(changed("strategy", {"name": "dts", "windows": windows}))


@pytest.mark.parametrize("compression", ["sparse", "sparse_both"])
def test_what_leaves_most_of_a_window_to_later_rounds_is_refused_with_several_in_a_round(compression: str) -> None:
    averaging = {"reduction": "mean", "compression": compression}
    many = {**changed("strategy", {"name": "dts", "windows": 64}), "averaging": averaging}
    assert "set another compression, or windows: 1" in problem_with(many)
    one = {**changed("strategy", {"name": "dts"}), "averaging": averaging}
    assert Run.model_validate(one).averaging.compression == compression


@pytest.mark.parametrize("compression", ["sparse", "sparse_both"])
@pytest.mark.parametrize("reduction", ["median", "trimmed_mean"])
def test_rules_that_take_what_few_send_for_a_lie_are_refused_where_few_send_an_element(
    compression: str, reduction: str
) -> None:
    problem = problem_with(changed("averaging", {"compression": compression, "reduction": reduction}))
    assert f"compression {compression}: {reduction} takes what few peers send for a lie" in problem
    for allowed in ("mean", "clipped_mean", "centered_clip"):
        section = changed("averaging", {"compression": compression, "reduction": allowed})
        assert Run.model_validate(section).averaging.reduction == allowed


@pytest.mark.parametrize(
    "data", [{"source": "hub", "dataset": "org/text"}, {"source": "files", "path": "x.txt", "placement": "local"}]
)
def test_units_of_work_mean_the_same_samples_on_every_machine(data: dict[str, str]) -> None:
    units = {**changed("task.data", data), "strategy": {"name": "vc_asgd"}}
    assert "a unit of work has to mean the same samples on every machine" in problem_with(units)
    assert Run.model_validate({**units, "strategy": {"name": "diloco"}}).strategy.name == "diloco"
