"""What people can do when the Hub takes or gives nothing."""

import os

TO_WRITE = (
    "make a token with write access to it in the settings of your account on the Hub, then run 'hf auth login' on this "
    "machine: it is used within a quarter of an hour, or set HF_TOKEN and start the backbone again"
)
TO_BEGIN = (
    "make a token with write access to it in the settings of your account on the Hub, run 'hf auth login' on this "
    "machine, or set HF_TOKEN, and start the backbone again"
)
TO_READ = (
    "if it is private, make a token with read access to it in the settings of your account on the Hub, then run "
    "'hf auth login' on this machine, or set HF_TOKEN"
)
IN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
"""Where the Hub's client looks first."""
WITH_VARIABLE = {
    TO_WRITE: "put a token with write access to it there, and start the backbone again",
    TO_BEGIN: "put a token with write access to it there, and start the backbone again",
    TO_READ: "if it is private, put a token with read access to it there",
}
REFUSED = {
    402: "see what the account at the Hub has to pay for, or name a repository of another one with --hub-repo",
    413: "the account, or the repository, takes nothing so large: see its limits at the Hub, or free some space there",
}
"""What a person can do. Of other statuses from 400 to 499 what the Hub says is all that is known:"""
CHANGED = "somebody has changed it: take the repository back to an earlier commit, or name another one"
UNFIT = (
    "nobody could have the checkpoint back from the Hub: have checkpoint_files() of the task give names of letters, "
    "digits, '.', '_' and '-' that the run does not use itself; a changed task is another run, so carry this one on "
    "under a new owner (docs/hub.md)"
)
UNKNOWN = "see what it says; a backbone tries again each quarter of an hour, and an upgrade of huggingface_hub may help"
FULL = (
    "each commit keeps a whole checkpoint: free some space at the Hub (docs/hub.md, 'How much it takes'), pay for "
    "more, or name a repository of another account with --hub-repo; --hub-every makes commits rarer"
)
AGAIN = "try again in a few minutes"
"""For a person whose command ends with it; a backbone does so by itself."""


def advice_here(advice: str) -> str:
    """``advice`` on a machine where a variable may hold the token: then nothing else that is done is of any use."""
    variable = next((name for name in IN_VARIABLES if os.environ.get(name)), "")
    if not variable or advice not in WITH_VARIABLE:
        return advice
    told = f"the token in {variable} is what counts here, and 'hf auth login' changes nothing while it is set"
    return f"{told}: {WITH_VARIABLE[advice]}"
