#!/usr/bin/env python3
"""graph_replay on the host: what a user can do wrong, and what a small sweep must report.

    graph_replay_test.py GRAPH_REPLAY
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from case_total import run_and_exit  # noqa: E402

PROGRAM = sys.argv[1] if len(sys.argv) > 1 else ""
TINY = ["--device", "host", "--model", "tiny", "--live", "64", "--width", "256", "--samples", "2"]
SECONDS = 120


def bench(*arguments, **environment):
    return subprocess.run([PROGRAM, *map(str, arguments)], env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=SECONDS)


class BenchTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def assert_refused(self, run, *words):
        """Refused with a message that holds `words`, before anything ran."""
        said = f"exit {run.returncode}, output {run.stdout[:300]!r}, error output {run.stderr[-2000:]!r}"
        self.assertGreater(run.returncode, 0, said)
        self.assertLess(run.returncode, 126, "crashed: " + said)
        for sign in ("Sanitizer", "terminate called", "Assertion", "runtime error"):
            self.assertNotIn(sign, run.stderr, said)
        for word in words:
            self.assertIn(word, run.stderr, said)
        self.assertEqual(run.stdout, "", said)


class Refusals(BenchTest):
    def test_unknown_names_list_the_known(self):
        self.assert_refused(bench("--device", "host", "--model", "GPT-9"), "GPT-9", "SmolLM2-135M", "Llama-3.1-8B", "DeepSeek-sparse")
        self.assert_refused(bench(*TINY, "--step", "prefill"), "prefill", "target-verify", "draft-extend", "round")
        self.assert_refused(bench(*TINY, "--policy", "hope"), "hope", "early-exit", "full-width")

    def test_negative_and_senseless_sizes(self):
        for option in ("--batch", "--live", "--width", "--drafts", "--samples", "--repetitions", "--accept-rate"):
            for value in ("-1", "none", "1e99"):
                with self.subTest(option=option, value=value):
                    self.assert_refused(bench("--device", "host", "--model", "tiny", option, value), option)

    def test_live_length_over_the_width(self):
        self.assert_refused(bench("--device", "host", "--model", "tiny", "--live", 300, "--width", 256), "--live", "300", "256")

    def test_width_of_no_whole_pages(self):
        self.assert_refused(bench("--device", "host", "--model", "tiny", "--live", 64, "--width", 250), "--width", "250", "16")

    def test_more_memory_than_there_is(self):
        run = bench("--device", "host", "--model", "Llama-3.1-8B", "--batch", 4096, "--live", 500000, "--width", 1 << 20)
        self.assert_refused(run, "bytes needed", "free")

    def test_unwritable_output(self):
        path = self.folder / "no folder" / "out.json"
        self.assert_refused(bench(*TINY, "--json", path), "--json", str(path))
        self.assertFalse(path.exists())

    def test_output_that_is_there_survives_a_refusal(self):
        path = self.folder / "out.json"
        path.write_text("kept")
        self.assert_refused(bench("--device", "host", "--model", "GPT-9", "--json", path), "GPT-9")
        self.assertEqual(path.read_text(), "kept")

    def test_comparators_need_a_gpu(self):
        self.assert_refused(bench(*TINY, "--policy", "early-exit"), "early-exit", "CUDA")

    def test_cuda_where_there_is_none(self):
        self.assert_refused(bench("--device", "cuda", "--model", "tiny", "--live", 64, "--width", 256, CUDA_VISIBLE_DEVICES=""),
                            "device::cuda")

    def test_unknown_arguments(self):
        self.assert_refused(bench(*TINY, "--no-such-option"), "--no-such-option")
        self.assert_refused(bench(*TINY, "--benchmark_no_such_flag=1"), "--benchmark_no_such_flag")

    def test_more_weights_than_drafts_can_be_kept(self):
        self.assert_refused(bench(*TINY, "--drafts", 2, "--accept-weights", "1,1,1,1"), "--accept-weights")


class Sweeps(BenchTest):
    def sweep(self, *arguments):
        path = self.folder / "out.json"
        run = bench(*TINY, "--repetitions", 2, "--json", path, *arguments)
        self.assertEqual(run.returncode, 0, run.stderr)
        return run, json.loads(path.read_text())

    def test_a_step_is_reported_part_by_part(self):
        run, report = self.sweep("--batch", 3)
        rows = {row["name"]: row for row in report["rows"]}
        for name in ("step", "replayed step", "launch call, host", "replay call, host", "device gap, graph to graph",
                     "first node to last, hot", "first node to last, cold", "group: prologue", "group: metadata",
                     "group: attention", "group: model", "group: sampling", "group: epilogue", "group: between replays",
                     "group: not explained", "capture and instantiation"):
            self.assertIn(name, rows)
        self.assertEqual(rows["step"]["count"], 4)
        self.assertEqual(len(rows["step"]["samples"]), 4)
        self.assertGreater(rows["step"]["bytes"], 0)
        self.assertEqual(rows["step"]["peer"], "captured at the live width")
        self.assertGreater(rows["capture and instantiation"]["nodes"], 4)
        parts = sum(row["median"] for name, row in rows.items() if name.startswith("group: "))
        self.assertAlmostEqual(parts, rows["step"]["median"], delta=1e-6 * parts)
        self.assertGreater(report["context"]["read_bytes_per_us"], 0)
        for line in run.stdout.splitlines():
            self.assertIn("[host", line)
            self.assertIn("no GPU]", line)

    def test_a_round_says_when_it_pays(self):
        _, report = self.sweep("--step", "round", "--batch", 2, "--drafts", 3, "--accept", 2, "--ragged")
        figures = [row["speculation"] for row in report["rows"] if row["name"] == "speculation"]
        self.assertEqual(len(figures), 1)
        # rows of (drafts + 1) and of fewer tokens: 7 r + 3 modulo 4 drafts are 3 and 2, and 2 are kept of either
        self.assertAlmostEqual(figures[0]["accepted"], 2.0)
        self.assertAlmostEqual(figures[0]["kept_last"], 2.0)  # what the device did in the last replay
        round_us = next(row["median"] for row in report["rows"] if row["name"] == "round")
        self.assertAlmostEqual(figures[0]["tokens_per_second"], 2 * 3 * 1e6 / round_us, delta=1e-6 * figures[0]["tokens_per_second"])
        plain_us = 2e6 / figures[0]["plain_tokens_per_second"]
        self.assertAlmostEqual(figures[0]["break_even_accepted"], max(0, round_us / plain_us - 1), places=6)

    def test_a_round_is_the_executors_own_steps(self):
        _, report = self.sweep("--step", "round,draft-extend", "--batch", 2, "--drafts", 3, "--accept-rate", 0.5)
        parts = {row["part"] for row in report["rows"] if row["name"] == "capture and instantiation"}
        self.assertEqual(parts, {"draft_decode", "target_verify", "draft_extend"})
        rows = [row for row in report["rows"] if row["parameters"]["step"] == "round"]
        parts_us = sum(row["median"] for row in rows if row["name"].startswith("part: "))
        hot_us = next(row["median"] for row in rows if row["name"] == "first node to last, hot")
        self.assertLess(abs(parts_us - hot_us), 0.5 * hot_us)
        self.assertIn("group: speculation", {row["name"] for row in rows})

    def test_filter_and_list(self):
        listed = bench(*TINY, "--batch", "1,2", "--step", "decode,target-verify", "--list")
        self.assertEqual(len(listed.stdout.splitlines()), 4)
        _, report = self.sweep("--batch", "1,2", "--benchmark_filter=batch:2")
        self.assertEqual({row["parameters"]["batch"] for row in report["rows"]}, {2})

    def test_interrupt_keeps_what_was_measured(self):
        path = self.folder / "out.json"
        run = subprocess.Popen([PROGRAM, *TINY, "--repetitions", "100", "--batch", ",".join(str(n) for n in range(1, 60)), "--json", str(path)],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        first = run.stdout.readline()  # from here on it measures
        time.sleep(0.5)
        run.send_signal(signal.SIGINT)
        _, errors = run.communicate(timeout=SECONDS)
        self.assertIn("[host", first)
        self.assertEqual(run.returncode, 130, errors)
        self.assertIn("interrupted", errors)
        report = json.loads(path.read_text())
        self.assertTrue(report["context"]["interrupted"])
        self.assertLess(len(report["rows"]), 59 * 16)


if not os.access(PROGRAM, os.X_OK):
    sys.exit(f"graph_replay_test: {PROGRAM!r} is no program; usage: graph_replay_test.py GRAPH_REPLAY")
run_and_exit()
