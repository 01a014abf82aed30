"""Scripts, lists and documents of the kinds users keep, for the tests of the readers."""

LLAMA = """#!/bin/bash
# Llama 3 8B, one node
set -euo pipefail
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}
export NCCL_DEBUG=WARN
export WANDB_API_KEY=secret

RUN=${1:-"runs/llama3-8b"}
TOKENIZER=${2:-NullTokenizer}
mkdir -p "$(dirname "$RUN")"

GPUS_PER_NODE=8
NUM_NODES=${NUM_NODES:-1}
WORLD=$(($GPUS_PER_NODE * $NUM_NODES))
TP=2
LAYERS=32
DTYPE="bf16"

LAUNCH=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --master_addr ${MASTER_ADDR:-localhost}   # the first node
)

MODEL=(
    --use-mcore-models
    --num-layers $LAYERS --hidden-size 4096 --ffn-hidden-size 14336
    --num-attention-heads 32 --group-query-attention --num-query-groups 8
    --seq-length 8192
    --max-position-embeddings 8192
    --position-embedding-type rope
    --swiglu --normalization RMSNorm --disable-bias-linear
    --untie-embeddings-and-output-weights
    --attention-dropout 0.0 --hidden-dropout 0.0
)

TRAIN=(--micro-batch-size 1 --global-batch-size $((WORLD * 16)) --bf16 --lr 1.5e-4)
if [[ "$DTYPE" == "fp8" ]]; then
    TRAIN+=("--fp8-format hybrid")
elif [ "$TP" -gt 1 ] && [ -n "$LAYERS" ]; then
    TRAIN+=(--sequence-parallel)
fi
DDP=(--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather)
TRAIN+=("${DDP[@]}")
DATA=("--mock-data" "--vocab-size 128256" "--split '99,1,0'")

torchrun ${LAUNCH[@]} pretrain_gpt.py \\
    ${MODEL[@]} \\
    ${TRAIN[@]} \\
    --tensor-model-parallel-size $TP \\
    ${DATA[@]} --save "$RUN" --save-interval 500 2>&1 | tee log
"""

MIXTRAL = """#!/bin/bash
#SBATCH --nodes=4 --gpus-per-node=8
#SBATCH --job-name=mixtral   # not a number of nodes
export CUDA_DEVICE_MAX_CONNECTIONS=1
NNODES=${SLURM_NNODES:-"1"}
MODEL_ARGS=" \\
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \\
    --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm \\
    --position-embedding-type rope --disable-bias-linear --untie-embeddings-and-output-weights \\
    --seq-length 4096 --max-position-embeddings 32768 --hidden-dropout 0.0 \\
"
MOE_ARGS="--num-experts 8 --moe-router-topk 2 --moe-token-dispatcher-type alltoall --moe-grouped-gemm"
CMD="torchrun --nproc-per-node 8 --nnodes $NNODES pretrain_gpt.py $MODEL_ARGS $MOE_ARGS \\
  --tokenizer-type Llama2Tokenizer --tokenizer-model $TOKENIZER_MODEL \\
  --micro-batch-size 1 --global-batch-size 256 --bf16 \\
  --pipeline-model-parallel-size 4 --expert-model-parallel-size 8 --use-distributed-optimizer"
srun -l bash -c "$CMD"
"""

DEEPSEEK = """#!/usr/bin/env bash
#SBATCH -N 128
#SBATCH --ntasks-per-node=8
#SBATCH --gres=gpu:h100:8
export NVTE_FWD_LAYERNORM_SM_MARGIN=16
TP=${TP:-1}
EP=${EP:-64}
PP=${PP:-16}
USE_FSDP=${USE_FSDP:-0}
ARGS=(
    --tensor-model-parallel-size ${TP}
    --pipeline-model-parallel-size ${PP}
    --expert-model-parallel-size ${EP} --expert-tensor-parallel-size 1
    --pipeline-model-parallel-layout "Et*3|(tt|)*29,m|L"
    --use-distributed-optimizer --bf16
    --micro-batch-size 1 --global-batch-size 8192 --seq-length 4096 --max-position-embeddings 4096
    --recompute-granularity selective --recompute-modules mla_up_proj layernorm
    --num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128
    --multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512
    --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128 --qk-layernorm
    --swiglu --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights
    --position-embedding-type rope --hidden-dropout 0.0 --attention-dropout 0.0
    --num-experts 256 --moe-layer-freq [0]*3+[1]*58 --moe-ffn-hidden-size 2048
    --moe-shared-expert-intermediate-size 2048 --moe-router-topk 8
    --moe-router-num-groups 8 --moe-router-group-topk 4 --moe-router-enable-expert-bias
    --moe-router-score-function sigmoid --moe-grouped-gemm
    --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep
    --mtp-num-layers 1
    --tokenizer-type HuggingFaceTokenizer --tokenizer-model deepseek-ai/DeepSeek-V3
)
if [ "${USE_FSDP}" = 1 ]; then
    unset CUDA_DEVICE_MAX_CONNECTIONS
    ARGS=("${ARGS[@]}" --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params)
else
    export CUDA_DEVICE_MAX_CONNECTIONS=1
fi
srun --mpi=pmix python pretrain_gpt.py "${ARGS[@]}"
"""

SUBMITTED = """
NODES=4
ARGS=(--num-layers 32 --hidden-size 4096
      --tensor-model-parallel-size 8)
sbatch <<EOF
#!/bin/bash
#SBATCH --nodes=$NODES
#SBATCH --ntasks-per-node=8
export CUDA_DEVICE_MAX_CONNECTIONS=1
srun bash -x -c "python pretrain_gpt.py ${ARGS[@]} --save \\${HOME}/x" 2>&1 | tee log
EOF
"""

MINIMAL = (
    "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 "
    "--micro-batch-size 1 --global-batch-size 64 --vocab-size 50304 --bf16"
)
