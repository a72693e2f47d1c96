// Rank 0's judgement of what all ranks say about themselves: do they run the same program?
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/comm/mesh.hpp"
#include "core/comm/signature.hpp"

namespace yoke {

// Gets one text per rank, returns the first disagreement.
using Judge = std::function<std::optional<std::string>(const std::vector<std::string>&)>;

// Any strings as one, and back.
std::string join_fields(const std::vector<std::string>& fields);
std::vector<std::string> split_fields(const std::string& joined);

// Each text joins (what is agreed on, value).
std::optional<std::string> differing_value(const std::vector<std::string>& texts);

struct NamedHistory {
  std::string name;  // of the communicator
  uint32_t axes;
  History history;
};
std::string pack_histories(const std::vector<NamedHistory>& histories);
// Each text is a rank's pack_histories(). Compares the members of each communicator; ranks that
// share none may differ.
std::optional<std::string> differing_history(const std::vector<std::string>& texts,
                                             const Mesh& mesh);

}  // namespace yoke
