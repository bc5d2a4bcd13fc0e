"""Trains the draft head of a Llama-architecture GGUF model on text that the model writes, and measures it.

1. The target invents questions (it is given the header of a user's turn), beside templated prompts; it answers all of
   them, half greedily, half sampled. Tokens and hidden states stay on the GPU.
2. The head learns the target's next-token distribution over a reduced vocabulary, several draft steps deep.
3. Accepted length is measured on questions held out of the training, answered greedily.

Writes smollm2_draft.safetensors, smollm2_draft.json (the record) and draft_head_case.json (values for the tests).
"""

import argparse
import datetime
import hashlib
import json
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import prompts
from export import load_head, save_case, save_head
from head import DraftHead, HeadLoss, accept_lengths
from target import Target, chat, read_gguf


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", required=True, help="GGUF file of the target")
    add("--out", type=Path, default=Path(__file__).parent, help="folder of the results")
    add("--init", type=Path, help="a head to go on from, with its draft vocabulary")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--templated", type=int, default=4096, help="prompts made of templates and topics")
    add("--invented", type=int, default=20480, help="prompts that the target invents, at most")
    add("--answer-tokens", type=int, default=160)
    add("--rows", type=int, default=2048, help="prompts answered at once")
    add("--generate-seconds", type=float, default=60, help="no further batch of answers after that")
    add("--train-seconds", type=float, default=120, help="the learning rate's schedule ends then")
    add("--draft-vocab", type=int, default=16384)
    add("--steps", type=int, default=4, help="draft steps that are trained")
    add("--ffn", type=int, help="the head's feed-forward size; default: the target's")
    add("--batch", type=int, default=64, help="texts in a training step")
    add("--adam", action="store_true", help="AdamW for the matrices, not Muon")
    add("--rate", type=float, default=3e-3)
    add("--cooldown", type=float, default=0.6, help="part of the schedule in which the rate falls to nothing")
    add("--feature-weight", type=float, default=0.1)
    add("--hard-weight", type=float, default=0.3, help="of the argmax against the whole distribution")
    add("--step-decay", type=float, default=0.9, help="weight of a draft step to the one before it")
    add("--measure-tokens", type=int, default=128)
    add("--seed", type=int, default=1)
    return parser.parse_args()


def invent(target, words, count, rows, end):
    """Questions that the target writes itself, as text."""
    header = words.encode(chat(None)).ids
    found = set()
    for _ in range(0, count, rows):
        made = target.generate([header] * rows, 64, torch.full((rows,), 0.8, device=target.device), end,
                               keep_hidden=False)
        for row, last in zip(made.tokens[:, made.begin:].tolist(), (made.stop - made.begin).tolist()):
            if row[last - 1] == end and last > 4:
                found.add(words.decode(row[:last - 1]).strip())
    held_out = {each.lower() for each in prompts.HELD_OUT}
    return sorted(each for each in found if each.lower() not in held_out)


def answer(target, words, questions, wanted, end):
    """A list of `Answers`; half of the rows greedy, a quarter at temperature 0.5 and one at 0.8."""
    encoded = [each for each in (words.encode(chat(question)).ids for question in questions) if len(each) <= 112]
    order = torch.randperm(len(encoded)).tolist()
    batches, began = [], time.time()
    for at in range(0, len(order), wanted.rows):
        if time.time() - began > wanted.generate_seconds:
            break
        some = [encoded[i] for i in order[at:at + wanted.rows]]
        temperature = torch.tensor([(0.0, 0.0, 0.5, 0.8)[i % 4] for i in range(len(some))], device=target.device)
        batches.append(target.generate(some, wanted.answer_tokens, temperature, end))
    return batches


def draft_vocabulary(batches, size, vocab, end):
    """Ids [size], ascending, of the tokens most frequent in the answers; and the share of the text that they cover."""
    count = torch.zeros(vocab, dtype=torch.long)
    for batch in batches:
        column = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
        inside = (column >= batch.begin) & (column < batch.stop[:, None])
        count += torch.bincount(batch.tokens[inside].cpu(), minlength=vocab)
    rank = count.clone()
    rank[end] = count.sum()  # always in
    ids = rank.topk(min(size, vocab)).indices.sort().values
    return ids, (count[ids].sum() / count.sum()).item()


def loss_of(head, target, batch, rows, wanted):
    """Loss over the answers' tokens, and how often each step's argmax is the target's, [steps]."""
    tokens, features, start, begin = batch.tokens[rows], batch.hidden[rows], batch.start[rows], batch.begin
    n = features.shape[1] - 2  # entry p is about token p + 2
    unrolled = head.unroll(tokens[:, :n + 1], features[:, :n], start, begin, wanted.steps)
    entry = torch.arange(unrolled[0].shape[1], device=tokens.device)
    inside = begin + 1 + entry < batch.stop[rows, None]
    with torch.no_grad():
        after = features[:, begin:n + 1].float()
        normed = target.normed(after)
        best = head.target_to_draft[batch.best[rows][:, begin + 1:]]  # -1 where the draft has no such token
        aim = head.aim(after.flatten(0, 1), best.flatten(), wanted.hard_weight)
    total, share, shares, right = 0.0, 1.0, 0.0, []
    for step, hidden in enumerate(unrolled):
        weight = inside & (best >= 0) & (entry >= step)
        weight = weight / weight.sum()
        mine = head.normed(hidden)
        choice = HeadLoss.apply(mine.flatten(0, 1), head.output, aim, weight.flatten())
        feature = (F.smooth_l1_loss(mine, normed, reduction="none").mean(-1) * weight).sum()
        total = total + share * (choice + wanted.feature_weight * feature)
        shares += share
        share *= wanted.step_decay
        right.append((hidden.detach(), (inside & (entry >= step)).float(), best))
    return total / shares, right


@torch.no_grad()
def agreement(head, right):
    return [(((head.logits(hidden).argmax(-1) == best) * weight).sum() / weight.sum()).item() for hidden, weight, best in right]


def optimizers(head, wanted):
    """Muon for the matrices, AdamW for the gains; or AdamW for all."""
    matrices = [p for p in head.parameters() if p.dim() == 2]
    gains = [p for p in head.parameters() if p.dim() == 1]
    first = torch.optim.AdamW(matrices, lr=wanted.rate, betas=(0.9, 0.95), weight_decay=0.01) if wanted.adam else \
        torch.optim.Muon(matrices, lr=wanted.rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    return [first, torch.optim.AdamW(gains, lr=wanted.rate, betas=(0.9, 0.95), weight_decay=0.0)]


def train(head, target, batches, wanted, log=print):
    """The curve: (seconds, texts seen, loss, share of right argmax a step)."""
    made = optimizers(head, wanted)
    picks = [(b, rows) for b, batch in enumerate(batches)
             for rows in torch.arange(len(batch.tokens), device=target.device).split(wanted.batch)]
    curve, began, step, queue = [], time.time(), 0, []
    while (spent := (time.time() - began) / wanted.train_seconds) < 1:
        if not queue:
            queue = [picks[i] for i in torch.randperm(len(picks))]
        which, rows = queue.pop()
        rate = wanted.rate * min(1, (step + 1) / 100) * min(1, (1.01 - spent) / wanted.cooldown)
        for each in made:
            for group in each.param_groups:
                group["lr"] = rate
        with torch.autocast(target.device, torch.bfloat16, enabled=target.dtype == torch.bfloat16):
            loss, right = loss_of(head, target, batches[which], rows, wanted)
        for each in made:
            each.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        for each in made:
            each.step()
        if step % 100 == 0:
            curve.append([round(time.time() - began, 1), (step + 1) * len(rows), round(loss.item(), 4),
                          [round(r, 4) for r in agreement(head, right)]])
            if step % 500 == 0:
                log(step, curve[-1], flush=True)
        step += 1
    return curve, step


def measure(head, target, words, end, new_tokens, drafts=4):
    """Greedy answers to the held-out questions, and the rounds that chains of `drafts` would have taken."""
    encoded = [words.encode(chat(each)).ids for each in prompts.HELD_OUT]
    greedy = torch.zeros(len(encoded), device=target.device)
    made = target.generate(encoded, new_tokens, greedy, end)
    hits = head.chain_hits(made.tokens, made.hidden.float(), made.start, made.begin, drafts).cpu()
    rounds = [accept_lengths(hits[r], made.begin, int(made.stop[r])) for r in range(len(encoded))]
    flat = [length for each in rounds for length in each]
    return {"prompts": len(encoded), "new_tokens": new_tokens, "drafts": drafts, "rounds": len(flat),
            "accepted_length": round(sum(flat) / len(flat), 4),
            "histogram": [flat.count(length) for length in range(1, drafts + 2)],
            "by_prompt": [round(sum(each) / max(1, len(each)), 3) for each in rounds]}


def main():
    wanted = options()
    torch.manual_seed(wanted.seed)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    began = time.time()
    config, tensors, words = read_gguf(wanted.model)
    exact = wanted.device == "cpu"
    target = Target(config, tensors, wanted.device, torch.float32 if exact else torch.bfloat16)
    end = words.token_to_id("<|im_end|>")
    questions = prompts.templated(wanted.templated, wanted.seed)
    invented = invent(target, words, wanted.invented, wanted.rows, end) if wanted.invented else []
    print(f"{time.time() - began:.1f} s: {len(questions)} templated and {len(invented)} invented prompts, as", invented[:5], flush=True)
    batches = answer(target, words, questions + invented, wanted, end)
    generated = sum((batch.stop - batch.begin).sum().item() for batch in batches)
    ids, covered = draft_vocabulary(batches, wanted.draft_vocab, config.vocab_size, end)
    print(f"{time.time() - began:.1f} s: {generated} tokens in answers; {len(ids)} draft tokens cover {covered:.4f}", flush=True)

    head = DraftHead(config, target, ids.to(wanted.device), wanted.ffn).to(wanted.device)
    if wanted.init:
        load_head(head, wanted.init)
    curve, steps = train(head, target, batches, wanted)
    wanted.out.mkdir(parents=True, exist_ok=True)
    weights = save_head(head, wanted.out / "smollm2_draft.safetensors")  # rounds them as the file has them
    result = measure(head, target, words, end, wanted.measure_tokens)
    print(f"{time.time() - began:.1f} s: accepted length {result['accepted_length']}", result["histogram"], flush=True)
    save_case(head, wanted.out / "draft_head_case.json")
    record = {
        "date": datetime.date.today().isoformat(), "gpu": torch.cuda.get_device_name() if not exact else "none",
        "torch": torch.__version__, "model": Path(wanted.model).name,
        "model_sha256": hashlib.sha256(Path(wanted.model).read_bytes()).hexdigest(),
        "options": {key: value for key, value in vars(wanted).items() if key not in ("model", "out", "device")},
        "prompts_templated": len(questions), "prompts_invented": len(invented),
        "answers": sum(len(batch.tokens) for batch in batches), "answer_tokens": generated,
        "draft_vocab": len(ids), "draft_vocab_covers": round(covered, 5), "training_steps": steps,
        "curve": {"columns": ["seconds", "texts", "loss", "right argmax by draft step"], "rows": curve[::max(1, len(curve) // 60)]},
        "weight_bytes": weights, "held_out": result, "seconds": round(time.time() - began, 1)}
    (wanted.out / "smollm2_draft.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
