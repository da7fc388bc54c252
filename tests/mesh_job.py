"""The job that tests/test_mesh.py starts with torchrun. It contains many checks, because starting processes is slow.

mesh_job.py together FOLDER      trains the runs of FOLDER/jobs.json one after the other, and checks what must be refused
mesh_job.py killed ARGUMENTS     the command line, in which the second process is killed in its sixth step, once
"""

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from coupledqk.config import RunConfig
from coupledqk.errors import CoupledQKError
from coupledqk.runs import training
from coupledqk.schema import change, from_toml
from coupledqk.training.parallel import Sharded
from small_runs import run_to

RANK = int(os.environ["RANK"])


def together(folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for job in json.loads((folder / "jobs.json").read_text()):
        config = from_toml(RunConfig, job["config"])
        run_to(config, folder / job["out"], job["stop_at"])
    config = from_toml(RunConfig, json.loads((folder / "jobs.json").read_text())[0]["config"])
    report = {
        "settings": refusal(change(config, {"lr": 0.1 + RANK, "micro_batch": 1 + RANK}), folder / "refused"),
        "batch": refusal(change(config, {"batch_size": 1}), folder / "refused"),
        "folder": refusal(
            change(config, {"seed": 5}), folder / json.loads((folder / "jobs.json").read_text())[0]["out"]
        ),
        "overflow": overflow(),
    }
    (folder / f"report-{RANK}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


def refusal(config: RunConfig, path: Path) -> str:
    try:
        training.train_run(config, path)
    except CoupledQKError as error:
        return str(error)
    except SystemExit:
        return "silent"
    return "not refused"


def overflow() -> dict[str, float]:
    """One step with a loss scaler, in which only the second process' share of the gradient is infinite."""
    model = nn.Linear(2, 4, bias=False)
    nn.init.ones_(model.weight)
    mesh = Sharded(torch.device("cpu"))
    mesh.wrap(model, compiled=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    factors = torch.tensor([1.0, 1.0, 1.0, 3e38])
    scaler.scale((model(torch.ones(1, 2)) * factors).sum()).backward()
    share = model.weight.grad.to_local()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    changed = float((mesh.weights(model).get("weight", torch.ones(1)) - 1).abs().max())
    return {"infinite": float(share.isinf().any()), "scale": scaler.get_scale(), "changed": changed}


def killed(arguments: list[str]) -> None:
    from coupledqk.cli import main

    calls, stop_on_signals = 0, training.stop_on_signals

    @contextlib.contextmanager
    def killing():
        with stop_on_signals() as asked:

            def stop() -> bool:
                nonlocal calls
                calls += 1
                if calls == 6 and RANK == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                    os.kill(os.getpid(), signal.SIGKILL)
                return asked()

            yield stop

    training.stop_on_signals = killing
    main(arguments)


if __name__ == "__main__":
    command, *rest = sys.argv[1:]
    together(Path(*rest)) if command == "together" else killed(rest)
