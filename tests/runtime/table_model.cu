#include "tests/runtime/table_model.hpp"

#include "kernels/sample/row_driver.cuh"

namespace stepgraph {
template void launch_rows_cuda<table_head>(stream_ref, const table_head&);
}
