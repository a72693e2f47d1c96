// Gradients on their way from the model to the rank that updates with them. Buckets are reduced as
// soon as a backward has completed them, always in the same order on every rank. Two ways to lay
// them out: FlatGradients (ZeRO stages 0 to 2), SlicedGradients (stage 3).
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "plugins/deepspeed_stub/flat_weights.hpp"
#include "plugins/deepspeed_stub/weights.hpp"

namespace yoke::deepspeed_stub {

class Gradients {
 public:
  virtual ~Gradients() = default;

  // Of what this rank updates; complete after the end_micro of the last micro-batch.
  virtual Span own() const = 0;
  // What this rank adds to the global norm: over all ranks, every gradient once.
  virtual Span norm_part() const { return own(); }
  int64_t bytes() const { return memory_.bytes(); }  // held between steps

  void begin_step(int64_t micros);
  void begin_micro();
  // The gradient of a whole parameter, from one of its blocks. Collective.
  void add(int64_t param, const Span& gradient);
  void end_micro();  // collective

 protected:
  // every_micro: reduces after each micro-batch, else once a step.
  Gradients(const Setup& setup, std::vector<Bucket> buckets, bool every_micro);

  // Stores the first gradient of a parameter since the last reduction, or adds a further one.
  virtual void put(size_t bucket, int64_t param, const Span& gradient, bool first) = 0;
  virtual Work start(size_t bucket) = 0;   // reduces a complete bucket
  virtual void finish(size_t bucket) = 0;  // after its work is over

  // Stores gradients at a place, or adds them, row by row.
  void store(const Span& values, const Span& place, const Rows& rows, bool first) const;
  void store(const Span& values, const Span& place, bool first) const;
  // Sums `all` over the ranks and leaves this rank's part of the sum in `own`.
  Work reduce_scatter(const Span& own, const ConstSpan& all) const;

  const Setup& setup_;
  const std::vector<Bucket> buckets_;
  Array memory_;  // between steps
  // By bucket, while it is filled and reduced: its gradients, and what of them this rank receives
  // to add to those of earlier micro-batches.
  std::vector<Array> passing_, arriving_;
  bool first_micro_ = true;

 private:
  struct Reduction {
    size_t bucket;
    Work work;
  };
  void start_complete_buckets();
  void finish_oldest();

  const bool every_micro_;
  std::vector<size_t> bucket_of_;  // by parameter
  std::vector<bool> fresh_;        // by parameter: nothing stored since the last reduction
  std::vector<int64_t> awaited_;   // by bucket: gradients until it is complete
  size_t next_ = 0;                // bucket to be reduced
  int64_t micros_left_ = 0;
  bool reducing_ = false;  // in this micro-batch
  std::deque<Reduction> reductions_;
};

// Stages 0 and 1 keep a flat buffer of all gradients and reduce it once a step; stage 2 keeps its
// slice, and a bucket only while it is filled and reduced.
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
  bool is_whole(const Bucket& bucket) const;

  FlatLayout layout_;
  FlatRange range_;  // of the flat buffer: what this rank updates
  Span own_;         // part of the memory: of all gradients, or at stage 2 the slice
};

// Every rank receives its slice of each parameter of a bucket.
class SlicedGradients final : public Gradients {
 public:
  explicit SlicedGradients(const Setup& setup);
  Span own() const override { return memory_.span(); }

 private:
  SlicedGradients(const Setup& setup, const SliceLayout& layout);
  void put(size_t bucket, int64_t param, const Span& gradient, bool first) override;
  Work start(size_t bucket) override;
  void finish(size_t bucket) override;

  SliceLayout layout_;
};

}  // namespace yoke::deepspeed_stub
