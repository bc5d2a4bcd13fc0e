#!/usr/bin/env python3
"""PyTorch's own captured graph of SmolLM2's decode step, on the weights of the same GGUF file: a plain Llama in bfloat16 over a
static cache, captured once at a width and replayed, positions in device memory, the greedy token fed back inside the graph.
--compile captures torch.compile's kernels instead. Microseconds a step and tokens per second by batch."""

import argparse
import os
import sys
from pathlib import Path

try:
    import gguf
    import numpy as np
    import torch
    from torch.nn import functional
except ImportError as missing:
    print(f"skipped: {missing.name} is not installed (see bench/peers/README.md)")
    sys.exit(0)

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tests/peers"))
import ops

MODES = {"default": "default", "tuned": "max-autotune-no-cudagraphs"}


def weights(reader, device, dtype, kept={}):
    """All tensors, dequantised; once for all batches."""
    if not kept:
        for tensor in reader.tensors:
            values = np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), np.float32)
            kept[tensor.name] = torch.from_numpy(values).to(device, dtype)
    return kept


class Llama:
    """A decode step of one token a row. Everything a replay changes is in `tokens` and `position`."""

    def __init__(self, path, batch, width, device, dtype):
        reader = gguf.GGUFReader(path)
        number = lambda name: reader.fields["llama." + name].contents()
        self.layers, self.heads, self.kv_heads = (number(name) for name in ("block_count", "attention.head_count",
                                                                            "attention.head_count_kv"))
        self.size = number("embedding_length") // self.heads
        self.epsilon = number("attention.layer_norm_rms_epsilon")
        self.weight = weights(reader, device, dtype)
        half = self.size // 2
        frequency = 1.0 / number("rope.freq_base")**(torch.arange(half, dtype=torch.float64) / half)
        angle = torch.arange(width, dtype=torch.float64).unsqueeze(1) * frequency
        # note: GGUF files of this architecture hold neighbouring pairs, so that pairs are rotated here
        self.cosine, self.sine = angle.cos().to(device, torch.float32), angle.sin().to(device, torch.float32)
        shape = (self.layers, batch, self.kv_heads, width, self.size)
        self.keys, self.values = (torch.zeros(shape, device=device, dtype=dtype) for _ in range(2))
        self.batch, self.width = batch, width
        self.rows = torch.arange(batch, device=device)
        self.columns = torch.arange(width, device=device)
        self.tokens = torch.zeros(batch, dtype=torch.long, device=device)
        self.position = torch.zeros(batch, dtype=torch.long, device=device)
        self.logits = None

    def linear(self, x, name):
        return functional.linear(x, self.weight[name + ".weight"])

    def norm(self, x, name):
        return functional.rms_norm(x, x.shape[-1:], self.weight[name + ".weight"], self.epsilon)

    def rotate(self, x, cosine, sine):
        even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), -1).flatten(-2).to(x.dtype)

    def step(self):
        x = self.weight["token_embd.weight"][self.tokens]
        cosine, sine = (each[self.position].unsqueeze(1) for each in (self.cosine, self.sine))
        seen = (self.columns <= self.position.unsqueeze(1))[:, None, None, :]
        for i in range(self.layers):
            part = f"blk.{i}."
            h = self.norm(x, part + "attn_norm")
            query, key, value = (self.linear(h, part + name).unflatten(-1, (-1, self.size)) for name in ("attn_q", "attn_k",
                                                                                                        "attn_v"))
            self.keys[i, self.rows, :, self.position] = self.rotate(key, cosine, sine)
            self.values[i, self.rows, :, self.position] = value
            attended = functional.scaled_dot_product_attention(
                self.rotate(query, cosine, sine).unsqueeze(2), self.keys[i], self.values[i], attn_mask=seen, enable_gqa=True)
            x = x + self.linear(attended.flatten(1), part + "attn_output")
            h = self.norm(x, part + "ffn_norm")
            x = x + self.linear(functional.silu(self.linear(h, part + "ffn_gate")) * self.linear(h, part + "ffn_up"),
                                part + "ffn_down")
        x = self.norm(x, "output_norm")
        self.logits = functional.linear(x, self.weight.get("output.weight", self.weight["token_embd.weight"]))
        self.tokens.copy_(self.logits.argmax(-1))
        self.position.add_(1)


def measure(arguments, batch, report):
    """Replays from `context` tokens on; the cache before them is random."""
    model = Llama(arguments.model, batch, arguments.width, "cuda", torch.bfloat16)
    step = torch.compile(model.step, mode=MODES[arguments.compile]) if arguments.compile else model.step

    def begin():
        model.position.fill_(arguments.context)
        model.keys.normal_()
        model.values.normal_()
        model.tokens.random_(0, 1000)

    begin()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            step()
        times = []
        for _ in range(arguments.count + 2):
            begin()
            graph.replay()
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for _ in range(arguments.replays):
                graph.replay()
            stop.record()
            stop.synchronize()
            times.append(start.elapsed_time(stop) * 1e3 / arguments.replays)
    times = sorted(times[2:])
    timing = {"median": times[len(times) // 2], "minimum": times[0], "maximum": times[-1], "count": len(times)}
    name = "decode step, PyTorch" + (f" compiled, {arguments.compile}," if arguments.compile else "") + " in a graph"
    speed = batch * 1e6 / timing["median"]
    report.add(name, {"model": Path(arguments.model).name, "batch": batch, "context": arguments.context,
                      "width": arguments.width}, timing, tokens_per_second=round(speed, 1))
    print(f"{name}: batch {batch:3}, context {arguments.context}, width {arguments.width}: {timing['median']:9.1f} us "
          f"({timing['minimum']:.1f} to {timing['maximum']:.1f}), {speed:9.0f} tokens/s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=os.environ.get("STEPGRAPH_MODEL"), help="GGUF file; default: STEPGRAPH_MODEL")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--context", type=int, default=512, help="tokens in each row's cache")
    parser.add_argument("--width", type=int, default=1024, help="tokens that the graph is captured for")
    parser.add_argument("--compile", choices=MODES, help="torch.compile, plain or tuned (minutes)")
    parser.add_argument("--replays", type=int, default=20, help="steps in one measurement")
    parser.add_argument("--count", type=int, default=11, help="measurements")
    parser.add_argument("--commit", default=ops.commit(), help="what was built")
    parser.add_argument("--out", type=Path, help="JSON report")
    arguments = parser.parse_args()
    if not arguments.model or not Path(arguments.model).is_file():
        print("skipped: no model; give --model or STEPGRAPH_MODEL (scripts/fetch_model.py prints one)")
        sys.exit(0)
    if not torch.cuda.is_available():
        print("skipped: no GPU")
        sys.exit(0)
    if not 0 < arguments.context < arguments.width - arguments.replays - 1:
        parser.error(f"--context {arguments.context} and {arguments.replays} replays do not fit in --width {arguments.width}")
    report = ops.Report(arguments.commit)
    for batch in arguments.batches:
        with torch.inference_mode():
            measure(arguments, batch, report)
        torch.cuda.empty_cache()
        report.write(arguments.out)  # what is measured is kept


if __name__ == "__main__":
    main()
