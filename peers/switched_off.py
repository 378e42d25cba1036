"""Whether a backbone can do without what it is told not to do."""

from dataclasses import dataclass

from collab.config import Strategy, VcAsgd
from collab.errors import ConfigError
from collab.swarm.duties import PUBLISHING, Duty, duties_in_words
from peers.dashboard.address import NOWHERE
from peers.screen import Style
from peers.telling import say


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What else was said of a backbone, as far as its duties matter for it."""

    strategy: Strategy
    store: str = ""
    hub: str = ""
    """Where on the Hub checkpoints are to be published; empty: nowhere."""
    begin_with: str = ""
    dashboard: str = ""
    track: str = "none"


def check_duties(off: frozenset[Duty], wishes: Wishes) -> None:
    """
    Raises:
        ConfigError: they contradict each other, or the run does not go on without what is switched off.
    """
    for duties, is_wished, needs, hint in _rules(wishes):
        if is_wished and (lacking := off & duties):
            text = f"--without {duties_in_words(lacking)}: {needs}"
            raise ConfigError(text, hint=hint)
    if Duty.BOOTSTRAP in off and Duty.RELAY not in off:
        raise ConfigError(
            "--without bootstrap: whoever is relayed comes to a relay through the invite",
            hint="switch relay off as well: --without bootstrap,relay",
        )


def _rules(wishes: Wishes) -> list[tuple[frozenset[Duty], object, str, str]]:
    """Which duties are needed, if something is wished, why, and what to do."""
    has_parameters = isinstance(wishes.strategy, VcAsgd)
    parameters, metrics = frozenset({Duty.PARAMETERS}), frozenset({Duty.METRICS})
    return [
        (
            parameters,
            not has_parameters,
            f"a run with {wishes.strategy.name} has no parameter store",
            f"leave '{Duty.PARAMETERS}' out",
        ),
        (parameters, wishes.store, "--store names a place for them", "leave one of the two out"),
        (
            PUBLISHING,
            has_parameters and wishes.store,
            "whoever hands out units of work makes the run's checkpoints, and gives them to newcomers",
            f"switch '{Duty.PARAMETERS}' off as well, on a backbone beside others",
        ),
        (
            PUBLISHING | metrics,
            wishes.hub,
            "what is published on the Hub is a checkpoint of this disk, with curves and contributors",
            "leave it out, or add --hub-repo none",
        ),
        (frozenset({Duty.CHECKPOINTS}), wishes.begin_with, "--from brings a checkpoint to this disk", "leave one out"),
        (metrics, wishes.dashboard not in ("", NOWHERE), "the dashboard shows them", "leave --dashboard out"),
        (metrics, wishes.track in ("wandb", "trackio"), "--track sends them on", "leave --track out"),
    ]


def announce_duties(off: frozenset[Duty], style: Style) -> None:
    """Tell a person at the start what this backbone does not do."""
    if off:
        say(f"switched off: {duties_in_words(off)}", style)
