"""Sparse attention's index kernels of stepgraph and of SGLang on the same batch, a function a case."""

import torch

from cases import Case, Side, first

PAGE, KEY = 64, 128


def _cache(b, pages):
    return b.integers(0, 256, pages, PAGE * (KEY + 4), dtype=torch.uint8)


def index_k_set(get, ops, b, tokens):
    """Scatter of new keys and scales by slot; both sides' whole caches are compared. SGLang stores every token."""
    store = get("kvcache.dsa_index_k_cache")._set_k_and_s_triton
    pages = max(8, 2 * tokens // PAGE)
    loc = torch.randperm(pages * PAGE, generator=b.random, device=b.device)[:tokens]
    keys = b.integers(0, 256, tokens, KEY, dtype=torch.uint8)
    scales = torch.rand(tokens, 1, generator=b.random, device=b.device)
    mine = _cache(b, pages)
    theirs = mine.clone()
    arguments = dict(live_tokens=b.tensor([tokens]), loc=loc, keys=keys, scales=scales, cache=mine, page_size=PAGE)
    fp8 = keys.view(torch.float8_e4m3fn)
    return Case("index-K set", {"page": PAGE, "tokens": tokens}, Side(lambda: ops("set_k_and_s", **arguments), {"cache": mine}),
                {"_set_k_and_s_triton": Side(lambda: store(theirs, loc, fp8, scales, PAGE), {"cache": theirs})},
                {"cache": lambda cache: cache})


def index_k_get(get, ops, b):
    """Gather of each row's keys and scales into packed rows. SGLang's grid is sized by the longest row, which the host must
    know, or, in a captured graph, by the width."""
    gather = get("kvcache.dsa_index_k_cache")._get_k_and_s_triton
    total, columns = sum(b.lengths), b.width // PAGE
    used = sum(-(-length // PAGE) for length in b.lengths)
    cache = _cache(b, used)
    table = b.integers(0, used, b.rows, columns)
    order, at = torch.randperm(used, generator=b.random, device=b.device).to(torch.int32), 0
    for r, length in enumerate(b.lengths):
        count = -(-length // PAGE)
        table[r, :count] = order[at:at + count]
        at += count
    ours = {"cu_seqlens_k": b.empty(b.rows + 1), "keys": torch.full((total, KEY), 77, dtype=torch.uint8, device=b.device),
            "scales": b.empty(total)}
    arguments = dict(ours, live_rows=b.live_rows, seq_lens=b.seq_lens, cap=b.width, page_table=table, cache=cache, page_size=PAGE)
    peers = {}
    for name, most in (("exact grid", max(b.lengths)), ("captured grid", b.width)):
        outputs = {}

        def enqueue(outputs=outputs, most=most):
            keys, scales = gather(cache, table[:b.live], b.peer_lengths(), total, most, PAGE, KEY)
            outputs.update(keys=keys, scales=scales.view(torch.int32).flatten())

        peers[f"_get_k_and_s_triton, {name}"] = Side(enqueue, outputs)
        enqueue()
    return Case("index-K gather", b.parameters(bytes=2 * total * (KEY + 4)), Side(lambda: ops("get_k_and_s", **arguments), ours),
                peers, {"keys": lambda keys: keys, "scales": first(total)})


def _indices(b, lengths, topk):
    """Top-k of each token among its line's live columns; -1 past what there is, and a hole here and there."""
    tokens = len(lengths)
    limit = b.tensor(lengths).unsqueeze(1)
    drawn = (torch.rand(tokens, topk, generator=b.random, device=b.device) * limit).to(torch.int32).clamp(max=limit - 1)
    drawn[torch.arange(topk, device=b.device).unsqueeze(0) >= limit] = -1
    drawn[b.integers(0, 20, tokens, topk) == 0] = -1
    return drawn


def top_k_decode(get, ops, b, topk):
    transform = get("attention.dsa.transform_index").transform_index_page_table_decode
    indices = _indices(b, b.lengths, topk)
    ours, other = ({"slots": b.empty(b.live, topk)} for _ in range(2))
    arguments = dict(ours, live_tokens=b.live_rows, indices=indices, topk=topk, table=b.req_to_token[:b.live])
    return Case("top-k to slots, decode", b.parameters(topk=topk), Side(lambda: ops("top_k_to_slots", **arguments), ours),
                {"transform_index_page_table_decode": Side(
                    lambda: transform(b.req_to_token[:b.live], indices, other["slots"]), other)}, {"slots": lambda slots: slots})


def top_k_prefill(get, ops, b, counts, topk, expanded=False, lasts=False):
    """`lasts`: the length of each line of slots, too, a second kernel of SGLang's."""
    transform = get("attention.dsa.transform_index").transform_index_page_table_prefill
    length_of = get("attention.metadata").q8kv8_topk_length_from_indices
    tokens = sum(counts)
    by_token = [length for length, count in zip(b.lengths, counts) for _ in range(count)]
    row_of = torch.repeat_interleave(torch.arange(b.live, device=b.device), b.tensor(counts)).to(torch.int32)
    table = b.req_to_token[row_of.long()].contiguous() if expanded else b.req_to_token[:b.live]
    indices = _indices(b, by_token, topk)
    starts = b.tensor([0] + torch.tensor(counts).cumsum(0).tolist())
    ours = {"slots": b.empty(tokens, topk)}
    if lasts:
        ours["last_plus_one"] = b.empty(tokens)
    arguments = dict(ours, live_tokens=b.tensor([tokens]), row_of=None if expanded else row_of, indices=indices, topk=topk,
                     table=table)
    outputs = {}

    def enqueue():
        outputs["slots"] = transform(table, indices, counts, page_table_is_expanded=expanded, cu_seqlens_q=starts)
        if lasts:
            outputs["last_plus_one"] = length_of(outputs["slots"])

    enqueue()
    name = "top-k to slots, prefill" + (", expanded" if expanded else "") + (", lengths" if lasts else "")
    return Case(name, b.parameters(tokens=tokens, topk=topk), Side(lambda: ops("top_k_to_slots", **arguments), ours),
                {"transform_index_page_table_prefill": Side(enqueue, outputs)}, {name: lambda each: each for name in ours})


def combine(get, ops, b, counts, topk, window, ratio, offset=0):
    """`offset`: of the chunk's query_start_loc."""
    merge = get("attention.dsv4.sparse_prefill_kernels").combine_topk_swa_indices
    tokens, width = sum(counts), -(-(topk + window) // 128) * 128
    lengths = b.seq_lens.to(torch.int32)[:b.live].contiguous()
    extend = b.tensor(counts)
    gather_len = torch.minimum(lengths, extend + window - 1)
    starts = b.tensor([0] + torch.tensor(counts).cumsum(0).tolist()) + offset
    position = torch.cat([torch.arange(length - count, length, device=b.device, dtype=torch.int32)
                          for length, count in zip(b.lengths, counts)])
    indices = b.integers(0, 1 << 20, tokens, max(topk, 1))
    indices[b.integers(0, 20, tokens, max(topk, 1)) == 0] = -1
    bases = [b.integers(0, 1 << 20, b.live) for _ in range(2)]
    ours, other = ({"indices": b.empty(tokens, width), "length": b.empty(tokens)} for _ in range(2))
    arguments = dict(ours, live_rows=b.tensor([b.live]), seq_lens=lengths, cap=b.width, query_start_loc=starts,
                     topk_indices=indices, topk=topk, window=window, ratio=ratio, gather_len=gather_len,
                     compressed_base=bases[0], swa_base=bases[1])
    return Case("combine top-k and window", b.parameters(tokens=tokens, topk=topk, window=window, ratio=ratio),
                Side(lambda: ops("combine_top_k_and_window", **arguments), ours),
                {"combine_topk_swa_indices": Side(lambda: merge(
                    indices, starts, position, lengths, gather_len, bases[0], bases[1], window, ratio, topk, other["indices"],
                    other["length"]), other)}, {"indices": lambda each: each, "length": lambda each: each})


def window_ids(get, ops, b, counts, window):
    """SGLang's lengths and offsets are PyTorch's kernels, in its time."""
    build = get("attention.dsv4.sparse_prefill_kernels").build_swa_token_ids
    extend = b.tensor(counts)
    lengths, requests = b.peer_lengths().to(torch.int32), b.peer_requests().to(torch.int32)
    gathered = [min(length, count + window - 1) for length, count in zip(b.lengths, counts)]
    mapping = b.slot_map()
    ours = {"gather_len": b.empty(b.live), "offsets": b.empty(b.live + 1), "ids": b.empty(sum(gathered))}
    arguments = dict(b.own(), **ours, query_counts=extend, max_count=max(counts), tokens=sum(counts), window=window,
                     full_to_swa=mapping)
    outputs = {}

    def enqueue():
        outputs["ids"], _, outputs["gather_len"], outputs["offsets"] = build(
            lengths, extend, requests, b.req_to_token, mapping, window, sum(gathered))

    enqueue()
    return Case("window token ids", b.parameters(tokens=sum(counts), window=window),
                Side(lambda: ops("window_token_ids", **arguments), ours), {"build_swa_token_ids": Side(enqueue, outputs)},
                {name: lambda each: each for name in ours})
