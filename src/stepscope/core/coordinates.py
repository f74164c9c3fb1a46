"""Where a rank is in its job: its place along the data, tensor, pipeline and other dimensions, from what is known.

Nothing here imports anything: it reads the environment, and objects of libraries that the program itself has loaded.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers treat typing's, without the 5 ms of importing it
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

PLACED = "rank_placed"
"""Kind of the event that says where a rank is."""
BY_HAND = "run.place"
"""Source of what the program itself said."""
DIMENSIONS = {
    **dict.fromkeys(("dp", "data", "data_parallel"), "data"),
    **dict.fromkeys(("tp", "mp", "tensor", "model", "tensor_parallel", "tensor_model_parallel"), "tensor"),
    **dict.fromkeys(("pp", "pipe", "pipeline", "pipeline_parallel", "pipeline_model_parallel"), "pipeline"),
    **dict.fromkeys(("ep", "expert", "expert_parallel", "expert_model_parallel"), "expert"),
    **dict.fromkeys(("cp", "sp", "context", "sequence", "context_parallel", "sequence_parallel"), "context"),
}
"""The name of a dimension by the spellings in use."""
ENVIRONMENT = ("DP", "TP", "PP", "EP", "CP", "DATA_PARALLEL", "TENSOR_PARALLEL", "PIPELINE_PARALLEL", "EXPERT_PARALLEL")
"""Starts of the variables, such as TP_RANK, in which launchers and scripts tell a rank its place."""
MEGATRON = "megatron.core.parallel_state"
GETTERS = {
    "data": "get_data_parallel_rank",
    "tensor": "get_tensor_model_parallel_rank",
    "pipeline": "get_pipeline_model_parallel_rank",
    "expert": "get_expert_model_parallel_rank",
    "context": "get_context_parallel_rank",
}
MOST = 8
"""Most dimensions of a job."""


def dimension_of(name: str) -> str:
    """Return the usual name of a dimension: `tensor` for `tp`; one that is unknown stays as it is."""
    return DIMENSIONS.get(name.lower(), name[:40])


def of_environment(environ: Mapping[str, str]) -> dict[str, int]:
    """Return the coordinates in variables such as DP_RANK and TP_RANK."""
    given = {start: environ.get(f"{start}_RANK", "") for start in ENVIRONMENT}
    return {dimension_of(start): int(text) for start, text in given.items() if text.isdecimal() and len(text) < 10}


def of_mesh(mesh: Any) -> dict[str, int]:
    """Return the coordinates of this rank in a torch DeviceMesh with named dimensions; empty if it is not in it."""
    names, place = mesh.mesh_dim_names, mesh.get_coordinate()
    if not names or place is None:
        return {}
    return {dimension_of(str(name)): int(at) for name, at in list(zip(names, place, strict=False))[:MOST]}


def of_megatron(modules: Mapping[str, Any]) -> dict[str, int]:
    """Return the coordinates that Megatron-LM knows, once it has set up its groups; empty without it."""
    state = modules.get(MEGATRON)
    is_ready = getattr(state, "model_parallel_is_initialized", None)
    if is_ready is None or not is_ready():
        return {}
    found = {name: getattr(state, getter, None) for name, getter in GETTERS.items()}
    return {name: int(get()) for name, get in found.items() if get is not None}
