#!/usr/bin/env python3
"""Compares stepgraph's logits and speed with llama.cpp's, on the same GGUF file and the same tokens.

llama.cpp quantises activations, so its logits are off by tenths and its text may part early; therefore both read the same
tokens, prompt and stepgraph's greedy continuation, and the logits are compared. Decode speed is of one row, each in its own
process, one after the other, in tokens per second. Leaves with 1 if a bound is broken.
"""

import argparse
import os
import sys
import time

import peer

try:
    import llama_cpp
    from llama_cpp.llama_chat_format import Jinja2ChatFormatter
except ImportError as missing:
    print(f"skipped: {missing.name} is not installed (pip install -r tests/peers/requirements-llama-cpp.txt)")
    sys.exit(0)

import numpy as np

# bounds, in logits: root mean square of the difference over a position's vocabulary, averaged over the positions; gap of two
# tokens of which each is the other's choice
MEAN_DIFFERENCE = 0.5
NEAR_TIE = 1.0


def prompt_ids(engine, question):
    special = {name: engine._model.token_get_text(getattr(engine, f"token_{name}")()) for name in ("bos", "eos")}
    chat = Jinja2ChatFormatter(template=engine.metadata["tokenizer.chat_template"], bos_token=special["bos"],
                               eos_token=special["eos"])
    text = chat(messages=[{"role": "user", "content": question}]).prompt
    return engine.tokenize(text.encode(), add_bos=False, special=True)


def theirs(engine, prompt, text):
    """(logits of every token, seconds for those of `text`)"""
    engine.reset()
    engine.eval(prompt)
    start = time.perf_counter()
    for token in text:
        engine.eval([token])
    seconds = time.perf_counter() - start
    return engine.scores[:len(prompt) + len(text)].copy(), seconds


def compare(arguments, engine, question):
    prompt = prompt_ids(engine, question)
    summary, got = peer.ours(arguments, prompt)
    text = summary["generated"]
    want, seconds = theirs(engine, prompt, text[:-1])
    differences = np.sqrt(np.mean(np.square(got.astype(np.float64) - want), axis=1))
    choices = want.argmax(axis=1)[len(prompt) - 1:]
    parted, broken = [], []
    for index in map(int, np.flatnonzero(choices != np.asarray(text))):
        row, other = len(prompt) - 1 + index, int(choices[index])
        gaps = {"stepgraph": peer.gap_at(got, row, text[index], other), "llama.cpp": peer.gap_at(want, row, other, text[index])}
        parted.append({"generated_token": index, "stepgraph": text[index], "llama.cpp": other, "gaps": gaps})
        if max(gaps.values()) >= NEAR_TIE:
            broken.append(f"generated token {index}: gaps {gaps}, a near-tie is below {NEAR_TIE}")
    if differences.mean() >= MEAN_DIFFERENCE:
        broken.append(f"logits differ by {differences.mean():.3g} on average, allowed is {MEAN_DIFFERENCE}")
    return {
        "question": question,
        "prompt_tokens": len(prompt),
        "generated_tokens": len(text),
        "rms_difference_mean": float(differences.mean()),
        "rms_difference_max": float(differences.max()),
        "relative_error_mean": float(peer.relative_errors(got, want).mean()),
        "same_choices": int((choices == np.asarray(text)).sum()),
        "parted": parted,
        "broken": broken,
        "tokens_per_second": {"stepgraph": summary["decode_steps"] / summary["decode_seconds"],
                              "llama.cpp": (len(text) - 1) / seconds},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peer.add_options(parser)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of llama.cpp")
    arguments = parser.parse_args()
    peer.check_options(arguments)
    if arguments.generate < 2:
        parser.error("--generate must be 2 or more")
    engine = llama_cpp.Llama(model_path=arguments.model, n_ctx=256 + arguments.generate, n_threads=arguments.threads,
                             n_gpu_layers=0, logits_all=True, verbose=False)
    rows = []
    for question in peer.QUESTIONS:
        rows.append(compare(arguments, engine, question))
        print(f"{len(rows)} of {len(peer.QUESTIONS)} prompts", file=sys.stderr)
    peer.table(["question", "tokens", "mean diff. (logits)", "largest", "mean rel. error", "same choices", "stepgraph tok/s",
                "llama.cpp tok/s"],
               [[row["question"][:40], row["prompt_tokens"] + row["generated_tokens"] - 1, f"{row['rms_difference_mean']:.3f}",
                 f"{row['rms_difference_max']:.3f}", f"{row['relative_error_mean']:.2e}",
                 f"{row['same_choices']}/{row['generated_tokens']}",
                 *(f"{speed:.1f}" for speed in row["tokens_per_second"].values())] for row in rows])
    for row in rows:
        for what in row["parted"]:
            print(f"{row['question']} {what}")
        for what in row["broken"]:
            print(f"BROKEN: {row['question']} {what}")
    peer.save(arguments, peer.report(arguments, "llama.cpp through llama-cpp-python", {"llama_cpp_python": llama_cpp.__version__},
                                     threads=arguments.threads, load_average=os.getloadavg()[0], rows=rows))
    sys.exit(1 if any(row["broken"] for row in rows) else 0)


main()
