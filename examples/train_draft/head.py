"""The draft head: one decoder layer over (embedding of token p + 1, the target's residuals at p after some layers).

Entry p predicts token p + 2. In training the later draft steps are run as they will be run: step s reads at p the
head's own output of step s - 1 at p - 1, and sees the keys of step 0 up to p - s (the target's features), then
its own chain's.
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from target import product, rms_norm, rope_turns, rotate


# on a GPU the passes over logits are most of a training step, so they are fused
fused = torch.compile if torch.cuda.is_available() else lambda function: function


@fused
def distribution(logits, best, hard_weight):
    """Softmax of logits [lines, vocab], mixed with `hard_weight` of the one at `best` [lines]."""
    place = torch.arange(logits.shape[1], device=logits.device)
    soft = logits.softmax(-1) * (1 - hard_weight)
    return (soft + hard_weight * (place == best[:, None])).to(torch.bfloat16)


@fused
def cross_entropy(logits, aim, weight):
    """Sum over lines of weight times the cross entropy to `aim`, and its slope by the logits."""
    norm = logits.logsumexp(-1)
    loss = (weight * (norm - (aim * logits).sum(-1))).sum()
    return loss, (((logits - norm[:, None]).exp() - aim) * weight[:, None]).to(torch.bfloat16)


class HeadLoss(torch.autograd.Function):
    """`cross_entropy` of x [lines, hidden] times the frozen `output` [vocab, hidden]; the slope by x is made at once,
    so no logits are kept."""

    @staticmethod
    def forward(context, x, output, aim, weight):
        loss, slope = cross_entropy(product(x.to(output.dtype), output), aim, weight)
        context.save_for_backward((slope.to(output.dtype) @ output).float())
        return loss

    @staticmethod
    def backward(context, gradient):
        slope, = context.saved_tensors
        return slope * gradient, None, None, None


class DraftHead(nn.Module):
    def __init__(self, config, target, draft_to_target, ffn_size=None):
        super().__init__()
        self.config, self.taps = config, target.taps
        hidden, ffn = config.hidden_size, ffn_size or config.ffn_size
        attention, kv = config.heads * config.head_size, config.kv_heads * config.head_size
        matrix = lambda rows, columns, scale=1.0: nn.Parameter(torch.randn(rows, columns) * scale / math.sqrt(columns))
        gain = lambda: nn.Parameter(torch.ones(hidden))
        self.embedding_norm, self.hidden_norm = gain(), nn.Parameter(torch.ones(len(self.taps), hidden))
        self.fc = matrix(hidden, (1 + len(self.taps)) * hidden)
        self.attention_norm, self.ffn_norm = gain(), gain()
        self.query, self.key = matrix(attention, hidden), matrix(kv, hidden)
        self.value, self.attention_output = matrix(kv, hidden), matrix(hidden, attention, 0.5)
        self.gate, self.up, self.down = matrix(ffn, hidden), matrix(ffn, hidden), matrix(hidden, ffn, 0.5)
        self.output_norm = nn.Parameter(target.output_norm.float().clone())
        # what is the target's, and the map, are not the head's to keep
        self.target = target
        self.choose(draft_to_target)

    def choose(self, draft_to_target):
        """Drafts these tokens of the target, ascending."""
        vocab, device = len(self.target.output), draft_to_target.device
        self.embedding, self.draft_to_target = self.target.embedding, draft_to_target
        self.output = self.target.output[draft_to_target]
        self.target_to_draft = torch.full((vocab,), -1, device=device)  # -1: no draft
        self.target_to_draft[draft_to_target] = torch.arange(len(draft_to_target), device=device)

    def norm(self, x, gain):
        return rms_norm(x, gain, self.config.norm_epsilon)

    def normed(self, hidden):
        """What the target's output matrix is applied to."""
        return self.norm(hidden, self.output_norm)

    @torch.no_grad()
    def logits(self, hidden):
        """Over the draft vocabulary."""
        return product(self.normed(hidden).to(self.output.dtype), self.output)

    @torch.no_grad()
    def aim(self, hidden, best, hard_weight):
        """What the target's states [lines, hidden] say over the draft vocabulary, mixed with their argmax `best`."""
        logits = product(rms_norm(hidden, self.target.output_norm, self.config.norm_epsilon).to(self.output.dtype), self.output)
        return distribution(logits, best, hard_weight)

    def fuse(self, tokens, features):
        """What the layer begins with, [rows, n, hidden]; `features` are the target's taps, [rows, n, taps, hidden], or a
        state of the head's own, [rows, n, hidden], which stands in the last one's place."""
        if features.dim() == 4:
            fed = (self.norm(features, None) * self.hidden_norm).flatten(2)
        else:
            fed = F.pad(self.norm(features, self.hidden_norm[-1]), ((len(self.taps) - 1) * self.config.hidden_size, 0))
        return F.linear(torch.cat((self.norm(self.embedding[tokens], self.embedding_norm), fed), -1), self.fc).float()

    def heads(self, x, weight, turns=None):
        """Queries, keys or values, [rows, heads, n, head_size]."""
        made = F.linear(x, weight).unflatten(-1, (-1, self.config.head_size))
        return (made if turns is None else rotate(made, turns)).transpose(1, 2)

    def finish(self, x, mixed):
        x = x + F.linear(mixed.transpose(1, 2).flatten(2), self.attention_output).float()
        inner = self.norm(x, self.ffn_norm)
        return x + F.linear(F.silu(F.linear(inner, self.gate)) * F.linear(inner, self.up), self.down).float()

    def unroll(self, tokens, features, start, begin, steps):
        """Hidden states of `steps` draft steps, each [rows, n - begin + 1, hidden], from entry begin - 1 on.

        `tokens` [rows, n + 1] and `features` [rows, n, taps, hidden] of left-padded text whose answers begin at column
        `begin`; entry p pairs token p + 1 with feature p. Step s at p is what the chain that began s entries earlier
        makes; it holds no meaning if that is before begin - 1, where the first draft of an answer is made.
        """
        c = self.config
        n, first, group = features.shape[1], begin - 1, c.heads // c.kv_heads
        column = torch.arange(n, device=tokens.device)
        turns = rope_turns((column - start[:, None]).clamp(min=0), c.head_size, c.rope_base)
        live = (column >= start[:, None])[:, None, None]
        spread = lambda x: x.repeat_interleave(group, 1)
        keys, values, out = [], [], []
        for step in range(steps):
            at = 0 if step == 0 else first  # keys of the prompt are needed once
            fed = features if step == 0 else F.pad(out[-1][:, :-1], (0, 0, 1, 0))
            x = self.fuse(tokens[:, at + 1:], fed)
            inner = self.norm(x, self.attention_norm)
            keys.append(spread(self.heads(inner, self.key, turns[:, at:])))
            values.append(spread(self.heads(inner, self.value)))
            x, inner = x[:, first - at:], inner[:, first - at:]
            seen = [live & (column <= column[first:, None] - step)]
            own = torch.eye(n - first, dtype=torch.bool, device=tokens.device)
            for back in range(step - 1, -1, -1):  # the chain's step `step - back` lies `back` entries before
                seen.append(F.pad(own, (0, back))[:, back:].expand(*seen[0].shape[:2], -1, -1))
            mixed = F.scaled_dot_product_attention(self.heads(inner, self.query, turns[:, first:]), torch.cat(keys, 2),
                                                   torch.cat(values, 2), attn_mask=torch.cat(seen, -1))
            out.append(self.finish(x, mixed))
        return out

    @torch.no_grad()
    def chain_hits(self, tokens, features, start, begin, steps):
        """[rows, steps, entries from begin - 1 on] whether a step proposes token p + 2, those before it being right."""
        n = features.shape[1] - 1  # the last has no token to be right about
        found = [self.draft_to_target[self.logits(x).argmax(-1)]
                 for x in self.unroll(tokens[:, :n + 1], features[:, :n], start, begin, steps)]
        return torch.stack([each[:, :-1] == tokens[:, begin + 1:n + 1] for each in found], 1)


def accept_lengths(hits, begin, stop):
    """Tokens of each round (bonus included) of greedy decoding of a text, drafts from `hits` [steps, entries] of its row.

    `begin` is the column of the first generated token, `stop` one past the last. The prompt's step yields token
    `begin`; a round whose last token is at column x drafts tokens x + 1, x + 2, ... from the entry x - 1 on.
    """
    lengths, last = [], begin
    while last + 1 < stop:
        kept = 0
        while kept < len(hits) and last + kept + 2 < stop and hits[kept][last - begin + kept]:
            kept += 1
        lengths.append(kept + 1)
        last += kept + 1
    return lengths
