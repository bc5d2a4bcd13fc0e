#!/usr/bin/env python3
"""Runs test programs on GPUs under compute-sanitizer's four tools, in their small form, many processes at a time.

    scripts/sanitize_gpu.py build/tests/stepgraph_tests build/tests/stepgraph_model_tests

A tool's cases are shared out among a few processes, for its way into the kernels takes longer than most cases, by
what they took the last time (--seconds-of, which --write-seconds writes). Processes on one GPU take turns, so more than
eight or so of racecheck's slow each other down. The last line counts, for each tool, cases and errors; the exit status is
0 only if every case of every tool has ended, passed and shown no error. --resume takes what --write-seconds wrote and leaves
out the cases that passed there in a clean process. The tests of the real model are left out.
"""

import argparse
import collections
import json
import os
import pathlib
import queue
import re
import signal
import subprocess
import sys
import threading
import time

SHARDS = "racecheck=10,memcheck=2,initcheck=2,synccheck=2"
GUESS = 0.6  # seconds of a case nobody has timed


def small_form(gpu):
    kept = {name: value for name, value in os.environ.items() if name not in ("STEPGRAPH_MODEL", "STEPGRAPH_DRAFT")}
    return dict(kept, STEPGRAPH_TEST_DEVICE="cuda", STEPGRAPH_TEST_SMALL="1", CUDA_VISIBLE_DEVICES=gpu)


def cases_of(program, gpu):
    listed = subprocess.run([program, "--list-test-cases", "--no-colors"], env=small_form(gpu), capture_output=True, text=True,
                            check=True)
    return [line for line in listed.stdout.splitlines() if line and not line.startswith(("[doctest]", "==="))]


def failures_of(text):
    """case: the first line that says what went wrong in it"""
    sections = re.split(r"^TEST CASE:  ", text, flags=re.M)[1:]
    errors = {each.split("\n", 1)[0].strip(): re.search(r"^.*ERROR: .*$", each, re.M) for each in sections}
    return {case: error[0] for case, error in errors.items() if error and "SUMMARY" not in error[0]}


def units_of(options, seconds_of):
    """(seconds thought, tool, program, cases), longest first."""
    units = []
    gpu = options.gpus.split(",")[0]
    listed = {program: cases_of(program, gpu) for program in options.programs}
    for tool, shards in (each.split("=") for each in options.shards.split(",")):
        known = seconds_of.get(tool, {})
        clean = options.resume.get(tool, {})
        left = {program: [name for name in names if name not in clean] for program, names in listed.items()}
        all_seconds = sum(known.get(case, GUESS) for cases in left.values() for case in cases)
        for program, names in left.items():
            cases, load = [], 0.0
            for case in sorted(names, key=lambda name: -known.get(name, GUESS)):
                seconds = known.get(case, GUESS)
                if cases and load + seconds / 2 > all_seconds / int(shards):
                    units.append((load, tool, program, cases))
                    cases, load = [], 0.0
                cases.append(case)
                load += seconds
            if cases:
                units.append((load, tool, program, cases))
    return sorted(units, key=lambda unit: -unit[0])


def run(command, gpu, seconds):
    """(output, whether it was killed for taking longer than `seconds`)"""
    process = subprocess.Popen(command, env=small_form(gpu), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               errors="replace", start_new_session=True)
    for wait, ending in ((seconds, signal.SIGTERM), (3, signal.SIGKILL), (None, None)):
        try:
            return process.communicate(timeout=wait)[0], ending != signal.SIGTERM
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, ending)


class Results:
    def __init__(self, options):
        self.options, self.begin, self.lock = options, time.monotonic(), threading.Lock()
        self.count = collections.defaultdict(collections.Counter)
        self.took = collections.defaultdict(dict)
        self.wrong = []

    def left(self):
        return self.options.seconds - (time.monotonic() - self.begin)

    def work(self, units, gpu):
        while True:
            try:
                number, (thought, tool, program, cases) = units.get_nowait()
            except queue.Empty:
                return
            if self.left() < 3:
                with self.lock:
                    self.wrong.append(f"{tool} {program.name} {number}: no time left for {len(cases)} cases, such as {cases[0]!r}")
                continue
            # a comma would end the pattern
            patterns = ",".join(re.sub(r"[,\\]", "?", case) for case in cases)
            command = [self.options.sanitizer, "--tool", tool, "--report-api-errors", "no", "--print-limit", "20",
                       program, f"--test-case={patterns}", "--duration=1", "--no-colors"]
            start = time.monotonic()
            text, killed = run(command, gpu, self.left())
            with self.lock:
                self.note(number, tool, program, cases, text, killed, time.monotonic() - start, thought)

    def note(self, number, tool, program, cases, text, killed, seconds, thought):
        errors = re.search(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", text)
        counts = re.search(r"test cases:\s*(\d+) \|\s*(\d+) passed \|\s*(\d+) failed", text)
        passed = int(counts[2]) if counts else 0
        failed = failures_of(text)
        ended = {m[2]: float(m[1]) for m in re.finditer(r"^(\d+\.\d+) s: (.*)$", text, re.M)}
        said = re.search(r"^========= (?!COMPUTE-SANITIZER|(?:ERROR|RACECHECK) SUMMARY: 0|Target application)", text, re.M)
        if not said:
            self.took[tool].update({case: seconds for case, seconds in ended.items() if case not in failed})
        self.count[tool]["passed"] += passed
        self.count[tool]["errors"] += int(errors[1]) if errors else 0
        line = (f"{tool:9} {program.name} {number}: {passed} of {len(cases)} passed, ERROR SUMMARY: "
                f"{errors[1] if errors else 'none'}, {seconds:.1f} s (thought {thought:.1f})")
        if killed or not errors or int(errors[1]) or passed != len(cases):
            unended = [case for case in cases if case not in ended]
            line += (", killed" if killed else "") + (f", in {unended[0]!r}" if unended else "")
            line += "".join(f"\n    {case}: {why}" for case, why in failed.items())
            self.wrong.append(line)
            self.options.logs.mkdir(parents=True, exist_ok=True)
            (self.options.logs / f"{tool}_{number}.log").write_text(text[:300000] + text[300000:][-5000:])
        print(line, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="+", type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument("--sanitizer", default="compute-sanitizer", help="the program, if it is not on the PATH")
    parser.add_argument("--shards", default=SHARDS, help="processes of each tool (default: %(default)s)")
    parser.add_argument("--gpus", default="0", help="such as 0,1")
    parser.add_argument("--jobs", type=int, default=16, help="processes at a time on each GPU")
    parser.add_argument("--seconds", type=float, default=86400, help="for everything; what has not ended then is killed (a day)")
    parser.add_argument("--seconds-of", type=pathlib.Path, help="JSON: {tool: {case: seconds}}")
    parser.add_argument("--write-seconds", type=pathlib.Path)
    parser.add_argument("--resume", type=lambda path: json.loads(pathlib.Path(path).read_text()), default={},
                        help="JSON of a former --write-seconds: only the other cases")
    parser.add_argument("--logs", type=pathlib.Path, default=pathlib.Path("sanitizer-logs"), help="of what was not clean")
    options = parser.parse_args()
    seconds_of = json.loads(options.seconds_of.read_text()) if options.seconds_of and options.seconds_of.is_file() else {}
    results = Results(options)
    listed = units_of(options, seconds_of)
    wanted = collections.Counter()
    for _, tool, _, cases in listed:
        wanted[tool] += len(cases)
    units = queue.SimpleQueue()
    for unit in enumerate(listed):
        units.put(unit)
    workers = [threading.Thread(target=results.work, args=(units, gpu))
               for _ in range(options.jobs) for gpu in options.gpus.split(",")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if options.write_seconds:
        options.write_seconds.write_text(json.dumps(
            {tool: options.resume.get(tool, {}) | results.took[tool] for tool in options.resume | results.took}))
    for tool, took in results.took.items():
        slowest = sorted(took.items(), key=lambda each: -each[1])[:6]
        print(f"{tool}, slowest: " + "; ".join(f"{seconds:.1f} s {case[:50]}" for case, seconds in slowest))
    print(f"{len(listed)} processes, {time.monotonic() - results.begin:.0f} s")
    for line in results.wrong:
        print("not clean:", line)
    found = "; ".join(f"{tool} {results.count[tool]['passed']} of {wanted[tool]} cases {results.count[tool]['errors']} errors"
                      for tool in wanted)
    clean = not results.wrong and all(results.count[tool]["passed"] == cases for tool, cases in wanted.items())
    print(f"sanitizers: {found}{'' if clean else '; NOT CLEAN'}")
    sys.exit(0 if clean else 1)


if __name__ == "__main__":
    main()
