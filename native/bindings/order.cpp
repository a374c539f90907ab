// Indices: shuffles, windows, packs, positions to spans.
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "../shuffle.hpp"
#include "../shuffled_windows.hpp"
#include "../windows.hpp"
#include "arrays.hpp"
#include "modules.hpp"
#include "span_reader.hpp"

namespace tokenloom {
namespace {

template <typename Element>
void shuffle(Mt19937& generator, const Array<Element>& values) {
  const WithoutLock unlocked;
  legacy_shuffle(as_span<Element>(values), generator);
}

template <typename Document, typename Row>
void sample_index(const Array<const std::int32_t>& lengths, const Array<const Document>& document_index,
                  std::int64_t window_length, std::int64_t extra, const Matrix<Row>& out) {
  if (out.shape(0) < 1 || out.shape(1) != 2) throw nb::value_error("out must be [num_windows + 1, 2]");
  if (window_length < 1 || extra < 0 || extra > 1)
    throw nb::value_error("window_length must be at least 1, and extra 0 or 1");
  const WithoutLock unlocked;
  build_sample_index(as_unaligned(lengths), as_span<const Document>(document_index), window_length,
                     extra, static_cast<std::int64_t>(out.shape(0)) - 1, out.data());
}

// parts: int64[num_parts, 2], documents and tokens of each part of the stream that is shuffled by itself.
template <typename Document, typename Row>
void shuffle_windows(Mt19937& generator, const Array<Document>& stream, const Matrix<const std::int64_t>& parts,
                     const Array<const std::int32_t>& lengths, std::int64_t window_length, std::int64_t extra,
                     const Matrix<Row>& out) {
  if (out.shape(0) < 1 || out.shape(1) != 2) throw nb::value_error("out must be [num_windows + 1, 2]");
  if (window_length < 1 || extra < 0 || extra > 1)
    throw nb::value_error("window_length must be at least 1, and extra 0 or 1");
  if (parts.shape(1) != 2) throw nb::value_error("parts must be [num_parts, 2]");
  std::vector<ShuffledPart> chosen;
  ShuffledPart last{0, 0, 0, 0};
  for (std::size_t i = 0; i < parts.shape(0); ++i) {
    const std::int64_t documents = parts.data()[2 * i];
    const std::int64_t tokens = parts.data()[2 * i + 1];
    if (documents < 0 || tokens < 0) throw nb::value_error("parts must not be negative");
    last = {last.stop, last.stop + static_cast<std::size_t>(documents), last.tokens_after, last.tokens_after + tokens};
    chosen.push_back(last);
  }
  if (last.stop != stream.size()) throw nb::value_error("parts must make up the stream");
  const WithoutLock unlocked;
  shuffle_and_index(as_span<Document>(stream), chosen, generator, as_unaligned(lengths), window_length, extra,
                    static_cast<std::int64_t>(out.shape(0)) - 1, out.data());
}

template <typename Document, typename Row>
void bind_shuffle_windows(nb::module_& module) {
  module.def("shuffle_windows", &shuffle_windows<Document, Row>, "generator"_a, "stream"_a.noconvert(),
             "parts"_a.noconvert(), "lengths"_a.noconvert(), "window_length"_a, "extra"_a, "out"_a.noconvert());
}

PieceRule piece_rule(std::int64_t sequence_length, std::int64_t extra, std::int64_t most_pieces = kAnyNumber) {
  const PieceRule rule{sequence_length, extra, most_pieces};
  rule.check();
  return rule;
}

nb::tuple add_pieces(const Array<const std::int32_t>& lengths, std::int64_t sequence_length, std::int64_t extra,
                     const Array<std::int64_t>& histogram) {
  const PieceRule rule = piece_rule(sequence_length, extra);
  if (static_cast<std::int64_t>(histogram.size()) != rule.capacity() + 1)
    throw nb::value_error("histogram must be [sequence_length + extra + 1]");
  PieceCounts counts;
  {
    const WithoutLock unlocked;
    counts = count_pieces(as_unaligned(lengths), rule, as_span<std::int64_t>(histogram));
  }
  return nb::make_tuple(counts.num_documents, counts.num_split);
}

std::int64_t packs_of(const Array<const std::int64_t>& histogram, std::int64_t most_pieces) {
  if (histogram.size() < 2) throw nb::value_error("histogram must hold lengths 0 and 1 at least");
  const WithoutLock unlocked;
  return count_packs(as_span<const std::int64_t>(histogram), most_pieces);
}

template <typename Document, typename Row>
void pack(const Array<const std::int32_t>& lengths, const Array<const Document>& documents,
          std::int64_t sequence_length, std::int64_t extra, std::int64_t most_pieces, std::int64_t first_piece,
          const Array<Row>& packs, const Matrix<Row>& pieces) {
  const PieceRule rule = piece_rule(sequence_length, extra, most_pieces);
  if (pieces.shape(1) != 2) throw nb::value_error("pieces must be [num_pieces, 2]");
  const WithoutLock unlocked;
  pack_documents(as_unaligned(lengths), as_span<const Document>(documents), rule, first_piece, as_span<Row>(packs),
                 as_span<Row>(pieces));
}

template <typename Document, typename Row>
void bind_pack(nb::module_& module) {
  module.def("pack_documents", &pack<Document, Row>, "lengths"_a.noconvert(), "documents"_a.noconvert(),
             "sequence_length"_a, "extra"_a, "most_pieces"_a, "first_piece"_a, "packs"_a.noconvert(), "pieces"_a.noconvert());
}

}  // namespace

void bind_order(nb::module_& module) {
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

  bind_shuffle_windows<std::int32_t, std::int32_t>(module);
  bind_shuffle_windows<std::int32_t, std::int64_t>(module);
  bind_shuffle_windows<std::int64_t, std::int32_t>(module);
  bind_shuffle_windows<std::int64_t, std::int64_t>(module);

  module.def("add_pieces", &add_pieces, "lengths"_a.noconvert(), "sequence_length"_a, "extra"_a,
             "histogram"_a.noconvert());
  module.def("count_packs", &packs_of, "histogram"_a.noconvert(), "most_pieces"_a);
  bind_pack<std::int32_t, std::int32_t>(module);
  bind_pack<std::int32_t, std::int64_t>(module);
  bind_pack<std::int64_t, std::int32_t>(module);
  bind_pack<std::int64_t, std::int64_t>(module);

  nb::class_<SpanReader>(module, "SpanReader", "Positions to spans.")
      .def("spans", &SpanReader::spans, "positions"_a.noconvert(), nb::kw_only(), "keep_empty"_a);
  nb::class_<WindowReader, SpanReader>(module, "WindowReader", "Over a document, sample and shuffle index.")
      .def(nb::init<Array<const std::int32_t>, AnyArray, AnyArray, AnyArray, std::int64_t, std::int64_t,
                    std::int64_t>(),
           "lengths"_a.noconvert(), "document_index"_a.noconvert(), "sample_index"_a.noconvert(),
           "shuffle_index"_a.noconvert(), nb::kw_only(), "window_length"_a, "extra"_a, "num_tokens"_a);
  nb::class_<PackReader, SpanReader>(module, "PackReader", "Over a pack, piece and shuffle index.")
      .def("__init__",
           [](PackReader* reader, Array<const std::int32_t> lengths, AnyArray pack_index, AnyArray piece_index,
              AnyArray shuffle_index, std::int64_t sequence_length, std::int64_t extra) {
             new (reader) PackReader(std::move(lengths), std::move(pack_index), std::move(piece_index),
                                     std::move(shuffle_index), piece_rule(sequence_length, extra));
           },
           "lengths"_a.noconvert(), "pack_index"_a.noconvert(), "piece_index"_a.noconvert(),
           "shuffle_index"_a.noconvert(), nb::kw_only(), "sequence_length"_a, "extra"_a);
}

}  // namespace tokenloom
