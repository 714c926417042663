#!/usr/bin/env bash
# Makes .venv, the development environment on a CPU: `deploy/setup/setup.sh`, and `deploy/setup/setup.sh bench` for what
# benchmarks add. `deploy/setup/setup.sh version 0.31.0` makes .venv-0.31.0, the same with another vLLM. Run it as often
# as you like: with nothing to do it takes a fraction of a second, and what an interrupted run left half-made is made
# again. PYTHON=python3.12 picks the Python (3.11 to 3.13).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly BENCH_LOCK=deploy/setup/bench.lock VERSION_LOCKS=deploy/setup/versions
readonly UV=uv==0.13.9                # only used where pip's indexes have no CPU build of torch
case "${1:-}" in
    version) readonly VENV=.venv-${2:-} LOCK=build/setup/${2:-}.lock MADE_FROM=$VERSION_LOCKS/${2:-}.lock ;;
    *) readonly VENV=.venv LOCK=deploy/setup/cpu.lock MADE_FROM=deploy/setup/cpu.lock ;;
esac
readonly STAMP=$VENV/.specplug-setup  # absent: unknown state; "incomplete": killed half-way; else what it was made from
readonly LOG=$VENV/setup.log
readonly VENV_PYTHON=$VENV/bin/python
readonly SUPPORTED='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'

child=""
trap '[ -z "$child" ] || kill "$child" 2>/dev/null || true' EXIT

say() { printf 'setup: %s\n' "$*"; }

# One line to standard error, and the end. The environment can be added to, as pip undoes what it could not finish: the
# stamp says "incomplete" only where we were killed.
fail() {
    if [ "$(cat "$STAMP" 2>/dev/null)" = incomplete ]; then rm -f "$STAMP"; fi
    say "$*" >&2
    exit 1
}

# step TITLE COMMAND...: runs COMMAND, its output in $LOG, and shows what it is at every ten seconds.
step() {
    local title=$1 started=$SECONDS ticks=0 status=0 now
    shift
    say "$title ..."
    "$@" >"$LOG" 2>&1 </dev/null &
    child=$!
    while kill -0 "$child" 2>/dev/null; do
        sleep 0.2
        ticks=$((ticks + 1))
        if ((ticks % 50 == 0)); then
            now=$(grep -oE '(Collecting|Downloading|Using cached|Installing|Building) [^,]*' "$LOG" | tail -n 1 || true)
            say "  $((SECONDS - started)) s: ${now:0:90}"
        fi
    done
    wait "$child" || status=$?
    child=""
    if ((status == 0)); then say "  done in $((SECONDS - started)) s"; fi
    return "$status"
}

pip_install() {
    "$VENV_PYTHON" -m pip install --no-deps --no-compile --disable-pip-version-check --progress-bar off "$@"
}

# why WHAT: the reason for a failed step, read from its log, and the remedy.
why() {
    if grep -qiE 'connection broken|failed to establish|name resolution' "$LOG"; then
        fail "$1: the package index cannot be reached; check the network or pip's configuration, run again (log: $LOG)"
    elif grep -qi 'no space left' "$LOG"; then
        fail "$1: the disk is full; $VENV needs 3.5 GB; make room and run again (log: $LOG)"
    fi
    fail "$1: $(grep -iE 'error' "$LOG" | tail -n 1 | cut -c1-200); see $LOG and run again"
}

# The first Python that runs and is supported. An old one named python3.11 by a version manager may not run at all.
find_python() {
    local candidate
    if [ -n "${PYTHON:-}" ]; then
        command -v "$PYTHON" >/dev/null || fail "PYTHON=$PYTHON is not a program; name a Python 3.11, 3.12 or 3.13"
        "$PYTHON" -c "$SUPPORTED" 2>/dev/null ||
            fail "PYTHON=$PYTHON is $("$PYTHON" --version 2>&1 | head -n 1 || true), but 3.11, 3.12 or 3.13 is needed"
        python=$PYTHON
        return
    fi
    for candidate in python3.11 python3.12 python3.13 python3 python; do
        if "$candidate" -c "$SUPPORTED" 2>/dev/null; then
            python=$candidate
            return
        fi
    done
    fail "no Python 3.11, 3.12 or 3.13 found; install one, or name it: make setup PYTHON=/path/to/python3.11"
}

# Prints what $VENV was made from; fails when .venv does not run, lacks a package of the lock, or was moved here.
fingerprint() {
    local version
    grep -qF "$PWD/$VENV" "$VENV/bin/activate" 2>/dev/null && [ -x "$VENV/bin/specplug" ] || return 1
    version=$("$VENV_PYTHON" deploy/setup/check_venv.py "$LOCK" 2>/dev/null) || return 1
    { printf '%s\n' "$version" "$PWD"; cat "$LOCK" pyproject.toml deploy/setup/setup.sh; } | sha256sum | cut -d' ' -f1
}

# Whether $VENV can be kept and added to, rather than made anew.
usable() {
    [ "$(cat "$STAMP" 2>/dev/null)" != incomplete ] &&
        grep -qF "$PWD/$VENV" "$VENV/bin/activate" 2>/dev/null &&
        "$VENV_PYTHON" -c "$SUPPORTED" 2>/dev/null &&
        "$VENV_PYTHON" -m pip --version >/dev/null 2>&1 && same_python
}

# Whether $VENV has the Python that PYTHON asks for, if it asks for one.
same_python() {
    local ask='import platform; print(platform.python_version())'
    [ -z "${PYTHON:-}" ] || [ "$("$PYTHON" -c "$ask" 2>/dev/null)" = "$("$VENV_PYTHON" -c "$ask" 2>/dev/null)" ]
}

make_venv() {
    local python=""
    find_python
    if [ -e "$VENV" ] || [ -L "$VENV" ]; then
        say "$VENV is incomplete, broken, or of another Python or place: making it again"
        if [ -d "$VENV" ] && [ ! -L "$VENV" ]; then # the stamp goes last: half a removal must not pass for a whole
            echo incomplete >"$STAMP"
            find "$VENV" -mindepth 1 -maxdepth 1 ! -path "$STAMP" -exec rm -rf {} +
        fi
        rm -rf "$VENV"
    fi
    mkdir "$VENV"
    echo incomplete >"$STAMP"
    step "virtual environment with $("$python" --version)" "$python" -m venv "$VENV" ||
        fail "$python cannot make a virtual environment: install its venv module (Debian and Ubuntu: python3-venv)"
}

# torch, the CPU build and no other: from pip's own indexes, or through uv, which knows PyTorch's CPU index. An index
# configured for this one package would be asked for every other package too.
install_torch() {
    local pin
    pin=$(grep '^torch==' "$LOCK")
    if step "torch, CPU build" pip_install --only-binary :all: "$pin"; then return; fi
    grep -qE 'No matching distribution|Could not find a version' "$LOG" || why "torch"
    say "  pip's indexes have no $pin: asking PyTorch's CPU index, through uv"
    step "uv" pip_install --only-binary :all: "$UV" || why "uv"
    step "torch, CPU build, with uv" "$VENV/bin/uv" pip install --python "$VENV_PYTHON" --no-deps \
        --torch-backend cpu "${pin%+cpu}" ||
        fail "no $pin: pip's indexes lack it, and PyTorch's CPU index cannot be reached or has none for this Python;" \
            "check the network, or put its wheel into a directory that PIP_FIND_LINKS names (log: $LOG)"
}

set_up() {
    local started=$SECONDS
    if [ "$(cat "$STAMP" 2>/dev/null || true)" = "$(fingerprint || echo none)" ] && same_python; then
        say "$VENV is up to date"
        return
    fi
    if command -v nvidia-smi >/dev/null 2>&1; then
        say "NVIDIA GPU found: to use it, run \`pip install vllm-specplug\` where vllm is installed; $VENV is for CPU"
    fi
    usable || make_venv
    echo incomplete >"$STAMP"
    grep -v '^torch==' "$LOCK" >"$VENV/without-torch.txt"
    step "$(grep -c '^[a-zA-Z]' "$VENV/without-torch.txt") packages of $LOCK" \
        pip_install --only-binary :all: -r "$VENV/without-torch.txt" || why "packages"
    install_torch
    step "vllm-specplug, editable" pip_install --no-build-isolation -e . || why "vllm-specplug"
    fingerprint >"$STAMP.new" ||
        fail "after all, $("$VENV_PYTHON" deploy/setup/check_venv.py "$LOCK" 2>&1 >/dev/null || true); see $LOG"
    mv "$STAMP.new" "$STAMP"
    say "ready in $((SECONDS - started)) s: $VENV/bin/specplug --help"
}

set_up_bench() {
    if "$VENV_PYTHON" deploy/setup/check_venv.py "$BENCH_LOCK" >/dev/null 2>&1; then return; fi
    grep -v '^arctic-inference==' "$BENCH_LOCK" >"$VENV/bench-tools.txt"
    step "tools that compile arctic-inference" pip_install --only-binary :all: -r "$VENV/bench-tools.txt" || why "tools"
    PATH="$PWD/$VENV/bin:$PATH" step "arctic-inference, compiled here, about 2 minutes" \
        pip_install --no-build-isolation "$(grep '^arctic-inference==' "$BENCH_LOCK")" || why "arctic-inference"
}

# Writes $LOCK: the pins of cpu.lock, with those of a version in the place of the same names; "-NAME" leaves one out.
lock_version() {
    mkdir -p "$(dirname "$LOCK")"
    awk -F '==' '
        /^(#|$)/ { next }
        NR == FNR { name = $1; left_out = sub(/^-/, "", name); replaced[name] = 1; if (!left_out) print; next }
        !($1 in replaced)
    ' "$MADE_FROM" deploy/setup/cpu.lock >"$LOCK.new"
    mv "$LOCK.new" "$LOCK"
}

known_versions() { find "$VERSION_LOCKS" -name '*.lock' -exec basename -s .lock {} + | sort | paste -sd ' '; }

case "${1:-}" in
    "" | bench) ;;
    version) [ -n "${2:-}" ] && [ -f "$MADE_FROM" ] || fail "no $VERSION_LOCKS/${2:-}.lock; known: $(known_versions)" ;;
    *) fail "unknown argument '$1'; known: bench, version VERSION" ;;
esac

# Two at once would spoil each other's work: the second waits. The lock is a file of ours, and goes with the process.
if command -v flock >/dev/null 2>&1; then
    exec 9<"$MADE_FROM"
    flock -n 9 || { say "another set-up of $VENV is running: waiting for it"; flock 9; }
fi

if [ "${1:-}" = version ]; then lock_version; fi
set_up
if [ "${1:-}" = bench ]; then set_up_bench; fi
