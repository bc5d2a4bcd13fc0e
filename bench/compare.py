#!/usr/bin/env python3
"""Compares two JSON reports of this project's benchmarks: the ratio of every median in B to that in A, with a confidence
interval. The exit status is 1 if anything got slower by more than the threshold with that confidence, 2 if the reports
cannot be compared.

    bench/compare.py A.json B.json [--threshold 0.03] [--only REGEX]
    bench/compare.py A.json B.json --agree

With --agree the reports are of one program run twice, and what counts is whether it can be believed: every median of 20 us
or more, of three samples or more, lies within the threshold of the other's, or the program called it noisy. The exit status is
1 if one does neither.

Where a row has its samples the interval is a bootstrap of the ratio of medians (seeded, so that one pair of files always
says the same); where it has only its spread, the interval is what both spreads allow."""

import argparse
import collections
import json
import pathlib
import random
import re
import statistics
import sys

RESAMPLES = 1000
NOT_IN_KEY = {"noisy", "bar_us"}


class Unusable(Exception):
    pass


def load(path):
    """The report's context, and its rows by name and parameters."""
    try:
        report = json.loads(pathlib.Path(path).read_text())
    except OSError as failure:
        raise Unusable(f"{path}: {failure.strerror}") from failure
    except ValueError as failure:
        raise Unusable(f"{path} is no JSON: {failure}") from failure
    if not isinstance(report, dict) or not isinstance(report.get("rows"), list) or "context" not in report:
        raise Unusable(f"{path} has no context and rows")
    rows = {}
    for row in report["rows"]:
        if not all(isinstance(row.get(name), (int, float)) for name in ("median", "minimum", "maximum", "count")):
            raise Unusable(f"{path}: row {row.get('name')!r} has no median, minimum, maximum and count")
        # a name may come twice, as the captures of a round do
        base = (row["name"], tuple(sorted((key, str(value)) for key, value in row["parameters"].items()
                                          if key not in NOT_IN_KEY)))
        number = 0
        while (*base, number) in rows:
            number += 1
        rows[(*base, number)] = row
    return report["context"], rows


def interval(a, b, confidence, seed):
    """Of b's median over a's: least and most."""
    first, second = a.get("samples") or [], b.get("samples") or []
    if min(len(first), len(second)) < 3:
        return b["minimum"] / a["maximum"], b["maximum"] / a["minimum"]
    draw = random.Random(seed)
    ratios = sorted(statistics.median(draw.choices(second, k=len(second))) / statistics.median(draw.choices(first, k=len(first)))
                    for _ in range(RESAMPLES))
    cut = int(RESAMPLES * (1 - confidence) / 2)
    return ratios[cut], ratios[-1 - cut]


def verdict(low, high, threshold):
    if low > 1 + threshold:
        return "SLOWER"
    if high < 1 - threshold:
        return "faster"
    return "same" if low >= 1 - threshold and high <= 1 + threshold else "unclear"


def agreement(a, b, threshold):
    """Of two runs of one program."""
    if max(a["median"], b["median"]) <= min(a["median"], b["median"]) * (1 + threshold):
        return "same"
    return "noisy" if any(row.get("noisy", row["parameters"].get("noisy")) for row in (a, b)) else "DIFFERS"


def describe(key):
    name, parameters, _ = key
    return f"{name} [{', '.join(f'{k} {v}' for k, v in parameters)}]"


def compare(a_path, b_path, threshold, only, least_us, confidence, agree=False):
    """Lines to print, and how many rows are slower, or do not agree."""
    (a_context, a_rows), (b_context, b_rows) = load(a_path), load(b_path)
    lines = [f"A: {a_path}: {a_context.get('gpu')}, commit {a_context.get('commit')}",
             f"B: {b_path}: {b_context.get('gpu')}, commit {b_context.get('commit')}"]
    if a_context.get("gpu") != b_context.get("gpu"):
        lines.append("warning: not the same device")
    wanted = re.compile(only)
    keys = [key for key in a_rows if key in b_rows and wanted.search(describe(key))]
    if not keys:
        raise Unusable("the reports share no row" + (f" that fits {only!r}" if only else ""))
    found = collections.Counter()
    for key in keys:
        a, b = a_rows[key], b_rows[key]
        if a["median"] < max(least_us, 1e-9) or a["minimum"] <= 0 or b["minimum"] <= 0:
            continue
        if agree and min(a["count"], b["count"]) < 3:
            continue
        low, high = interval(a, b, confidence, describe(key))
        what = agreement(a, b, threshold) if agree else verdict(low, high, threshold)
        found[what] += 1
        lines.append(f"{b['median'] / a['median']:7.3f} ({low:.3f} to {high:.3f})  {what:8}  {a['median']:10.3f} us -> "
                     f"{b['median']:10.3f} us  {describe(key)}")
    for rows, others, side in ((a_rows, b_rows, "A"), (b_rows, a_rows, "B")):
        lines += [f"only in {side}: {describe(key)}" for key in rows if key not in others and wanted.search(describe(key))]
    if agree:
        lines.append(f"of {found.total()} medians of {least_us:g} us or more {found['same']} agree within {100 * threshold:g} %, "
                     f"{found['noisy']} were called noisy, {found['DIFFERS']} differ")
        return lines, found["DIFFERS"]
    lines.append(f"{found['SLOWER']} slower by more than {100 * threshold:g} %")
    return lines, found["SLOWER"]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("a", metavar="A.json")
    arguments.add_argument("b", metavar="B.json")
    arguments.add_argument("--threshold", type=float, default=0.03, help="relative; a regression is over it")
    arguments.add_argument("--confidence", type=float, default=0.95)
    arguments.add_argument("--only", default="", metavar="REGEX", help="rows whose name and parameters fit")
    arguments.add_argument("--agree", action="store_true", help="two runs of one program: do they say the same?")
    arguments.add_argument("--least-us", type=float, help="leave out rows with a smaller median in A; 20 with --agree, else 0")
    wanted = arguments.parse_args()
    if wanted.threshold < 0 or not 0 < wanted.confidence < 1:
        arguments.error("--threshold must not be negative, --confidence in (0, 1)")
    try:
        least_us = wanted.least_us if wanted.least_us is not None else 20.0 if wanted.agree else 0.0
        lines, failed = compare(wanted.a, wanted.b, wanted.threshold, wanted.only, least_us, wanted.confidence, wanted.agree)
    except (Unusable, re.error) as failure:
        print(f"compare.py: {failure}", file=sys.stderr)
        sys.exit(2)
    print("\n".join(lines))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
