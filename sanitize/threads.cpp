// Everything native that threads share, without Python: whoever looks for races sees all of it. Results are compared with
// those of one thread. Exits with 1 where they differ.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "../native/blend_parallel.hpp"
#include "../native/gpt.hpp"
#include "../native/json_texts.hpp"
#include "../native/mapping.hpp"
#include "../native/recycled.hpp"
#include "../native/shuffled_windows.hpp"

using namespace tokenloom;

namespace {

constexpr int kThreads = 4;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "threads: %s\n", what);
  std::exit(1);
}

// Calls `work(number)` in several threads at once.
template <typename Work>
void in_threads(const Work& work) {
  std::vector<std::jthread> threads;
  for (int number = 0; number < kThreads; ++number) threads.emplace_back([&work, number] { work(number); });
}

template <typename AnyBlend>
std::vector<std::int64_t> blended(const std::vector<double>& weights, std::int64_t size, int threads, int warm_up) {
  std::vector<std::int16_t> chosen(static_cast<std::size_t>(size));
  std::vector<std::int64_t> samples(static_cast<std::size_t>(size));
  blend_in_parallel<AnyBlend>(
      std::span<const double>(weights), {}, size, threads, warm_up,
      [&](std::span<AnyBlend* const> blends, std::span<const std::int64_t> begins, std::int64_t count) {
        std::vector<std::int16_t*> chosen_at;
        std::vector<std::int64_t*> samples_at;
        for (const std::int64_t begin : begins) {
          chosen_at.push_back(chosen.data() + begin);
          samples_at.push_back(samples.data() + begin);
        }
        AnyBlend::fill(blends, count, chosen_at.data(), samples_at.data());
      });
  samples.insert(samples.end(), chosen.begin(), chosen.end());
  return samples;
}

template <typename AnyBlend>
void blends_of(const std::vector<double>& weights) {
  const auto alone = blended<Blend>(weights, 40'000, 1, 0);
  for (const int warm_up : {0, 100, 8192})
    require(blended<AnyBlend>(weights, 40'000, kThreads, warm_up) == alone, "a blend by several threads is another");
}

void blends(std::mt19937_64& random) {
  for (const std::size_t count : {2UL, 30UL, 200UL, 700UL}) {
    std::vector<double> weights(count);
    for (double& weight : weights) weight = std::uniform_real_distribution<>(0.001, 1)(random);
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (double& weight : weights) weight /= sum;
    blends_of<Blend>(weights);
    if (are_few(weights)) blends_of<FewBlend>(weights);
  }
}

void shuffles(std::mt19937_64& random) {
  const std::size_t count = 200'000;  // enough for a second thread
  std::vector<std::int32_t> lengths(count), stream(count), alone(count);
  for (auto& length : lengths) length = static_cast<std::int32_t>(random() % 30);
  std::iota(stream.begin(), stream.end(), 0);
  alone = stream;
  const std::int64_t total = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  const UnalignedArray<std::int32_t> rows_of{reinterpret_cast<const std::uint8_t*>(lengths.data()), count};
  const std::int64_t windows = (total - 1) / 17;
  std::vector<std::int32_t> found(2 * static_cast<std::size_t>(windows) + 2), expected(found.size());
  Mt19937 first(7), second(7);
  shuffle_and_index(std::span<std::int32_t>(stream), {{0, count, 0, total}}, first, rows_of, 17, 1, windows,
                    found.data());
  legacy_shuffle(std::span<std::int32_t>(alone), second, [](std::size_t) {});
  build_sample_index(rows_of, std::span<const std::int32_t>(alone), 17, 1, windows, expected.data());
  require(stream == alone, "a shuffle that is followed is another");
  require(found == expected, "windows of a stream that is being shuffled are others");
}

// What ThreadLoader does: threads fill batches from one reader into memory that was used before.
void batches(std::mt19937_64& random) {
  constexpr std::int64_t kLength = 64, kSamples = 200;
  std::vector<std::int32_t> lengths{5000, 0, 4000, 4000};
  std::vector<std::int64_t> pointers{0, 10'000, 10'000, 18'000};
  std::vector<std::uint16_t> tokens(13'000);
  for (auto& token : tokens) token = static_cast<std::uint16_t>(random());
  std::vector<std::int32_t> documents{2, 0, 1, 3}, index(2 * kSamples + 2), order(kSamples);
  std::iota(order.begin(), order.end(), 0);
  Windows reader;
  reader.lengths = {reinterpret_cast<const std::uint8_t*>(lengths.data()), lengths.size()};
  build_sample_index(reader.lengths, std::span<const std::int32_t>(documents), kLength, 1, kSamples, index.data());
  reader.document_index = {documents.data(), 4, IntegerArray::Kind::kInt32};
  reader.sample_index = {index.data(), static_cast<std::int64_t>(index.size()), IntegerArray::Kind::kInt32};
  reader.shuffle_index = {order.data(), kSamples, IntegerArray::Kind::kInt32};
  reader.window_length = kLength, reader.extra = 1, reader.num_tokens = 13'000;
  const MappedTokens source{reinterpret_cast<const std::uint8_t*>(tokens.data()), 26'000,
                            {reinterpret_cast<const std::uint8_t*>(pointers.data()), pointers.size()}, 2};
  GptOptions options;
  options.sequence_length = kLength, options.extra = 1, options.eod_id = 7;
  options.reset_position_ids = options.eod_mask_loss = true;

  RecycledMemory memory(1 << 20);
  std::mutex lock;  // Python's, in the module
  std::atomic<std::int64_t> sum{0};
  in_threads([&](int number) {
    for (std::int64_t first = number; first + 8 <= kSamples; first += kThreads) {
      constexpr std::size_t kBytes = 8 * kLength * sizeof(std::int64_t);
      std::unique_ptr<PageBlock> blocks[4];
      {
        const std::lock_guard<std::mutex> hold(lock);
        for (auto& block : blocks) block = memory.take(kBytes);
      }
      const GptRows<std::int64_t> rows{
          {static_cast<std::int64_t*>(blocks[0]->data()), static_cast<std::int64_t*>(blocks[1]->data()),
           static_cast<float*>(blocks[2]->data()), static_cast<std::int64_t*>(blocks[3]->data()), nullptr, nullptr,
           nullptr, nullptr},
          kLength};
      std::vector<std::int64_t> positions(8);
      std::iota(positions.begin(), positions.end(), first);
      fill_gpt_rows<std::uint16_t>(reader, source, positions, {}, options, rows);
      sum += std::accumulate(rows.first.tokens, rows.first.tokens + 8 * kLength, std::int64_t{0});
      const std::lock_guard<std::mutex> hold(lock);
      for (auto& block : blocks) memory.give_back(std::move(block));
    }
  });
  require(sum > 0, "batches hold nothing");
}

void mappings_and_texts(const char* path) {
  std::string lines;
  for (int i = 0; i < 200; ++i) lines += "{\"text\": \"line \\u00e9 " + std::to_string(i) + " \xc3\xa9\"}\n";
  lines += "[]\n";
  const std::string_view keys[] = {"text"};
  in_threads([&](int) {
    for (int i = 0; i < 20; ++i) {
      FileFacts facts;
      const Mapping mapping = map_file(path, facts);
      require(facts.num_bytes == static_cast<std::int64_t>(mapping.size), "a mapped file is told of another size");
      require(mapping.size > 0 && mapping.data[0] != 0, "a mapped file is empty");
      unmap(mapping);
      const auto texts =
          json_texts({reinterpret_cast<const std::uint8_t*>(lines.data()), lines.size()}, std::span(keys), 1);
      require(texts && texts->columns.front().offsets.size() == 201 && texts->unusual.size() == 3, "lines are lost");
    }
  });
}

}  // namespace

int main(int, char** arguments) {
  std::mt19937_64 random(std::random_device{}());
  for (int round = 0; round < 5; ++round) {
    blends(random);
    shuffles(random);
    batches(random);
    mappings_and_texts(arguments[0]);
  }
  std::puts("threads: no races, and what one thread gives");
}
