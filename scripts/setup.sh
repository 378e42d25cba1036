#!/usr/bin/env bash
# Make .venv in the checkout, with collab (editable) and everything that its demo and tests need.
#
# Running it again costs a fraction of a second when nothing changed: a stamp in .venv holds the digest of the files
# that decide what is installed.
#
# Without CUDA packages (a backbone needs none): make the environment and put the CPU build of torch there first,
#     python3 -m venv .venv && .venv/bin/pip install torch==2.13.0 --index-url <PyTorch's CPU wheel index>
# and then run this script, which finds torch in place and leaves it.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="$root/.venv"
stamp="$venv/collab-setup.stamp"

say() { printf 'setup: %s\n' "$*" >&2; }
fail() {
    printf 'setup: error: %s\n' "$1" >&2
    printf '  -> %s\n' "$2" >&2
    exit 1
}

# Is $1 a Python that collab supports and that can make environments?
is_usable() {
    "$1" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1
}

find_python() {
    local candidate
    # 3.11 first: the versions in constraints.txt are tried with it at every change.
    for candidate in python3.11 python3.12 python3.13 python3 python; do
        if is_usable "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    fail "no Python 3.11, 3.12 or 3.13 with venv and ensurepip was found on PATH" \
        "install one, for example with: sudo apt install python3 python3-venv"
}

digest() {
    # The checkout's own path counts: an environment that was moved or copied does not work.
    { printf '%s\n' "$root"; "$venv/bin/python" --version; cat "$root/setup.cfg" "$root/pyproject.toml" \
        "$root/constraints.txt" "${BASH_SOURCE[0]}"; } | sha256sum | cut -d ' ' -f 1
}

system="$(uname -s) $(uname -m)"
if [[ "$system" != "Linux x86_64" ]]; then
    fail "collab needs Linux on x86-64 (the hivemind wheel with its p2pd exists for nothing else), this is $system" \
        "on Windows use WSL2; elsewhere use Docker with a linux/amd64 image"
fi

if [[ -e "$venv/bin/python" ]] && ! is_usable "$venv/bin/python"; then
    fail "$venv holds a Python that is broken or is not 3.11 to 3.13" "remove that directory and run this again"
fi
if [[ -f "$stamp" && -x "$venv/bin/python" && "$(<"$stamp")" == "$(digest)" ]]; then
    exit 0
fi

rm -f "$stamp"
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then  # none yet, or its making was interrupted
    python="$(find_python)"
    say "making $venv with $("$python" --version)"
    "$python" -m venv "$venv"
fi

install() {
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint "$root/constraints.txt" "$@" ||
        fail "pip could not install what collab needs; its reason is above" \
            "check the network and the free disk space (about 4 GB), then run this again: it goes on where it stopped"
}
say "installing torch (minutes the first time)"
install torch==2.13.0
say "installing collab and what its demo and tests need"
install --editable "$root[dev]"
digest >"$stamp"
say "ready: $venv"
