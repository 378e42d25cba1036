#!/usr/bin/env bash
# Set up, then lint, type check and test: the same as CI. Arguments go to pytest only (`bash scripts/test.sh -k round`);
# ruff and mypy always see everything. Stops at the first that fails, with its exit status.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
bash "$root/scripts/setup.sh"
cd "$root"

# Routers in homes (tests/live/test_reach.py) are made with nft, for which only root has a use anyway; the store in Redis
# (tests/swarm/parameter_store) is tried with a server that the test starts itself, so that the package's own never runs;
# the dashboard (tests/live/test_dashboard.py) is looked at with a real browser.
missing=()
command -v nft >/dev/null || missing+=(nftables)
command -v redis-server >/dev/null || missing+=(redis-server)
command -v chromium >/dev/null || missing+=(chromium)
if (( ${#missing[@]} )) && [[ "$(id -u)" == 0 ]] && command -v apt-get >/dev/null; then
    printf 'test: installing %s\n' "${missing[*]}"
    { apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >/dev/null
fi

# Peers share the machine: one thread each, two threads under load are several times slower.
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
# No test needs the network beyond this machine; one that tries fails at once.
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1

printf 'test: ruff\n'
.venv/bin/ruff check collab peers scripts tests notebooks
printf 'test: mypy\n'
.venv/bin/mypy --strict collab peers scripts
if (( $# )); then
    printf 'test: pytest\n'
    exec .venv/bin/python -m pytest "$@"
fi
# Two workers: real processes wait for each other half of the time. What runs in virtual time does not care how long it takes.
printf 'test: pytest, real processes\n'
.venv/bin/python -m pytest tests/live --numprocesses 2 --dist worksteal --durations 15
printf 'test: pytest, everything else\n'
exec .venv/bin/python -m pytest tests --ignore=tests/live --numprocesses auto --dist worksteal --durations 15
