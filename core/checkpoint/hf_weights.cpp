// Reads the weights that a run starts from. The files may come from anywhere, so all of this is
// checked before training starts: the index, every header, all names and shapes, and tied
// parameters. A rank then reads only the elements that it owns, when its backend initialises them.
// So no process ever holds the full model, and a model that only fits into many GPUs can be opened.

#include "core/checkpoint/hf_weights.hpp"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/strict_json.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/convert.hpp"
#include "yoke/error.hpp"
#include "yoke/tensor.hpp"

namespace yoke {
namespace {

constexpr uint64_t kMaxIndexBytes = uint64_t{64} << 20;
constexpr int64_t kPortion = 1 << 18;  // elements converted, compared or read ahead at a time

[[noreturn]] void damaged(const std::string& where, const std::string& reason) {
  throw Error(YOKE_DATA_LOSS, where + ": " + reason);
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

// Old files also store what can be computed: a table of frequencies, and the causal mask of GPT-2.
// These are ignored.
bool is_derived(const std::string& name) {
  return name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".attn.bias") ||
         name.ends_with(".attn.masked_bias");
}

// Reports that the folder has no weights. If it has them as a pickle, the message says how to
// convert them: Yoke never opens a pickle, since that may run code.
[[noreturn]] void refuse_folder(const std::string& folder) {
  const std::string other =
      exists(folder + "/pytorch_model.bin") || exists(folder + "/pytorch_model.bin.index.json")
          ? "; its pytorch_model.bin is a pickle, which may run code: save "
            "it again with transformers' save_pretrained"
      : exists(folder + "/config.json")
          ? "; to train its model from random values, set model.config = \"" + folder +
                "\" in place of model.from"
          : "";
  throw Error(YOKE_NOT_FOUND,
              folder + " has no model.safetensors and no model.safetensors.index.json" + other);
}

// Returns the tensors that the index lists for each file; key: file name.
std::map<std::string, std::set<std::string>> read_index(const std::string& path) {
  const nlohmann::json json = parse_json_object(read_text(path, kMaxIndexBytes), path);
  const auto map = json.find("weight_map");
  if (map == json.end() || !map->is_object() || map->empty()) {
    damaged(path, "it has no weight_map that maps tensors to files");
  }
  std::map<std::string, std::set<std::string>> files;
  for (const auto& [tensor, value] : map->items()) {
    if (!value.is_string()) damaged(path, "the file of '" + tensor + "' is not a string");
    const auto& file = value.get_ref<const std::string&>();
    if (file.empty() || file[0] == '.' || file.find('/') != std::string::npos) {
      damaged(path, "'" + file + "' is not a plain file name");
    }
    files[file].insert(tensor);
  }
  return files;
}

// Throws unless two stored tensors, which are a single tied parameter of the model, are equal.
void require_equal(const HfWeights& weights,
                   const std::string& folder,
                   const std::string& name,
                   const std::string& same_as,
                   int64_t numel) {
  std::vector<float> a(static_cast<size_t>(std::min(numel, kPortion))), b(a.size());
  for (int64_t begin = 0; begin < numel; begin += kPortion) {
    const int64_t count = std::min(kPortion, numel - begin);
    weights.read(name, begin, count, a.data());
    weights.read(same_as, begin, count, b.data());
    if (std::memcmp(a.data(), b.data(), static_cast<size_t>(count) * sizeof(float)) == 0) continue;
    throw Error(YOKE_FAILED_PRECONDITION,
                folder + ": config.json ties '" + name + "' to '" + same_as +
                    "', but their values differ; save the model again with tie_word_embeddings = "
                    "false");
  }
}

// The parameters of a checkpoint of Yoke, verified as they are read. A rank that owns columns of a
// matrix requests many short ranges in order. Each of them alone would cost the checksum of a whole
// chunk, so a short range is read together with the elements that follow it, and later requests are
// served from memory. A copy of this object has its own read-ahead memory; the open checkpoint is
// shared.
class CheckpointWeights {
 public:
  CheckpointWeights(const std::string& folder, const Shapes& model)
      : reader_(std::make_shared<const CheckpointReader>(folder)), shapes_(model) {
    reader_->check_model(model);
  }

  void operator()(const std::string& name, int64_t begin, int64_t count, float* dst) {
    if (count >= kPortion) return visit(name, begin, count, dst);
    if (name != name_ || begin < begin_ || begin + count > end_) {
      name_.clear();  // ahead_ is invalid if this read fails
      const std::vector<int64_t>& shape = shapes_.at(name);
      begin_ = begin;
      end_ = std::min(begin + kPortion, numel(shape.data(), static_cast<int32_t>(shape.size())));
      ahead_.resize(static_cast<size_t>(end_ - begin_));
      visit(name, begin_, end_ - begin_, ahead_.data());
      name_ = name;
    }
    std::copy_n(ahead_.data() + (begin - begin_), count, dst);
  }

 private:
  void visit(const std::string& name, int64_t begin, int64_t count, float* dst) const {
    const std::vector<int64_t>& shape = shapes_.at(name);
    const FlatView flat(dst, count, YOKE_F32);
    YokePiece piece{};
    piece.header = YOKE_HEADER(YokePiece, YOKE_ID_PIECE);
    piece.name = view(name);
    piece.kind = view("param");
    piece.shape = shape.data();
    piece.ndim = static_cast<int32_t>(shape.size());
    piece.dtype = YOKE_F32;
    piece.begin = begin;
    piece.count = piece.run = count;
    piece.view = flat.get();
    reader_->visit(piece);
  }

  std::shared_ptr<const CheckpointReader> reader_;
  Shapes shapes_;
  // ahead_ holds elements [begin_, end_) of the parameter name_.
  std::string name_;
  int64_t begin_ = 0, end_ = 0;
  std::vector<float> ahead_;
};

}  // namespace

HfWeights::HfWeights(const std::string& folder) {
  const std::string whole = folder + "/model.safetensors";
  const std::string index = whole + ".index.json";
  if (exists(whole)) {
    add_file(whole);
  } else if (exists(index)) {
    add_indexed_files(folder, index);
  } else {
    refuse_folder(folder);
  }
}

HfWeights::HfWeights(const std::string& folder, const std::string& file) {
  const std::string path = folder + "/" + file;
  if (!exists(path)) throw Error(YOKE_NOT_FOUND, folder + " has no " + file);
  add_file(path);
}

void HfWeights::add_file(const std::string& path) {
  files_.push_back(File::open_for_reading(path));
  for (SafetensorsTensor& tensor : read_safetensors_header(files_.back()).tensors) {
    if (is_derived(tensor.name)) continue;
    const std::string name = tensor.name;
    if (!can_convert(tensor.dtype, YOKE_F32)) {
      damaged(path,
              "tensor '" + name + "' is " + dtype_name(tensor.dtype) +
                  "; weights are fp64, fp32, bf16 or fp16");
    }
    const auto [at, added] =
        tensors_.try_emplace(name, Place{files_.size() - 1, std::move(tensor)});
    if (!added) damaged(path, "tensor '" + name + "' is also in " + files_[at->second.file].path());
  }
}

// An index must agree with the files in both directions: each tensor is in the file that the index
// names, and no file holds a tensor that the index does not list.
void HfWeights::add_indexed_files(const std::string& folder, const std::string& index_path) {
  for (const auto& [name, listed] : read_index(index_path)) {
    const std::string path = folder + "/" + name;
    if (!exists(path)) damaged(index_path, "it names " + name + ", which is not in the folder");
    add_file(path);
    for (const std::string& tensor : listed) {
      const auto at = tensors_.find(tensor);
      if (is_derived(tensor)) continue;
      if (at == tensors_.end() || at->second.file != files_.size() - 1) {
        damaged(index_path,
                "it places '" + tensor + "' in " + name + ", which does not contain it");
      }
    }
    for (const auto& [tensor, place] : tensors_) {
      if (place.file == files_.size() - 1 && !listed.contains(tensor)) {
        damaged(path, "tensor '" + tensor + "' is not in " + index_path);
      }
    }
  }
}

Shapes HfWeights::shapes() const {
  Shapes shapes;
  for (const auto& [name, place] : tensors_) shapes[name] = place.tensor.shape;
  return shapes;
}

void HfWeights::add_prefix(const std::string& prefix, const std::set<std::string>& complete) {
  std::map<std::string, Place> renamed;
  for (auto& [name, place] : tensors_)
    renamed.emplace(complete.contains(name) ? name : prefix + name, std::move(place));
  tensors_ = std::move(renamed);
}

void HfWeights::read(const std::string& name, int64_t begin, int64_t count, float* dst) const {
  const Place& place = tensors_.at(name);
  const File& file = files_[place.file];
  const int32_t dtype = place.tensor.dtype;
  const int64_t item = item_size(dtype);
  uint64_t at = place.tensor.begin + static_cast<uint64_t>(begin * item);
  if (dtype == YOKE_F32) return file.read_at(dst, static_cast<size_t>(count * item), at);
  std::vector<char> buffer(static_cast<size_t>(std::min(count, kPortion) * item));
  for (int64_t done = 0; done < count; done += kPortion) {
    const int64_t portion = std::min(kPortion, count - done);
    file.read_at(buffer.data(), static_cast<size_t>(portion * item), at);
    convert(buffer.data(), dtype, dst + done, YOKE_F32, portion);
    at += static_cast<uint64_t>(portion * item);
  }
}

// A tied parameter counts as one: if both of its names are stored with equal values, the second
// name is removed from `stored` before the shapes are compared.
ReadWeights open_weights(const std::string& folder,
                         const Shapes& model,
                         const std::map<std::string, std::string>& ties,
                         const std::string& optional_prefix) {
  if (exists(folder + "/manifest.json")) return CheckpointWeights(folder, model);
  auto weights = std::make_shared<HfWeights>(folder);
  Shapes stored = weights->shapes();
  const auto prefixed = [&](const auto& item) { return item.first.starts_with(optional_prefix); };
  if (std::none_of(stored.begin(), stored.end(), prefixed)) {
    std::set<std::string> complete;
    for (const auto& [name, shape] : model) complete.insert(name);
    for (const auto& [name, same_as] : ties) complete.insert(name);
    weights->add_prefix(optional_prefix, complete);
    stored = weights->shapes();
  }
  for (const auto& [name, same_as] : ties) {
    const auto at = stored.find(name);
    if (at == stored.end()) continue;
    const auto other = stored.find(same_as);
    // If the shapes differ, the comparison below lists the tied name as one more difference.
    if (other == stored.end() || other->second != at->second) continue;
    const std::vector<int64_t>& shape = at->second;
    require_equal(
        *weights, folder, name, same_as, numel(shape.data(), static_cast<int32_t>(shape.size())));
    stored.erase(at);
  }
  require_same_shapes(
      model, stored, folder + ": the weights do not match its config.json", "the files");
  return [weights = std::shared_ptr<const HfWeights>(weights)](
             const std::string& name, int64_t begin, int64_t count, float* dst) {
    weights->read(name, begin, count, dst);
  };
}

}  // namespace yoke
