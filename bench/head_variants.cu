#include <cstdio>
#include <random>
#include <vector>
#include "bench/graph_chain.hpp"
#include "examples/llama/ranked_head.hpp"
#include "examples/llama/successor.cuh"
#include "graphs/memory_resource.hpp"
#include "kernels/launch.cuh"
using namespace stepgraph;
struct clear_params {
  unsigned long long* numbers;
  int count;
};
__global__ void clear_kernel(const __grid_constant__ clear_params p) {
  wait_for_predecessor();
  for (int i = threadIdx.x; i < p.count; i += blockDim.x) p.numbers[i] = 0;
}
int main() {
  const device where = device::cuda();
  const stream at(where);
  const int vocab = 49152, hidden = 576;
  std::minstd_rand random(7);
  const auto some = [&] { return from_float<bf16>(static_cast<float>(random() % 2001) * 1e-3f - 1.0f); };
  std::vector<bf16> w(std::size_t(vocab) * hidden), x(320 * hidden), same(320 * hidden);
  for (auto& v : w) v = some();
  for (auto& v : x) v = some();
  for (int i = 0; i < 320 * hidden; ++i) same[i] = x[i % hidden];
  buffer dw(device_memory(where), w.size() * 2), dx(device_memory(where), x.size() * 2),
      ds(device_memory(where), x.size() * 2), dn(device_memory(where), 8 * 320);
  at.ref().copy(dw.data(), w.data(), dw.bytes());
  at.ref().copy(dx.data(), x.data(), dx.bytes());
  at.ref().copy(ds.data(), same.data(), ds.bytes());
  at.synchronize();
  for (const bool alike : {false, true})
    for (const int lines : {1, 5, 8, 32, 40, 64, 160, 320}) {
      double base = 0;
      std::printf("%s %3d lines:", alike ? "same" : "each", lines);
      for (const int mode : {-1, 0, 1, 2, 3, -1}) {
        const auto t =
            bench::time_chain(at,
                              [&](stream_ref s) {
                                launch<clear_params>(s, "clear", clear_kernel, dim3(1), dim3(256),
                                                     {dn.as<unsigned long long>(), lines});
                                llama::multiply(s, {.weight = dw.as<const bf16>(),
                                                    .rows = vocab,
                                                    .columns = hidden,
                                                    .x = (alike ? ds : dx).as<const bf16>(),
                                                    .tokens = lines,
                                                    .ranked = mode < 0 ? nullptr : dn.as<std::uint64_t>(),
                                                    .experiment = mode < 0 ? 0 : mode});
                              },
                              {.nodes = 10, .replays = 10, .count = 11});
        if (mode < 0 && base == 0) {
          base = t.median;
          std::printf(" product %6.2f |", base);
        } else if (mode < 0)
          std::printf(" again %6.2f", t.median);
        else
          std::printf(" [%d] +%5.2f", mode, t.median - base);
      }
      std::printf("\n");
    }
}
