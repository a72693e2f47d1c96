// What a check needs of a host: models, options, and ranks. Ranks are threads of the check's
// process, for the contract says that two contexts of one process are independent.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "yoke/parallel_backend.h"

namespace yoke::conformance {

// Two small models over the same batches: inputs "tokens", "targets" (-100 does not count) and
// "positions", [sequences, kSeqLen] int64, ids below kVocab.
struct ModelSpec {
  enum Kind {
    kOdd,      // sizes that nothing divides; a frozen and a scalar parameter
    kSequence  // a transformer whose heads, widths and sequence can be cut in 2 and 4
  };
  static constexpr int64_t kVocab = 11, kSeqLen = 16;

  Kind kind = kOdd;
  int32_t dtype = YOKE_F64;
  bool tied = true;             // the first parameter stands in the last block too
  bool unused = false;          // kOdd: one parameter has no influence on the loss
  bool decay_matrices = false;  // weight decay for parameters of two dimensions only
};

// What can be made to go wrong inside the mathematics of one rank's model, through the neutral
// callbacks and the LibTorch blocks alike. Any time between two calls.
struct FaultInjection {
  int64_t fail_forward = -1;  // the forward of a block fails after so many more; -1 = never
  double loss_factor = 1;     // times the loss
};

class TestModel {
 public:
  virtual ~TestModel() = default;
  virtual const YokeModel& model() const = 0;
  virtual FaultInjection& fault_injection() = 0;
};

struct OptionValues {
  const YokeOption* data;
  uint64_t size;
};

class TestBed {
 public:
  virtual ~TestBed() = default;

  // For one rank. The LibTorch extension is chained on if torch_tag, or that of a backend opened so
  // far, is the host's. Any thread.
  virtual std::unique_ptr<TestModel> make_model(const ModelSpec& spec,
                                                const YokeString& torch_tag) = 0;
  // Every option that the backend declares: those given, as a user would write them, the others at
  // their defaults. Lives as long as the stage. Throws yoke::Error if the host refuses a value. Any
  // thread.
  virtual OptionValues options(const YokeDescription& description,
                               const std::map<std::string, std::string>& given) = 0;
  // To be chained on the arguments of plan; lives as long as the stage.
  virtual const YokeHeader* plan_extensions() = 0;

  // Runs body once per rank, each on a thread of its own, on a mesh of the plan's degrees. A rank
  // that throws is lost to the others. Rethrows what was thrown first.
  virtual void run(const YokePlan& plan, const std::function<void(const YokeHost& host)>& body) = 0;
};

}  // namespace yoke::conformance
