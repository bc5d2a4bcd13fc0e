#!/usr/bin/env python3
"""compare.py and plot.py on made-up reports.

    reports_test.py BENCH_FOLDER
"""

import importlib.util
import json
import random
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from case_total import run_and_exit  # noqa: E402

BENCH = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parents[2] / "bench")
sys.dont_write_bytecode = True
sys.path.insert(0, str(BENCH))
import compare  # noqa: E402
import plot  # noqa: E402

needs_matplotlib = unittest.skipUnless(importlib.util.find_spec("matplotlib"), "matplotlib is not there")


def row(name, values, **parameters):
    values = sorted(values)
    return {"name": name, "parameters": {"model": "tiny", "on": "a GPU", "page": 16, "step": "decode", "policy": "live", **parameters},
            "median": values[len(values) // 2], "minimum": values[0], "maximum": values[-1], "count": len(values), "bytes": 0,
            "peer": None, "peer_us": None, "samples": values}


def around(middle, spread, count=15, seed=3):
    draw = random.Random(seed)
    return [middle * (1 + spread * (2 * draw.random() - 1)) for _ in range(count)]


class ReportTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def report(self, name, rows, gpu="a GPU"):
        path = self.folder / name
        path.write_text(json.dumps({"context": {"gpu": gpu, "commit": "c"}, "rows": rows}))
        return path

    def run_compare(self, a, b, *options):
        return subprocess.run([sys.executable, str(BENCH / "compare.py"), str(a), str(b), *map(str, options)], capture_output=True,
                              text=True, timeout=60)


class Compare(ReportTest):
    def two(self, first, second, **extra):
        return self.report("a.json", [row("step", first, **extra)]), self.report("b.json", [row("step", second, **extra)])

    def test_equal_reports_pass(self):
        run = self.run_compare(*self.two(around(100, 0.01), around(100, 0.01)))
        self.assertEqual(run.returncode, 0, run.stdout)
        self.assertIn("same", run.stdout)
        self.assertIn("0 slower", run.stdout)

    def test_a_clear_regression_fails(self):
        run = self.run_compare(*self.two(around(100, 0.01), around(110, 0.01, seed=4)))
        self.assertEqual(run.returncode, 1, run.stdout)
        self.assertIn("SLOWER", run.stdout)
        self.assertIn("1.1", run.stdout)

    def test_the_threshold_decides(self):
        pair = self.two(around(100, 0.002), around(105, 0.002, seed=4))
        self.assertEqual(self.run_compare(*pair, "--threshold", 0.03).returncode, 1)
        self.assertEqual(self.run_compare(*pair, "--threshold", 0.08).returncode, 0)

    def test_noise_is_no_regression(self):
        run = self.run_compare(*self.two(around(100, 0.3), around(106, 0.3, seed=4)))
        self.assertEqual(run.returncode, 0, run.stdout)
        self.assertIn("unclear", run.stdout)

    def test_an_improvement_is_no_regression(self):
        run = self.run_compare(*self.two(around(100, 0.01), around(80, 0.01, seed=4)))
        self.assertEqual(run.returncode, 0, run.stdout)
        self.assertIn("faster", run.stdout)

    def test_without_samples_the_spreads_decide(self):
        a, b = row("step", [98, 100, 102]), row("step", [107, 108, 109])
        del a["samples"], b["samples"]
        low, high = compare.interval(a, b, 0.95, "")
        self.assertAlmostEqual(low, 107 / 102)
        self.assertAlmostEqual(high, 109 / 98)

    def test_parameters_tell_rows_apart_but_noise_does_not(self):
        a = self.report("a.json", [row("step", around(100, 0.01), batch=1, noisy=False), row("step", around(200, 0.01), batch=2)])
        b = self.report("b.json", [row("step", around(200, 0.01), batch=2), row("step", around(100, 0.01), batch=1, noisy=True)])
        run = self.run_compare(a, b)
        self.assertEqual(run.returncode, 0, run.stdout)
        self.assertEqual(run.stdout.count("same"), 2)

    def test_only_some_rows(self):
        a = self.report("a.json", [row("step", around(100, 0.01)), row("gap", around(5, 0.01))])
        b = self.report("b.json", [row("step", around(100, 0.01)), row("gap", around(9, 0.01)), row("new", [1, 2, 3])])
        self.assertEqual(self.run_compare(a, b).returncode, 1)
        self.assertEqual(self.run_compare(a, b, "--only", "^step").returncode, 0)
        self.assertEqual(self.run_compare(a, b, "--least-us", 50).returncode, 0)
        self.assertIn("only in B: new", self.run_compare(a, b).stdout)

    def test_two_runs_agree_or_were_called_noisy(self):
        a = self.report("a.json", [row("step", around(100, 0.01)), row("gap", around(5, 0.01)), row("capture", [400])])
        b = self.report("b.json", [row("step", around(104, 0.01)), row("gap", around(9, 0.01)), row("capture", [800])])
        run = self.run_compare(a, b, "--agree")
        self.assertEqual(run.returncode, 1, run.stdout)
        self.assertIn("of 1 medians of 20 us or more 0 agree within 3 %, 0 were called noisy, 1 differ", run.stdout)
        self.assertEqual(self.run_compare(b, a, "--agree").returncode, 1, "faster is no agreement either")
        self.assertEqual(self.run_compare(a, b, "--agree", "--threshold", 0.06).returncode, 0)
        noisy = self.report("noisy.json", [row("step", around(104, 0.01), noisy=True)])
        run = self.run_compare(a, noisy, "--agree")
        self.assertEqual(run.returncode, 0, run.stdout)
        self.assertIn("1 were called noisy", run.stdout)

    def test_other_devices_are_named(self):
        a = self.report("a.json", [row("step", around(100, 0.01))])
        b = self.report("b.json", [row("step", around(100, 0.01))], gpu="another")
        self.assertIn("not the same device", self.run_compare(a, b).stdout)

    def test_unusable_input(self):
        good = self.report("a.json", [row("step", around(100, 0.01))])
        text = self.folder / "text.json"
        text.write_text("no JSON")
        other = self.report("other.json", [row("other", [1, 2, 3])])
        for bad in (self.folder / "none.json", text, other):
            with self.subTest(bad=bad.name):
                run = self.run_compare(good, bad)
                self.assertEqual(run.returncode, 2, run.stdout)
                self.assertIn("compare.py:", run.stderr)
                self.assertNotIn("Traceback", run.stderr)


def sweep_rows():
    rows = []
    for policy, slope in (("live", 0), ("early-exit", 0.5), ("full-width", 3)):
        for width in (2048, 8192, 32768):
            rows.append(row("step", around(100 + slope * width / 100, 0.01), policy=policy, batch=8, live=512, width=width))
        for live in (512, 4096):
            rows.append(row("group: metadata", around(2 + live / 1000 + slope, 0.01), policy=policy, batch=8, live=live, width=65536))
    for batch in (1, 8):
        shared = {"step": "round", "batch": batch, "live": 512, "width": 8192, "drafts": 3, "accept": "fixed 2"}
        rows.append({**row("speculation", [500], **shared),
                     "speculation": {"plain_tokens_per_second": 1000 * batch, "tokens_per_second": 2000 * batch}})
        rows += [row(f"group: {group}", [value], **shared) for group, value in
                 (("prologue", 5), ("metadata", 6), ("attention", 100 * batch), ("model", 300), ("between replays", 9), ("not explained", -2))]
    return rows


class Plot(ReportTest):
    def test_step_against_width(self):
        curves, shared = plot.step_against_width(sweep_rows())
        self.assertEqual(set(curves), {"live", "early-exit", "full-width"})
        self.assertEqual([r["parameters"]["width"] for r in curves["live"]], [2048, 8192, 32768])
        self.assertEqual(shared["batch"], 8)

    def test_metadata_against_live(self):
        curves, _ = plot.metadata_against_live(sweep_rows())
        self.assertEqual([r["parameters"]["live"] for r in curves["early-exit"]], [512, 4096])

    def test_tokens_against_batch(self):
        points, _ = plot.tokens_against_batch(sweep_rows())
        self.assertEqual(points, [(1, 1000, 2000), (8, 8000, 16000)])

    def test_round_shares_are_of_their_own_batch(self):
        bars, _ = plot.round_shares(sweep_rows())
        self.assertEqual([(batch, shares["attention"]) for batch, shares in bars], [(1, 100), (8, 800)])
        self.assertEqual(bars[0][1]["not explained"], 0.0)  # a bar has no negative part

    def test_nothing_to_draw(self):
        self.assertEqual(plot.step_against_width([]), ({}, {}))
        self.assertEqual(plot.round_shares([row("step", [1])]), ([], {}))

    @needs_matplotlib
    def test_every_picture_is_written(self):
        report, into = self.report("a.json", sweep_rows()), self.folder / "pictures"
        run = subprocess.run([sys.executable, str(BENCH / "plot.py"), str(report), "--into", str(into)], capture_output=True, text=True,
                             timeout=120)
        self.assertEqual(run.returncode, 0, run.stderr)
        for name in plot.PICTURES:
            self.assertTrue((into / f"{name}.png").read_bytes().startswith(b"\x89PNG"), name)
            self.assertIn("<svg", (into / f"{name}.svg").read_text())

    def test_unreadable_report(self):
        run = subprocess.run([sys.executable, str(BENCH / "plot.py"), str(self.folder / "none.json")], capture_output=True, text=True)
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("plot.py:", run.stderr)
        self.assertNotIn("Traceback", run.stderr)


run_and_exit()
