#include "examples/llama/gguf.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <system_error>
#include <utility>

#include "graphs/error.hpp"

namespace stepgraph::llama {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read as little-endian in place");

constexpr std::uint64_t max_alignment = std::uint64_t{1} << 30;
constexpr int max_array_depth = 4;

struct element_layout {
  std::uint32_t type;
  const char* name;
  std::uint64_t block_elements;
  std::uint64_t block_bytes;
};

constexpr element_layout layouts[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},        {2, "Q4_0", 32, 18},      {3, "Q4_1", 32, 20},
    {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},     {8, "Q8_0", 32, 34},      {10, "Q2_K", 256, 84},
    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},  {13, "Q5_K", 256, 176},   {14, "Q6_K", 256, 210},
    {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74}, {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},
    {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110}, {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136},
    {24, "I8", 1, 1},         {25, "I16", 1, 2},       {26, "I32", 1, 4},        {27, "I64", 1, 8},
    {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},  {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},
    {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},
};

const element_layout* find_layout(std::uint32_t type) {
  const auto* found = std::ranges::find(layouts, type, &element_layout::type);
  return found == std::end(layouts) ? nullptr : found;
}

const char* value_type_name(gguf_value_type type) {
  constexpr const char* names[] = {"uint8",   "int8",   "uint16", "int16",  "uint32", "int32",  "float32",
                                   "boolean", "string", "array",  "uint64", "int64",  "float64"};
  return static_cast<std::uint32_t>(type) < std::size(names) ? names[static_cast<std::uint32_t>(type)]
                                                             : "unknown";
}

/// Bytes of a value of fixed size; 0 for strings and arrays.
std::uint64_t scalar_bytes(gguf_value_type type) {
  switch (type) {
    case gguf_value_type::uint8:
    case gguf_value_type::int8:
    case gguf_value_type::boolean:
      return 1;
    case gguf_value_type::uint16:
    case gguf_value_type::int16:
      return 2;
    case gguf_value_type::uint32:
    case gguf_value_type::int32:
    case gguf_value_type::float32:
      return 4;
    case gguf_value_type::uint64:
    case gguf_value_type::int64:
    case gguf_value_type::float64:
      return 8;
    case gguf_value_type::string:
    case gguf_value_type::array:
      return 0;
  }
  return 0;
}

template <class Value>
Value load(const std::byte* from) {
  Value value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Walks the file's bytes. `what()` describes what is being read; it is called only to word a refusal.
class cursor {
 public:
  cursor(std::span<const std::byte> bytes, const std::string& file) : bytes_(bytes), file_(file) {}

  std::uint64_t position() const { return position_; }
  std::uint64_t remaining() const { return bytes_.size() - position_; }

  template <class What>
  std::span<const std::byte> take(std::uint64_t count, const What& what) {
    STEPGRAPH_EXPECTS(count <= remaining(), "gguf ", file_, ": ", what(), " needs ", count, " bytes at ",
                      position_, ", the file ends at ", bytes_.size());
    auto taken = bytes_.subspan(position_, count);
    position_ += count;
    return taken;
  }

  template <class Value, class What>
  Value number(const What& what) {
    return load<Value>(take(sizeof(Value), what).data());
  }

  template <class What>
  std::span<const std::byte> string(const What& what) {
    auto length = number<std::uint64_t>([&] { return "the length of " + what(); });
    return take(length, what);
  }

  /// Refuses a count whose elements, at `least_bytes` each, the rest of the file cannot hold.
  template <class What>
  void check_count(std::uint64_t count, std::uint64_t least_bytes, const What& what) const {
    STEPGRAPH_EXPECTS(count <= remaining() / least_bytes, "gguf ", file_, ": ", what(), " has ", count,
                      " elements of at least ", least_bytes, " bytes at ", position_, ", the file ends at ",
                      bytes_.size());
  }

 private:
  std::span<const std::byte> bytes_;
  const std::string& file_;
  std::uint64_t position_ = 0;
};

template <class What>
gguf_value_type read_type(cursor& from, const std::string& file, const What& what) {
  auto number = from.number<std::uint32_t>([&] { return "the type of " + what(); });
  STEPGRAPH_EXPECTS(number <= static_cast<std::uint32_t>(gguf_value_type::float64), "gguf ", file, ": ",
                    what(), " has value type ", number, ", known are 0..12");
  return static_cast<gguf_value_type>(number);
}

template <class What>
void skip_booleans(std::span<const std::byte> bytes, const std::string& file, const What& what) {
  for (std::byte each : bytes) {
    STEPGRAPH_EXPECTS(each <= std::byte{1}, "gguf ", file, ": ", what(), " holds a boolean of value ",
                      std::to_integer<int>(each));
  }
}

/// Reads a value of `type` at the cursor; arrays are walked to their end.
template <class What>
gguf_value read_value(cursor& from, gguf_value_type type, const std::string& file, const What& what,
                      std::span<const std::byte> all, int depth = 0) {
  gguf_value value;
  value.type = type;
  if (type == gguf_value_type::string) {
    value.bytes = from.string(what);
  } else if (type == gguf_value_type::array) {
    STEPGRAPH_EXPECTS(depth < max_array_depth, "gguf ", file, ": ", what(), " nests arrays deeper than ",
                      max_array_depth);
    value.element_type = read_type(from, file, what);
    value.count = from.template number<std::uint64_t>([&] { return "the count of " + what(); });
    const std::uint64_t element = scalar_bytes(value.element_type);
    // a string takes its length at least, an array its type and count
    const std::uint64_t least = element != 0                                    ? element
                                : value.element_type == gguf_value_type::string ? 8
                                                                                : 12;
    from.check_count(value.count, least, what);
    const std::uint64_t begin = from.position();
    if (element != 0) {
      auto bytes = from.take(value.count * element, what);
      if (value.element_type == gguf_value_type::boolean) skip_booleans(bytes, file, what);
    } else {
      for (std::uint64_t i = 0; i < value.count; ++i) {
        read_value(from, value.element_type, file, what, all, depth + 1);
      }
    }
    value.bytes = all.subspan(begin, from.position() - begin);
  } else {
    value.bytes = from.take(scalar_bytes(type), what);
    if (type == gguf_value_type::boolean) skip_booleans(value.bytes, file, what);
  }
  return value;
}

gguf_tensor read_tensor_info(cursor& from, std::uint64_t index, std::uint64_t& offset,
                             const std::string& file) {
  gguf_tensor tensor;
  tensor.name = as_text(from.string([&] { return message("the name of tensor ", index); }));
  STEPGRAPH_EXPECTS(!tensor.name.empty(), "gguf ", file, ": tensor ", index, " has no name");
  auto what = [&] { return "tensor " + quoted(tensor.name); };
  auto dimensions = from.number<std::uint32_t>(what);
  STEPGRAPH_EXPECTS(dimensions >= 1 && dimensions <= 4, "gguf ", file, ": ", what(), " has ", dimensions,
                    " dimensions, allowed are 1..4");
  tensor.dimension_count = static_cast<int>(dimensions);
  for (std::uint32_t i = 0; i < dimensions; ++i) {
    tensor.shape[i] = from.number<std::uint64_t>(what);
    STEPGRAPH_EXPECTS(tensor.shape[i] > 0, "gguf ", file, ": ", what(), " has 0 elements in dimension ", i);
  }
  tensor.type = from.number<std::uint32_t>(what);
  offset = from.number<std::uint64_t>(what);
  return tensor;
}

std::uint64_t tensor_bytes(const gguf_tensor& tensor, const std::string& file) {
  const element_layout* layout = find_layout(tensor.type);
  STEPGRAPH_EXPECTS(layout != nullptr, "gguf ", file, ": tensor ", quoted(tensor.name), " has element type ",
                    tensor.type, ", which this reader does not know");
  STEPGRAPH_EXPECTS(tensor.shape[0] % layout->block_elements == 0, "gguf ", file, ": tensor ",
                    quoted(tensor.name), " has rows of ", tensor.shape[0], " elements, ", layout->name,
                    " stores blocks of ", layout->block_elements);
  // the product stays below 2^63 by dividing first
  std::uint64_t bytes = layout->block_bytes;
  const std::uint64_t factors[] = {tensor.shape[0] / layout->block_elements, tensor.shape[1], tensor.shape[2],
                                   tensor.shape[3]};
  for (std::uint64_t factor : factors) {
    STEPGRAPH_EXPECTS(bytes <= std::numeric_limits<std::int64_t>::max() / factor, "gguf ", file, ": tensor ",
                      quoted(tensor.name), " of shape [", tensor.shape[0], ", ", tensor.shape[1], ", ",
                      tensor.shape[2], ", ", tensor.shape[3], "] takes more bytes than 63 bits count");
    bytes *= factor;
  }
  return bytes;
}

std::string errno_text() {
  return std::generic_category().message(errno);
}

/// Maps a whole file; the result unmaps it when the last copy goes.
std::pair<std::shared_ptr<const void>, std::span<const std::byte>> map_file(const std::filesystem::path& path,
                                                                            const std::string& name) {
  struct descriptor {
    int number;
    ~descriptor() {
      if (number >= 0) ::close(number);
    }
  };
  descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  STEPGRAPH_EXPECTS(file.number >= 0, "gguf ", name, ": cannot be opened: ", errno_text());
  struct ::stat status {};
  STEPGRAPH_EXPECTS(::fstat(file.number, &status) == 0, "gguf ", name,
                    ": cannot be examined: ", errno_text());
  STEPGRAPH_EXPECTS(S_ISREG(status.st_mode), "gguf ", name, ": is not a regular file");
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return {};  // cannot be mapped; the parser says what is missing
  void* mapped = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.number, 0);
  STEPGRAPH_EXPECTS(mapped != MAP_FAILED, "gguf ", name, ": mapping ", size, " bytes failed: ", errno_text());
  std::shared_ptr<const void> owner(mapped,
                                    [size](const void* begin) { ::munmap(const_cast<void*>(begin), size); });
  return {std::move(owner), {static_cast<const std::byte*>(mapped), size}};
}

std::int64_t to_integer(const gguf_value& value, const std::byte* from, gguf_value_type type,
                        std::string_view key, const std::string& file) {
  switch (type) {
    case gguf_value_type::uint8:
      return load<std::uint8_t>(from);
    case gguf_value_type::int8:
      return load<std::int8_t>(from);
    case gguf_value_type::uint16:
      return load<std::uint16_t>(from);
    case gguf_value_type::int16:
      return load<std::int16_t>(from);
    case gguf_value_type::uint32:
      return load<std::uint32_t>(from);
    case gguf_value_type::int32:
      return load<std::int32_t>(from);
    case gguf_value_type::int64:
      return load<std::int64_t>(from);
    case gguf_value_type::uint64: {
      auto number = load<std::uint64_t>(from);
      STEPGRAPH_EXPECTS(number <= std::uint64_t{std::numeric_limits<std::int64_t>::max()}, "gguf ", file,
                        ": key ", quoted(key), " is ", number, ", beyond a signed 64-bit integer");
      return static_cast<std::int64_t>(number);
    }
    default:
      detail::throw_invalid_argument(
          message("gguf ", file, ": key ", quoted(key), " is of type ", value_type_name(value.type),
                  value.type == gguf_value_type::array ? " of " : "",
                  value.type == gguf_value_type::array ? value_type_name(type) : "", ", expected integers"),
          detail::source_place::current());
  }
}

double to_real(const std::byte* from, gguf_value_type type) {
  return type == gguf_value_type::float32 ? load<float>(from) : load<double>(from);
}

bool is_real(gguf_value_type type) {
  return type == gguf_value_type::float32 || type == gguf_value_type::float64;
}

}  // namespace

std::string gguf_type_name(std::uint32_t type) {
  const element_layout* layout = find_layout(type);
  return layout != nullptr ? layout->name : message("type ", type);
}

std::string quoted(std::string_view text) {
  constexpr std::size_t longest = 80;
  constexpr char digits[] = "0123456789abcdef";
  std::string out = "'";
  for (char each : text.substr(0, longest)) {
    auto byte = static_cast<unsigned char>(each);
    if (byte >= 0x20 && byte < 0x7f) {
      out += each;
    } else {
      out += {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
    }
  }
  out += text.size() > longest ? "...'" : "'";
  return out;
}

gguf_file::gguf_file(const std::filesystem::path& path) : name_(path.string()) {
  auto [owner, bytes] = map_file(path, name_);
  storage_ = std::move(owner);
  parse(bytes);
}

gguf_file::gguf_file(std::span<const std::byte> bytes, std::string name) : name_(std::move(name)) {
  parse(bytes);
}

void gguf_file::parse(std::span<const std::byte> bytes) {
  cursor from(bytes, name_);
  auto magic = as_text(from.take(4, [] { return std::string("the magic"); }));
  STEPGRAPH_EXPECTS(magic == "GGUF", "gguf ", name_, ": is not a GGUF file: it begins with ", quoted(magic),
                    magic == "FUGG" ? ", the magic of a big-endian file" : "", ", expected 'GGUF'");
  auto version = from.number<std::uint32_t>([] { return std::string("the version"); });
  STEPGRAPH_EXPECTS((version & 0xffff) != 0, "gguf ", name_, ": is big-endian (version field ", version,
                    "), only little-endian files are read");
  STEPGRAPH_EXPECTS(version == 3, "gguf ", name_, ": has version ", version, ", only version 3 is read");
  auto tensor_count = from.number<std::uint64_t>([] { return std::string("the tensor count"); });
  auto key_count = from.number<std::uint64_t>([] { return std::string("the metadata count"); });

  // a pair takes at least 8 + 1 bytes of key, 4 of type and 1 of value
  from.check_count(key_count, 14, [] { return std::string("the metadata"); });
  for (std::uint64_t i = 0; i < key_count; ++i) {
    auto key = as_text(from.string([&] { return message("metadata key ", i); }));
    STEPGRAPH_EXPECTS(!key.empty(), "gguf ", name_, ": metadata key ", i, " is empty");
    auto what = [&] { return "key " + quoted(key); };
    auto type = read_type(from, name_, what);
    auto value = read_value(from, type, name_, what, bytes);
    STEPGRAPH_EXPECTS(metadata_.emplace(key, value).second, "gguf ", name_, ": key ", quoted(key),
                      " is there twice");
  }
  const auto alignment = integer_or("general.alignment", 32);
  STEPGRAPH_EXPECTS(alignment >= 8 && alignment <= std::int64_t{max_alignment} &&
                        std::has_single_bit(static_cast<std::uint64_t>(alignment)),
                    "gguf ", name_, ": general.alignment is ", alignment, ", expected a power of two in 8..",
                    max_alignment);
  alignment_ = static_cast<std::uint64_t>(alignment);

  // a tensor takes at least 8 + 1 bytes of name, 4 of dimension count, 8 of one dimension, 4 of type and 8 of
  // offset
  from.check_count(tensor_count, 33, [] { return std::string("the list of tensors"); });
  tensors_.reserve(tensor_count);
  std::vector<std::uint64_t> offsets(tensor_count);
  for (std::uint64_t i = 0; i < tensor_count; ++i) {
    tensors_.push_back(read_tensor_info(from, i, offsets[i], name_));
    STEPGRAPH_EXPECTS(tensor_index_.emplace(tensors_[i].name, i).second, "gguf ", name_, ": tensor ",
                      quoted(tensors_[i].name), " is there twice");
  }

  const std::uint64_t data_begin = (from.position() + alignment_ - 1) / alignment_ * alignment_;
  const std::uint64_t data_size = bytes.size() > data_begin ? bytes.size() - data_begin : 0;
  for (std::uint64_t i = 0; i < tensor_count; ++i) {
    const std::uint64_t size = tensor_bytes(tensors_[i], name_);
    STEPGRAPH_EXPECTS(offsets[i] % alignment_ == 0, "gguf ", name_, ": tensor ", quoted(tensors_[i].name),
                      " begins at ", offsets[i], " of the data section, not a multiple of the alignment ",
                      alignment_);
    STEPGRAPH_EXPECTS(offsets[i] <= data_size && size <= data_size - offsets[i], "gguf ", name_, ": tensor ",
                      quoted(tensors_[i].name), " needs ", size, " bytes from ", offsets[i],
                      " of the data section, the file ends at ", data_size, " of it");
    tensors_[i].data = bytes.subspan(data_begin + offsets[i], size);
  }
  check_overlap();
}

void gguf_file::check_overlap() const {
  std::vector<const gguf_tensor*> ordered;
  ordered.reserve(tensors_.size());
  for (const auto& each : tensors_) ordered.push_back(&each);
  std::ranges::sort(ordered, {}, [](const gguf_tensor* each) { return each->data.data(); });
  for (std::size_t i = 1; i < ordered.size(); ++i) {
    const auto& before = ordered[i - 1]->data;
    STEPGRAPH_EXPECTS(before.data() + before.size() <= ordered[i]->data.data(), "gguf ", name_, ": tensors ",
                      quoted(ordered[i - 1]->name), " and ", quoted(ordered[i]->name), " overlap");
  }
}

const gguf_value& gguf_file::value(std::string_view key) const {
  auto found = metadata_.find(key);
  STEPGRAPH_EXPECTS(found != metadata_.end(), "gguf ", name_, ": key ", quoted(key), " is missing");
  return found->second;
}

const gguf_value& gguf_file::array(std::string_view key) const {
  const auto& found = value(key);
  STEPGRAPH_EXPECTS(found.type == gguf_value_type::array, "gguf ", name_, ": key ", quoted(key),
                    " is of type ", value_type_name(found.type), ", expected an array");
  return found;
}

std::int64_t gguf_file::integer(std::string_view key) const {
  const auto& found = value(key);
  return to_integer(found, found.bytes.data(), found.type, key, name_);
}

double gguf_file::real(std::string_view key) const {
  const auto& found = value(key);
  STEPGRAPH_EXPECTS(is_real(found.type), "gguf ", name_, ": key ", quoted(key), " is of type ",
                    value_type_name(found.type), ", expected float32 or float64");
  return to_real(found.bytes.data(), found.type);
}

bool gguf_file::boolean(std::string_view key) const {
  const auto& found = value(key);
  STEPGRAPH_EXPECTS(found.type == gguf_value_type::boolean, "gguf ", name_, ": key ", quoted(key),
                    " is of type ", value_type_name(found.type), ", expected boolean");
  return found.bytes[0] != std::byte{0};
}

std::string_view gguf_file::string(std::string_view key) const {
  const auto& found = value(key);
  STEPGRAPH_EXPECTS(found.type == gguf_value_type::string, "gguf ", name_, ": key ", quoted(key),
                    " is of type ", value_type_name(found.type), ", expected string");
  return as_text(found.bytes);
}

std::vector<std::int64_t> gguf_file::integers(std::string_view key) const {
  const auto& found = array(key);
  const std::uint64_t stride = scalar_bytes(found.element_type);
  std::vector<std::int64_t> out;
  if (stride != 0) out.reserve(found.count);
  for (std::uint64_t i = 0; i < found.count; ++i) {
    out.push_back(to_integer(found, found.bytes.data() + i * stride, found.element_type, key, name_));
  }
  return out;
}

std::vector<double> gguf_file::reals(std::string_view key) const {
  const auto& found = array(key);
  STEPGRAPH_EXPECTS(is_real(found.element_type) || found.count == 0, "gguf ", name_, ": key ", quoted(key),
                    " is an array of ", value_type_name(found.element_type), ", expected float32 or float64");
  const std::uint64_t stride = scalar_bytes(found.element_type);
  std::vector<double> out(found.count);
  for (std::uint64_t i = 0; i < found.count; ++i) {
    out[i] = to_real(found.bytes.data() + i * stride, found.element_type);
  }
  return out;
}

std::vector<std::string_view> gguf_file::strings(std::string_view key) const {
  const auto& found = array(key);
  STEPGRAPH_EXPECTS(found.element_type == gguf_value_type::string || found.count == 0, "gguf ", name_,
                    ": key ", quoted(key), " is an array of ", value_type_name(found.element_type),
                    ", expected strings");
  std::vector<std::string_view> out;
  out.reserve(found.count);
  cursor from(found.bytes, name_);
  for (std::uint64_t i = 0; i < found.count; ++i) {
    out.push_back(as_text(from.string([&] { return "key " + quoted(key); })));
  }
  return out;
}

std::int64_t gguf_file::integer_or(std::string_view key, std::int64_t fallback) const {
  return contains(key) ? integer(key) : fallback;
}

double gguf_file::real_or(std::string_view key, double fallback) const {
  return contains(key) ? real(key) : fallback;
}

bool gguf_file::boolean_or(std::string_view key, bool fallback) const {
  return contains(key) ? boolean(key) : fallback;
}

std::string_view gguf_file::string_or(std::string_view key, std::string_view fallback) const {
  return contains(key) ? string(key) : fallback;
}

const gguf_tensor* gguf_file::find_tensor(std::string_view name) const {
  auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

const gguf_tensor& gguf_file::tensor(std::string_view name) const {
  const gguf_tensor* found = find_tensor(name);
  STEPGRAPH_EXPECTS(found != nullptr, "gguf ", name_, ": tensor ", quoted(name), " is missing");
  return *found;
}

}  // namespace stepgraph::llama
