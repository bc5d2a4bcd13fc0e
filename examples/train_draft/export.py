"""What leaves the training: the weights, and a case with its results for the tests of the loader and the kernels."""

import copy
import json

import torch
from safetensors.torch import load_file, save_file

MATRICES = ("fc", "query", "key", "value", "attention_output", "gate", "up", "down")
GAINS = ("embedding_norm", "hidden_norm", "attention_norm", "ffn_norm", "output_norm")


def save_head(head, path):
    """Writes the weights, bf16 matrices and float32 gains; the file's size."""
    c = head.config
    tensors = {name: getattr(head, name).detach().to(torch.bfloat16).cpu().contiguous() for name in MATRICES}
    tensors |= {name: getattr(head, name).detach().float().cpu().flatten().contiguous() for name in GAINS}
    tensors["draft_to_target"] = head.draft_to_target.to(torch.int32).cpu().contiguous()
    about = {"format": "stepgraph draft head 1", "hidden_size": c.hidden_size, "heads": c.heads, "kv_heads": c.kv_heads,
             "head_size": c.head_size, "ffn_size": head.gate.shape[0], "target_vocab_size": c.vocab_size,
             "rope_base": c.rope_base, "norm_epsilon": c.norm_epsilon}
    if head.taps != (c.layers,):
        about["taps"] = ",".join(map(str, head.taps))
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path, metadata={key: str(value) for key, value in about.items()})
    path.chmod(0o644)
    return path.stat().st_size


def load_head(head, path):
    """Puts the weights of a file into `head`, which keeps its own draft vocabulary."""
    found = load_file(path, device=str(head.embedding.device))
    with torch.no_grad():
        for name in MATRICES + GAINS:
            getattr(head, name).copy_(found[name].view_as(getattr(head, name)))


def case_features(entries, hidden):
    """[entries, hidden] of values that any language makes alike: multiples of 1 / 16 between -8 and 8."""
    state, out = 12345, []
    for _ in range(entries * hidden):
        state = (state * 1103515245 + 12345) % 2 ** 31
        out.append(((state >> 16) % 257 - 128) / 16)
    return torch.tensor(out).view(entries, hidden)


@torch.no_grad()
def save_case(head, path, entries=6, steps=3, shown=24):
    """A text of fixed tokens: the first `entries` of step 0, then a chain of argmaxes, float32 on the CPU."""
    cpu = copy.copy(head)
    cpu._parameters = {name: value.detach().float().cpu() for name, value in head._parameters.items()}
    cpu.embedding, cpu.output, cpu.draft_to_target = (part.cpu() for part in (
        head.embedding.float(), head.output.float(), head.draft_to_target))
    tokens = [(7 + 1234 * i) % head.config.vocab_size for i in range(entries + 1)]
    features = case_features(entries, len(head.taps) * head.config.hidden_size).view(entries, len(head.taps), -1)
    start = torch.zeros(1, dtype=torch.long)
    out = {"tokens": tokens, "entries": []}
    for _ in range(steps):
        hidden = chain(cpu, torch.tensor([tokens]), features[None], start, len(tokens) - 1 - entries)
        logits = cpu.logits(hidden)
        draft = cpu.draft_to_target[logits.argmax(-1)].item()
        out["entries"].append({"draft": draft, "top_logit": logits.max().item(), "hidden": hidden[:shown].tolist(),
                               "hidden_norm": hidden.norm().item()})
        tokens.append(draft)
    out["tokens"] = tokens[:entries + 1]
    path.write_text(json.dumps(out) + "\n")


def chain(head, tokens, features, start, steps):
    """State [hidden] of the chain's last entry; `tokens` hold `steps` drafts after the features' own."""
    n = features.shape[1]
    unknown = features.new_zeros(1, steps, *features.shape[2:])  # the chain does not look at them
    return head.unroll(tokens, torch.cat((features, unknown), 1), start, n, steps + 1)[-1][0, -1]
