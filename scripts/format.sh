#!/usr/bin/env bash
# Formats all tracked C++ and CUDA files with clang-format 14; with --check it changes nothing and fails where it would.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case ${1:-} in
  '') mode=(-i) ;;
  --check) mode=(--dry-run -Werror) ;;
  -h | --help) printf 'scripts/format.sh [--check]\n'; exit 0 ;;
  *) printf 'usage: scripts/format.sh [--check]\n' >&2; exit 2 ;;
esac

scripts/setup.sh --format
tool=clang-format-14
command -v "$tool" >/dev/null || tool=clang-format
git ls-files -z -- '*.cpp' '*.hpp' '*.h' '*.cu' '*.cuh' | xargs -0 -r "$tool" --style=file "${mode[@]}"
