#include "examples/llama/host_matmul.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "graphs/error.hpp"
#include "graphs/thread_pool.hpp"
#include "kernels/target_clones.hpp"

// note: rows are taken in groups of 16, one row a lane, so that a product needs no sum across lanes, and
// every load and conversion is of 32-bit lanes, which compilers vectorise well. A group is its headers, then
// its blocks of 32 columns; a line is 16 words, one for each row:
//   q4_1        a header line for each block (scale | minimum << 16); 4 lines of 8 columns, column c at bit 4
//   c q4_0        a header line for two blocks (scale | next block's scale << 16); lines as q4_1 q8_0 headers
//   as q4_0; 8 lines of 4 columns, column c at bit 8 c f16, bf16   16 lines of 2 columns, column c at bit 16
//   c f32         32 lines
// Numbers stay where they are in the word: column c of q4 is read as its value times 16^c, and the
// activations are scaled by 16^-c beforehand, which is exact. That saves a shift for each.

namespace stepgraph::llama {
namespace {

constexpr int group_rows = 16;
constexpr int block_columns = 32;
constexpr std::size_t alignment = 64;
constexpr std::int64_t prefetch_words = 1024;  // a page ahead: the core's own prefetch stops at page ends
constexpr std::size_t smallest_range_bytes = 16384;  // about a microsecond's work

/// The float of a half's bits, in a form that vectorises and meets no subnormal float, which would be slow.
/// `sign` and `magnitude` stand at a float's places. Infinities and NaNs are not kept apart; packing refuses
/// them.
STEPGRAPH_INLINE float widen_half(std::uint32_t sign, std::uint32_t magnitude) {
  const std::uint32_t normal = magnitude + 0x38000000u;  // 112 more in the exponent
  const float subnormal = std::bit_cast<float>(magnitude + 0x38800000u) - 0x1p-14f;
  return std::bit_cast<float>(sign |
                              (magnitude < 0x00800000u ? std::bit_cast<std::uint32_t>(subnormal) : normal));
}
STEPGRAPH_INLINE float widen_low_half(std::uint32_t word) {
  return widen_half((word & 0x8000u) << 16, (word & 0x7fffu) << 13);
}
STEPGRAPH_INLINE float widen_high_half(std::uint32_t word) {
  return widen_half(word & 0x80000000u, (word & 0x7fff0000u) >> 3);
}

enum class header { none, scale, scale_and_minimum };

struct q4_format {
  static constexpr int columns_a_word = 8;
  /// What the activation of a word's column `c` is multiplied with.
  static constexpr float activation_scale(int c) {
    return c == 7 ? 1.0f : 1.0f / static_cast<float>(1 << 4 * c);
  }
  template <int Column>
  STEPGRAPH_INLINE static float value(std::uint32_t word) {
    const std::uint32_t bits = Column == 7 ? word >> 28 : word & (15u << 4 * Column);
    return static_cast<float>(static_cast<std::int32_t>(bits));
  }
};

struct q4_1_format : q4_format {
  static constexpr header head = header::scale_and_minimum;
};

struct q4_0_format : q4_format {
  static constexpr header head = header::scale;
  static constexpr float zero = 8;
};

struct q8_0_format {
  static constexpr int columns_a_word = 4;
  static constexpr header head = header::scale;
  static constexpr float zero = 0;
  static constexpr float activation_scale(int) { return 0x1p-24f; }
  template <int Column>
  STEPGRAPH_INLINE static float value(std::uint32_t word) {
    return static_cast<float>(static_cast<std::int32_t>((word << (24 - 8 * Column)) & 0xff000000u));
  }
};

struct f16_format {
  static constexpr int columns_a_word = 2;
  static constexpr header head = header::none;
  static constexpr float activation_scale(int) { return 1; }
  template <int Column>
  STEPGRAPH_INLINE static float value(std::uint32_t word) {
    return Column == 0 ? widen_low_half(word) : widen_high_half(word);
  }
};

struct bf16_format {
  static constexpr int columns_a_word = 2;
  static constexpr header head = header::none;
  static constexpr float activation_scale(int) { return 1; }
  template <int Column>
  STEPGRAPH_INLINE static float value(std::uint32_t word) {
    return std::bit_cast<float>(Column == 0 ? word << 16 : word & 0xffff0000u);
  }
};

struct f32_format {
  static constexpr int columns_a_word = 1;
  static constexpr header head = header::none;
  static constexpr float activation_scale(int) { return 1; }
  template <int Column>
  STEPGRAPH_INLINE static float value(std::uint32_t word) {
    return std::bit_cast<float>(word);
  }
};

/// Calls `visit` with the format of `type`.
template <class Visit>
decltype(auto) with_format(tensor_type type, Visit visit) {
  switch (type) {
    case tensor_type::f32:
      return visit(f32_format());
    case tensor_type::f16:
      return visit(f16_format());
    case tensor_type::bf16:
      return visit(bf16_format());
    case tensor_type::q4_0:
      return visit(q4_0_format());
    case tensor_type::q4_1:
      return visit(q4_1_format());
    case tensor_type::q8_0:
      return visit(q8_0_format());
  }
  throw invalid_argument(message("host_matrix: unknown tensor type ", static_cast<int>(type)));
}

template <class Format>
constexpr std::int64_t header_words(std::int64_t blocks) {
  const std::int64_t lines = Format::head == header::none    ? 0
                             : Format::head == header::scale ? (blocks + 1) / 2
                                                             : blocks;
  return lines * group_rows;
}

template <class Format>
constexpr std::int64_t block_words = group_rows* block_columns / Format::columns_a_word;

template <class Format>
constexpr std::int64_t group_words(std::int64_t blocks) {
  return header_words<Format>(blocks) + blocks * block_words<Format>;
}

std::int64_t blocks_in(std::int64_t columns) {
  return (columns + block_columns - 1) / block_columns;
}
std::int64_t groups_in(std::int64_t rows) {
  return (rows + group_rows - 1) / group_rows;
}

/// Activations of all tokens as the kernels want them.
struct activations {
  const float* x;     // [tokens, blocks * 32], scaled for the format, zero past the columns
  const float* sums;  // [tokens, blocks], of the unscaled activations
  std::int64_t blocks;
};

template <class Format, int Tokens, int Column>
STEPGRAPH_INLINE void add_column(const std::uint32_t* line, const float* x, std::int64_t stride,
                                 float (&sums)[Tokens][2][group_rows]) {
  float weights[group_rows];
#pragma omp simd simdlen(16)
  for (int r = 0; r < group_rows; ++r) weights[r] = Format::template value<Column>(line[r]);
  for (int t = 0; t < Tokens; ++t) {
    const float factor = x[t * stride];
    float* sum = sums[t][Column % 2];
#pragma omp simd simdlen(16)
    for (int r = 0; r < group_rows; ++r) sum[r] += weights[r] * factor;
  }
}

template <class Format, int Tokens, int... Columns>
STEPGRAPH_INLINE void add_line(const std::uint32_t* line, const float* x, std::int64_t stride,
                               float (&sums)[Tokens][2][group_rows], std::integer_sequence<int, Columns...>) {
  (add_column<Format, Tokens, Columns>(line, x + Columns, stride, sums), ...);
}

/// The product of one group of rows with `Tokens` tokens from `token` on, `out` [Tokens, 16]. The order of
/// the additions of one token is the same for every value of `Tokens`.
template <class Format, int Tokens>
STEPGRAPH_INLINE void multiply_group(const std::uint32_t* group, const activations& all, std::int64_t token,
                                     float* out) {
  constexpr int lines = block_columns / Format::columns_a_word;
  const std::int64_t blocks = all.blocks;
  const std::int64_t stride = blocks * block_columns;
  const float* x = all.x + token * stride;
  const float* block_sums = all.sums + token * blocks;
  const std::uint32_t* line = group + header_words<Format>(blocks);
  float totals[Tokens][group_rows] = {};
  for (std::int64_t b = 0; b < blocks; ++b) {
    float sums[Tokens][2][group_rows] = {};  // of even and of odd columns: two chains of additions
    for (int i = 0; i < lines; ++i) {
      __builtin_prefetch(line + prefetch_words);  // past the end too, where it does nothing
      add_line<Format, Tokens>(line, x, stride, sums,
                               std::make_integer_sequence<int, Format::columns_a_word>());
      line += group_rows;
      x += Format::columns_a_word;
    }
    for (int t = 0; t < Tokens; ++t) {
      const float* even = sums[t][0];
      const float* odd = sums[t][1];
      float* total = totals[t];
      if constexpr (Format::head == header::none) {
#pragma omp simd simdlen(16)
        for (int r = 0; r < group_rows; ++r) total[r] += even[r] + odd[r];
      } else if constexpr (Format::head == header::scale) {
        const std::uint32_t* head = group + b / 2 * group_rows;
        const std::uint32_t down = b % 2 * 16;
        const float offset = -Format::zero * block_sums[t * blocks + b];
#pragma omp simd simdlen(16)
        for (int r = 0; r < group_rows; ++r) {
          total[r] += widen_low_half(head[r] >> down) * (even[r] + odd[r] + offset);
        }
      } else {
        const std::uint32_t* head = group + b * group_rows;
        const float sum = block_sums[t * blocks + b];
#pragma omp simd simdlen(16)
        for (int r = 0; r < group_rows; ++r) {
          const float partial = total[r] + widen_low_half(head[r]) * (even[r] + odd[r]);
          total[r] = partial + widen_high_half(head[r]) * sum;
        }
      }
    }
  }
  std::memcpy(out, totals, sizeof totals);
}

using group_kernel = void (*)(const std::uint32_t* group, const activations& all, std::int64_t token,
                              float* out);

#define STEPGRAPH_GROUP_KERNELS(format)                                                          \
  STEPGRAPH_TARGET_CLONES void format##_by_1(const std::uint32_t* group, const activations& all, \
                                             std::int64_t token, float* out) {                   \
    multiply_group<format##_format, 1>(group, all, token, out);                                  \
  }                                                                                              \
  STEPGRAPH_TARGET_CLONES void format##_by_2(const std::uint32_t* group, const activations& all, \
                                             std::int64_t token, float* out) {                   \
    multiply_group<format##_format, 2>(group, all, token, out);                                  \
  }                                                                                              \
  STEPGRAPH_TARGET_CLONES void format##_by_4(const std::uint32_t* group, const activations& all, \
                                             std::int64_t token, float* out) {                   \
    multiply_group<format##_format, 4>(group, all, token, out);                                  \
  }                                                                                              \
  constexpr group_kernel kernels_of(format##_format, int tokens) {                               \
    return tokens == 1 ? format##_by_1 : tokens == 2 ? format##_by_2 : format##_by_4;            \
  }
STEPGRAPH_GROUP_KERNELS(f32)
STEPGRAPH_GROUP_KERNELS(f16)
STEPGRAPH_GROUP_KERNELS(bf16)
STEPGRAPH_GROUP_KERNELS(q4_0)
STEPGRAPH_GROUP_KERNELS(q4_1)
STEPGRAPH_GROUP_KERNELS(q8_0)
#undef STEPGRAPH_GROUP_KERNELS

std::uint32_t load_16(const std::byte* bytes) {
  std::uint16_t bits;
  std::memcpy(&bits, bytes, sizeof bits);
  return bits;
}

std::uint32_t load_finite_half(const std::byte* bytes, std::int64_t row) {
  const std::uint32_t bits = load_16(bytes);
  STEPGRAPH_EXPECTS((bits & 0x7c00u) != 0x7c00u, "host_matrix: row ", row,
                    " holds a half that is not finite");
  return bits;
}

/// One row's part of packing: places columns of GGUF's layout into the row's lane of a group.
class lane_writer {
 public:
  lane_writer(const tensor& weight, std::int64_t row, std::uint32_t* lane)
      : columns_(weight.columns),
        row_(row),
        bytes_(weight.data.data() + row_bytes(weight.type, weight.columns) * static_cast<std::size_t>(row)),
        lane_(lane) {}

  void write(q4_0_format) {
    each_block<q4_0_format>(18, 2, [](const std::byte* data, int c) { return nibble(data, c); });
  }
  void write(q4_1_format) {
    each_block<q4_1_format>(20, 4, [](const std::byte* data, int c) { return nibble(data, c); });
  }
  void write(q8_0_format) {
    each_block<q8_0_format>(34, 2, [](const std::byte* data, int c) { return std::uint32_t(data[c]); });
  }
  void write(f16_format) {
    for (std::int64_t c = 0; c < columns_; ++c)
      put(c / 2, load_finite_half(bytes_ + 2 * c, row_), c % 2 * 16);
  }
  void write(bf16_format) {
    for (std::int64_t c = 0; c < columns_; ++c) put(c / 2, load_16(bytes_ + 2 * c), c % 2 * 16);
  }
  void write(f32_format) {
    for (std::int64_t c = 0; c < columns_; ++c) std::memcpy(&lane_[c * group_rows], bytes_ + 4 * c, 4);
  }

 private:
  static std::uint32_t nibble(const std::byte* data, int c) {
    return std::uint32_t(data[c % 16]) >> (c < 16 ? 0 : 4) & 15;
  }

  void put(std::int64_t line, std::uint32_t bits, std::int64_t at) { lane_[line * group_rows] |= bits << at; }

  template <class Format, class Element>
  void each_block(std::int64_t block_bytes, std::int64_t head_bytes, Element element) {
    constexpr int per_word = Format::columns_a_word;
    const std::int64_t blocks = columns_ / block_columns;
    const std::int64_t first_line = header_words<Format>(blocks) / group_rows;
    for (std::int64_t b = 0; b < blocks; ++b) {
      const std::byte* block = bytes_ + b * block_bytes;
      if constexpr (Format::head == header::scale) {
        put(b / 2, load_finite_half(block, row_), b % 2 * 16);
      } else {
        put(b, load_finite_half(block, row_), 0);
        put(b, load_finite_half(block + 2, row_), 16);
      }
      for (int c = 0; c < block_columns; ++c) {
        put(first_line + (b * block_columns + c) / per_word, element(block + head_bytes, c),
            c % per_word * (32 / per_word));
      }
    }
  }

  std::int64_t columns_;
  std::int64_t row_;
  const std::byte* bytes_;
  std::uint32_t* lane_;
};

STEPGRAPH_TARGET_CLONES void scale_block(const float* x, const float* scales, float* scaled) {
#pragma omp simd
  for (int i = 0; i < block_columns; ++i) scaled[i] = x[i] * scales[i];
}

/// Fills the caller's scratch; what it returns is good until this thread's next call.
template <class Format>
activations prepare(std::span<const float> x, std::int64_t tokens, std::int64_t columns) {
  thread_local std::vector<float> scaled;
  thread_local std::vector<float> sums;
  const std::int64_t blocks = blocks_in(columns);
  const auto size = static_cast<std::size_t>(tokens * blocks);
  if (sums.size() < size) {
    sums.resize(size);
    scaled.resize(size * block_columns);
  }
  float scales[block_columns];
  for (int c = 0; c < block_columns; ++c) scales[c] = Format::activation_scale(c % Format::columns_a_word);
  for (std::int64_t token = 0; token < tokens; ++token) {
    for (std::int64_t b = 0; b < blocks; ++b) {
      const float* from = x.data() + token * columns + b * block_columns;
      float whole[block_columns] = {};
      const std::int64_t there = std::min<std::int64_t>(block_columns, columns - b * block_columns);
      std::memcpy(whole, from, static_cast<std::size_t>(there) * sizeof(float));
      const std::int64_t at = token * blocks + b;
      scale_block(whole, scales, &scaled[static_cast<std::size_t>(at * block_columns)]);
      float four[4] = {};
      for (int c = 0; c < block_columns; ++c) four[c % 4] += whole[c];
      sums[static_cast<std::size_t>(at)] = (four[0] + four[1]) + (four[2] + four[3]);
    }
  }
  return {scaled.data(), sums.data(), blocks};
}

}  // namespace

void host_matrix::aligned_delete::operator()(std::uint32_t* words) const {
  ::operator delete(words, std::align_val_t(alignment));
}

host_matrix::host_matrix(const tensor& weight)
    : type_(weight.type), rows_(weight.rows), columns_(weight.columns) {
  STEPGRAPH_EXPECTS(rows_ > 0 && columns_ > 0, "host_matrix: needs rows and columns, got [", rows_, ", ",
                    columns_, "]");
  const std::size_t needed = row_bytes(type_, columns_) * static_cast<std::size_t>(rows_);
  STEPGRAPH_EXPECTS(weight.data.size() >= needed, "host_matrix: tensor [", rows_, ", ", columns_, "] needs ",
                    needed, " bytes, has ", weight.data.size());
  with_format(type_, [&]<class Format>(Format format) {
    const std::int64_t words = group_words<Format>(blocks_in(columns_));
    bytes_ = static_cast<std::size_t>(words * groups_in(rows_)) * sizeof(std::uint32_t);
    words_.reset(static_cast<std::uint32_t*>(::operator new(bytes_, std::align_val_t(alignment))));
    std::memset(words_.get(), 0, bytes_);
    for (std::int64_t row = 0; row < rows_; ++row) {
      lane_writer(weight, row, words_.get() + row / group_rows * words + row % group_rows).write(format);
    }
  });
}

void matmul(const host_matrix& weight, std::span<const float> x, std::span<float> y, int tokens,
            thread_pool& pool) {
  const std::int64_t rows = weight.rows_;
  const std::int64_t columns = weight.columns_;
  STEPGRAPH_EXPECTS(tokens >= 0 && std::ssize(x) == tokens * columns && std::ssize(y) == tokens * rows,
                    "matmul: matrix [", rows, ", ", columns, "], ", tokens, " tokens: needs ",
                    tokens * columns, " inputs and ", tokens * rows, " outputs, got ", x.size(), " and ",
                    y.size());
  if (tokens == 0 || rows == 0) return;
  with_format(weight.type_, [&]<class Format>(Format format) {
    const activations all = prepare<Format>(x, tokens, columns);
    const std::int64_t words = group_words<Format>(all.blocks);
    const auto grain = static_cast<std::int64_t>(
        smallest_range_bytes / (static_cast<std::size_t>(words * tokens) * sizeof(std::uint32_t)) + 1);
    pool.parallel_for(groups_in(rows), grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t group = begin; group < end; ++group) {
        const std::uint32_t* group_data = weight.words_.get() + group * words;
        const std::int64_t first_row = group * group_rows;
        const auto live = static_cast<std::size_t>(std::min<std::int64_t>(group_rows, rows - first_row));
        for (std::int64_t token = 0; token < tokens;) {
          const int taken = tokens - token >= 4 ? 4 : tokens - token >= 2 ? 2 : 1;
          alignas(alignment) float out[4 * group_rows];
          kernels_of(format, taken)(group_data, all, token, out);
          for (int t = 0; t < taken; ++t, ++token) {
            std::memcpy(&y[static_cast<std::size_t>(token * rows + first_row)], out + t * group_rows,
                        live * sizeof(float));
          }
        }
      }
    });
  });
}

}  // namespace stepgraph::llama
