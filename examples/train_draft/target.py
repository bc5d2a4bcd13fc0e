"""The target in PyTorch: a Llama-architecture GGUF file, dequantised, and batched generation from it.

Rows are padded on the left, so that one column of the KV cache serves all rows in a step. The numbers follow
examples/llama/cuda_llama.cu: bf16 weights and activations, float32 residual, rotary pairs (2i, 2i + 1).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

try:
    from decode_attention import attend
except ImportError:  # no Triton
    attend = None


@dataclass
class Config:
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_size: int
    ffn_size: int
    vocab_size: int
    rope_base: float
    norm_epsilon: float


def read_gguf(path):
    """(Config, {tensor name: float32 array}, tokenizer) of the GGUF file."""
    import gguf

    reader = gguf.GGUFReader(path)
    field = lambda key: reader.fields[key].contents()
    tensors = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    hidden, heads = field("llama.embedding_length"), field("llama.attention.head_count")
    config = Config(layers=field("llama.block_count"), hidden_size=hidden, heads=heads,
                    kv_heads=field("llama.attention.head_count_kv"), head_size=hidden // heads,
                    ffn_size=field("llama.feed_forward_length"), vocab_size=len(tensors["token_embd.weight"]),
                    rope_base=field("llama.rope.freq_base"), norm_epsilon=field("llama.attention.layer_norm_rms_epsilon"))
    return config, tensors, read_tokenizer(field)


def read_tokenizer(field):
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = field("tokenizer.ggml.tokens")
    merges = [tuple(line.split(" ")) for line in field("tokenizer.ggml.merges")]
    made = Tokenizer(models.BPE(vocab={text: i for i, text in enumerate(tokens)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    made.decoder = decoders.ByteLevel()
    control = [text for text, kind in zip(tokens, field("tokenizer.ggml.token_type")) if kind == 3]
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in control])
    return made


def chat(user, system="You are a helpful AI assistant named SmolLM, trained by Hugging Face"):
    """What the model reads before it answers; without `user`, what it reads before a question."""
    text = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n"
    return text if user is None else f"{text}{user}<|im_end|>\n<|im_start|>assistant\n"


def rms_norm(x, gain, epsilon):
    return F.rms_norm(x.float(), x.shape[-1:], gain, epsilon)


def rope_turns(positions, head_size, base):
    """Complex turns [..., 1, head_size / 2] for positions [...]."""
    frequency = base ** (-torch.arange(0, head_size, 2, device=positions.device, dtype=torch.float64) / head_size)
    angle = (positions.double()[..., None, None] * frequency)
    return torch.complex(angle.cos().float(), angle.sin().float())


def rotate(x, turns):
    """x [..., heads, head_size] turned by `rope_turns` of its positions."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)


def product(x, weight):
    """x [..., columns] times the transpose of weight [rows, columns], float32 sums kept as float32."""
    if x.is_cuda and x.dtype != torch.float32:
        with torch.autocast("cuda", enabled=False):
            flat = torch.mm(x.flatten(0, -2), weight.T, out_dtype=torch.float32)
        return flat.view(*x.shape[:-1], weight.shape[0])
    return F.linear(x, weight).float()


@dataclass
class Answers:
    """A batch of generated texts, padded on the left; row r's text is columns start[r] to stop[r] - 1."""

    tokens: torch.Tensor  # [rows, columns]
    hidden: torch.Tensor  # [rows, columns, taps, hidden] residuals after the tapped layers, before any norm
    best: torch.Tensor    # [rows, columns] the target's argmax for the column; from `begin` on
    start: torch.Tensor   # [rows]
    stop: torch.Tensor    # [rows]
    begin: int            # where all answers begin


class Target:
    def __init__(self, config, tensors, device, dtype, taps=()):
        self.config, self.device, self.dtype = config, device, dtype
        self.taps = tuple(taps) or (config.layers,)  # layers whose results are kept, ascending; the last is one of them
        put = lambda name, kind=dtype: torch.tensor(tensors[name]).to(device, kind)
        self.embedding = put("token_embd.weight")
        self.output = put("output.weight") if "output.weight" in tensors else self.embedding
        self.output_norm = put("output_norm.weight", torch.float32)
        self.layers = []
        for i in range(config.layers):
            at = lambda name, kind=dtype: put(f"blk.{i}.{name}.weight", kind)
            self.layers.append({
                "attn_norm": at("attn_norm", torch.float32), "ffn_norm": at("ffn_norm", torch.float32),
                "qkv": torch.cat([at("attn_q"), at("attn_k"), at("attn_v")]), "out": at("attn_output"),
                "gate_up": torch.cat([at("ffn_gate"), at("ffn_up")]), "down": at("ffn_down")})

    def empty_cache(self, rows, columns):
        c = self.config
        shape = (c.layers, 2, rows, c.kv_heads, columns, c.head_size)
        return torch.zeros(shape, device=self.device, dtype=self.dtype)

    def forward(self, tokens, start, cache, columns, width):
        """Hidden states [rows, n, taps, hidden] before the output norm; `tokens` [rows, n] go to `columns` [n] of the cache,
        of which the first `width` are looked at; row r's text begins at column start[r]."""
        c = self.config
        rows, n = tokens.shape
        turns = rope_turns((columns - start[:, None]).clamp(min=0), c.head_size, c.rope_base)
        fast = n == 1 and attend is not None and self.device != "cpu"
        place = torch.arange(width, device=self.device)
        group = c.heads // c.kv_heads  # query heads of a KV head stand as further queries of it
        seen = (place >= start[:, None])[:, None] & (place <= columns[:, None])  # [rows, n, width]
        seen = seen | (place == columns[:, None])  # a padding token sees itself, else its softmax is NaN
        bias = torch.zeros(seen.shape, device=self.device, dtype=self.dtype).masked_fill_(~seen, -1e9)
        bias = bias[:, None].expand(-1, group, -1, -1).reshape(rows, 1, group * n, -1).expand(-1, c.kv_heads, -1, -1)
        x, kept = self.embedding[tokens].float(), []
        for layer, (w, (keys, values)) in enumerate(zip(self.layers, cache), 1):
            qkv = rms_norm(x, w["attn_norm"], c.norm_epsilon).to(self.dtype) @ w["qkv"].T
            qkv = qkv.view(rows, n, c.heads + 2 * c.kv_heads, c.head_size)
            turned = rotate(qkv[:, :, :c.heads + c.kv_heads], turns)
            keys.index_copy_(2, columns, turned[:, :, c.heads:].transpose(1, 2))
            values.index_copy_(2, columns, qkv[:, :, c.heads + c.kv_heads:].transpose(1, 2))
            query = turned[:, :, :c.heads].transpose(1, 2).reshape(rows, c.kv_heads, group * n, c.head_size)
            if fast:
                mixed = attend(query, keys, values, start, columns)
            else:
                mixed = F.scaled_dot_product_attention(query, keys[:, :, :width], values[:, :, :width], attn_mask=bias)
            mixed = mixed.view(rows, c.heads, n, c.head_size).transpose(1, 2)
            x = x + (mixed.reshape(rows, n, -1) @ w["out"].T).float()
            gate, up = (rms_norm(x, w["ffn_norm"], c.norm_epsilon).to(self.dtype) @ w["gate_up"].T).chunk(2, -1)
            x = x + ((F.silu(gate.float()) * up.float()).to(self.dtype) @ w["down"].T).float()
            if layer in self.taps:
                kept.append(x)
        return torch.stack(kept, 2)

    def normed(self, hidden):
        return rms_norm(hidden, self.output_norm, self.config.norm_epsilon)

    @torch.no_grad()
    def generate(self, prompts, new_tokens, temperature, end, keep_hidden=True, chunk=256):
        """Answers to `prompts` (lists of ids), each row at its temperature [rows], 0 for greedy; `end` ends one."""
        rows, begin = len(prompts), (max(map(len, prompts)) + 15) // 16 * 16  # few different shapes
        columns = begin + new_tokens
        new = lambda *shape, dtype=torch.long: torch.zeros(shape, dtype=dtype, device=self.device)
        start = torch.tensor([begin - len(p) for p in prompts], device=self.device)
        tokens, best = new(rows, columns), new(rows, columns)
        tokens[:, :begin] = torch.tensor([[0] * (begin - len(p)) + list(p) for p in prompts])
        cache = self.empty_cache(rows, columns)
        hidden = new(rows, columns if keep_hidden else 0, len(self.taps), self.config.hidden_size, dtype=self.dtype)
        last = new(rows, self.config.hidden_size, dtype=torch.float32)
        before = torch.arange(begin, device=self.device)
        for at in range(0, rows, chunk):
            some = slice(at, at + chunk)
            x = self.forward(tokens[some, :begin], start[some], cache[:, :, some], before, begin)
            if keep_hidden:
                hidden[some, :begin] = x
            last[some] = x[:, -1, -1]
        sampled = temperature.nonzero()[:, 0]
        warmth = temperature[sampled, None]
        stop = torch.full((rows,), columns, device=self.device)
        column = torch.full((1,), begin, device=self.device)

        def step():
            logits = product(self.normed(last).to(self.dtype), self.output)
            choice = logits.argmax(-1)
            best.index_copy_(1, column, choice[:, None])
            if len(sampled) > 0:
                noise = new(len(sampled), logits.shape[1], dtype=torch.float32).exponential_().clamp_(min=1e-20).log_()
                choice[sampled] = (logits[sampled] / warmth - noise).argmax(-1)  # Gumbel: its argmax is a draw
            tokens.index_copy_(1, column, choice[:, None])
            stop.copy_(torch.where((choice == end) & (stop > column), column + 1, stop))
            x = self.forward(choice[:, None], start, cache, column, columns)
            if keep_hidden:
                hidden.index_copy_(1, column, x.to(hidden.dtype))
            last.copy_(x[:, 0, -1])
            column.add_(1)

        step()
        if self.device != "cpu":
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            step = graph.replay
        for made in range(1, new_tokens):
            if made % 16 == 0 and bool((stop <= column).all()):
                break
            step()
        return Answers(tokens, hidden, best, start, stop, begin)
