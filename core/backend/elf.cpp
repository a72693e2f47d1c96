// A broken file is refused here, before dlopen(), because dlopen() runs constructors and reports
// most damage as a crash or as a sentence that does not help.
//
// Boost.DLL offers library_info for this. We do not use it for two reasons. It reads .symtab, which
// `strip` removes, so that every installed backend would seem to export nothing; like the dynamic
// loader, we read .dynsym. It also trusts every offset in the file, whereas a file that was copied
// only in part is an everyday mistake. Image therefore checks each access and throws a Fault, which
// the two public functions turn into a result.
#include "core/backend/elf.hpp"

#include <elf.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <vector>

#include "yoke/parallel_backend.h"
#include "yoke/text.hpp"

namespace yoke {
namespace {

#if defined(__x86_64__)
constexpr uint16_t kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr uint16_t kMachine = EM_AARCH64;
#endif
constexpr std::string_view kEntryPrefix = "parallel_backend_entry_v";

std::string machine_name(uint16_t machine) {
  switch (machine) {
    case EM_X86_64:
      return "x86_64";
    case EM_AARCH64:
      return "aarch64";
    case EM_386:
      return "i386";
    case EM_ARM:
      return "arm";
    case EM_RISCV:
      return "riscv";
    case EM_PPC64:
      return "ppc64";
    case EM_S390:
      return "s390";
    default:
      return concat("machine number ", machine);
  }
}

struct Fault {
  std::string problem, fix;
};

// A file in memory. Every read is checked: one outside of the file throws a Fault.
class Image {
 public:
  explicit Image(std::string bytes) : bytes_(std::move(bytes)) {}

  template <class T>
  T read(uint64_t offset) const {
    T value;
    std::memcpy(&value, range(offset, sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string_view range(uint64_t offset, uint64_t size) const {
    // offset + size could overflow, so the sum is never formed.
    if (offset > bytes_.size() || size > bytes_.size() - offset) truncated(offset, size);
    return std::string_view(bytes_).substr(offset, size);
  }
  size_t size() const { return bytes_.size(); }
  std::string_view bytes() const { return bytes_; }

 private:
  [[noreturn]] void truncated(uint64_t offset, uint64_t size) const {
    const uint64_t wanted = size > UINT64_MAX - offset ? UINT64_MAX : offset + size;
    throw Fault{concat("the file is truncated: it has ",
                       bytes_.size(),
                       " bytes, but its own tables reach to byte ",
                       wanted),
                "copy or build it again"};
  }
  std::string bytes_;
};

// The file is read and not mapped: if another program truncates a mapped file, the next access
// kills this process with SIGBUS.
Image read_file(const std::string& path) {
  std::error_code error;
  const bool regular = std::filesystem::is_regular_file(path, error);
  const uint64_t size = regular ? std::filesystem::file_size(path, error) : 0;
  std::ifstream in;
  if (regular && !error) in.open(path, std::ios::binary);
  std::string bytes(size, '\0');
  if (!in.is_open() || !in.read(bytes.data(), static_cast<std::streamsize>(size))) {
    throw Fault{"the file cannot be read: " + std::string(error     ? error.message()
                                                          : regular ? std::strerror(errno)
                                                                    : "not a regular file"),
                "give a regular file that you may read"};
  }
  return Image(std::move(bytes));
}

std::string printable_start(std::string_view bytes) {
  std::string out;
  for (char c : bytes.substr(0, 24)) {
    if (c == '\n') break;
    out += std::isprint(static_cast<unsigned char>(c)) != 0 ? c : '.';
  }
  return out;
}

// Checks the header step by step, so that the message names the first thing that is wrong: an empty
// or foreign file, another machine, or an ELF file that is not a shared library.
Elf64_Ehdr read_header(const Image& image) {
  if (image.size() == 0) throw Fault{"the file is empty", "copy or build it again"};
  if (image.bytes().substr(0, SELFMAG) != std::string_view(ELFMAG, SELFMAG)) {
    throw Fault{
        "it is not a shared library (ELF); it starts with '" + printable_start(image.bytes()) + "'",
        "give the .so that the build produces"};
  }
  const auto ident = image.range(0, EI_NIDENT);
  if (ident[EI_CLASS] != ELFCLASS64) {
    throw Fault{"it is a 32-bit library; this program is 64-bit",
                "build it for " + machine_name(kMachine)};
  }
  if (ident[EI_DATA] != ELFDATA2LSB) {
    throw Fault{"it is big-endian; this machine is little-endian",
                "build it for " + machine_name(kMachine)};
  }
  const auto header = image.read<Elf64_Ehdr>(0);
  if (header.e_machine != kMachine) {
    throw Fault{"it is built for " + machine_name(header.e_machine) + "; this machine is " +
                    machine_name(kMachine),
                "build it for " + machine_name(kMachine)};
  }
  if (header.e_type != ET_DYN) {
    throw Fault{"it is an ELF file, but not a shared library",
                "link it with -shared (yoke_add_backend does)"};
  }
  return header;
}

// Checks that every segment that the loader will map lies inside the file.
void check_segments(const Image& image, const Elf64_Ehdr& header) {
  for (uint64_t i = 0; i < header.e_phnum; ++i) {
    const auto segment = image.read<Elf64_Phdr>(header.e_phoff + i * sizeof(Elf64_Phdr));
    // Other segments are never mapped from the file, and their offsets may be stale, such as that
    // of GNU_RELRO after strip.
    if (segment.p_type == PT_LOAD) image.range(segment.p_offset, segment.p_filesz);
  }
}

std::string_view name_at(std::string_view names, uint64_t offset) {
  if (offset >= names.size()) return {};
  const std::string_view tail = names.substr(offset);
  return tail.substr(0, tail.find('\0'));
}

// Calls f(section, strings) for every section of this type; `strings` is its string table.
template <class F>
void for_sections(const Image& image, const Elf64_Ehdr& header, uint32_t type, F&& f) {
  const auto section = [&](uint64_t i) {
    return image.read<Elf64_Shdr>(header.e_shoff + i * sizeof(Elf64_Shdr));
  };
  for (uint64_t i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr found = section(i);
    if (found.sh_type != type) continue;
    // The link may be any number in a damaged file. range() refuses it like any other bad offset.
    const Elf64_Shdr strings = section(found.sh_link);
    f(found, image.range(strings.sh_offset, strings.sh_size));
  }
}

// Calls f(symbol, name) for every dynamic symbol that has a name.
template <class F>
void for_symbols(const Image& image, const Elf64_Ehdr& header, F&& f) {
  if (header.e_shnum == 0) {
    throw Fault{"it has no section table, so its symbols cannot be read without running it",
                "strip it with strip, not with sstrip"};
  }
  for_sections(image, header, SHT_DYNSYM, [&](const Elf64_Shdr& table, std::string_view names) {
    for (uint64_t s = 0; s < table.sh_size / sizeof(Elf64_Sym); ++s) {
      const auto symbol = image.read<Elf64_Sym>(table.sh_offset + s * sizeof(Elf64_Sym));
      const std::string_view name = name_at(names, symbol.st_name);
      if (!name.empty()) f(symbol, name);
    }
  });
}

// Entries of other major versions count as well, so that a backend for a different version of the
// ABI is reported as such and not as a library without an entry.
std::vector<std::string> exported_entries(const Image& image, const Elf64_Ehdr& header) {
  std::vector<std::string> found;
  for_symbols(image, header, [&](const Elf64_Sym& symbol, std::string_view name) {
    if (symbol.st_shndx != SHN_UNDEF && name.starts_with(kEntryPrefix)) found.emplace_back(name);
  });
  return found;
}

// ---- The contents for the conformance checks ----

void read_symbols(const Image& image, const Elf64_Ehdr& header, ElfContents& contents) {
  for_symbols(image, header, [&](const Elf64_Sym& symbol, std::string_view name) {
    const bool weak = ELF64_ST_BIND(symbol.st_info) == STB_WEAK;
    if (symbol.st_shndx == SHN_UNDEF) {
      if (!weak) contents.undefined.emplace_back(name);  // a weak symbol may stay undefined
    } else if (symbol.st_shndx != SHN_ABS) {             // absolute symbols name versions
      contents.exported.emplace_back(name);
    }
  });
}

// Splits a run path at ':'.
std::vector<std::string> parts_of(std::string_view path) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= path.size();) {
    const size_t end = std::min(path.find(':', at), path.size());
    if (end > at) parts.emplace_back(path.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

// Reads the libraries, the run path and the flags of the dynamic section.
void read_dynamic(const Image& image, const Elf64_Ehdr& header, ElfContents& contents) {
  for_sections(image, header, SHT_DYNAMIC, [&](const Elf64_Shdr& table, std::string_view names) {
    for (uint64_t i = 0; i < table.sh_size / sizeof(Elf64_Dyn); ++i) {
      const auto entry = image.read<Elf64_Dyn>(table.sh_offset + i * sizeof(Elf64_Dyn));
      const uint64_t value = entry.d_un.d_val;
      if (entry.d_tag == DT_NULL) break;
      if (entry.d_tag == DT_NEEDED) contents.needed.emplace_back(name_at(names, value));
      if (entry.d_tag == DT_RUNPATH || entry.d_tag == DT_RPATH)
        contents.run_path = parts_of(name_at(names, value));
      if (entry.d_tag == DT_TEXTREL || (entry.d_tag == DT_FLAGS && (value & DF_TEXTREL) != 0))
        contents.text_relocations = true;
    }
  });
}

// Reads the versions of symbols that the library needs. They are two nested linked lists: one entry
// per library, and below it one per version, chained by byte offsets.
void read_versions(const Image& image, const Elf64_Ehdr& header, ElfContents& contents) {
  for_sections(
      image, header, SHT_GNU_verneed, [&](const Elf64_Shdr& table, std::string_view names) {
        uint64_t at = table.sh_offset;
        for (uint64_t library = 0; library < table.sh_info; ++library) {
          const auto need = image.read<Elf64_Verneed>(at);
          uint64_t aux_at = at + need.vn_aux;
          for (uint64_t i = 0; i < need.vn_cnt; ++i) {
            const auto aux = image.read<Elf64_Vernaux>(aux_at);
            contents.versions.emplace_back(name_at(names, aux.vna_name));
            if (aux.vna_next == 0) break;  // last entry, even if a damaged count is larger
            aux_at += aux.vna_next;
          }
          if (need.vn_next == 0) break;
          at += need.vn_next;
        }
      });
}

bool has_executable_stack(const Image& image, const Elf64_Ehdr& header) {
  for (uint64_t i = 0; i < header.e_phnum; ++i) {
    const auto segment = image.read<Elf64_Phdr>(header.e_phoff + i * sizeof(Elf64_Phdr));
    if (segment.p_type == PT_GNU_STACK) return (segment.p_flags & PF_X) != 0;
  }
  return true;  // without this header the loader makes the stack executable
}

// Returns 2 for parallel_backend_entry_v2; 0 if the prefix is not followed by a number.
int major_of(const std::string& symbol) {
  const std::string digits = symbol.substr(kEntryPrefix.size());
  // With at most four digits, stoi() cannot overflow.
  const bool number =
      !digits.empty() && digits.size() < 5 && std::all_of(digits.begin(), digits.end(), [](char c) {
        return std::isdigit(static_cast<unsigned char>(c)) != 0;
      });
  return number ? std::stoi(digits) : 0;
}

// Returns the major version of the entry symbol. If there are several, ours is preferred. Throws
// Fault if there is none.
int check_entry(const std::vector<std::string>& entries) {
  if (std::find(entries.begin(), entries.end(), YOKE_ENTRY_SYMBOL) != entries.end())
    return YOKE_ABI_MAJOR;
  for (const std::string& entry : entries) {
    if (major_of(entry) != 0) return major_of(entry);
  }
  throw Fault{"it does not export the symbol " YOKE_ENTRY_SYMBOL ", so it is not a backend",
              "end the backend's source with YOKE_EXPORT_BACKEND, or export that C function; "
              "check with: nm -D --defined-only FILE"};
}

Elf64_Ehdr checked_header(const Image& image) {
  const Elf64_Ehdr header = read_header(image);
  check_segments(image, header);
  return header;
}

// Throws Fault if the image is not a backend of our ABI. Sets look.abi_major if the image has any
// entry symbol.
void check_backend(const Image& image, const Elf64_Ehdr& header, ElfLook& look) {
  look.abi_major = check_entry(exported_entries(image, header));
  if (look.abi_major == YOKE_ABI_MAJOR) return;
  throw Fault{concat("it exports only ",
                     kEntryPrefix,
                     look.abi_major,
                     ": it is built for major version ",
                     look.abi_major,
                     " of the ABI"),
              look.abi_major > YOKE_ABI_MAJOR
                  ? "use a newer Yoke, or build the backend with the parallel_backend.h of this one"
                  : "build the backend with the parallel_backend.h of this Yoke"};
}

ElfContents read_contents(const Image& image, const Elf64_Ehdr& header) {
  ElfContents contents;
  read_symbols(image, header, contents);
  read_dynamic(image, header, contents);
  read_versions(image, header, contents);
  contents.executable_stack = has_executable_stack(image, header);
  return contents;
}

ElfLook examine(const std::string& path, ElfContents* contents) {
  ElfLook look;
  try {
    const Image image = read_file(path);
    const Elf64_Ehdr header = checked_header(image);
    check_backend(image, header, look);
    if (contents != nullptr) *contents = read_contents(image, header);
  } catch (Fault& fault) {
    look.problem = std::move(fault.problem);
    look.fix = std::move(fault.fix);
  }
  return look;
}

}  // namespace

ElfLook look_at_library(const std::string& path) {
  return examine(path, nullptr);
}

ElfLook look_at_library(const std::string& path, ElfContents& contents) {
  return examine(path, &contents);
}

}  // namespace yoke
