// The data of a run, in the order that the run file asks for.
#pragma once

#include <cstdint>

#include "core/config/run_config.hpp"
#include "core/data/data_set.hpp"

namespace yoke {

// Opens data.path and eval.path, as open_data() does. vocab: as there.
//
// With data.order = "megatron", data.path is one indexed dataset, or with data.weights a blend of
// several. Of each, data.split says which sequences are for training and for evaluation; with
// eval.path all of them are for training, and all of eval.path, a single dataset, are for
// evaluation. The orders are made for train.steps and for as many evaluations as the run makes, as
// Megatron makes them, and `seed` seeds them.
//
// With data.order = "nanotron", each entry of data.path is a folder of datatrove. A window has
// seq_len + 1 tokens of one file and shares none with the next one. NanosetOrder, with
// data.weights, is their order. Evaluation needs eval.path, a single entry.
//
// Throws the errors of open_data(), open_source() and of the orders, and Error(INVALID_ARGUMENT) if
// a file does not fit the order or a part that the run needs has no window.
DataSet open_run_data(const RunConfig& run, int64_t vocab);

}  // namespace yoke
