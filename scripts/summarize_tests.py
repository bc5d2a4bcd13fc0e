#!/usr/bin/env python3
"""Counts the test cases of the last `meson test` in a build folder, shows what failed, and ends with the total.

    scripts/summarize_tests.py BUILD [--seconds N]

Every doctest executable counts its cases, and so does a script whose output has a line 'N passed, N failed, N skipped'; any
other test counts as one. An executable that left with 77 (its device is absent) counts all its cases as skipped; one that
failed without reporting a failed case (a crash, a time-out, a leak) counts one failed. Leaves with 1 if something failed or
nothing ran.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

SUMMARY = re.compile(
    r"^\[doctest\] test cases:\s*(\d+)\s*\|\s*(\d+) passed\s*\|\s*(\d+) failed(?:\s*\|\s*(\d+) skipped)?", re.M)
PLAIN = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", re.M)
COUNT = re.compile(r"test cases passing the current filters:\s*(\d+)")
RULER = re.compile(r"^={60,}$", re.M)
TAIL = 40


def cases_of(test, build):
    """How many cases an executable holds that ran none."""
    try:
        listing = subprocess.run([*test["command"], "--count", "--no-skip"], cwd=build, env={**os.environ, **test.get("env", {})},
                                 stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return 1
    found = COUNT.search(listing.stdout)
    return int(found[1]) if found else 1


def count(test, build):
    """(passed, failed, skipped) of one executable."""
    output = test.get("stdout") or ""
    summaries = [tuple(int(number or 0) for number in found) for found in SUMMARY.findall(output)]
    for passed, failed, skipped in PLAIN.findall(output):
        summaries.append((int(passed) + int(failed), int(passed), int(failed), int(skipped)))
    ran, passed, failed, skipped = (sum(column) for column in zip(*summaries)) if summaries else (0, 0, 0, 0)
    if test["result"] == "SKIP":
        return 0, 0, (ran + skipped) or cases_of(test, build)
    if test["result"] in ("OK", "EXPECTEDFAIL"):
        return (passed, failed, skipped) if summaries else (1, 0, 0)
    return passed, max(failed, 1), skipped


def failed_cases(output):
    """Names of the failed doctest cases: each block between rulers names its case and holds what went wrong."""
    names = []
    for block in RULER.split(output):
        case = re.search(r"^TEST CASE:\s*(.*)$", block, re.M)
        if case and re.search(r"\b(?:FATAL )?ERROR: |\bcrashed\b", block, re.I) and case[1] not in names:
            names.append(case[1])
    return names


def show_failure(test):
    output = (test.get("stdout") or "").rstrip()
    errors = (test.get("stderr") or "").rstrip()
    print(f"\nFAILED {test['name']}: {test['result'].lower()}, exit {test.get('returncode')}, {test['duration']:.1f} s")
    for name in failed_cases(output):
        print(f"  case: {name}")
    for title, text in (("output", output), ("error output", errors)):
        lines = text.splitlines()
        if lines:
            print(f"  {title}" + (f", last {TAIL} of {len(lines)} lines" if len(lines) > TAIL else "") + ":")
            for line in lines[-TAIL:]:
                print(f"  | {line}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("--seconds", type=int, help="time to report")
    arguments = parser.parse_args()

    sys.stdout.reconfigure(errors="replace")
    log = arguments.build / "meson-logs/testlog.json"
    tests = []
    if log.exists():
        tests = [json.loads(line) for line in log.read_text(errors="replace").splitlines() if line.strip()]

    total = [0, 0, 0]
    absent = []
    for test in sorted(tests, key=lambda test: test["name"]):
        numbers = count(test, arguments.build)
        total = [sum(pair) for pair in zip(total, numbers)]
        if test["result"] == "SKIP":
            absent.append(f"{test['name']} ({numbers[2]})")
        elif numbers[1]:
            show_failure(test)
    print()
    if absent:
        print("Skipped, with their cases: " + ", ".join(absent))
    if not any(total):
        print("No test case ran.")
    elif total[1]:
        print(f"Whole output: {arguments.build}/meson-logs/testlog.txt")
    if arguments.seconds is not None:
        print(f"Total time: {arguments.seconds // 60} min {arguments.seconds % 60} s")
    print("{} passed, {} failed, {} skipped".format(*total), flush=True)
    sys.exit(1 if total[1] or not any(total) else 0)


main()
