#!/bin/sh
# The Python package in a virtual environment of its own, under target/python/.
#
#   scripts/python.sh build            makes the environment and builds the package into it
#   scripts/python.sh run COMMAND …    runs a command of the environment
#   scripts/python.sh all              adds what only the slow tests need
#   scripts/python.sh bench            runs the bench, with a member in Rust beside it
#   scripts/python.sh wheel            builds a wheel into target/wheels/
#
# PYTHON names the interpreter (default: python3). PROFILE=release builds as for users.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
package=$root/crates/tenure-py
CARGO_TARGET_DIR=$root/target/python
export CARGO_TARGET_DIR
venv=$root/target/python/venv
python=${PYTHON:-python3}

say() { printf 'python: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# requires <file> <stamp>: installs once for each content of the file.
requires() {
  if [ -e "$venv/$2" ] && cmp -s "$1" "$venv/$2"; then return; fi
  say "installing what $(basename "$1") names"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$1" >&2 ||
    die "pip could not install what $1 names; check the network and run this again"
  cp "$1" "$venv/$2"
}

environment() {
  if ! [ -x "$venv/bin/python" ] || ! "$venv/bin/python" -c '' 2>/dev/null; then
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null ||
      die "the Python package needs CPython 3.9 or newer as $python; set PYTHON to one"
    mkdir -p "$root/target/python"
    "$python" -m venv --clear "$venv" >&2 ||
      die "cannot make a virtual environment with $python; install its venv module (Debian: python3-venv)"
  fi
  requires "$package/tests/requirements.txt" .requirements
}

build() {
  environment
  if [ "${PROFILE:-dev}" = release ]; then
    set -- --release
  elif clippy=$(rustc --print sysroot)/bin/clippy-driver && [ -x "$clippy" ]; then
    # Compiled by clippy, this crate is linted by the build itself; its dependencies are not touched.
    export RUSTC_WORKSPACE_WRAPPER="$clippy" CLIPPY_ARGS="-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__"
    set --
  else
    set --
  fi
  # maturin wants an activated environment.
  (cd "$package" && VIRTUAL_ENV=$venv PATH=$venv/bin:$PATH "$venv/bin/maturin" develop --quiet "$@" >&2) ||
    die "the package does not build"
}

bench() {
  PROFILE=release build
  (cd "$package" && cargo build --quiet --release --example rust_member >&2) || die "the member in Rust does not build"
  RUST_MEMBER=$CARGO_TARGET_DIR/release/examples/rust_member "$venv/bin/python" "$package/tests/bench.py"
}

wheel() {
  environment
  (cd "$package" && "$venv/bin/maturin" build --quiet --release --interpreter "$venv/bin/python" \
    --out "$root/target/wheels" >&2) || die "the wheel does not build"
  ls -t "$root"/target/wheels/tenure-*.whl | head -n 1
}

case ${1:-} in
  build) build ;;
  all) environment; requires "$package/tests/requirements-all.txt" .requirements-all ;;
  bench) bench ;;
  wheel) wheel ;;
  run) shift; cd "$package" && PATH=$venv/bin:$PATH VIRTUAL_ENV=$venv exec "$@" ;;
  *) die "say build, all, bench, wheel or run" ;;
esac
