#!/usr/bin/env python3
"""stepgraph's paged attention beside PyTorch's scaled-dot-product attention (cuDNN and flash backends, over contiguous keys
and values), SGLang's Triton kernels and FlashInfer, where each is installed: outputs on the same random data, and times of
graph replays in one run, with a plain read of the same bytes. Leaves with 1 if outputs differ by more than a relative 1e-2."""

import argparse
import sys
from pathlib import Path

try:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as missing:
    print(f"skipped: {missing.name} is not installed (see tests/peers/README.md)")
    sys.exit(0)

import flashinfer_attention
import ops
import sglang_kernels

MOST_DIFFERENCE = 1e-2
RAGGED = [128, 32768, 1000, 20000, 512, 30000, 4096, 25000, 8192, 300, 32768, 16384, 28000, 2048, 24000, 24806]
UNEVEN = [(64, 2112)] * 3 + [(4096, 6144)] + [(64, 2112)] * 4
# (query tokens, cached tokens with them) of each row, and what a graph of one op may take, microseconds
CASES = {
    "decode 64x8192": ([(1, 8192)] * 64, 495),
    "decode 1x131072": ([(1, 131072)], 130),
    "decode ragged": ([(1, length) for length in RAGGED], 243),
    "decode 8x1024": ([(1, 1024)] * 8, 14.5),
    "verify 16x8192": ([(8, 8192)] * 16, 145),
    "draft-extend": ([(r * 5 % 8 + 1, 8192) for r in range(16)], 145),
    "extend 4x2048": ([(2048, 2048)] * 4, 400),
    "extend uneven": (UNEVEN, 900),
}


class Paged:
    """Rows over a paged cache that holds several sets of their pages."""

    HEADS, KV_HEADS, HEAD_SIZE, PAGE = 32, 8, 128, 16

    def __init__(self, rows, pool_bytes):
        integers = dict(dtype=torch.int32, device="cuda")
        self.rows, self.scale = rows, self.HEAD_SIZE**-0.5
        counts, lengths = ([row[i] for row in rows] for i in (0, 1))
        self.pages = [-(-length // self.PAGE) for length in lengths]
        self.read_bytes = sum(lengths) * self.KV_HEADS * self.HEAD_SIZE * 4
        self.sets = int(min(8, max(1, pool_bytes // self.read_bytes)))
        each, wide = sum(self.pages), max(self.pages)
        shape = (self.sets * each, self.PAGE, self.KV_HEADS, self.HEAD_SIZE)
        self.keys, self.values = (torch.randn(shape, dtype=torch.bfloat16, device="cuda") for _ in range(2))
        self.query = torch.randn(sum(counts), self.HEADS, self.HEAD_SIZE, dtype=torch.bfloat16, device="cuda")
        self.shuffled = torch.randperm(self.sets * each, device="cuda").to(torch.int32)
        self.cu_seqlens_q = torch.tensor([0] + counts, **integers).cumsum(0).to(torch.int32)
        self.cu_pages = torch.tensor([0] + self.pages, **integers).cumsum(0).to(torch.int32)
        self.last_page_len = torch.tensor([(length - 1) % self.PAGE + 1 for length in lengths], **integers)
        self.cache_seqlens = torch.tensor(lengths, **integers)
        self.row_of = torch.repeat_interleave(torch.arange(len(rows), device="cuda"), torch.tensor(counts, device="cuda"))
        self.row_of = self.row_of.to(torch.int32)
        self.causal_length = torch.cat([torch.arange(length - count + 1, length + 1, **integers) for count, length in rows])
        self.tables = torch.full((self.sets, len(rows), wide), 1 << 30, **integers)
        for s in range(self.sets):
            for r, count in enumerate(self.pages):
                at = int(self.cu_pages[r])
                self.tables[s, r, :count] = self.page_ids(s)[at:at + count]
        self.shares_length = len(set(rows)) == 1

    def page_ids(self, s):
        """Pages of one set, row after row."""
        return self.shuffled.view(self.sets, -1)[s]

    def slots(self, s, row, begin, end):
        positions = torch.arange(begin, end, device="cuda")
        return self.tables[s, row][positions // self.PAGE].long() * self.PAGE + positions % self.PAGE

    def flat(self):
        return (each.view(-1, self.KV_HEADS, self.HEAD_SIZE) for each in (self.keys, self.values))


def stepgraph(call, p, s, invariant=False):
    out = torch.empty_like(p.query)
    arguments = dict(type="bfloat16", query=p.query, output=out, keys=p.keys, values=p.values,
                     page_stride=p.keys.stride(0), token_stride=p.keys.stride(1), head_stride=p.keys.stride(2),
                     pages=p.keys.shape[0], page_table=p.tables[s], row_of=p.row_of, causal_length=p.causal_length,
                     heads=p.HEADS, kv_heads=p.KV_HEADS, head_size=p.HEAD_SIZE, page_size=p.PAGE, scale=p.scale,
                     cu_seqlens_q=p.cu_seqlens_q, cache_seqlens=p.cache_seqlens)
    if not hasattr(p, "workspace"):
        p.workspace = torch.zeros(call.workspace_bytes(**arguments), dtype=torch.uint8, device="cuda")
    return lambda: call("paged_attention", **arguments, workspace=p.workspace), out


def torch_attention(backend, p, s):
    """Keys and values of each row copied to one contiguous place: equal lengths alone; causal where the row has no prefix."""
    count, length = p.rows[0]
    if not p.shares_length or count not in (1, length):
        return None
    query = p.query.view(len(p.rows), count, p.HEADS, p.HEAD_SIZE).transpose(1, 2).contiguous()
    keys, values = (each[p.tables[s].long()].flatten(1, 2)[:, :length].transpose(1, 2).contiguous()
                    for each in (p.keys, p.values))
    result = {}

    def enqueue():
        with sdpa_kernel(backend):
            result["out"] = torch.nn.functional.scaled_dot_product_attention(query, keys, values, is_causal=count > 1,
                                                                             scale=p.scale, enable_gqa=True)

    return enqueue, lambda: result["out"].transpose(1, 2).reshape(p.query.shape)


def sglang_decode(get, p, s, splits):
    """Its split plan is a kernel of the same graph."""
    if any(count != 1 for count, _ in p.rows):
        return None
    plan = get("attention.metadata").get_num_kv_splits_triton
    attend = get("attention.decode_attention").decode_attention_fwd
    rows = len(p.rows)
    indices = torch.cat([p.slots(s, r, 0, length) for r, (_, length) in enumerate(p.rows)])
    indptr = torch.cat([p.cache_seqlens.new_zeros(1), p.cache_seqlens.cumsum(0).to(torch.int32)])
    out = torch.empty_like(p.query)
    logits = torch.empty(rows, p.HEADS, splits, p.HEAD_SIZE, dtype=torch.float32, device="cuda")
    lse = torch.empty(rows, p.HEADS, splits, dtype=torch.float32, device="cuda")
    number = torch.empty(rows, dtype=torch.int32, device="cuda")
    keys, values = p.flat()
    cores = torch.cuda.get_device_properties(0).multi_processor_count

    def enqueue():
        plan[(1,)](number, p.cache_seqlens, rows, 1, p.HEADS, p.KV_HEADS, splits, cores,
                   MAX_NUM_SEQ=1 << (rows - 1).bit_length())
        attend(p.query, keys, values, out, indptr, indices, logits, lse, number, splits, p.scale, 1.0, 1.0)

    return enqueue, out


def sglang_extend(get, p, s, split_verify):
    """New tokens' keys and values contiguous, as it wants them, the prefix through indices."""
    if all(count == 1 for count, _ in p.rows):
        return None
    keys, values = p.flat()
    new = torch.cat([p.slots(s, r, length - count, length) for r, (count, length) in enumerate(p.rows)])
    prefix = torch.cat([p.slots(s, r, 0, length - count) for r, (count, length) in enumerate(p.rows)])
    lengths = torch.tensor([0] + [length - count for count, length in p.rows], device="cuda")
    indptr, longest = lengths.cumsum(0).to(torch.int32), max(count for count, _ in p.rows)
    own_keys, own_values, out = keys[new].contiguous(), values[new].contiguous(), torch.empty_like(p.query)
    arguments = (p.query, own_keys, own_values, out, keys, values, p.cu_seqlens_q, indptr, prefix, None, True, None, longest,
                 1.0, 1.0, p.scale)
    if split_verify:
        if not p.shares_length or longest > 16 or not len(prefix):
            return None
        verify = get("attention.verify_splitkv").verify_splitkv_fwd

        def enqueue():
            if not verify(*arguments):
                raise RuntimeError("verify_splitkv_fwd refuses the shape")
        return enqueue, out
    extend = get("attention.extend_attention").extend_attention_fwd
    return lambda: extend(*arguments), out


def peers(get, flashinfer):
    """Name to a function of (Paged, set) that gives (enqueue, output or a function of none), or None where it does not
    apply."""
    made = {f"PyTorch {backend.name.split('_')[0].lower()}, contiguous":
            lambda p, s, backend=backend: torch_attention(backend, p, s)
            for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION)}
    if get:
        for splits in (8, 16, 64):
            made[f"SGLang decode, {splits} splits"] = lambda p, s, splits=splits: sglang_decode(get, p, s, splits)
        made["SGLang verify, split KV"] = lambda p, s: sglang_extend(get, p, s, True)
        made["SGLang extend"] = lambda p, s: sglang_extend(get, p, s, False)
    if flashinfer:
        made["FlashInfer tensor cores, plan not timed"] = lambda p, s: flashinfer_attention.planned(flashinfer, p, s)
    return made


def relative(got, want):
    got, want = got.double(), want.double()
    return float((got - want).norm() / want.norm())


def run(name, rows, bar, call, others, report, nodes):
    torch.manual_seed(len(name))
    p = Paged(rows, 4 << 30)
    sets = [stepgraph(call, p, s) for s in range(p.sets)]
    sink = torch.zeros(1, dtype=torch.int32, device="cuda")
    halves = [each.view(p.sets, -1) for each in (p.keys, p.values)]  # bfloat16 elements of one set
    read = ops.time_graphs([lambda s=s: call("read_plainly", keys=halves[0][s], values=halves[1][s], sink=sink)
                            for s in range(p.sets)], nodes)
    bandwidth = p.read_bytes / read["median"] / 1e6
    parameters = {"page": p.PAGE, "rows": len(rows), "tokens": sum(count for count, _ in rows), "nodes": nodes, "sets": p.sets}
    report.add(f"{name}, plain read", parameters, read, p.read_bytes)
    own = ops.time_graphs([enqueue for enqueue, _ in sets], nodes)
    results, broken = [], []
    for peer, make in others.items():
        try:
            theirs = [made for s in range(p.sets) if (made := make(p, s)) is not None]
            if not theirs:
                continue
            theirs[0][0]()
            sets[0][0]()
            torch.cuda.synchronize()
            output = theirs[0][1]() if callable(theirs[0][1]) else theirs[0][1]
            error = relative(sets[0][1], output)
            results.append((peer, ops.time_graphs([enqueue for enqueue, _ in theirs], nodes), error))
            if not error < MOST_DIFFERENCE:
                broken.append(f"{name}: relative difference {error:.3g} from {peer}")
        except Exception as error:  # a backend that refuses the shape says why
            print(f"  {name}: {peer} does not run: {str(error)[:200]}", flush=True)
        theirs = None
        torch.cuda.empty_cache()
    best, best_us = min(((peer, timing["median"]) for peer, timing, _ in results), key=lambda each: each[1],
                        default=(None, None))
    share = p.read_bytes / own["median"] / 1e6 / bandwidth
    report.add(f"{name}, stepgraph", dict(parameters, bar_us=bar), own, p.read_bytes, best, best_us,
               share_of_read_bandwidth=round(share, 3), read_bandwidth_tb_s=round(bandwidth, 3))
    print(f"{name:18} nodes {nodes:2} stepgraph {own['median']:9.2f} us ({own['minimum']:.2f} to {own['maximum']:.2f}), "
          f"{100 * share:5.1f}% of the read bandwidth {bandwidth:.2f} TB/s{'  over its bar' if own['median'] > bar else ''}", flush=True)
    for peer, timing, error in results:
        report.add(f"{name}, {peer}", parameters, timing, p.read_bytes, relative_difference=float(f"{error:.3g}"))
        print(f"    {peer:42} {timing['median']:9.2f} us  {timing['median'] / own['median']:5.2f}x, difference {error:.1e}"
              f"{'  FASTER' if timing['median'] < own['median'] else ''}", flush=True)
    return broken


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sglang", type=Path, help="folder of the package sglang; default: installed")
    parser.add_argument("--library", type=Path, help="the built libstepgraph_peer.so")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--commit", default=ops.commit(), help="what was built")
    parser.add_argument("--out", type=Path, help="JSON report")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("skipped: no GPU")
        sys.exit(0)
    versions, get = {"cudnn": torch.backends.cudnn.version()}, None
    try:
        get, versions["sglang"] = sglang_kernels.load(arguments.sglang)
    except sglang_kernels.Skipped as why:
        print(f"skipped: SGLang: {why}")
    flashinfer, why = flashinfer_attention.load()
    if flashinfer:
        versions["flashinfer"] = why
    else:
        print(f"skipped: FlashInfer: {why}")
    report, broken = ops.Report(arguments.commit, **versions), []
    call, others = ops.Ops(arguments.library), peers(get, flashinfer)
    for name, (rows, bar) in CASES.items():
        if arguments.only in name:
            broken += run(name, rows, bar, call, others, report, 1)
            if name == "decode 8x1024":  # a graph of one short op is mostly its launch
                broken += run(name, rows, bar, call, others, report, 16)
            report.all["broken"] = broken
            report.write(arguments.out)  # what is measured is kept
    for what in broken:
        print(f"BROKEN: {what}")
    sys.exit(1 if broken else 0)


main()
