"""stepgraph's single ops on PyTorch tensors, timings of anything that enqueues on a stream, and the report."""

import ctypes
import datetime
import json
import math
import subprocess
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent.parent


class Ops:
    """The built libstepgraph_peer. A call's arguments go by name: numbers, and tensors that outlive the work."""

    def __init__(self, path=None):
        self.library = ctypes.CDLL(str(path or ROOT / "build/tests/libstepgraph_peer.so"))
        self.library.stepgraph_peer_error.restype = ctypes.c_char_p
        self.library.stepgraph_peer_call.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p]
        self.library.stepgraph_peer_workspace.argtypes = [ctypes.c_char_p, ctypes.c_int]
        self.library.stepgraph_peer_workspace.restype = ctypes.c_int64

    def __call__(self, op, **arguments):
        """Enqueues `op` on PyTorch's current stream, a captured one included; on the host where no GPU is."""
        stream = torch.cuda.current_stream().cuda_stream if torch.cuda.is_available() else None
        self.checked(self.library.stepgraph_peer_call(op.encode(), described(arguments), device_ordinal(), stream))

    def workspace_bytes(self, **arguments):
        return self.checked(self.library.stepgraph_peer_workspace(described(arguments), device_ordinal()))

    def checked(self, result):
        if result < 0:
            raise RuntimeError(self.library.stepgraph_peer_error().decode())
        return result


def device_ordinal():
    return torch.cuda.current_device() if torch.cuda.is_available() else -1


def described(arguments):
    return json.dumps({name: describe(name, value) for name, value in arguments.items() if value is not None}).encode()


def describe(name, value):
    if not isinstance(value, torch.Tensor):
        return value
    assert value.dim() == 0 or value.stride(-1) == 1, f"{name}: the last dimension must be dense"
    shape = list(value.shape) or [1]
    return {"data": value.data_ptr(), "wide": value.dtype == torch.int64, "columns": shape[-1],
            "lines": math.prod(shape[:-1]), "stride": value.stride(-2) if value.dim() > 1 else shape[-1]}


def time_chain(enqueue, nodes=20, replays=10, count=21):
    """Microseconds a node of one torch.cuda.CUDAGraph of `nodes` times enqueue(), replayed back to back; the form of
    bench/graph_chain.hpp."""
    return time_graphs([enqueue], nodes, replays, count)


def time_graphs(turns, nodes=1, replays=None, count=21):
    """The same of several graphs that replay in turn, graph s beginning with turns[s], so that each works on other data
    than the one before. `replays`: as many as take some milliseconds, if not given."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for turn in turns:
            turn()  # compiles and loads
        stream.synchronize()
        graphs = []
        for s in range(len(turns)):
            graphs.append(torch.cuda.CUDAGraph())
            with torch.cuda.graph(graphs[-1], stream=stream):
                for i in range(nodes):
                    turns[(s + i) % len(turns)]()

        def measure(replays):
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            graphs[-1].replay()  # keeps the device busy while the host fills its queue
            start.record()
            for i in range(replays):
                graphs[i % len(graphs)].replay()
            stop.record()
            stop.synchronize()
            return start.elapsed_time(stop) * 1e3 / (replays * nodes)

        measure(len(graphs))
        if replays is None:
            replays = min(64, max(4, int(5000 / (measure(len(graphs)) * nodes)))) // len(graphs) * len(graphs) + len(graphs)
        measure(replays)
        times = sorted(measure(replays) for _ in range(count))
    return {"median": times[len(times) // 2], "minimum": times[0], "maximum": times[-1], "count": count}


class Report:
    """Rows in the schema of bench/report.hpp; a row of a peer's own figures has the peer's name in `name`."""

    def __init__(self, commit, **versions):
        self.all = {"context": {"gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none, host",
                                "driver": driver_version(), "cuda": torch.version.cuda, "commit": commit,
                                "date": datetime.date.today().isoformat(),
                                "versions": {"torch": torch.__version__, **versions},
                                "timing": "nodes of torch.cuda.CUDAGraphs, replayed back to back, both sides"},
                    "rows": []}

    def add(self, name, parameters, timing, size=0, peer=None, peer_us=None, **more):
        rounded = {key: round(value, 3) if isinstance(value, float) else value for key, value in timing.items()}
        self.all["rows"].append({"name": name, "parameters": parameters, **rounded, "bytes": size, "peer": peer,
                                 "peer_us": None if peer_us is None else round(peer_us, 3), **more})

    def write(self, path):
        if path:
            Path(path).write_text(json.dumps(self.all, indent=1, ensure_ascii=False) + "\n")


def driver_version():
    try:
        run = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], stdout=subprocess.PIPE,
                             text=True, check=True)
        return run.stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def commit():
    try:
        return subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
