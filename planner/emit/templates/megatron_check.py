"""Asks Megatron-LM whether it takes the arguments in arguments.json; needs no GPU and starts no process.

Its own parser and validators run for the planned world, then the layers of every stage are counted. Where there is no GPU, no
Transformer Engine or no Triton, stand-ins take their place; they touch no rule on parallelism.
"""

import importlib.util
import json
import os
import pathlib
import sys
import types

HERE = pathlib.Path(__file__).resolve().parent
CPU_ARGUMENTS = [
    "--transformer-impl=local",
    "--no-persist-layer-norm",
    "--no-gradient-accumulation-fusion",
    "--no-rope-fusion",
    "--no-masked-softmax-fusion",
]


def read(name):
    return json.loads((HERE / name).read_text(encoding="utf-8"))


PLAN = read("plan.json")
PLANNED = {**PLAN["parallel"], "layers": PLAN["inputs"]["model"]["layers"]}
ARCHITECTURE = PLAN["inputs"]["cluster"]["groups"][0]["node"]["device"]["arch"]


def installed(name):
    return importlib.util.find_spec(name) is not None


class Anything(type):
    """A class whose every attribute is such a class, and which returns what it decorates."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in_class(name)

    def __call__(cls, *args, **kwargs):
        only = args[0] if len(args) == 1 and not kwargs and callable(args[0]) else None
        return only if only is not None else (lambda function: function)


def stand_in_class(name):
    return Anything(name, (), {})


class StandIns:
    """Finds modules below a package that is not installed."""

    def __init__(self, package):
        self.package = package

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == self.package:
            return importlib.util.spec_from_loader(name, self)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__version__ = "3.0.0"
        module.__getattr__ = self.attribute
        return module

    @staticmethod
    def attribute(name):
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in_class(name)

    def exec_module(self, module):
        pass


def stand_in_for_gpu(torch, architecture):
    capability = {"ampere": (8, 0), "ada": (8, 9), "blackwell": (10, 0)}.get(architecture, (9, 0))
    properties = types.SimpleNamespace(major=capability[0], minor=capability[1], name="planned", total_memory=0)
    torch.cuda.get_device_properties = lambda *device: properties
    torch.cuda.get_device_capability = lambda *device: capability


def prepare():
    root = os.environ.get("MEGATRON_LM")
    if not root or not (pathlib.Path(root) / "pretrain_gpt.py").is_file():
        sys.exit("set MEGATRON_LM to the folder of a Megatron-LM checkout (it holds pretrain_gpt.py)")
    sys.path.insert(0, root)
    os.environ.update(read("environment.json"), WORLD_SIZE=str(PLANNED["world_size"]), RANK="0", LOCAL_RANK="0")
    import torch
    import torch.utils._triton

    if not installed("triton"):
        import torch._inductor.config

        for probe in ("has_triton", "has_triton_package"):
            getattr(torch.utils._triton, probe)()
        sys.meta_path.append(StandIns("triton"))
    import typing

    if not hasattr(typing, "override"):
        import typing_extensions

        typing.override = typing_extensions.override
    if not torch.cuda.is_available():
        stand_in_for_gpu(torch, ARCHITECTURE)


def parsed():
    """Megatron's arguments after its own validation."""
    extra = [] if installed("transformer_engine") else CPU_ARGUMENTS
    sys.argv = ["pretrain_gpt.py", *read("arguments.json"), *extra]
    from megatron.training.arguments import core_transformer_config_from_args, parse_args, validate_args

    arguments = parse_args()
    validate_args(arguments)
    return arguments, core_transformer_config_from_args(arguments)


def layers_built(arguments, config):
    """Layers of all stages together, as Megatron builds them."""
    import torch.distributed as dist
    from megatron.core import parallel_state
    from megatron.core.transformer.transformer_block import get_num_layers_to_build
    from torch.testing._internal.distributed.fake_pg import FakeStore

    total = 0
    dist.init_process_group("fake", rank=0, world_size=PLANNED["world_size"], store=FakeStore())
    parallel_state.initialize_model_parallel(
        arguments.tensor_model_parallel_size,
        arguments.pipeline_model_parallel_size,
        arguments.virtual_pipeline_model_parallel_size,
        context_parallel_size=arguments.context_parallel_size,
        expert_model_parallel_size=arguments.expert_model_parallel_size,
        expert_tensor_parallel_size=arguments.expert_tensor_parallel_size,
        create_gloo_process_groups=False,
    )
    chunks = arguments.virtual_pipeline_model_parallel_size or 1
    for rank in range(arguments.pipeline_model_parallel_size):
        parallel_state.set_pipeline_model_parallel_rank(rank)
        for chunk in range(chunks):
            total += count_layers(get_num_layers_to_build, config, chunk if chunks > 1 else None, rank)
    dist.destroy_process_group()
    return total


def count_layers(count, config, chunk, rank):
    from megatron.core import parallel_state

    accepted = count.__code__.co_varnames[: count.__code__.co_argcount]
    if "vp_stage" not in accepted:  # core 0.12 keeps the chunk in a global
        if chunk is not None:
            parallel_state.set_virtual_pipeline_model_parallel_rank(chunk)
        return count(config)
    return count(config, vp_stage=chunk, pp_rank=rank) if "pp_rank" in accepted else count(config, vp_stage=chunk)


def main():
    prepare()
    arguments, config = parsed()
    found = {
        "world_size": arguments.world_size,
        "tp": arguments.tensor_model_parallel_size,
        "pp": arguments.pipeline_model_parallel_size,
        "vpp": arguments.virtual_pipeline_model_parallel_size or 1,
        "cp": arguments.context_parallel_size,
        "ep": arguments.expert_model_parallel_size,
        "dp": arguments.data_parallel_size,
        "micro_batches": arguments.global_batch_size // (arguments.micro_batch_size * arguments.data_parallel_size),
        "layers": layers_built(arguments, config),
        "sequence_parallel": arguments.sequence_parallel,
    }
    wrong = [
        f"{name}: planned {PLANNED[name]}, Megatron has {value}" for name, value in found.items() if PLANNED[name] != value
    ]
    if wrong:
        sys.exit("Megatron understands something else:\n  " + "\n  ".join(wrong))
    print("Megatron-LM accepts the arguments: " + ", ".join(f"{name} {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
