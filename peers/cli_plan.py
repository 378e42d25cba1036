"""``collab-peer plan``: what there is to know before a run begins."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collab.fleet_cost import Comparison, Fleet


def plan(
    file: Annotated[
        Path | None, typer.Argument(metavar="[SWARM.yaml]", help="What to forecast: see docs/simulator.md.")
    ] = None,
    suggest: Annotated[
        bool, typer.Option("--suggest", help="Propose strategy, compression, target batch and delay for the swarm.")
    ] = False,
    cost: Annotated[bool, typer.Option("--cost", help="Time and money of a fleet, staying and preemptible.")] = False,
    units: Annotated[int | None, typer.Option(help="Work units of the whole run: shards times passes.")] = None,
    clients: Annotated[int | None, typer.Option(help="Machines that train; a preempted one is replaced.")] = None,
    unit_s: Annotated[float | None, typer.Option(help="Seconds of one unit, from its lease to its push.")] = None,
    preemption: Annotated[float | None, typer.Option(help="Probability that a unit's machine is taken.")] = None,
    lost_s: Annotated[float | None, typer.Option(help="Seconds that a unit loses then: till its lease ends.")] = None,
    price: Annotated[float | None, typer.Option(help="Per hour, of a machine that stays.")] = None,
    preemptible_price: Annotated[float | None, typer.Option(help="Per hour, of a preemptible one.")] = None,
    at_once: Annotated[int, typer.Option(help="Units that a machine trains side by side.")] = 1,
    servers: Annotated[int, typer.Option(help="Parameter servers and backbones, which stay.")] = 0,
    server_price: Annotated[float, typer.Option(help="Per hour, of each.")] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Forecast a described swarm (SWARM.yaml), or the time and cost of a preemptible fleet (--cost)."""
    if cost == (file is not None):
        raise typer.BadParameter("what should be planned? SWARM.yaml: a swarm; --cost: time and money of a fleet")
    if file is not None:
        from peers.forecasting import run_forecast
        from peers.process import run_plain

        return run_plain(lambda: run_forecast(file, with_suggestion=suggest, as_json=as_json))
    from collab.fleet_cost import Fleet, compare

    given = {
        "units": units, "clients": clients, "unit_s": unit_s, "preemption": preemption, "lost_s": lost_s,
        "price": price, "preemptible_price": preemptible_price,
    }  # fmt: skip
    if missing := [f"--{name.replace('_', '-')}" for name, value in given.items() if value is None]:
        raise typer.BadParameter(f"--cost needs {', '.join(missing)}, too")
    known = {name: value for name, value in given.items() if value is not None}
    fleet = Fleet(**known, at_once=at_once, servers=servers, server_price=server_price)  # type: ignore[arg-type]
    try:
        found = compare(fleet)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return typer.echo(_for_programs(fleet, found) if as_json else _for_people(fleet, found))


def _for_programs(fleet: "Fleet", found: "Comparison") -> str:
    fields = {name: value for name, value in asdict(found).items() if not name.startswith("_")}
    savings = {"gross_saving": found.gross_saving, "net_saving": found.net_saving}
    return json.dumps({"fleet": asdict(fleet), **fields, **savings})


def _for_people(fleet: "Fleet", found: "Comparison") -> str:
    lines = [f"{fleet.turns:g} units one after the other at each of {fleet.clients * fleet.at_once} places"]
    for name, kind in (("staying", found.staying), ("preemptible", found.preemptible)):
        lines.append(f"  {name:12} {kind.seconds / 3600:8.2f} h {kind.money:10.2f}")
    spread = f"give or take {found.spread_s / 60:.0f} min at one place"
    lines.append(f"preemptions add {found.extra_s / 60:.0f} min, {spread} (n p/(1-p) t_o;")
    lines.append(f"  {found.extra_once_s / 60:.0f} min if no unit were taken twice: n p t_o)")
    lines.append(f"saved: {found.gross_saving:.0%} of a machine's hour, {found.net_saving:.0%} of what the run costs")
    return "\n".join(lines)


def register(app: typer.Typer) -> None:
    """Add the commands of this page."""
    app.command()(plan)
