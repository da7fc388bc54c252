"""One model on several processes: DDP, with the whole model on each, and FSDP2, with a shard of it on each."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from ..errors import CoupledQKError
from .compilation import keep_many_models
from .mesh import Mesh, Value
from .sharded import whole
from .state_files import save_sharded

STEP_TIMEOUT = timedelta(minutes=15)
"""Timeout of a process that waits for the others during training."""
PATIENCE = timedelta(hours=24)
"""Timeout of processes that wait for the first one to prepare a corpus or to measure the finished model."""


class Several(Mesh):
    """The processes of a torch.distributed job, which has been initialised."""

    def __init__(self, device: torch.device) -> None:
        self.rank, self.world, self.device = dist.get_rank(), dist.get_world_size(), device
        # Objects and flags are exchanged on the CPU, so that they do not wait for a GPU.
        self.control, self.patient = _gloo_group(STEP_TIMEOUT), _gloo_group(PATIENCE)

    def sum(self, value: Tensor) -> Tensor:
        value = value.clone()
        dist.all_reduce(value)
        return value

    def totals(self, *numbers: float) -> tuple[float, ...]:
        values = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(values, group=self.control)
        return tuple(values.tolist())

    def any(self, flag: bool) -> bool:
        return self.totals(flag)[0] > 0

    def wait(self) -> None:
        dist.barrier(self.control)

    def gather(self, value: Value) -> list[Value]:
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value, group=self.control)
        return values

    def from_first(self, compute: Callable[[], Value], patient: bool = False) -> Value:
        answer: list[Any] = [None, None]
        if self.is_first:
            try:
                answer[0] = compute()
            except CoupledQKError as error:
                answer[1] = error
        dist.broadcast_object_list(answer, src=0, group=self.patient if patient else self.control)
        value, error = answer
        if error is not None:
            raise error
        return value


class Replicated(Several):
    """DDP: every process has the whole model. Gradients are summed during the backward pass of the last micro-batch."""

    def wrap(self, model: nn.Module, compiled: bool) -> nn.Module:
        compile_layers(model, compiled)
        device_ids = [self.device.index] if self.device.type == "cuda" else None
        wrapped = DistributedDataParallel(model, device_ids=device_ids, gradient_as_bucket_view=True)
        wrapped.register_comm_hook(None, _sum_bucket)
        return wrapped

    def gradients(self, wrapped: nn.Module, last: bool) -> AbstractContextManager[object]:
        assert isinstance(wrapped, DistributedDataParallel)
        return nullcontext() if last else wrapped.no_sync()


class Sharded(Several):
    """FSDP2: every process has a shard of each layer, and layers are gathered when needed.

    Gradients are reduce-scattered after every micro-batch, since unsharded gradients would take as much memory as with DDP.
    The modules outside of the layers, including the tied embedding, form one group.
    """

    def wrap(self, model: nn.Module, compiled: bool) -> nn.Module:
        compile_layers(model, compiled)
        mesh = init_device_mesh(self.device.type, (self.world,))
        for part in (*layers(model), model):
            fully_shard(part, mesh=mesh)
            assert isinstance(part, FSDPModule)
            # Setting a divide factor alone would request a pre-multiplied sum, which gloo does not support.
            part.set_force_sum_reduction_for_comms(True)
            part.set_gradient_divide_factor(1.0)
        return model

    def weights(self, model: nn.Module) -> dict[str, Tensor]:
        weights = {}
        for name, tensor in model.state_dict().items():
            weight = whole(tensor)
            if self.is_first:
                weights[name] = weight.cpu()
        return weights

    def whole_model(self, model: nn.Module, build: Callable[[], nn.Module]) -> nn.Module:
        weights = self.weights(model)
        if not self.is_first:
            return model
        alone = build().to(self.device)
        alone.load_state_dict(weights)
        return alone

    def save_state(self, state: dict[str, Any], folder: Path) -> None:
        save_sharded(state, folder, self.is_first, self.control)


def layers(model: nn.Module) -> list[nn.Module]:
    """The modules that are compiled and sharded separately: the members of the model's outermost module lists."""
    if isinstance(model, nn.ModuleList):
        return list(model)
    return [layer for child in model.children() for layer in layers(child)]


def compile_layers(model: nn.Module, compiled: bool) -> None:
    """Compiles layers one by one before they are wrapped: communication between layers would break a graph of the whole
    model."""
    if compiled:
        keep_many_models()
        for layer in layers(model):
            layer.compile()


def _gloo_group(timeout: timedelta) -> dist.ProcessGroup:
    group = dist.new_group(backend="gloo", timeout=timeout)
    assert isinstance(group, dist.ProcessGroup)
    return group


def _sum_bucket(
    state: object,
    bucket: dist.GradBucket,  # pyright: ignore[reportPrivateImportUsage]
) -> torch.futures.Future[Tensor]:
    """DDP's reduction, without the division by the number of processes."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(lambda future: future.value()[0])
