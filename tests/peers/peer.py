"""What the comparisons share: the questions, a run of peer_logits, and figures of two sets of logits."""

import datetime
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import numpy as np
except ImportError:
    print("skipped: numpy is not installed (see tests/peers/README.md)")
    sys.exit(0)

ROOT = Path(__file__).resolve().parent.parent.parent
QUESTIONS = (
    "What is the capital of France?",
    "Write a short story about a lighthouse keeper.",
    "Explain step by step how photosynthesis works.",
    "Write a Python function that reverses a string.",
    "Liste trois différences entre les chats et les chiens.",
)


def add_options(parser):
    parser.add_argument("--model", default=os.environ.get("STEPGRAPH_MODEL"), help="GGUF file; default: STEPGRAPH_MODEL")
    parser.add_argument("--tool", type=Path, default=ROOT / "build/tests/peer_logits", help="the built peer_logits")
    parser.add_argument("--device", choices=("host", "cuda"), default="host", help="where stepgraph runs")
    parser.add_argument("--generate", type=int, default=128, help="tokens of greedy continuation")
    parser.add_argument("--out", type=Path, help="JSON report")


def check_options(arguments):
    if not arguments.model or not Path(arguments.model).is_file():
        print("skipped: no model; give --model or STEPGRAPH_MODEL (scripts/fetch_model.py prints one)")
        sys.exit(0)
    if not os.access(arguments.tool, os.X_OK):
        sys.exit(f"{arguments.tool} is not there: build it, or give --tool")


def ours(arguments, prompt):
    """(summary, logits [rows, vocab]) of stepgraph for prompt ids and their greedy continuation."""
    with tempfile.TemporaryDirectory() as folder:
        tokens, out = Path(folder) / "tokens.txt", Path(folder) / "logits.f32"
        tokens.write_text(" ".join(map(str, prompt)))
        run = subprocess.run([arguments.tool, "--model", arguments.model, "--device", arguments.device, "--tokens", tokens,
                              "--generate", str(arguments.generate), "--out", out], stdout=subprocess.PIPE, text=True, check=True)
        summary = json.loads(run.stdout)
        logits = np.fromfile(out, dtype=np.float32).reshape(summary["rows"], summary["vocab"])
    return summary, logits


def relative_errors(got, want):
    """Norm of the difference over norm of `want`, one for each position."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    return np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1)


def first_difference(text, other):
    """Index of the first token in which two texts differ, or None."""
    return next((i for i, (a, b) in enumerate(zip(text, other)) if a != b), None)


def gap_at(logits, row, best, other):
    return float(logits[row, best]) - float(logits[row, other])


def report(arguments, peer, versions, **figures):
    """Everything a reader needs to judge the figures, as a dictionary."""
    digest = hashlib.sha256(Path(arguments.model).read_bytes()).hexdigest()
    return {
        "peer": peer,
        "date": datetime.date.today().isoformat(),
        "model": {"file": Path(arguments.model).name, "sha256": digest},
        "stepgraph_device": arguments.device,
        "versions": {"python": platform.python_version(), "numpy": np.__version__, **versions},
        **figures,
    }


def save(arguments, figures):
    if arguments.out:
        text = json.dumps(figures, indent=1, ensure_ascii=False)
        # a list of numbers on one line
        text = re.sub(r"\[\s+([-+.e\d,\s]+?)\s+\]", lambda numbers: "[" + " ".join(numbers[1].split()) + "]", text)
        arguments.out.write_text(text + "\n")


def table(heads, rows):
    lines = [heads] + [[str(cell) for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())
