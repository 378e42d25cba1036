#!/usr/bin/env bash
# Set up, then train a small language model with a backbone and three trainers, all on this machine.
# Arguments go to `collab-peer demo`: --peers N --epochs N --json ...
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
bash "$root/scripts/setup.sh"
cd "$root"
exec .venv/bin/collab-peer demo "$@"
