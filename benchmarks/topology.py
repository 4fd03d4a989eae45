"""A mesh of devices that are not at hand, for which XLA compiles all the same.

XLA has the compiler of a TPU in a wheel, `jax[tpu]`, and that of a GPU in `jax[cuda12]` or `jax[cuda13]`. Neither needs
a device.
"""

from __future__ import annotations

import importlib.util
import os
import tomllib
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh

from jaxsens.cli.plan import Target
from jaxsens.core.base.errors import InputError

_NEEDS = {"tpu": (("libtpu",), "tpu"), "gpu": (("jax_cuda12_plugin", "jax_cuda13_plugin"), "cuda12")}
"""The modules one of which holds a platform's compiler, and the extra that installs it."""


def why_not_compiled(target: Target) -> str | None:
    """Returns which extra is missing to compile for a target, or None."""
    modules, extra = _NEEDS[target.device.platform]
    if any(importlib.util.find_spec(name) for name in modules):
        return None
    return f'pip install "jaxsens[{extra}]" compiles for it without a device'


def mesh_of(target: Target) -> Mesh:
    """Returns the mesh of a target's devices, with the axis "flips". Programs are compiled for it, and cannot run.

    Raises:
        InputError: if the extra with the compiler is not installed.
    """
    missing = why_not_compiled(target)
    if missing is not None:
        raise InputError.of("--on", target.name, missing)
    device, options = target.device, {}
    compilers = tomllib.loads(Path(__file__).with_name("compilers.toml").read_text("utf-8"))
    compiler = compilers[next(name for name in compilers if target.name.startswith(name))]
    if device.tpu is not None and target.slice is not None:
        # Else it asks Google Cloud where it runs, for minutes.
        os.environ |= {
            "TPU_SKIP_MDS_QUERY": "1",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # else a second process, or one that runs on a TPU, is refused
            "TPU_WORKER_HOSTNAMES": "localhost",
            "TPU_ACCELERATOR_TYPE": f"{compiler['type']}-{target.slice}",
        }
        platform, name = "tpu", f"{compiler['generation']}:{device.tpu.slices[target.slice]}"
    else:
        os.environ |= {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
        platform, name = "cuda", f"1x1x{target.count}"
        options = {"target_config": _config(target, compiler), "topology": name}
    jax.devices()  # of this machine, before plugins for others are loaded
    topology = topologies.get_topology_desc(platform=platform, topology_name=name, **options)
    devices = np.array(topology.devices[: target.count])
    return Mesh(devices, ("flips",), axis_types=(AxisType.Auto,))


def _config(target: Target, gpu: dict[str, Any]) -> str:
    """Returns what XLA calls the target config of a GPU, in its protocol's text form."""
    major, minor = gpu["compute_capability"].split(".")
    extension = "ACCELERATED_FEATURES" if gpu["accelerated"] else "NONE"
    device = target.device
    return f"""gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {gpu["shared_memory_per_core"]}
  threads_per_core_limit: 2048
  core_count: {gpu["cores"]}
  fpus_per_core: {gpu["units_per_core"]}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {device.bandwidth:.0f}
  l2_cache_size: {gpu["cache"]}
  clock_rate_ghz: {gpu["clock_ghz"]}
  device_memory_size: {device.memory}
  shared_memory_per_block_optin: {gpu["shared_memory_per_block"]}
  cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {extension} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "{device.description}"
"""
