#!/usr/bin/env python3
"""Shows that every guard of docs/faults.md is needed: its tests pass with it and fail without it.

Needs a build with -Dmutations=true and -Dcuda=disabled. For each id of the table the test cases named after it run
twice: as they are, and with STEPGRAPH_GUARD_OFF=id, where at least one has to fail.

The ids of the table that are about a GPU alone need a GPU and two builds: with -Dmutations=true the kernels lack their
guard for good, and --normal names a build that has it.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from list_fault_tests import ids, is_named_after  # noqa: E402

PROGRAMS = ("tests/stepgraph_tests", "tests/stepgraph_plain_tests")
SECONDS = 120  # for one run; a guard that is off may make a test hang


def named_after(build, fault):
    """For each program the test cases whose name lists `fault` before its colon."""
    cases = {}
    for program in PROGRAMS:
        listed = subprocess.run([build / program, "--list-test-cases"], capture_output=True, text=True, check=True)
        fits = [name for name in listed.stdout.splitlines() if is_named_after(name, fault)]
        # a comma would end the pattern
        cases[program] = ",".join(name.replace(",", "?") for name in fits)
    return {program: patterns for program, patterns in cases.items() if patterns}


def run(build, cases, off=None, device="host"):
    """What failed of these test cases, with the guard `off` turned off: names, or why a program ended."""
    environment = dict(os.environ, STEPGRAPH_TEST_DEVICE=device, STEPGRAPH_TEST_SMALL="1")
    environment.pop("STEPGRAPH_GUARD_OFF", None)
    if off:
        environment["STEPGRAPH_GUARD_OFF"] = off
    failed = []
    for program, patterns in cases.items():
        command = [build / program, f"--test-case={patterns}", "--no-colors"]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace",
                                  timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            failed.append(f"{program} did not end in {SECONDS} s")
            continue
        if done.returncode:
            # doctest writes a case's name above its failures, and a line of = between cases
            reports = [report for report in re.split("^={40,}$", done.stdout, flags=re.M) if "ERROR: " in report]
            names = [name for report in reports for name in re.findall("^TEST CASE: +(.*)", report, re.M)]
            failed += list(dict.fromkeys(names)) or [f"{program} ended with status {done.returncode}"]
    return failed


def judge(build, fault, normal=None):
    """None if all is well, else what is wrong. `normal`: of a fault of GPUs, the build that has its guard."""
    cases = named_after(build, fault)
    if not cases:
        return f"no test is named after {fault}"
    failed = run(normal, cases, device="cuda") if normal else run(build, cases)
    if failed:
        return f"the tests of {fault} fail as they are: {'; '.join(failed)}"
    failed = run(build, cases, device="cuda") if normal else run(build, cases, off=fault)
    if not failed:
        return f"the tests of {fault} pass although its guard is off"
    print(f"{fault}: fails without its guard: {'; '.join(failed)}", flush=True)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path, help="a build folder with -Dmutations=true")
    parser.add_argument("ids", nargs="*", help="of docs/faults.md; all if none is given")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="tests at a time (default: one a core)")
    parser.add_argument("--normal", type=pathlib.Path, help="a build with every guard, for the faults of GPUs alone")
    options = parser.parse_args()
    for program in PROGRAMS:
        if not (options.build / program).is_file():
            sys.exit(f"{options.build / program} is not there; build {options.build} first")
    known = ids()
    unknown = [each for each in options.ids if each not in known]
    if unknown:
        sys.exit(f"docs/faults.md has no {', '.join(unknown)}; it has {', '.join(known)}")
    wanted = [each for each in options.ids or known if known[each] != bool(options.normal)]
    normal = options.normal and options.normal.resolve()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        wrong = [each for each in pool.map(lambda fault: judge(options.build.resolve(), fault, normal), wanted) if each]
    for each in wrong:
        print(each)
    print(f"{len(wanted) - len(wrong)} of {len(wanted)} guards are shown to be needed")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
