// Texts cut into segments, words and signs, and the number of each among those that occurred before: most of a text is words that
// it has had already, whose token ids need not be looked for again.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

namespace seqloom {

enum Cuts : long { // as `Cuts` in segment_cache.py
  SPACES = 1, LINES = 2, SIGNS = 4, ASCII = 8
};

enum CharacterClass : unsigned char { OTHER, BLANK, LETTER, SIGN, OPENS, CLOSES, HIGH };

constexpr std::array<CharacterClass, 256> character_classes() {
  std::array<CharacterClass, 256> made{};
  for (int byte = 0; byte < 33; byte++) made[byte] = BLANK; // control characters too: white space for some tokenizers
  for (int byte = 33; byte < 127; byte++) made[byte] = SIGN;
  for (int byte = '0'; byte <= '9'; byte++) made[byte] = OTHER;
  for (int byte = 'a'; byte <= 'z'; byte++) made[byte] = made[byte - 32] = LETTER;
  for (int byte = 128; byte < 256; byte++) made[byte] = HIGH;
  made['_'] = OTHER;
  made['\''] = made['<'] = OPENS; // 's may be one token, <unk> one word: no cut between such a sign and the letters after it,
  made['>'] = CLOSES;             // nor between letters and this one
  return made;
}
inline constexpr auto CLASS_OF = character_classes();

struct Segments { // as `SegmentArguments` in segment_cache.py
  const unsigned char* text; // all texts in UTF-8, one after the other, and 8 bytes more
  const long* ends;          // (texts,): where each text ends
  long texts, cuts;
  std::uint64_t* table; // (slots,): half of a hash, and 1 + a number; 0 is free. `slots` is a power of 2.
  long slots;
  std::uint64_t seed;
  unsigned char* keys;    // the known segments, one after the other
  std::int32_t* key_ends; // where each ends
  long known;             // grows
  std::int32_t* numbers;  // out: the number of each segment
  long* counts;           // (texts,) out: how many segments there are up to the end of each text
  std::int32_t* added;    // out: where each segment that was not known begins in the text, and where it ends

  // The caller gives room for as many new segments, and as many bytes of them, as the texts have bytes.
  void find() {
    long begin = 0, found = 0, news = 0;
    for (long i = 0; i < texts; i++) {
      const long end = ends[i];
      while (begin < end) {
        const long next = next_cut(begin, end);
        const long before = known;
        numbers[found++] = number_of(text + begin, next - begin);
        if (known > before) {
          added[news++] = static_cast<std::int32_t>(begin);
          added[news++] = static_cast<std::int32_t>(next);
        }
        begin = next;
      }
      counts[i] = found;
    }
  }

private:
  long next_cut(long begin, long end) const {
    CharacterClass before = CLASS_OF[text[begin]];
    for (long i = begin + 1; i < end; i++) {
      const CharacterClass here = CLASS_OF[text[i]];
      switch (here) {
      case BLANK:
        if (before != BLANK && cuts_blank(i, end)) return i;
        break;
      case LETTER:
        if ((before == SIGN || before == CLOSES) && (cuts & SIGNS)) return i;
        break;
      case SIGN:
      case OPENS:
        if (before == LETTER && (cuts & SIGNS)) return i;
        break;
      default: break;
      }
      before = here;
    }
    return end;
  }

  // Whether the run of blanks that begins at `i` begins a segment.
  bool cuts_blank(long i, long end) const {
    const unsigned char first = text[i], before = text[i - 1];
    if (first == ' ' ? !(cuts & SPACES) : !(cuts & LINES) || (first != '\t' && first != '\n' && first != '\r')) return false;
    if (before >= 128 && is_wide_blank(i)) return false;
    if (cuts & LINES) return true;
    if ((cuts & ASCII) && before >= 127) return false;
    long after = i;
    while (after < end && text[after] == ' ') after++;
    if (after == end) return true;
    if (cuts & ASCII) return text[after] > ' ' && text[after] < 127;
    return std::memcmp(text + after, "\xE2\x96\x81", 3) != 0; // ▁ stands for a space
  }

  // Whether the character that ends at `i`, which is not ASCII, is white space.
  bool is_wide_blank(long i) const {
    if (i < 3 || text[i - 2] >= 0xC0) return text[i - 2] == 0xC2 && (text[i - 1] == 0x85 || text[i - 1] == 0xA0);
    const int lead = text[i - 3], middle = text[i - 2], last = text[i - 1];
    switch (lead) {
    case 0xE1: return middle == 0x9A && last == 0x80;
    case 0xE2: return (middle == 0x80 && (last <= 0x8A || last == 0xA8 || last == 0xA9 || last == 0xAF)) || (middle == 0x81 && last == 0x9F);
    case 0xE3: return middle == 0x80 && last == 0x80;
    default: return false;
    }
  }

  std::int32_t number_of(const unsigned char* segment, long length) {
    const std::uint64_t hash = hash_of(segment, length), upper = hash >> 32 << 32;
    const long mask = slots - 1;
    long slot = static_cast<long>(hash) & mask;
    for (; table[slot]; slot = (slot + 1) & mask)
      if ((table[slot] ^ upper) >> 32 == 0) {
        const auto number = static_cast<std::int32_t>(table[slot]) - 1;
        const long start = start_of(number);
        if (key_ends[number] - start == length && std::memcmp(keys + start, segment, length) == 0) return number;
      }
    table[slot] = upper | static_cast<std::uint64_t>(known + 1);
    const long start = start_of(known);
    std::memcpy(keys + start, segment, length);
    key_ends[known] = static_cast<std::int32_t>(start + length);
    return static_cast<std::int32_t>(known++);
  }

  long start_of(long number) const { return number ? key_ends[number - 1] : 0; }

  std::uint64_t hash_of(const unsigned char* segment, long length) const {
    std::uint64_t hash = seed ^ static_cast<std::uint64_t>(length);
    for (long i = 0; i < length; i += 8) {
      std::uint64_t eight;
      std::memcpy(&eight, segment + i, 8);
      if (length - i < 8) eight &= (std::uint64_t(1) << 8 * (length - i)) - 1; // the bytes of the segment are the low ones
      hash = (hash ^ eight) * 0x9E3779B97F4A7C15;
      hash ^= hash >> 32;
    }
    hash *= 0xD6E8FEB86659FD93;
    return hash ^ hash >> 32;
  }
};

} // namespace seqloom
