// N-grams of words, and where they stand in documents of tokens.
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../ngrams.hpp"
#include "arrays.hpp"
#include "modules.hpp"

namespace tokenloom {
namespace {

using Bytes = Array<const std::uint8_t>;
using Offsets = Array<const std::int64_t>;
using ByteList = std::vector<nb::bytes>;

TextsView texts_of(const Bytes& content, const Offsets& offsets) {
  const auto ends = as_span<const std::int64_t>(offsets);
  if (ends.empty() || ends.front() != 0 || !std::is_sorted(ends.begin(), ends.end()) ||
      ends.back() > static_cast<std::int64_t>(content.size()))
    throw nb::value_error("expected offsets that rise from 0 within the content");
  return {as_span<const std::uint8_t>(content), ends};
}

std::string_view view_of(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

Learned learned_of(const ByteList& stretches, const ByteList& words) {
  if (stretches.size() != words.size()) throw nb::value_error("expected words for each stretch");
  Learned learned;
  for (std::size_t i = 0; i < words.size(); ++i) learned.emplace(view_of(stretches[i]), view_of(words[i]));
  return learned;
}

ByteList to_bytes(const std::vector<std::string>& texts) {
  ByteList found;
  for (const std::string& text : texts) found.emplace_back(text.data(), text.size());
  return found;
}

template <typename Value>
std::vector<Value> copy_of(const Array<const Value>& array) {
  return {array.data(), array.data() + array.size()};
}

ByteList build(NgramIndex& index, const Bytes& content, const Offsets& offsets, const ByteList& stretches,
               const ByteList& words) {
  const TextsView texts = texts_of(content, offsets);
  const Learned learned = learned_of(stretches, words);
  std::vector<std::string> unknown;
  {
    const WithoutLock unlocked;
    unknown = index.build(texts, learned);
  }
  return to_bytes(unknown);
}

nb::tuple search(const NgramIndex& index, const Array<const std::uint32_t>& tokens, const Offsets& ends,
                 bool begins_inside, bool ends_inside, const Offsets& wanted, const Bytes& content,
                 const Offsets& offsets, const ByteList& stretches, const ByteList& words) {
  const TextsView table = texts_of(content, offsets);
  if (table.offsets.back() + static_cast<std::int64_t>(kTokenPadding) > static_cast<std::int64_t>(content.size()))
    throw nb::value_error("expected 16 bytes behind those of all tokens");
  const NgramIndex::Documents documents{as_span<const std::uint32_t>(tokens), as_span<const std::int64_t>(ends),
                                        begins_inside, ends_inside};
  if (!std::is_sorted(documents.ends.begin(), documents.ends.end()) ||
      (!documents.ends.empty() &&
       (documents.ends.front() < 0 || documents.ends.back() > static_cast<std::int64_t>(tokens.size()))))
    throw nb::value_error("expected ends of documents that rise within the tokens");
  const Learned learned = learned_of(stretches, words);
  const auto numbers = as_span<const std::int64_t>(wanted);
  for (const std::int64_t number : numbers)
    if (number < 0 || number >= static_cast<std::int64_t>(ends.size())) throw nb::value_error("expected documents");
  NgramIndex::Found found;
  std::vector<std::int64_t> columns;
  {
    const WithoutLock unlocked;
    found = index.search(documents, numbers, table, learned);
    for (const auto& [document, word, start, stop, gram] : found.hits)
      columns.insert(columns.end(), {document, word, start, stop, gram});
  }
  return nb::make_tuple(tokenloom::to_numpy(std::move(columns)), tokenloom::to_numpy(std::move(found.unfinished)),
                        to_bytes(found.unknown));
}

}  // namespace

void bind_ngrams(nb::module_& module) {
  nb::class_<NgramIndex>(module, "NgramIndex")
      .def(
          "__init__",
          [](NgramIndex* self, const Bytes& kinds, const Array<const std::uint32_t>& points, const Offsets& offsets,
             const Bytes& content, std::size_t length, std::size_t least) {
            texts_of(content, offsets);
            new (self) NgramIndex({copy_of(kinds), copy_of(points), copy_of(offsets), copy_of(content)}, length, least);
          },
          "kinds"_a, "points"_a, "offsets"_a, "content"_a, "length"_a, "least"_a)
      .def("build", &build, "content"_a, "offsets"_a, "stretches"_a, "words"_a,
           "Takes texts, once; returns the stretches whose words have to be given first, and then takes nothing.")
      .def("search", &search, "tokens"_a, "ends"_a, "begins_inside"_a, "ends_inside"_a, "wanted"_a, "content"_a,
           "offsets"_a, "stretches"_a, "words"_a,
           "Returns (document, word, start, stop, n-gram) of each hit, back to back; the documents still to be searched; "
           "and the stretches whose words have to be given for that.")
      .def(
          "numbering",
          [](const NgramIndex& index) {
            return nb::make_tuple(index.num_grams(), to_numpy(std::vector(index.word_offsets())),
                                  to_numpy(std::vector(index.word_ranges())),
                                  to_numpy(std::vector(index.gram_offsets())), to_numpy(std::vector(index.grams())));
          },
          "Returns how many different n-grams there are; the first word of each text, and where each word is in it, as "
          "start and stop; the first n-gram of each text, and the number of each n-gram.");
}

}  // namespace tokenloom
