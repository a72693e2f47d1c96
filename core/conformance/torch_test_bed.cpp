#include "core/conformance/torch_test_bed.hpp"

#include <ATen/Parallel.h>

#include <exception>
#include <thread>

#include "core/backend/services.hpp"
#include "core/comm/world.hpp"
#include "core/conformance/process_ranks.hpp"
#include "core/conformance/tiny_model.hpp"
#include "core/model/torch_model.hpp"

namespace yoke {
namespace {

// Timeout of collectives. It is shorter than that of a check, so that the peers of a lost rank
// report the loss.
constexpr std::chrono::seconds kTimeout{20};

class TinyModel : public conformance::TestModel {
 public:
  explicit TinyModel(const conformance::ModelSpec& spec)
      : host_(make_tiny_model(spec, injection_), spec.dtype, /*seed=*/7, spec.decay_matrices) {}
  const YokeModel& model() const override { return host_.model(); }
  conformance::FaultInjection& fault_injection() override { return injection_; }
  TorchModelHost& host() { return host_; }

 private:
  conformance::FaultInjection injection_;
  TorchModelHost host_;
};

}  // namespace

TorchTestBed::TorchTestBed() : inner_(RunConfig{}) {}

std::unique_ptr<conformance::TestModel> TorchTestBed::make_model(const conformance::ModelSpec& spec,
                                                                 const YokeString& torch_tag) {
  auto model = std::make_unique<TinyModel>(spec);
  bool wanted = view(torch_tag) == kTorchTag;
  for (const InnerBackends::Inner* inner : inner_.opened())
    wanted = wanted || view(inner->backend.description().torch_tag) == kTorchTag;
  if (!wanted) model->host().neutral_only();
  return model;
}

conformance::OptionValues TorchTestBed::options(const YokeDescription& description,
                                                const std::map<std::string, std::string>& given) {
  const std::string name(view(description.name));
  std::vector<BackendOption> values;
  for (const auto& [key, text] : given)
    values.push_back(loose_option(name, key, text, "the check"));
  auto list = std::make_unique<OptionList>(
      check_options(values, {name, "backend '" + name + "'"}, option_infos(description)));
  const conformance::OptionValues result{list->data(), list->size()};
  const std::lock_guard lock(mutex_);
  options_.push_back(std::move(list));
  return result;
}

// Runs a rank of the mesh of the plan, from connect to shutdown.
void TorchTestBed::run_rank(const YokePlan& plan,
                            const Rendezvous& rendezvous,
                            const std::function<void(const YokeHost& host)>& body) {
  at::set_num_threads(1);
  CommOptions options;
  options.timeout = kTimeout;
  const auto world = World::connect(rendezvous, options);
  const int32_t* d = plan.degree;
  world->set_mesh(Mesh({d[0], d[1], d[2], d[3], d[4]}));
  BackendEvents events;
  HostServices services(
      *world, [](int32_t, const std::string&) {}, nullptr, &inner_, &events);
  body(*services.host());
  world->shutdown();
}

void TorchTestBed::run(const YokePlan& plan,
                       const std::function<void(const YokeHost& host)>& body) {
  const auto shared = make_virtual_world(plan.world_size);
  std::mutex mutex;
  std::exception_ptr first;  // first error in time, which is the cause of the others
  const auto keep_first = [&] {
    const std::lock_guard lock(mutex);
    if (!first) first = std::current_exception();
  };
  const auto rank_body = [&](int32_t rank) {
    Rendezvous rendezvous;
    rendezvous.rank = rank;
    rendezvous.world_size = plan.world_size;
    rendezvous.local_world_size = plan.world_size;
    rendezvous.virtual_world = shared;
    try {
      run_rank(plan, rendezvous, [&](const YokeHost& host) {
        try {
          body(host);
        } catch (...) {
          keep_first();  // before the world ends and the peers get errors, too
          throw;
        }
      });
    } catch (...) {
      keep_first();
    }
  };
  std::vector<std::thread> others;
  for (int32_t rank = 1; rank < plan.world_size; ++rank) others.emplace_back(rank_body, rank);
  rank_body(0);
  for (std::thread& t : others) t.join();
  if (first) std::rethrow_exception(first);
}

std::vector<std::string> TorchTestBed::run_processes(
    const YokePlan& plan, const std::function<std::string(const YokeHost& host)>& body) {
  return run_process_ranks(plan.world_size, [&](int32_t rank, const std::string& socket) {
    Rendezvous rendezvous;
    rendezvous.rank = rank;
    rendezvous.world_size = plan.world_size;
    rendezvous.local_world_size = plan.world_size;
    rendezvous.control_socket = socket;
    std::string result;
    run_rank(plan, rendezvous, [&](const YokeHost& host) { result = body(host); });
    return result;
  });
}

}  // namespace yoke
