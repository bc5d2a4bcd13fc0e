"""Trains the draft head of a Llama-architecture GGUF model on text that the model writes, and measures it.

1. The target invents questions (it is given the header of a user's turn), beside templated prompts; it answers all of
   them, three in four greedily. Tokens and hidden states stay on the GPU.
2. The head learns the target's next-token distribution over a reduced vocabulary, several draft steps deep.
3. Accepted length is measured on questions held out of the training, answered greedily.

Writes smollm2_draft.safetensors, smollm2_draft.json (the record, also of the runs before it) and draft_head_case.json (values for the tests).
"""

import argparse
import datetime
import hashlib
import json
import math
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import prompts
from export import GAINS, MATRICES, load_head, save_case, save_head
from head import DraftHead, HeadLoss, accept_lengths
from target import Target, chat, read_gguf


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", required=True, help="GGUF file of the target")
    add("--out", type=Path, default=Path(__file__).parent, help="folder of the results")
    add("--init", type=Path, help="a head to go on from; its record lies beside it")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--prompts", type=Path, nargs="*", default=[], help="files of prompts, a JSON string a line")
    add("--topics", type=Path, help="further topics for templates, one a line")
    add("--templated", type=int, default=14924, help="prompts made of templates and topics")
    add("--invented", type=int, default=131072, help="prompts that the target invents, at most")
    add("--answer-tokens", type=int, default=128)
    add("--rows", type=int, default=2048, help="prompts answered at once")
    add("--generate-seconds", type=float, default=300, help="no further batch of answers after that")
    add("--train-seconds", type=float, default=300, help="the learning rate's schedule ends then")
    add("--draft-vocab", type=int, default=16384)
    add("--steps", type=int, default=4, help="draft steps that are trained")
    add("--shallow", type=float, default=0.4, help="part of the schedule in which two draft steps are trained")
    add("--ffn", type=int, default=3072, help="the head's feed-forward size")
    add("--batch", type=int, default=128, help="texts in a training step")
    add("--rate", type=float, default=3e-3)
    add("--taps", type=int, nargs="*", default=[15, 22], help="layers of the target whose residuals feed the head, beside the last's")
    add("--cooldown", type=float, default=0.6, help="part of the schedule in which the rate falls to nothing")
    add("--feature-weight", type=float, default=0.1)
    add("--hard-weight", type=float, default=0.3, help="of the argmax against the whole distribution")
    add("--step-decay", type=float, default=0.9, help="weight of a draft step to the one before it")
    add("--measure-tokens", type=int, default=128)
    add("--seed", type=int, default=1)
    return parser.parse_args()


def invent(target, words, count, rows, end, topics):
    """Questions that the target writes itself, as text: a quarter from nothing, the rest begun as people begin, two in
    three of these with a topic."""
    header, found, pick = words.encode(chat(None)).ids, set(), random.Random(count)
    for _ in range(0, count, rows):
        opened = [pick.choice(prompts.OPENINGS) + (" " + pick.choice(topics) if i % 3 else "") for i in range(rows)]
        opened = ["" if i % 4 == 0 else each for i, each in enumerate(opened)]
        begun = [each.ids for each in words.encode_batch([chat(None) + each for each in opened])]
        made = target.generate(begun, 64, torch.full((rows,), 0.8, device=target.device), end, keep_hidden=False)
        kept = []
        for row, start, stop in zip(made.tokens.tolist(), made.start.tolist(), made.stop.tolist()):
            if row[stop - 1] == end and stop - made.begin > 4:
                kept.append(row[start + len(header):stop - 1])
        found.update(each.strip() for each in words.decode_batch(kept))
    return sorted(each for each in found if not prompts.held_out(each))


def answer(target, words, questions, wanted, end):
    """A list of `Answers`; three in four rows greedy, the rest at temperature 0.7."""
    encoded = [each.ids for each in words.encode_batch([chat(question) for question in questions]) if len(each.ids) <= 112]
    encoded = [encoded[i] for i in torch.randperm(len(encoded)).tolist()]
    order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))  # little padding
    full = max(1, len(order) // wanted.rows) * wanted.rows  # batches of one size, so that nothing is compiled twice
    groups = [order[at:at + wanted.rows] for at in range(0, min(full, len(order)), wanted.rows)]
    batches, began = [], time.time()
    for at in torch.randperm(len(groups)).tolist():
        if time.time() - began > wanted.generate_seconds:
            break
        some = [encoded[i] for i in groups[at]]
        temperature = torch.tensor([(0.0, 0.0, 0.0, 0.7)[i % 4] for i in range(len(some))], device=target.device)
        batches.append(target.generate(some, wanted.answer_tokens, temperature, end))
        if len(batches) % 10 == 1:
            print(f"{time.time() - began:.1f} s: {len(batches)} of {len(groups)} batches of answers", flush=True)
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


def loss_of(head, target, batch, rows, steps, wanted):
    """Loss over the answers' tokens, and how often each step's argmax is the target's, [steps]."""
    tokens, features, start, begin = batch.tokens[rows], batch.hidden[rows], batch.start[rows], batch.begin
    n = features.shape[1] - 2  # entry p is about token p + 2
    unrolled = head.unroll(tokens[:, :n + 1], features[:, :n], start, begin, steps)
    entry = torch.arange(unrolled[0].shape[1], device=tokens.device)
    inside = begin + 1 + entry < batch.stop[rows, None]
    with torch.no_grad():
        after = features[:, begin:n + 1, -1].float()
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


def train(head, target, batches, wanted, held=(), log=print, keep=lambda: None):
    """The curve: (seconds, texts seen, loss, share of right argmax a step), and at times the accepted lengths of `held`.
    `keep` is called every half minute."""
    optimizers = [torch.optim.Muon([getattr(head, name) for name in MATRICES], weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
                  torch.optim.AdamW([getattr(head, name) for name in GAINS], weight_decay=0.0, betas=(0.9, 0.95))]
    picks = [(b, rows) for b, batch in enumerate(batches)
             for rows in torch.arange(len(batch.tokens), device=target.device).split(wanted.batch)]
    curve, began, step, queue, kept = [], time.time(), 0, [], time.time()
    while (spent := (time.time() - began) / wanted.train_seconds) < 1:
        if not queue:
            queue = [picks[i] for i in torch.randperm(len(picks))]
        which, rows = queue.pop()
        rate = wanted.rate * min(1, (step + 1) / 100) * min(1, (1.01 - spent) / wanted.cooldown)
        for group in (each for optimizer in optimizers for each in optimizer.param_groups):
            group["lr"] = rate
        steps = wanted.steps if spent >= wanted.shallow else min(2, wanted.steps)
        with torch.autocast(target.device, torch.bfloat16, enabled=target.dtype == torch.bfloat16):
            loss, right = loss_of(head, target, batches[which], rows, steps, wanted)
        head.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        if step % 100 == 0:
            curve.append([round(time.time() - began, 1), (step + 1) * len(rows), round(loss.item(), 4),
                          [round(r, 4) for r in agreement(head, right)]])
            if step % 500 == 0:
                curve[-1].append([accepted(head, made)["accepted_length"] for made in held])
                log(step, curve[-1], flush=True)
            if time.time() - kept > 30:
                kept = time.time()
                keep()
        step += 1
    return curve, step


def greedy_answers(target, words, end, new_tokens, questions):
    encoded = [words.encode(chat(each)).ids for each in questions]
    return target.generate(encoded, new_tokens, torch.zeros(len(encoded), device=target.device), end)


def accepted(head, made, drafts=4):
    """The rounds that chains of `drafts` would have taken for the answers `made`."""
    hits = head.chain_hits(made.tokens, made.hidden.float(), made.start, made.begin, drafts).cpu()
    rounds = [accept_lengths(hits[r], made.begin, int(made.stop[r])) for r in range(len(hits))]
    flat = [length for each in rounds for length in each]
    return {"prompts": len(hits), "new_tokens": made.tokens.shape[1] - made.begin, "drafts": drafts, "rounds": len(flat),
            "accepted_length": round(sum(flat) / len(flat), 4),
            "histogram": [flat.count(length) for length in range(1, drafts + 2)],
            "by_prompt": [round(sum(each) / max(1, len(each)), 3) for each in rounds]}


def main():
    wanted = options()
    torch.manual_seed(wanted.seed)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    began = time.time()
    wanted.out.mkdir(parents=True, exist_ok=True)
    config, tensors, words = read_gguf(wanted.model)
    exact = wanted.device == "cpu"
    target = Target(config, tensors, wanted.device, torch.float32 if exact else torch.bfloat16,
                    sorted({*wanted.taps, config.layers}))
    end = words.token_to_id("<|im_end|>")
    topics = wanted.topics.read_text().splitlines() if wanted.topics else ()
    questions = prompts.templated(wanted.templated, wanted.seed, topics)
    written = [json.loads(line) for path in wanted.prompts for line in path.read_text().splitlines()]
    written = [each for each in written if not prompts.held_out(each)]
    invented = invent(target, words, wanted.invented, wanted.rows, end, topics or prompts.parts(prompts.TOPICS)) if wanted.invented else []
    print(f"{time.time() - began:.1f} s: {len(questions)} templated, {len(written)} written and {len(invented)} invented prompts, as",
          invented[:5], flush=True)
    batches = answer(target, words, questions + written + invented, wanted, end)
    generated = sum((batch.stop - batch.begin).sum().item() for batch in batches)
    ids, covered = draft_vocabulary(batches, wanted.draft_vocab, config.vocab_size, end)
    print(f"{time.time() - began:.1f} s: {generated} tokens in answers; {len(ids)} draft tokens cover {covered:.4f}", flush=True)

    head = DraftHead(config, target, ids.to(wanted.device), wanted.ffn).to(wanted.device)
    if wanted.init:
        load_head(head, wanted.init)
    held = [greedy_answers(target, words, end, wanted.measure_tokens, questions)
            for questions in (prompts.HELD_OUT, prompts.HELD_OUT_INVENTED)]
    file = wanted.out / "smollm2_draft.safetensors"
    curve, steps = train(head, target, batches, wanted, held, keep=lambda: save_head(head, file))
    weights = save_head(head, file)
    load_head(head, file)  # rounded as the file has them
    result, invented_result = [accepted(head, made) for made in held]
    print(f"{time.time() - began:.1f} s: {steps} steps; accepted length {result['accepted_length']}", result["histogram"],
          invented_result["accepted_length"], flush=True)
    save_case(head, wanted.out / "draft_head_case.json")
    before = wanted.init and wanted.init.with_suffix(".json")
    run = {
        "date": datetime.date.today().isoformat(), "gpu": "none" if exact else torch.cuda.get_device_name(),
        "torch": torch.__version__, "seconds": round(time.time() - began, 1),
        "options": {key: value for key, value in vars(wanted).items()
                    if key not in ("model", "out", "device", "init", "prompts", "topics")},
        "prompts_templated": len(questions), "prompts_written": len(written), "prompts_invented": len(invented),
        "answers": sum(len(batch.tokens) for batch in batches), "answer_tokens": generated,
        "draft_vocab_covers": round(covered, 5), "training_steps": steps,
        "curve": {"columns": ["seconds", "texts", "loss", "right argmax by draft step",
                              "accepted lengths: held_out, held_out_invented"],
                  "rows": [row for i, row in enumerate(curve) if len(row) > 4 or i % max(1, len(curve) // 40) == 0]},
        "held_out": result}
    record = {
        "model": Path(wanted.model).name, "model_sha256": hashlib.sha256(Path(wanted.model).read_bytes()).hexdigest(),
        "draft_vocab": len(ids), "weight_bytes": weights, "held_out": result,
        "held_out_invented": invented_result, "runs": (json.loads(before.read_text())["runs"] if before and before.exists() else []) + [run]}
    (wanted.out / "smollm2_draft.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
