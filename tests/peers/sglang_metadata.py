"""Step metadata of stepgraph and of SGLang on the same batch, a function a case."""

import torch

from cases import Case, Side, first, lines, pages


def _decode_outputs(b, n, swa=False):
    outputs = {"cache_seqlens": b.empty(n), "cu_seqlens_k": b.empty(n + 1),
               "page_table": b.empty(n, -(-b.width // b.page)), "cu_seqlens_q": b.empty(n + 1)}
    if swa:
        outputs["swa_page_table"] = b.empty(n, -(-b.width // b.page))
    return outputs


def _decode_live(b, delta=0):
    each = lines(pages([length + delta for length in b.lengths], b.page))
    return {"cache_seqlens": first(b.live), "cu_seqlens_k": first(b.live + 1), "page_table": each, "swa_page_table": each,
            "cu_seqlens_q": first(b.live + 1)}


def decode(get, ops, b, delta=0, window=None, page_map=False, kernels=("early exit", "a block a row")):
    """Lengths, prefix sums and page tables; `window`: None, "slots" or "pages", what maps to the sliding window's pool."""
    early = get("attention.metadata").normal_decode_set_metadata
    by_row = get("attention.trtllm_mha_graph_metadata").update_trtllm_mha_graph_metadata
    full_to_swa = b.slot_map(negatives=False) if window == "slots" else None
    swa_map = b.page_map() if window == "pages" else None
    full_map = b.page_map() if page_map else None
    ours = _decode_outputs(b, b.rows, window is not None)
    del ours["cu_seqlens_q"]
    arguments = dict(b.own(), **ours, delta=delta, full_to_swa=full_to_swa, swa_page_map=swa_map, page_map=full_map,
                     skip=0, swa_skip=0)
    peers = {}
    if "early exit" in kernels:
        theirs = _decode_outputs(b, b.live, window is not None)
        peers["normal_decode_set_metadata"] = Side(lambda: early(
            theirs["cache_seqlens"], theirs["cu_seqlens_k"], theirs["page_table"], b.req_to_token, b.peer_requests(),
            theirs["page_table"].shape[1], b.peer_lengths(), delta, b.page, theirs.get("swa_page_table"), full_to_swa,
            full_v2p=full_map, swa_v2p=swa_map), {k: v for k, v in theirs.items() if k != "cu_seqlens_q"})
    if "a block a row" in kernels and swa_map is None and full_map is None:
        second = _decode_outputs(b, b.live, window is not None)
        second["cu_seqlens_k"][0] = 0  # theirs to preset
        peers["update_trtllm_mha_graph_metadata"] = Side(lambda: by_row(
            req_pool_indices=b.peer_requests(), seq_lens=b.peer_lengths(), req_to_token=b.req_to_token,
            cache_seqlens=second["cache_seqlens"], cu_seqlens_k=second["cu_seqlens_k"], page_table=second["page_table"],
            bs=b.live, seqlen_offset=delta, max_seq_pages=second["page_table"].shape[1], page_size=b.page,
            swa_mapping=full_to_swa, swa_page_table=second.get("swa_page_table")),
            {k: v for k, v in second.items() if k != "cu_seqlens_q"})
    name = "decode" + (f", window by {window}" if window else "") + (", page map" if page_map else "")
    return Case(name, b.parameters(), Side(lambda: ops("decode_metadata", **arguments), ours), peers, _decode_live(b, delta))


def draft_extend(get, ops, b, counts, window=False):
    """Decode metadata with cu_seqlens_q, and, with a window (counts are then equal), its output slots."""
    early = get("attention.metadata").draft_extend_set_metadata
    by_row = get("attention.trtllm_mha_graph_metadata")
    total = sum(counts)
    extend = b.tensor(counts + [0] * (b.rows - b.live))
    full_to_swa = b.slot_map() if window else None
    ours = _decode_outputs(b, b.rows, window)
    if window:
        ours["swa_out_cache_loc"] = b.empty(total, dtype=torch.int64)
    query = dict(query_counts=extend, max_count=max(counts), tokens=total)
    arguments = dict(b.own(), **ours, **query, full_to_swa=full_to_swa)
    raw = None
    if window:
        positions = [(r, length - count + j) for r, (length, count) in enumerate(zip(b.lengths, counts)) for j in range(count)]
        row, column = torch.tensor(positions, device=b.device).unbind(1)
        raw = b.req_to_token[b.requests.long()[row], column].long()
    theirs, second = (_decode_outputs(b, b.live, window) for _ in range(2))
    for side in (theirs, second):
        if window:
            side["swa_out_cache_loc"] = b.empty(total, dtype=torch.int64)
    second["cu_seqlens_k"][0] = second["cu_seqlens_q"][0] = 0
    peers = {
        "draft_extend_set_metadata": Side(lambda: early(
            theirs["cache_seqlens"], theirs["cu_seqlens_k"], theirs["cu_seqlens_q"], theirs["page_table"], b.req_to_token,
            b.peer_requests(), b.peer_lengths(), extend[:b.live], b.page, full_to_swa, theirs.get("swa_page_table"), raw,
            theirs.get("swa_out_cache_loc")), theirs),
        "update_trtllm_mha_graph_metadata": Side(lambda: by_row.update_trtllm_mha_graph_metadata(
            req_pool_indices=b.peer_requests(), seq_lens=b.peer_lengths(), req_to_token=b.req_to_token,
            cache_seqlens=second["cache_seqlens"], cu_seqlens_k=second["cu_seqlens_k"], page_table=second["page_table"],
            bs=b.live, seqlen_offset=0, max_seq_pages=second["page_table"].shape[1], page_size=b.page,
            swa_mapping=full_to_swa, swa_page_table=second.get("swa_page_table"), out_cache_loc=raw,
            swa_out_cache_loc=second.get("swa_out_cache_loc"), cu_seqlens_q=second["cu_seqlens_q"], qlens=extend[:b.live],
            q_mode=by_row.Q_MODE_CUMSUM), second),
    }
    live = dict(_decode_live(b), swa_out_cache_loc=first(total))
    return Case("draft-extend" + (", window" if window else ""), b.parameters(tokens=total),
                Side(lambda: ops("draft_extend_metadata", **arguments), ours), peers, live)


def _dsa_outputs(b, n, tokens, wide, next_n=0):
    outputs = {"cache_seqlens": b.empty(n), "cu_seqlens_k": b.empty(n + 1), "expanded": b.empty(tokens),
               "dsa_cache_seqlens": b.empty(tokens), "dsa_cu_seqlens_k": b.empty(tokens + 1),
               "real_page_table": b.empty(tokens, -(-b.width // b.page))}
    if wide:
        outputs["page_table_1"] = b.empty(tokens, b.width)
    if next_n:
        outputs["paged_mqa_ctx_lens"] = b.empty(n, next_n)
    return outputs


def dsa(get, ops, b, kind, counts, topk, wide=True, kpool=1, early=True):
    """`kind`: "decode", "verify" (counts are equal and not in the lengths) or "draft-extend"; a line of the tables a token.
    Both of SGLang's kernels, the bounded grid alone where `early` is false."""
    total, dead = sum(counts), b.rows - b.live
    delta = counts[0] if kind == "verify" else 0
    captured = total + dead * max(counts)
    ours = _dsa_outputs(b, b.rows, captured, wide, counts[0] if kind == "verify" else 0)
    scratch = {"cu_seqlens_q": b.empty(b.rows + 1), "row_of": b.empty(captured)}
    arguments = dict(b.own(), **ours, **scratch, delta=delta, topk=topk, kpool=kpool, line_per_token=1,
                     query_counts=b.tensor(counts + [0] * dead), max_count=max(counts), tokens=captured)
    peers, keep = {}, []
    extend = b.tensor(counts)

    def add(name, function, **more):
        out = _dsa_outputs(b, b.live, total, wide, counts[0] if kind == "verify" else 0)
        keep.append(out)
        shared = (b.peer_requests(), b.req_to_token, out["cache_seqlens"], out["cu_seqlens_k"], out.get("page_table_1"))
        lengths = (out["dsa_cache_seqlens"], out["dsa_cu_seqlens_k"], out["real_page_table"], b.live)
        if kind == "decode":
            del out["expanded"]
            call = lambda: function(b.peer_lengths(), *shared, *lengths, b.width, topk, b.page, **more)
        elif kind == "verify":
            call = lambda: function(b.peer_lengths(), *shared, out["expanded"], *lengths, b.width, topk, b.page, counts[0],
                                    out["paged_mqa_ctx_lens"], **more)
        else:
            call = lambda: function(b.peer_lengths(), extend, *shared, out["expanded"], *lengths, total, b.width, topk, b.page,
                                    max(counts), total, **more)
        peers[name] = Side(call, out)

    stem = {"decode": "fused_dsa_decode_metadata", "verify": "fused_dsa_target_verify_metadata",
            "draft-extend": "fused_dsa_draft_extend_metadata"}[kind]
    module = {"decode": "decode", "verify": "verify", "draft-extend": "draft_extend"}[kind]
    if kpool == 1 and early:
        add(stem, getattr(get("attention.dsa.metadata"), stem))
    add(stem + "_kpool", getattr(get("attention.dsa.kpool_metadata." + module), stem + "_kpool"), index_kpool=kpool)
    by_token = [length + delta for length, count in zip(b.lengths, counts) for _ in range(count)]
    live = {"cache_seqlens": first(b.live), "cu_seqlens_k": first(b.live + 1), "expanded": first(total),
            "dsa_cache_seqlens": first(total), "dsa_cu_seqlens_k": first(total + 1),
            "real_page_table": lines(pages(by_token, b.page)), "page_table_1": lines(by_token),
            "paged_mqa_ctx_lens": first(b.live * counts[0])}
    name = f"DSA {kind}, {'wide and ' if wide else ''}compact" + (f", pools of {kpool}" if kpool > 1 else "")
    return Case(name, b.parameters(tokens=total, topk=topk), Side(lambda: ops("dsa_metadata", **arguments), ours), peers, live)
