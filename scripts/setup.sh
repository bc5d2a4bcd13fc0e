#!/usr/bin/env bash
# Sets this machine up to build stepgraph: installs what is missing and nothing else.
#   scripts/setup.sh                          compiler, Meson (in .venv), libraries of the tests, the CUDA shape
#   scripts/setup.sh --build DIR [OPTION...]  the same, then configures the build folder DIR with these Meson options
#   scripts/setup.sh --format                 git and clang-format 14 alone
# STEPGRAPH_CUDA=auto|toolkit|pypi|off picks the CUDA shape (docs/building.md). `source .venv/environment` puts Meson and
# the CUDA compiler that was picked on PATH. All messages go to stderr.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD

say() { printf '==> %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# runs a command, showing its output only if it fails
quiet() {
  local log status=0
  log=$(mktemp)
  "$@" >"$log" 2>&1 || status=$?
  ((status == 0)) || cat "$log" >&2
  rm -f "$log"
  return "$status"
}

# ---- Debian packages ----

packages=()
reasons=()

# need PACKAGE REASON TEST...: PACKAGE is wanted unless TEST succeeds
need() {
  local package=$1 reason=$2
  shift 2
  "$@" >/dev/null 2>&1 && return
  packages+=("$package")
  reasons+=("$package ($reason)")
}

has_header() { [[ -e /usr/include/$1 || -e /usr/local/include/$1 ]]; }

install_packages() {
  ((${#packages[@]})) || return 0
  local list how=()
  list=$(printf ', %s' "${reasons[@]}")
  if ((EUID != 0)); then
    # a password can be asked for only on a terminal
    if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [[ -t 0 ]]; }; then
      how=(sudo)
    else
      die "missing: ${list:2}
Neither root nor sudo is at hand; have root run this, then call again:
  apt-get update && apt-get install -y --no-install-recommends ${packages[*]}"
    fi
  fi
  command -v apt-get >/dev/null || die "missing: ${list:2}; there is no apt-get here: install them your system's way"
  say "Installing by apt: ${list:2}"
  # a stale list may still do, so the verdict is the installation's
  quiet "${how[@]}" apt-get update -qq || say "apt-get update failed; trying with the package lists that are here"
  quiet "${how[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    "${packages[@]}" || die "apt-get install failed for: ${packages[*]}"
}

if [[ ${1:-} == --format ]]; then
  need git "lists the files to format" command -v git
  if ! command -v clang-format-14 >/dev/null && [[ $(clang-format --version 2>/dev/null) != *" 14."* ]]; then
    need clang-format-14 "formats them" false
  fi
  install_packages
  exit 0
fi

build=
if [[ ${1:-} == --build ]]; then
  build=${2:?--build takes a folder}
  shift 2
elif (($#)); then
  die "unknown argument: $1"
fi

need g++ "C++20 compiler" command -v g++
need ninja-build "runs the build" command -v ninja
need pkg-config "finds libraries" command -v pkg-config
need doctest-dev "tests" has_header doctest/doctest.h
need libbenchmark-dev "benchmarks" has_header benchmark/benchmark.h
need libcli11-dev "options of the tools" has_header CLI/CLI.hpp
need nlohmann-json3-dev "JSON reports" has_header nlohmann/json.hpp
[[ -x .venv/bin/meson ]] || {
  need python3-venv "environment for Meson" python3 -c 'import venv, ensurepip'
  need ca-certificates "downloads" test -e /etc/ssl/certs/ca-certificates.crt
}
install_packages

# ---- the CUDA shape ----

# prints the root of a toolkit of 13.0 or later, if there is one outside .venv
find_toolkit() {
  local nvcc version top
  for nvcc in "$(command -v nvcc || true)" "${CUDA_PATH:-/nowhere}/bin/nvcc" /usr/local/cuda/bin/nvcc; do
    [[ -x $nvcc && $nvcc != "$root/.venv/"* ]] || continue
    version=$("$nvcc" --version | sed -n 's/.*release \([0-9]*\)\.[0-9]*.*/\1/p') || continue
    if ((${version:-0} < 13)); then
      say "Ignoring $nvcc: CUDA 13.0 or later is needed"
      continue
    fi
    # nvcc may be a link or a wrapper; it knows its root itself
    top=$("$nvcc" --dryrun -E -x cu /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p') || continue
    realpath -- "$top" && return
  done
  return 1
}

has_gpu() {
  nvidia-smi -L >/dev/null 2>&1 || [[ -e /dev/nvidiactl || $(/sbin/ldconfig -p 2>/dev/null) == *libcuda.so.1* ]]
}

cuda_path=
case ${STEPGRAPH_CUDA:-auto} in
  auto)
    if cuda_path=$(find_toolkit); then shape=toolkit; elif has_gpu; then shape=pypi; else shape=off; fi ;;
  toolkit)
    shape=toolkit
    cuda_path=$(find_toolkit) || die "STEPGRAPH_CUDA=toolkit, but no nvcc 13.0 or later is on PATH or in /usr/local/cuda" ;;
  pypi | off) shape=$STEPGRAPH_CUDA ;;
  *) die "STEPGRAPH_CUDA=$STEPGRAPH_CUDA: give auto, toolkit, pypi or off" ;;
esac

# ---- Python environment: Meson, and the CUDA wheels where they are the shape ----

meson_wanted='meson>=1.4,<2'
pip=(.venv/bin/python -m pip --disable-pip-version-check)

# pip_install ARGUMENT...: with progress on a terminal, else quietly
pip_install() {
  if [[ -t 2 ]]; then "${pip[@]}" install "$@" >&2; else quiet "${pip[@]}" install -q "$@"; fi
}

# the stamp holds the folder too: the scripts in a virtual environment do not survive a move
if [[ $(cat .venv/.meson-ready 2>/dev/null) != "$root $meson_wanted" || ! -x .venv/bin/meson ]] ||
  ! .venv/bin/python -c ''; then
  say "Making .venv with Meson (the distribution's may be too old)"
  rm -rf .venv
  quiet python3 -m venv .venv
  pip_install "$meson_wanted" || die "pip could not install $meson_wanted"
  printf '%s' "$root $meson_wanted" >.venv/.meson-ready
fi

# gives the folder that the CUDA wheels fill the layout of a toolkit
arrange_wheels() {
  local top=$1 library target
  # nvcc and older Mesons look into lib64, newer Mesons into targets/
  ln -sfn lib "$top/lib64"
  target=$top/targets/$(uname -m)-linux
  mkdir -p "$target"
  ln -sfn ../../lib "$target/lib"
  ln -sfn ../../include "$target/include"
  # the linker wants unversioned names
  for library in "$top"/lib/lib*.so.*; do
    ln -sfn "${library##*/}" "${library%%.so.*}.so"
  done
  chmod -R u+x "$top/bin" "$top/nvvm/bin"
  printf 'CUDA Version %s\n' "$(sed -n 's/^nvidia-cuda-runtime==//p' scripts/cuda-requirements.txt)" >"$top/version.txt"
}

if [[ $shape == pypi ]]; then
  cuda_path=$root/.venv/cuda
  if ! cmp -s scripts/cuda-requirements.txt .venv/.cuda-ready; then
    say "Installing the CUDA 13.0 compiler and libraries from PyPI into .venv (0.5 GB to load, 0.9 GB on disk)"
    pip_install --no-deps --only-binary=:all: -r scripts/cuda-requirements.txt || die "pip could not install them"
    site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    arrange_wheels "$site/nvidia/cu13"
    ln -sfn "${site#"$root/.venv/"}/nvidia/cu13" .venv/cuda
    cp scripts/cuda-requirements.txt .venv/.cuda-ready
  fi
fi

environment="# written by scripts/setup.sh: CUDA shape '$shape'
export PATH=$(printf '%q' "${cuda_path:+$cuda_path/bin:}$root/.venv/bin"):\"\$PATH\""
if [[ -n $cuda_path ]]; then
  environment+="
export CUDA_PATH=$(printf '%q' "$cuda_path")
export LD_LIBRARY_PATH=$(printf '%q' "$cuda_path/lib64")\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}
unset CUDA_HOME CUDA_ROOT"
fi
printf '%s\n' "$environment" | cmp -s - .venv/environment || printf '%s\n' "$environment" >.venv/environment

# ---- the build folder ----

if [[ -n $build ]]; then
  # shellcheck source=/dev/null
  source .venv/environment
  if [[ $shape == off ]]; then
    options=(-Dcuda=disabled)
    backends="host backend"
  else
    static=false
    ls "$cuda_path"/lib*/libcudart_static.a >/dev/null 2>&1 && static=true
    options=(-Dcuda=enabled "-Dcudart_static=$static")
    backends="host and CUDA backends, $shape"
  fi
  options+=("$@")
  key="$cuda_path ${CXX:-} $(g++ -dumpfullversion) ${options[*]}"
  if [[ ! -f $build/build.ninja || $(cat "$build/.setup-key" 2>/dev/null) != "$key" ]]; then
    say "Configuring $build/ ($backends)"
    if [[ -d $build && ! -d $build/meson-private && -n $(ls -A "$build") ]]; then
      die "$build/ is there and is no build folder of Meson"
    fi
    # --wipe keeps options that were given by hand; a folder that even that cannot mend is made anew
    if [[ ! -d $build/meson-private ]] || ! meson setup --wipe "$build" "${options[@]}" >/dev/null 2>&1; then
      rm -rf "$build"
      quiet meson setup "$build" "${options[@]}" || die "Meson could not configure $build/"
    fi
    printf '%s' "$key" >"$build/.setup-key"
  fi
fi
