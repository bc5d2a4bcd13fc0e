#!/usr/bin/env python3
"""What a user can do wrong with driver_loop: each must end in a clear message and a non-zero exit, never in a crash.

    driver_loop_test.py DRIVER

Most cases need the model that STEPGRAPH_MODEL names and are skipped without it. Every test method is one case of the
closing line.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from case_total import run_and_exit  # noqa: E402

DRIVER = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("STEPGRAPH_DRIVER", "")
MODEL = os.environ.get("STEPGRAPH_MODEL")
DRAFT = Path(__file__).resolve().parents[2] / "examples/train_draft/smollm2_draft.safetensors"
PROMPT = "What is the capital of France?"
SECONDS = 120

needs_model = unittest.skipUnless(MODEL, "STEPGRAPH_MODEL is not set")


def drive(*arguments, **environment):
    """Runs the driver on the host, unless the arguments or the environment say otherwise."""
    where = [] if "--device" in arguments else ["--device", "host"]
    return subprocess.run([DRIVER, *where, *map(str, arguments)], env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, errors="replace", timeout=SECONDS)


class DriverTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def file(self, content):
        path = self.folder / "model.gguf"
        path.write_bytes(content)
        return path

    def start_of_model(self, size):
        with open(MODEL, "rb") as model:
            return model.read(size)

    def assert_refused(self, run, *words):
        """Refused with a message that holds `words`: an exit of the program's own, no signal, no answer."""
        said = f"exit {run.returncode}, output {run.stdout[:200]!r}, error output {run.stderr[-2000:]!r}"
        self.assertGreater(run.returncode, 0, "ended by a signal or as if all were well: " + said)
        self.assertLess(run.returncode, 126, "crashed under a shell or a sanitizer: " + said)
        for sign in ("Sanitizer", "terminate called", "Assertion", "runtime error"):
            self.assertNotIn(sign, run.stderr, said)
        for word in words:
            self.assertIn(word, run.stderr, said)
        self.assertEqual(run.stdout, "", "nothing was answered, so nothing may be printed: " + said)


class Options(DriverTest):
    def test_unknown_option(self):
        self.assert_refused(drive("--model", "model.gguf", "--no-such-option", PROMPT), "--no-such-option")

    def test_no_model_option(self):
        self.assert_refused(drive(PROMPT), "--model")

    def test_no_prompt(self):
        self.assert_refused(drive("--model", "model.gguf"), "prompt")

    def test_option_without_its_value(self):
        self.assert_refused(drive(PROMPT, "--model"), "--model")

    def test_unknown_device(self):
        self.assert_refused(drive("--model", "model.gguf", "--device", "abacus", PROMPT), "--device", "abacus")

    def test_numbers_that_are_none_or_not_positive(self):
        for option in ("--max-tokens", "--context", "--step-tokens", "--page-size"):
            for value in ("none", "0", "-1", "1e3", "99999999999999999999999"):
                if option == "--page-size" and value != "none":
                    continue  # the library refuses those, which takes a model
                with self.subTest(option=option, value=value):
                    # an absurdly large number may get past the options, the model that is not there ends it then
                    self.assert_refused(drive("--model", self.folder / "none.gguf", option, value, PROMPT))


class Files(DriverTest):
    def test_missing_model(self):
        path = self.folder / "none.gguf"
        self.assert_refused(drive("--model", path, PROMPT), str(path), "No such file")

    def test_folder_as_model(self):
        self.assert_refused(drive("--model", self.folder, PROMPT), str(self.folder))

    def test_empty_file(self):
        path = self.file(b"")
        self.assert_refused(drive("--model", path, PROMPT), str(path))

    def test_foreign_files(self):
        for name, content in {
                "text": b"Call me Ishmael. Some years ago, never mind how long precisely.\n" * 100,
                "png": b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x01\x00\x00\x00\x01\x00" + bytes(1000),
                "big-endian": b"GGUF\x00\x00\x00\x03" + bytes(1000),
                "old version": b"GGUF\x01\x00\x00\x00" + bytes(1000),
                "zeros": bytes(100000),
        }.items():
            with self.subTest(name):
                path = self.file(content)
                self.assert_refused(drive("--model", path, PROMPT), str(path))

    def test_header_without_a_model(self):
        path = self.file(b"GGUF\x03\x00\x00\x00" + bytes(16))  # no tensors, no metadata
        self.assert_refused(drive("--model", path, PROMPT), str(path))

    @needs_model
    def test_truncated_model(self):
        whole = Path(MODEL).stat().st_size
        for size in (3, 4, 8, 23, 24, 1000, 100_000, 1_000_000, whole // 2, whole - 1):
            with self.subTest(size=size):
                path = self.file(self.start_of_model(size))
                self.assert_refused(drive("--model", path, PROMPT), str(path), "ends at")

    @needs_model
    def test_corrupted_header(self):
        # 8: number of tensors, 16: of metadata, 24: length of the first key, 32: its text
        for offset, bytes_there in ((8, b"\xff" * 8), (8, bytes(8)), (16, b"\xff" * 8), (16, bytes(8)), (24, b"\xff" * 8),
                                    (32, b"\xff\x00\xfe"), (16, b"\x01" + bytes(7))):
            with self.subTest(offset=offset, bytes_there=bytes_there):
                content = bytearray(self.start_of_model(Path(MODEL).stat().st_size))
                content[offset:offset + len(bytes_there)] = bytes_there
                path = self.file(content)
                self.assert_refused(drive("--model", path, PROMPT), str(path))


@needs_model
class Limits(DriverTest):
    def test_prompt_longer_than_the_context(self):
        self.assert_refused(drive("--model", MODEL, "--context", 64, "word " * 100), "prompt 1 has", "--context 64")

    def test_one_long_prompt_among_good_ones(self):
        self.assert_refused(drive("--model", MODEL, "--context", 64, PROMPT, "word " * 100), "prompt 2 has", "--context 64")

    def test_context_over_the_models(self):
        self.assert_refused(drive("--model", MODEL, "--context", 9000, PROMPT), "--context", "9000", "8192")

    def test_page_size_that_is_no_power_of_two(self):
        for size in (12, 0, -16, 4096):
            with self.subTest(size=size):
                self.assert_refused(drive("--model", MODEL, "--page-size", size, PROMPT), "--page-size", str(size))

    def test_step_tokens_without_measure(self):
        self.assert_refused(drive("--model", MODEL, "--step-tokens", 2_000_000_000, PROMPT), "2000000000")

    def test_cuda_where_there_is_none(self):
        # an empty list hides every GPU there may be
        self.assert_refused(drive("--model", MODEL, "--device", "cuda", PROMPT, CUDA_VISIBLE_DEVICES=""), "device::cuda")


@needs_model
class Answers(DriverTest):
    def test_a_few_tokens(self):
        run = drive("--model", MODEL, "--max-tokens", 8, PROMPT)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("Paris", run.stdout)
        for word in ("captured", "replays", "nodes", "tokens/s", "pages"):
            self.assertIn(word, run.stderr)

    def test_eager_mode_says_the_same(self):
        replayed, eager = (drive("--model", MODEL, "--max-tokens", 8, *mode, PROMPT) for mode in ([], ["--eager"]))
        self.assertEqual(eager.returncode, 0, eager.stderr)
        self.assertEqual(eager.stdout, replayed.stdout)
        for word in ("no replays", "decode", "extend", "us x"):
            self.assertIn(word, eager.stderr)

    def test_several_prompts_in_one_batch(self):
        alone = drive("--model", MODEL, "--max-tokens", 8, PROMPT)
        run = drive("--model", MODEL, "--max-tokens", 8, PROMPT, "Tell me a story.", PROMPT)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(run.stdout.count(alone.stdout.strip()), 2, run.stdout)
        for label in ("[1]", "[2]", "[3]"):
            self.assertIn(label, run.stdout)

    def test_drafts_leave_the_text_as_it_is(self):
        asked = ("--model", MODEL, "--max-tokens", 24, "Say three times: the cat sat on the mat.")
        plain = drive(*asked)
        for drafts in (("--lookup", 4), ("--lookup", 6, "--branches", 2), ("--lookup", 4, "--eager")):
            with self.subTest(drafts=drafts):
                run = drive(*drafts, *asked)
                self.assertEqual(run.returncode, 0, run.stderr)
                self.assertEqual(run.stdout, plain.stdout)
                self.assertIn("and the same text", run.stderr)

    def test_the_trained_draft_and_each_rung_of_the_debug_ladder_leave_the_text_as_it_is(self):
        asked = ("--model", MODEL, "--context", 512, "--max-tokens", 10, PROMPT)
        plain = drive(*asked)
        graph = self.folder / "step.dot"
        for rung in (("--adaptive",), ("--poison", "--one-bucket"),
                     ("--no-programmatic", "--wait", "--dot", graph, "--dot-step", "target_verify")):
            with self.subTest(rung=rung):
                run = drive("--draft", DRAFT, *rung, *asked)
                self.assertEqual(run.returncode, 0, run.stderr)
                self.assertEqual(run.stdout, plain.stdout)
                for word in ("drafts kept a round:", "rounds by drafts asked for:", "target_verify", "draft_extend",
                             "and the same text"):
                    self.assertIn(word, run.stderr)
                self.assertNotIn("fault", run.stderr)
                self.assertNotIn("past the end", run.stderr)
        self.assertIn("digraph", graph.read_text())

    def test_a_graph_that_the_run_does_not_have(self):
        self.assert_refused(drive("--model", MODEL, "--dot", self.folder / "step.dot", "--dot-step", "target_verify", PROMPT),
                            "--dot-step target_verify", "--lookup")

    def test_the_same_seed_says_the_same(self):
        asked = ("--model", MODEL, "--max-tokens", 12, "--temperature", 0.9, "--top-p", 0.95, "Tell me a story.")
        first, again, other = (drive("--seed", seed, *asked) for seed in (1, 1, 2))
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertEqual(first.stdout, again.stdout)
        self.assertNotEqual(first.stdout, other.stdout)

    def test_a_draft_that_is_none(self):
        self.assert_refused(drive("--model", MODEL, "--draft", self.file(b"no draft"), PROMPT), "model.gguf")

    def test_an_empty_prompt_does_not_crash(self):
        run = drive("--model", MODEL, "--max-tokens", 4, "")
        if run.returncode:
            self.assert_refused(run, "prompt")
        else:
            self.assertNotEqual(run.stdout.strip(), "")


def main():
    if not os.access(DRIVER, os.X_OK):
        sys.exit(f"driver_loop_test: {DRIVER!r} is no program; usage: driver_loop_test.py DRIVER")
    run_and_exit()


main()
