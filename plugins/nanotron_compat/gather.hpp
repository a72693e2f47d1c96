// Gathers the parameters from the ranks that have updated their slices.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "plugins/nanotron_compat/comms.hpp"
#include "plugins/nanotron_compat/layout.hpp"
#include "sdk/compat/parameters.hpp"

namespace yoke::nanotron_compat {

// One thread at a time.
class Gather {
 public:
  // The parameters and the comms must outlive the object; the layout is needed only here.
  Gather(const Layout& layout, const compat::Parameters& parameters, const Comms& comms);

  // Makes all parameters equal to those of their owners. Collective.
  void run() const;
  // Returns the elements that a gather moves: all parameters, and the padding of short slices.
  int64_t elements() const;

 private:
  // The slices of the parameters of one bucket.
  struct Bucket {
    std::vector<std::vector<compat::Range>> of_rank;  // slices of each rank
    int64_t largest = 0;                              // elements of the rank that has most
  };

  const compat::Parameters& parameters_;
  const Comms& comms_;
  std::vector<Bucket> buckets_;
};

}  // namespace yoke::nanotron_compat
