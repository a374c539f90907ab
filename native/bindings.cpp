// The only file that knows Python. Everything it calls is plain C++ over spans.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "blend.hpp"
#include "builder.hpp"
#include "gpt.hpp"
#include "mapping.hpp"
#include "shuffle.hpp"
#include "windows.hpp"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace tokenloom {
namespace {

template <typename Value>
using Array = nb::ndarray<Value, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename Value>
using Matrix = nb::ndarray<Value, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <typename Value>
using Cube = nb::ndarray<Value, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using AnyArray = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

template <typename Value, typename Holder>
std::span<Value> as_span(const Holder& array) {
  return {array.data(), array.size()};
}

template <typename Value>
UnalignedArray<Value> as_unaligned(const Array<const Value>& array) {
  return {reinterpret_cast<const std::uint8_t*>(array.data()), array.size()};
}

IntegerArray integer_array(const AnyArray& array, const char* name) {
  IntegerArray::Kind kind{};
  if (array.dtype() == nb::dtype<std::int32_t>()) {
    kind = IntegerArray::Kind::kInt32;
  } else if (array.dtype() == nb::dtype<std::uint32_t>()) {
    kind = IntegerArray::Kind::kUint32;
  } else if (array.dtype() == nb::dtype<std::int64_t>()) {
    kind = IntegerArray::Kind::kInt64;
  } else {
    throw nb::type_error((std::string(name) + " must be int32, uint32 or int64").c_str());
  }
  return {array.data(), static_cast<std::int64_t>(array.size()), kind};
}

template <typename Value>
nb::ndarray<nb::numpy, Value, nb::ndim<1>> to_numpy(std::vector<Value>&& values) {
  auto* owned = new std::vector<Value>(std::move(values));
  nb::capsule owner(owned, [](void* pointer) noexcept { delete static_cast<std::vector<Value>*>(pointer); });
  return {owned->data(), {owned->size()}, owner};
}

template <typename Element>
void shuffle(Mt19937& generator, const Array<Element>& values) {
  nb::gil_scoped_release release;
  legacy_shuffle(as_span<Element>(values), generator);
}

template <typename Document, typename Row>
void sample_index(const Array<const std::int32_t>& lengths, const Array<const Document>& document_index,
                  std::int64_t window_length, std::int64_t extra, const Matrix<Row>& out) {
  if (out.shape(0) < 1 || out.shape(1) != 2) throw nb::value_error("out must be [num_windows + 1, 2]");
  if (window_length < 1 || extra < 0 || extra > 1)
    throw nb::value_error("window_length must be at least 1, and extra 0 or 1");
  nb::gil_scoped_release release;
  build_sample_index(as_unaligned(lengths), as_span<const Document>(document_index), window_length,
                     extra, static_cast<std::int64_t>(out.shape(0)) - 1, out.data());
}

nb::ndarray<nb::numpy, const std::uint8_t, nb::ndim<1>> map_whole_file(const nb::bytes& path) {
  Mapping mapping;
  int failure = 0;
  {
    nb::gil_scoped_release release;
    try {
      mapping = map_file(path.c_str());
    } catch (const std::system_error& error) {
      failure = error.code().value();
    }
  }
  if (failure != 0) {
    errno = failure;
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
  }
  auto* owned = new Mapping(mapping);
  nb::capsule owner(owned, [](void* pointer) noexcept {
    const std::unique_ptr<Mapping> last(static_cast<Mapping*>(pointer));
    unmap(*last);
  });
  return {mapping.data, {mapping.size}, owner};
}

template <typename DatasetId>
void blending_indices(const Array<const double>& weights, const std::optional<Array<const std::int64_t>>& sizes,
                      const Array<DatasetId>& dataset_index, const Array<std::int64_t>& sample_index) {
  if (dataset_index.size() != sample_index.size()) throw nb::value_error("both outputs must be equally long");
  if (sizes && sizes->size() != weights.size()) throw nb::value_error("sizes must be as many as weights");
  if (weights.size() == 0) throw nb::value_error("expected at least one dataset");
  nb::gil_scoped_release release;
  Blend blend(as_span<const double>(weights),
              sizes ? as_span<const std::int64_t>(*sizes) : std::span<const std::int64_t>{});
  blend.fill(static_cast<std::int64_t>(dataset_index.size()), dataset_index.data(), sample_index.data());
}

void blending_counts(const Array<const double>& weights, std::int64_t size, const Array<std::int64_t>& out) {
  if (out.size() != weights.size() || weights.size() == 0 || size < 0)
    throw nb::value_error("out must be as long as weights, at least one, and size not negative");
  nb::gil_scoped_release release;
  Blend blend(as_span<const double>(weights), {});
  blend.skip(size);
  blend.counts(as_span<std::int64_t>(out));
}

// Calls `function` with a value of the token type that `code` (the .idx dtype code) names.
template <typename Function>
void with_token_type(int code, Function&& function) {
  switch (code) {
    case 1: function(std::uint8_t{}); break;
    case 2: function(std::int8_t{}); break;
    case 3: function(std::int16_t{}); break;
    case 4: function(std::int32_t{}); break;
    case 5: function(std::int64_t{}); break;
    case 8: function(std::uint16_t{}); break;
    default: throw nb::type_error(("dtype code " + std::to_string(code) + " is not an integer type").c_str());
  }
}

// Positions to spans, holding the arrays it reads.
class WindowReader {
 public:
  WindowReader(Array<const std::int32_t> lengths, AnyArray document_index, AnyArray sample_index,
               AnyArray shuffle_index, std::int64_t window_length, std::int64_t extra, std::int64_t num_tokens)
      : lengths_(std::move(lengths)),
        document_index_(std::move(document_index)),
        sample_index_(std::move(sample_index)),
        shuffle_index_(std::move(shuffle_index)) {
    windows_.lengths = as_unaligned(lengths_);
    windows_.document_index = integer_array(document_index_, "document_index");
    windows_.sample_index = integer_array(sample_index_, "sample_index");
    windows_.shuffle_index = integer_array(shuffle_index_, "shuffle_index");
    windows_.window_length = window_length;
    windows_.extra = extra;
    windows_.num_tokens = num_tokens;
  }

  const Windows& windows() const { return windows_; }

  nb::tuple spans(const Array<const std::int64_t>& positions, bool keep_empty) const {
    std::vector<Span> spans;
    std::vector<std::int64_t> row_offsets{0};
    {
      nb::gil_scoped_release release;
      for (const std::int64_t position : as_span<const std::int64_t>(positions)) {
        windows_.append_spans(position, keep_empty, spans);
        row_offsets.push_back(static_cast<std::int64_t>(spans.size()));
      }
    }
    std::vector<std::int64_t> sequences, starts, lengths;
    for (const Span& span : spans) {
      sequences.push_back(span.sequence);
      starts.push_back(span.start);
      lengths.push_back(span.length);
    }
    return nb::make_tuple(to_numpy(std::move(sequences)), to_numpy(std::move(starts)), to_numpy(std::move(lengths)),
                          to_numpy(std::move(row_offsets)));
  }

 private:
  Array<const std::int32_t> lengths_;
  AnyArray document_index_, sample_index_, shuffle_index_;
  Windows windows_;
};

class GptFiller {
 public:
  GptFiller(std::int64_t sequence_length, std::int64_t extra, std::int64_t pad_id, std::int64_t eod_id,
            bool reset_position_ids, bool reset_attention_mask, bool eod_mask_loss, bool inter_document_masking)
      : options_{sequence_length,      extra,         pad_id, eod_id, reset_position_ids,
                 reset_attention_mask, eod_mask_loss, inter_document_masking} {
    if (sequence_length < 1 || sequence_length > std::numeric_limits<std::int32_t>::max())
      throw nb::value_error("sequence_length must be in [1, 2147483647]");
    if (extra != 0 && extra != 1) throw nb::value_error("extra must be 0 or 1");
  }

  using Tokens = Matrix<std::int64_t>;
  using LossMask = Matrix<float>;
  using AttentionMask = std::optional<Cube<bool>>;
  using CuSeqlens = std::optional<Matrix<std::int32_t>>;
  using MaxSeqlen = std::optional<Array<std::int32_t>>;

  // Rows of a batch, straight from the mapped file.
  void fill(const WindowReader& reader, const Array<const std::uint8_t>& bytes,
            const Array<const std::int64_t>& pointers, int dtype_code, const Array<const std::int64_t>& positions,
            const Tokens& tokens, const Tokens& labels, const LossMask& loss_mask, const Tokens& position_ids,
            const AttentionMask& attention_mask, const CuSeqlens& cu_seqlens, const MaxSeqlen& max_seqlen) const {
    const Outputs outputs{tokens, labels, loss_mask, position_ids, attention_mask, cu_seqlens, max_seqlen};
    check(outputs, positions.size());
    if (pointers.size() < reader.windows().lengths.size())
      throw nb::value_error("pointers must be as many as sequence lengths");
    with_token_type(dtype_code, [&](auto zero) {
      using Token = decltype(zero);
      const MappedTokens source{bytes.data(), static_cast<std::int64_t>(bytes.size()),
                                as_unaligned(pointers), sizeof(Token)};
      const std::int64_t capacity = options_.sequence_length + options_.extra;
      nb::gil_scoped_release release;
      std::vector<Token> text(static_cast<std::size_t>(capacity));
      std::vector<Span> spans;
      std::vector<std::int64_t> run_starts;
      for (std::size_t i = 0; i < positions.size(); ++i) {
        spans.clear();
        reader.windows().append_spans(positions.data()[i], options_.inter_document_masking, spans);
        if (spans.size() == 1 && spans[0].length <= capacity) {
          // Most samples of long documents are one run of bytes: no copy before the widening one.
          const std::uint8_t* begin = source.at(spans[0]);
          if (reinterpret_cast<std::uintptr_t>(begin) % alignof(Token) == 0) {
            finish_gpt_row(reinterpret_cast<const Token*>(begin), spans[0].length, std::span<const Span>(spans),
                           options_, run_starts, row(outputs, i));
            continue;
          }
        }
        const std::int64_t filled = gather<Token>(source, spans, capacity, text.data());
        finish_gpt_row(text.data(), filled, std::span<const Span>(spans), options_, run_starts, row(outputs, i));
      }
    });
  }

  // The same from tokens that were read elsewhere: text[i, : filled] of each row are real, spans are its documents.
  void fill_from_text(const Matrix<const std::int64_t>& text, const Array<const std::int64_t>& span_lengths,
                      const Array<const std::int64_t>& row_offsets, const Tokens& tokens, const Tokens& labels,
                      const LossMask& loss_mask, const Tokens& position_ids, const AttentionMask& attention_mask,
                      const CuSeqlens& cu_seqlens, const MaxSeqlen& max_seqlen) const {
    const Outputs outputs{tokens, labels, loss_mask, position_ids, attention_mask, cu_seqlens, max_seqlen};
    const std::size_t count = text.shape(0);
    const std::int64_t capacity = options_.sequence_length + options_.extra;
    check(outputs, count);
    if (static_cast<std::int64_t>(text.shape(1)) != capacity || row_offsets.size() != count + 1)
      throw nb::value_error("text must be [rows, sequence_length + extra] and row_offsets [rows + 1]");
    nb::gil_scoped_release release;
    std::vector<Span> spans;
    std::vector<std::int64_t> run_starts;
    for (std::size_t i = 0; i < count; ++i) {
      const std::int64_t begin = row_offsets.data()[i];
      const std::int64_t end = row_offsets.data()[i + 1];
      if (begin < 0 || end < begin || end > static_cast<std::int64_t>(span_lengths.size()))
        throw std::out_of_range("row_offsets do not fit span_lengths");
      spans.clear();
      std::int64_t filled = 0;
      for (std::int64_t j = begin; j < end; ++j) {
        spans.push_back({0, 0, span_lengths.data()[j]});
        filled += span_lengths.data()[j];
      }
      if (filled < 0 || filled > capacity) throw std::out_of_range("a row's spans hold more tokens than the row");
      finish_gpt_row(text.data() + static_cast<std::int64_t>(i) * capacity, filled, std::span<const Span>(spans),
                     options_, run_starts, row(outputs, i));
    }
  }

 private:
  struct Outputs {
    const Tokens& tokens;
    const Tokens& labels;
    const LossMask& loss_mask;
    const Tokens& position_ids;
    const AttentionMask& attention_mask;
    const CuSeqlens& cu_seqlens;
    const MaxSeqlen& max_seqlen;
  };

  void check(const Outputs& out, std::size_t rows) const {
    const auto length = static_cast<std::size_t>(options_.sequence_length);
    const auto fits = [&](const auto& matrix, std::size_t width) {
      return matrix.shape(0) == rows && matrix.shape(1) == width;
    };
    bool ok = fits(out.tokens, length) && fits(out.labels, length) && fits(out.loss_mask, length) &&
              fits(out.position_ids, length);
    if (out.attention_mask)
      ok = ok && fits(*out.attention_mask, length) && out.attention_mask->shape(2) == length;
    ok = ok && out.cu_seqlens.has_value() == options_.inter_document_masking &&
         out.max_seqlen.has_value() == options_.inter_document_masking;
    if (out.cu_seqlens && out.max_seqlen) ok = ok && fits(*out.cu_seqlens, length + 1) && out.max_seqlen->size() == rows;
    if (!ok) throw nb::value_error("an output has the wrong shape, or is missing");
  }

  GptRow row(const Outputs& out, std::size_t index) const {
    const auto length = static_cast<std::size_t>(options_.sequence_length);
    const std::size_t at = index * length;
    return {out.tokens.data() + at,
            out.labels.data() + at,
            out.loss_mask.data() + at,
            out.position_ids.data() + at,
            out.attention_mask ? reinterpret_cast<std::uint8_t*>(out.attention_mask->data()) + at * length : nullptr,
            out.cu_seqlens ? out.cu_seqlens->data() + index * (length + 1) : nullptr,
            out.max_seqlen ? out.max_seqlen->data() + index : nullptr};
  }

  GptOptions options_;
};

void gather_spans(const Array<const std::uint8_t>& bytes, const Array<const std::int64_t>& pointers, int dtype_code,
                  const Array<const std::int64_t>& sequences, const Array<const std::int64_t>& starts,
                  const Array<const std::int64_t>& lengths, const nb::ndarray<nb::ndim<1>, nb::c_contig>& out) {
  if (sequences.size() != starts.size() || sequences.size() != lengths.size())
    throw nb::value_error("sequences, starts and lengths must be equally long");
  with_token_type(dtype_code, [&](auto zero) {
    using Token = decltype(zero);
    if (out.dtype() != nb::dtype<Token>()) throw nb::type_error("out must have the file's dtype");
    const MappedTokens source{bytes.data(), static_cast<std::int64_t>(bytes.size()),
                              as_unaligned(pointers), sizeof(Token)};
    std::vector<Span> spans;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const Span span{sequences.data()[i], starts.data()[i], lengths.data()[i]};
      if (span.sequence < 0 || span.sequence >= static_cast<std::int64_t>(pointers.size()) || span.start < 0 ||
          span.length < 0)
        throw std::out_of_range("span " + std::to_string(i) + " is outside the dataset");
      spans.push_back(span);
    }
    nb::gil_scoped_release release;
    gather<Token>(source, spans, static_cast<std::int64_t>(out.size()), static_cast<Token*>(out.data()));
  });
}

// --- IndexedDatasetBuilder -------------------------------------------------------------------------------------

// A view of any object with the buffer protocol; far cheaper per call than an ndarray argument, and the builder is
// called once per document.
class BufferView {
 public:
  explicit BufferView(nb::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
      PyErr_Clear();
      throw nb::type_error("tokens must be a list or a contiguous buffer");  // the caller converts and tries again
    }
    if (view_.itemsize < 1) {  // NumPy has dtypes of no size
      PyBuffer_Release(&view_);
      throw nb::type_error("tokens must be integers");
    }
  }
  ~BufferView() { PyBuffer_Release(&view_); }
  BufferView(const BufferView&) = delete;
  BufferView& operator=(const BufferView&) = delete;

  const Py_buffer& operator*() const { return view_; }
  std::size_t count() const { return static_cast<std::size_t>(view_.len / view_.itemsize); }
  // The format letter without byte order marks; native order only.
  char format() const {
    const char* letter = view_.format == nullptr ? "B" : view_.format;
    if (*letter == '@' || *letter == '=' || *letter == '<') ++letter;
    return letter[1] == '\0' ? *letter : '?';
  }

 private:
  Py_buffer view_{};
};

template <typename Function>
bool with_buffer_type(const BufferView& view, Function&& function) {
  const auto size = (*view).itemsize;
  switch (view.format()) {
    case 'b': function(std::int8_t{}); return true;
    case 'B': function(std::uint8_t{}); return true;
    case 'h': function(std::int16_t{}); return true;
    case 'H': function(std::uint16_t{}); return true;
    case 'i': function(std::int32_t{}); return true;
    case 'I': function(std::uint32_t{}); return true;
    case 'l':
    case 'q': size == 8 ? function(std::int64_t{}) : function(std::int32_t{}); return true;
    case 'L':
    case 'Q': size == 8 ? function(std::uint64_t{}) : function(std::uint32_t{}); return true;
    default: return false;
  }
}

class RecordBuilder {
 public:
  RecordBuilder(int dtype_code, std::size_t itemsize, bool multimodal)
      : dtype_code_(dtype_code), records_(itemsize, multimodal) {}
  RecordBuilder(const RecordBuilder&) = delete;
  RecordBuilder& operator=(const RecordBuilder&) = delete;

  // Adds the tokens as sequences of the given lengths, and ends a document there if asked. Returns the number of
  // pending bytes. All or nothing: a token that does not fit leaves no trace.
  std::size_t add(nb::handle tokens, nb::handle lengths, nb::handle modes, bool end_document) {
    const std::size_t before = records_.num_pending_bytes();
    try {
      const std::size_t count = append_tokens(tokens);
      lengths_.clear();
      read_integers(lengths, lengths_, "lengths");
      std::int64_t total = 0;
      for (const std::int64_t length : lengths_) {
        if (length < 0 || length > std::numeric_limits<std::int32_t>::max())
          throw nb::value_error(("a sequence of " + std::to_string(length) +
                                 " tokens, expected 0 to 2147483647 (lengths are stored as int32)").c_str());
        total += length;
      }
      if (total != static_cast<std::int64_t>(count))
        throw nb::value_error(("lengths add up to " + std::to_string(total) + " tokens, but " +
                               std::to_string(count) + " were given").c_str());
      modes_.clear();
      if (!modes.is_none()) {
        read_integers(modes, modes_, "modes");
        if (modes_.size() != lengths_.size())
          throw nb::value_error((std::to_string(modes_.size()) + " modes for " + std::to_string(lengths_.size()) +
                                 " sequences").c_str());
        for (const std::int64_t mode : modes_)
          if (!std::in_range<std::int8_t>(mode))
            throw nb::value_error(("mode " + std::to_string(mode) + " does not fit int8").c_str());
      }
    } catch (...) {
      records_.rollback(before);
      throw;
    }
    for (std::size_t i = 0; i < lengths_.size(); ++i)
      records_.add_sequence(lengths_[i], modes_.empty() ? std::int8_t{0} : static_cast<std::int8_t>(modes_[i]));
    if (end_document) records_.end_document();
    return records_.num_pending_bytes();
  }

  // Rows of another index; its bytes are copied by the caller. `ends` are document ends, relative, without the 0.
  void add_rows(const Array<const std::int32_t>& lengths, const Array<const std::int64_t>& ends,
                const std::optional<Array<const std::int8_t>>& modes) {
    if (modes && modes->size() != lengths.size()) throw nb::value_error("modes must be as many as lengths");
    const auto first = static_cast<std::int64_t>(records_.lengths().size());
    const auto rows = as_unaligned(lengths);
    const auto end_rows = as_unaligned(ends);
    for (std::size_t i = 0; i < rows.size(); ++i)  // all or nothing: look before adding
      if (rows[i] < 0) throw nb::value_error("lengths must not be negative");
    std::int64_t before = 0;
    for (std::size_t i = 0; i < end_rows.size(); ++i) {
      if (end_rows[i] < before || end_rows[i] > static_cast<std::int64_t>(rows.size()))
        throw nb::value_error("document ends must not fall, nor pass the number of sequences");
      before = end_rows[i];
    }
    for (std::size_t i = 0; i < rows.size(); ++i)
      records_.add_sequence(rows[i], modes ? modes->data()[i] : std::int8_t{0});
    for (std::size_t i = 0; i < end_rows.size(); ++i) records_.add_document_end(first + end_rows[i]);
  }

  void end_document() { records_.end_document(); }

  nb::bytes take_pending() {
    std::vector<std::uint8_t>& pending = records_.pending();
    nb::bytes bytes(reinterpret_cast<const char*>(pending.data()), pending.size());
    pending.clear();
    return bytes;
  }

  std::size_t num_sequences() const { return records_.lengths().size(); }
  std::size_t num_document_boundaries() const { return records_.document_ends().size(); }

  void copy_lengths(std::size_t begin, const Array<std::int32_t>& out) const {
    records_.lengths().copy(begin, as_span<std::int32_t>(out));
  }
  void copy_document_ends(std::size_t begin, const Array<std::int64_t>& out) const {
    records_.document_ends().copy(begin, as_span<std::int64_t>(out));
  }
  void copy_modes(std::size_t begin, const Array<std::int8_t>& out) const {
    records_.modes().copy(begin, as_span<std::int8_t>(out));
  }

 private:
  std::size_t append_tokens(nb::handle tokens) {
    std::size_t count = 0;
    if (PyList_CheckExact(tokens.ptr()) || PyTuple_CheckExact(tokens.ptr())) {
      count = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(tokens.ptr()));
      PyObject** items = PySequence_Fast_ITEMS(tokens.ptr());
      with_token_type(dtype_code_, [&](auto zero) {
        using Token = decltype(zero);
        auto* out = reinterpret_cast<Token*>(records_.reserve(count));
        for (std::size_t i = 0; i < count; ++i) {
          // Only real ints: converting anything else runs Python code, which may change the list under our feet.
          if (!PyLong_CheckExact(items[i])) throw nb::type_error("tokens must be integers");
          out[i] = checked_token<Token>(to_integer(items[i]));
        }
      });
      return count;
    }
    const BufferView view(tokens);
    count = view.count();
    if (dtype_code_ == 6 || dtype_code_ == 7) {  // float64, float32: stored as they come, already converted
      if (view.format() != (dtype_code_ == 6 ? 'd' : 'f')) throw nb::type_error("tokens must have the stored dtype");
      std::memcpy(records_.reserve(count), (*view).buf, static_cast<std::size_t>((*view).len));
      return count;
    }
    bool known = false;
    with_token_type(dtype_code_, [&](auto zero) {
      using Token = decltype(zero);
      known = with_buffer_type(view, [&](auto source_zero) {
        using Source = decltype(source_zero);
        const auto* values = static_cast<const Source*>((*view).buf);
        auto* out = reinterpret_cast<Token*>(records_.reserve(count));
        if constexpr (std::is_same_v<Token, Source>) {
          if (count > 0) std::memcpy(out, values, count * sizeof(Token));
        } else {
          bool fits = true;  // one vectorised pass; the offender is looked for only when there is one
          for (std::size_t i = 0; i < count; ++i) {
            fits = fits && std::in_range<Token>(values[i]);
            out[i] = static_cast<Token>(values[i]);
          }
          if (!fits)
            for (std::size_t i = 0; i < count; ++i) checked_token<Token>(values[i]);
        }
      });
    });
    if (!known) throw nb::type_error("tokens must be integers");
    return count;
  }

  static std::int64_t to_integer(PyObject* object) {
    const long long value = PyLong_AsLongLong(object);
    if (value == -1 && PyErr_Occurred()) throw nb::python_error();
    return value;
  }

  static void read_integers(nb::handle source, std::vector<std::int64_t>& out, const char* name) {
    const std::string wording = std::string(name) + " must be a sequence of integers";
    const nb::object fast = nb::steal(PySequence_Fast(source.ptr(), wording.c_str()));
    if (!fast.is_valid()) throw nb::python_error();
    // Size and item are read anew at every step: PyNumber_Index may run Python code that changes the sequence.
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(fast.ptr()); ++i) {
      const nb::object item = nb::borrow(PySequence_Fast_GET_ITEM(fast.ptr(), i));
      if (PyLong_CheckExact(item.ptr())) {
        out.push_back(to_integer(item.ptr()));
      } else {
        const nb::object number = nb::steal(PyNumber_Index(item.ptr()));
        if (!number.is_valid()) throw nb::python_error();
        out.push_back(to_integer(number.ptr()));
      }
    }
  }

  int dtype_code_;
  PairRecords records_;
  std::vector<std::int64_t> lengths_, modes_;
};

}  // namespace
}  // namespace tokenloom

NB_MODULE(_native, module) {
  using namespace tokenloom;
  module.doc() = "Compiled kernels of tokenloom. Import tokenloom.kernels instead: it checks what it passes.";
  nb::set_leak_warnings(false);

  nb::class_<Mt19937>(module, "Mt19937", "The generator behind numpy.random.RandomState, for legacy shuffles.")
      .def(nb::init<std::uint32_t>(), "seed"_a)
      .def("shuffle", &shuffle<std::int32_t>, "values"_a.noconvert(), "Shuffle in place as RandomState does.")
      .def("shuffle", &shuffle<std::uint32_t>, "values"_a.noconvert())
      .def("shuffle", &shuffle<std::int64_t>, "values"_a.noconvert());

  module.def("build_sample_index", &sample_index<std::int32_t, std::int32_t>, "lengths"_a.noconvert(),
             "document_index"_a.noconvert(), "window_length"_a, "extra"_a, "out"_a.noconvert());
  module.def("build_sample_index", &sample_index<std::int32_t, std::int64_t>, "lengths"_a.noconvert(),
             "document_index"_a.noconvert(), "window_length"_a, "extra"_a, "out"_a.noconvert());
  module.def("build_sample_index", &sample_index<std::int64_t, std::int32_t>, "lengths"_a.noconvert(),
             "document_index"_a.noconvert(), "window_length"_a, "extra"_a, "out"_a.noconvert());
  module.def("build_sample_index", &sample_index<std::int64_t, std::int64_t>, "lengths"_a.noconvert(),
             "document_index"_a.noconvert(), "window_length"_a, "extra"_a, "out"_a.noconvert());

  module.def("map_file", &map_whole_file, "path"_a);

  module.def("build_blending_indices", &blending_indices<std::int16_t>, "weights"_a.noconvert(),
             "sizes"_a.noconvert().none(), "dataset_index"_a.noconvert(), "sample_index"_a.noconvert());
  module.def("build_blending_indices", &blending_indices<std::int32_t>, "weights"_a.noconvert(),
             "sizes"_a.noconvert().none(), "dataset_index"_a.noconvert(), "sample_index"_a.noconvert());
  module.def("blending_counts", &blending_counts, "weights"_a.noconvert(), "size"_a, "out"_a.noconvert());

  nb::class_<WindowReader>(module, "WindowReader", "Positions to spans over a document, sample and shuffle index.")
      .def(nb::init<Array<const std::int32_t>, AnyArray, AnyArray, AnyArray, std::int64_t, std::int64_t,
                    std::int64_t>(),
           "lengths"_a.noconvert(), "document_index"_a.noconvert(), "sample_index"_a.noconvert(),
           "shuffle_index"_a.noconvert(), nb::kw_only(), "window_length"_a, "extra"_a, "num_tokens"_a)
      .def("spans", &WindowReader::spans, "positions"_a.noconvert(), nb::kw_only(), "keep_empty"_a);

  nb::class_<GptFiller>(module, "GptFiller", "Fills batches of GPT samples.")
      .def(nb::init<std::int64_t, std::int64_t, std::int64_t, std::int64_t, bool, bool, bool, bool>(), nb::kw_only(),
           "sequence_length"_a, "extra"_a, "pad_id"_a, "eod_id"_a, "reset_position_ids"_a, "reset_attention_mask"_a,
           "eod_mask_loss"_a, "inter_document_masking"_a)
      .def("fill", &GptFiller::fill, "reader"_a, "bytes"_a.noconvert(), "pointers"_a.noconvert(), "dtype_code"_a,
           "positions"_a.noconvert(), "tokens"_a.noconvert(), "labels"_a.noconvert(), "loss_mask"_a.noconvert(),
           "position_ids"_a.noconvert(), "attention_mask"_a.noconvert().none(), "cu_seqlens"_a.noconvert().none(),
           "max_seqlen"_a.noconvert().none())
      .def("fill_from_text", &GptFiller::fill_from_text, "text"_a.noconvert(), "span_lengths"_a.noconvert(),
           "row_offsets"_a.noconvert(), "tokens"_a.noconvert(), "labels"_a.noconvert(), "loss_mask"_a.noconvert(),
           "position_ids"_a.noconvert(), "attention_mask"_a.noconvert().none(), "cu_seqlens"_a.noconvert().none(),
           "max_seqlen"_a.noconvert().none());

  module.def("gather_spans", &gather_spans, "bytes"_a.noconvert(), "pointers"_a.noconvert(), "dtype_code"_a,
             "sequences"_a.noconvert(), "starts"_a.noconvert(), "lengths"_a.noconvert(), "out"_a.noconvert());

  nb::class_<RecordBuilder>(module, "RecordBuilder", "Collects what becomes a .bin/.idx pair.")
      .def(nb::init<int, std::size_t, bool>(), "dtype_code"_a, "itemsize"_a, "multimodal"_a)
      .def("add", &RecordBuilder::add, "tokens"_a.none(), "lengths"_a.none(), "modes"_a.none(), "end_document"_a)
      .def("add_rows", &RecordBuilder::add_rows, "lengths"_a.noconvert(), "ends"_a.noconvert(),
           "modes"_a.noconvert().none())
      .def("end_document", &RecordBuilder::end_document)
      .def("take_pending", &RecordBuilder::take_pending)
      .def_prop_ro("num_sequences", &RecordBuilder::num_sequences)
      .def_prop_ro("num_document_boundaries", &RecordBuilder::num_document_boundaries)
      .def("copy_lengths", &RecordBuilder::copy_lengths, "begin"_a, "out"_a.noconvert())
      .def("copy_document_ends", &RecordBuilder::copy_document_ends, "begin"_a, "out"_a.noconvert())
      .def("copy_modes", &RecordBuilder::copy_modes, "begin"_a, "out"_a.noconvert());
}
