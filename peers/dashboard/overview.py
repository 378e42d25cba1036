"""The run as the dashboard shows it, as JSON values: see docs/dashboard.md."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import PurePath
from typing import Any

from collab.config import VcAsgd
from collab.metrics.backbone_events import RolledBack, RoundPlanned, RoundShared
from collab.metrics.names import COUNTERS, EVAL_ACCURACY, EVAL_LOSS
from collab.metrics.records import (
    CheckpointOnHub,
    CheckpointSaved,
    Notice,
    PeerRefused,
    RoundEnded,
    SwarmReport,
)
from collab.swarm.progress import SwarmView
from collab.swarm.records import PeerRecord
from collab.types import Lineage, PeerId, Role
from collab.version import VERSION
from peers.dashboard.link_use import Use, fullest, links_used
from peers.dashboard.plain import finite, short_id, shown
from peers.dashboard.sources import Sources
from peers.dashboard.words import REACHED, Moment, doing, health, why
from peers.progress import ahead_of
from peers.rhythm import Rhythm, between_steps_s
from peers.summary import epoch_of, learning_rate, switched_off

FORMAT = 1
"""Of the JSON; fields are added without a new number."""
MOST_ROUNDS, MOST_NAMES = 10, 16
"""Told of, and in each list of a round, largest first: all of 64 peers would be most of the page's traffic."""
NO_USE: Use = (math.nan, math.nan)
MOST_PEERS = 256


class Overview:
    """Of one backbone. Called in its event loop; each call costs about three milliseconds for 64 peers."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self._names: dict[PeerId, str] = {}
        """Of those who are here, or are told of in what is shown."""
        self._used: dict[str, dict[PeerId, Use]] = {}
        """Links, by round, the newest first."""

    def state(self) -> dict[str, Any]:
        """Everything but the curves."""
        sources = self.sources
        view, now_s = sources.view(), sources.clock.now()
        self._learn_names(view)
        self._used = links_used(sources.recent.newest(RoundEnded)[:MOST_ROUNDS], sources.recent.newest(RoundPlanned))
        consensus = sources.credible.history(view)
        figures, moment = self._figures(view, consensus, now_s)
        return {
            "format": FORMAT,
            "run": self._run(),
            "at_s": now_s,
            "health": asdict(health(moment)),
            "now": figures,
            "figures": {name: finite(value) for name, value in sources.recent.figures.items()},
            "counters": {metric.name: sources.recent.counters[metric.name] for metric in COUNTERS},
            "peers": [self._peer(record, consensus, now_s) for record in _first(view)],
            "rounds": self._rounds(),
            "contributors": self._contributors(view),
            "checkpoints": self._checkpoints(),
            "notices": [
                {
                    "at_s": told["at_s"],
                    "text": shown(told["text"], sources.home),
                    "hint": shown(told["hint"], sources.home),
                    "is_problem": told["is_problem"],
                }
                for told in sources.recent.newest(Notice)
            ],
        }

    def figures_now(self) -> dict[str, Any]:
        """What is under ``now`` in the state."""
        view = self.sources.view()
        return self._figures(view, self.sources.credible.history(view), self.sources.clock.now())[0]

    def peers_by_role_and_state(self) -> Mapping[tuple[str, str], int]:
        """How many peers there are of each kind."""
        return Counter((record.role.value, record.state.value) for record in self.sources.view().records)

    @property
    def _is_one_history(self) -> bool:
        """Whether trainers go on together; else the newest of them says how far the run is."""
        return not isinstance(self.sources.run.strategy, VcAsgd)

    @property
    def _rolled_back_at_s(self) -> float | None:
        told = self.sources.recent.newest(RolledBack)
        return float(told[0]["at_s"]) if told else None

    # -- the parts ---------------------------------------------------------------------------------------------------

    def _run(self) -> dict[str, Any]:
        run, mandate = self.sources.run, self.sources.mandate
        return {
            "id": run.run_id,
            "strategy": run.strategy.name,
            "task": run.task.name,
            "is_open": run.access == "open",
            "until_epoch": mandate.until_epoch,
            "rolled_back_at_s": self._rolled_back_at_s,
            "version": VERSION,
        }

    def _figures(
        self, view: SwarmView, consensus: tuple[int, Lineage] | None, now_s: float
    ) -> tuple[dict[str, Any], Moment]:
        run, mandate, recent = self.sources.run, self.sources.mandate, self.sources.recent
        here = self.sources.credible.of(view)
        report = next(iter(recent.newest(SwarmReport)), {})
        epoch = epoch_of(here, consensus[0]) if consensus is not None else int(report.get("epoch", 0))
        rounds, (concern, hint) = recent.newest(RoundEnded), self.sources.concern()
        committed = [one for one in rounds if one["committed"]]
        is_lost = bool(rounds) and not rounds[0]["committed"]
        last_s = report["at_s"] if report and report["epoch"] else -math.inf
        measured_s = between_steps_s((one["epoch"], one["at_s"]) for one in reversed(committed))
        round_s = (committed[0]["seconds"] or 0.0) if committed else 0.0
        rhythm = Rhythm(measured_s if math.isfinite(measured_s) else round_s, last_s)
        ahead = ahead_of(run, mandate, here, epoch, now_s, rhythm)
        takes_s = measured_s if math.isfinite(measured_s) else ahead.step_s
        moment = Moment(
            epoch=epoch,
            until_epoch=mandate.until_epoch,
            trainers=here.num_trainers,
            contributors=committed[0]["contributors"] if committed else 0,
            since_step_s=now_s - last_s,
            here_s=now_s - self.sources.credible.came_s(view),
            step_s=ahead.step_s,
            has_round=ahead.has_round,
            lost_reason=shown(rounds[0]["reason"], self.sources.home) if is_lost else "",
            unit_s=ahead.unit_s,
            concern=shown(concern, self.sources.home),
            concern_hint=shown(hint, self.sources.home),
        )
        left = max(mandate.until_epoch - epoch, 0) if mandate.until_epoch is not None else None
        figures = {
            "epoch": epoch,
            "loss": finite(report.get("loss")),
            "eval_loss": finite(recent.figures.get(EVAL_LOSS.name)),
            "eval_accuracy": finite(recent.figures.get(EVAL_ACCURACY.name)),
            "eval_epoch": recent.last_epoch(EVAL_LOSS),
            "samples_per_s": finite(here.samples_per_s, 4),
            "learning_rate": finite(learning_rate(run, mandate, epoch)),
            "trainers": here.num_trainers,
            "peers": view.num_peers,
            "samples": finite(here.samples(*consensus), 6) if consensus is not None else 0.0,
            "target_batch_size": mandate.target_batch_size(epoch),
            "next_step_s": finite(ahead.next_s, 3),
            "step_s": finite(takes_s, 3),
            "remaining_s": finite(left * takes_s, 3) if left is not None else None,
        }
        return figures, moment

    def _peer(self, record: PeerRecord, consensus: tuple[int, Lineage] | None, now_s: float) -> dict[str, Any]:
        up, down = self.sources.recent.links.get(record.peer, (0.0, 0.0))
        used = next((of_round[record.peer] for of_round in self._used.values() if record.peer in of_round), NO_USE)
        return {
            "id": shown(record.peer),
            "name": self._name(record.peer),
            "is_us": record.peer == self.sources.me,
            "role": record.role.value,
            "state": record.state.value,
            "doing": doing(record, consensus if self._is_one_history else None, now_s),
            "without": switched_off(record),
            "reached": REACHED.get(record.reach.value, record.reach.value),
            "epoch": record.epoch,
            "samples_per_s": finite(record.samples_per_s, 4),
            "loss": finite(record.loss),
            "up_bytes_per_s": finite(up or math.nan, 3),
            "down_bytes_per_s": finite(down or math.nan, 3),
            "up_used": finite(used[0], 3),
            "down_used": finite(used[1], 3),
            "samples": record.total_samples,
            "brought_at_s": self._brought_at_s(record.peer),
            "heard_at_s": record.said_at,
            "device": (shown(record.gpu) or "CPU") if record.role is Role.TRAINER else "",
            "version": shown(record.version),
        }

    def _brought_at_s(self, peer: PeerId) -> float | None:
        """When a peer's samples were in a round last; where there are none, when it said that it has given more."""
        sources = self.sources
        return sources.recent.brought_at_s.get(peer) if self._is_one_history else sources.credits.grew_at_s(peer)

    def _rounds(self) -> list[dict[str, Any]]:
        recent, home = self.sources.recent, self.sources.home
        shares = {told["round_id"]: told for told in recent.newest(RoundShared)}
        expected_s = {told["round_id"]: told["expected_s"] or math.nan for told in recent.newest(RoundPlanned)}
        back_s = self._rolled_back_at_s or -math.inf  # epochs from before a rollback come again
        refused: dict[tuple[bool, int], dict[str, str]] = {}
        for told in reversed(recent.newest(PeerRefused)):
            refused.setdefault((told["at_s"] < back_s, told["epoch"]), {})[told["peer"]] = told["reason"]
        rounds = []
        for told in recent.newest(RoundEnded)[:MOST_ROUNDS]:
            share = shares.get(told["round_id"], {"brought": [], "reduced": [], "left_out": []})
            whom = dict(share["left_out"])
            here = {peer for peer, _ in share["brought"]}
            because = refused.get((told["at_s"] < back_s, told["epoch"]), {})
            whom |= {peer: reason for peer, reason in because.items() if peer not in here}
            rounds.append(
                {
                    "epoch": told["epoch"],
                    "at_s": told["at_s"],
                    "is_committed": told["committed"],
                    "reason": shown(told["reason"], home),
                    "seconds": finite(told["seconds"], 3),
                    "links_allow_s": finite(expected_s.get(told["round_id"]), 3),
                    "fullest_link": self._fullest(told["round_id"]),
                    "samples": finite(told["samples"]),
                    "contributors": told["contributors"],
                    "reducers": len(share["reduced"]),
                    "brought": [
                        {"name": self._name(peer), "samples": finite(samples, 4)}
                        for peer, samples in _largest(share["brought"])
                    ],
                    "reduced": [
                        {"name": self._name(peer), "share": finite(part, 3)}
                        for peer, part in _largest(share["reduced"])
                    ],
                    "left_out": [
                        {"name": self._name(peer), "why": shown(why(reason), home)}
                        for peer, reason in list(whom.items())[:MOST_NAMES]
                    ],
                }
            )
        return rounds

    def _fullest(self, round_id: str) -> dict[str, Any] | None:
        found = fullest(self._used.get(round_id, {}))
        return {"name": self._name(found[0]), "way": found[1], "used": finite(found[2], 3)} if found else None

    def _contributors(self, view: SwarmView) -> dict[str, Any]:
        standings = self.sources.credits.standings()
        here, total = {record.peer for record in view.records}, standings.total
        rows = [
            {
                "id": shown(peer),
                "name": shown(credit.name) or self._name(peer),
                "samples": credit.total,
                "share": finite(credit.total / total, 4),
                "is_here": peer in here,
            }
            for peer, credit in standings.first
        ]
        named = sum(credit.total for _, credit in standings.first)
        return {"total": total, "rows": rows, "others": standings.number - len(rows), "samples": total - named}

    def _checkpoints(self) -> list[dict[str, Any]]:
        recent, here = self.sources.recent, self.sources.on_disk()
        saved = {told["epoch"]: told for told in reversed(recent.newest(CheckpointSaved)) if told["epoch"] in here}
        on_disk = [
            {"epoch": epoch, "at_s": told["at_s"], "num_bytes": told["num_bytes"], "where": "disk"}
            | {"place": "/".join(PurePath(told["path"]).parts[-2:]), "url": ""}
            for epoch, told in saved.items()
        ]
        on_hub = [
            {"epoch": told["epoch"], "at_s": told["at_s"], "num_bytes": told["num_bytes"], "where": "hub"}
            | {"place": told["place"], "url": f"{self.sources.hub_url}/{told['place']}/tree/{told['commit']}"}
            for told in recent.newest(CheckpointOnHub)
        ]
        return sorted([*on_disk, *on_hub], key=lambda one: -one["at_s"])

    # -- names -------------------------------------------------------------------------------------------------------

    def _learn_names(self, view: SwarmView) -> None:
        here = {record.peer: shown(record.name) for record in view.records}
        told = set(self.sources.recent.brought_at_s)
        self._names = {peer: name for peer, name in self._names.items() if peer in told} | here

    def _name(self, peer: str) -> str:
        return self._names.get(PeerId(peer), "") or short_id(peer)


def _first(view: SwarmView) -> list[PeerRecord]:
    """Helpers, then trainers, the fastest ones first."""
    return sorted(view.records, key=lambda one: (one.role is Role.TRAINER, -one.samples_per_s, one.peer))[:MOST_PEERS]


def _largest(rows: list[list[Any]]) -> list[list[Any]]:
    return sorted(rows, key=lambda row: -row[1])[:MOST_NAMES]
