"""A user's own launch script of a 70B model on eight nodes, slower than it need be."""

SCRIPT = """#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
TP=${TP:-8}
torchrun --nproc_per_node 8 --nnodes 8 pretrain_gpt.py --use-mcore-models \\
  --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 \\
  --group-query-attention --num-query-groups 8 --seq-length 4096 --max-position-embeddings 131072 \\
  --position-embedding-type rope --swiglu --normalization RMSNorm --disable-bias-linear \\
  --untie-embeddings-and-output-weights --vocab-size 128256 --tokenizer-type NullTokenizer \\
  --micro-batch-size 1 --global-batch-size 256 --bf16 --use-distributed-optimizer \\
  --tensor-model-parallel-size $TP --pipeline-model-parallel-size 8 --sequence-parallel \\
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
"""
