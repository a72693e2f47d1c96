/* Uses the services in C, with only the header of the contract. */
#include <string.h>

#include "yoke/parallel_backend.h"

static YokeTensor flat(float* data, int64_t* count) {
  YokeTensor t;
  memset(&t, 0, sizeof t);
  t.data = data;
  t.device.type = YOKE_DEVICE_CPU;
  t.ndim = 1;
  t.dtype.code = YOKE_CODE_FLOAT;
  t.dtype.bits = 32;
  t.dtype.lanes = 1;
  t.shape = count;
  return t;
}

/* Returns 0, or the number of the line that failed. */
int collectives_client(const YokeHost* host, YokeError* err);
int collectives_client(const YokeHost* host, YokeError* err) {
  const YokeCollectives* c;
  YokeComm *comm = NULL, *again = NULL;
  YokeWork *first = NULL, *second = NULL;
  float part[2], whole[8], mine[2], sum[2];
  int64_t n = 2, all;
  YokeTensor part_t, whole_t, mine_t, sum_t;
  int32_t i;

  c = (const YokeCollectives*)(const void*)host->get_service(
      host->ctx, "yoke.collectives/1", sizeof(YokeCollectives));
  if (c == NULL || c->header.struct_id != YOKE_ID_COLLECTIVES) return __LINE__;
  if (c->comm(c->ctx, YOKE_AXIS_BIT(YOKE_DP_SHARD), "unshard", &comm, err) != YOKE_OK)
    return __LINE__;
  if (c->comm(c->ctx, YOKE_AXIS_BIT(YOKE_DP_SHARD), "unshard", &again, err) != YOKE_OK ||
      again != comm)
    return __LINE__;
  if (c->size(comm) != host->world_size || c->rank(comm) != host->rank) return __LINE__;
  all = n * host->world_size;
  part_t = flat(part, &n);
  whole_t = flat(whole, &all);
  mine_t = flat(mine, &n);
  sum_t = flat(sum, &n);

  /* Two collectives are in flight and are waited for in reverse order. */
  part[0] = part[1] = (float)host->rank;
  sum[0] = sum[1] = 1.0f;
  if (c->all_gather(comm, &whole_t, &part_t, &first, err) != YOKE_OK || first == NULL)
    return __LINE__;
  if (c->all_reduce(comm, &sum_t, YOKE_SUM, &second, err) != YOKE_OK) return __LINE__;
  if (c->wait(second, err) != YOKE_OK || c->wait(first, err) != YOKE_OK) return __LINE__;
  if (sum[1] != (float)host->world_size) return __LINE__;
  for (i = 0; i < all; ++i) {
    if (whole[i] != (float)(i / 2)) return __LINE__;
  }
  /* If the argument work is NULL, the call itself waits. */
  if (c->reduce_scatter(comm, &mine_t, &whole_t, YOKE_AVG, NULL, err) != YOKE_OK) return __LINE__;
  if (mine[0] != (float)host->rank) return __LINE__;
  if (c->broadcast(comm, &mine_t, host->world_size - 1, NULL, err) != YOKE_OK) return __LINE__;
  if (mine[0] != (float)(host->world_size - 1)) return __LINE__;
  return c->barrier(comm, err) == YOKE_OK ? 0 : __LINE__;
}
