#include "core/base/shared_segment.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>
#include <cstring>
#include <random>
#include <vector>

#include "yoke/error.hpp"

namespace yoke {
namespace {

constexpr uint64_t kRoom = uint64_t{1} << 30;

// A reader that has finished with all items below a bound.
struct OneReader final : Readers {
  bool finished(uint32_t index) const override { return index < bound; }
  uint32_t bound = 0;
};

uint64_t file_bytes(const Segment& segment) {
  struct stat file {};
  ::fstat(segment.address().fd, &file);
  return static_cast<uint64_t>(file.st_size);
}

std::string refusal(const std::function<void()>& f, int32_t code) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

// Runs f in a process of its own, which can change its limits, and returns its exit code.
int in_child(const std::function<int()>& f) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(f());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Blocks of random sizes keep what was written to them until they are released, in random order,
// and their memory is used again.
TEST(Segment, KeepsBlocksApartAndUsesTheirMemoryAgain) {
  Segment segment(kRoom);
  std::mt19937 random(1);
  struct Block {
    uint64_t offset, bytes;
    std::shared_ptr<OneReader> reader;
  };
  std::vector<Block> blocks;
  const auto mark = [](const Block& b) { return static_cast<char>(b.offset / 64 * 7 + b.bytes); };
  for (int i = 0; i < 5000; ++i) {
    if (blocks.size() < 40) {
      const uint64_t bytes = random() % 3 == 0 ? random() % 200'000 : random() % 300;
      Block block{segment.allocate(bytes), bytes, std::make_shared<OneReader>()};
      ASSERT_GE(block.offset, 4096u);
      ASSERT_EQ(block.offset % 64, 0u);
      std::memset(segment.at(block.offset), mark(block), bytes);
      blocks.push_back(block);
    }
    if (random() % 2 == 0 || blocks.size() == 40) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      const Block block = blocks.back();
      blocks.pop_back();
      const std::string expected(block.bytes, mark(block));
      ASSERT_EQ(std::memcmp(segment.at(block.offset), expected.data(), block.bytes), 0) << i;
      segment.release_after(block.offset, block.reader, 0);
      block.reader->bound = 1;
    }
  }
  EXPECT_LT(file_bytes(segment), uint64_t{40} << 20) << "40 blocks have at most 8 MB";
}

TEST(Segment, KeepsABlockUntilItsReadersHaveFinished) {
  Segment segment(kRoom);
  const auto reader = std::make_shared<OneReader>();
  const uint64_t first = segment.allocate(100'000);
  segment.release_after(first, reader, 3);
  reader->bound = 3;
  const uint64_t second = segment.allocate(100'000);
  EXPECT_NE(second, first);
  reader->bound = 4;
  EXPECT_EQ(segment.allocate(100'000), first);
}

TEST(Segment, JoinsFreeBlocks) {
  Segment segment(kRoom);
  const auto reader = std::make_shared<OneReader>();
  reader->bound = 1;
  uint64_t blocks[3];
  for (uint64_t& block : blocks) block = segment.allocate(300'000);
  const uint64_t behind = segment.allocate(100'000);  // keeps the rest of the file apart
  for (const int k : {0, 2, 1}) segment.release_after(blocks[k], reader, 0);
  EXPECT_EQ(segment.allocate(900'000), blocks[0]);
  EXPECT_GT(behind, blocks[2]);
}

// The child maps the segment before the parent lets it grow.
TEST(Segment, IsReadByAnotherProcessWhileItGrows) {
  Segment segment(kRoom);
  int ready[2], place[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(place), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const MappedSegment mapped(segment.address());
    uint64_t offset = 0;
    if (::write(ready[1], "x", 1) != 1 || ::read(place[0], &offset, sizeof offset) != 8) ::_exit(2);
    ::_exit(std::strcmp(mapped.at(offset), "behind the old end") == 0 ? 0 : 1);
  }
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  const uint64_t offset = segment.allocate(64 << 20) + (63 << 20);
  std::strcpy(segment.at(offset), "behind the old end");
  ASSERT_EQ(::write(place[1], &offset, sizeof offset), 8);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(Segment, IsPrivateToItsUser) {
  const Segment segment(kRoom);
  struct stat file {};
  ::fstat(segment.address().fd, &file);
  EXPECT_EQ(file.st_mode & 0777, 0600u);
}

TEST(MappedSegment, RefusesWhatIsNotTheSegment) {
  const Segment segment(kRoom);
  SegmentAddress other = segment.address();
  ++other.number;
  EXPECT_NE(refusal([&] { MappedSegment{other}; }, YOKE_FAILED_PRECONDITION).find("pid namespaces"),
            std::string::npos);
  SegmentAddress gone = segment.address();
  gone.process = 1 << 30;  // above the largest process number
  EXPECT_NE(refusal([&] { MappedSegment{gone}; }, YOKE_FAILED_PRECONDITION).find("No such file"),
            std::string::npos);
}

// The file usually grows by a quarter, which is more than is left here.
TEST(Segment, GrowsByLessIfThereIsLittleMemory) {
  constexpr uint64_t kMiB = 1 << 20;
  Segment segment(16 * kMiB);
  segment.allocate(14 * kMiB);
  EXPECT_EQ(file_bytes(segment), 15 * kMiB);
  segment.allocate(kMiB);
  EXPECT_EQ(file_bytes(segment), 16 * kMiB);
}

TEST(Segment, SaysWhatIsMissingIfThereIsNoMemory) {
  EXPECT_NE(refusal(
                [] {
                  Segment small(uint64_t{2} << 20);
                  small.allocate(uint64_t{8} << 20);
                },
                YOKE_RESOURCE_EXHAUSTED)
                .find("at most 2.0 MiB are allowed"),
            std::string::npos);
  const auto with_limit = [](rlim_t bytes, const std::function<void()>& f) {
    return in_child([&] {
      const rlimit limit{bytes, bytes};
      ::setrlimit(RLIMIT_FSIZE, &limit);
      try {
        f();
      } catch (const Error& e) {
        const bool named = std::string(e.what()).find("ulimit -f") != std::string::npos;
        return named ? e.code() : 100;
      }
      return 101;
    });
  };
  EXPECT_EQ(with_limit(4096, [] { Segment segment(kRoom); }), YOKE_FAILED_PRECONDITION);
  EXPECT_EQ(with_limit(4 << 20,
                       [] {
                         Segment segment(kRoom);
                         segment.allocate(8 << 20);
                       }),
            YOKE_RESOURCE_EXHAUSTED);
}

}  // namespace
}  // namespace yoke
