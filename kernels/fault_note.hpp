#pragma once

#include "kernels/guard.hpp"

namespace stepgraph {

/// What a thread would report of its row, kept until its work is done: the first offence, as the first is what stays. A
/// report is as much code as what a node does for a row, and a node's threads fetch it to jump over it.
struct fault_note {
  op_id op = op_id::none;
  row_status status = row_status::ok;
  std::int64_t value = 0;

  STEPGRAPH_HD void report(op_id by, int, row_status what, std::int64_t number) {
    if (status != row_status::ok) return;
    op = by;
    status = what;
    value = number;
  }
  STEPGRAPH_HD void tell(const fault_sink& faults, int row) const {
    if (status != row_status::ok) faults.report(op, row, status, value);
  }
};

}  // namespace stepgraph
