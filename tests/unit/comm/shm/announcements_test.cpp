#include "core/comm/shm/announcements.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>

namespace yoke {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::minutes kNever{5};  // longer than any wait that succeeds

// A queue with its readers' counters, in one segment.
struct Queue {
  explicit Queue(int num_readers)
      : segment(uint64_t{1} << 30), readers(std::make_shared<QueueReaders>()) {
    const uint64_t place =
        segment.allocate(sizeof(QueueHead) + num_readers * sizeof(SharedCounter));
    std::memset(segment.at(place), 0, sizeof(QueueHead) + num_readers * sizeof(SharedCounter));
    head = reinterpret_cast<QueueHead*>(segment.at(place));
    taken = reinterpret_cast<SharedCounter*>(head + 1);
    writer = std::make_unique<QueueWriter>(segment, *head, readers);
    for (int r = 0; r < num_readers; ++r) readers->add(taken[r]);
  }
  void post(uint64_t number, const std::string& data) {
    Announcement item{{}, segment.allocate(data.size()), data.size()};
    item.signature.sequence = number;
    std::memcpy(segment.at(item.offset), data.data(), data.size());
    writer->post(item);
  }

  Segment segment;
  std::shared_ptr<QueueReaders> readers;
  QueueHead* head;
  SharedCounter* taken;
  std::unique_ptr<QueueWriter> writer;
};

std::string data_of(uint64_t number) {
  return std::string(1 + number % 300, static_cast<char>('a' + number % 26));
}

// Reads `count` items; returns the number of those that are not what the writer posted.
int read_wrongly(Queue& queue, int reader, uint64_t count) {
  QueueReader items(queue.segment, *queue.head);
  int wrong = 0;
  for (uint64_t i = 0; i < count; ++i) {
    if (!items.await(i, 100, Clock::now() + kNever)) return -1;
    const Announcement& item = items.front();
    const std::string expected = data_of(i);
    if (!items.has_item() || item.signature.sequence != i || item.bytes != expected.size() ||
        std::memcmp(queue.segment.at(item.offset), expected.data(), item.bytes) != 0)
      ++wrong;
    items.pop();
    advance(queue.taken[reader]);
  }
  return wrong;
}

TEST(Queue, KeepsItsOrderAndItsDataAndUsesMemoryAgain) {
  constexpr uint64_t kCount = 20'000;  // hundreds of chunks
  Queue queue(3);
  int wrong[3] = {-2, -2, -2};
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r)
    threads.emplace_back([&, r] { wrong[r] = read_wrongly(queue, r, kCount); });
  for (uint64_t i = 0; i < kCount; ++i) {
    // The writer stays near the readers, so that the memory that it needs is bounded.
    for (int r = 0; i > 500 && r < 3; ++r)
      wait_past(queue.taken[r], static_cast<uint32_t>(i - 500), 0, Clock::now() + kNever);
    queue.post(i, data_of(i));
  }
  for (std::thread& t : threads) t.join();
  for (const int w : wrong) EXPECT_EQ(w, 0);
  struct stat file {};
  ::fstat(queue.segment.address().fd, &file);
  EXPECT_LE(file.st_size, 1 << 20);
}

TEST(Queue, HasNoLimit) {
  Queue queue(1);
  for (uint64_t i = 0; i < 5000; ++i) queue.post(i, data_of(i));
  EXPECT_EQ(read_wrongly(queue, 0, 5000), 0);
}

TEST(Queue, IsReadByAnotherProcess) {
  Queue queue(1);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(read_wrongly(queue, 0, 1000) == 0 ? 0 : 1);
  for (uint64_t i = 0; i < 1000; ++i) queue.post(i, data_of(i));
  EXPECT_TRUE(wait_past(queue.taken[0], 999, 0, Clock::now() + kNever));
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(WaitPast, EndsAtItsDeadline) {
  Queue queue(1);
  EXPECT_FALSE(wait_past(queue.head->posted, 0, 10, Clock::now() + std::chrono::milliseconds(5)));
  queue.post(0, "x");
  EXPECT_TRUE(wait_past(queue.head->posted, 0, 0, Clock::now()));
  EXPECT_FALSE(wait_past(queue.head->posted, 1, 0, Clock::now()));
  EXPECT_EQ(queue.head->posted.sleepers, 0u);
}

TEST(SharedCounter, WrapsAround) {
  SharedCounter counter{};
  counter.value = 0xffffffff;
  EXPECT_TRUE(is_past(counter, 0xfffffffe));
  EXPECT_FALSE(is_past(counter, 0xffffffff));
  advance(counter);
  EXPECT_TRUE(is_past(counter, 0xffffffff));
  EXPECT_FALSE(is_past(counter, 0));
}

}  // namespace
}  // namespace yoke
