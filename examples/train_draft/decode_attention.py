"""Attention of one token a row over a KV cache padded on the left: reads a row's own columns and no others."""

import torch
import triton
import triton.language as tl


@triton.jit
def decode_attention(query, keys, values, start, column, out, scale, row_stride, head_stride,
                     group: tl.constexpr, lines: tl.constexpr, size: tl.constexpr, tile: tl.constexpr):
    row, head, kv_heads = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    first, stop = tl.load(start + row).to(tl.int32), tl.load(column).to(tl.int32) + 1
    line, part, place = tl.arange(0, lines), tl.arange(0, size), tl.arange(0, tile)
    at = (row * kv_heads + head) * group * size + line[:, None] * size + part
    q = tl.load(query + at, mask=line[:, None] < group, other=0)
    base = row * row_stride + head * head_stride
    largest = tl.full([lines], -1e30, tl.float32)
    total = tl.zeros([lines], tl.float32)
    mixed = tl.zeros([lines, size], tl.float32)
    for tile_start in range(first, stop, tile):
        here = tile_start + place
        live = here < stop
        cell = base + here[:, None] * size + part
        k = tl.load(keys + cell, mask=live[:, None], other=0)
        v = tl.load(values + cell, mask=live[:, None], other=0)
        score = tl.where(live[None], tl.dot(q, tl.trans(k)) * scale, -1e30)
        above = tl.maximum(largest, tl.max(score, 1))
        weight, shrink = tl.exp(score - above[:, None]), tl.exp(largest - above)
        total = total * shrink + tl.sum(weight, 1)
        mixed = mixed * shrink[:, None] + tl.dot(weight.to(v.dtype), v)
        largest = above
    tl.store(out + at, (mixed / total[:, None]).to(out.dtype.element_ty), mask=line[:, None] < group)


def attend(query, keys, values, start, column):
    """`query` [rows, kv_heads, group, size] over columns start[r] to column[0] of `keys`, `values` [rows, kv_heads, columns,
    size]; like `query`."""
    rows, kv_heads, group, size = query.shape
    query = query.contiguous()
    assert keys.stride() == values.stride() and keys.stride()[2:] == (size, 1)
    out = torch.empty_like(query)
    decode_attention[(rows, kv_heads)](query, keys, values, start, column, out, size ** -0.5, keys.stride(0), keys.stride(1),
                                       group, 16, size, 64, num_warps=4)
    return out
