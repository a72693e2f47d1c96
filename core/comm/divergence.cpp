// Histories are first compared by hash and count, which is cheap; collisions are negligible. Each
// rank also sends its latest signatures, so that the first difference can be named. If that
// difference is older than these signatures, the message names only the two ranks.
#include "core/comm/divergence.hpp"

#include <algorithm>
#include <cstring>
#include <map>

#include "yoke/text.hpp"

namespace yoke {
namespace {

// The report of one rank about one of its communicators or links.
struct Report {
  uint32_t axes = 0;
  Link link;
  uint64_t count = 0;
  uint64_t hash = 0;
  std::vector<Signature> latest;
};

template <class T>
std::string bytes_of(const T* data, size_t count) {
  return {reinterpret_cast<const char*>(data), count * sizeof(T)};
}

template <class T>
T value_of(const std::string& bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

// Inverse of pack_histories(): six fields for each history.
std::map<std::string, Report> unpack(const std::string& text) {
  std::map<std::string, Report> reports;
  const auto fields = split_fields(text);
  for (size_t i = 0; i + 5 < fields.size(); i += 6) {
    Report& t = reports[fields[i]];
    t.axes = value_of<uint32_t>(fields[i + 1]);
    t.count = value_of<uint64_t>(fields[i + 2]);
    t.hash = value_of<uint64_t>(fields[i + 3]);
    t.link = value_of<Link>(fields[i + 4]);
    t.latest.resize(fields[i + 5].size() / sizeof(Signature));
    if (!t.latest.empty()) {
      std::memcpy(static_cast<void*>(t.latest.data()), fields[i + 5].data(), fields[i + 5].size());
    }
  }
  return reports;
}

std::string rank_text(int32_t rank) {
  return concat("rank ", rank);
}

// Describes the first difference between reports a and b of ranks i and j, whose hashes or counts
// differ.
std::string first_difference(const Report& a, const Report& b, int32_t i, int32_t j) {
  const char* what = a.link.from < 0 && b.link.from < 0 ? " collectives" : " messages";
  for (const Signature& s : a.latest) {
    const auto same = std::find_if(b.latest.begin(), b.latest.end(), [&](const Signature& t) {
      return t.sequence == s.sequence;
    });
    if (same != b.latest.end() && !match(*same, s)) return *mismatch({s, *same}, {i, j});
  }
  if (a.count != b.count) {
    const bool a_longer = a.count > b.count;
    const Report& longer = a_longer ? a : b;
    const uint64_t next = std::min(a.count, b.count) + 1;
    const auto extra = std::find_if(longer.latest.begin(),
                                    longer.latest.end(),
                                    [&](const Signature& t) { return t.sequence == next; });
    std::string text =
        concat(rank_text(i), " has issued ", a.count, what, ", ", rank_text(j), " ", b.count);
    if (extra != longer.latest.end())
      text += concat("; ", rank_text(a_longer ? i : j), " continued with ", describe(*extra));
    return text;
  }
  return concat(
      rank_text(i), " and ", rank_text(j), " differ before the last ", History::kKept, what);
}

}  // namespace

// Each field is its length in eight bytes and its content, so that any bytes may occur in it.
std::string join_fields(const std::vector<std::string>& fields) {
  std::string joined;
  for (const std::string& field : fields) {
    const uint64_t size = field.size();
    joined += bytes_of(&size, 1) + field;
  }
  return joined;
}

std::vector<std::string> split_fields(const std::string& joined) {
  std::vector<std::string> fields;
  for (size_t at = 0; at + sizeof(uint64_t) <= joined.size();) {
    const auto size = value_of<uint64_t>(joined.substr(at, sizeof(uint64_t)));
    fields.push_back(joined.substr(at + sizeof size, size));
    at += sizeof size + size;
  }
  return fields;
}

std::optional<std::string> differing_value(const std::vector<std::string>& texts) {
  const auto first = split_fields(texts[0]);
  for (size_t r = 1; r < texts.size(); ++r) {
    const auto other = split_fields(texts[r]);
    const std::string rank = rank_text(static_cast<int32_t>(r));
    if (other[0] != first[0]) {
      return concat("rank 0 wants to agree on ",
                    first[0],
                    ", but ",
                    rank,
                    " on ",
                    other[0],
                    ": the ranks do not run the same program");
    }
    if (other[1] != first[1]) {
      return concat("the ranks do not agree on ",
                    first[0],
                    ": rank 0 has '",
                    first[1],
                    "', ",
                    rank,
                    " has '",
                    other[1],
                    "'");
    }
  }
  return std::nullopt;
}

std::string link_name(const std::string& communicator, const Link& link) {
  return concat(communicator, " from ", rank_text(link.from), " to ", rank_text(link.to));
}

std::string pack_histories(const std::vector<NamedHistory>& histories) {
  std::vector<std::string> fields;
  for (const NamedHistory& h : histories) {
    const uint64_t count = h.history.count(), hash = h.history.hash();
    const auto latest = h.history.latest();
    fields.insert(fields.end(),
                  {h.name,
                   bytes_of(&h.axes, 1),
                   bytes_of(&count, 1),
                   bytes_of(&hash, 1),
                   bytes_of(&h.link, 1),
                   bytes_of(latest.data(), latest.size())});
  }
  return join_fields(fields);
}

std::optional<std::string> differing_history(const std::vector<std::string>& texts,
                                             const Mesh& mesh) {
  std::vector<std::map<std::string, Report>> reports;
  for (const std::string& text : texts) reports.push_back(unpack(text));
  for (int32_t rank = 0; rank < mesh.size(); ++rank) {
    for (const auto& [name, mine] : reports[rank]) {
      const bool messages = mine.link.from >= 0;
      // Comparing every member with the first one compares all with each other. The first member
      // has this communicator too, because all members create it together. A link has two ranks, of
      // which one may have issued nothing.
      const int32_t first = messages ? mine.link.from : mesh.peers(rank, mine.axes).front();
      const int32_t other = messages && first == rank ? mine.link.to : rank;
      const Report &a = reports[first][name], &b = reports[other][name];
      if (a.hash == b.hash && a.count == b.count) continue;
      return concat(messages ? "the messages of " : "the collectives of ",
                    name,
                    " differ: ",
                    first_difference(a, b, first, other));
    }
  }
  return std::nullopt;
}

}  // namespace yoke
