"""Loads SGLang's own Triton kernels from the installed package (or an unpacked wheel), each module on its own: the package's
initialisers and small utility modules, which would pull in the whole engine, are stood in for. Nothing of it is copied."""

import importlib
import importlib.util
import sys
import types
from pathlib import Path

TESTED = "0.5.23"
OPS = "sglang.kernels.ops."


class Skipped(Exception):
    pass


class _Switches:
    """Stands in for the environment's switches: all off."""

    def __getattr__(self, name):
        return types.SimpleNamespace(get=lambda: False)


def _stub(name, **contents):
    module = types.ModuleType(name)
    vars(module).update(contents)
    sys.modules[name] = module


def _never(*_):
    return False


def _bare_package(name, folder):
    """A package without its initialiser, so that only the module asked for runs."""
    module = types.ModuleType(name)
    module.__path__ = [str(folder)]
    sys.modules[name] = module


def find(folder=None):
    """Folder of the package `sglang`, and its version."""
    if folder is None:
        spec = importlib.util.find_spec("sglang")
        if spec is None or not spec.submodule_search_locations:
            raise Skipped(f"sglang is not installed (pip install --no-deps sglang=={TESTED})")
        folder = spec.submodule_search_locations[0]
    folder = Path(folder)
    if not (folder / "kernels/ops/attention/metadata.py").is_file():
        raise Skipped(f"{folder} holds no sglang with kernels/ops/attention (tested: {TESTED})")
    found = sorted(folder.parent.glob("sglang-*.dist-info"))
    return folder, found[0].name.split("-")[1].removesuffix(".dist") if found else "unknown"


def load(folder=None):
    """(function that imports a module by its name after sglang.kernels.ops., version)"""
    try:
        import torch
        import triton
    except ImportError as missing:
        raise Skipped(f"{missing.name} is not installed") from missing
    folder, version = find(folder)
    for name in ("", ".kernels", ".kernels.ops", ".kernels.ops.attention", ".kernels.ops.attention.dsa",
                 ".kernels.ops.attention.dsa.kpool_metadata", ".kernels.ops.attention.dsv4", ".kernels.ops.kvcache",
                 ".kernels.ops.speculative", ".srt"):
        _bare_package("sglang" + name, folder.joinpath(*name.strip(".").split(".")) if name else folder)
    cuda = torch.cuda.is_available()
    _stub("sglang.srt.utils", is_hip=_never, is_xpu=_never, is_npu=_never, is_musa=_never, is_cpu=_never,
          is_cuda=lambda: cuda, is_gfx95_supported=_never, is_gfx1250_supported=_never, next_power_of_2=triton.next_power_of_2,
          ceil_align=lambda x, y: -(-x // y) * y, ceil_div=lambda x, y: -(-x // y),
          get_device_core_count=lambda index=0: torch.cuda.get_device_properties(index).multi_processor_count)
    _stub("sglang.srt.utils.common", async_h2d=None)
    _stub("sglang.srt.environ", envs=_Switches())
    _stub("sglang.srt.layers.attention.dsa.utils", INDEXER_K_CACHE_PRESHUFFLE_TILE=16,
          aiter_can_use_preshuffle_paged_mqa=_never)
    _stub("sglang.kernels.ops.quantization.fp8_kernel", is_fp8_fnuz=_never)
    if importlib.util.find_spec("msgspec") is None:
        _stub("msgspec", Struct=object)
    return lambda name: importlib.import_module(OPS + name), version


def interpreted():
    """Whether Triton runs its kernels as Python, on any machine."""
    import os
    return os.environ.get("TRITON_INTERPRET") == "1"
