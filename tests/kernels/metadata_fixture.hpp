#pragma once

#include <cstdint>
#include <vector>

#include "kernels/page_source.hpp"
#include "kernels/row_lengths.hpp"
#include "tests/device_vector.hpp"
#include "tests/kernels/fault_fixture.hpp"
#include "tests/reference/batch.hpp"

namespace stepgraph {

/// A reference batch in device memory, as the kernels want it.
class device_batch {
 public:
  device_batch(stream_ref at, const reference::batch& in)
      : live_rows_(at, {static_cast<std::int32_t>(in.n)}),
        query_counts_(at, narrow(in.E)),
        seq_lens_(at, in.seq_lens),
        requests_(at, narrow(in.q)),
        delta_(at, in.delta_of.empty() ? std::vector<std::int32_t>(in.B, 0) : narrow(in.delta_of)),
        table_(at, reference::dense_table<std::int32_t>(in.source, wild)),
        reports(at, static_cast<int>(in.B)) {
    lengths = {.live_rows = live_rows_.data(),
               .rows = static_cast<std::int32_t>(in.B),
               .seq_lens = seq_lens_.data(),
               .delta = in.delta_of.empty() ? static_cast<std::int32_t>(in.delta) : 0,
               .delta_by_row = in.delta_of.empty() ? nullptr : delta_.data(),
               .cap = in.cap()};
    int shift = 0;
    while ((std::int64_t{1} << shift) < in.P) ++shift;
    source = {.table = table_.data(),
              .row_stride = in.source.stride,
              .requests = static_cast<std::int32_t>(in.source.rows),
              .columns = in.source.width,
              .page_shift = shift,
              .page_granular = in.source.page_granular,
              .pool_pages = in.source.pool_pages};
    faults = reports.sink();
  }

  static constexpr std::int32_t wild = 0x7f7f7f7f;

  row_lengths lengths;
  page_source source;
  fault_sink faults;
  const std::int32_t* query_counts() const { return query_counts_.data(); }
  const std::int32_t* requests() const { return requests_.data(); }

 private:
  static std::vector<std::int32_t> narrow(const std::vector<std::int64_t>& values) {
    return {values.begin(), values.end()};
  }
  device_vector<std::int32_t> live_rows_, query_counts_;
  device_vector<std::int64_t> seq_lens_;
  device_vector<std::int32_t> requests_, delta_, table_;

 public:
  fault_fixture reports;
};

}  // namespace stepgraph
