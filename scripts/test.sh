#!/usr/bin/env bash
# Sets the machine up, builds, and runs all tests; the last line is the total of test cases.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'END'
scripts/test.sh [OPTION...] [TEST...]

Sets this machine up (scripts/setup.sh), builds in build/, fetches the model, and runs the tests. Without TEST all run, else
those that Meson knows by these names. The last line counts test cases: N passed, N failed, N skipped.

  --filter PATTERN  only doctest cases whose name fits, such as '*page table*'; tests of the suite 'example' are left out
  --sanitize        with AddressSanitizer and UndefinedBehaviorSanitizer, in build-asan/, host backend only, tests in
                    their small form
  --no-model        does not fetch the model; the tests that need it are skipped
  --help            this

Environment: STEPGRAPH_CUDA=auto|toolkit|pypi|off, STEPGRAPH_MODEL=FILE (docs/building.md).
END
}

build=build
model=1
configuration=()
targets=()  # of Ninja; none: everything
selection=()
while (($#)); do
  case $1 in
    --filter)
      : "${2:?--filter takes a pattern}"
      selection+=("--test-args=--no-skipped-summary --test-case=${2@Q}" --no-suite example)
      shift ;;
    --sanitize)
      build="build-asan"
      export STEPGRAPH_CUDA=off STEPGRAPH_TEST_SMALL=1
      targets=(meson-test-prereq)  # what the tests run
      # the sanitizers' code sets off warnings that the plain build does not have
      configuration=("-Db_sanitize=address,undefined" -Db_lundef=false -Doptimization=1 -Dwerror=false) ;;
    --no-model) model=0 ;;
    -h | --help) usage; exit 0 ;;
    -*) printf 'unknown option: %s\n\n' "$1" >&2; usage >&2; exit 2 ;;
    *) selection+=("$1") ;;
  esac
  shift
done

scripts/setup.sh --build "$build" "${configuration[@]}"
# shellcheck source=/dev/null
source .venv/environment

printf '==> Compiling %s/\n' "$build"
if [[ -t 1 ]]; then
  ninja -C "$build" "${targets[@]}"
else
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  ninja -C "$build" "${targets[@]}" >"$log" 2>&1 || { cat "$log"; exit 1; }
fi

if ((model)); then
  if path=$(python scripts/fetch_model.py); then
    export STEPGRAPH_MODEL=$path
  elif [[ -n ${STEPGRAPH_MODEL:-} ]]; then
    exit 1
  else
    printf '==> The model is not there: the tests that need it are skipped\n'
  fi
else
  unset STEPGRAPH_MODEL
fi

printf '==> Running the tests\n'
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-halt_on_error=1:print_stacktrace=1}
rm -f "$build/meson-logs/testlog.json"
# failures are judged and shown by the summary; the multiplier leaves room for busy machines
status=0
meson test -C "$build" --no-rebuild --timeout-multiplier 4 "${selection[@]}" </dev/null || status=$?
python scripts/summarize_tests.py "$build" --seconds "$SECONDS"
exit "$status"
