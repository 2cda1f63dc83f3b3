"""The model and the optimiser of a run, as its processes share them."""

import os
from typing import Any

import torch
from accelerate import FullyShardedDataParallelPlugin  # type: ignore[import-untyped]
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.fx.experimental import _config as symbolic_shapes
from torch.nn.parallel import DistributedDataParallel

from cosformer.models import sequence_parallel
from cosformer.training.mesh import Mesh
from cosformer.training.run import Run


def distributed(net: Any, run: Run, mesh: Mesh) -> Any:
    """The model to call in place of `net`, whose weights it has: on the device, its layers compiled where the
    run says so, and in several processes a replica in each (DDP) or a shard (FSDP2)."""
    if mesh.sequence_group is not None:
        sequence_parallel(net, mesh.sequence_group)
    told = _told_to_shard()
    if run.gradient_checkpointing or (told is not None and told.activation_checkpointing):
        net.gradient_checkpointing_enable({"use_reentrant": False})
    net.to(mesh.device)
    if run.compile:
        compile_layers(net, run)
    if mesh.alone:
        return net
    if shards(run):
        options: dict[str, Any] = {"mesh": init_device_mesh(mesh.device.type, (mesh.size,))}
        if told is not None:
            options["reshard_after_forward"] = told.reshard_after_forward
        for layer in _layers(net):
            fully_shard(layer, **options)
        return fully_shard(net, **options)
    return DistributedDataParallel(net, gradient_as_bucket_view=True)


def compile_layers(net: Any, run: Run) -> None:
    """Compiles the forward of every layer when it is first called: equal layers once, which takes a fraction
    of the time for the whole model. Names of weights stay, and hooks of FSDP2 run outside of the graphs.
    Batches of similar lengths have several shapes: graphs are then made for any length, the same in a run
    that is resumed, whose first batch has another one.
    """
    layers, backend = _layers(net), run.compile_backend
    torch.compiler.reset()  # graphs of earlier runs would count against the limit, and may make sizes dynamic
    # Each kind of layer once for the first length and once for any; by default PyTorch stops at 8 graphs.
    limit = max(torch._dynamo.config.recompile_limit, 2 * len(layers))
    torch._dynamo.config.recompile_limit = limit
    # A length that is as large as another size by chance would be taken for it, and fixed.
    symbolic_shapes.use_duck_shape = not run.group_by_length
    how: dict[str, Any] = {"backend": backend}
    if run.group_by_length:
        how["dynamic"] = True
    if run.group_by_length and backend == "inductor":
        # Of sizes that are not known, this analysis fails (PyTorch 2.11, softmax within windows and masks).
        how["options"] = {"triton.coalesce_tiling_analysis": False}
    for layer in layers:
        layer.forward = torch.compile(layer.forward, **how)


def _layers(net: Any) -> list[nn.Module]:
    return [m for m in net.modules() if type(m).__name__ in net._no_split_modules]


def shards(run: Run) -> bool:
    """Whether processes share the weights."""
    return run.shard or _told_to_shard() is not None


def _told_to_shard() -> Any:
    """The options of FSDP in the configuration of `accelerate launch`, or None. Accelerate itself would
    shard on GPUs alone."""
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() != "true":
        return None
    told = FullyShardedDataParallelPlugin()
    if told.fsdp_version != 2 or isinstance(told.cpu_offload, CPUOffloadPolicy):
        raise ValueError(
            "of accelerate's FSDP, version 2 without offloading is supported: write fsdp_version: 2 and "
            "fsdp_offload_params: false into the configuration of accelerate launch."
        )
    return told


def adamw(net: nn.Module, run: Run, device: torch.device) -> torch.optim.AdamW:
    """Over all weights that are trained; matrices and embeddings decay."""
    wanted = [p for p in net.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in wanted if p.dim() >= 2], "weight_decay": run.weight_decay},
        {"params": [p for p in wanted if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=run.learning_rate, betas=(run.beta1, run.beta2), eps=run.epsilon,
        fused=device.type == "cuda",
    )  # fmt: skip
