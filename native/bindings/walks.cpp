// Sources whose order is computed: their documents, and positions to spans.
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "../pack_walks.hpp"
#include "../walks.hpp"
#include "arrays.hpp"
#include "modules.hpp"
#include "span_reader.hpp"
#include "token_sections.hpp"
#include "watch.hpp"

namespace tokenloom {
namespace {

using KeyHalves = std::tuple<std::uint64_t, std::uint64_t>;

Key key_of(const KeyHalves& halves) { return {std::get<0>(halves), std::get<1>(halves)}; }

// The documents of a source, and the arrays of those pairs that are open.
class SourceDocuments {
 public:
  // facts: [num_sections, 4], documents, tokens that are read, blocks held out, documents held out.
  SourceDocuments(const Matrix<const std::int64_t>& facts, const KeyHalves& key, bool reads_held)
      : sections_(facts_of(facts), key_of(key), reads_held), key_(key_of(key)) {
    lengths_.resize(facts.shape(0));
    watches_.resize(facts.shape(0));
  }

  SourceDocuments(const SourceDocuments&) = delete;
  SourceDocuments& operator=(const SourceDocuments&) = delete;

  // With the GIL held by the caller; released while lengths are added up.
  void open(std::int64_t number, Array<const std::int32_t> lengths) {
    if (number < 0 || number >= sections_.size()) throw nb::index_error("there is no such section");
    if (sections_.closed(number).is_open()) return;
    auto watch = std::make_unique<Watch>();
    watch->add(lengths.data(), lengths.nbytes());
    bool is_new = false;
    {
      const WithoutLock unlocked;
      read_checked([&] { is_new = sections_.open(number, as_unaligned(lengths)); }, [&] { watch->check(); });
    }
    if (!is_new) return;  // another thread was first
    const auto at = static_cast<std::size_t>(number);
    watches_[at] = std::move(watch);
    lengths_[at] = std::move(lengths);
  }

  bool is_open(std::int64_t number) const {
    return number >= 0 && number < sections_.size() && sections_.closed(number).is_open();
  }

  void check(std::span<const Span> spans) const {
    std::int64_t last = -1;
    for (const Span& span : spans) {
      const std::int64_t number = sections_.holding(span.sequence < 0 ? -1 - span.sequence : span.sequence);
      if (number == last || number < 0) continue;
      last = number;
      if (const auto& watch = watches_[static_cast<std::size_t>(number)]) watch->check();
    }
  }

  const SourceSections& sections() const { return sections_; }
  Key key() const { return key_; }

 private:
  static std::vector<SectionFacts> facts_of(const Matrix<const std::int64_t>& rows) {
    if (rows.shape(1) != 4) throw nb::value_error("facts must be [num_sections, 4]");
    std::vector<SectionFacts> facts;
    for (std::size_t i = 0; i < rows.shape(0); ++i) {
      const std::int64_t* row = rows.data() + 4 * i;
      facts.push_back({row[0], row[1], row[2], row[3]});
    }
    return facts;
  }

  SourceSections sections_;
  Key key_;
  std::vector<Array<const std::int32_t>> lengths_;
  std::vector<std::unique_ptr<Watch>> watches_;
};

// The same spans, those of some documents marked as denied.
class WithDenied final : public SpanSource {
 public:
  WithDenied(const SpanSource& inner, std::vector<std::int64_t> denied) : inner_(inner), denied_(std::move(denied)) {
    std::sort(denied_.begin(), denied_.end());
  }

  std::int64_t num_sequences() const override { return inner_.num_sequences(); }

  void append_spans(std::int64_t position, bool keep_empty, std::vector<Span>& spans) const override {
    const std::size_t first = spans.size();
    inner_.append_spans(position, keep_empty, spans);
    if (denied_.empty()) return;
    for (std::size_t i = first; i < spans.size(); ++i)
      if (std::binary_search(denied_.begin(), denied_.end(), spans[i].sequence))
        spans[i].sequence = -1 - spans[i].sequence;
  }

 private:
  const SpanSource& inner_;
  std::vector<std::int64_t> denied_;
};

WalkFamilies families_of(const Matrix<const std::int64_t>& rows) {
  if (rows.shape(1) != 4) throw nb::value_error("families must be [num_families, 4]");
  std::vector<WalkFamily> families;
  for (std::size_t i = 0; i < rows.shape(0); ++i) {
    const std::int64_t* row = rows.data() + 4 * i;
    families.push_back({row[0], row[1], row[2], row[3], {}});
  }
  return WalkFamilies(families);
}

// What turns numbers of samples into spans: of windows, or of packs.
template <typename Walks>
class ComputedReader final : public SpanReader {
 public:
  // families: [num_families, 4], first walk, first section, one past the last section, windows of a walk.
  template <typename... Settings>
  ComputedReader(const SourceDocuments& documents, const Matrix<const std::int64_t>& families, bool is_shuffled,
                 std::vector<std::int64_t> denied, Settings... settings)
      : documents_(documents),
        walks_(documents.sections(), families_of(families), documents.key(), is_shuffled, std::move(settings)...),
        marked_(walks_, std::move(denied)) {}

  const SpanSource& source() const override { return marked_; }
  void check(std::span<const Span> spans) const override { documents_.check(spans); }

  // part: the members of `PassPart`, in their order; windows alone know it.
  void add_walks(std::int64_t first_walk, std::int64_t first_section, std::int64_t last_section,
                 std::int64_t num_windows, const std::array<std::int64_t, 5>& part) {
    walks_.families().add({first_walk, first_section, last_section, num_windows,
                           {part[0], part[1], part[2], part[3], part[4]}});
  }

  // Returns walks, documents, windows, starts, lengths, slots: where the tokens of documents, of rising numbers, are
  // read in walks, walk by walk.
  nb::tuple occurrences(const Array<const std::int64_t>& walks, const Array<const std::int64_t>& documents) const {
    std::array<std::vector<std::int64_t>, 6> columns;
    {
      const WithoutLock unlocked;
      std::vector<Occurrence> found;
      walks_.find({walks.data(), walks.size()}, {documents.data(), documents.size()}, found);
      for (auto& column : columns) column.reserve(found.size());
      for (const Occurrence& each : found) {
        const std::array values{each.walk, each.document, each.window, each.start, each.length, each.slot};
        for (std::size_t i = 0; i < columns.size(); ++i) columns[i].push_back(values[i]);
      }
    }
    return nb::make_tuple(to_numpy(std::move(columns[0])), to_numpy(std::move(columns[1])),
                          to_numpy(std::move(columns[2])), to_numpy(std::move(columns[3])),
                          to_numpy(std::move(columns[4])), to_numpy(std::move(columns[5])));
  }

 private:
  const SourceDocuments& documents_;  // kept alive by the binding
  Walks walks_;
  WithDenied marked_;
};

using WalkReader = ComputedReader<WindowWalks>;
using PackWalkReader = ComputedReader<PackWalks>;

template <typename Reader>
nb::class_<Reader, SpanReader> bind_reader(nb::module_& module, const char* name, const char* doc) {
  return nb::class_<Reader, SpanReader>(module, name, doc)
      .def("add_walks", &Reader::add_walks, "first_walk"_a, "first_section"_a, "last_section"_a, "num_windows"_a,
           "part"_a = std::array<std::int64_t, 5>{-1, 0, 0, 0, 0})
      .def("occurrences", &Reader::occurrences, "walks"_a.noconvert(), "documents"_a.noconvert());
}

std::int64_t count_section_packs(const Array<const std::int32_t>& lengths, const KeyHalves& holdout,
                                 std::int64_t held_blocks, std::int64_t held_documents, bool reads_held,
                                 std::int64_t sequence_length, std::int64_t extra, std::int64_t most_pieces) {
  const PieceRule rule{sequence_length, extra, most_pieces};
  rule.check();
  const WithoutLock unlocked;
  const auto count = static_cast<std::int64_t>(lengths.size());
  Section section({count, kNotKnown, held_blocks, held_documents}, 0, key_of(holdout), reads_held);
  section.open(as_unaligned(lengths));
  const std::vector<std::int64_t> packs = count_group_packs(section, rule);
  return std::accumulate(packs.begin(), packs.end(), std::int64_t{0});
}

PyObject* section_needed = nullptr;

void raise_section_needed(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const SectionNeeded& needed) {
    const nb::object number = nb::int_(needed.section);
    PyErr_SetObject(section_needed, number.ptr());
  }
}

}  // namespace

void bind_walks(nb::module_& module) {
  section_needed = PyErr_NewExceptionWithDoc("tokenloom._native.SectionNeeded",
                                             "A section must be opened first: its number is the argument.", nullptr,
                                             nullptr);
  module.attr("SectionNeeded") = nb::steal(section_needed);
  Py_INCREF(section_needed);
  nb::register_exception_translator(&raise_section_needed);
  nb::class_<SourceDocuments>(module, "SourceDocuments", "The documents of a source, pair by pair.")
      .def(nb::init<const Matrix<const std::int64_t>&, const KeyHalves&, bool>(), "facts"_a.noconvert(), "key"_a,
           nb::kw_only(), "reads_held"_a)
      .def("open", &SourceDocuments::open, "number"_a, "lengths"_a.noconvert())
      .def("is_open", &SourceDocuments::is_open, "number"_a);
  nb::class_<TokenSections>(module, "TokenSections", "The tokens of several mapped files.")
      .def(nb::init<const std::vector<std::int64_t>&, int>(), "firsts"_a, "dtype_code"_a)
      .def(nb::init<const std::vector<std::int64_t>&, std::int64_t, std::int64_t>(), "firsts"_a, nb::kw_only(),
           "width"_a, "unit"_a)
      .def("open", &TokenSections::open, "number"_a, "bytes"_a.noconvert(), "pointers"_a.noconvert())
      .def("open_rows", &TokenSections::open_rows, "number"_a, "bytes"_a.noconvert(),
           "of_sequences"_a.noconvert().none() = nb::none());
  bind_reader<WalkReader>(module, "WalkReader", "Windows of a source, whose order is computed.")
      .def(
          "__init__",
          [](WalkReader* self, const SourceDocuments& documents, const Matrix<const std::int64_t>& families,
             bool is_shuffled, std::int64_t window_length, std::int64_t extra, std::vector<std::int64_t> denied) {
            new (self) WalkReader(documents, families, is_shuffled, std::move(denied), window_length, extra);
          },
          "documents"_a, "families"_a.noconvert(), nb::kw_only(), "is_shuffled"_a, "window_length"_a, "extra"_a,
          "denied"_a, nb::keep_alive<1, 2>());
  bind_reader<PackWalkReader>(module, "PackWalkReader", "Packs of a source, whose order is computed.")
      .def(
          "__init__",
          [](PackWalkReader* self, const SourceDocuments& documents, const Matrix<const std::int64_t>& families,
             bool is_shuffled, std::int64_t sequence_length, std::int64_t extra, std::int64_t most_pieces,
             std::vector<std::int64_t> num_packs, std::vector<std::int64_t> denied) {
            new (self) PackWalkReader(documents, families, is_shuffled, std::move(denied),
                                      PieceRule{sequence_length, extra, most_pieces}, std::move(num_packs));
          },
          "documents"_a, "families"_a.noconvert(), nb::kw_only(), "is_shuffled"_a, "sequence_length"_a, "extra"_a,
          "most_pieces"_a, "num_packs"_a, "denied"_a, nb::keep_alive<1, 2>());
  module.def("count_section_packs", &count_section_packs, "lengths"_a.noconvert(), "holdout"_a, "held_blocks"_a,
             "held_documents"_a, "reads_held"_a, "sequence_length"_a, "extra"_a, "most_pieces"_a);
}

}  // namespace tokenloom
