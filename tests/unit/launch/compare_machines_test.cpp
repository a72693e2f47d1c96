#include "core/launch/compare_machines.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Machines of two ranks each, on which everything is right.
MachineReports good(int machines) {
  MachineReports r;
  r.master_addr = "node0";
  for (int m = 0; m < machines; ++m) {
    for (int local = 0; local < 2; ++local) {
      MachineFacts f;
      f.rank = 2 * m + local;
      f.host = concat("node", m);
      f.boot = concat("boot", m);
      f.version = "1.0";
      f.programs = {{"yoke", "10 bytes"}};
      f.address = concat("10.0.0.", m);
      f.interface = "eth0";
      f.open_files = 65536;
      f.cores = {0, 1};
      r.facts.push_back(f);
    }
    r.clock_ahead.push_back(0.001 * m);
    for (int to = 0; to < machines; ++to) {
      if (to != m) r.pairs.push_back({m, to, "", 1e-4, 1e9});
    }
  }
  return r;
}

std::vector<MachineFinding> bad_ones(const MachineReports& reports) {
  std::vector<MachineFinding> found;
  for (const MachineFinding& f : compare_machines(reports)) {
    if (f.status != MachineFinding::kOk) found.push_back(f);
  }
  return found;
}

// Expects one finding that is not ok.
MachineFinding only(const MachineReports& reports) {
  const std::vector<MachineFinding> found = bad_ones(reports);
  EXPECT_EQ(found.size(), 1u);
  return found.empty() ? MachineFinding() : found[0];
}

TEST(CompareMachines, FindsNothingIfAllIsWell) {
  for (const int machines : {1, 2, 5}) EXPECT_TRUE(bad_ones(good(machines)).empty()) << machines;
}

TEST(CompareMachines, NamesTheRanksAndMachinesThatDiffer) {
  MachineReports r = good(3);
  for (const int rank : {2, 3, 5}) r.facts[rank].version = "2.0";
  const MachineFinding f = only(r);
  EXPECT_EQ(f.status, MachineFinding::kProblem);
  EXPECT_EQ(f.found,
            "1.0 on ranks 0, 1 (node0), rank 4 (node2); 2.0 on ranks 2, 3 (node1), rank 5 (node2)");
}

TEST(CompareMachines, NamesAProgramThatDiffersOrIsMissing) {
  MachineReports r = good(2);
  r.facts[3].programs["yoke"] = "11 bytes";
  r.facts[0].programs["backend ptd"] = "5 bytes";
  EXPECT_THAT(
      only(r).found,
      AllOf(HasSubstr("yoke differs: 10 bytes on ranks 0, 1 (node0), rank 2 (node1); 11 bytes"),
            HasSubstr("backend ptd differs: 5 bytes on rank 0 (node0); none on")));
}

TEST(CompareMachines, WarnsOfClocksThatDiffer) {
  MachineReports r = good(3);
  r.clock_ahead[2] = -2.5;
  const MachineFinding f = only(r);
  EXPECT_EQ(f.status, MachineFinding::kWarning);
  EXPECT_THAT(f.found, HasSubstr("node2 is 2.5 s behind node0"));
}

TEST(CompareMachines, WarnsOfASilentNameServerAndFewOpenFiles) {
  MachineReports r = good(2);
  r.facts[2].lookup_seconds = 5;
  EXPECT_THAT(only(r).found, HasSubstr("takes up to 5 s on rank 2 (node1)"));
  r = good(2);
  r.facts[1].open_files = 39;
  EXPECT_EQ(only(r).found, "at most 39 on rank 1 (node0); 4 ranks need about 40");
}

TEST(CompareMachines, AcceptsNamesThatAreLoopbackButNoSuchAddresses) {
  MachineReports r = good(2);
  r.facts[2].own_name_address = r.facts[3].own_name_address = "127.0.1.1";
  EXPECT_TRUE(bad_ones(r).empty());
  r.facts[2].address = r.facts[3].address = "127.0.0.1";
  EXPECT_EQ(only(r).status, MachineFinding::kProblem);
  r = good(1);
  r.facts[0].address = r.facts[1].address = "127.0.0.1";
  EXPECT_TRUE(bad_ones(r).empty());
}

TEST(CompareMachines, CountsTheThreadsOfAllRanksOfAMachine) {
  MachineReports r = good(2);
  r.facts[1].threads = 2;
  r.facts[1].threads_given = true;
  EXPECT_THAT(only(r).found, HasSubstr("node0: 3 threads of 2 ranks on 2 cores"));
  r = good(2);
  for (MachineFacts& f : r.facts) f.cores = {4 * f.rank, 4 * f.rank + 1};
  EXPECT_THAT(only(r).fix, HasSubstr("export OMP_NUM_THREADS="));
}

TEST(CompareMachines, TellsMachinesOfOneNameApart) {
  MachineReports r = good(2);
  for (MachineFacts& f : r.facts) f.host = "localhost";
  const auto machines = machines_of(r.facts);
  ASSERT_EQ(machines.size(), 2u);
  EXPECT_EQ(machines[1].name, "localhost, 10.0.0.1");
  EXPECT_EQ(machines[1].ranks, (std::vector<int32_t>{2, 3}));
}

TEST(CheckPairs, NamesTheDirectionThatFails) {
  MachineReports r = good(2);
  r.pairs[0] = {0, 1, "no answer"};
  const MachineFinding f = only(r);
  EXPECT_EQ(f.status, MachineFinding::kProblem);
  EXPECT_THAT(f.found,
              AllOf(HasSubstr("node0 cannot reach node1 at 10.0.0.1: no answer"),
                    HasSubstr("node1 reaches node0"),
                    HasSubstr("firewall")));
}

TEST(CheckPairs, WarnsOfASlowPair) {
  MachineReports r = good(2);
  r.pairs[1].bytes_per_second = 1e6;
  EXPECT_THAT(only(r).found, HasSubstr("node1 to node0: 0.10 ms there and back, 8 Mbit/s"));
  r = good(6);
  r.pairs[7].bytes_per_second = 1e8;
  EXPECT_THAT(only(r).found, HasSubstr("the median of all pairs is 8 Gbit/s"));
}

TEST(MachineFacts, SurviveTheirMessage) {
  MachineFacts f = good(1).facts[1];
  f.secret_fault = "wrong";
  f.threads_given = true;
  const MachineFacts same = unpack_facts(pack_facts(f));
  EXPECT_EQ(pack_facts(same), pack_facts(f));
  EXPECT_EQ(same.rank, 1);
  EXPECT_EQ(same.programs, f.programs);
  for (const char* damaged : {"", "{}", "[1]", "{\"rank\": \"x\"}"})
    EXPECT_THROW(unpack_facts(damaged), Error);
}

}  // namespace
}  // namespace yoke
