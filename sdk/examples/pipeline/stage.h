/* What a stage of pipeline.c does with a micro-batch: messages, forward and backward. */
#ifndef YOKE_EXAMPLES_PIPELINE_STAGE_H_
#define YOKE_EXAMPLES_PIPELINE_STAGE_H_

#include "part.h"

/* One rank. */
struct YokeContext {
  YokeInitArgs args; /* copy; what it points to lives until destroy returns */
  YokeRanks ranks;   /* the stages, in order */
};

enum { kMostDims = 8 };

/* A micro-batch between its forward and its backward. */
typedef struct Flight {
  YokeBlockState* blocks; /* what each block of this stage keeps */
  void* input;            /* carry from the rank before, NULL on the first stage */
  int64_t shape[kMostDims];
  int32_t ndim;
} Flight;

/* One model. */
struct YokeWrapped {
  const YokeContext* context;
  const YokeModel* model; /* model of the host */
  Part part;              /* what this stage holds of it */
  YokeFlat flat;          /* the state of the part */
  Flight* flights;        /* the micro-batches of the step */
  uint64_t num_flights;
  void* tied; /* gradients of the parameters that several stages hold, one after the other */
  int64_t num_tied;
  double loss_grad; /* gradient of the sum of losses, in this step */
};

/* ---- Messages ---- */

/* Sends a carry to the next rank: first its shape, which that rank cannot know, then the data. */
static int32_t send_carry(const YokeWrapped* w, const YokeTensor* carry, YokeError* err) {
  const YokeRanks* r = &w->context->ranks;
  int64_t shape[1 + kMostDims] = {0}, length = 1 + kMostDims;
  const YokeTensor head = yoke_view(shape, YOKE_I64, &length, 1);
  int32_t d;
  if (carry->ndim > kMostDims)
    return yoke_fail(err,
                     YOKE_UNIMPLEMENTED,
                     "a carry has %d dimensions; allowed: up to %d",
                     (int)carry->ndim,
                     kMostDims);
  shape[0] = carry->ndim;
  for (d = 0; d < carry->ndim; ++d) shape[1 + d] = carry->shape[d];
  YOKE_TRY(r->service->send(r->comm, &head, w->part.stage + 1, NULL, err));
  return r->service->send(r->comm, carry, w->part.stage + 1, NULL, err);
}

/* Returns the carry that a flight has received. */
static YokeTensor input_of(const YokeWrapped* w, const Flight* flight) {
  return yoke_view(flight->input, w->flat.dtype, flight->shape, flight->ndim);
}

static int32_t receive_carry(const YokeWrapped* w, Flight* flight, YokeError* err) {
  const YokeRanks* r = &w->context->ranks;
  int64_t shape[1 + kMostDims], length = 1 + kMostDims, count = 1;
  const YokeTensor head = yoke_view(shape, YOKE_I64, &length, 1);
  YokeTensor carry;
  int32_t d;
  YOKE_TRY(r->service->recv(r->comm, &head, w->part.stage - 1, NULL, err));
  flight->ndim = (int32_t)shape[0];
  for (d = 0; d < flight->ndim; ++d) count *= flight->shape[d] = shape[1 + d];
  flight->input = malloc((size_t)(count * yoke_item_size(w->flat.dtype)) + 1);
  if (flight->input == NULL) return yoke_fail(err, YOKE_RESOURCE_EXHAUSTED, "out of memory");
  carry = input_of(w, flight);
  return r->service->recv(r->comm, &carry, w->part.stage - 1, NULL, err);
}

/* ---- A step ---- */

/* Frees what is left of a micro-batch, after its backward or after a failure. */
static void end_flight(const YokeWrapped* w, Flight* flight) {
  uint64_t b;
  for (b = 0; flight->blocks != NULL && b < w->part.num_blocks; ++b) {
    if (flight->blocks[b].saved != NULL)
      w->model->drop_saved(w->model->ctx, flight->blocks[b].saved);
    yoke_release(&flight->blocks[b].carry);
  }
  free(flight->blocks);
  free(flight->input);
  memset(flight, 0, sizeof *flight);
}

/* Runs the blocks of this stage forward. Adds loss and targets of the last stage to sums. */
static int32_t run_forward(const YokeWrapped* w,
                           Flight* flight,
                           const YokeMicroBatch* micro,
                           int32_t save,
                           double* sums,
                           YokeError* err) {
  YokeTensor input;
  uint64_t b;
  flight->blocks = calloc(w->part.num_blocks, sizeof *flight->blocks);
  if (flight->blocks == NULL) return yoke_fail(err, YOKE_RESOURCE_EXHAUSTED, "out of memory");
  if (w->part.stage > 0) {
    YOKE_TRY(receive_carry(w, flight, err));
    input = input_of(w, flight);
  }
  for (b = 0; b < w->part.num_blocks; ++b) {
    YokeForwardArgs args = {.header = YOKE_HEADER(YokeForwardArgs, YOKE_ID_FORWARD_ARGS)};
    YokeForwardResult out = {.header = YOKE_HEADER(YokeForwardResult, YOKE_ID_FORWARD_RESULT)};
    args.block = w->part.first_block + b;
    args.micro = micro;
    args.carry_in = b > 0               ? &flight->blocks[b - 1].carry->tensor
                    : w->part.stage > 0 ? &input
                                        : NULL;
    args.save = save;
    YOKE_TRY(yoke_check_cancel(w->context->args.host, err));
    YOKE_TRY(w->model->block_forward(w->model->ctx, &args, &out, err));
    flight->blocks[b].carry = out.carry_out;
    flight->blocks[b].saved = out.saved;
    YOKE_TRY(yoke_check_tensor(out.carry_out, err));
    sums[0] += out.loss_sum;
    sums[1] += out.loss_weight;
  }
  if (w->part.stage + 1 == w->part.stages) return YOKE_OK;
  return send_carry(w, &flight->blocks[w->part.num_blocks - 1].carry->tensor, err);
}

static int32_t add_gradient(void* ctx, int64_t param, const YokeTensor* grad, YokeError* err) {
  YokeWrapped* w = ctx;
  return yoke_flat_add_gradient(&w->flat, w->part.part_index[param], grad, err);
}

/* Runs one block backward. grad_out: gradient of its output, NULL for the last block. Sets *grad_in
 * to the gradient of its input. */
static int32_t run_block_backward(YokeWrapped* w,
                                  Flight* flight,
                                  uint64_t b,
                                  const YokeTensor* grad_out,
                                  YokeManagedTensor** grad_in,
                                  YokeError* err) {
  YokeBackwardArgs args = {.header = YOKE_HEADER(YokeBackwardArgs, YOKE_ID_BACKWARD_ARGS)};
  args.block = w->part.first_block + b;
  args.saved = flight->blocks[b].saved;
  args.grad_out = grad_out;
  args.loss_grad = w->loss_grad;
  args.on_grad_ready = add_gradient;
  args.on_grad_ctx = w;
  YOKE_TRY(yoke_check_cancel(w->context->args.host, err));
  flight->blocks[b].saved = NULL; /* block_backward consumes it, even on failure */
  return w->model->block_backward(w->model->ctx, &args, grad_in, err);
}

/* Runs the blocks of this stage backward. The gradient of the output comes from the next rank, and
 * has the shape of the output. */
static int32_t run_backward(YokeWrapped* w, Flight* flight, YokeError* err) {
  const YokeRanks* r = &w->context->ranks;
  YokeManagedTensor *grad_in = NULL, *grad_of_output = NULL;
  YokeTensor grad;
  void* received = NULL;
  int32_t code = YOKE_OK;
  uint64_t b;
  if (w->part.stage + 1 < w->part.stages) {
    const YokeTensor* output = &flight->blocks[w->part.num_blocks - 1].carry->tensor;
    int64_t count = 1;
    int32_t d;
    for (d = 0; d < output->ndim; ++d) count *= output->shape[d];
    received = malloc((size_t)(count * yoke_item_size(w->flat.dtype)) + 1);
    if (received == NULL) return yoke_fail(err, YOKE_RESOURCE_EXHAUSTED, "out of memory");
    grad = yoke_view(received, w->flat.dtype, output->shape, output->ndim);
    code = r->service->recv(r->comm, &grad, w->part.stage + 1, NULL, err);
  }
  for (b = w->part.num_blocks; b-- > 0 && code == YOKE_OK;) {
    const YokeTensor* grad_out = grad_of_output != NULL ? &grad_of_output->tensor
                                 : received != NULL && b + 1 == w->part.num_blocks ? &grad
                                                                                   : NULL;
    grad_in = NULL;
    code = run_block_backward(w, flight, b, grad_out, &grad_in, err);
    yoke_release(&grad_of_output);
    grad_of_output = grad_in;
    if (code == YOKE_OK) code = yoke_check_tensor(grad_in, err);
  }
  if (code == YOKE_OK && w->part.stage > 0)
    code = r->service->send(r->comm, &grad_of_output->tensor, w->part.stage - 1, NULL, err);
  yoke_release(&grad_of_output);
  free(received);
  return code;
}

#endif /* YOKE_EXAMPLES_PIPELINE_STAGE_H_ */
