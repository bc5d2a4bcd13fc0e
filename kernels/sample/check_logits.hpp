#pragma once

#include "graphs/error.hpp"
#include "kernels/check_pointers.hpp"
#include "kernels/sample/sampling_settings.hpp"

/// What every op over logits refuses before it launches, said once.
namespace stepgraph::detail {

inline void check_logits(const char* op, const float* logits, std::int64_t stride, std::int32_t lines,
                         std::int32_t vocab_size) {
  check_pointers(op, {{"logits", logits}});
  STEPGRAPH_EXPECTS(vocab_size > 0, op, ": vocab_size must be positive, got ", vocab_size);
  STEPGRAPH_EXPECTS(stride >= vocab_size || lines == 1, op, ": logits_stride ", stride,
                    " is less than vocab_size ", vocab_size);
}

inline void check_allowed(const char* op, const allowed_view& allowed, std::int32_t vocab_size,
                          std::int32_t lines) {
  STEPGRAPH_EXPECTS(!allowed.words || allowed.stride >= (vocab_size + 31) / 32 || lines == 1, op,
                    ": allowed.stride ", allowed.stride, " is less than the ", (vocab_size + 31) / 32,
                    " words of the vocabulary");
}

inline void check_sampling(const char* op, const sampling_view& sampling, const allowed_view& allowed,
                           std::int32_t vocab_size, std::int32_t lines) {
  check_pointers(op, {{"sampling.settings", sampling.settings}});
  STEPGRAPH_EXPECTS(sampling.count > 0, op, ": sampling.count must be positive, got ", sampling.count);
  check_allowed(op, allowed, vocab_size, lines);
}

}  // namespace stepgraph::detail
