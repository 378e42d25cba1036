"""A visit to a run, as ``collab-peer doctor INVITE`` makes it: what only its peers can tell a machine that may join."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from collab.averaging.assistant import Assistant, assisting_engine
from collab.config import CausalLMTask, FilesData, ForeignTask, Run
from collab.data.text_files import matching_files
from collab.errors import BadMessage, DataError
from collab.net.startup import Started
from collab.swarm.access import read_grant, read_pass
from collab.swarm.admission import banned
from collab.swarm.board import ProgressBoard
from collab.swarm.bundle import Bundle
from collab.swarm.identity import load_or_create_identity
from collab.swarm.invite import Invite
from collab.swarm.mandate import Mandate
from collab.swarm.membership import Membership
from collab.swarm.progress import SwarmView
from collab.swarm.records import PeerRecord, PeerState
from collab.swarm.statutes import Statutes
from collab.types import PeerId, Role
from collab.version import VERSION
from peers import checkup
from peers.checkup import Finding, Outcome
from peers.event_words import count
from peers.hub_lookup import apart, word_of
from peers.joining import Relay
from peers.ordered import learn_orders
from peers.passing_key import guest_dir
from peers.places import place_of_next
from peers.summary import epoch_of, history_of
from peers.wiring import Reach, invite_from, start_from_invite

Tell = Callable[[Finding], None]


async def visit(word: str, data_dir: Path | None, port: int, tell: Tell) -> None:
    """Look around as a guest that dials the run's peers, and tell of each thing as soon as it is known.

    Args:
        word: an invite, or the run's place on the Hub.
        data_dir: where a peer would keep its things; None: where it usually does.

    Raises:
        CollabError: the run cannot be visited.
    """
    invite = invite_from(await apart(lambda: word_of(word)))
    with guest_dir(invite.run_id) as place:
        async with start_from_invite(invite, place, Reach(port=port), Relay(), is_guest=True) as (started, bundle):
            tell(checkup.clock(started.clock_offset_s))
            tell(checkup.reach(started.verdict))
            if (data := look_at_files(bundle.run)) is not None:
                tell(data)
            await _ask(started, bundle, Joiner(invite=invite, peer=peer_of(data_dir, invite.run_id)), tell)


@dataclass(frozen=True, slots=True, kw_only=True)
class Joiner:
    """Whoever would join."""

    invite: Invite
    peer: PeerId | None = None
    """None: it has no key yet."""


def peer_of(data_dir: Path | None, run_id: str) -> PeerId | None:
    """Who this machine would join as; nothing is made.

    Raises:
        ConfigError: its key cannot be read.
    """
    key = place_of_next(data_dir, run_id).identity
    return load_or_create_identity(key).peer_id if key.exists() else None


def look_at_files(run: Run) -> Finding | None:
    """Whether data that every machine is to have are here; None: the run has no such data."""
    data = run.task.data if isinstance(run.task, CausalLMTask) else None
    if not isinstance(data, FilesData):
        return None
    try:
        number = len(matching_files(data.path, Path()))
    except DataError as error:
        return checkup.failed("data", error)
    except OSError as error:
        return checkup.unexpected("data", error)
    return Finding(check="data", outcome=Outcome.OK, text=f"{count(number, 'file')} at {data.path}")


async def _ask(started: Started, bundle: Bundle, joiner: Joiner, tell: Tell) -> None:
    """Link, and whether there is anything to join."""
    ports, statutes = started.ports, Statutes(started.ports, bundle)

    def record() -> PeerRecord:
        """Of nobody: a guest is never in the swarm."""
        return PeerRecord(
            peer=ports.transport.peer_id,
            fingerprint=bundle.fingerprint,
            name="",
            role=Role.AUXILIARY,
            state=PeerState.LEFT,
            said_at=ports.clock.now(),
            can_be_dialled=False,
        )

    board = ProgressBoard(ports, started.identity, bundle.fingerprint, statutes)
    membership = Membership(board, ports.clock, record)
    await membership.look()
    engine = assisting_engine(ports, statutes, membership, Assistant())
    probed = await engine.probe.measure(membership.dialable() or list(started.bootstrap_peers))
    up, down = (rate.bytes_per_s if rate is not None else None for rate in (probed.up, probed.down))
    tell(checkup.bandwidth(up, down, is_asked=True))
    is_told = await learn_orders(started, statutes.mandate, membership.view)
    mandate = statutes.mandate if is_told else None
    tell(can_join(bundle, await membership.look(), joiner, mandate))


def can_join(bundle: Bundle, view: SwarmView, joiner: Joiner, mandate: Mandate | None) -> Finding:
    """Whoever gets this far was let in to look.

    Args:
        mandate: what the organiser has ordered; None: nobody has told.
    """
    run = bundle.run
    text = f"{run.run_id}: {view.num_trainers} trainers, {len(view.helpers())} helpers"
    if refused := _refused(bundle, view, joiner, mandate or Mandate(bundle)):
        why, remedy = refused
        return Finding(check="join", outcome=Outcome.PROBLEM, text=f"{text}; {why}", remedy=remedy)
    if isinstance(run.task, ForeignTask):
        remedy = f"install it, read it, and join with --allow {run.task.module}"
        text = f"{text}; it needs the module {run.task.module}"
        return Finding(check="join", outcome=Outcome.NOTE, text=text, remedy=remedy)
    if full := used_up(bundle, view, joiner.invite):
        remedy = "if that is this machine, all is well; else stop one of them before this machine joins"
        return Finding(check="join", outcome=Outcome.NOTE, text=f"{text}; {full}", remedy=remedy)
    if mandate is None:
        text = f"{text}; this machine was let in, and nobody has told what the organiser has ordered since"
        return Finding(check="join", outcome=Outcome.NOTE, text=text, remedy="look again later")
    return Finding(check="join", outcome=Outcome.OK, text=f"{text}; this machine was let in")


def _refused(bundle: Bundle, view: SwarmView, joiner: Joiner, mandate: Mandate) -> tuple[str, str] | None:
    """Why this machine would be turned away, and what to do; None: it would not be."""
    history, until = history_of(bundle.run, view), mandate.until_epoch
    epoch = epoch_of(view, history[0] if history is not None else 0)
    is_left = not view.num_trainers  # but for backbones, who keep what came of it
    if until is not None and (view.is_over(until) or (is_left and epoch >= until)):
        return "the run is over", "ask its organiser for another one"
    ban = mandate.ban_of(joiner.peer, view.at_s) if joiner.peer is not None else None
    if ban is not None:
        return banned(ban).text, "ask the organiser"
    if (needed := mandate.needed_version(epoch)) is not None:
        hint = "upgrade with the line that the organiser has for it"
        return f"it needs version {needed} of collab, this is {VERSION}", hint
    return None


def used_up(bundle: Bundle, view: SwarmView, invite: Invite) -> str:
    """Who uses the invite, if it is in use on as many devices as it is for; else empty."""
    if invite.papers is None:
        return ""
    ours, names = read_grant(invite.papers.grant, bundle.fingerprint, bundle.owner), []
    for record in view.records:
        with suppress(BadMessage):
            if read_pass(record.credential, bundle.fingerprint, bundle.owner).grant.key == ours.key:
                names.append(record.name)
    if len(names) < ours.devices:
        return ""
    return f"the invite is for {count(ours.devices, 'device')}, and in use by {', '.join(sorted(names))}"
