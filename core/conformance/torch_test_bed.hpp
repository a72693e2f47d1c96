// Lets the conformance kit use Yoke's real host: its models, its options, and its services. The
// ranks are threads or processes.
#pragma once

#include <map>
#include <mutex>
#include <vector>

#include "core/backend/inner_backends.hpp"
#include "core/comm/rendezvous.hpp"
#include "sdk/conformance/test_bed.hpp"

namespace yoke {

class TorchTestBed : public conformance::TestBed {
 public:
  TorchTestBed();

  std::unique_ptr<conformance::TestModel> make_model(const conformance::ModelSpec& spec,
                                                     const YokeString& torch_tag) override;
  conformance::OptionValues options(const YokeDescription& description,
                                    const std::map<std::string, std::string>& given) override;
  const YokeHeader* plan_extensions() override { return inner_.for_plan(); }
  void run(const YokePlan& plan, const std::function<void(const YokeHost& host)>& body) override;
  std::vector<std::string> run_processes(
      const YokePlan& plan, const std::function<std::string(const YokeHost& host)>& body) override;

 private:
  void run_rank(const YokePlan& plan,
                const Rendezvous& rendezvous,
                const std::function<void(const YokeHost& host)>& body);

  InnerBackends inner_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<OptionList>> options_;
};

}  // namespace yoke
