#include "tests/faults/careless_sum.hpp"

#include "kernels/sample/row_driver.cuh"

namespace stepgraph {
template void launch_rows_cuda<careless_sum>(stream_ref, const careless_sum&);
}
