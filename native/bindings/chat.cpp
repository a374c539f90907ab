// Conversations: trained tokens, rows, and the filling of rows.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "../chat.hpp"
#include "arrays.hpp"
#include "modules.hpp"
#include "watch.hpp"

namespace tokenloom {
namespace {

// The roles of all tokens, holding the array it reads.
class RoleParts {
 public:
  RoleParts(Array<const std::uint8_t> roles, Array<const std::int64_t> pointers, Array<const std::int32_t> lengths,
            int unit_bits)
      : array_(std::move(roles)), pointers_(std::move(pointers)), lengths_(std::move(lengths)) {
    if (pointers_.size() != lengths_.size() || unit_bits < 0 || unit_bits > 3)
      throw nb::value_error("pointers and lengths must be equally many, of units of 1 to 8 bytes");
    roles_ = {as_span<const std::uint8_t>(array_), as_unaligned(pointers_), as_unaligned(lengths_), unit_bits};
    watch_.add(array_.data(), array_.nbytes());
    watch_.add(pointers_.data(), pointers_.nbytes());
    watch_.add(lengths_.data(), lengths_.nbytes());
  }

  void count_trained(const Array<const std::int64_t>& sequences, const Array<const std::int64_t>& available,
                     int train_on, const Array<std::int64_t>& counts) const {
    if (sequences.size() != available.size() || sequences.size() != counts.size())
      throw nb::value_error("sequences, available and counts must be equally long");
    const WithoutLock unlocked;
    const auto count = [&] {
      tokenloom::count_trained(roles_, as_span<const std::int64_t>(sequences), as_span<const std::int64_t>(available),
                               static_cast<TrainOn>(train_on), as_span<std::int64_t>(counts));
    };
    read_checked(count, [&] { watch_.check(); });
  }

  // Rows of a batch: row r holds segments [row_offsets[r], row_offsets[r + 1]), whose tokens lie back to back in text.
  void fill(const AnyArray& text, int dtype_code, const Matrix<const std::int64_t>& segments,
            const Array<const std::int64_t>& row_offsets, int train_on, std::int64_t pad_id,
            const Matrix<std::int64_t>& tokens, const Matrix<std::int64_t>& labels, const Matrix<float>& loss_mask,
            const Matrix<std::int64_t>& position_ids, const std::optional<Matrix<std::int32_t>>& cu_seqlens,
            const std::optional<Array<std::int32_t>>& max_seqlen) const {
    const std::size_t rows = tokens.shape(0);
    const std::size_t length = tokens.shape(1);
    const auto fits = [&](const auto& matrix, std::size_t width) {
      return matrix.shape(0) == rows && matrix.shape(1) == width;
    };
    if (segments.shape(1) != 4 || row_offsets.size() != rows + 1 || !fits(labels, length) ||
        !fits(loss_mask, length) || !fits(position_ids, length) || (cu_seqlens && !fits(*cu_seqlens, length + 1)) ||
        (max_seqlen && max_seqlen->size() != rows))
      throw nb::value_error("an argument has the wrong shape");
    with_token_type(dtype_code, [&](auto zero) {
      using Token = decltype(zero);
      if (text.dtype() != nb::dtype<Token>()) throw nb::type_error("text must have the dtype of the code");
      const WithoutLock unlocked;
      std::span<const Token> rest(static_cast<const Token*>(text.data()), text.size());
      std::vector<Segment> row_segments;
      const auto fill_rows = [&] {
        for (std::size_t row = 0; row < rows; ++row) {
          const std::int64_t first = row_offsets.data()[row];
          const std::int64_t last = row_offsets.data()[row + 1];
          if (first < 0 || last < first || last > static_cast<std::int64_t>(segments.shape(0)))
            throw std::out_of_range("row_offsets do not fit the segments");
          row_segments.clear();
          for (std::int64_t i = first; i < last; ++i) {
            const std::int64_t* of = segments.data() + 4 * i;
            row_segments.push_back({of[0], of[1], of[2], of[3]});
          }
          const std::size_t at = row * length;
          const ChatRow out{tokens.data() + at,
                            labels.data() + at,
                            loss_mask.data() + at,
                            position_ids.data() + at,
                            cu_seqlens ? cu_seqlens->data() + row * (length + 1) : nullptr,
                            max_seqlen ? max_seqlen->data() + row : nullptr};
          const std::int64_t read =
              fill_chat_row<Token>(roles_, rest, std::span<const Segment>(row_segments),
                                   static_cast<TrainOn>(train_on), pad_id, static_cast<std::int64_t>(length), out);
          rest = rest.subspan(static_cast<std::size_t>(read));
        }
      };
      read_checked(fill_rows, [&] { watch_.check(); });
    });
  }

 private:
  Array<const std::uint8_t> array_;
  Array<const std::int64_t> pointers_;
  Array<const std::int32_t> lengths_;
  Roles roles_;
  Watch watch_;
};

nb::tuple next_fit_rows(const Array<const std::int32_t>& slots, std::int64_t capacity, std::int64_t most_items,
                        std::pair<std::int64_t, std::int64_t> row) {
  std::vector<std::int64_t> starts;
  {
    const WithoutLock unlocked;
    const OpenRow last =
        next_fit(as_span<const std::int32_t>(slots), capacity, most_items, {row.first, row.second}, starts);
    row = {last.filled, last.num_items};
  }
  return nb::make_tuple(to_numpy(std::move(starts)), row);
}

}  // namespace

void bind_chat(nb::module_& module) {
  nb::class_<RoleParts>(module, "RoleParts", "The roles of conversations, and rows made of these.")
      .def(nb::init<Array<const std::uint8_t>, Array<const std::int64_t>, Array<const std::int32_t>, int>(),
           "roles"_a.noconvert(), "pointers"_a.noconvert(), "lengths"_a.noconvert(), "unit_bits"_a)
      .def("count_trained", &RoleParts::count_trained, "sequences"_a.noconvert(), "available"_a.noconvert(),
           "train_on"_a, "counts"_a.noconvert())
      .def("fill", &RoleParts::fill, "text"_a.noconvert(), "dtype_code"_a, "segments"_a.noconvert(),
           "row_offsets"_a.noconvert(), "train_on"_a, "pad_id"_a, "tokens"_a.noconvert(), "labels"_a.noconvert(),
           "loss_mask"_a.noconvert(), "position_ids"_a.noconvert(), "cu_seqlens"_a.noconvert().none(),
           "max_seqlen"_a.noconvert().none());

  module.def("next_fit", &next_fit_rows, "slots"_a.noconvert(), "capacity"_a, "most_items"_a, "row"_a);
}

}  // namespace tokenloom
