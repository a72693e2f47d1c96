// Takes gradients of whole parameters from the model, and reduces them over the ranks. Each rank
// gets the gradients of the elements that it updates.
//
// Gradients are collected in buckets. A bucket is reduced as soon as the backward has completed it,
// and all ranks reduce the buckets in the same order. There are two layouts: FlatGradients (ZeRO
// stages 0 to 2) and SlicedGradients (stage 3).
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "plugins/deepspeed_stub/flat_weights.hpp"
#include "plugins/deepspeed_stub/weights.hpp"

namespace yoke::deepspeed_stub {

// Call begin_step once per step; then, for each micro-batch, begin_micro, add for every gradient,
// and end_micro. One thread at a time. After an error reductions may be in flight; begin_step and
// the destructor wait for them.
class Gradients {
 public:
  virtual ~Gradients() = default;

  // Returns the gradients of the elements that this rank updates. They are complete after the
  // end_micro of the last micro-batch.
  virtual Span own() const = 0;
  // Returns the gradients that this rank contributes to the gradient norm. Over all ranks these
  // contain every gradient exactly once.
  virtual Span norm_part() const { return own(); }
  int64_t bytes() const { return memory_.bytes(); }  // bytes allocated between steps

  void begin_step(int64_t micros);  // micros: number of micro-batches
  void begin_micro();
  // Adds the gradient of a whole parameter. A parameter that several blocks use gets one gradient
  // from each. Starts the reduction of buckets that this completes, so it is collective. Throws
  // Error(INTERNAL) if the parameter is unknown or frozen, or the gradient has the wrong size or
  // dtype.
  void add(int64_t param, const Span& gradient);
  // Waits for the reductions in flight. Collective. Throws Error(INTERNAL) if a gradient is
  // missing.
  void end_micro();

 protected:
  // every_micro: whether to reduce after each micro-batch, or once per step.
  Gradients(const Setup& setup, std::vector<Bucket> buckets, bool every_micro);

  // Writes a gradient into its bucket. first: whether it is the first gradient of the parameter
  // since the last reduction. The first one overwrites the bucket's memory; later ones are added to
  // it.
  virtual void put(size_t bucket, int64_t param, const Span& gradient, bool first) = 0;
  // Starts the reduction of a complete bucket. Collective.
  virtual Work start(size_t bucket) = 0;
  // Processes the result of a reduction, so that own() includes it.
  virtual void finish(size_t bucket) = 0;

  // Copies `values` to `place` if `first` is true, else adds them. In the overload with `rows`,
  // each span gives only the dtype and the start of the first row; `rows` gives the number of
  // elements, the width and the strides.
  void store(const Span& values, const Span& place, bool first) const;
  void store(const Span& values, const Span& place, const Rows& rows, bool first) const;

  // Adds the reduced gradients of a micro-batch to `place`. In the first micro-batch of a step they
  // overwrite it instead, because it still contains the gradients of the previous step.
  void accumulate(const Span& reduced, const Span& place) const;
  // Together, receive_at and accumulate_received do the same for a collective that writes its
  // result to the span that receive_at returns. That span is `place` in the first micro-batch, else
  // a temporary array, which accumulate_received adds to `place`.
  Span receive_at(size_t bucket, const Span& place);
  void accumulate_received(size_t bucket, const Span& place);

  // Sums `all` over the ranks and leaves this rank's part of the sum in `own`.
  Work reduce_scatter(const Span& own, const ConstSpan& all) const;

  const Setup& setup_;
  const std::vector<Bucket> buckets_;
  Array memory_;                // stays allocated between steps
  std::vector<Array> buffers_;  // one per bucket; freed after the reduction

 private:
  struct Reduction {
    size_t bucket;
    Work work;
  };
  void start_complete_buckets();
  void finish_oldest();

  const bool every_micro_;
  bool first_micro_ = true;        // whether this is the first micro-batch of the step
  std::vector<Array> received_;    // one per bucket, see receive_at; freed after the reduction
  std::vector<size_t> bucket_of_;  // bucket of each parameter; buckets_.size() = none
  std::vector<bool> fresh_;  // per parameter: whether nothing was stored since the last reduction
  std::vector<int64_t> missing_;  // per bucket: number of gradients not yet added
  size_t next_ = 0;               // bucket to be reduced next
  int64_t micros_left_ = 0;       // micro-batches of this step that have not begun
  bool reducing_ = false;         // whether buckets are reduced in this micro-batch
  std::deque<Reduction>
      reductions_;  // oldest first; the last member, so that it is destroyed first
};

// Gradients in one flat buffer, laid out like the parameters. Stages 0 and 1 keep the whole buffer
// and reduce it once per step. Stage 2 keeps only the slice of this rank, and reduces after every
// micro-batch; a bucket has memory only while it is filled and reduced.
class FlatGradients final : public Gradients {
 public:
  explicit FlatGradients(const Setup& setup);
  Span own() const override { return own_; }
  Span norm_part() const override;

 private:
  FlatGradients(const Setup& setup, const FlatLayout& layout);
  void put(size_t bucket, int64_t param, const Span& gradient, bool first) override;
  Work start(size_t bucket) override;
  void finish(size_t bucket) override;
  Span bucket_memory(size_t bucket);
  // Returns true if a bucket is reduced by reduce-scatter, false if by all-reduce.
  bool is_scattered(const Bucket& bucket) const;

  FlatLayout layout_;
  FlatRange range_;  // elements of the flat buffer that this rank updates
  Span own_;         // their gradients, in memory_
};

// Gradients of stage 3: each rank receives its slice of every parameter of a bucket, after every
// micro-batch.
class SlicedGradients final : public Gradients {
 public:
  explicit SlicedGradients(const Setup& setup);
  Span own() const override { return memory_.span(); }

 private:
  SlicedGradients(const Setup& setup, const SliceLayout& layout);
  void put(size_t bucket, int64_t param, const Span& gradient, bool first) override;
  Work start(size_t bucket) override;
  void finish(size_t bucket) override;
  Span bucket_slices(size_t bucket) const;  // this rank's slices of a bucket, in memory_

  SliceLayout layout_;
};

}  // namespace yoke::deepspeed_stub
