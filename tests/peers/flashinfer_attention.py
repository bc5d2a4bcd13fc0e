"""FlashInfer's tensor-core kernels over a paged cache, where the package `flashinfer-python` is there."""

import importlib
import importlib.util
import sys
import types


def load():
    """(module flashinfer.prefill, version), or None and the reason. The package's initialiser asks for packages that these
    kernels do not need; where one is missing the module is loaded on its own. Its kernels are compiled at first use (nvcc and
    ninja, minutes)."""
    spec = importlib.util.find_spec("flashinfer")
    if spec is None or not spec.submodule_search_locations:
        return None, "flashinfer-python is not installed"
    try:
        version = importlib.import_module("flashinfer").__version__
    except Exception:
        for name in [name for name in sys.modules if name.split(".")[0] == "flashinfer"]:
            del sys.modules[name]
        bare = types.ModuleType("flashinfer")
        bare.__path__ = list(spec.submodule_search_locations)
        sys.modules["flashinfer"] = bare
        try:
            version = bare.__version__ = importlib.import_module("flashinfer.version").__version__
        except Exception as error:
            return None, f"flashinfer does not load: {error}"
    try:
        return importlib.import_module("flashinfer.prefill"), version
    except Exception as error:
        return None, f"flashinfer.prefill does not load: {error}"


def planned(module, batch, set_index):
    """A function that enqueues one set's attention. The plan is made here, on the host, for these lengths: not in its time."""
    import torch
    wrapper = module.BatchPrefillWithPagedKVCacheWrapper(torch.empty(256 << 20, dtype=torch.uint8, device="cuda"), "NHD",
                                                         backend="fa2")
    wrapper.plan(batch.cu_seqlens_q, batch.cu_pages, batch.page_ids(set_index), batch.last_page_len, batch.HEADS,
                 batch.KV_HEADS, batch.HEAD_SIZE, batch.PAGE, causal=True, sm_scale=batch.scale, q_data_type=torch.bfloat16)
    out = torch.empty_like(batch.query)
    return (lambda: wrapper.run(batch.query, (batch.keys, batch.values), out=out)), out
