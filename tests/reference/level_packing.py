"""Packs of equal cost, step by step: the readable twin of the kernel, with lists instead of indices."""

import bisect
from dataclasses import dataclass, field

DUST_SHARE, TRIED, PASSES, ALIKE, SPARED, RAISE = 20, 8, 4, 128, 10, 16


@dataclass
class Pack:
    """Sub-samples, as positions, longest first."""

    tokens: int = 0
    cost: int = 0
    items: list[int] = field(default_factory=list)


class LevelPacking:
    """The parameters are those of `kernels.pack_to_levels`."""

    def __init__(
        self, lengths, costs, *, capacity, most_items, widths, levels, bases, num_ranks, by_length, short_first=0
    ):
        self.lengths, self.costs, self.capacity = lengths, costs, capacity
        self.widths, self.levels, self.bases, self.num_ranks = widths, levels, bases, num_ranks
        self.by_length, self.most_items, self.short_first = by_length, most_items, short_first
        self.left = list(range(len(lengths)))
        self.packs: list[Pack] = []
        self.dust: list[int] = []
        self.dust_counts = True  # whether averages include the dust: only as long as costly steps are filled

    def pack_of(self):
        """Returns the pack of each sub-sample, or None if not all found room."""
        self.spared = self.spare_packs()
        if not self.by_length:
            self.set_dust_aside()
        num_packs = self.packs_left()
        self.most_filled = max(1, self.most_items - (-(-len(self.dust) // num_packs) if num_packs else 0))
        even = self.fill_costly_steps()
        self.dust_counts = False
        while len(self.packs) < sum(self.widths):
            self.fill(self.average(self.costs))
        if self.left or not self.spread_dust(even):
            return None
        begin = 0
        for step in range(self.num_costly):
            end = begin + self.widths[step] - self.spared[step]
            self.divide_pairs(begin, end)
            begin = end
        self.divide_pairs(even, len(self.packs))
        self.complete_costly_steps()
        self.even_out_steps()
        numbers = {item: number for number, pack in enumerate(self.packs) for item in pack.items}
        return [numbers[item] for item in range(len(self.lengths))]

    def packs_left(self):
        return sum(self.widths) - len(self.packs)

    def average(self, values):
        """Returns what is left per pack that is left, rounded up."""
        counted = self.left + (self.dust if self.dust_counts else [])
        return -(-sum(values[item] for item in counted) // self.packs_left())

    def add(self, item, pack):
        pack.tokens += self.lengths[item]
        pack.cost += self.costs[item]
        pack.items.append(item)

    def set_dust_aside(self):
        most = sum(self.lengths) // DUST_SHARE
        while len(self.left) > self.packs_left():
            if sum(self.lengths[item] for item in self.dust) + self.lengths[self.left[-1]] > most:
                break
            self.dust.insert(0, self.left.pop())

    def spare_packs(self):
        """Returns how many packs of each step are not filled to its level."""
        spared = [0] * len(self.widths)
        num_long = self.count_long()
        if not num_long or any(self.levels) or sum(self.widths) < num_long:
            return spared
        steps = next(n for n in range(len(self.widths) + 1) if sum(self.widths[:n]) >= num_long)
        spare = sum(self.widths[:steps]) - num_long
        each = -(-spare // steps)
        most = max(1, self.num_ranks // SPARED)
        if each <= most:
            for step in reversed(range(steps)):
                spared[step] = min(most if 2 * each > most else each, spare, self.widths[step])
                spare -= spared[step]
        return spared

    def count_long(self):
        """Returns how many sub-samples above half a pack cost twice what packs without them can; all or none."""
        count = sum(length > self.capacity // 2 for length in self.lengths)
        if not 0 < count < len(self.lengths):
            return 0
        most = self.costs[count] * self.capacity
        return count if 2 * most < self.costs[count - 1] * self.lengths[count] else 0

    def complete_costly_steps(self):
        """Gives the cheapest even packs to the costly steps that spared some."""
        packs = []
        for step in range(self.num_costly):
            packs += [self.packs.pop(0) for _ in range(self.widths[step] - self.spared[step])]
            packs += [self.packs.pop() for _ in range(self.spared[step])]
        self.packs = packs + self.packs

    def fill_costly_steps(self):
        self.num_costly = 0
        for width, spared, anyway in zip(self.widths, self.spared, self.levels, strict=True):
            if not self.left or not self.packs_left():
                break
            level = max(anyway, self.costs[self.left[0]])
            if level <= self.average(self.costs):
                break
            for _ in range(width - spared):
                self.fill(level)
            self.num_costly += 1
        return len(self.packs)

    def fill(self, level):
        share = self.average(self.lengths)
        too_many = len(self.left) - (self.packs_left() - 1) * self.most_filled
        early = max(len(self.left) // self.packs_left() * self.short_first // 4 - 1, too_many)
        pack = Pack()
        self.packs.append(pack)
        self.add(self.left.pop(0), pack)
        self.take_shortest(early, pack)
        while len(self.left) > self.packs_left() and len(pack.items) < self.most_filled:
            room = self.capacity - pack.tokens
            budget = float("inf") if self.by_length else level - pack.cost
            item = self.longest_within(room, budget, share - pack.tokens)
            if item is None:
                item = self.left[-1]
                if pack.tokens >= share or self.lengths[item] > room:
                    break
            self.left.remove(item)
            self.add(item, pack)
        pack.items.sort()

    def take_shortest(self, count, pack):
        while len(self.left) > self.packs_left() and len(pack.items) < min(count, self.most_items):
            if self.lengths[self.left[-1]] > self.capacity - pack.tokens:
                return
            self.add(self.left.pop(), pack)

    def longest_within(self, room, budget, missing):
        """Returns the longest that fits, and leaves budget for the missing tokens to come from the shortest."""
        shortest = self.left[-1]

        def fits(item):
            rest = max(missing - self.lengths[item], 0)
            needed = self.costs[item] * self.lengths[shortest] + rest * self.costs[shortest]
            return self.lengths[item] <= room and (budget == float("inf") or needed <= budget * self.lengths[shortest])

        place = bisect.bisect_left(range(shortest + 1), True, key=fits)
        return next((item for item in self.left if item >= place), None)

    def spread_dust(self, even):
        packs = self.packs[even:] or self.packs
        for item in self.dust:
            free = [pack for pack in packs if len(pack.items) < self.most_items]
            emptiest = min(free, key=lambda pack: pack.tokens, default=None)
            if emptiest is None or emptiest.tokens + self.lengths[item] > self.capacity:
                return False
            self.add(item, emptiest)
        return True

    def divide_pairs(self, begin, end):
        half = (end - begin) // 2
        for number in range(PASSES):
            self.packs[begin:end] = sorted(self.packs[begin:end], key=lambda pack: -pack.cost)
            for i in range(half):
                self.divide_anew(begin + i, end - 1 - (i + number * half // PASSES) % half)
        self.packs[begin:end] = sorted(self.packs[begin:end], key=lambda pack: -pack.cost)

    def divide_anew(self, costly, cheap):
        before = self.packs[costly].cost
        difference = before - self.packs[cheap].cost
        if difference <= (before // ALIKE):
            return
        merged = sorted(self.packs[costly].items + self.packs[cheap].items)
        tried, lot = merged[:TRIED], merged[TRIED:]
        ways = min(gray_codes(len(tried)), key=lambda ways: self.costlier(tried, lot, ways))
        left, right = Pack(), Pack()
        for item, to_right in zip(tried, ways, strict=True):
            self.add(item, right if to_right else left)
        for item in lot:
            first, second = (right, left) if right.cost < left.cost else (left, right)
            has_room = first.tokens + self.lengths[item] <= self.capacity and len(first.items) < self.most_items
            self.add(item, first if has_room else second)
        fits = max(len(left.items), len(right.items)) <= self.most_items
        fits = fits and max(left.tokens, right.tokens) <= self.capacity and left.items and right.items
        if fits and max(left.cost, right.cost) < before:
            self.packs[costly], self.packs[cheap] = left, right

    def costlier(self, tried, lot, ways):
        """Returns the cost of the costlier half, the lot cut where that is best for it."""
        tokens, cost = [0, 0], [0, 0]
        for item, side in zip(tried, ways, strict=True):
            tokens[side] += self.lengths[item]
            cost[side] += self.costs[item]
        if max(tokens) > self.capacity:
            return float("inf")
        lot_tokens, lot_cost = sum(self.lengths[item] for item in lot), sum(self.costs[item] for item in lot)
        per_token = 1.0 / float(lot_tokens) if lot_tokens else 0.0
        per_cost = 0.5 / float(lot_cost) if lot_cost else 0.0
        lowest = float(tokens[1] + lot_tokens - self.capacity) * per_token
        highest = float(self.capacity - tokens[0]) * per_token
        even = float(cost[1] + lot_cost - cost[0]) * per_cost
        part = max(0.0, lowest, min(1.0, highest, even))
        added = part * float(lot_cost)
        return max(float(cost[0]) + added, float(cost[1] + lot_cost) - added)

    def even_out_steps(self):
        steps, at = [], 0
        for width, level, base in zip(self.widths, self.levels, self.bases, strict=True):
            numbers = range(at, at + width)
            at += width
            if width:
                level = max(level, *self.costs_of(numbers))
                steps.append({"numbers": numbers, "level": level, "limit": level + level // RAISE, "base": base})
        for _ in self.packs:
            steps.sort(key=lambda step: (-self.imbalance(step), step["numbers"].start))
            if not any(self.exchange(steps[0], other) for other in reversed(steps[1:])):
                return

    def costs_of(self, numbers):
        return [self.packs[number].cost for number in numbers]

    def imbalance(self, step, level=None, gain=0):
        total = step["base"] + sum(self.costs_of(step["numbers"])) + gain
        if total == 0:
            return 0.0
        return float(step["level"] if level is None else level) * float(self.num_ranks) / float(total)

    def exchange(self, worst, other):
        cheapest = min(worst["numbers"], key=lambda number: self.packs[number].cost)
        floor, level = self.packs[cheapest].cost, worst["level"]
        useful = [number for number in other["numbers"] if self.packs[number].cost > floor]
        within = [number for number in useful if self.packs[number].cost <= level]
        above = [number for number in useful if level < self.packs[number].cost <= worst["limit"]]
        if within:
            chosen = max(within, key=lambda number: self.packs[number].cost)
        elif above:
            chosen = min(above, key=lambda number: self.packs[number].cost)
        else:
            return False
        gain, level = self.packs[chosen].cost - floor, max(level, self.packs[chosen].cost)
        after = max(self.imbalance(worst, level, gain), self.imbalance(other, None, -gain))
        if after >= self.imbalance(worst):
            return False
        self.packs[chosen], self.packs[cheapest] = self.packs[cheapest], self.packs[chosen]
        worst["level"] = level
        return True


def gray_codes(count):
    """Yields all ways to send items right or left, the first one always left; one item changes sides each time."""
    for number in range(2 ** (count - 1)):
        code = number ^ (number >> 1)
        yield [0, *(code >> i & 1 for i in range(count - 1))]
