#include "plugins/validate/backend_call.hpp"

#include <algorithm>

#include "yoke/text.hpp"

namespace yoke::validate {

void check_returned(Monitor& monitor, int32_t code, Guarded<YokeError>& err) {
  constexpr int32_t kCodes[] = {YOKE_OK,
                                YOKE_CANCELLED,
                                YOKE_UNKNOWN,
                                YOKE_INVALID_ARGUMENT,
                                YOKE_DEADLINE_EXCEEDED,
                                YOKE_NOT_FOUND,
                                YOKE_RESOURCE_EXHAUSTED,
                                YOKE_FAILED_PRECONDITION,
                                YOKE_UNIMPLEMENTED,
                                YOKE_INTERNAL,
                                YOKE_UNAVAILABLE,
                                YOKE_DATA_LOSS};
  if (std::find(std::begin(kCodes), std::end(kCodes), code) == std::end(kCodes))
    monitor.violated(Rule::kFailuresAreExplained, "", concat("it returns the code ", code));
  if (err.overwritten())
    monitor.violated(Rule::kResultsStayInTheirStructs,
                     "",
                     "it has written behind the error, or into its header");
  const YokeError& e = err.value();
  if (code != YOKE_OK && (e.text[0] == '\0' || e.code != code)) {
    monitor.violated(Rule::kFailuresAreExplained,
                     "",
                     concat("it returns the code ", code, ", and the error has the code ", e.code) +
                         (e.text[0] == '\0' ? " and no text" : ""));
  }
  const std::string failure = monitor.failure();
  if (code == YOKE_OK && !failure.empty())
    monitor.violated(Rule::kErrorsArePassedOn, "", failure + ", and the function succeeds");
}

}  // namespace yoke::validate
