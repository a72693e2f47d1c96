// The C++ author's side of the contract: subclass three classes, override what the backend does,
// and end the file with YOKE_EXPORT_BACKEND(MyBackend). Overrides may throw; nothing passes the
// border.
//
//   class MyBackend : public yoke::Backend {                     // one static object, no state
//     const YokeDescription& describe() const override;
//     void plan(const YokePlanArgs&, YokePlan&, yoke::PlanReport&) const override;
//     std::unique_ptr<yoke::Context> init(const YokeInitArgs&) const override;
//   };
//   class MyContext : public yoke::Context {
//     std::unique_ptr<yoke::Wrapped> wrap_model(const YokeModel&) override;
//   };
//   class MyWrapped : public yoke::Wrapped {
//     YokeWrapResult wrap_result() const override;
//     YokeStepResult step(const YokeStepArgs&) override;
//     void checkpoint(const YokeCheckpointArgs&) override;
//   };
#pragma once

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "yoke/error.hpp"
#include "yoke/optimizer.h"
#include "yoke/options.hpp"
#include "yoke/tensor.hpp"

namespace yoke {

// Writes a result into memory of the caller, at most as many bytes as the caller knows.
template <class T>
void write_result(T* out, const T& value) {
  const uint32_t size = out->header.struct_size;
  const uint32_t id = out->header.struct_id;
  const YokeHeader* next = out->header.next;
  std::memcpy(static_cast<void*>(out), &value, size < sizeof(T) ? size : sizeof(T));
  out->header = {size, id, next};
}

// Makes *out zero but for the header, which is what a failed call leaves. Does nothing if it is
// NULL or of another kind.
template <class T>
void clear_result(T* out, uint32_t id) {
  if (out != nullptr && out->header.struct_id == id) write_result(out, T{});
}

// Collects every reason to refuse a plan.
class PlanReport {
 public:
  explicit PlanReport(const YokePlanArgs& args) : args_(args) {}

  void refuse(std::string_view key,
              std::string_view given,
              std::string_view allowed,
              std::string_view hint) {
    send(key, given, allowed, hint, 0);
    ++count_;
  }
  // Something the user should know; the plan is accepted.
  void note(std::string_view key, std::string_view given, std::string_view hint) {
    send(key, given, "", hint, 1);
  }
  // The line of a run file that says the same as a key of a foreign config.
  void equivalent(std::string_view key, std::string_view given, std::string_view line) {
    send(key, given, line, "", 1);
  }
  // Reasons that were reported without this object, as the functions of yoke/author.h do.
  void add(int refused) { count_ += refused; }
  int count() const { return count_; }

 private:
  void send(std::string_view key,
            std::string_view given,
            std::string_view allowed,
            std::string_view hint,
            int note) {
    const std::string k(key), g(given), a(allowed), h(hint);  // NUL-terminated
    YokeRefusal r{};
    r.header = YOKE_HEADER(YokeRefusal, YOKE_ID_REFUSAL);
    r.key = view(k);
    r.given = view(g);
    r.allowed = view(a);
    r.hint = view(h);
    r.note = note;
    args_.refuse(args_.refuse_ctx, &r);
  }

  const YokePlanArgs& args_;
  int count_ = 0;
};

// A result that is not known, such as the norm of an evaluation.
inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

// The gradient norm and the clip factor of yoke/optimizer.h.
inline double gradient_norm(double squared) {
  return yoke_gradient_norm(squared);
}
inline double clip_scale(double clip, double norm) {
  return yoke_clip_scale(clip, norm);
}

// A model, wrapped: owns shards and optimizer state. Destroyed before its Context.
class Wrapped {
 public:
  virtual ~Wrapped() = default;
  virtual YokeWrapResult wrap_result() const = 0;  // model is filled by the base
  virtual YokeStepResult step(const YokeStepArgs& args) = 0;
  virtual void checkpoint(const YokeCheckpointArgs& args) = 0;
};

// One rank's context.
class Context {
 public:
  virtual ~Context() = default;
  // model lives until the result is destroyed. Collective.
  virtual std::unique_ptr<Wrapped> wrap_model(const YokeModel& model) = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const YokeDescription& describe() const = 0;
  virtual void plan(const YokePlanArgs& args, YokePlan& plan, PlanReport& report) const = 0;
  // What args points to lives until the result is destroyed: it may be kept by reference.
  // Collective.
  virtual std::unique_ptr<Context> init(const YokeInitArgs& args) const = 0;
};

// A description without options, of a backend on the neutral model and the CPU. The texts are literals, and the
// dtypes live as long as the process; axes and stages: bits.
template <size_t N>
YokeDescription description(const char* name,
                            const char* version,
                            const char* summary,
                            const int32_t (&dtypes)[N],
                            uint32_t axes,
                            uint32_t zero_stages) {
  YokeDescription d{};
  d.header = YOKE_HEADER(YokeDescription, YOKE_ID_DESCRIPTION);
  d.name = view(name);
  d.version = view(version);
  d.vendor = view("");
  d.summary = view(summary);
  d.torch_tag = view("");
  d.param_dtypes = dtypes;
  d.num_param_dtypes = N;
  d.axes = axes;
  d.zero_stages = zero_stages;
  d.devices = 1u << YOKE_DEVICE_CPU;
  return d;
}

// Adds options; infos live as long as the process.
inline void set_options(YokeDescription& d, const std::vector<const YokeOptionInfo*>& infos) {
  d.options = infos.data();
  d.num_options = infos.size();
}

// A context that makes objects of class Model from (const YokeModel&, const YokeInitArgs&).
template <class Model>
std::unique_ptr<Context> context_of(const YokeInitArgs& args) {
  class OfModel final : public Context {
   public:
    explicit OfModel(const YokeInitArgs& args) : args_(args) {}
    std::unique_ptr<Wrapped> wrap_model(const YokeModel& model) override {
      return std::make_unique<Model>(model, args_);
    }

   private:
    const YokeInitArgs args_;  // what it points to lives until destroy returned
  };
  return std::make_unique<OfModel>(args);
}

namespace detail {

template <class T>
void require(const T* p, uint32_t id, const char* what) {
  if (p == nullptr) throw Error(YOKE_INVALID_ARGUMENT, std::string(what) + " is NULL");
  if (p->header.struct_id != id) {
    throw Error(YOKE_INVALID_ARGUMENT,
                std::string(what) + ": struct_id " + std::to_string(p->header.struct_id) +
                    ", expected " + std::to_string(id));
  }
}

inline void require_handle(const void* handle, const char* what) {
  if (handle == nullptr)
    throw Error(YOKE_FAILED_PRECONDITION, std::string(what) + " is NULL; make it first");
}

// The table of one backend class; B must be default-constructible and stateless.
template <class B>
struct Table {
  static const B& instance() {
    static const B backend;
    return backend;
  }

  static int32_t describe(const YokeDescription** out, YokeError* err) {
    return guard(err, [&] {
      if (out == nullptr) throw Error(YOKE_INVALID_ARGUMENT, "describe: out is NULL");
      *out = nullptr;
      *out = &instance().describe();
    });
  }

  static int32_t plan(const YokePlanArgs* args, YokePlan* plan, YokeError* err) {
    return guard(err, [&] {
      require(args, YOKE_ID_PLAN_ARGS, "plan: args");
      require(plan, YOKE_ID_PLAN, "plan: plan");
      require(plan->optimizer, YOKE_ID_OPTIMIZER, "plan: plan->optimizer");
      PlanReport report(*args);
      instance().plan(*args, *plan, report);
      if (report.count() > 0) {
        throw Error(YOKE_INVALID_ARGUMENT,
                    std::to_string(report.count()) + " reason(s) to refuse the plan");
      }
    });
  }

  static int32_t init(const YokeInitArgs* args, YokeContext** out, YokeError* err) {
    return guard(err, [&] {
      if (out == nullptr) throw Error(YOKE_INVALID_ARGUMENT, "init: out is NULL");
      *out = nullptr;
      require(args, YOKE_ID_INIT_ARGS, "init: args");
      require(args->plan, YOKE_ID_PLAN, "init: args->plan");
      require(args->plan->optimizer, YOKE_ID_OPTIMIZER, "init: args->plan->optimizer");
      require(args->host, YOKE_ID_HOST, "init: args->host");
      *out = reinterpret_cast<YokeContext*>(instance().init(*args).release());
    });
  }

  static int32_t wrap_model(YokeContext* context,
                            const YokeModel* model,
                            YokeWrapResult* out,
                            YokeError* err) {
    return guard(err, [&] {
      clear_result(out, YOKE_ID_WRAP_RESULT);
      require_handle(context, "wrap_model: context");
      require(model, YOKE_ID_MODEL, "wrap_model: model");
      require(out, YOKE_ID_WRAP_RESULT, "wrap_model: out");
      auto wrapped = reinterpret_cast<Context*>(context)->wrap_model(*model);
      YokeWrapResult result = wrapped->wrap_result();
      result.model = reinterpret_cast<YokeWrapped*>(wrapped.release());
      write_result(out, result);
    });
  }

  static int32_t step(YokeWrapped* model,
                      const YokeStepArgs* args,
                      YokeStepResult* out,
                      YokeError* err) {
    return guard(err, [&] {
      clear_result(out, YOKE_ID_STEP_RESULT);
      require_handle(model, "step: model");
      require(args, YOKE_ID_STEP_ARGS, "step: args");
      require(args->batch, YOKE_ID_BATCH, "step: args->batch");
      require(out, YOKE_ID_STEP_RESULT, "step: out");
      write_result(out, reinterpret_cast<Wrapped*>(model)->step(*args));
    });
  }

  static int32_t checkpoint(YokeWrapped* model, const YokeCheckpointArgs* args, YokeError* err) {
    return guard(err, [&] {
      require_handle(model, "checkpoint: model");
      require(args, YOKE_ID_CHECKPOINT_ARGS, "checkpoint: args");
      reinterpret_cast<Wrapped*>(model)->checkpoint(*args);
    });
  }

  static void destroy_model(YokeWrapped** model) {
    if (model == nullptr) return;
    delete reinterpret_cast<Wrapped*>(*model);
    *model = nullptr;
  }

  static void destroy(YokeContext** context) {
    if (context == nullptr) return;
    delete reinterpret_cast<Context*>(*context);
    *context = nullptr;
  }

  static constexpr ParallelBackend kTable = {YOKE_HEADER(ParallelBackend, YOKE_ID_BACKEND),
                                             YOKE_ABI_MAJOR,
                                             YOKE_ABI_MINOR,
                                             0,
                                             0,
                                             describe,
                                             plan,
                                             init,
                                             wrap_model,
                                             step,
                                             checkpoint,
                                             destroy_model,
                                             destroy};
};

}  // namespace detail
}  // namespace yoke

#define YOKE_EXPORT_BACKEND(Class)                                                    \
  extern "C" const ParallelBackend* parallel_backend_entry_v1(uint32_t, YokeError*) { \
    return &yoke::detail::Table<Class>::kTable;                                       \
  }
