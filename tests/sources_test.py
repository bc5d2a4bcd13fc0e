#!/usr/bin/env python3
"""Every test source is named in a meson.build: what none names runs nowhere and looks as if it did. And docs/faults.md lists
the tests of each fault as they are."""

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

    def test_faults_have_their_tests_listed(self):
        listed = subprocess.run([sys.executable, TESTS.parent / "scripts/list_fault_tests.py", "--check"],
                                capture_output=True, text=True, check=False)
        self.assertEqual(listed.returncode, 0, listed.stderr)


run_and_exit()
