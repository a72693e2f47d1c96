#include "tests/support/mock_host.hpp"

#include <dlfcn.h>

#include <cstring>

#include "tests/support/mock_world.hpp"
#include "yoke/tensor.hpp"

namespace yoke::testing {

MockHost::MockHost(MockWorld* world, int32_t rank, int32_t world_size) : world_(world) {
  host.header = YOKE_HEADER(YokeHost, YOKE_ID_HOST);
  host.ctx = this;
  host.rank = rank;
  host.world_size = world_size;
  host.device = {YOKE_DEVICE_CPU, 0};
  host.log = [](void* ctx, int32_t, YokeString text) {
    static_cast<MockHost*>(ctx)->log.emplace_back(view(text));
  };
  host.check_cancel = [](void* ctx) -> int32_t {
    int& left = static_cast<MockHost*>(ctx)->cancel_after;
    if (left > 0)
      --left;
    else if (left == 0)
      return 1;
    return 0;
  };
  host.get_service = [](void* ctx, const char* name, uint64_t min_size) -> const YokeHeader* {
    auto* self = static_cast<MockHost*>(ctx);
    if (self->world_ == nullptr || std::strcmp(name, "yoke.collectives/1") != 0) return nullptr;
    if (min_size > sizeof(YokeCollectives)) return nullptr;
    return &self->world_->collectives(self->host.rank)->header;
  };
}

MockOptions::MockOptions(const ParallelBackend& backend,
                         const std::map<std::string, std::string>& given) {
  const YokeDescription* description = nullptr;
  YokeError err = make_error();
  check(backend.describe(&description, &err), err);
  for (uint64_t i = 0; i < description->num_options; ++i) {
    const YokeOptionInfo& info = *description->options[i];
    const std::string key(view(info.key));
    const auto found = given.find(key);
    std::string& text = texts_[key];
    text = found == given.end() ? std::string(view(info.default_value)) : found->second;
    YokeOption option{};
    option.key = info.key;
    option.type = info.type;
    option.given = found != given.end();
    if (info.type == YOKE_OPTION_FILE) {
      std::string& path = paths_[key];
      if (option.given) path = key + ".file";
      option.string_value = view(path);
      option.content = view(text);
    } else if (info.type == YOKE_OPTION_VARIABLES) {
      if (option.given) option.content = view(text);
    } else if (info.type == YOKE_OPTION_BOOL) {
      option.int_value = text == "true";
    } else if (info.type == YOKE_OPTION_INT && !text.empty()) {
      option.int_value = std::stoll(text);
    } else if (info.type == YOKE_OPTION_DOUBLE && !text.empty()) {
      option.double_value = std::stod(text);
    } else {
      option.string_value = view(text);
    }
    values_.push_back(option);
  }
}

MockPlan::MockPlan() {
  optimizer.header = YOKE_HEADER(YokeOptimizer, YOKE_ID_OPTIMIZER);
  optimizer.kind = YOKE_ADAMW;
  optimizer.beta1 = 0.9;
  optimizer.beta2 = 0.95;
  optimizer.eps = 1e-8;
  optimizer.weight_decay = 0.1;
  optimizer.clip = 1.0;
  plan.header = YOKE_HEADER(YokePlan, YOKE_ID_PLAN);
  plan.optimizer = &optimizer;
  plan.world_size = 1;
  plan.global_batch = 8;
  plan.param_dtype = YOKE_F64;
  plan.reduce_dtype = YOKE_F64;
}

int32_t MockPlan::ask(const ParallelBackend& backend,
                      const YokeModelSummary& model,
                      YokeError* err) {
  refusals.clear();
  YokePlanArgs args{};
  args.header = YOKE_HEADER(YokePlanArgs, YOKE_ID_PLAN_ARGS);
  args.header.next = extensions;
  args.model = &model;
  const MockOptions values(backend, options);
  args.options = values.values().data();
  args.num_options = values.values().size();
  args.refuse = [](void* ctx, const YokeRefusal* r) {
    static_cast<MockPlan*>(ctx)->refusals.push_back({std::string(view(r->key)),
                                                     std::string(view(r->given)),
                                                     std::string(view(r->allowed)),
                                                     std::string(view(r->hint)),
                                                     r->note != 0});
  };
  args.refuse_ctx = this;
  return backend.plan(&args, &plan, err);
}

const ParallelBackend& load_backend(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) throw Error(YOKE_NOT_FOUND, dlerror());
  auto* entry = reinterpret_cast<YokeEntry>(dlsym(library, YOKE_ENTRY_SYMBOL));
  if (entry == nullptr) throw Error(YOKE_NOT_FOUND, path + " has no " YOKE_ENTRY_SYMBOL);
  YokeError err = make_error();
  const ParallelBackend* backend = entry(YOKE_ABI_MINOR, &err);
  if (backend == nullptr) throw Error(err.code, err.text);
  return *backend;
}

Session::Session(const ParallelBackend& b, MockPlan& plan, MockHost& host, const YokeModel& model)
    : backend(b) {
  YokeError err = make_error();
  check(plan.ask(backend, *model.summary, &err), err);
  YokeInitArgs args{};
  args.header = YOKE_HEADER(YokeInitArgs, YOKE_ID_INIT_ARGS);
  args.plan = &plan.plan;
  const MockOptions options(backend, plan.options);
  args.options = options.values().data();
  args.num_options = options.values().size();
  args.host = &host.host;
  check(backend.init(&args, &context, &err), err);
  wrapped.header = YOKE_HEADER(YokeWrapResult, YOKE_ID_WRAP_RESULT);
  const int32_t code = backend.wrap_model(context, &model, &wrapped, &err);
  if (code != YOKE_OK) backend.destroy(&context);  // the destructor does not run after a throw
  check(code, err);
}

Session::~Session() {
  backend.destroy_model(&wrapped.model);
  backend.destroy(&context);
}

YokeStepResult Session::step(const YokeBatch& batch, int64_t step, double lr, uint32_t flags) {
  const YokeStepArgs args = {
      YOKE_HEADER(YokeStepArgs, YOKE_ID_STEP_ARGS), &batch, step, lr, flags, 0, 0};
  YokeStepResult out{};
  out.header = YOKE_HEADER(YokeStepResult, YOKE_ID_STEP_RESULT);
  YokeError err = make_error();
  check(backend.step(wrapped.model, &args, &out, &err), err);
  return out;
}

void Session::checkpoint(int32_t op, const std::function<void(const YokePiece&)>& visit) {
  YokeCheckpointArgs args{};
  args.header = YOKE_HEADER(YokeCheckpointArgs, YOKE_ID_CHECKPOINT_ARGS);
  args.op = op;
  args.visit = [](void* ctx, const YokePiece* piece, YokeError* err) {
    return guard(
        err, [&] { (*static_cast<const std::function<void(const YokePiece&)>*>(ctx))(*piece); });
  };
  args.visit_ctx = const_cast<std::function<void(const YokePiece&)>*>(&visit);
  YokeError err = make_error();
  check(backend.checkpoint(wrapped.model, &args, &err), err);
}

std::vector<SavedPiece> save_state(Session& session) {
  std::vector<SavedPiece> pieces;
  session.checkpoint(YOKE_CHECKPOINT_SAVE, [&](const YokePiece& p) {
    const auto* first = data<const char>(*p.view);
    pieces.push_back({std::string(view(p.name)) + "/" + std::string(view(p.kind)),
                      {p.shape, p.shape + p.ndim},
                      p.dtype,
                      p.begin,
                      p.count,
                      p.replica,
                      {first, first + p.count * item_size(p.dtype)}});
  });
  return pieces;
}

void load_state(Session& session, const std::vector<SavedPiece>& pieces) {
  size_t next = 0;
  session.checkpoint(YOKE_CHECKPOINT_LOAD, [&](const YokePiece& p) {
    const SavedPiece& saved = pieces.at(next++);
    if (saved.key != std::string(view(p.name)) + "/" + std::string(view(p.kind)) ||
        saved.count != p.count) {
      throw Error(YOKE_NOT_FOUND, "another piece was saved at this place: " + saved.key);
    }
    std::memcpy(data<char>(*p.view), saved.bytes.data(), saved.bytes.size());
  });
}

}  // namespace yoke::testing
