"""Options of ``join`` that a peer of another role could not follow: they are refused, and not left out in silence."""

from collab.errors import ConfigError
from collab.types import Role
from peers.hub_pace import HUB_EVERY_MIN
from peers.join_options import JoinOptions
from peers.occasions import NO_RULES


def check_role(options: JoinOptions) -> None:
    """
    Raises:
        ConfigError: somebody asks a peer for what its role does not do.
    """
    of_backbones = (
        (options.store, "--store", "keeps parameters"),
        (options.hub_repo, "--hub-repo", "publishes checkpoints"),
        (options.hub_every_min != HUB_EVERY_MIN, "--hub-every", "publishes checkpoints"),
        (options.dashboard, "--dashboard", "shows the whole run"),
        (options.track != "none", "--track", "hands on the whole run's figures"),
        (options.off, "--without", "has duties that can be switched off"),
    )
    of_trainers = (
        (options.epochs is not None, "--epochs", "contributes to steps"),
        (options.microbatch_size is not None, "--microbatch-size", "computes microbatches"),
        (options.device is not None, "--device", "computes on a device that can be chosen"),
        (options.gpu_memory_gb is not None, "--gpu-memory", "computes on a GPU"),
        (options.wants_credit, "--credit", "gives samples, for which it is named with the model"),
    )
    if options.role is not Role.BACKBONE:
        for _, flag, does in [one for one in of_backbones if one[0]]:
            raise ConfigError(f"only a backbone {does}", hint=f"leave {flag} out, or join with --role backbone")
    if options.role is not Role.TRAINER:
        for _, flag, does in [one for one in of_trainers if one[0]]:
            raise ConfigError(f"only a trainer {does}", hint=f"leave {flag} out, or join with --role trainer")
    if options.role is Role.BACKBONE and options.rules != NO_RULES:
        raise ConfigError(
            "a backbone is there at all hours",
            hint="leave out --when, --on-battery, --monthly-gb and --priority; it takes --max-upload",
        )
