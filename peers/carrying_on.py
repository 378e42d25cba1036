"""``collab-peer backbone --new-owner``: what another owner's run leaves to the one that goes on from it."""

from pathlib import Path

from collab.checkpoints.from_hub import fetch_checkpoint
from collab.checkpoints.local import list_checkpoints, verified_state
from collab.config import CausalLMTask, Run, parse_run
from collab.durable import replace_file
from collab.errors import ConfigError
from collab.swarm.last_seen import seen_in
from peers.assets import keep_assets
from peers.hub_lookup import checkpoint_in, place_of, repository_to_read
from peers.hub_patience import patiently
from peers.hub_taken_over import keep_history
from peers.model_card import RUN_YAML
from peers.places import OWNER_KEY, RUN_FILE, DataDir
from peers.process import announce

MOST_RUN_FILE_BYTES = 1 << 20


def told_before(directory: Path) -> str:
    """With what the run of ``directory`` begins by the word of an earlier start that saved no state of it; a person is
    told so. Empty: there was no such word. Without it the run would begin with weights of its own. Blocks.

    Raises:
        ConfigError: the word cannot be read.
    """
    data_dir = DataDir(directory / "backbone")
    if told := _noted(data_dir):
        text = f"no state of this run is saved yet: it begins with {told}, as it was told before"
        announce(f"{text}\n  -> remove {data_dir.begins_with} to begin with weights of its own")
    return told


def _noted(data_dir: DataDir) -> str:
    if _has_begun(data_dir):
        return ""
    try:
        return data_dir.begins_with.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        hint = "remove it, and say again what the run begins with: --from ... --new-owner"
        raise ConfigError(f"cannot read {data_dir.begins_with}: {error}", hint=hint) from error


def _has_begun(data_dir: DataDir) -> bool:
    """Whether the run has a state that was saved, or others were seen with a later one."""
    return bool(list_checkpoints(data_dir.checkpoints)) or seen_in(data_dir.last_seen) > 0


def bring_run_file(begin_with: str, directory: Path) -> None:
    """Have a run file in the new run's directory: of the repository that it goes on from, unless one is there. Blocks.

    Raises:
        ConfigError: somebody owns a run there already, and no start was told to carry another one on there; or the
            directory cannot be written.
        StateError: the repository, or a run file in it, cannot be had, or that is too large to be one.
    """
    data_dir = DataDir(directory / "backbone")
    if (directory / OWNER_KEY).exists() and not _noted(data_dir):
        hint = "a run is carried on in a new directory, with its run.yaml and without owner.key"
        if _has_begun(data_dir):
            hint = f"to go on with the run there, leave out --from and --new-owner; another {hint.removeprefix('a ')}"
        raise ConfigError(f"{directory} has an owner already", hint=hint)
    place, path = place_of(begin_with), directory / RUN_FILE
    if place is None or path.exists():
        return
    announce(f"looking for the run file of {place} on the Hub ...")
    repository = repository_to_read(place)
    content = patiently(lambda: repository.read(RUN_YAML, repository.head(), MOST_RUN_FILE_BYTES))
    try:
        parse_run(content.decode("utf-8"), origin=f"{RUN_YAML} of {place}")
        directory.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{RUN_YAML} of {place} is no text", hint=f"write {path} yourself") from error
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}", hint="name a writable directory") from error
    announce(f"wrote {path}, as {place} has it")


def take_up(begin_with: str, run: Run, directory: Path, data_dir: DataDir) -> Path:
    """The checkpoint that the new run goes on from, whole, and on this disk. Blocks.

    Its tokenizer becomes the new run's, so that tokens mean what they meant: trained again, on the text of another
    machine, it would be another one. That the run begins so is written down, in case that this start saves no state of
    it, as when the download is cut or its port is taken.

    Raises:
        ConfigError: there is no checkpoint, or the directory cannot be written.
        StateError: it is damaged, or cannot be had.
    """
    from collab.tasks.registry import TOKENIZER_FILE

    place = place_of(begin_with)
    if place is None:
        found = checkpoint_in(Path(begin_with))
        verified_state(found)
        _note(str(Path(begin_with).resolve()), data_dir.begins_with)
    else:
        _note(begin_with, data_dir.begins_with)
        announce(f"looking at {place} on the Hub ...")
        repository = repository_to_read(place)
        found = patiently(lambda: fetch_checkpoint(repository, data_dir.path / "from-hub"))
        keep_history(repository, data_dir.hub_history)
    tokenizer = found / TOKENIZER_FILE
    if isinstance(run.task, CausalLMTask) and tokenizer.is_file():
        keep_assets(run, directory, {TOKENIZER_FILE: tokenizer.read_bytes()})
    return found


def _note(begin_with: str, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, begin_with.encode())
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}", hint="name a writable directory") from error
