// TestBed provides the parts of a host that the checks need: models, options and ranks. Ranks are
// threads of the check's process, except in a few checks. The contract allows this, because two
// contexts of one process must be independent.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "yoke/parallel_backend.h"

namespace yoke::conformance {

// Selects and configures one of two small models. Both take the same batches: inputs "tokens",
// "targets" and "positions", each int64 [sequences, kSeqLen], with ids below kVocab. A target of
// -100 is ignored.
struct ModelSpec {
  enum Kind {
    kOdd,      // sizes that no degree divides; has a frozen and a scalar parameter
    kSequence  // a transformer whose heads, widths and sequence divide by 2 and 4
  };
  static constexpr int64_t kVocab = 11, kSeqLen = 16;

  Kind kind = kOdd;
  int32_t dtype = YOKE_F64;
  bool tied = true;             // the first parameter is shared with the last block
  bool unused = false;          // kOdd only: one parameter has no influence on the loss
  bool decay_matrices = false;  // weight decay applies to two-dimensional parameters only
  bool large = false;           // kOdd only: two parameters have 70,000 elements
};

// Faults that a check injects into the computation of one rank's model. They take effect through
// the neutral callbacks and through the LibTorch blocks alike. A check may change them between two
// calls.
struct FaultInjection {
  int64_t fail_forward = -1;  // block forwards that succeed before one fails; -1 = all
  double loss_factor = 1;     // factor by which the loss is multiplied
  // Whether the first of the positions of a micro-batch, if it is not 0, is another factor of its
  // loss, see Batch::cancel.
  bool loss_factor_in_positions = false;
  bool infinite_element = false;  // whether one element of one gradient becomes infinite
};

// A model for one rank, with its fault injection. One thread at a time.
class TestModel {
 public:
  virtual ~TestModel() = default;
  virtual const YokeModel& model() const = 0;
  virtual FaultInjection& fault_injection() = 0;
};

// An array of options that the test bed owns.
struct OptionValues {
  const YokeOption* data;
  uint64_t size;
};

// The host as the checks see it.
class TestBed {
 public:
  virtual ~TestBed() = default;

  // Makes a model for one rank. The model has the LibTorch extension if torch_tag, or the tag of an
  // inner backend that has been opened, equals the host's tag. Any thread.
  virtual std::unique_ptr<TestModel> make_model(const ModelSpec& spec,
                                                const YokeString& torch_tag) = 0;
  // Returns every option that the backend declares, with the values in `given`, written as a user
  // writes them, and the defaults for all others. The result lives as long as the test bed. Throws
  // yoke::Error if the host refuses a value. Any thread.
  virtual OptionValues options(const YokeDescription& description,
                               const std::map<std::string, std::string>& given) = 0;
  // Returns the extensions for the arguments of plan. They live as long as the test bed.
  virtual const YokeHeader* plan_extensions() = 0;

  // Runs `body` once for each rank, each on a separate thread, on a mesh with the degrees of the
  // plan. A rank whose body throws is lost to the others. Rethrows the exception that was thrown
  // first, after all ranks have returned.
  virtual void run(const YokePlan& plan, const std::function<void(const YokeHost& host)>& body) = 0;

  // Does the same with ranks that are processes, and returns what the bodies have returned, by
  // rank. They are copies of this process, which must have a single thread. Throws Failed with the
  // text of the first exception, or if a process dies.
  virtual std::vector<std::string> run_processes(
      const YokePlan& plan, const std::function<std::string(const YokeHost& host)>& body) = 0;
};

}  // namespace yoke::conformance
