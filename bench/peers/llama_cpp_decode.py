#!/usr/bin/env python3
"""llama.cpp's plain decoding of the same GGUF file through llama-cpp-python, one row: microseconds a step and tokens per
second. Build it with CMAKE_ARGS="-DGGML_CUDA=ON" to run on the GPU, where it replays CUDA graphs of its own."""

import argparse
import os
import sys
import time
from pathlib import Path

try:
    import llama_cpp
except ImportError as missing:
    print(f"skipped: {missing.name} is not installed (see bench/peers/README.md)")
    sys.exit(0)

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tests/peers"))
try:
    import ops
except ImportError as missing:
    print(f"skipped: {missing.name} is not installed (see bench/peers/README.md)")
    sys.exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=os.environ.get("STEPGRAPH_MODEL"), help="GGUF file; default: STEPGRAPH_MODEL")
    parser.add_argument("--context", type=int, default=512, help="tokens in the cache when the timing begins")
    parser.add_argument("--steps", type=int, default=64, help="steps in one measurement")
    parser.add_argument("--count", type=int, default=9, help="measurements")
    parser.add_argument("--host", action="store_true", help="on the processor, whatever the build can do")
    parser.add_argument("--commit", default=ops.commit(), help="what was built")
    parser.add_argument("--out", type=Path, help="JSON report")
    arguments = parser.parse_args()
    if not arguments.model or not Path(arguments.model).is_file():
        print("skipped: no model; give --model or STEPGRAPH_MODEL (scripts/fetch_model.py prints one)")
        sys.exit(0)
    gpu = not arguments.host and llama_cpp.llama_supports_gpu_offload()
    where = "GPU" if gpu else "host"
    if not gpu and not arguments.host:
        print("note: this build of llama.cpp has no GPU; its figures are the host's")
    engine = llama_cpp.Llama(model_path=arguments.model, n_ctx=arguments.context + arguments.steps + 16,
                             n_gpu_layers=-1 if gpu else 0, flash_attn=True, verbose=False)
    prompt = [1 + i % 1000 for i in range(arguments.context)]
    times = []
    for measurement in range(arguments.count + 1):
        engine.reset()
        engine.eval(prompt)
        engine.eval([prompt[0]])
        start = time.perf_counter()
        for i in range(arguments.steps):
            engine.eval([prompt[i]])
        if measurement > 0:
            times.append((time.perf_counter() - start) * 1e6 / arguments.steps)
    times.sort()
    timing = {"median": times[len(times) // 2], "minimum": times[0], "maximum": times[-1], "count": len(times)}
    report = ops.Report(arguments.commit, llama_cpp_python=llama_cpp.__version__)
    report.all["context"]["timing"] = f"wall clock of {arguments.steps} steps, one after the other, on the {where}"
    report.add("decode step, llama.cpp", {"model": Path(arguments.model).name, "batch": 1, "context": arguments.context,
                                          "where": where}, timing, tokens_per_second=round(1e6 / timing["median"], 1))
    report.write(arguments.out)
    print(f"decode step, llama.cpp on the {where}: {timing['median']:.1f} us ({timing['minimum']:.1f} to "
          f"{timing['maximum']:.1f}), {1e6 / timing['median']:.0f} tokens/s")


main()
