"""The other metadata: compressed attention, index lists, the draft's steps, split plans; a function a case."""

import torch

from cases import Case, Side, first, lines


def _compressed_outputs(b, n, capacity):
    outputs = {}
    for i in (0, 1):
        outputs.update({f"level_out_loc{i}": b.empty(n, dtype=torch.int64), f"positions{i}": b.empty(n),
                        f"length{i}": b.empty(n), f"length_clamped{i}": b.empty(n)})
    outputs["page_indices1"] = b.empty(n, capacity)
    return outputs


def compressed(get, ops, b):
    """C4 and C128 in one node, with C128's page indices; a token a row."""
    theirs = get("attention.dsv4.metadata_kernel").init_compression_metadata
    columns, n = b.width // b.page, b.live
    table = b.integers(0, 1 << 16, b.rows, columns)
    out_loc = b.integers(0, 1 << 24, n, dtype=torch.int64)
    causal = b.seq_lens.to(torch.int32)
    position = causal[:n] - 1
    ours = _compressed_outputs(b, b.rows, columns * (b.page // 128))
    arguments = dict(ours, live_tokens=b.live_rows, causal_length=causal, out_loc=out_loc, page_table=table, page_size=b.page,
                     levels=2, ratio_shift0=2, ratio_shift1=7, out_loc_skip0=0, out_loc_skip1=0)
    outputs = {}

    def enqueue():
        c4_loc, c4_pos, c4_raw, c4_clamped, c128_loc, c128_pos, c128_raw, c128_clamped, indices = theirs(
            causal[:n], position, out_loc, table[:n], b.page)
        outputs.update(level_out_loc0=c4_loc, positions0=c4_pos, length0=c4_raw, length_clamped0=c4_clamped,
                       level_out_loc1=c128_loc, positions1=c128_pos, length1=c128_raw, length_clamped1=c128_clamped,
                       page_indices1=indices)

    enqueue()
    live = {name: first(n) for name in ours}
    live["page_indices1"] = lines([length // 128 for length in b.lengths])
    return Case("C4 and C128, indices of C128", b.parameters(), Side(lambda: ops("compressed_metadata", **arguments), ours),
                {"init_compression_metadata": Side(enqueue, outputs)}, live)


def low_ratios(get, ops, b, topk=512):
    """C1 and C2: output slots and lengths."""
    theirs = get("attention.dsv4.metadata_kernel").build_low_ratio_metadata
    n = b.live
    out_loc = b.integers(0, 1 << 24, n, dtype=torch.int64)
    causal = b.seq_lens.to(torch.int32)
    ours = {"level_out_loc0": b.empty(b.rows, dtype=torch.int64), "length_clamped0": b.empty(b.rows),
            "level_out_loc1": b.empty(b.rows, dtype=torch.int64), "length_clamped1": b.empty(b.rows)}
    arguments = dict(ours, live_tokens=b.live_rows, causal_length=causal, out_loc=out_loc, page_size=b.page, levels=2,
                     ratio_shift0=0, ratio_shift1=1)
    outputs = {}

    def enqueue():
        made = theirs(causal[:n], out_loc, topk)
        outputs.update(level_out_loc0=made.c1_out_loc, length_clamped0=made.c1_seq_lens, level_out_loc1=made.c2_out_loc,
                       length_clamped1=made.c2_seq_lens)

    enqueue()
    return Case("C1 and C2", b.parameters(), Side(lambda: ops("compressed_metadata", **arguments), ours),
                {"build_low_ratio_metadata": Side(enqueue, outputs)}, {name: first(n) for name in ours})


def compressed_indices(get, ops, b, ratio_shift):
    """The page indices of one ratio, every reachable entry."""
    theirs = get("attention.dsv4.metadata_kernel").fill_all_compressed_indices
    per_page, columns = b.page >> ratio_shift, b.width // b.page
    table = b.integers(0, 1 << 16, b.rows, columns)
    causal = b.seq_lens.to(torch.int32)
    lengths = (causal[:b.live] >> ratio_shift).contiguous()
    ours = {"page_indices0": b.empty(b.rows, per_page * columns)}
    other = {"page_indices0": b.empty(b.live, per_page * columns)}
    arguments = dict(ours, live_tokens=b.live_rows, causal_length=causal, page_table=table, page_size=b.page, levels=1,
                     ratio_shift0=ratio_shift)
    return Case(f"C{1 << ratio_shift} page indices", b.parameters(), Side(lambda: ops("compressed_metadata", **arguments), ours),
                {"fill_all_compressed_indices": Side(lambda: theirs(
                    table[:b.live], lengths, other["page_indices0"], compress_ratio=1 << ratio_shift, page_size=b.page), other)},
                {"page_indices0": lines([length >> ratio_shift for length in b.lengths])})


def spec_page_table(get, ops, b, tokens_a_row, columns_b):
    """A line a token: the row's pages of the window, then the token's own."""
    theirs = get("attention.metadata").prepare_swa_spec_page_table_triton
    n = b.live * tokens_a_row
    table_a, table_b = b.integers(0, 1 << 20, b.live, b.width), b.integers(0, 1 << 20, n, columns_b)
    length_a, length_b = b.tensor(b.lengths), b.integers(0, columns_b + 1, n)
    row_of = torch.arange(n, device=b.device, dtype=torch.int32) // tokens_a_row
    ours, other = ({"table": b.empty(n, b.width + columns_b), "total": b.empty(n)} for _ in range(2))
    del other["total"]
    arguments = dict(ours, live_tokens=b.tensor([n]), row_of=row_of, table_a=table_a, length_a=length_a, table_b=table_b,
                     length_b=length_b)
    counts = [b.lengths[t // tokens_a_row] + int(own) for t, own in enumerate(length_b.tolist())]
    return Case("sliding-window spec page table", b.parameters(tokens=n),
                Side(lambda: ops("spec_page_table", **arguments), ours),
                {"prepare_swa_spec_page_table_triton": Side(lambda: theirs(
                    other["table"], table_a, table_b, length_a, length_b, tokens_a_row), other)}, {"table": lines(counts)})


def kv_indices(get, ops, b, starts=None, page_granular=False, slot_map=False, blocks=1):
    """CSR of the slots from `starts` on. SGLang's kernel reads indptr, which PyTorch made before: not in its time."""
    module = get("attention.kv_indices")
    counts = [length - start for length, start in zip(b.lengths, starts or [0] * b.live)]
    total = sum(counts)
    dead = b.rows - b.live
    start = b.tensor(starts + [0] * dead) if starts else None
    table = b.page_lines if page_granular else b.req_to_token
    mapping = b.slot_map() if slot_map else None
    ours = {"indptr": b.empty(b.rows + 1), "indices": b.empty(max(total, 1))}
    arguments = dict(b.own(), **ours, start=start, slot_map=mapping)
    arguments["req_to_token"] = table
    if page_granular:
        arguments["page_granular"] = 1
    indptr = b.tensor([0] + torch.tensor(counts).cumsum(0).tolist())
    other = {"indptr": indptr, "indices": b.empty(max(total, 1), dtype=torch.int64)}
    page_lens = b.tensor(counts)
    grid = (b.live, blocks) if blocks > 1 else (b.live,)
    peer_start = start[:b.live] if starts else None
    return Case("KV indices" + (", page-granular" if page_granular else "") + (", slot map" if slot_map else ""),
                b.parameters(), Side(lambda: ops("kv_indices", **arguments), ours),
                {"create_flashinfer_kv_indices_triton" + (f", {blocks} blocks a row" if blocks > 1 else ""): Side(
                    lambda: module.create_flashinfer_kv_indices_triton[grid](
                        table, b.peer_requests(), page_lens, indptr, peer_start, other["indices"], table.stride(0),
                        b.page if page_granular else 1, blocks > 1, mapping), other)},
                {"indptr": first(b.live + 1), "indices": first(total)})


def unified_kv_indices(get, ops, b, counts):
    """Prefix indices, then the new tokens'. SGLang's prefix sums are PyTorch's kernels, in its time."""
    theirs = get("attention.extend_attention").build_unified_kv_indices
    indptr = b.tensor([0] + torch.tensor(b.lengths).cumsum(0).tolist())
    prefix, extend = b.integers(0, 1 << 24, sum(b.lengths)), b.integers(0, 1 << 24, sum(counts))
    extend_counts = b.tensor(counts)
    starts = (extend_counts.cumsum(0) - extend_counts).to(torch.int32)
    total = sum(b.lengths) + sum(counts)
    ours = {"indptr": b.empty(b.live + 1), "indices": b.empty(total)}
    arguments = dict(ours, live_rows=b.live_rows, seq_lens=b.seq_lens, cap=b.width, query_counts=extend_counts,
                     max_count=max(counts), tokens=sum(counts), prefix_indptr=indptr, prefix_indices=prefix,
                     extend_indices=extend)
    outputs = {}

    def enqueue():
        outputs["indptr"], outputs["indices"], _ = theirs(indptr, prefix, starts, extend_counts, extend, b.live)

    return Case("unified KV indices", b.parameters(tokens=sum(counts)),
                Side(lambda: ops("unified_kv_indices", **arguments), ours), {"build_unified_kv_indices": Side(enqueue, outputs)},
                {"indptr": first(b.live + 1), "indices": first(total)})


def draft_steps(get, ops, b, steps):
    """All draft decodes of a round. SGLang either updates decode metadata once a step, or (page size 1) writes a CSR of slots
    for each step; stepgraph writes one page table that all steps share and their lengths and prefix sums."""
    by_step = get("attention.metadata").normal_decode_set_metadata
    kernel = get("speculative.cache_locs").generate_draft_decode_kv_indices
    n, power = b.live, 1 << (max(b.live, 1) - 1).bit_length()
    columns = -(-b.width // b.page)
    ours = {"steps_cache_seqlens": b.empty(steps, b.rows), "steps_cu_seqlens_k": b.empty(steps, b.rows + 1),
            "page_table": b.empty(b.rows, columns)}
    arguments = dict(b.own(), **ours, steps=steps, query_counts=b.tensor([1] * n + [0] * (b.rows - n)), max_count=1,
                     tokens=b.rows, out_cache_loc=b.empty(steps, b.rows, dtype=torch.int64), position=b.empty(steps, b.rows))
    each = {"steps_cache_seqlens": b.empty(steps, n), "steps_cu_seqlens_k": b.empty(steps, n + 1),
            "page_table": b.empty(steps, n, columns)}
    csr = {"indices": b.empty(steps, sum(b.lengths) + n * steps, dtype=torch.int64), "indptr": b.empty(steps, n + 1)}
    csr["indptr"][:, 0] = 0
    lengths = b.peer_lengths()

    def launch_each():
        for k in range(steps):
            by_step(each["steps_cache_seqlens"][k], each["steps_cu_seqlens_k"][k], each["page_table"][k], b.req_to_token,
                    b.peer_requests(), columns, lengths, k + 1, b.page)

    def check(mine, peer):
        found = []
        for k in range(steps):
            live = [length + k + 1 for length in b.lengths]
            sums = mine["steps_cu_seqlens_k"][k, :n + 1]
            whole = lines([-(-length // b.page) for length in live])
            if "indptr" in peer:
                same_sums = torch.equal(sums, peer["indptr"][k])
                same_table = torch.equal(whole(mine["page_table"]).long(), peer["indices"][k, :sum(live)])
            else:
                same_sums = torch.equal(sums, peer["steps_cu_seqlens_k"][k]) and torch.equal(
                    mine["steps_cache_seqlens"][k, :n], peer["steps_cache_seqlens"][k])
                same_table = torch.equal(whole(mine["page_table"]), whole(peer["page_table"][k]))
            found += ([] if same_sums else [f"step {k}: lengths differ"]) + ([] if same_table else [f"step {k}: tables differ"])
        return found

    peers = {f"normal_decode_set_metadata, {steps} launches": Side(launch_each, each)}
    if b.page == 1:
        peers["generate_draft_decode_kv_indices"] = Side(lambda: kernel[(steps, n, 1)](
            b.peer_requests(), b.req_to_token, lengths, csr["indices"], csr["indptr"], lengths, b.req_to_token.stride(0),
            csr["indices"].shape[1], n + 1, power, 1 << (steps - 1).bit_length(), power, 1), csr)
    return Case(f"{steps} draft steps", b.parameters(), Side(lambda: ops("draft_steps_metadata", **arguments), ours), peers, {},
                check)


def positions(get, ops, b, counts):
    """Positions and first tokens of packed query tokens; stepgraph's op writes rows and output slots, too."""
    theirs = get("attention.position").compute_position_triton
    total = sum(counts)
    prefix = b.tensor([length - count for length, count in zip(b.lengths, counts)])
    extend = b.tensor(counts)
    ours = {"position": b.empty(total), "cu_seqlens_q": b.empty(b.live + 1)}
    arguments = dict(b.own(), **ours, query_counts=extend, max_count=max(counts), tokens=total, row_of=b.empty(total),
                     out_cache_loc=b.empty(total, dtype=torch.int64))
    outputs = {}

    def enqueue():
        outputs["position"], outputs["cu_seqlens_q"] = theirs(prefix, extend, total)

    return Case("token inputs", b.parameters(tokens=total), Side(lambda: ops("token_inputs", **arguments), ours),
                {"compute_position_triton": Side(enqueue, outputs)},
                {"position": first(total), "cu_seqlens_q": lambda starts: starts.flatten()[:b.live]})


def split_plan(get, ops, b, max_splits=16, heads=32, kv_heads=8, tile=64):
    """Plans differ by design: SGLang gives a number of splits a row, stepgraph the chunks themselves; what must hold of
    ours: chunks cover each row, in order, no more than allowed."""
    kernel = get("attention.metadata").get_num_kv_splits_triton
    workers = torch.cuda.get_device_properties(0).multi_processor_count if b.device == "cuda" else 132
    ours = {"chunks": b.empty(b.rows * max_splits, 4), "cu_chunks": b.empty(b.rows + 1)}
    arguments = dict(ours, live_rows=b.live_rows, seq_lens=b.seq_lens, cap=b.width, tile=tile, max_splits=max_splits,
                     workers=workers)
    other = {"splits": b.empty(b.live)}

    def check(mine, peer):
        found, bounds = [], mine["cu_chunks"].tolist()
        for r, length in enumerate(b.lengths):
            chunks = mine["chunks"][bounds[r]:bounds[r + 1]].tolist()
            at = 0
            for row, begin, end, _ in chunks:
                if row != r or begin != at or end <= begin:
                    found.append(f"row {r}: chunk {begin} to {end} after {at}")
                at = end
            if at != length or len(chunks) > max_splits:
                found.append(f"row {r}: {len(chunks)} chunks to {at} of {length}")
        if not (1 <= int(peer["splits"].min()) and int(peer["splits"].max()) <= max_splits):
            found.append(f"their splits {peer['splits'].tolist()}")
        return found

    return Case("KV split plan", b.parameters(max_splits=max_splits), Side(lambda: ops("kv_split_plan", **arguments), ours),
                {"get_num_kv_splits_triton": Side(lambda: kernel[(1,)](
                    other["splits"], b.peer_lengths(), b.live, 1, heads, kv_heads, max_splits, workers,
                    MAX_NUM_SEQ=1 << (max(b.live, 1) - 1).bit_length()), other)}, {}, check)
