"""Runs of Qwen3-30B-A3B on 16 H100 that are in no list of measured runs, by dispatcher and overlap.

Published with NVIDIA-NeMo/Megatron-Bridge, skills/nemo-mbridge-perf-moe-comm-overlap (release tag v0.6.0): 16 bits, 4,096
tokens, micro-batches of 1, 1,024 sequences a step, experts over all 16 ranks, balanced routing.
"""

import pytest

from shardwright.planner.validation.run import validate

GRAPHS = "cuda_graph=transformer_engine:[moe_router,moe_preprocess],dispatcher=hybridep"
NO_GRAPHS = "cuda_graph=None:None,dispatcher=alltoall"
COLUMNS = (
    "id,source_group,model,node,gpus,gpu,seq_len,global_batch,micro_batch,tp,pp,ep,precision,zero_or_fsdp,framework,"
    "step_time_s,notes"
)
ROW = 'a,skills,Qwen3-30B-A3B,dgx-h100,16,H100,4096,1024,1,1,1,16,BF16,dist-opt,Megatron-Bridge (NeMo 26.04),{step},"{notes}"'


@pytest.mark.parametrize(
    ("dispatcher", "overlap", "measured_s"),
    [(GRAPHS, "None", 24.71), (GRAPHS, "True", 20.99), (NO_GRAPHS, "None", 41.25), (NO_GRAPHS, "True", 31.31)],
)
def test_steps_with_and_without_overlap(tmp_path, dispatcher, overlap, measured_s):
    runs = tmp_path / "runs.csv"
    row = ROW.format(step=measured_s, notes=f"{dispatcher},a2a_overlap={overlap}")
    runs.write_text(f"{COLUMNS}\n{row}\n")
    (made,) = validate(runs).to_dict()["rows"]
    assert made["status"] == "ok"
    assert made["predicted_step_time_s"] == pytest.approx(measured_s, rel=0.1)
