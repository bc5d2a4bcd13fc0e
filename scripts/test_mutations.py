#!/usr/bin/env python3
"""Shows that every guard of docs/faults.md is needed: its tests pass with it and fail without it.

Needs a build with -Dmutations=true (host backend). For each id of the table the test cases named after it run
twice: as they are, and with STEPGRAPH_GUARD_OFF=id, where at least one has to fail.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAMS = ("tests/stepgraph_tests", "tests/stepgraph_plain_tests")
SECONDS = 120  # for one run; a guard that is off may make a test hang


def table():
    """The ids of docs/faults.md, with True where the guard can be turned off on the host backend."""
    ids = {}
    for line in (ROOT / "docs/faults.md").read_text().splitlines():
        found = re.match(r"\| `([a-z0-9-]+)` \|.*\| (host and GPU|GPU) \|", line)
        if found:
            ids[found[1]] = found[2] != "GPU"
    return ids


def run(build, fault, off):
    """(cases that ran, whether all passed, what failed) of the tests named after `fault`."""
    environment = dict(os.environ, STEPGRAPH_TEST_DEVICE="host", STEPGRAPH_TEST_SMALL="1")
    environment.pop("STEPGRAPH_GUARD_OFF", None)
    if off:
        environment["STEPGRAPH_GUARD_OFF"] = fault
    cases, failed = 0, []
    for program in PROGRAMS:
        command = [build / program, f"--test-case={fault}:*,*: {fault}:*", "--no-colors"]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace",
                                  timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            failed.append(f"{program} did not end in {SECONDS} s")
            continue
        ran = re.search(r"test cases:\s*(\d+)", done.stdout)
        cases += int(ran[1]) if ran else 0
        if done.returncode:
            last = [line for line in done.stdout.splitlines() if "ERROR" in line or "SIG" in line]
            failed.append(last[0].strip() if last else f"exit status {done.returncode}")
    return cases, not failed, "; ".join(failed)


def judge(build, fault):
    """None if all is well, else what is wrong."""
    cases, passed, why = run(build, fault, off=False)
    if cases == 0:
        return f"no test is named after {fault}"
    if not passed:
        return f"the tests of {fault} fail as they are: {why}"
    _, passed, _ = run(build, fault, off=True)
    if passed:
        return f"the tests of {fault} pass although its guard is off"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path, help="a build folder with -Dmutations=true")
    parser.add_argument("ids", nargs="*", help="of docs/faults.md; all if none is given")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="tests at a time (default: one a core)")
    options = parser.parse_args()
    for program in PROGRAMS:
        if not (options.build / program).is_file():
            sys.exit(f"{options.build / program} is not there; build {options.build} first")
    known = table()
    unknown = [each for each in options.ids if each not in known]
    if unknown:
        sys.exit(f"docs/faults.md has no {', '.join(unknown)}; it has {', '.join(known)}")
    wanted = [each for each in options.ids or known if known[each]]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        wrong = [each for each in pool.map(lambda fault: judge(options.build.resolve(), fault), wanted) if each]
    for each in wrong:
        print(each)
    print(f"{len(wanted) - len(wrong)} of {len(wanted)} guards are shown to be needed")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
