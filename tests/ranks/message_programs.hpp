// Tests of messages between two ranks, for every transport, like those of comm_programs.hpp.
#pragma once

#include <string>
#include <vector>

#include "tests/ranks/comm_programs.hpp"

namespace yoke::test {

inline Communicator& stage_comm(World& world) {
  world.set_mesh(Mesh({world.size(), 1, 1, 1, 1}));
  return world.comm(YOKE_AXIS_BIT(YOKE_PP), "outputs");
}

// A message that one rank sends or expects.
struct MessageDraft {
  at::Tensor tensor;
  int tag = 0;
};

// What goes wrong between rank 0, which sends, and rank 1, and what the error says about it.
struct MessageFault {
  const char* what;
  std::vector<MessageDraft> sent, received;
  const char* text;
  const char* full_text;  // text if comm.check = full; NULL = only the check of the step sees it
};

inline at::Tensor ints(int64_t n) {
  return at::ones({n}, at::kInt);
}

// All tensors of a pair have the same number of bytes wherever a transport would not survive
// anything else without comm.check = full.
inline std::vector<MessageFault> message_faults() {
  return {{"dropped",
           {{floats(4)}},
           {{floats(4)}, {floats(4)}},
           "rank 0 has issued 1 messages, rank 1 2; rank 1 continued with recv (tag 0) of 4 x fp32 "
           "as message 2",
           nullptr},
          {"doubled",
           {{floats(4)}, {floats(4)}},
           {{floats(4)}},
           "rank 0 has issued 2 messages, rank 1 1; rank 0 continued with send (tag 0) of 4 x fp32 "
           "as message 2",
           nullptr},
          {"swapped",
           {{floats(4), 1}, {floats(4), 2}},
           {{floats(4), 2}, {floats(4), 1}},
           "rank 0 issues send (tag 1) of 4 x fp32 as message 1, but rank 1 issues recv (tag 2) of "
           "4 x fp32 as message 1",
           "rank 0 issues send (tag 1) of 4 x fp32 as message 1, but rank 1 issues recv (tag 2) of "
           "4 x fp32 as message 1"}};
}

// Faults that only comm.check = full names: a transport may end the process, or never return.
inline std::vector<MessageFault> grave_message_faults() {
  return {{"size",
           {{floats(12)}},
           {{floats(7)}},
           nullptr,
           "rank 0 issues send (tag 0) of 12 x fp32 as message 1, but rank 1 issues recv (tag 0) "
           "of 7 x fp32 as message 1"},
          {"dtype",
           {{floats(4)}},
           {{ints(4)}},
           nullptr,
           "rank 0 issues send (tag 0) of 4 x fp32 as message 1, but rank 1 issues recv (tag 0) of "
           "4 x int32 as message 1"},
          {"first of two dropped",
           {{floats(5)}},
           {{floats(4)}, {floats(5)}},
           nullptr,
           "rank 0 issues send (tag 0) of 5 x fp32 as message 1, but rank 1 issues recv (tag 0) of "
           "4 x fp32 as message 1"},
          {"doubled",
           {{floats(4)}, {floats(4)}, {floats(5)}},
           {{floats(4)}, {floats(5)}},
           nullptr,
           "rank 0 issues send (tag 0) of 4 x fp32 as message 2, but rank 1 issues recv (tag 0) of "
           "5 x fp32 as message 2"}};
}

// Issues the messages of the fault. Rank 1 waits for as many as rank 0 sends.
inline std::vector<c10::intrusive_ptr<c10d::Work>> issue(Communicator& comm,
                                                         const MessageFault& fault) {
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  if (comm.rank() > 1) return works;
  for (const MessageDraft& m : comm.rank() == 0 ? fault.sent : fault.received) {
    std::vector<at::Tensor> list{m.tensor.clone()};
    works.push_back(comm.rank() == 0 ? comm.process_group()->send(list, 1, m.tag)
                                     : comm.process_group()->recv(list, 0, m.tag));
  }
  for (size_t i = 0; i < std::min(fault.sent.size(), fault.received.size()); ++i) works[i]->wait();
  return works;
}

// Every rank gets the error when the ranks next compare what they have issued.
inline void differ_in_messages(World& world, const MessageFault& fault) {
  Communicator& comm = stage_comm(world);
  const auto numbers = world.check_collectives({10 + world.rank()});
  ASSERT_EQ(numbers.size(), static_cast<size_t>(world.size()));
  EXPECT_EQ(numbers.back(), std::vector<int64_t>{9 + world.size()});
  const auto works = issue(comm, fault);
  const Thrown thrown = thrown_by([&] { world.check_collectives(); });
  EXPECT_EQ(thrown.code, YOKE_FAILED_PRECONDITION) << fault.what;
  EXPECT_EQ(thrown.text,
            std::string("the messages of pp (outputs) from rank 0 to rank 1 differ: ") + fault.text)
      << fault.what;
}

// Rank 0 sends to rank 1 what rank 2 expects, so the ranks send and expect equally much.
inline void send_to_another_rank(World& world) {
  c10d::ProcessGroup* group = stage_comm(world).process_group();
  std::vector<at::Tensor> list{floats(4)};
  c10::intrusive_ptr<c10d::Work> work;
  if (world.rank() == 0) work = group->send(list, 1, 0);
  if (world.rank() == 2) work = group->recv(list, 0, 0);
  EXPECT_EQ(thrown_by([&] { world.check_collectives(); }).text,
            "the messages of pp (outputs) from rank 0 to rank 1 differ: rank 0 has issued 1 "
            "messages, rank 1 0; rank 0 continued with send (tag 0) of 4 x fp32 as message 1");
}

// The receiver gets the error before the transport does anything. sender_waits: whether a send
// waits for its receiver, so that the sender notices that the receiver has failed. A sender that
// does not wait stays until the receiver has left: if it left first, the receiver could get the
// loss of its peer instead of the difference.
inline void compare_messages(World& world, const MessageFault& fault, bool sender_waits = true) {
  Communicator& comm = stage_comm(world);
  const std::string text = thrown_by([&] { issue(comm, fault); }).text;
  // The sender may notice it while it waits, or already when it issues its next message.
  if (world.rank() == 0 && sender_waits) {
    EXPECT_TRUE(text.starts_with("a peer of pp was lost") ||
                text == "rank 1 ended before the others")
        << text;
  }
  if (world.rank() == 0) thrown_by([&] { world.shutdown(); });
  if (world.rank() != 1) return;
  EXPECT_EQ(
      text,
      std::string("the messages of pp (outputs) from rank 0 to rank 1 differ: ") + fault.full_text)
      << fault.what;
}

// A message that differs is reported however often it is waited for, and the ones behind it are not
// received in its place.
inline void wait_again_after_a_difference(World& world) {
  Communicator& comm = stage_comm(world);
  c10d::ProcessGroup* group = comm.process_group();
  std::vector<at::Tensor> second{floats(4)};
  if (world.rank() == 0) {
    std::vector<at::Tensor> first{floats(12)};
    // Rank 1 ends when it has compared the first message.
    thrown_by([&] {
      const auto one = group->send(first, 1, 0), two = group->send(second, 1, 0);
      one->wait();
      two->wait();
    });
    thrown_by([&] { world.shutdown(); });
    return;
  }
  std::vector<at::Tensor> first{floats(7)};
  const auto one = group->recv(first, 0, 0), two = group->recv(second, 0, 0);
  for (const auto& work : {one, one, two}) {
    const Thrown thrown = thrown_by([&] { work->wait(); });
    EXPECT_EQ(thrown.code, YOKE_FAILED_PRECONDITION) << thrown.text;
    EXPECT_NE(thrown.text.find("of 12 x fp32 as message 1"), std::string::npos) << thrown.text;
  }
}

// Messages in both directions, several in flight, received in another order than they are sent.
inline void exchange_messages(World& world) {
  Communicator& comm = stage_comm(world);
  c10d::ProcessGroup* group = comm.process_group();
  const int n = world.size(), rank = world.rank();
  const int next = (rank + 1) % n, previous = (rank + n - 1) % n;
  for (int round = 0; round < 3; ++round) {
    std::vector<std::vector<at::Tensor>> in, out;
    std::vector<c10::intrusive_ptr<c10d::Work>> sends, receives;
    for (int i = 0; i < 4; ++i) {
      in.push_back({at::empty({3 + i})});
      receives.push_back(group->recv(in.back(), previous, i % 2));
    }
    for (int i = 0; i < 4; ++i) {
      out.push_back({at::full({3 + i}, static_cast<float>(10 * rank + i))});
      sends.push_back(group->send(out.back(), next, i % 2));
    }
    for (int i = 3; i >= 0; --i) {
      receives[i]->wait();
      EXPECT_EQ(in[i][0][2].item<float>(), static_cast<float>(10 * previous + i));
    }
    for (const auto& send : sends) send->wait();
    EXPECT_EQ(world.check_collectives({rank}).back(), std::vector<int64_t>{n - 1});
  }
  EXPECT_EQ(world.counts().at("pp").calls, 24);
  EXPECT_EQ(
      world.latest_collectives()
          .at("pp (outputs) from rank " + std::to_string(rank) + " to rank " + std::to_string(next))
          .back(),
      "send (tag 1) of 6 x fp32 as message 12");
}

}  // namespace yoke::test
