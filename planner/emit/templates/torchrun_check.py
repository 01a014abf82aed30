"""Checks the package without a GPU: degrees, meshes on a fake group of the planned world, the schedule of the pipeline."""

import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
CONFIG = json.loads((HERE / "config.yaml").read_text(encoding="utf-8"))
PLANNED = json.loads((HERE / "plan.json").read_text(encoding="utf-8"))["parallel"]
DEGREES = ("world_size", "tp", "cp", "pp", "vpp", "dp_replicate", "dp_shard", "ep", "micro_batches")


def main():
    import torch.distributed as dist
    from torch.distributed.pipelining.schedules import get_schedule_class
    from torch.testing._internal.distributed.fake_pg import FakeStore

    sys.path.insert(0, str(HERE))
    from parallel import Mesh

    plan = CONFIG["plan"]
    wrong = [
        f"{name}: planned {PLANNED[name]}, the package has {plan[name]}" for name in DEGREES if PLANNED[name] != plan[name]
    ]
    dist.init_process_group("fake", rank=0, world_size=plan["world_size"], store=FakeStore())
    mesh = Mesh(plan, "cpu")
    micro_batches = CONFIG["job"]["global_batch"] // (mesh.data * plan["micro_batch"])
    if micro_batches != PLANNED["micro_batches"]:
        wrong.append(f"micro_batches: planned {PLANNED['micro_batches']}, the package has {micro_batches}")
    if plan["pp"] > 1:
        get_schedule_class(plan["schedule"])
    dist.destroy_process_group()
    if wrong:
        sys.exit("the package says something else:\n  " + "\n  ".join(wrong))
    print(
        f"the package divides {plan['world_size']} ranks as planned: {micro_batches} micro-batches, schedule {plan['schedule']}"
    )


if __name__ == "__main__":
    main()
