// Accepts backends that were built with an older or a newer version of the contract. Their structs
// may have other sizes, so they are not read in place: clamped() copies the fields that both sides
// know and leaves the others zero. Strings and tables of a backend are not copied, because its
// library is never unloaded.
#include "core/backend/loaded_backend.hpp"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>

#include "core/backend/reject.hpp"
#include "core/backend/search.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

std::string version(uint32_t major, uint32_t minor) {
  return concat(major, ".", minor);
}

constexpr const char* kPhase = "its table, after loading";

// Size of the fields that precede the functions and decide whether the rest may be read.
constexpr uint32_t kFirstFields = offsetof(ParallelBackend, describe);

const char* missing_slot(const ParallelBackend& t) {
  const std::pair<const char*, bool> slots[] = {{"describe", t.describe != nullptr},
                                                {"plan", t.plan != nullptr},
                                                {"init", t.init != nullptr},
                                                {"wrap_model", t.wrap_model != nullptr},
                                                {"step", t.step != nullptr},
                                                {"checkpoint", t.checkpoint != nullptr},
                                                {"destroy_model", t.destroy_model != nullptr},
                                                {"destroy", t.destroy != nullptr}};
  for (const auto& [name, there] : slots) {
    if (!there) return name;
  }
  return nullptr;
}

// Returns a copy of a struct that was built with any version of the contract. Fields that this
// version does not have stay zero.
template <class T>
T clamped(const T& theirs) {
  T copy{};
  std::memcpy(
      static_cast<void*>(&copy), &theirs, std::min<size_t>(theirs.header.struct_size, sizeof copy));
  copy.header.struct_size = static_cast<uint32_t>(sizeof copy);
  return copy;
}

// Applies the contract's rule for accepting a table. A table of a newer minor version is always
// accepted.
ParallelBackend accept(const ParallelBackend* table, const std::string& path) {
  const std::string rebuild = "build the backend with the parallel_backend.h of this Yoke";
  if (table->header.struct_id != YOKE_ID_BACKEND || table->header.struct_size < kFirstFields) {
    throw_rejected(YOKE_FAILED_PRECONDITION,
                   {path,
                    kPhase,
                    "the entry function returned something that is not a backend's table",
                    "unknown",
                    rebuild});
  }
  const std::string theirs = version(table->abi_major, table->abi_minor);
  if (table->abi_major != YOKE_ABI_MAJOR) {
    throw_rejected(
        YOKE_UNIMPLEMENTED,
        {path, kPhase, "it was built for another major version of the ABI", theirs, rebuild});
  }
  if (table->min_host_minor > YOKE_ABI_MINOR) {
    throw_rejected(
        YOKE_UNIMPLEMENTED,
        {path,
         kPhase,
         "it needs a host with at least ABI " + version(YOKE_ABI_MAJOR, table->min_host_minor),
         theirs,
         "use a newer Yoke"});
  }
  constexpr size_t kRequired = offsetof(ParallelBackend, destroy) + sizeof(table->destroy);
  if (table->header.struct_size < kRequired) {
    throw_rejected(YOKE_FAILED_PRECONDITION,
                   {path,
                    kPhase,
                    concat("its table has ",
                           table->header.struct_size,
                           " bytes, too few for the required functions (",
                           kRequired,
                           ")"),
                    theirs,
                    rebuild});
  }
  const ParallelBackend copy = clamped(*table);
  if (const char* slot = missing_slot(copy)) {
    throw_rejected(YOKE_FAILED_PRECONDITION,
                   {path,
                    kPhase,
                    concat("the required function '", slot, "' is NULL"),
                    theirs,
                    "fill in all functions of the table, as the C++ layer yoke/backend.hpp does"});
  }
  return copy;
}

// Checks the description. The backend's name must equal the name of its file: users choose a
// backend by its file, and its options are in the table of that name.
void check_description(const YokeDescription* d, const std::string& path, const std::string& abi) {
  if (d == nullptr) {
    throw_rejected(YOKE_FAILED_PRECONDITION,
                   {path,
                    "its description",
                    "describe returned neither a description nor an error",
                    abi,
                    "set *out in describe"});
  }
  if (d->header.struct_id != YOKE_ID_DESCRIPTION || !YOKE_HAS(YokeDescription, d, devices)) {
    throw_rejected(
        YOKE_FAILED_PRECONDITION,
        {path,
         "its description",
         concat("it has struct_id ", d->header.struct_id, " and ", d->header.struct_size, " bytes"),
         abi,
         "initialise it with YOKE_HEADER(YokeDescription, YOKE_ID_DESCRIPTION)"});
  }
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(path, error);
  const std::string name(view(d->name));
  if (name != real.stem().string() && name != std::filesystem::path(path).stem().string()) {
    throw_rejected(YOKE_FAILED_PRECONDITION,
                   {path,
                    "its description",
                    "its name is '" + name + "', but its file is " + real.filename().string(),
                    abi,
                    is_backend_name(name) ? "rename the file to " + name + ".so, or the backend"
                                          : "use the name of the file, made of lower-case letters, "
                                            "digits and _"});
  }
  if (!YOKE_HAS(YokeDescription, d, num_state_kinds)) return;
  for (uint64_t i = 0; i < d->num_state_kinds; ++i) {
    const YokeStateKind* kind = d->state_kinds == nullptr ? nullptr : d->state_kinds[i];
    if (kind != nullptr && kind->header.struct_id == YOKE_ID_STATE_KIND &&
        (kind->flags & ~uint32_t{YOKE_STATE_PER_RANK}) == 0) {
      continue;
    }
    throw_rejected(YOKE_FAILED_PRECONDITION,
                   {path,
                    "its description",
                    concat("state_kinds[", i, "] is NULL, is not a YokeStateKind, or has flags ") +
                        "that this host does not know",
                    abi,
                    "initialise it with YOKE_HEADER(YokeStateKind, YOKE_ID_STATE_KIND)"});
  }
}

[[noreturn]] void throw_from(const BackendCalls& calls,
                             const char* slot,
                             int32_t code,
                             const YokeError& err) {
  const std::string reason =
      err.text[0] != '\0' ? err.text : concat(slot, " failed with code ", code, " and no message");
  throw Error(code, calls.name + ": " + reason, err.rank, err.step);
}

void check_call(const BackendCalls& calls, const char* slot, int32_t code, const YokeError& err) {
  if (code != YOKE_OK) throw_from(calls, slot, code, err);
}

void add_remark(void* ctx, const YokeRefusal* r) {
  // guard(): no exception may pass through the backend's stack frames.
  guard(nullptr, [&] {
    if (r == nullptr || r->header.struct_id != YOKE_ID_REFUSAL) return;
    const YokeRefusal known = clamped(*r);
    auto& report = *static_cast<PlanResult*>(ctx);
    (known.note != 0 ? report.notes : report.refusals)
        .push_back({std::string(view(known.key)),
                    std::string(view(known.given)),
                    std::string(view(known.allowed)),
                    std::string(view(known.hint))});
  });
}

}  // namespace

std::vector<StateKind> state_kinds(const YokeDescription& description) {
  std::vector<StateKind> kinds;
  if (!YOKE_HAS(YokeDescription, &description, num_state_kinds)) return kinds;
  for (uint64_t i = 0; i < description.num_state_kinds; ++i) {
    const YokeStateKind& kind = *description.state_kinds[i];
    kinds.push_back({std::string(view(kind.kind)), (kind.flags & YOKE_STATE_PER_RANK) != 0});
  }
  return kinds;
}

std::string remark_text(const PlanRemark& remark) {
  std::string text = remark.key;
  if (!remark.given.empty()) text += " = " + remark.given;
  if (!remark.allowed.empty()) text += "; allowed: " + remark.allowed;
  if (!remark.hint.empty()) text += "; " + remark.hint;
  return text;
}

// ---- WrappedModel ----

const YokeStepResult WrappedModel::kNoResult = {YOKE_HEADER(YokeStepResult, YOKE_ID_STEP_RESULT),
                                                std::numeric_limits<double>::quiet_NaN(),
                                                std::numeric_limits<double>::quiet_NaN(),
                                                std::numeric_limits<double>::quiet_NaN(),
                                                0,
                                                0,
                                                0};

WrappedModel::WrappedModel(std::shared_ptr<const BackendCalls> calls, const YokeWrapResult& result)
    : calls_(std::move(calls)),
      step_(calls_->table.step),
      error_(std::make_unique<YokeError>(make_error())),
      result_(result) {}

WrappedModel::WrappedModel(WrappedModel&& other) noexcept
    : calls_(std::move(other.calls_)),
      step_(other.step_),
      error_(std::move(other.error_)),
      result_(other.result_) {
  other.result_.model = nullptr;
}

WrappedModel::~WrappedModel() {
  if (result_.model == nullptr) return;
  const BackendCall call("destroy_model");
  calls_->table.destroy_model(&result_.model);
}

void WrappedModel::checkpoint(const YokeCheckpointArgs& args) {
  const BackendCall call("checkpoint");
  const int32_t code = calls_->table.checkpoint(result_.model, &args, error_.get());
  if (code != YOKE_OK) fail("checkpoint", code);
}

void WrappedModel::fail(const char* slot, int32_t code) {
  const YokeError report = *error_;
  *error_ = make_error();
  throw_from(*calls_, slot, code, report);
}

// ---- BackendContext ----

BackendContext::BackendContext(std::shared_ptr<const BackendCalls> calls, YokeContext* context)
    : calls_(std::move(calls)), context_(context) {}

BackendContext::BackendContext(BackendContext&& other) noexcept
    : calls_(std::move(other.calls_)), context_(std::exchange(other.context_, nullptr)) {}

BackendContext::~BackendContext() {
  if (context_ == nullptr) return;
  const BackendCall call("destroy");
  calls_->table.destroy(&context_);
}

WrappedModel BackendContext::wrap_model(const YokeModel& model) {
  YokeWrapResult result{};
  result.header = YOKE_HEADER(YokeWrapResult, YOKE_ID_WRAP_RESULT);
  result.param_bytes = result.grad_bytes = result.optimizer_bytes = -1;
  YokeError err = make_error();
  const BackendCall call("wrap_model");
  check_call(*calls_, "wrap_model", calls_->table.wrap_model(context_, &model, &result, &err), err);
  if (result.model == nullptr)
    throw Error(YOKE_INTERNAL, calls_->name + ": wrap_model returned neither a model nor an error");
  return WrappedModel(calls_, result);
}

// ---- LoadedBackend ----

// The strings live as long as the library, that is, until the process ends.
struct LoadedBackend::Description {
  YokeDescription description;
  std::vector<YokeOptionInfo> options;
  std::vector<const YokeOptionInfo*> option_pointers;
};

LoadedBackend::LoadedBackend(const ParallelBackend* table, const std::string& path) {
  auto calls = std::make_shared<BackendCalls>(BackendCalls{accept(table, path), path, path});
  const YokeDescription* theirs = nullptr;
  YokeError err = make_error();
  {
    const BackendCall call("describe");
    check_call(*calls, "describe", calls->table.describe(&theirs, &err), err);
  }
  check_description(theirs, path, version(calls->table.abi_major, calls->table.abi_minor));
  auto own = std::make_shared<Description>();
  own->description = clamped(*theirs);
  for (uint64_t i = 0; i < own->description.num_options; ++i)
    own->options.push_back(clamped(*theirs->options[i]));
  for (const YokeOptionInfo& option : own->options) own->option_pointers.push_back(&option);
  own->description.options = own->option_pointers.data();
  calls->name = view(own->description.name);
  calls_ = std::move(calls);
  description_ = std::move(own);
}

const YokeDescription& LoadedBackend::description() const {
  return description_->description;
}

PlanResult LoadedBackend::plan(const YokeModelSummary& model,
                               const YokeOption* options,
                               uint64_t num_options,
                               YokePlan& plan,
                               const YokeHeader* extensions) const {
  PlanResult report;
  YokePlanArgs args{};
  args.header = YOKE_HEADER(YokePlanArgs, YOKE_ID_PLAN_ARGS);
  args.header.next = extensions;
  args.model = &model;
  args.options = options;
  args.num_options = num_options;
  args.refuse = add_remark;
  args.refuse_ctx = &report;
  YokeError err = make_error();
  const BackendCall call("plan");
  const int32_t code = calls_->table.plan(&args, &plan, &err);
  // Refusals already explain a failure. If there are none, an error code becomes an Error.
  if (report.refusals.empty()) check_call(*calls_, "plan", code, err);
  return report;
}

BackendContext LoadedBackend::init(const YokeInitArgs& args) const {
  YokeContext* context = nullptr;
  YokeError err = make_error();
  const BackendCall call("init");
  check_call(*calls_, "init", calls_->table.init(&args, &context, &err), err);
  return BackendContext(calls_, context);
}

}  // namespace yoke
