// What becomes a .bin/.idx pair.
#include <nanobind/stl/optional.h>

#include <cstring>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../builder.hpp"
#include "arrays.hpp"
#include "modules.hpp"
#include "sequences.hpp"

namespace tokenloom {
namespace {

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
      const Items items(tokens);
      count = static_cast<std::size_t>(items.size());
      with_token_type(dtype_code_, [&](auto zero) {
        using Token = decltype(zero);
        auto* out = reinterpret_cast<Token*>(records_.reserve(count));
        for (std::size_t i = 0; i < count; ++i) {
          // Only real ints: converting anything else runs Python code, which may change the list under our feet.
          PyObject* item = items[static_cast<Py_ssize_t>(i)];
          if (!PyLong_CheckExact(item)) throw nb::type_error("tokens must be integers");
          out[i] = checked_token<Token>(to_integer(item));
        }
      });
      return count;
    }
    const BufferView view(tokens);
    count = view.count();
    if (dtype_code_ == 6 || dtype_code_ == 7) {  // float64, float32: stored as they come, already converted
      if (view.format() != (dtype_code_ == 6 ? 'd' : 'f')) throw nb::type_error("tokens must have the stored dtype");
      auto* out = records_.reserve(count);
      if (count > 0) std::memcpy(out, (*view).buf, static_cast<std::size_t>((*view).len));
      return count;
    }
    bool known = false;
    with_token_type(dtype_code_, [&](auto zero) {
      using Token = decltype(zero);
      known = with_buffer_type(view, [&](auto source_zero) {
        using Source = decltype(source_zero);
        const UnalignedArray<Source> values{static_cast<const std::uint8_t*>((*view).buf), count};
        auto* out = reinterpret_cast<Token*>(records_.reserve(count));
        if constexpr (std::is_same_v<Token, Source>) {
          if (count > 0) std::memcpy(out, values.bytes, count * sizeof(Token));
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
    const Items items(fast);
    for (Py_ssize_t i = 0; i < items.size(); ++i) {
      const nb::object item = nb::borrow(items[i]);
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

void bind_builder(nb::module_& module) {
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

}  // namespace tokenloom
