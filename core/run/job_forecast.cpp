// plan() is called a second time. The first call, in make_job(), left fields open that the host has
// filled since, such as micro_batch, and the forecast depends on them.
#include "core/run/job_forecast.hpp"

namespace yoke {

StepForecast forecast_of(const Job& job) {
  return forecast_of(job, job.plan->plan(), job.options);
}

StepForecast forecast_of(const Job& job, YokePlan plan, const OptionList& options) {
  const auto model = make_model(job);
  const ForecastCollector collector(job.inner->for_plan());
  const PlanResult report = job.backend.plan(
      model->summary(), options.data(), options.size(), plan, collector.extension());
  if (!report.refusals.empty()) {
    throw Error(YOKE_INTERNAL,
                "backend '" + job.backend.name() +
                    "' refuses the plan that it has completed: " + remark_text(report.refusals[0]));
  }
  return collector.result(plan, model->summary());
}

}  // namespace yoke
