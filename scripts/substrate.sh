#!/bin/sh
# The development node of the Substrate tests, and its runtimes.
#
#   scripts/substrate.sh node       builds the node (over ten minutes the first time, then seconds) and prints its path
#   scripts/substrate.sh runtimes   builds the runtimes with the distribution's toolchain into substrate/blobs
#   scripts/substrate.sh record     records the scenarios on the node; make test plays them
#
# TENURE_SUBSTRATE_TARGET is the folder that keeps what is built (default: target/substrate).
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
target=${TENURE_SUBSTRATE_TARGET:-$root/target/substrate}

node() {
  "$root/scripts/setup.sh" substrate
  # The system's OpenSSL, where it is: the copy that is built otherwise takes minutes.
  if pkg-config --exists openssl 2>/dev/null; then export OPENSSL_NO_VENDOR=1; fi
  CARGO_TARGET_DIR=$target/node ${CARGO:-cargo} build -q --locked --manifest-path "$root/substrate/node/Cargo.toml" >&2
  echo "$target/node/debug/tenure-substrate-node"
}

# runtime <name> <features>: a blob as chains store it, eight bytes that say "zstd" and the compressed wasm.
runtime() {
  CARGO_TARGET_DIR=$target/runtime PATH=/usr/bin:/bin RUSTC_BOOTSTRAP=1 CARGO_TARGET_WASM32V1_NONE_LINKER=wasm-ld \
    RUSTFLAGS="-C linker=wasm-ld -C link-arg=--export-table -C link-arg=--import-memory -C link-arg=--export=__heap_base --cfg substrate_runtime" \
    /usr/bin/cargo build --manifest-path "$root/substrate/runtime/Cargo.toml" --locked \
    -Zbuild-std=core,alloc --release --target wasm32v1-none --features "$2"
  {
    printf '\122\274\123\166\106\333\216\005'
    zstd -q -19 -c "$target/runtime/wasm32v1-none/release/tenure_substrate_runtime.wasm"
  } >"$root/substrate/blobs/$1.wasm"
}

runtimes() {
  "$root/scripts/setup.sh" runtime
  mkdir -p "$root/substrate/blobs"
  runtime dev32 ""
  runtime dev32-next next
  runtime dev20 eth
}

record() {
  folder=$target/recordings
  rm -rf "$folder"
  mkdir -p "$folder"
  TENURE_SUBSTRATE_NODE=$(node)
  export TENURE_SUBSTRATE_NODE
  # The features are those of the Makefile, so that nothing is compiled twice.
  (cd "$root" && TENURE_SUBSTRATE=record TENURE_SUBSTRATE_RECORD=$folder \
    ${CARGO:-cargo} test --workspace --features tenure-tx/ethereum,tenure-tx/substrate --test substrate -- scenario::)
  cat "$folder"/*.jsonl | zstd -q -19 -f -o "$root/crates/tenure-tx/tests/substrate/recordings.jsonl.zst"
}

case ${1:-} in
  node | runtimes | record) "$1" ;;
  *) sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
