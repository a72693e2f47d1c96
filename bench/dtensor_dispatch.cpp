// Measures the overhead of operators on distributed tensors, relative to the same operators on
// local tensors: 4 x 4 fp32, one rank, Replicate. Prints one line for each operator: name, grad or
// nograd, and the medians of the local and the distributed call in ns.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cstdio>
#include <functional>

#include "bench/interleaved.hpp"
#include "sdk/mesh/dtensor/dtensor.hpp"

namespace {

using namespace yoke::bench;
using yoke::mesh::Mesh;

constexpr int kRounds = 301;
constexpr int64_t kCalls = 200;

struct Operator {
  const char* name;
  std::function<at::Tensor(const at::Tensor& a, const at::Tensor& b)> call;
};

const Operator kOperators[] = {
    {"add", [](const at::Tensor& a, const at::Tensor& b) { return at::add(a, b); }},
    {"mul", [](const at::Tensor& a, const at::Tensor& b) { return at::mul(a, b); }},
    {"mm", [](const at::Tensor& a, const at::Tensor& b) { return at::mm(a, b); }},
    {"addmm", [](const at::Tensor& a, const at::Tensor& b) { return at::addmm(a, a, b); }},
    {"t", [](const at::Tensor& a, const at::Tensor&) { return a.t(); }},
    {"view", [](const at::Tensor& a, const at::Tensor&) { return a.view({16}); }},
    {"detach", [](const at::Tensor& a, const at::Tensor&) { return a.detach(); }},
    {"silu", [](const at::Tensor& a, const at::Tensor&) { return at::silu(a); }},
};

void measure(const Operator& op, bool grad, Mesh& mesh) {
  const at::Tensor a = at::randn({4, 4}), b = at::randn({4, 4});
  const at::Tensor da = yoke::mesh::distribute_tensor(a, mesh, {}),
                   db = yoke::mesh::distribute_tensor(b, mesh, {});
  for (const at::Tensor& t : {a, b, da, db}) t.set_requires_grad(grad);
  const at::AutoGradMode mode(grad);
  Samples local{op.name, {}}, distributed{op.name, {}};
  for (int round = 0; round < kRounds; ++round) {
    local.seconds.push_back(time_calls(kCalls, [&] { op.call(a, b); }));
    distributed.seconds.push_back(time_calls(kCalls, [&] { op.call(da, db); }));
  }
  std::printf("%s %s %.1f %.1f\n",
              op.name,
              grad ? "grad" : "nograd",
              1e9 * spread(local.seconds).median,
              1e9 * spread(distributed.seconds).median);
}

}  // namespace

int main() {
  at::set_num_threads(1);
  Mesh::Axis alone;
  alone.name = "tp";
  Mesh mesh({alone});
  for (const bool grad : {false, true}) {
    for (const Operator& op : kOperators) measure(op, grad, mesh);
  }
}
