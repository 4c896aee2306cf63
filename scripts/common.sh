# Shared by the scripts beside it: where things are, and how to talk.
# shellcheck shell=bash

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=$ROOT/.cache
export ROOT CACHE

say() { printf '==> %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# Runs a command as root: directly, or through sudo.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"
    elif command -v sudo >/dev/null; then sudo "$@"
    else die "'$*' needs root: run this script as root, or install sudo"
    fi
}

# Runs a command quietly; its output is shown only when it fails.
quietly() {
    local log
    log=$(mktemp)
    if "$@" >"$log" 2>&1; then rm -f "$log"
    else cat "$log" >&2; rm -f "$log"; return 1
    fi
}
