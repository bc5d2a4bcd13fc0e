#include "bench/guard_cases.hpp"

namespace stepgraph::bench {

const std::vector<decode_shape>& decode_shapes() {
  static const std::vector<decode_shape> shapes = {
      {0, 1048576, 1, 4096, 1.5},   {0, 1048576, 64, 4096, 1.75},  {0, 1048576, 64, 20000, 4.0},
      {0, 1048576, 64, 65536, 8.6}, {0, 262144, 256, 4096, 2.7},   {6, 1048576, 1, 4096, 1.35},
      {6, 1048576, 64, 4096, 1.5},  {6, 1048576, 64, 65536, 2.2},  {6, 262144, 256, 65536, 4.4},
  };
  return shapes;
}

std::vector<std::int32_t> random_slots(int requests, std::int64_t width, int page_shift) {
  std::mt19937 random(std::random_device{}());
  std::vector<std::int32_t> slots(requests * width);
  const std::int64_t page = std::int64_t{1} << page_shift;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(slots.size()); i += page) {
    const auto first = static_cast<std::int32_t>((random() & 0xfffff) << page_shift);
    for (std::int64_t x = 0; x < page && i + x < static_cast<std::int64_t>(slots.size()); ++x)
      slots[i + x] = first + static_cast<std::int32_t>(x);
  }
  return slots;
}

void run_other_ops(stream_ref, report&) {}

}  // namespace stepgraph::bench
