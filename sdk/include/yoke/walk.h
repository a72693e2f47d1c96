/* The walk over the blocks of a model: forward and backward of a micro-batch. C99 or C++; there is
 * nothing to link. yoke/author.h shows it in use.
 *
 *   forward    block 0 -> carry -> block 1 -> carry -> ... -> last block -> loss, targets
 *   backward   block 0 <- gradient <- block 1 <- gradient <- ... <- last block <- loss_grad
 *
 * On the way back every block reports the gradients of its parameters to on_grad_ready. All
 * parameters must be bound. */
#ifndef YOKE_WALK_H_
#define YOKE_WALK_H_

#include <math.h>

#include "yoke/author.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The state that one block keeps for its backward. */
typedef struct YokeBlockState {
  void* saved;              /* handle of the host, NULL = none */
  YokeManagedTensor* carry; /* output of the block, NULL = none */
} YokeBlockState;

/* A walk over all micro-batches of a step, in sequence. The caller fills it and calls yoke_walk for
 * each micro-batch, on the thread that is inside step. */
typedef struct YokeWalk {
  const YokeModel* model;
  const YokeHost* host; /* host whose check_cancel is called before each block */
  /* Receives the gradients, see YokeBackwardArgs; NULL = forward only. */
  int32_t (*on_grad_ready)(void* ctx, int64_t param, const YokeTensor* grad, YokeError* err);
  void* on_grad_ctx;
  double loss_grad;             /* gradient of loss_sum: 1 / batch->token_weight */
  double loss_sum, loss_weight; /* results: every micro-batch adds its loss and its targets */
  YokeBlockState* blocks;       /* memory of the caller: summary->num_blocks entries, all zero */
} YokeWalk;

/* Returns YOKE_CANCELLED if the run is to stop, else YOKE_OK. */
static inline int32_t yoke_check_cancel(const YokeHost* host, YokeError* err) {
  return host->check_cancel(host->ctx) ? yoke_fail(err, YOKE_CANCELLED, "the step was cancelled")
                                       : YOKE_OK;
}

/* Runs all blocks forward. Each one reads the output of the previous block. If a backward follows,
 * outputs and saved state are kept in w->blocks; otherwise an output is freed as soon as the next
 * block has read it. Called by yoke_walk, which frees what is left after a failure. */
static inline int32_t yoke_walk_forward(YokeWalk* w, const YokeMicroBatch* micro, YokeError* err) {
  const uint64_t num_blocks = w->model->summary->num_blocks;
  uint64_t b;
  for (b = 0; b < num_blocks; ++b) {
    YokeForwardArgs args;
    YokeForwardResult out;
    memset(&args, 0, sizeof args);
    memset(&out, 0, sizeof out);
    args.header.struct_size = (uint32_t)sizeof args;
    args.header.struct_id = YOKE_ID_FORWARD_ARGS;
    out.header.struct_size = (uint32_t)sizeof out;
    out.header.struct_id = YOKE_ID_FORWARD_RESULT;
    args.block = b;
    args.micro = micro;
    args.carry_in = b > 0 ? &w->blocks[b - 1].carry->tensor : NULL;
    args.save = w->on_grad_ready != NULL;
    /* After a failure, yoke_walk frees what earlier blocks have left in w->blocks. */
    YOKE_TRY(yoke_check_cancel(w->host, err));
    YOKE_TRY(w->model->block_forward(w->model->ctx, &args, &out, err));
    w->blocks[b].carry = out.carry_out;
    w->blocks[b].saved = out.saved;
    YOKE_TRY(yoke_check_tensor(out.carry_out, err));
    w->loss_sum += out.loss_sum;
    w->loss_weight += out.loss_weight;
    if (!args.save && b > 0) yoke_release(&w->blocks[b - 1].carry);
  }
  return YOKE_OK;
}

/* Runs all blocks backward, from the last to the first. The gradients of parameters go to
 * w->on_grad_ready; the gradient of each carry goes to the block that produced the carry and is
 * then freed. Called by yoke_walk. */
static inline int32_t yoke_walk_backward(YokeWalk* w, YokeError* err) {
  YokeManagedTensor* grad_out = NULL; /* gradient of the carry between two blocks */
  int32_t code = YOKE_OK;
  uint64_t b;
  for (b = w->model->summary->num_blocks; b-- > 0 && code == YOKE_OK;) {
    YokeBackwardArgs args;
    YokeManagedTensor* grad_in = NULL;
    memset(&args, 0, sizeof args);
    args.header.struct_size = (uint32_t)sizeof args;
    args.header.struct_id = YOKE_ID_BACKWARD_ARGS;
    args.block = b;
    args.saved = w->blocks[b].saved;
    args.grad_out = grad_out != NULL ? &grad_out->tensor : NULL;
    args.loss_grad = w->loss_grad;
    args.on_grad_ready = w->on_grad_ready;
    args.on_grad_ctx = w->on_grad_ctx;
    code = yoke_check_cancel(w->host, err);
    if (code != YOKE_OK) break;
    w->blocks[b].saved = NULL; /* block_backward consumes it, even on failure */
    code = w->model->block_backward(w->model->ctx, &args, &grad_in, err);
    yoke_release(&grad_out);
    grad_out = grad_in;
    if (code == YOKE_OK) code = yoke_check_tensor(grad_in, err);
  }
  yoke_release(&grad_out);
  return code;
}

/* Runs one micro-batch forward and, if on_grad_ready is set, backward. Adds its loss and its number
 * of targets to the walk. w->blocks is empty afterwards, even on failure. Fails with
 * YOKE_CANCELLED, or with the code of a block or of on_grad_ready. */
static inline int32_t yoke_walk(YokeWalk* w, const YokeMicroBatch* micro, YokeError* err) {
  uint64_t b;
  int32_t code = yoke_walk_forward(w, micro, err);
  if (code == YOKE_OK && w->on_grad_ready != NULL) code = yoke_walk_backward(w, err);
  /* After a success only carries are left. After a failure there may also be saved state. */
  for (b = 0; b < w->model->summary->num_blocks; ++b) {
    if (w->blocks[b].saved != NULL) w->model->drop_saved(w->model->ctx, w->blocks[b].saved);
    w->blocks[b].saved = NULL;
    yoke_release(&w->blocks[b].carry);
  }
  return code;
}

/* Returns YokeWrapResult.activation_bytes of a backend that walks micro-batches of `sequences`:
 * what all blocks keep when the last one has run. -1 if a block does not report it. */
static inline int64_t yoke_walk_bytes(const YokeModelSummary* s, int64_t sequences) {
  int64_t bytes = 0;
  uint64_t b;
  for (b = 0; b < s->num_blocks; ++b) {
    if (s->blocks[b]->activation_bytes < 0 || s->blocks[b]->carry_bytes < 0) return -1;
    bytes += (s->blocks[b]->activation_bytes + s->blocks[b]->carry_bytes) * sequences;
  }
  return bytes;
}

/* Checks that the targets which all ranks have summed are those that the host announced for the
 * batch. Otherwise the mean would be over the wrong number: fails with YOKE_INVALID_ARGUMENT. */
static inline int32_t yoke_check_weight(const YokeBatch* batch, double summed, YokeError* err) {
  if (fabs(summed - batch->token_weight) <= 1e-9 * summed) return YOKE_OK;
  return yoke_fail(err,
                   YOKE_INVALID_ARGUMENT,
                   "the batch announces %.17g targets, but its losses have %.17g",
                   batch->token_weight,
                   summed);
}

#ifdef __cplusplus
}
#endif

#endif /* YOKE_WALK_H_ */
