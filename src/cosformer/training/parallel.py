"""The model and the optimiser of a run, as its processes share them."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from cosformer.training.mesh import Mesh
from cosformer.training.run import Run


def distributed(net: Any, run: Run, mesh: Mesh) -> Any:
    """The model to call in place of `net`, whose weights it has: on the device, in several processes a
    replica in each (DDP), compiled where the run says so."""
    if run.gradient_checkpointing:
        net.gradient_checkpointing_enable()
    model = mesh.accelerator.prepare(net)
    return torch.compile(model, backend=run.compile_backend) if run.compile else model


def unsynchronised(model: Any) -> AbstractContextManager[None]:
    """Around the parts of an update but for the last: replicas need not exchange gradients yet."""
    made: AbstractContextManager[None] = getattr(model, "no_sync", nullcontext)()
    return made


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
