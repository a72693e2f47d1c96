// The backend has completed the plan when the job was made, but the host fills in what the backend
// leaves open. Only now is everything known that decides how long a step is, so plan is called a
// second time.
#include "core/run/foresee.hpp"

namespace yoke {

StepForecast foresee(const Job& job) {
  const auto model = make_model(job);
  YokePlan plan = job.plan->plan();
  const ForecastCollector collector(job.inner->for_plan());
  const PlanResult report = job.backend.plan(
      model->summary(), job.options.data(), job.options.size(), plan, collector.extension());
  if (!report.refusals.empty()) {
    throw Error(YOKE_INTERNAL,
                "backend '" + job.backend.name() +
                    "' refuses the plan that it has completed: " + remark_text(report.refusals[0]));
  }
  return collector.result(plan, model->summary());
}

}  // namespace yoke
