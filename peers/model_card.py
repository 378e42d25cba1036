"""The README of a model on the Hub, and its pictures. Pure: text from facts.

Names come from peers, and what a run is for from its organiser; both are text, never markup.
"""

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import yaml

from collab.config import BuiltinData, CausalLMTask, FilesData, HubData, ImageClassificationTask, Run
from collab.simulation.curves import Curve, draw
from peers.credit import Credit
from peers.licences import licence_metadata

MARKUP = frozenset("\\`*_{}[]()#+-.!|~@:=")
"""Characters that may mean something in Markdown; the page shows them as they are."""
MOST_NAMES = 100
MOST_POINTS = 400
"""Of each line of the picture."""
PICTURE, SPEED_PICTURE, RATE_PICTURE = "loss.svg", "samples_per_s.svg", "learning_rate.svg"
RUN_YAML = "run.yaml"
WORDS = {
    "dedloc": "all peers' gradients add up to one large batch, then everybody takes the same step (DeDLOC)",
    "dts": "every peer takes steps of its own, and what they come to is averaged beside them (DTS)",
    "diloco": "every peer takes many steps of its own, then all take one outer step (DiLoCo)",
    "vc_asgd": "peers train copies of the parameters on units of the data, mixed in as they come (VC-ASGD)",
    "solo": "every peer trains alone",
}


@dataclass(frozen=True, slots=True)
class Point:
    """The run at one epoch."""

    epoch: int
    loss: float
    """On what was trained."""
    eval_epoch: int = -1
    eval_loss: float = math.nan
    samples_per_s: float = math.nan
    """Of all trainers."""
    learning_rate: float = math.nan
    """Of the next step."""


@dataclass(frozen=True, slots=True)
class Amended:
    """What the organiser has changed since the run began."""

    value: float
    since_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a card tells."""

    place: str
    run: Run
    epoch: int
    eval_loss: float
    num_parameters: int
    """0: unknown."""
    points: Sequence[Point] = ()
    given: Sequence[Credit] = ()
    num_others: int = 0
    """Machines that are in no credit of ``given``,"""
    samples_of_others: int = 0
    """and what they have given together."""
    learning_rate: Amended | None = None
    """In place of the run file's; None: that holds."""
    target_batch_size: Amended | None = None
    """Likewise."""
    can_join: bool = False
    """Whether the run can be found by the repository's name."""


def plain(text: str) -> str:
    """A name of somebody's, as Markdown shows it letter by letter."""
    shown = "".join(c if c.isprintable() else " " for c in text)
    return "".join(f"\\{c}" if c in MARKUP else html.escape(c) for c in shown)


def picture(points: Sequence[Point]) -> bytes:
    """Loss over epochs, as SVG."""
    trained = tuple((float(p.epoch), p.loss) for p in points)
    held_out = tuple((float(e), loss) for e, loss in sorted({(p.eval_epoch, p.eval_loss) for p in points if _told(p)}))
    curves = [Curve(name="training", points=_thin(trained)), Curve(name="held-out", points=_thin(held_out))]
    return draw(curves, title="Loss", across="epoch", up="loss").encode()


def pictures(points: Sequence[Point]) -> dict[str, bytes]:
    """All that a card shows, by name: the loss, and over the same epochs what else is known."""
    drawn = {PICTURE: picture(points)}
    if speeds := _known((point.epoch, point.samples_per_s) for point in points):
        drawn[SPEED_PICTURE] = _one_line(speeds, "Speed", "samples a second")
    if rates := _known((point.epoch, point.learning_rate) for point in points):
        drawn[RATE_PICTURE] = _one_line(rates, "Learning rate", "learning rate")
    return drawn


def _known(values: Iterable[tuple[int, float]]) -> tuple[tuple[float, float], ...]:
    return tuple((float(epoch), value) for epoch, value in values if math.isfinite(value))


def _one_line(points: tuple[tuple[float, float], ...], title: str, up: str) -> bytes:
    return draw([Curve(name=up, points=_thin(points))], title=title, across="epoch", up=up).encode()


def model_card(facts: Facts) -> bytes:
    """README.md."""
    about = (_metadata(facts), _about(facts), _organiser(facts.run))
    sections = [*about, _training(facts), _loading(facts), _joining(facts), _thanks(facts)]
    return "\n".join(section for section in sections if section).encode()


def samples_of(given: Sequence[Credit]) -> int:
    """Of all together."""
    return sum(credit.total for credit in given)


def _told(point: Point) -> bool:
    return point.eval_epoch >= 0 and math.isfinite(point.eval_loss)


def _thin(points: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    """So few that the picture stays small; the last one stays."""
    if len(points) <= MOST_POINTS:
        return points
    step = -(-len(points) // MOST_POINTS)
    return (*points[:-1:step], points[-1])


def _metadata(facts: Facts) -> str:
    run = facts.run
    content: dict[str, object] = {"tags": ["collab", "decentralized-training", f"strategy-{run.strategy.name}"]}
    if isinstance(run.task, CausalLMTask):
        content |= {"library_name": "transformers", "pipeline_tag": "text-generation"}
        if isinstance(run.task.data, HubData):
            content["datasets"] = [run.task.data.dataset]
    content |= licence_metadata(run.about.model_license)
    return f"---\n{yaml.safe_dump(content, sort_keys=True)}---\n"


def _about(facts: Facts) -> str:
    size = f", {facts.num_parameters / 1e6:.1f} M parameters" if facts.num_parameters else ""
    loss = f", loss on held-out data {facts.eval_loss:.4f}" if math.isfinite(facts.eval_loss) else ""
    return (
        f"# {plain(facts.run.run_id)}\n\n"
        f"{_what(facts.run)}{size}, trained by people on their own machines, together, over the internet.\n"
        f"This is the state after {facts.epoch} global steps{loss}. Every commit of this repository is one whole "
        "checkpoint.\n\n"
        f"![Loss over epochs]({PICTURE})\n"
    )


def _organiser(run: Run) -> str:
    """What volunteers have read before they took part."""
    about = run.about
    rows = [
        ("What it is for", about.purpose),
        ("Licence of the model", about.model_license),
        ("Licence of the data", about.data_license),
        ("Questions go to", about.contact),
    ]
    table = "\n".join(f"| {name} | {plain(told.strip())} |" for name, told in rows if told.strip())
    return f"## Its organiser says\n\n| | |\n|---|---|\n{table}\n" if table else ""


def _what(run: Run) -> str:
    if isinstance(run.task, CausalLMTask):
        return f"A language model ({plain(str(run.task.model.get('model_type', '')))})"
    return "A classifier of images" if isinstance(run.task, ImageClassificationTask) else "A model"


def _data(run: Run) -> str:
    data = getattr(run.task, "data", None)
    if isinstance(data, HubData):
        revision = f", revision {plain(data.revision)}" if data.revision else ""
        return f"the dataset {plain(data.dataset)} of the Hub{revision}"
    if isinstance(data, BuiltinData):
        return "the source code of Python's standard library"
    if isinstance(data, FilesData):
        return "files that each peer has on its own machine"
    return "scikit-learn's digits" if isinstance(run.task, ImageClassificationTask) else "as its task defines"


def _training(facts: Facts) -> str:
    run, samples = facts.run, samples_of(facts.given) + facts.samples_of_others
    optimizer, strategy = run.optimizer, run.strategy
    batch = _in_force(strategy.target_batch_size, facts.target_batch_size, ",.0f")
    rate = _in_force(optimizer.learning_rate, facts.learning_rate, "g")
    rows = [
        ("Data", _data(run)),
        ("Strategy", WORDS.get(strategy.name, "of its own")),
        ("Samples of one global step", batch),
        ("Optimiser", f"{optimizer.name}, learning rate {rate}, schedule {run.schedule.name}"),
        ("How vectors travel", f"{run.averaging.compression}, reduced by {run.averaging.reduction}"),
    ]
    rows += [("Samples trained so far, as peers tell", f"{samples:,}")] if samples else []
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    is_amended = facts.learning_rate is not None or facts.target_batch_size is not None
    since = " What its organiser has changed since then is above." if is_amended else ""
    file = f"The whole run file, as the run began, is [{RUN_YAML}]({RUN_YAML}).{since}"
    return f"## How it is trained\n\n| | |\n|---|---|\n{table}\n\n{file}\n{_shown(facts.points)}"


def _in_force(begun_with: float, amended: Amended | None, how: str) -> str:
    """As it is now, and as it was."""
    if amended is None:
        return f"{begun_with:{how}}"
    return f"{amended.value:{how}} since epoch {amended.since_epoch} ({begun_with:{how}} at the beginning)"


def _shown(points: Sequence[Point]) -> str:
    """The pictures beside that of the loss, as far as there are such."""
    names = {SPEED_PICTURE: "Samples a second over epochs", RATE_PICTURE: "Learning rate over epochs"}
    there = pictures(points)
    return "".join(f"\n![{text}]({name})\n" for name, text in names.items() if name in there)


def _loading(facts: Facts) -> str:
    if not isinstance(facts.run.task, CausalLMTask):
        return f"## Load it\n\n```bash\ncollab-peer export {facts.place} DIRECTORY\n```\n"
    return (
        "## Load it\n\n```python\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        f'model = AutoModelForCausalLM.from_pretrained("{facts.place}")\n'
        f'tokenizer = AutoTokenizer.from_pretrained("{facts.place}")\n```\n'
    )


def _joining(facts: Facts) -> str:
    how = f"```bash\ncollab-peer join {facts.place}\n```\n" if facts.can_join else "Ask its organiser for an invite.\n"
    return (
        f"## Join the run\n\n{how}\n"
        "To go on from this state with a run of your own: "
        f"`collab-peer backbone DIR --from {facts.place} --new-owner`, with {RUN_YAML} in `DIR`.\n"
    )


def _thanks(facts: Facts) -> str:
    named: dict[str, int] = {}
    for credit in facts.given:
        if credit.name:
            named[credit.name] = named.get(credit.name, 0) + credit.total
    others = sum(1 for credit in facts.given if not credit.name) + facts.num_others
    if not facts.given and not others:
        return ""
    best = sorted(named.items(), key=lambda item: (-item[1], item[0]))
    lines = [f"- {plain(name)}: {samples:,} samples" for name, samples in best[:MOST_NAMES]]
    more = others + max(len(best) - MOST_NAMES, 0)
    lines += [f"- {more} more {'machine' if more == 1 else 'machines'}"] if more else []
    text = "\n".join(lines)
    about = "Machines that trained it. Names are of those who agreed to be named, figures as they tell."
    return f"## Thanks\n\n{about}\n\n{text}\n"
