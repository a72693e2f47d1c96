// The contract compiles in every dialect that a backend author may use, without a warning and
// without padding in any struct. The C and C++ helper headers and the example in C also compile
// without a warning.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <ostream>
#include <regex>
#include <string>

namespace {

struct Dialect {
  const char* name;
  const char* compiler;  // path; "" or "...-NOTFOUND" = not on this machine
  const char* flags;
};
void PrintTo(const Dialect& d, std::ostream* out) {
  *out << d.name;
}

struct Compiled {
  int status;
  std::string output;
};

// Compiles a file without writing an object file.
Compiled compile(const Dialect& d, const std::string& flags, const std::string& file) {
  const std::string command = std::string(d.compiler) + " " + d.flags + " " + flags +
                              " -Werror -fsyntax-only -I" YOKE_SDK "/include " + file + " 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return {-1, "popen failed: " + command};
  std::string output = command + "\n";
  char part[512];
  while (fgets(part, sizeof part, pipe) != nullptr) output += part;
  return {pclose(pipe), output};
}

// A source file in the temporary folder of the test, which the destructor removes.
class Source {
 public:
  explicit Source(const std::string& text) {
    std::string name = ::testing::TempDir() + "yoke_header_XXXXXX";
    close_after(mkstemp(name.data()));
    path_ = name;
    std::ofstream(path_) << text << "\n";
  }
  ~Source() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  static void close_after(int fd) {
    if (FILE* f = fdopen(fd, "w")) fclose(f);
  }
  std::string path_;
};

bool present(const Dialect& d) {
  const std::string compiler = d.compiler;
  return !compiler.empty() && compiler.find("NOTFOUND") == std::string::npos;
}

constexpr const char* kWarnings = "-Wall -Wextra -Wpedantic";
const std::string kContract = "#include \"yoke/parallel_backend.h\"\n";
const std::string kCLayer =
    "#include \"yoke/plan.h\"\n#include \"yoke/optimizer.h\"\n#include \"yoke/author.h\"\n#include "
    "\"yoke/flat.h\"\n";
// LibTorch's copy of DLPack. The contract has the same structs under other names.
const std::string kDlpack = "#include \"" YOKE_TORCH_INCLUDE "/ATen/dlpack.h\"\n";

// Returns declarations that use the size of every struct of the contract: clang lays out, and warns
// about, only structs that are used.
std::string use_every_struct() {
  std::ifstream header(YOKE_SDK "/include/yoke/parallel_backend.h");
  const std::regex end_of_struct("^\\} (\\w+);.*");
  std::string source, line;
  std::smatch match;
  while (std::getline(header, line)) {
    if (!std::regex_match(line, match, end_of_struct)) continue;
    source += "extern char size_of_" + match[1].str() + "[sizeof(" + match[1].str() + ")];\n";
  }
  return source;
}

class Header : public ::testing::TestWithParam<Dialect> {
 protected:
  void SetUp() override {
    if (!present(GetParam()))
      GTEST_SKIP() << "no compiler for " << GetParam().name << " on this machine";
  }
};
class ContractHeader : public Header {};
class CppLayer : public Header {};
class ExampleInC : public Header {};

TEST(ContractStructs, AreFoundInTheHeader) {
  EXPECT_NE(use_every_struct().find("sizeof(YokeStepArgs)"), std::string::npos);
  EXPECT_NE(use_every_struct().find("sizeof(ParallelBackend)"), std::string::npos);
}

TEST_P(ContractHeader, CompilesWithoutWarningOrPadding) {
  const Source source(kContract + use_every_struct());
  const Compiled result = compile(GetParam(), std::string(kWarnings) + " -Wpadded", source.path());
  EXPECT_EQ(result.status, 0) << result.output;
}

// Without this test, the previous one could pass merely because the compiler does not check.
TEST_P(ContractHeader, APaddedStructWouldBeNoticed) {
  const Source source(
      kContract +
      "struct Padded { int32_t a; int64_t b; };\nextern char size[sizeof(struct Padded)];");
  const Compiled result = compile(GetParam(), std::string(kWarnings) + " -Wpadded", source.path());
  EXPECT_NE(result.status, 0) << result.output;
}

TEST_P(ContractHeader, CompilesWithTheCLayer) {
  const Source source(kCLayer + kContract);
  const Compiled result = compile(GetParam(), kWarnings, source.path());
  EXPECT_EQ(result.status, 0) << result.output;
}

TEST_P(ContractHeader, MeetsDlpackInAnyOrder) {
  for (const std::string& text : {kDlpack + kContract, kContract + kDlpack}) {
    const Source source(text +
                        "extern char same[sizeof(DLTensor) == sizeof(YokeTensor) ? 1 : -1];\n");
    const Compiled result = compile(GetParam(), kWarnings, source.path());
    EXPECT_EQ(result.status, 0) << result.output;
  }
}

TEST_P(CppLayer, CompilesWithoutWarning) {
  const Source source(
      "#include \"yoke/comm.hpp\"\n#include \"yoke/flat.hpp\"\n#include \"yoke/inner.hpp\"\n"
      "#include \"yoke/nearest.hpp\"\n#include \"yoke/plan.hpp\"\n"
      "#include \"yoke/plan_report.hpp\"\n#include \"yoke/text.hpp\"\n");
  const Compiled result = compile(GetParam(), kWarnings, source.path());
  EXPECT_EQ(result.status, 0) << result.output;
}

// Kernels of backends call the arithmetic of one element.
TEST(Optimizer, CompilesInDeviceCode) {
  const Dialect nvcc{"cuda", YOKE_NVCC, "-x cu -std=c++17"};
  if (!present(nvcc)) GTEST_SKIP() << "no nvcc on this machine";
  const Source source(R"(#include "yoke/optimizer.h"
__global__ void update(YokeAdamW a, YokeSgd s, double* p, double* m, double* v) {
  const double scale = yoke_clip_scale(1, yoke_gradient_norm(p[0]));
  p[1] = yoke_adamw(&a, p[1], scale * p[0], m, v);
  p[1] = yoke_sgd(&s, p[1], p[0], m);
  p[1] = yoke_nesterov(&s, p[1], p[0], m);
})");
  const std::string command = std::string(nvcc.compiler) + " " + nvcc.flags +
                              " --ptx -Werror all-warnings -o /dev/null -I" YOKE_SDK "/include " +
                              source.path();
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

int64_t lines_of(const std::string& file) {
  std::ifstream in(file);
  return std::count(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>(), '\n');
}

// The limits count all lines, including comments and blank lines.
TEST(Examples, AreShort) {
  EXPECT_GT(lines_of(YOKE_SDK "/examples/serial.c"), 0);
  EXPECT_LE(lines_of(YOKE_SDK "/examples/serial.c"), 150);
  EXPECT_GT(lines_of(YOKE_SDK "/examples/replicas.cpp"), 0);
  EXPECT_LE(lines_of(YOKE_SDK "/examples/replicas.cpp"), 60);
}

TEST_P(ExampleInC, CompilesWithoutWarning) {
  for (const char* file : {"/examples/serial.c", "/examples/pipeline/pipeline.c"}) {
    const Compiled result = compile(GetParam(),
                                    std::string(kWarnings) + " -Wconversion -Wshadow",
                                    std::string(YOKE_SDK) + file);
    EXPECT_EQ(result.status, 0) << result.output;
  }
}

const auto kC = ::testing::Values(Dialect{"c99", YOKE_CC, "-x c -std=c99"},
                                  Dialect{"c11", YOKE_CC, "-x c -std=c11"},
                                  Dialect{"c17", YOKE_CC, "-x c -std=c17"},
                                  Dialect{"clang_c99", YOKE_CLANG, "-x c -std=c99"},
                                  Dialect{"clang_c11", YOKE_CLANG, "-x c -std=c11"},
                                  Dialect{"clang_c17", YOKE_CLANG, "-x c -std=c17"});
// Dialects of hosts and backends that are written in older C++ than ours.
const auto kOldCpp = ::testing::Values(Dialect{"cpp11", YOKE_CXX, "-x c++ -std=c++11"},
                                       Dialect{"cpp14", YOKE_CXX, "-x c++ -std=c++14"},
                                       Dialect{"clang_cpp11", YOKE_CLANGXX, "-x c++ -std=c++11"},
                                       Dialect{"clang_cpp14", YOKE_CLANGXX, "-x c++ -std=c++14"});
const auto kCpp = ::testing::Values(Dialect{"cpp17", YOKE_CXX, "-x c++ -std=c++17"},
                                    Dialect{"cpp20", YOKE_CXX, "-x c++ -std=c++20"},
                                    Dialect{"clang_cpp17", YOKE_CLANGXX, "-x c++ -std=c++17"},
                                    Dialect{"clang_cpp20", YOKE_CLANGXX, "-x c++ -std=c++20"});
const auto name_of = [](const auto& info) { return std::string(info.param.name); };

INSTANTIATE_TEST_SUITE_P(C, ContractHeader, kC, name_of);
INSTANTIATE_TEST_SUITE_P(OldCpp, ContractHeader, kOldCpp, name_of);
INSTANTIATE_TEST_SUITE_P(Cpp, ContractHeader, kCpp, name_of);
INSTANTIATE_TEST_SUITE_P(Cpp, CppLayer, kCpp, name_of);
INSTANTIATE_TEST_SUITE_P(C, ExampleInC, kC, name_of);

}  // namespace
