// The checks of level L: loading, the entry function, the function table and the description.
#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <thread>

#include "sdk/conformance/behaviour_checks.hpp"
#include "sdk/conformance/level.hpp"
#include "sdk/conformance/library.hpp"
#include "sdk/conformance/progress.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke::conformance {
namespace {

std::string loads(Subject& subject) {
  find_entry(open_library(subject.path));
  return "";
}

std::string loads_quietly(Subject& subject) {
  CapturedOutput output;
  const ProcessState before = ProcessState::capture();
  description_of(load_table(subject.path));
  const ProcessState after = ProcessState::capture();
  if (after.threads > before.threads)
    throw Failed(concat(
        "loading, entry and describe left ", after.threads - before.threads, " thread(s) running"));
  const std::string changed = after.changed_since(before);
  if (!changed.empty()) throw Failed("after loading, entry and describe, " + changed);
  const std::string printed = output.printed();
  if (!printed.empty())
    throw Failed("loading, entry and describe printed '" + printed.substr(0, 80) + "'");
  return "";
}

// Calls entry, and throws Failed if it throws an exception.
const ParallelBackend* call_entry(YokeEntry entry, uint32_t minor, YokeError* err) {
  return call_backend("entry", [&] { return entry(minor, err); });
}

std::string entry_is_constant(Subject& subject) {
  const YokeEntry entry = find_entry(open_library(subject.path));
  const ParallelBackend* first = call_entry(entry, YOKE_ABI_MINOR, nullptr);
  std::array<const ParallelBackend*, 8> tables{};
  std::vector<std::thread> threads;
  for (auto& table : tables) threads.emplace_back([&] { table = entry(YOKE_ABI_MINOR, nullptr); });
  for (std::thread& t : threads) t.join();
  for (const ParallelBackend* table : tables) {
    if (table != first)
      throw Failed("entry returned another table in another call or on another thread");
  }
  return "";
}

std::string any_host_minor(Subject& subject) {
  const YokeEntry entry = find_entry(open_library(subject.path));
  call_entry(entry, 0, nullptr);
  for (const uint32_t minor : {uint32_t{YOKE_ABI_MINOR}, uint32_t{YOKE_ABI_MINOR} + 100}) {
    YokeError err = make_error();
    if (call_entry(entry, minor, &err) != nullptr) continue;
    throw Failed(concat("entry refuses a host of minor version ",
                        minor,
                        ": '",
                        err.text,
                        "'; a newer host must be accepted"));
  }
  return "";
}

std::string refusal_has_a_text(Subject& subject) {
  const YokeEntry entry = find_entry(open_library(subject.path));
  YokeError err = make_error();
  const ParallelBackend* table = call_entry(entry, YOKE_ABI_MINOR, &err);
  if (table == nullptr && err.text[0] == '\0') throw Failed("entry returned NULL and gave no text");
  if (table == nullptr) throw Failed(concat("entry refuses this host: '", err.text, "'"));
  // describe(NULL) provokes a refusal from every backend.
  const int32_t code = call_backend("describe", [&] { return table->describe(nullptr, &err); });
  if (code != YOKE_INVALID_ARGUMENT)
    throw Failed(concat(
        "describe with out = NULL returned ", code, ", expected ", int{YOKE_INVALID_ARGUMENT}));
  if (err.text[0] == '\0') throw Failed("describe refused out = NULL without a text");
  return "";
}

// Loads the function table. Throws Failed if its header is wrong, because the rest of the table
// must not be read in that case.
const ParallelBackend& known_table(Subject& subject) {
  const ParallelBackend& table = load_table(subject.path);
  if (table.header.struct_id != YOKE_ID_BACKEND)
    throw Failed(concat(
        "struct_id of the table is ", table.header.struct_id, ", expected ", int{YOKE_ID_BACKEND}));
  if (table.header.struct_size < sizeof(ParallelBackend))
    throw Failed(concat("struct_size of the table is ",
                        table.header.struct_size,
                        ", but version 1.0 has ",
                        sizeof(ParallelBackend),
                        " bytes"));
  return table;
}

std::string table_fits(Subject& subject) {
  const ParallelBackend& t = known_table(subject);
  if (t.abi_major != YOKE_ABI_MAJOR)
    throw Failed(concat("abi_major is ", t.abi_major, ", expected ", YOKE_ABI_MAJOR));
  if (t.min_host_minor > YOKE_ABI_MINOR)
    throw Failed(concat("min_host_minor is ",
                        t.min_host_minor,
                        ", but this host has ABI ",
                        YOKE_ABI_MAJOR,
                        ".",
                        YOKE_ABI_MINOR));
  if (t.reserved != 0) throw Failed(concat("reserved is ", t.reserved, ", expected 0"));
  return concat("ABI ", t.abi_major, ".", t.abi_minor);
}

std::string slots_are_there(Subject& subject) {
  const ParallelBackend& t = known_table(subject);
  const std::pair<const char*, bool> slots[] = {{"describe", t.describe != nullptr},
                                                {"plan", t.plan != nullptr},
                                                {"init", t.init != nullptr},
                                                {"wrap_model", t.wrap_model != nullptr},
                                                {"step", t.step != nullptr},
                                                {"checkpoint", t.checkpoint != nullptr},
                                                {"destroy_model", t.destroy_model != nullptr},
                                                {"destroy", t.destroy != nullptr}};
  for (const auto& [name, present] : slots)
    if (!present) throw Failed(concat(name, " is NULL"));
  return "";
}

// ---- The description ----

// Throws Failed unless the string is well formed. A string that is not required may be NULL.
void check_string(const YokeString& s, const std::string& what, bool required) {
  if (s.data == nullptr && s.size == 0 && !required) return;
  if (s.data == nullptr) throw Failed(what + " is NULL");
  if (required && s.size == 0) throw Failed(what + " is empty");
  if (s.data[s.size] != '\0')
    throw Failed(concat(what, " has no 0 byte behind its ", s.size, " bytes"));
  if (std::memchr(s.data, 0, s.size) != nullptr)
    throw Failed(concat(what, " has a 0 byte inside its ", s.size, " bytes"));
}

bool is_name(std::string_view name) {
  return !name.empty() && name[0] >= 'a' && name[0] <= 'z' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
         });
}

void check_option(const YokeOptionInfo& o, uint64_t index) {
  const std::string what = concat("option ", index);
  if (o.header.struct_id != YOKE_ID_OPTION_INFO)
    throw Failed(concat(
        what, " has struct_id ", o.header.struct_id, ", expected ", int{YOKE_ID_OPTION_INFO}));
  check_string(o.key, what + ": key", true);
  const std::string key = "option '" + std::string(view(o.key)) + "'";
  check_string(o.default_value, key + ": default_value", false);
  check_string(o.choices, key + ": choices", false);
  check_string(o.doc, key + ": doc", true);
  if (o.type < YOKE_OPTION_INT || o.type > YOKE_OPTION_VARIABLES)
    throw Failed(concat(key, " has type ", o.type, "; allowed: 1 to 6"));
}

void check_state_kind(const YokeStateKind* k, uint64_t index) {
  const std::string what = concat("state kind ", index);
  if (k == nullptr || k->header.struct_id != YOKE_ID_STATE_KIND)
    throw Failed(what + " is NULL or not a YokeStateKind");
  check_string(k->kind, what + ": kind", true);
  check_string(k->doc, what + ": doc", true);
  const std::string kind(view(k->kind));
  constexpr const char* kStandard[] = {"param", "exp_avg", "exp_avg_sq", "momentum", "step"};
  const bool well_formed =
      kind.size() <= 31 && std::all_of(kind.begin(), kind.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '#';
      });
  if (!well_formed)
    throw Failed(what + " is '" + kind + "'; allowed: [a-z0-9_#]+, at most 31 bytes");
  if (std::find(std::begin(kStandard), std::end(kStandard), kind) != std::end(kStandard))
    throw Failed(what + " is '" + kind + "', which the contract defines; declare only your own");
  if ((k->flags & ~uint32_t{YOKE_STATE_PER_RANK}) != 0)
    throw Failed(concat("state kind '", kind, "' has flags ", k->flags) +
                 "; allowed: YOKE_STATE_PER_RANK");
}

void check_traits(uint32_t traits) {
  if ((traits & YOKE_RANKS_CHANGE_UPDATE) != 0 && (traits & YOKE_OWN_UPDATE) == 0)
    throw Failed("it has the trait YOKE_RANKS_CHANGE_UPDATE without YOKE_OWN_UPDATE");
}

std::string description_is_well_formed(Subject& subject) {
  const YokeDescription d = description_of(load_table(subject.path));
  if (d.header.struct_id != YOKE_ID_DESCRIPTION)
    throw Failed(concat("struct_id of the description is ",
                        d.header.struct_id,
                        ", expected ",
                        int{YOKE_ID_DESCRIPTION}));
  check_string(d.name, "name", true);
  check_string(d.version, "version", true);
  check_string(d.vendor, "vendor", false);
  check_string(d.summary, "summary", true);
  check_string(d.torch_tag, "torch_tag", false);
  const std::string name(view(d.name)), file = std::filesystem::path(subject.path).stem().string();
  if (!is_name(name)) throw Failed(concat("the name '", name, "' does not match [a-z][a-z0-9_]*"));
  if (name != file) throw Failed(concat("its name is '", name, "', but its file is ", file, ".so"));
  if (d.axes >> YOKE_NUM_AXES != 0) throw Failed("axes has bits that belong to no axis");
  if (d.zero_stages & ~0xfu) throw Failed("zero_stages has bits beyond stage 3");
  if (d.devices == 0) throw Failed("it declares no device");
  if (d.num_param_dtypes == 0) throw Failed("it declares no compute dtype");
  for (uint64_t i = 0; i < d.num_param_dtypes; ++i) {
    const int32_t t = d.param_dtypes[i];
    if (t != YOKE_F64 && t != YOKE_F32 && t != YOKE_BF16 && t != YOKE_F16)
      throw Failed(
          concat("compute dtype ", t, " is not one of YOKE_F64, YOKE_F32, YOKE_BF16, YOKE_F16"));
  }
  for (uint64_t i = 0; i < d.num_options; ++i) check_option(*d.options[i], i);
  check_traits(d.traits);
  for (uint64_t i = 0; i < d.num_state_kinds; ++i) check_state_kind(d.state_kinds[i], i);
  subject.test_bed.options(d, {});  // applies the rules of the host for defaults and duplicates
  return name + " " + std::string(view(d.version));
}

std::string describe_is_pure(Subject& subject) {
  const ParallelBackend& table = load_table(subject.path);
  const YokeDescription first = description_of(table);
  std::array<const YokeDescription*, 8> seen{};
  std::vector<std::thread> threads;
  for (auto& d : seen) threads.emplace_back([&] { table.describe(&d, nullptr); });
  for (std::thread& t : threads) t.join();
  for (const YokeDescription* d : seen) {
    if (d == nullptr || d != seen[0] || view(d->name) != view(first.name) ||
        d->axes != first.axes || d->num_options != first.num_options)
      throw Failed("describe gave another description in another call or on another thread");
  }
  return "";
}

constexpr Check kRows[] = {
    {"L1",
     "the library loads",
     "dlopen with RTLD_NOW and RTLD_LOCAL, with / as the current directory, finds every undefined "
     "symbol and every library. All constructors return.",
     "link the library that defines the symbol (-Wl,-z,defs reports it at build time), or add its "
     "folder to the run path",
     loads,
     false,
     Fault::kToolchain},
    {"L2",
     "loading has no side effects",
     "dlopen, entry and describe create no thread and no descriptor, print nothing, and leave the "
     "environment, signal handlers, locale, current directory and floating-point mode unchanged.",
     "move what constructors and static objects do into init",
     loads_quietly},
    {"L3",
     "entry always returns the same table",
     "entry returns the same pointer on every call, even if 8 threads call it at once.",
     "return the address of a static constant table",
     entry_is_constant},
    {"L4",
     "newer hosts are accepted",
     "entry accepts the minor version of this host and one that is 100 higher, and does not crash "
     "with 0.",
     "never compare host_minor for equality; set min_host_minor to the oldest minor version of a "
     "host that works",
     any_host_minor},
    {"L6",
     "refusals have a text",
     "entry does not refuse this host. describe(NULL) returns YOKE_INVALID_ARGUMENT with a text.",
     "write what failed, the given value and the allowed values into err->text",
     refusal_has_a_text},
    {"L7",
     "the function table is one of version 1",
     "struct_id and struct_size are correct, abi_major is 1, min_host_minor is not above that of "
     "this host, and reserved is 0.",
     "fill the header with YOKE_HEADER and the versions with YOKE_ABI_MAJOR and YOKE_ABI_MINOR",
     table_fits},
    {"L8",
     "every function is present",
     "None of the functions of version 1.0 is NULL in the table.",
     "fill in all eight functions",
     slots_are_there},
    {"L12",
     "the description is well formed",
     "Strings end with a 0 byte. name matches [a-z][a-z0-9_]* and is the name of the file. Axes, "
     "ZeRO stages and dtypes exist. Each option has a key, a type, a doc and a default that the "
     "host accepts. Kinds of state are [a-z0-9_]+ and not those of the contract.",
     "correct the field that is named",
     description_is_well_formed},
    {"L13",
     "describe is pure",
     "describe gives the same description on every call, even if 8 threads call it at once.",
     "return the address of a static constant description",
     describe_is_pure},
};

}  // namespace

void add_load_checks(std::vector<Check>& table) {
  table.insert(table.end(), std::begin(kRows), std::end(kRows));
}

}  // namespace yoke::conformance
