// The C++ author's side of the contract. Subclass three classes, override what the backend does,
// and end the file with YOKE_EXPORT_BACKEND(MyBackend). Does not need LibTorch.
//
//   class MyBackend : public yoke::Backend {                     // one static object, no state
//     const YokeDescription& describe() const override;
//     void plan(const YokePlanArgs&, YokePlan&, yoke::PlanReport&) const override;
//     std::unique_ptr<yoke::Context> init(const YokeInitArgs&) const override;
//   };
//   class MyContext : public yoke::Context {                     // one rank of a run
//     std::unique_ptr<yoke::Wrapped> wrap_model(const YokeModel&) override;
//   };
//   class MyWrapped : public yoke::Wrapped {                     // one model on that rank
//     YokeWrapResult wrap_result() const override;
//     YokeStepResult step(const YokeStepArgs&) override;
//     void checkpoint(const YokeCheckpointArgs&) override;
//   };
//
// Errors: overrides throw yoke::Error, or any other exception. The layer turns it into a code and a
// text, and no exception crosses the ABI boundary. The layer also checks the arguments: an override
// never receives a NULL pointer, or a struct with a wrong struct_id, where the contract requires
// one.
//
// Threads: describe and plan may be called from any thread at any time. All other functions are
// called one at a time for each Context, though not always by the same thread.
//
// Collective: init, wrap_model, step and checkpoint (SAVE, LOAD) are called by all ranks. They may
// use collectives (yoke/comm.hpp); describe, plan and destructors must not.
#pragma once

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "yoke/author.h"
#include "yoke/error.hpp"
#include "yoke/optimizer.h"
#include "yoke/options.hpp"
#include "yoke/plan_report.hpp"
#include "yoke/state_kind.hpp"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke {

// ---- Results ----

// Writes a result of the contract into a struct of the caller: at most as many bytes as the
// caller's struct_size, and not the header, which belongs to the caller.
template <class T>
void write_result(T* out, const T& value) {
  const uint32_t size = out->header.struct_size;
  const uint32_t id = out->header.struct_id;
  const YokeHeader* next = out->header.next;
  std::memcpy(static_cast<void*>(out), &value, size < sizeof(T) ? size : sizeof(T));
  out->header = {size, id, next};
}

// Sets *out to zero except for its header, as the contract requires of a call that fails. Does
// nothing if out is NULL or its struct_id is not `id`.
template <class T>
void clear_result(T* out, uint32_t id) {
  if (out != nullptr && out->header.struct_id == id) write_result(out, T{});
}

// The value of an unknown field of a result, such as the gradient norm of an evaluation: NaN.
inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

// Returns the gradient norm from the sum of squares over all ranks, +infinity if it is not finite.
// See yoke/optimizer.h.
inline double gradient_norm(double squared) {
  return yoke_gradient_norm(squared);
}
// Returns the factor by which gradients are multiplied so that their norm is at most `clip` (0 = no
// clipping). See yoke/optimizer.h.
inline double clip_scale(double clip, double norm) {
  return yoke_clip_scale(clip, norm);
}

// Returns the result of a step. grad_norm: kUnknown in an evaluation; the step counts as skipped if
// it is infinite. See yoke_report_step in yoke/optimizer.h.
inline YokeStepResult step_result(const YokeStepArgs& args,
                                  double loss_sum,
                                  double loss_weight,
                                  double grad_norm) {
  YokeStepResult result{};
  result.header = YOKE_HEADER(YokeStepResult, YOKE_ID_STEP_RESULT);
  yoke_report_step(&args, loss_sum, loss_weight, grad_norm, &result);
  return result;
}

// ---- Tensors of the host ----

// Checks that a tensor which the host has returned, or NULL, is of the version of DLPack that the
// contract uses. With any other version only its deleter may be used. Throws Error(UNIMPLEMENTED).
inline void require_dlpack(const ManagedTensor& t) {
  call([&](YokeError* err) { return yoke_check_tensor(t.get(), err); });
}

// ---- The classes to subclass ----

// A model in the hands of the backend, on one rank. Owns the memory of the parameters and the state
// of the optimizer. Destroyed before its Context.
class Wrapped {
 public:
  // Unbinds the parameters and frees all memory. Local: no collectives, no exceptions.
  virtual ~Wrapped() = default;

  // Returns what the model costs this rank, in bytes; -1 = unknown. The fields header and model are
  // filled in by the layer. Called once, right after wrap_model has returned this object. It is a
  // getter, and not part of wrap_model's result, so that a backend on top of another one can read
  // the costs of its inner model and add its own (see sdk/examples/diloco.cpp).
  virtual YokeWrapResult wrap_result() const = 0;

  // Makes one update from all micro-batches of args.batch: forward, backward, reduction over the
  // data ranks, clipping, update. With YOKE_STEP_FORWARD_ONLY it only computes the loss. Returns
  // the same result on every rank; the layer fills in its header. Collective. Throws Error:
  // CANCELLED, UNAVAILABLE, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED.
  virtual YokeStepResult step(const YokeStepArgs& args) = 0;

  // Calls args.visit for each local piece of the state, in the same order for every op. SAVE and
  // LOAD are collective. Throws the visitor's Error.
  virtual void checkpoint(const YokeCheckpointArgs& args) = 0;
};

// One rank of a run: communicators, streams, threads.
class Context {
 public:
  // Ends all threads of the backend. Local: no collectives, no exceptions.
  virtual ~Context() = default;

  // Takes over a model: allocates its parameters, initialises them with init_param, binds them with
  // bind_param, and allocates the optimizer state. `model` lives until the result is destroyed.
  // Collective. Throws Error: RESOURCE_EXHAUSTED, INVALID_ARGUMENT.
  virtual std::unique_ptr<Wrapped> wrap_model(const YokeModel& model) = 0;
};

// The backend itself. The process has one object of the subclass, which lives until the process
// ends. The subclass must have a default constructor and no state that changes.
class Backend {
 public:
  virtual ~Backend() = default;

  // Returns the name and the capabilities of the backend. The result must live as long as the
  // process: return a static object, see description() below. Any thread.
  virtual const YokeDescription& describe() const = 0;

  // Fills the unset fields of `plan`, and reports every key that the backend does not accept. Pure:
  // no device, no communication, the same result on every rank. Any thread.
  virtual void plan(const YokePlanArgs& args, YokePlan& plan, PlanReport& report) const = 0;

  // Creates the context of this rank. What the fields of args point to lives until the result is
  // destroyed, but args itself ends with this call: copy the struct. Collective. Throws Error:
  // FAILED_PRECONDITION, UNIMPLEMENTED, UNAVAILABLE.
  virtual std::unique_ptr<Context> init(const YokeInitArgs& args) const = 0;
};

// ---- What describe and init return ----

// Returns the description of a backend without options that uses the neutral model on the CPU;
// change other fields afterwards. The texts must be literals, and dtypes must live as long as the
// process.
//
//   static constexpr int32_t dtypes[] = {YOKE_F32, YOKE_F64};
//   static const YokeDescription d = yoke::description(
//       "mine", "1.0.0", "one line", dtypes, YOKE_AXIS_BIT(YOKE_DP_REPLICATE), 1u << 0);
//
// axes: mask of YOKE_AXIS_BIT, the axes that may have a degree above 1. zero_stages: mask,
// bit n = ZeRO stage n.
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

// Adds options to a description. infos must live as long as the process; see yoke::pointers_to.
inline void set_options(YokeDescription& d, const std::vector<const YokeOptionInfo*>& infos) {
  d.options = infos.data();
  d.num_options = infos.size();
}

// Returns a context that needs no class of its own. It makes one State from the arguments of init,
// and each model as a Model, a subclass of Wrapped, from (const YokeModel&, const State&):
//
//   std::unique_ptr<yoke::Context> init(const YokeInitArgs& args) const override {
//     return yoke::context_of<MyWrapped>(args);
//   }
//
// Without a State the models get the arguments themselves. The State outlives the models. It may
// keep references to what the arguments point to, which lives as long as the context.
template <class Model, class State = YokeInitArgs>
std::unique_ptr<Context> context_of(const YokeInitArgs& args) {
  class StateContext final : public Context {
   public:
    explicit StateContext(const YokeInitArgs& args) : state_(args) {}
    std::unique_ptr<Wrapped> wrap_model(const YokeModel& model) override {
      return std::make_unique<Model>(model, state_);
    }

   private:
    const State state_;
  };
  return std::make_unique<StateContext>(args);
}

// ---- The function table of a backend class: not for authors ----

namespace detail {

// Throws Error(INVALID_ARGUMENT) unless p is a struct with this id. `what` names it in the message.
template <class T>
void require(const T* p, uint32_t id, const char* what) {
  if (p == nullptr) throw Error(YOKE_INVALID_ARGUMENT, concat(what, " is NULL"));
  if (p->header.struct_id != id) {
    throw Error(YOKE_INVALID_ARGUMENT,
                concat(what, ": struct_id ", p->header.struct_id, ", expected ", id));
  }
}

// Throws Error(FAILED_PRECONDITION) if a handle of this backend is NULL.
inline void require_handle(const void* handle, const char* what) {
  if (handle == nullptr)
    throw Error(YOKE_FAILED_PRECONDITION, concat(what, " is NULL; create it first"));
}

// The functions of the contract for a backend class B. Each one checks its arguments, casts the
// handle back to the class that it came from, calls the override, and turns exceptions into codes.
// Handles are pointers to Context and Wrapped; the result of a call that fails is zero or NULL.
template <class B>
struct Table {
  // Returns the one object of the backend, which is made at the first call.
  static const B& instance() {
    static const B backend;
    return backend;
  }

  // Sets *out to the description; NULL if describe() throws.
  static int32_t describe(const YokeDescription** out, YokeError* err) {
    return guard(err, [&] {
      if (out == nullptr) throw Error(YOKE_INVALID_ARGUMENT, "describe: out is NULL");
      *out = nullptr;
      *out = &instance().describe();
    });
  }

  // Fails with YOKE_INVALID_ARGUMENT if the backend has reported a refusal. The refusals themselves
  // have gone to args->refuse; the text of the error only counts them.
  static int32_t plan(const YokePlanArgs* args, YokePlan* plan, YokeError* err) {
    return guard(err, [&] {
      require(args, YOKE_ID_PLAN_ARGS, "plan: args");
      require(plan, YOKE_ID_PLAN, "plan: plan");
      require(plan->optimizer, YOKE_ID_OPTIMIZER, "plan: plan->optimizer");
      PlanReport report(*args);
      instance().plan(*args, *plan, report);
      if (report.count() > 0) {
        throw Error(YOKE_INVALID_ARGUMENT,
                    concat("the plan was refused for ", report.count(), " reason(s)"));
      }
    });
  }

  // Passes the ownership of the new Context to the caller, as a handle.
  static int32_t init(const YokeInitArgs* args, YokeContext** out, YokeError* err) {
    // The plan is complete by now, so its optimizer is required as well.
    return guard(err, [&] {
      if (out == nullptr) throw Error(YOKE_INVALID_ARGUMENT, "init: out is NULL");
      *out = nullptr;
      require(args, YOKE_ID_INIT_ARGS, "init: args");
      require(args->plan, YOKE_ID_PLAN, "init: args->plan");
      require(args->plan->optimizer, YOKE_ID_OPTIMIZER, "init: args->plan->optimizer");
      require(args->host, YOKE_ID_HOST, "init: args->host");
      call([&](YokeError* e) { return yoke_check_dtypes(args->plan, e); });
      *out = reinterpret_cast<YokeContext*>(instance().init(*args).release());
    });
  }

  // Passes the ownership of the new Wrapped to the caller, as out->model.
  static int32_t wrap_model(YokeContext* context,
                            const YokeModel* model,
                            YokeWrapResult* out,
                            YokeError* err) {
    return guard(err, [&] {
      clear_result(out, YOKE_ID_WRAP_RESULT);
      require_handle(context, "wrap_model: context");
      require(model, YOKE_ID_MODEL, "wrap_model: model");
      require(out, YOKE_ID_WRAP_RESULT, "wrap_model: out");
      // The handle is released last: if wrap_result() throws, the model is destroyed here.
      auto wrapped = reinterpret_cast<Context*>(context)->wrap_model(*model);
      YokeWrapResult result = wrapped->wrap_result();
      result.model = reinterpret_cast<YokeWrapped*>(wrapped.release());
      write_result(out, result);
    });
  }

  // Writes as much of the result as the caller's struct has room for.
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
      call([&](YokeError* e) { return yoke_check_flags(args, e); });
      write_result(out, reinterpret_cast<Wrapped*>(model)->step(*args));
    });
  }

  // The override calls the visitor, and throws the visitor's error as an Error.
  static int32_t checkpoint(YokeWrapped* model, const YokeCheckpointArgs* args, YokeError* err) {
    return guard(err, [&] {
      require_handle(model, "checkpoint: model");
      require(args, YOKE_ID_CHECKPOINT_ARGS, "checkpoint: args");
      call([&](YokeError* e) { return yoke_check_op(args, e); });
      reinterpret_cast<Wrapped*>(model)->checkpoint(*args);
    });
  }

  // NULL and a pointer to NULL are allowed, so that callers can clean up without a check.
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

  // min_host_minor is 0: any host of this major version will do.
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

// Defines the entry of the library, the only symbol that it must export, for a subclass of Backend.
// Write it once, outside of all namespaces, without a semicolon. Hide all other symbols: the CMake
// function yoke_add_backend does, or pass -fvisibility=hidden.
#define YOKE_EXPORT_BACKEND(Class)                                                    \
  extern "C" const ParallelBackend* parallel_backend_entry_v1(uint32_t, YokeError*) { \
    return &yoke::detail::Table<Class>::kTable;                                       \
  }
