#!/usr/bin/env python3
"""Compares stepgraph's logits and greedy text with transformers in float32 on the same GGUF file.

Both read the same tokens, prompt and stepgraph's own greedy continuation, so that one near-tie does not end the comparison;
besides, transformers generates alone and the two texts are compared. A difference passes only as a near-tie: the gap between
the two tokens must be below a bound times the root mean square of the logits, in both implementations. Leaves with 1 if a
bound is broken.
"""

import argparse
import os
import sys
from pathlib import Path

import peer

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")
try:
    import gguf  # noqa: F401, transformers reads the file with it
    import torch
    import transformers
except ImportError as missing:
    print(f"skipped: {missing.name} is not installed (pip install -r tests/peers/requirements-transformers.txt)")
    sys.exit(0)

import numpy as np

# bounds for the relative error of one position and of a prompt's positions on average, and for near-ties
BOUNDS = {"host": {"position": 1e-3, "mean": 1e-3, "tie": 1e-3}, "cuda": {"position": 1e-1, "mean": 2e-2, "tie": 8e-2}}


def compare(arguments, tokenizer, model, question, bounds):
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True,
                                           return_dict=False)
    summary, got = peer.ours(arguments, prompt)
    text = summary["generated"]
    with torch.inference_mode():
        want = model(torch.tensor([prompt + text[:-1]])).logits[0].numpy()
        alone = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), do_sample=False,
                               max_new_tokens=len(text), min_new_tokens=len(text), eos_token_id=None)[0, len(prompt):].tolist()
    errors = peer.relative_errors(got, want)
    choices = want.argmax(axis=1)[len(prompt) - 1:]
    ties, broken = [], []

    def judge(index, other, what):
        row = len(prompt) - 1 + index
        gaps = {"stepgraph": peer.gap_at(got, row, text[index], other), "transformers": peer.gap_at(want, row, other, text[index])}
        tie = bounds["tie"] * float(np.sqrt(np.mean(np.square(want[row], dtype=np.float64))))
        ties.append({"where": what, "generated_token": index, "stepgraph": text[index], "transformers": int(other), "gaps": gaps,
                     "tie_below": tie})
        if max(gaps.values()) >= tie:
            broken.append(f"{what}, generated token {index}: gaps {gaps}, a tie is below {tie:.3g}")

    for index in np.flatnonzero(choices != np.asarray(text)):
        judge(int(index), int(choices[index]), "teacher-forced")
    difference = peer.first_difference(text, alone)
    if difference is not None:
        judge(difference, alone[difference], "generated alone")
    if errors.max() >= bounds["position"]:
        broken.append(f"relative error {errors.max():.3g} at position {errors.argmax()}")
    if errors.mean() >= bounds["mean"]:
        broken.append(f"mean relative error {errors.mean():.3g}")
    return {
        "question": question,
        "prompt_tokens": len(prompt),
        "generated_tokens": len(text),
        "relative_error_mean": float(errors.mean()),
        "relative_error_max": float(errors.max()),
        "largest_difference_of_a_logit": float(np.abs(got - want).max()),
        "smallest_top_gap": min(summary["top_gaps"]),
        "same_choices": int((choices == np.asarray(text)).sum()),
        "first_difference": difference,
        "near_ties": ties,
        "broken": broken,
        "relative_errors": [float(f"{error:.3g}") for error in errors],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peer.add_options(parser)
    parser.add_argument("--threads", type=int, help="threads of torch")
    arguments = parser.parse_args()
    peer.check_options(arguments)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

    path = Path(arguments.model).resolve()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    bounds = BOUNDS[arguments.device]
    rows = []
    for question in peer.QUESTIONS:
        rows.append(compare(arguments, tokenizer, model, question, bounds))
        print(f"{len(rows)} of {len(peer.QUESTIONS)} prompts", file=sys.stderr)
    peer.table(["question", "tokens", "mean rel. error", "largest", "largest logit diff.", "same choices", "first difference"],
               [[row["question"][:40], row["prompt_tokens"] + row["generated_tokens"] - 1, f"{row['relative_error_mean']:.2e}",
                 f"{row['relative_error_max']:.2e}", f"{row['largest_difference_of_a_logit']:.2e}",
                 f"{row['same_choices']}/{row['generated_tokens']}",
                 "none" if row["first_difference"] is None else row["first_difference"]] for row in rows])
    for row in rows:
        for tie in row["near_ties"]:
            print(f"{row['question']} {tie}")
        for what in row["broken"]:
            print(f"BROKEN: {row['question']} {what}")
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    peer.save(arguments, peer.report(arguments, "transformers, float32", versions, bounds=bounds, rows=rows))
    sys.exit(1 if any(row["broken"] for row in rows) else 0)


main()
