// Which files a function opens.
#pragma once

#include <gtest/gtest.h>
#include <sys/inotify.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "core/base/file_descriptor.hpp"

namespace yoke::testing {

// Returns the names of the files of the folder that `f` opens, sorted; a file that it
// opens twice is there twice.
inline std::vector<std::string> opened_in(const std::string& folder,
                                          const std::function<void()>& f) {
  const FileDescriptor watch(::inotify_init1(IN_NONBLOCK));
  EXPECT_GE(::inotify_add_watch(watch.get(), folder.c_str(), IN_OPEN), 0);
  f();
  std::vector<std::string> names;
  alignas(inotify_event) std::array<char, 1 << 16> events{};
  const ssize_t bytes = ::read(watch.get(), events.data(), events.size());
  for (ssize_t at = 0; at < bytes;) {
    inotify_event event{};
    std::memcpy(&event, events.data() + at, sizeof event);
    if (event.len > 0) names.emplace_back(events.data() + at + sizeof event);
    at += static_cast<ssize_t>(sizeof event + event.len);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace yoke::testing
