"""``collab-peer backbone --new-owner``: what another owner's run leaves to the one that goes on from it."""

from pathlib import Path

from collab.checkpoints.from_hub import fetch_checkpoint
from collab.checkpoints.local import verified_state
from collab.config import CausalLMTask, Run, parse_run
from collab.errors import ConfigError
from peers.assets import keep_assets
from peers.hub_lookup import checkpoint_in, place_of, repository_to_read
from peers.hub_patience import patiently
from peers.hub_taken_over import keep_history
from peers.model_card import RUN_YAML
from peers.places import OWNER_KEY, RUN_FILE, DataDir
from peers.process import announce


def bring_run_file(begin_with: str, directory: Path) -> None:
    """Have a run file in the new run's directory: of the repository that it goes on from, unless one is there. Blocks.

    Raises:
        ConfigError: somebody owns a run there already, or the directory cannot be written.
        HubError: the repository, or a run file in it, cannot be had.
    """
    if (directory / OWNER_KEY).exists():
        raise ConfigError(
            f"{directory} has an owner already",
            hint="a run is carried on in a new directory, with its run.yaml and without owner.key",
        )
    place, path = place_of(begin_with), directory / RUN_FILE
    if place is None or path.exists():
        return
    announce(f"looking for the run file of {place} on the Hub ...")
    repository = repository_to_read(place)
    content = patiently(lambda: repository.read(RUN_YAML, repository.head()))
    try:
        parse_run(content.decode("utf-8"), origin=f"{RUN_YAML} of {place}")
        directory.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{RUN_YAML} of {place} is no text", hint=f"write {path} yourself") from error
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}", hint="name a writable directory") from error
    announce(f"wrote {path}, as {place} has it")


def take_up(begin_with: str, run: Run, directory: Path, data_dir: Path) -> Path:
    """The checkpoint that the new run goes on from, whole, and on this disk. Blocks.

    Its tokenizer becomes the new run's, so that tokens mean what they meant: trained again, on the text of another
    machine, it would be another one.

    Raises:
        ConfigError: there is no checkpoint, or the directory cannot be written.
        StateError: it is damaged, or cannot be had.
    """
    from collab.tasks.registry import TOKENIZER_FILE

    place = place_of(begin_with)
    if place is None:
        found = checkpoint_in(Path(begin_with))
        verified_state(found)
    else:
        announce(f"looking at {place} on the Hub ...")
        repository = repository_to_read(place)
        found = patiently(lambda: fetch_checkpoint(repository, data_dir / "from-hub"))
        keep_history(repository, DataDir(data_dir).hub_history)
    tokenizer = found / TOKENIZER_FILE
    if isinstance(run.task, CausalLMTask) and tokenizer.is_file():
        keep_assets(run, directory, {TOKENIZER_FILE: tokenizer.read_bytes()})
    return found
