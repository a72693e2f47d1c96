#include "tests/ranks/parity_program.hpp"

#include <sys/wait.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

namespace yoke::testing {
namespace {

namespace fs = std::filesystem;

std::string bin_dir() {
  const char* given = std::getenv("YOKE_BIN");
  return given != nullptr ? given : YOKE_BIN_DIR;
}

std::string number(double value) {
  std::ostringstream out;
  out.precision(17);
  out << std::scientific << value;
  return out.str();
}

// Returns the section [model] for the Llama that `r` describes.
std::string model_section(const PlainRun& r) {
  std::ostringstream out;
  out << "family = \"llama\"\ndim = " << r.dim << "\nlayers = " << r.layers
      << "\nheads = " << r.heads << "\nkv_heads = " << r.kv_heads << "\nffn_dim = " << r.ffn_dim
      << "\nvocab = " << r.vocab << "\ntied = " << (r.tied ? "true" : "false")
      << "\nrope_theta = " << number(r.rope_theta) << "\nnorm_eps = " << number(r.norm_eps) << "\n";
  return out.str();
}

std::string run_file(const PlainRun& r, const std::string& text, const std::string& model) {
  const char* precision = r.fp64 ? "\"fp64\"" : "\"fp32\"";
  std::ostringstream out;
  out << "parallel_backend = \"serial\"\ndevice = \"cpu\"\nseed = " << r.seed << "\n"
      << "[model]\n"
      << model << "[data]\npath = \"" << text << "\"\nseq_len = " << r.seq_len
      << "\norder = \"sequential\"\nholdout = 0.1\n"
      << (r.counts.empty() ? "" : "mask = \"required\"\n");
  if (r.document_end) out << "documents = \"separate\"\ndocument_end = " << *r.document_end << "\n";
  out << "[train]\nsteps = " << r.steps << "\nglobal_batch = " << r.global_batch
      << "\noptimizer = \"" << r.optimizer
      << "\"\nbias_correction = " << (r.bias_correction ? "true" : "false")
      << "\nlr = " << number(r.lr(1)) << "\nwarmup = 0\nschedule = \"constant\"\nbetas = ["
      << number(r.beta1) << ", " << number(r.beta2) << "]\neps = " << number(r.eps)
      << "\nmomentum = " << number(r.momentum) << "\nweight_decay = " << number(r.weight_decay)
      << "\ndecay = " << (r.decay_matrices ? "\"matrices\"" : "\"all\"")
      << "\nclip = " << number(r.clip) << "\n"
      << "[eval]\nevery = 0\n[precision]\nparam = " << precision << "\nreduce = " << precision
      << "\n[checkpoint]\nevery = 0\nkeep = 100\n[metrics]\nevery = 1\n"
      << "[comm]\ntimeout = 600\n";  // bounds a hang, even on a busy machine
  return out.str();
}

std::string in_quotes(const std::string& text) {
  if (text.find('\'') != std::string::npos) throw std::invalid_argument("a quote in " + text);
  return std::string("'").append(text).append("'");
}

std::vector<LoggedStep> read_steps(const std::string& path) {
  std::vector<LoggedStep> steps;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    if (!json.contains("grad_norm")) continue;  // line of an evaluation
    LoggedStep s;
    s.step = json.at("step");
    s.loss = json.at("loss");
    s.grad_norm = json.at("grad_norm");
    s.lr = json.at("lr");
    s.loss_scale = json.value("loss_scale", 0.0);
    s.skipped = json.value("skipped", int64_t{0});
    s.tokens = json.at("tokens");
    if (json.contains("products")) s.rounded = json["products"].value("rounded", int64_t{0});
    for (const auto& [axes, use] : json.at("comm").items())
      s.comm[axes] = {use.at("calls"), use.at("bytes")};
    steps.push_back(s);
  }
  return steps;
}

}  // namespace

std::string ProgramRun::checkpoint(int64_t step) const {
  char name[32];
  std::snprintf(name, sizeof name, "step-%08lld", static_cast<long long>(step));
  return dir + "/checkpoints/" + name;
}

std::vector<double> ProgramRun::losses() const {
  std::vector<double> values;
  for (const LoggedStep& s : steps) values.push_back(s.loss);
  return values;
}

std::vector<double> ProgramRun::grad_norms() const {
  std::vector<double> values;
  for (const LoggedStep& s : steps) values.push_back(s.grad_norm);
  return values;
}

int64_t ProgramRun::bytes(size_t step, const std::string& axes) const {
  int64_t sum = 0;
  for (const auto& [name, traffic] : steps.at(step).comm)
    sum += name.rfind(axes, 0) == 0 ? traffic.bytes : 0;
  return sum;
}

ParityProgram::ParityProgram(const PlainRun& run,
                             const std::vector<uint8_t>& text,
                             const std::string& config_json) {
  std::string folder = (fs::temp_directory_path() / "yoke_parity_XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) throw std::runtime_error("mkdtemp " + folder);
  folder_ = folder;
  std::ofstream(folder_ + "/text", std::ios::binary)
      .write(reinterpret_cast<const char*>(text.data()), text.size());
  if (!run.counts.empty())
    std::ofstream(folder_ + "/text.mask", std::ios::binary)
        .write(reinterpret_cast<const char*>(run.counts.data()), run.counts.size());
  std::string model = model_section(run);
  if (!config_json.empty()) {
    std::ofstream(folder_ + "/config.json") << config_json;
    model = "config = \"" + folder_ + "/config.json\"\n";
  }
  std::ofstream(folder_ + "/run.toml") << run_file(run, folder_ + "/text", model);
}

ParityProgram::~ParityProgram() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

ProgramRun ParityProgram::train(const std::vector<std::string>& args) {
  ProgramRun run;
  run.dir = folder_ + "/run" + std::to_string(runs_++);
  const std::string log = run.dir + ".log";
  std::ostringstream command;
  // Each rank has one thread: the problems are small, and other tests run at the same time.
  command << "cd " << in_quotes(folder_) << " && OMP_NUM_THREADS=1 "
          << in_quotes(bin_dir() + "/yoke") << " train run.toml run.dir=" << run.dir;
  for (const std::string& arg : args) command << " " << in_quotes(arg);
  const int status = std::system((command.str() + " >" + log + " 2>&1 </dev/null").c_str());
  run.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  run.output = command.str() + "\n" + read_file(log);
  if (fs::exists(run.dir + "/metrics.jsonl")) run.steps = read_steps(run.dir + "/metrics.jsonl");
  return run;
}

bool backend_built(const std::string& name) {
  return fs::exists(fs::path(bin_dir()).parent_path() / "lib/yoke/backends" / (name + ".so"));
}

std::vector<uint8_t> parity_text(size_t size) {
  const char* const subjects[] = {"the ox ", "a mule ", "the old horse ", "one rank "};
  const char* const verbs[] = {"pulls ", "carries ", "waits for ", "shares "};
  const char* const objects[] = {"the load. ", "a cart of hay; ", "the yoke, ", "its shard. "};
  std::vector<uint8_t> text;
  uint64_t state = 42;
  const auto pick = [&](const char* const* words) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    const char* word = words[state >> 62];
    text.insert(text.end(), word, word + std::strlen(word));
  };
  while (text.size() < size) pick(subjects), pick(verbs), pick(objects);
  text.resize(size);
  return text;
}

int64_t num_elements(const PlainRun& run) {
  int64_t n = 0;
  for (const auto& [name, p] : plain_params(run)) n += p.numel();
  return n;
}

int64_t last_two_blocks_elements(const PlainRun& run) {
  const std::string last_layer = "model.layers." + std::to_string(run.layers - 1) + ".";
  int64_t n = 0;
  for (const auto& [name, p] : plain_params(run)) {
    if (name.rfind(last_layer, 0) == 0 || name == "model.norm.weight" || name == "lm_head.weight")
      n += p.numel();
  }
  return n;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::map<std::string, std::vector<double>> read_safetensors(const std::string& path) {
  const std::string file = read_file(path);
  uint64_t header_size = 0;
  if (file.size() < 8) throw std::runtime_error(path + " is missing or too short");
  std::memcpy(&header_size, file.data(), 8);
  const auto header = nlohmann::json::parse(file.substr(8, header_size));
  std::map<std::string, std::vector<double>> tensors;
  for (const auto& [name, info] : header.items()) {
    if (name == "__metadata__") continue;
    const bool wide = info.at("dtype") == "F64";
    const char* data = file.data() + 8 + header_size + info.at("data_offsets").at(0).get<size_t>();
    const char* end = file.data() + 8 + header_size + info.at("data_offsets").at(1).get<size_t>();
    for (; data < end; data += wide ? 8 : 4) {
      double value = 0;
      float narrow;
      if (wide)
        std::memcpy(&value, data, 8);
      else
        std::memcpy(&narrow, data, 4), value = narrow;
      tensors[name].push_back(value);
    }
  }
  return tensors;
}

}  // namespace yoke::testing
