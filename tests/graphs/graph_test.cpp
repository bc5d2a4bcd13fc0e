#include "graphs/graph.hpp"

#include <doctest/doctest.h>

#include <sstream>
#include <vector>

#include "graphs/counters.hpp"
#include "graphs/error.hpp"
#include "tests/device_vector.hpp"
#include "tests/test_device.hpp"

using namespace stepgraph;

TEST_CASE("a captured graph runs only when launched, and with the addresses it was captured with") {
  const stream at(test_device());
  device_vector<int> from(at, {1, 2, 3}), to(at, 3, 0);
  const graph made = capture(at, [&](stream_ref s) { s.copy(to.data(), from.data(), 12); });
  CHECK(made.node_count() == 1);
  CHECK(to.get() == std::vector<int>{0, 0, 0});
  const graph_exec exec = made.instantiate();
  from.set({4, 5, 6});
  exec.launch(at);
  CHECK(to.get() == std::vector<int>{4, 5, 6});
  CHECK(exec.node_count() == 1);
}

TEST_CASE("counters count captures, instantiations, updates and launches") {
  const stream at(test_device());
  device_vector<int> data(at, 4, 0);
  const activity before = activity_now();
  const graph ones = capture(at, [&](stream_ref s) { s.fill(data.data(), 1, 4); });
  const graph twos = capture(at, [&](stream_ref s) { s.fill(data.data(), 2, 4); });
  graph_exec exec = ones.instantiate();
  const update_result updated = exec.update(twos);
  CHECK(updated.updated);
  exec.launch(at);
  const activity did = activity_now() - before;
  CHECK(did.captures == 2);
  CHECK(did.instantiations == 1);
  CHECK(did.updates == 1);
  CHECK(did.launches == 1);
  CHECK(did.allocations == 0);
  CHECK(data.get()[0] == 0x02020202);
}

TEST_CASE("an update to another topology is refused with a reason and changes nothing") {
  const stream at(test_device());
  device_vector<int> data(at, 4, 0);
  const graph one = capture(at, [&](stream_ref s) { s.fill(data.data(), 1, 4); });
  const graph two = capture(at, [&](stream_ref s) {
    s.fill(data.data(), 2, 4);
    s.fill(data.data(), 3, 4);
  });
  graph_exec exec = one.instantiate();
  const update_result result = exec.update(two);
  CHECK_FALSE(result.updated);
  CHECK_FALSE(result.reason.empty());
  exec.launch(at);
  CHECK(data.get()[0] == 0x01010101);
}

TEST_CASE("a body that throws leaves the stream usable and nothing captured") {
  const stream at(test_device());
  device_vector<int> data(at, 1, 0);
  const activity before = activity_now();
  CHECK_THROWS_WITH_AS(capture(at,
                               [&](stream_ref s) {
                                 s.fill(data.data(), 9, 4);
                                 throw std::runtime_error("body failed");
                               }),
                       "body failed", std::runtime_error);
  CHECK((activity_now() - before).captures == 0);
  CHECK_FALSE(at.ref().is_capturing());
  CHECK(data.get()[0] == 0);
  CHECK(capture(at, [&](stream_ref s) { s.fill(data.data(), 1, 4); }).node_count() == 1);
}

TEST_CASE("lost-launch: work on a stream outside the capture, a synchronisation or an allocation spoils it") {
  const stream at(test_device()), other(test_device());
  device_vector<int> data(at, 1, 0);
  SUBCASE("another stream") {
    CHECK_THROWS_AS(capture(at, [&](stream_ref) { other.ref().fill(data.data(), 1, 4); }), capture_error);
  }
  SUBCASE("a synchronisation") {
    CHECK_THROWS_AS(capture(at, [&](stream_ref s) { s.synchronize(); }), capture_error);
  }
  SUBCASE("an allocation") {
    CHECK_THROWS_AS(capture(at, [&](stream_ref s) { buffer(device_memory(s.where()), 16); }), capture_error);
  }
  SUBCASE("even if the body swallows the exception") {
    CHECK_THROWS_AS(capture(at,
                            [&](stream_ref s) {
                              try {
                                s.synchronize();
                              } catch (const capture_error&) {
                              }
                            }),
                    capture_error);
  }
  CHECK(data.get()[0] == 0);
  CHECK_FALSE(at.ref().is_capturing());
}

TEST_CASE("a forked stream joins the capture through an event, and rejoins") {
  const stream at(test_device()), side(test_device());
  device_vector<int> data(at, 2, 0);
  event forked(test_device()), joined(test_device());
  const graph made = capture(at, [&](stream_ref s) {
    forked.record(s);
    side.ref().wait(forked);
    side.ref().fill(data.data(), 1, 4);
    s.fill(data.data() + 1, 2, 4);
    joined.record(side);
    s.wait(joined);
  });
  CHECK(made.node_count() == 2);
  CHECK_FALSE(side.ref().is_capturing());
  made.instantiate().launch(at);
  CHECK(data.get() == std::vector<int>{0x01010101, 0x02020202});
}

TEST_CASE("the DOT dump names a graph") {
  const stream at(test_device());
  device_vector<int> data(at, 1, 0);
  std::ostringstream out;
  capture(at, [&](stream_ref s) { s.fill(data.data(), 1, 4); }).dot(out);
  CHECK(out.str().find("digraph") != std::string::npos);
}

TEST_CASE("events order streams and measure time") {
  const stream at(test_device());
  event start(test_device(), event::timing::on), end(test_device(), event::timing::on);
  device_vector<int> data(at, 1, 0);
  start.record(at);
  at.ref().fill(data.data(), 1, 4);
  end.record(at);
  end.synchronize();
  CHECK(end.query());
  CHECK(end.milliseconds_since(start) >= 0);
}

TEST_CASE("a graph of one device is refused by a stream of another" *
          doctest::skip(device::cuda_count() == 0)) {
  const stream on_host(device::host()), on_gpu(device::cuda());
  const graph_exec exec = capture(on_host, [](stream_ref) {}).instantiate();
  CHECK_THROWS_AS(exec.launch(on_gpu), invalid_argument);
}
