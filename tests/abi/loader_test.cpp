#include "core/backend/loader.hpp"

#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "core/backend/elf.hpp"
#include "tests/abi/toys.hpp"

namespace yoke {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;
using testing::read_file;
using testing::this_abi;
using testing::Toys;

std::string failure(const std::string& path) {
  return message_of([&] { load_backend(path); });
}

TEST(Loader, LoadsABackendAndReadsItsDescription) {
  const Toys toys;
  const LoadedBackend backend = load_backend(toys.copy(""));
  EXPECT_EQ(backend.name(), "toy");
  EXPECT_EQ(view(backend.description().version), "1.2.3");
  ASSERT_EQ(backend.description().num_options, 2u);
  EXPECT_EQ(view(backend.description().options[1]->key), "colour");
}

TEST(Loader, LoadsAFileOnlyOnceWhateverItsPath) {
  const Toys toys;
  const std::string path = toys.copy("");
  std::filesystem::create_symlink(path, toys.folder() / "link.so");
  EXPECT_EQ(load_backend(path).table().describe,
            load_backend(toys.folder() / "link.so").table().describe);
}

TEST(Loader, LoadsABackendAfterItsSymbolTableWasStripped) {
  const Toys toys;
  const std::string path = toys.copy("");
  ASSERT_EQ(std::system(("strip " + path).c_str()), 0);
  EXPECT_EQ(load_backend(path).name(), "toy");
}

TEST(Loader, TakesATableOfALaterMinorVersion) {
  const Toys toys;
  const LoadedBackend backend = load_backend(toys.copy("later"));
  EXPECT_EQ(backend.table().abi_minor, 9u);
  EXPECT_EQ(backend.name(), "toy_later");
}

// A library that must be refused: the stage that the message must name, and words of the reason.
struct BadToy {
  const char* variant;
  const char* stage;
  const char* reason;
};
class BadToys : public ::testing::TestWithParam<BadToy> {};

TEST_P(BadToys, AreRefusedWithPathStageReasonVersionsAndFix) {
  const Toys toys;
  const std::string path = toys.copy(GetParam().variant);
  const std::string stage = std::string("stage     ") + GetParam().stage;
  EXPECT_THAT(failure(path),
              AllOf(HasSubstr(path),
                    HasSubstr(stage),
                    HasSubstr(GetParam().reason),
                    HasSubstr(this_abi()),
                    HasSubstr("fix       ")));
}

INSTANTIATE_TEST_SUITE_P(
    Loader,
    BadToys,
    ::testing::Values(
        BadToy{"no_entry", "the file", "does not export the symbol parallel_backend_entry_v1"},
        BadToy{"entry_of_version_2", "the file", "built for major version 2 of the ABI"},
        BadToy{"unresolved", "loading", "undefined symbol: toy_is_defined_nowhere"},
        BadToy{"entry_refuses", "its entry function", "the toy needs a licence"},
        BadToy{"major_2", "its table", "backend ABI 2.0"},
        BadToy{"newer_host", "its table", "needs a host with at least ABI 1.7"},
        BadToy{"short", "its table", "too few for the required functions"},
        BadToy{"null_slot", "its table", "the required function 'checkpoint' is NULL"}),
    [](const auto& info) { return std::string(info.param.variant); });

TEST(Loader, RefusesABackendThatHasAnotherNameThanItsFile) {
  const Toys toys;
  std::filesystem::rename(toys.copy(""), toys.folder() / "other.so");
  EXPECT_THAT(failure(toys.folder() / "other.so"),
              AllOf(HasSubstr("its name is 'toy'"), HasSubstr("toy.so")));
}

TEST(Loader, PrintsOnlyWhatTheDynamicLoaderSaid) {
  const Toys toys;
  const std::string text = failure(toys.copy("unresolved"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("boost")));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("Bad file descriptor")));
}

// ---- Files that are not libraries ----

std::string refusal_of_bytes(const std::string& bytes) {
  const Toys toys;
  return failure(toys.folder().write("toy.so", bytes));
}

TEST(Loader, RefusesATextFile) {
  EXPECT_THAT(refusal_of_bytes("import torch\n"), HasSubstr("it starts with 'import torch'"));
}

TEST(Loader, RefusesAnEmptyFile) {
  EXPECT_THAT(refusal_of_bytes(""), HasSubstr("the file is empty"));
}

TEST(Loader, RefusesAFileCutAnywhere) {
  const std::string whole = read_file(YOKE_TOYS "/toy.so");
  for (size_t size = 4; size < whole.size(); size += 61) {
    const std::string text = refusal_of_bytes(whole.substr(0, size));
    ASSERT_THAT(text,
                HasSubstr("the file is truncated: it has " + std::to_string(size) + " bytes"));
  }
}

// Returns the bytes of the toy with all segments of one type made 1 TiB longer.
std::string with_long_segments(uint32_t type) {
  std::string bytes = read_file(YOKE_TOYS "/toy.so");
  Elf64_Ehdr header;
  std::memcpy(&header, bytes.data(), sizeof header);
  for (int i = 0; i < header.e_phnum; ++i) {
    const size_t at = header.e_phoff + i * sizeof(Elf64_Phdr);
    Elf64_Phdr segment;
    std::memcpy(&segment, bytes.data() + at, sizeof segment);
    if (segment.p_type == type) bytes[at + offsetof(Elf64_Phdr, p_filesz) + 5] = 1;
  }
  return bytes;
}

TEST(Loader, RefusesASegmentThatReachesBeyondTheFile) {
  EXPECT_THAT(refusal_of_bytes(with_long_segments(PT_LOAD)), HasSubstr("the file is truncated"));
}

// `strip` leaves such a segment in a library with thread-local variables. Nothing reads the bytes
// of this segment from the file, so it does no harm.
TEST(Loader, TakesAGnuRelroThatReachesBeyondTheFile) {
  const std::string changed = with_long_segments(PT_GNU_RELRO);
  ASSERT_NE(changed, read_file(YOKE_TOYS "/toy.so"));
  const Toys toys;
  EXPECT_EQ(load_backend(toys.folder().write("toy.so", changed)).name(), "toy");
}

TEST(Loader, RefusesALibraryOfAnotherArchitecture) {
  std::string bytes = read_file(YOKE_TOYS "/toy.so");
  bytes[offsetof(Elf64_Ehdr, e_machine)] = static_cast<char>(EM_RISCV);
  EXPECT_THAT(refusal_of_bytes(bytes), HasSubstr("it is built for riscv; this machine is"));
}

TEST(Loader, RefusesA32BitLibrary) {
  std::string bytes = read_file(YOKE_TOYS "/toy.so");
  bytes[EI_CLASS] = ELFCLASS32;
  EXPECT_THAT(refusal_of_bytes(bytes), HasSubstr("it is a 32-bit library"));
}

// The files are examined but not loaded: what the dynamic loader does with them is not tested here.
TEST(Loader, LooksAtFilesWithAnyFlippedByteInTheirTables) {
  const std::string whole = read_file(YOKE_TOYS "/toy.so");
  Elf64_Ehdr header;
  std::memcpy(&header, whole.data(), sizeof header);
  std::vector<size_t> places;
  for (size_t at = 0; at < sizeof header + header.e_phnum * sizeof(Elf64_Phdr); at += 3)
    places.push_back(at);
  for (size_t at = header.e_shoff; at < whole.size(); at += 13) places.push_back(at);
  const Toys toys;
  for (const size_t at : places) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 0xff);
    const ElfLook look = look_at_library(toys.folder().write("toy.so", bytes));
    EXPECT_EQ(look.problem.empty(), look.abi_major == YOKE_ABI_MAJOR) << at;
    EXPECT_EQ(look.problem.empty(), look.fix.empty()) << at;
  }
}

TEST(Loader, RefusesAFolder) {
  const Toys toys;
  std::filesystem::create_directory(toys.folder() / "toy.so");
  EXPECT_THAT(failure(toys.folder() / "toy.so"), HasSubstr("not a regular file"));
}

TEST(Loader, RefusesAPathThatDoesNotExist) {
  int32_t code = 0;
  const std::string text = message_of([] { load_backend("/nowhere/toy.so"); }, &code);
  EXPECT_THAT(text, HasSubstr("it does not exist"));
  EXPECT_EQ(code, YOKE_NOT_FOUND);
}

// ---- Owner and access mode ----

TEST(Loader, RefusesAFileThatAGroupMayWrite) {
  const Toys toys;
  const std::string path = toys.copy("");
  Toys::set_mode(path, 0664);
  EXPECT_THAT(failure(path),
              AllOf(HasSubstr("the file " + path + " is writable by others"),
                    HasSubstr("fix       chmod go-w " + path)));
}

TEST(Loader, RefusesAFolderThatAGroupMayWrite) {
  const Toys toys;
  const std::string path = toys.copy("");
  Toys::set_mode(toys.folder().path(), 0770);
  EXPECT_THAT(
      failure(path),
      HasSubstr("its directory " + toys.folder().path().string() + " is writable by others"));
}

TEST(Loader, RefusesAFolderBelowOneThatEverybodyMayWrite) {
  const Toys toys;
  const std::string below = toys.folder() / "below";
  std::filesystem::create_directory(below);
  std::filesystem::copy_file(YOKE_TOYS "/toy.so", below + "/toy.so");
  Toys::set_mode(below, 0755);
  Toys::set_mode(below + "/toy.so", 0644);
  Toys::set_mode(toys.folder().path(), 0777);
  EXPECT_THAT(failure(below + "/toy.so"), HasSubstr("above it is writable by everybody"));
  Toys::set_mode(toys.folder().path(), 01777);  // sticky, like /tmp
  EXPECT_EQ(failure(below + "/toy.so"), "");
}

TEST(Loader, RefusesALinkInAnUnsafeFolder) {
  const Toys safe, unsafe;
  const std::string link = unsafe.folder() / "toy.so";
  std::filesystem::create_symlink(safe.copy(""), link);
  Toys::set_mode(unsafe.folder().path(), 0777);
  EXPECT_THAT(failure(link), HasSubstr("its directory " + unsafe.folder().path().string()));
}

TEST(Loader, RefusesAFileOfAnotherUser) {
  const Toys toys;
  const std::string path = toys.copy("");
  if (::chown(path.c_str(), 4242, 4242) != 0) GTEST_SKIP() << "giving a file away needs root";
  EXPECT_THAT(failure(path), HasSubstr("belongs to user 4242; allowed: root or you"));
}

}  // namespace
}  // namespace yoke
