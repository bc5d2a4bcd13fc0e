#!/usr/bin/env bash
# Sets the machine up, builds the example driver, fetches its model, and lets it write.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

default_prompt="Explain in three sentences why the sky is blue."

usage() {
  cat <<END
scripts/demo.sh [OPTION...] [PROMPT]

Sets this machine up (scripts/setup.sh), builds examples/driver_loop in build/, fetches a small model (98 MB, once), and runs
  build/examples/driver_loop --model MODEL --draft HEAD OPTION... PROMPT
with the draft head of examples/train_draft, unless an option names other drafts (--draft=FILE, --lookup K).
Every option goes to the driver, such as --max-tokens 64; '--driver-help' shows its own. Without PROMPT it is
  "$default_prompt"

Environment: STEPGRAPH_CUDA=auto|toolkit|pypi|off, STEPGRAPH_MODEL=FILE (docs/building.md).
END
}

# a prompt is an argument that is neither an option nor the word after one; with spaces in it, it is one wherever it stands
prompt=0
help=0
draft=(--draft examples/train_draft/smollm2_draft.safetensors)
previous=
for argument; do
  case $argument in
    -h | --help) usage; exit 0 ;;
    --driver-help) help=1 ;;
    --draft | --draft=* | --lookup | --lookup=*) draft=() ;;&
    --*=*) argument= ;;
    -*) ;;
    *) [[ $previous == -* && $argument != *" "* ]] || prompt=1 ;;
  esac
  previous=$argument
done
((prompt)) || set -- "$@" "$default_prompt"

scripts/setup.sh --build build
# shellcheck source=/dev/null
source .venv/environment

printf '==> Compiling build/examples/driver_loop\n' >&2
if [[ -t 2 ]]; then
  ninja -C build examples/driver_loop >&2
else
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  ninja -C build examples/driver_loop >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
  rm -f "$log"
fi

((help)) && exec build/examples/driver_loop --help
model=$(python scripts/fetch_model.py)
printf '==> Running build/examples/driver_loop\n' >&2
exec build/examples/driver_loop --model "$model" "${draft[@]}" "$@"
