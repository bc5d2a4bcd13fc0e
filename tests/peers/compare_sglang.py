#!/usr/bin/env python3
"""Compares stepgraph's metadata and sparse index kernels with SGLang's own Triton kernels: live regions on random ragged
batches, then both sides' times at the shapes of the project's speed tables, each a node in a chain of 20 in one CUDA graph, in
one run. Leaves with 1 if a live region differs; a time slower than the peer's is reported, not failed."""

import argparse
import random
import re
import sys
from pathlib import Path

try:
    import sglang_kernels
    import torch
except ImportError as missing:
    print(f"skipped: {missing.name} is not installed (see tests/peers/README.md)")
    sys.exit(0)

import ops
import sglang_metadata as metadata
import sglang_sparse as sparse
import sglang_tables as tables
from cases import Batch


def ragged(source, rows, width, page=1, least=1):
    """Lengths with all edges in them."""
    edges = [least, width, min(width, max(least, page)), min(width, max(least, page + 1)), max(least, width - page)]
    return [source.choice(edges) if source.random() < 0.4 else source.randint(least, width) for _ in range(rows)]


def random_cases(get, call, seed, only):
    """Cases of one seed on batches of one to forty rows; functions, so that each makes its tensors when its turn comes."""
    source = random.Random(seed)
    rows, width = source.choice([1, 7, 33, 40]), source.choice([64, 1000, 4096])
    dead = source.choice([0, 3])

    def batch(page=1, least=1, wide=True, **more):
        whole = -(-width // page) * page
        given = {"dead": dead, **more}
        return Batch(ragged(source, rows, given.pop("width", whole), page, least), more.get("width", whole), page,
                     given["dead"], seed, wide)

    def counts(b, most=4, least=0):
        drawn = [source.randint(least, most) for _ in range(b.live)]
        drawn[source.randrange(b.live)] = most
        return drawn

    def with_counts(case, page, **more):
        b = batch(page, **{k: more.pop(k) for k in ("least", "dead") if k in more})
        return case(get, call, b, counts=counts(b), **more)

    uniform = lambda b, n: [n] * b.live
    every = {}
    for page in (1, 16, 64):
        every[f"decode {page}"] = lambda page=page: metadata.decode(get, call, batch(page, least=0))
        every[f"decode slots {page}"] = lambda page=page: metadata.decode(get, call, batch(page, least=0), window="slots")
        every[f"draft-extend {page}"] = lambda page=page: with_counts(metadata.draft_extend, page)
        every[f"kv indices {page}"] = lambda page=page: tables.kv_indices(get, call, batch(page, least=0), page_granular=page > 1)
    every["decode int32"] = lambda: metadata.decode(get, call, batch(64, wide=False))
    every["decode pages"] = lambda: metadata.decode(get, call, batch(64), window="pages", page_map=True)

    def windowed():
        b = batch(16, least=4, dead=0)
        return metadata.draft_extend(get, call, b, uniform(b, 3), window=True)

    def shorter(page=1, delta=1):
        b = Batch(ragged(source, rows, width - delta), width, page, dead, seed)
        return b

    def verify(**more):
        b = Batch(ragged(source, rows, 4096 - 4, 64), 4096, 64, dead, seed)
        return metadata.dsa(get, call, b, "verify", uniform(b, 4), 512, **more)

    def dsa_decode(**more):
        b = batch(64, least=0)
        return metadata.dsa(get, call, b, "decode", uniform(b, 1), 512, **more)

    def sliced():
        b = batch(least=0)
        return tables.kv_indices(get, call, b, starts=[source.randint(0, length) for length in b.lengths])

    def drafts(page):
        whole = max(width, page)
        return tables.draft_steps(get, call, Batch(ragged(source, rows, whole - 4), whole, page, dead, seed), 4)

    def places():
        b = batch(16, least=4, dead=0)
        return tables.positions(get, call, b, counts(b, least=0))

    def top_k(topk=None, **more):
        b = batch(dead=0)
        return sparse.top_k_prefill(get, call, b, counts(b), topk or source.choice([1, 63, 2049]), **more)

    def combined(topk, window):
        b = batch(least=4, dead=0)
        return sparse.combine(get, call, b, counts(b, least=0), topk, window, source.choice([1, 4, 128]), source.choice([0, 9]))

    def window_ids():
        b = batch(least=4, dead=0)
        return sparse.window_ids(get, call, b, counts(b, least=1), source.choice([1, 128]))

    every.update({
        "draft-extend window": windowed,
        "decode delta": lambda: metadata.decode(get, call, shorter(), delta=1),
        "dsa decode": dsa_decode,
        "dsa decode compact": lambda: dsa_decode(wide=False),
        "dsa decode pools": lambda: dsa_decode(kpool=4),
        "dsa verify": verify,
        "dsa verify pools": lambda: verify(kpool=4, wide=False),
        "dsa draft-extend": lambda: with_counts(metadata.dsa, 64, kind="draft-extend", topk=512),
        "dsa draft-extend pools": lambda: with_counts(metadata.dsa, 64, kind="draft-extend", topk=512, kpool=4),
        "compressed": lambda: tables.compressed(get, call, batch(256)),
        "low ratios": lambda: tables.low_ratios(get, call, batch(64)),
        "compressed indices": lambda: tables.compressed_indices(get, call, batch(256), source.choice([1, 2, 7])),
        "spec page table": lambda: tables.spec_page_table(get, call, batch(dead=0), 3, 40),
        "kv indices start": sliced,
        "kv indices map": lambda: tables.kv_indices(get, call, batch(), slot_map=True),
        "unified kv indices": lambda: with_counts(tables.unified_kv_indices, 1, dead=0),
        "draft steps": lambda: drafts(1),
        "draft steps 64": lambda: drafts(64),
        "token inputs": places,
        "split plan": lambda: tables.split_plan(get, call, batch(dead=0)),
        "index-K set": lambda: sparse.index_k_set(get, call, batch(64), source.choice([1, 63, 300])),
        "index-K gather": lambda: sparse.index_k_get(get, call, batch(64)),
        "top-k decode": lambda: sparse.top_k_decode(get, call, batch(dead=0), source.choice([1, 5, 64, 65, 2048, 2051])),
        "top-k prefill": lambda: top_k(expanded=False),
        "top-k prefill expanded": lambda: top_k(expanded=True),
        "top-k lengths": lambda: top_k(topk=512, lasts=True),
        "combine": lambda: combined(512, 128),
        "combine window": lambda: combined(0, 100),
        "window ids": window_ids,
    })
    return {name: make for name, make in every.items() if re.search(only, name)}


def timed_cases(get, call, only):
    """The shapes of the speed table, with what a node may take."""

    def decode(page, width, rows, live, bar, kernels=("early exit", "a block a row")):
        case = metadata.decode(get, call, Batch([live] * rows, width, page), kernels=kernels)
        case.bar = bar
        return case

    def dsa(kind, counts, width, wide, bar):
        live = 65536 - (4 if kind == "verify" else 0)
        case = metadata.dsa(get, call, Batch([live] * 64, width, 64), kind, counts, 2048, wide)
        case.bar = bar
        return case

    def compressed():
        source = random.Random(1)
        case = tables.compressed(get, call, Batch([source.randint(1000, 4096) for _ in range(64)], 1 << 20, 256))
        case.bar = 2.2
        return case

    def drafts(page, bar):
        case = tables.draft_steps(get, call, Batch([4096] * 64, 1 << 20, page), 4)
        case.bar = bar
        return case

    every = {}
    for page, width, rows, live, bar in ((1, 1 << 20, 1, 4096, 1.5), (1, 1 << 20, 64, 4096, 1.75), (1, 1 << 20, 64, 20000, 4),
                                         (1, 1 << 20, 64, 65536, 8.6), (1, 1 << 18, 256, 4096, 2.7), (64, 1 << 20, 1, 4096, 1.35),
                                         (64, 1 << 20, 64, 4096, 1.5), (64, 1 << 20, 64, 65536, 2.2),
                                         (64, 1 << 18, 256, 65536, 4.4)):
        every[f"decode {page} {width} {rows} {live}"] = (
            lambda page=page, width=width, rows=rows, live=live, bar=bar: decode(page, width, rows, live, bar))
    every.update({
        "draft-extend": lambda: metadata.draft_extend(get, call, Batch([4096] * 64, 1 << 20, 64), [4] * 64),
        "dsa decode compact": lambda: dsa("decode", [1] * 64, 1 << 17, False, 0),
        "dsa verify compact": lambda: dsa("verify", [4] * 64, 1 << 17, False, 4.8),
        "dsa verify wide": lambda: dsa("verify", [4] * 64, 1 << 17, True, 24),
        "dsa draft-extend compact": lambda: dsa("draft-extend", [4] * 64, 1 << 17, False, 5),
        "compressed": compressed,
        "draft steps": lambda: drafts(1, 0),
        "draft steps 64": lambda: drafts(64, 2.6),
        "spec page table": lambda: tables.spec_page_table(get, call, Batch([128] * 64, 4096), 4, 64),
        "kv indices": lambda: tables.kv_indices(get, call, Batch([20000] * 64, 1 << 17)),
        "kv indices blocks": lambda: tables.kv_indices(get, call, Batch([20000] * 64, 1 << 17), blocks=8),
        "unified kv indices": lambda: tables.unified_kv_indices(get, call, Batch([4096] * 64, 1 << 17), [64] * 64),
        "token inputs": lambda: tables.positions(get, call, Batch([4096] * 64, 1 << 17, 64), [4] * 64),
        "split plan": lambda: tables.split_plan(get, call, Batch([4096] * 64, 1 << 17, 1)),
    })

    def barred(bar, make):
        def case():
            made = make()
            made.bar = bar
            return made
        return case

    gather = lambda lengths: sparse.index_k_get(get, call, Batch(lengths, 1 << 17, 64))
    prefill = lambda counts: sparse.top_k_prefill(get, call, Batch([4096] * 64, 4096), counts, 2048)
    combined = lambda rows, each: sparse.combine(get, call, Batch([8192] * rows, 1 << 14), [each] * rows, 512, 128, 4)
    every.update({
        "index-K gather even": barred(35, lambda: gather([8192] * 64)),
        "index-K gather uneven": barred(10, lambda: gather([65536] + [1024] * 63)),
        "index-K gather short": barred(2.4, lambda: gather([1024] * 8)),
        "index-K set": lambda: sparse.index_k_set(get, call, Batch([64] * 64, 64, 64), 256),
        "top-k decode 2048": barred(1.9, lambda: sparse.top_k_decode(get, call, Batch([4096] * 64, 4096), 2048)),
        "top-k decode 2051": barred(1.9, lambda: sparse.top_k_decode(get, call, Batch([4096] * 64, 4096), 2051)),
        "top-k prefill even": barred(3.2, lambda: prefill([4] * 64)),
        "top-k prefill uneven": barred(2.6, lambda: prefill([64] + [1] * 63)),
        "combine large": barred(19, lambda: combined(16, 1024)),
        "combine small": barred(2, lambda: combined(64, 4)),
        "window ids": lambda: sparse.window_ids(get, call, Batch([8192] * 64, 1 << 14), [4] * 64, 128),
    })
    return {name: make for name, make in every.items() if re.search(only, name)}


def compare(cases, seed, broken):
    for name, make in cases.items():
        try:
            found = make().differences()
        except Exception as error:  # one side refuses what the other takes: a difference, too
            if type(error).__name__ == "InterpreterError":
                print(f"not run: {name}: Triton's interpreter cannot: {error}", flush=True)
                continue
            found = [f"{type(error).__name__}: {str(error)[:300]}"]
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        for what in found:
            print(f"BROKEN: {name}{'' if seed is None else f', seed {seed}'}: {what}", flush=True)
        broken += [{"case": name, "seed": seed, "what": what} for what in found]


def time_all(cases, report, broken):
    for name, make in cases.items():
        case = make()
        found = case.differences()
        broken += [{"case": name, "what": what} for what in found]
        own = ops.time_chain(case.ours.enqueue)
        theirs = {}
        for peer, side in case.peers.items():
            torch.cuda.synchronize()
            slow = ops.time_chain(side.enqueue, replays=1, count=3)["median"] > 20
            theirs[peer] = ops.time_chain(side.enqueue, replays=2 if slow else 10, count=7 if slow else 21)
        best = min(theirs, key=lambda peer: theirs[peer]["median"])
        parameters = dict(case.parameters, **({"bar_us": case.bar} if case.bar else {}))
        peer_us = theirs[best]["median"]
        report.add(f"{case.name}, stepgraph", parameters, own, peer=best, peer_us=peer_us, outputs_equal=not found)
        for peer, timing in theirs.items():
            report.add(f"{case.name}, SGLang {peer}", parameters, timing)
        print(f"{case.name:42} {str(case.parameters):70} {own['median']:8.2f} us  {best} {peer_us:8.2f} us  "
              f"{peer_us / own['median']:5.2f}x{'  SLOWER' if own['median'] > peer_us else ''}"
              f"{'  over its bar' if case.bar and own['median'] > case.bar else ''}{'  DIFFERS' if found else ''}", flush=True)
        for what in found:
            print(f"BROKEN: {name}: {what}", flush=True)
        del case


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sglang", type=Path, help="folder of the package sglang, an unpacked wheel's say; default: installed")
    parser.add_argument("--library", type=Path, help="the built libstepgraph_peer.so")
    parser.add_argument("--seeds", type=int, default=4, help="random batches of each case")
    parser.add_argument("--seed", type=int, help="the first; default: drawn, printed")
    parser.add_argument("--only", default="", help="cases whose name this regular expression finds")
    parser.add_argument("--time", action="store_true", help="time both sides, too (a GPU)")
    parser.add_argument("--commit", default=ops.commit(), help="what was built")
    parser.add_argument("--out", type=Path, help="JSON report")
    arguments = parser.parse_args()
    try:
        get, version = sglang_kernels.load(arguments.sglang)
    except sglang_kernels.Skipped as why:
        print(f"skipped: {why}")
        sys.exit(0)
    if not torch.cuda.is_available() and not sglang_kernels.interpreted():
        print("skipped: no GPU (TRITON_INTERPRET=1 compares on the host, slowly)")
        sys.exit(0)
    if version != sglang_kernels.TESTED:
        print(f"note: sglang {version}, these comparisons were written for {sglang_kernels.TESTED}")
    call = ops.Ops(arguments.library)
    import triton
    report = ops.Report(arguments.commit, sglang=version, triton=triton.__version__)
    broken = []
    start = random.randrange(1 << 30) if arguments.seed is None else arguments.seed
    for seed in range(start, start + arguments.seeds):
        cases = random_cases(get, call, seed, arguments.only)
        compare(cases, seed, broken)
    report.all["compared"] = {"cases": sorted(cases) if arguments.seeds else [], "seeds": arguments.seeds, "first_seed": start}
    if torch.cuda.is_available():
        shapes = timed_cases(get, call, arguments.only)
        if arguments.time:
            time_all(shapes, report, broken)
        else:
            compare(shapes, None, broken)
    report.all["broken"] = broken
    report.write(arguments.out)
    print(f"{arguments.seeds} seeds from {start}: {len(broken)} differences")
    sys.exit(1 if broken else 0)


main()
