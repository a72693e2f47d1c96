// Comparisons that rank 0 makes between the reports of all ranks, to find ranks that run a
// different program.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/comm/mesh.hpp"
#include "core/comm/signature.hpp"

namespace yoke {

// Takes one text per rank, in rank order, and returns the first difference as a sentence, or
// nothing.
using Comparison = std::function<std::optional<std::string>(const std::vector<std::string>&)>;

// Joins strings with any content into one; split_fields() is the inverse.
std::string join_fields(const std::vector<std::string>& fields);
std::vector<std::string> split_fields(const std::string& joined);

// A Comparison of values. Each text is join_fields({name of the value, value}).
std::optional<std::string> differing_value(const std::vector<std::string>& texts);

struct NamedHistory {
  std::string name;  // name of a communicator, "dp_shard (unshard)", or of a link (link_name)
  uint32_t axes;     // axes of the communicator
  History history;
  Link link = {};  // link of a history of messages; unset for collectives
};
// Returns "pp (outputs) from rank 0 to rank 1".
std::string link_name(const std::string& communicator, const Link& link);

// Returns the histories of one rank as a text for differing_history().
std::string pack_histories(const std::vector<NamedHistory>& histories);
// A Comparison of histories. Each text comes from pack_histories(). Compares the members of each
// communicator, and the two ranks of each link; ranks that share none may differ.
std::optional<std::string> differing_history(const std::vector<std::string>& texts,
                                             const Mesh& mesh);

}  // namespace yoke
