"""The run file that `collab-peer init` writes: valid, complete, and true about the defaults it names."""

import re
from dataclasses import dataclass, field
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
import yaml
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from collab.config import (
    Diloco,
    Dts,
    FilesData,
    ForeignStrategy,
    ForeignTask,
    HubData,
    ImageClassificationTask,
    Run,
    Solo,
    VcAsgd,
    parse_run,
)
from peers.run_file import template

FIELD = re.compile(r"^(?P<indent> *)(?P<off># )?(?P<more> *)(?P<name>[a-z_0-9]+):(?P<rest>.*)$")


@dataclass
class Line:
    """One field of the file, set or switched off."""

    value: str
    note: str
    is_set: bool


@dataclass
class Block:
    """A map of the file, set or switched off, and the model that describes it."""

    indent: int
    annotation: Any
    lines: dict[str, Line] = field(default_factory=dict)

    @property
    def model(self) -> type[BaseModel] | None:
        candidates = models_in(self.annotation)
        if len(candidates) == 1:
            return candidates[0]
        return next((candidate for candidate in candidates if self._has_tag_of(candidate)), None)

    def _has_tag_of(self, candidate: type[BaseModel]) -> bool:
        tags = [name for name, info in candidate.model_fields.items() if is_tag(info.annotation)]
        return any(self.lines[tag].value in get_args(candidate.model_fields[tag].annotation) for tag in tags)

    def values(self) -> dict[str, Any]:
        return {name: yaml.safe_load(line.value) for name, line in self.lines.items() if line.value}


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Models that a field may hold, through Annotated and unions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Annotated, Union, UnionType):
        return [model for part in get_args(annotation) for model in models_in(part)]
    return []


def reachable(model: type[BaseModel]) -> set[type[BaseModel]]:
    found = {model}
    for info in model.model_fields.values():
        for inner in models_in(info.annotation):
            found |= reachable(inner)
    return found


def blocks_of(text: str) -> list[Block]:
    """All maps of a run file, as if every switched-off field were set."""
    root = Block(indent=-1, annotation=Run)
    finished, open_blocks = [root], [root]
    for line in text.splitlines():
        match = FIELD.match(line)
        if match is None:
            continue
        indent = len(match["indent"]) + len(match["more"])
        while open_blocks[-1].indent >= indent:
            open_blocks.pop()
        value, _, note = match["rest"].partition("#")
        parent = open_blocks[-1]
        parent.lines[match["name"]] = Line(value.strip(), note.strip(), match["off"] is None)
        if not value.strip():
            fields = parent.model.model_fields if parent.model else {}
            name = match["name"]
            block = Block(indent=indent, annotation=fields[name].annotation if name in fields else None)
            finished.append(block)
            open_blocks.append(block)
    return finished


def wrong_defaults(text: str) -> list[str]:
    """Fields whose stated default is missing or is not the model's."""
    wrong = []
    for block in blocks_of(text):
        if block.model is None:
            continue
        for name, line in block.lines.items():
            info = block.model.model_fields[name]
            if models_in(info.annotation) or is_tag(info.annotation):
                continue
            if info.default is PydanticUndefined:
                expected_note = line.note == "required"
            else:
                stated = line.note.removeprefix("default: ") if line.is_set else line.value
                default = list(info.default) if isinstance(info.default, tuple) else info.default
                expected_note = bool(stated) and yaml.safe_load(stated) == default
            if not expected_note:
                wrong.append(f"{block.model.__name__}.{name}")
    return wrong


def is_tag(annotation: Any) -> bool:
    return get_origin(annotation) is Literal and len(get_args(annotation)) == 1


def test_template_is_a_valid_run_with_the_given_name() -> None:
    run = parse_run(template("my-run"), origin="template")
    assert run.run_id == "my-run"
    assert run.task.name == "causal_lm"
    assert run.task.model["model_type"] == "gpt2"
    assert run.strategy.target_batch_size == 128
    assert run.until_epoch == run.schedule.total_epochs


@pytest.mark.parametrize("run_id", ["123", "null", "yes", "1e5", "0x10", "2026-01-01"])
def test_a_name_that_yaml_would_read_as_something_else_stays_text(run_id: str) -> None:
    assert yaml.safe_load(template(run_id))["run_id"] == run_id


@pytest.mark.parametrize("run_id", ['x"\nseed: 7', "a: b", "x # y", "@RUN_ID@"])
def test_a_name_cannot_change_another_field(run_id: str) -> None:
    content = yaml.safe_load(template(run_id))
    assert content.pop("run_id") == run_id
    expected = yaml.safe_load(template("my-run"))
    expected.pop("run_id")
    assert content == expected


def test_every_field_of_every_model_of_a_run_is_in_the_template() -> None:
    documented: dict[type[BaseModel], set[str]] = {model: set() for model in reachable(Run)}
    for block in blocks_of(template("my-run")):
        if block.model is not None:
            documented[block.model] |= set(block.lines)
    assert {model: names ^ set(model.model_fields) for model, names in documented.items()} == {
        model: set() for model in documented
    }


def test_every_default_that_the_template_states_is_the_models_own() -> None:
    assert wrong_defaults(template("my-run")) == []


@pytest.mark.parametrize(
    ("line", "changed", "wrong"),
    [
        ("keep: 3  # default: 3", "keep: 3  # default: 4", "Checkpoints.keep"),
        ("keep: 3  # default: 3", "keep: 3", "Checkpoints.keep"),
        ("# momentum: 0.0", "# momentum: 0.9", "Optimizer.momentum"),
        ("#   text_field: text", "#   text_field: body", "FilesData.text_field"),
        ("dataset: owner/name  # required", "dataset: owner/name", "HubData.dataset"),
    ],
)
def test_a_false_default_in_the_template_would_be_found(line: str, changed: str, wrong: str) -> None:
    assert line in template("my-run")
    assert wrong in wrong_defaults(template("my-run").replace(line, changed))


def test_every_explained_alternative_is_itself_valid() -> None:
    switched_off = {type(model) for model in alternatives()}
    foreign = {ForeignTask, ForeignStrategy}
    assert switched_off == {FilesData, HubData, ImageClassificationTask, Dts, Diloco, VcAsgd, Solo} | foreign


def alternatives() -> list[BaseModel]:
    return [
        block.model.model_validate(block.values())
        for block in blocks_of(template("my-run"))
        if block.model is not None and not any(line.is_set for line in block.lines.values())
    ]


def test_a_switched_off_field_is_valid_yaml_once_its_mark_is_taken_away() -> None:
    text = template("my-run")
    for switched_off in ("  # epsilon: ", "  # momentum: ", "  # tokenizer: "):
        assert switched_off in text
        text = text.replace(switched_off, switched_off.replace("# ", ""))
    assert parse_run(text, origin="edited") == parse_run(template("my-run"), origin="template")
