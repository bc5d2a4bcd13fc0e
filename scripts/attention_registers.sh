#!/usr/bin/env bash
# The compiler's report on the tuned attention kernels: registers, stack and spills of each instantiation, for the
# architectures named (default: 90 90a 100). Leaves with 1 if one of them spills.
# usage: scripts/attention_registers.sh [architecture...] > bench/results/attention_registers.txt
set -euo pipefail
cd "$(dirname "$0")/.."
architectures=("$@")
if [ ${#architectures[@]} -eq 0 ]; then architectures=(90 90a 100); fi
object=$(mktemp --suffix .o)
trap 'rm -f "$object"' EXIT

report() {
  awk -v arch="$1" '
    / Compiling entry function / { split($0, part, "\047"); name = part[2] }
    /bytes stack frame/ && name != "" && !(name in frame) { sub(/^ */, ""); frame[name] = $0 }
    / Used [0-9]+ registers/ && name != "" {
      match($0, /Used [0-9]+ registers/)
      print "sm_" arch "  " substr($0, RSTART + 5, RLENGTH - 5) ", " frame[name] "  " name
      name = ""
    }'
}

nvcc --version | grep release
table=$(for arch in "${architectures[@]}"; do
  case $arch in *a) sources=(kernels/attention/warpgroup_attention_*_*.cu) ;; *) sources=(kernels/attention/split_attention_*_*.cu) ;; esac
  for source in "${sources[@]}"; do
    nvcc -std=c++20 -O2 -Xptxas -v -gencode="arch=compute_$arch,code=sm_$arch" -DSTEPGRAPH_CUDA=1 --extended-lambda -I. \
      -c "$source" -o "$object" 2>&1 | report "$arch"
  done
done | c++filt | sed 's/stepgraph::detail:://g; s/stepgraph:://g; s/void //; s/(split_params)//')
echo "$table"
! grep -qv ' 0 bytes spill stores, 0 bytes spill loads' <<<"$table"
