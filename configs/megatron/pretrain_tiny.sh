#!/bin/bash
# A Llama of 0.9 million parameters with Megatron's distributed optimizer on two processes. Megatron itself would also
# need --transformer-impl local on a machine without Transformer Engine.
#
#   yoke config import configs/megatron/pretrain_tiny.sh data.path=data/novels.txt > run.toml
#   yoke train run.toml --nproc 2
GPUS_PER_NODE=${GPUS_PER_NODE:-2}

MODEL_ARGS=(
  --num-layers 12
  --hidden-size 64
  --ffn-hidden-size 256
  --num-attention-heads 8
  --group-query-attention
  --num-query-groups 4
  --normalization RMSNorm
  --swiglu
  --disable-bias-linear
  --hidden-dropout 0.0
  --attention-dropout 0.0
  --position-embedding-type rope
  --untie-embeddings-and-output-weights
  --seq-length 64
  --max-position-embeddings 64
  --vocab-size 1024
)
TRAINING_ARGS=(
  --micro-batch-size 2
  --global-batch-size 8
  --train-iters 40
  --lr 1e-3
  --min-lr 1e-4
  --lr-decay-style cosine
  --lr-warmup-iters 4
  --weight-decay 0.1
  --adam-beta2 0.95
  --clip-grad 1.0
  --calculate-per-token-loss
)
PARALLEL_ARGS=(
  --use-distributed-optimizer
  --overlap-grad-reduce
  --overlap-param-gather
  --ddp-bucket-size 100000
)

torchrun --nproc_per_node "$GPUS_PER_NODE" pretrain_gpt.py \
  ${MODEL_ARGS[@]} \
  ${TRAINING_ARGS[@]} \
  ${PARALLEL_ARGS[@]} \
  --data-path data/novels_text_document \
  --eval-interval 20 --eval-iters 2 --save-interval 40 --log-interval 10
