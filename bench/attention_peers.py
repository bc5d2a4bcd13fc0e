"""PyTorch's scaled-dot-product attention on the shapes of bench/attention.cpp, over contiguous keys and values, as
graph replays: one JSON object a line."""
import json
import sys
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

D, HEADS, KV = 128, 32, 8


def time_graph(op, sets):
    graphs = []
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for s in range(sets):
            op(s)
        torch.cuda.synchronize()
        for s in range(sets):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                op(s)
            graphs.append(graph)
        result = []
        for round_ in range(18):
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            count = max(sets, 16 // sets * sets)
            start.record()
            for i in range(count):
                graphs[i % sets].replay()
            stop.record()
            stop.synchronize()
            result.append(start.elapsed_time(stop) * 1e3 / count)
    result = sorted(result[3:])
    return result


def case(name, batch, queries, length, backend, causal, sets):
    torch.manual_seed(1)
    q = torch.randn(batch, HEADS, queries, D, device="cuda", dtype=torch.bfloat16)
    k = [torch.randn(batch, KV, length, D, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]
    v = [torch.randn(batch, KV, length, D, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]

    def op(s):
        with sdpa_kernel(backend):
            torch.nn.functional.scaled_dot_product_attention(q, k[s], v[s], is_causal=causal, enable_gqa=True)

    try:
        times = time_graph(op, sets)
        print(json.dumps({"name": name, "parameters": f"PyTorch {backend.name}", "median_us": round(times[7], 2),
                          "minimum_us": round(times[0], 2), "maximum_us": round(times[-1], 2)}), flush=True)
    except Exception as error:  # a backend that refuses the shape says why
        print(json.dumps({"name": name, "parameters": f"PyTorch {backend.name}", "refused": str(error)[:120]}),
              flush=True)


for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
    if "decode" in sys.argv[1:]:
        case("decode 64x8192", 64, 1, 8192, backend, False, 1)
        case("decode 1x131072", 1, 1, 131072, backend, False, 4)
        case("decode 8x1024", 8, 1, 1024, backend, False, 8)
    if "extend" in sys.argv[1:]:
        case("extend 4x2048", 4, 2048, 2048, backend, True, 4)
