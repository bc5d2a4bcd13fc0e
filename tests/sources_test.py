#!/usr/bin/env python3
"""Every test source is named in a meson.build: what none names runs nowhere and looks as if it did. And the pages that
are made from sources and reports are as those say."""

import re
import subprocess
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
from case_total import run_and_exit  # noqa: E402

TESTS = Path(__file__).resolve().parent
BUILDS = [*TESTS.rglob("meson.build"), *(TESTS.parent / "bench").rglob("meson.build")]


class Sources(unittest.TestCase):
    def test_every_source_is_built(self):
        named = {(build.parent / name).resolve() for build in BUILDS
                 for name in re.findall(r"'([^']+_test\.(?:cpp|cu|py))'", build.read_text())}
        there = {path for suffix in ("cpp", "cu", "py") for path in TESTS.rglob(f"*_test.{suffix}")}
        self.assertGreater(len(there), 20)
        self.assertEqual(sorted(str(path.relative_to(TESTS)) for path in there - named), [])

    def up_to_date(self, script):
        checked = subprocess.run([sys.executable, TESTS.parent / "scripts" / script, "--check"], capture_output=True, text=True,
                                 check=False)
        self.assertEqual(checked.returncode, 0, checked.stderr)

    def test_faults_have_their_tests_listed(self):
        self.up_to_date("list_fault_tests.py")

    def test_benchmarks_are_the_reports(self):
        self.up_to_date("make_benchmarks.py")


run_and_exit()
